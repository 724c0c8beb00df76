"""What a program or a notebook does with bouquet."""

import asyncio
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import bouquet
from bouquet.strategies.apfl import APFL
from bouquet.strategies.fedsim import FedSim

TWO: dict[str, Any] = {"rounds": 2, "local_steps": 2, "progress": False}
SMALL = TWO | {"clients": 4}


@dataclass(frozen=True)
class Slower(APFL):
    """APFL whose own models take smaller steps: a scheme from outside."""

    name = "slower"
    pace: float = bouquet.key(0.5, "share of the step", low=0.0, high=1.0)


def clients(count: int = 3) -> dict[str, tuple[Any, Any]]:
    rng = np.random.default_rng(0)
    return {
        f"c{k}": (rng.normal(size=(20, 5)).astype("float32"), rng.integers(3, size=20))
        for k in range(count)
    }


def test_a_run_says_what_its_folder_says(tmp_path: Path) -> None:
    run = bouquet.simulate("apfl", out=tmp_path / "run", apfl={"alpha": 0.3}, **SMALL)
    assert run.folder == tmp_path / "run"
    assert run.summary["scheme"] == "apfl"
    assert [event["round"] for event in run.events] == [1, 2]
    assert [row["client"] for row in run.clients] == ["000", "001", "002", "003"]
    assert bouquet.load(tmp_path / "run") == run


def test_a_scheme_may_be_a_name_a_class_or_itself(tmp_path: Path) -> None:
    forms: list[tuple[Any, dict[str, Any]]] = [
        ("apfl", {"apfl": {"alpha": 0.3}}),
        (APFL(alpha=0.3), {}),
        (APFL, {}),
    ]
    runs = [
        bouquet.simulate(scheme, out=tmp_path / str(number), **keys, **SMALL)
        for number, (scheme, keys) in enumerate(forms)
    ]
    shas = [run.clients for run in runs]
    assert shas[0] == shas[1] != shas[2]


def test_models_of_a_run_are_ready_to_call(tmp_path: Path) -> None:
    run = bouquet.simulate("apfl", out=tmp_path / "run", **SMALL)
    x = torch.rand(3, 64)
    own, shared = run.model_of("001"), run.shared_model()
    assert own(x).shape == shared(x).shape == (3, 10)
    assert not torch.equal(own(x), shared(x))
    assert not own.training


@pytest.mark.parametrize("form", ["pairs", "parts", "data sets", "triples"])
def test_data_may_be_in_memory(form: str, tmp_path: Path) -> None:
    held = clients()
    whole: Any = {
        "pairs": held,
        "parts": {k: (x[:15], y[:15], x[15:], y[15:]) for k, (x, y) in held.items()},
        "data sets": {
            k: torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y))
            for k, (x, y) in held.items()
        },
        "triples": [(k, x, y) for k, (x, y) in held.items()],
    }[form]
    run = bouquet.simulate(
        "fedavg", data=whole, model="linear", out=tmp_path / "run", rounds=1, progress=False
    )
    assert [row["client"] for row in run.clients] == ["c0", "c1", "c2"]
    assert {row["train_examples"] for row in run.clients} == {15.0}
    resumed = bouquet.load(run.folder).model_of("c0")
    assert resumed(torch.zeros(1, 5)).shape == (1, 3)


def test_a_model_may_be_a_module_and_stays_as_it_is(tmp_path: Path) -> None:
    mine = nn.Linear(5, 3)
    before = mine.weight.detach().clone()
    run = bouquet.simulate(
        "local", data=clients(), model=mine, out=tmp_path / "run", rounds=1, progress=False
    )
    assert torch.equal(mine.weight, before)
    assert set(run.model_of("c1").state_dict()) == {"weight", "bias"}


def test_a_model_may_be_a_function(tmp_path: Path) -> None:
    def make(shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(nn.Linear(shape[0], 7), nn.ReLU(), nn.Linear(7, classes))

    run = bouquet.simulate(
        "fedavg", data=clients(), model=make, out=tmp_path / "run", rounds=1, progress=False
    )
    assert run.shared_model()(torch.zeros(2, 5)).shape == (2, 3)


def test_a_scheme_of_the_programs_own_has_its_name_and_keys(tmp_path: Path) -> None:
    run = bouquet.simulate(Slower(pace=0.25, alpha=0.3), out=tmp_path / "run", **SMALL)
    assert run.summary["scheme"] == "slower"
    assert "pace = 0.25" in (run.folder / "config.toml").read_text()
    with pytest.raises(bouquet.BadInput, match=r"slower\.pace must be a number from 0 to 1, not 2"):
        bouquet.simulate(Slower(pace=2.0), **SMALL)


def test_schemes_are_compared_over_seeds(tmp_path: Path) -> None:
    runs = bouquet.compare(["fedavg", Slower], seeds=[0, 1], out=tmp_path / "all", **SMALL)
    assert [run.folder.name for run in runs] == [
        "fedavg-seed0", "fedavg-seed1", "slower-seed0", "slower-seed1",
    ]  # fmt: skip
    table = runs.table()
    assert [row[:2] for row in table.rows] == [("fedavg", 2), ("slower", 2)]
    means = [run.summary["personal"]["accuracy"]["mean"] for run in runs[2:]]
    assert table.rows[1][4] == pytest.approx(np.mean(means))
    assert table.rows[1][5] == pytest.approx(np.std(means, ddof=1))
    assert "slower" in str(table)
    assert "<td>slower</td>" in table._repr_html_()


def test_a_run_goes_on_to_more_rounds(tmp_path: Path) -> None:
    run = bouquet.simulate("apfl", out=tmp_path / "run", **SMALL)
    longer = bouquet.simulate(resume=run.folder, rounds=3, progress=False)
    assert longer == run
    assert [event["round"] for event in run.events] == [1, 2, 3]
    whole = bouquet.simulate("apfl", out=tmp_path / "whole", **SMALL | {"rounds": 3})
    assert run.summary["shared_sha256"] == whole.summary["shared_sha256"]
    with pytest.raises(bouquet.BadInput, match=r"scheme is 'apfl' in .* cannot become 'fedavg'"):
        bouquet.simulate("fedavg", resume=run.folder, progress=False)
    with pytest.raises(bouquet.BadInput, match="leave out and data away"):
        bouquet.simulate(data=clients(), resume=run.folder, progress=False)


def test_a_comparison_goes_on_with_more_rounds_schemes_and_seeds(tmp_path: Path) -> None:
    bouquet.compare(["fedavg"], seeds=[1], out=tmp_path / "all", **SMALL)
    runs = bouquet.compare([Slower], seeds=[2], resume=tmp_path / "all", rounds=3, progress=False)
    assert [run.folder.name for run in runs] == [
        "fedavg-seed1", "fedavg-seed2", "slower-seed1", "slower-seed2",
    ]  # fmt: skip
    assert {run.summary["rounds"] for run in runs} == {3}
    assert {run.summary["clients"] for run in runs} == {4}


def test_the_command_goes_on_with_a_programs_comparison(tmp_path: Path) -> None:
    """Its folder says what belongs there, as the command's own does."""
    comparison = tmp_path / "all"
    runs = bouquet.compare(["local", APFL(alpha=0.3)], data=clients(), out=comparison, **TWO)
    words = ["compare", "fedavg", "--resume", str(comparison), "--quiet"]
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-m", "bouquet", *words],
        env=os.environ | {"PYTHONPATH": root},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, f"{comparison}\n"), done.stderr
    added = bouquet.load(comparison / "fedavg")
    assert [row["client"] for row in added.clients] == ["c0", "c1", "c2"]
    assert "alpha = 0.3" in (runs[1].folder / "config.toml").read_text()
    assert {one.name for one in comparison.iterdir()} == {
        "apfl", "compare.toml", "data", "fedavg", "local",
    }  # fmt: skip


def test_a_schemes_own_keys_stay_with_it(tmp_path: Path) -> None:
    runs = bouquet.compare(["fedavg", Slower(pace=0.25)], out=tmp_path / "all", **SMALL)
    kept = ["pace" in (run.folder / "config.toml").read_text() for run in runs]
    assert kept == [False, True]
    again = bouquet.compare(resume=tmp_path / "all", rounds=3, progress=False)
    assert "pace = 0.25" in (again[1].folder / "config.toml").read_text()


def test_what_only_this_program_has_is_compared_but_not_written_down(tmp_path: Path) -> None:
    class Hidden(FedSim):
        name = "hidden"

    runs = bouquet.compare(["fedavg", Hidden], out=tmp_path / "all", **SMALL)
    assert [run.summary["scheme"] for run in runs] == ["fedavg", "hidden"]
    with pytest.raises(bouquet.BadInput, match="holds no comparison"):
        bouquet.compare(resume=tmp_path / "all", progress=False)


def test_frames_have_a_row_a_client_and_a_row_a_round(tmp_path: Path) -> None:
    run = bouquet.simulate("apfl", out=tmp_path / "run", **SMALL)
    assert list(run.to_frame().index) == ["000", "001", "002", "003"]
    assert list(run.to_frame("events").index) == [1, 2]


SHORT: dict[str, Any] = {"rounds": 1, "progress": False}


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"scheme": "apfel"}, r"scheme must be one of fedavg, .*not 'apfel'"),
        ({"rounds": 0}, "rounds must be a whole number of at least 1, not 0"),
        ({"engine": "gpu"}, "engine must be 'inline' or 'ray', not 'gpu'"),
        ({"data": {}}, "data must have at least one client"),
        ({"data": {"a": ([1.0], [0, 1])}}, "client 'a' has 1 inputs and 2 labels"),
        ({"data": [("a", [[1.0]] * 4, [0] * 4)] * 2}, "there are two clients 'a'"),
        ({"data": {"a": [([1.0], 0.5)] * 5}, "model": "linear"}, "labels must be whole numbers"),
        ({"data": {"a": ([[1.0], [2.0, 3.0]], [0, 1])}}, "client 'a' must have arrays of numbers"),
        ({"data": {"a": "examples"}}, r"client 'a' has must be \(x, y\)"),
        ({"apfl": {"alfa": 1}}, r"Unknown key apfl\.alfa: did you mean apfl\.alpha"),
        ({"scheme": dict}, "scheme must be a name, or a subclass of"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_leaves_nothing(
    keys: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(bouquet.BadInput, match=sentence):
        bouquet.simulate(**SHORT | {"out": tmp_path / "run"} | keys)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"schemes": []}, "compare takes schemes"),
        ({"schemes": [APFL(alpha=0.3), "apfl"]}, "compare takes each scheme once, not 'apfl'"),
        ({"seeds": [0], "seed": 1}, "Set seed or --seeds, not both"),
        ({"data": {"a": ([1.0], [0, 1])}}, "client 'a' has 1 inputs and 2 labels"),
        ({"data": clients(), "clients_per_round": 9}, "clients-per-round must be at most 3"),
    ],
)
def test_a_comparison_that_is_refused_leaves_nothing(
    keys: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    told: dict[str, Any] = {"schemes": ["apfl"], "out": tmp_path / "deep" / "all"} | keys
    with pytest.raises(bouquet.BadInput, match=sentence):
        bouquet.compare(**told, progress=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "train", [bouquet.simulate, lambda **keys: bouquet.compare(["fedavg"], **keys)]
)
def test_what_was_in_the_folder_before_is_left_alone(train: Any, tmp_path: Path) -> None:
    """Data in memory are written there, and taken away when they are refused."""
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(bouquet.BadInput, match="1 inputs and 2 labels"):
        train(data={"a": ([1.0], [0, 1])}, out=tmp_path, progress=False)
    (tmp_path / "data").mkdir()
    with pytest.raises(bouquet.BadInput, match="data is there already; choose another folder"):
        train(data=clients(), out=tmp_path, progress=False)
    assert {one.name for one in tmp_path.iterdir()} == {"notes.txt", "data"}


def test_what_only_this_program_has_does_not_go_to_ray() -> None:
    class Hidden(FedSim):
        name = "hidden"

    with pytest.raises(bouquet.BadInput, match="scheme is an object of this program"):
        bouquet.simulate(Hidden, engine="ray", **SMALL)


def test_a_notebooks_event_loop_may_be_running(tmp_path: Path) -> None:
    async def cell() -> bouquet.Run:
        return bouquet.simulate("fedavg", out=tmp_path / "run", **SMALL)

    assert asyncio.run(cell()).summary["rounds"] == 2


def test_importing_bouquet_imports_no_torch() -> None:
    code = "import bouquet, sys; assert 'torch' not in sys.modules and 'flwr' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_scheme_in_a_file_runs_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its keys are read under its own name."""
    (tmp_path / "mine.py").write_text(
        textwrap.dedent(
            """
            from dataclasses import dataclass
            from bouquet.strategies.fedalt import FedAlt
            import bouquet

            @dataclass(frozen=True)
            class Extra(FedAlt):
                name = "mine"
                extra: int = bouquet.key(1, "of no use", low=0)
            """
        )
    )
    monkeypatch.chdir(tmp_path)
    keys: dict[str, Any] = {"mine": {"extra": 2, "personal_steps": 1}, "rounds": 1, "clients": 3}
    run = bouquet.simulate("./mine.py:Extra", out="run", progress=False, **keys)
    assert run.summary["scheme"] == "mine"
