"""Inputs made like in size by each client's own data, and the same in every use of its model."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from sklearn.preprocessing import MinMaxScaler, RobustScaler, StandardScaler

from bouquet.client_app.predictor import export, find_predictor, read_predictor
from bouquet.core.errors import BadInput
from bouquet.data import DataConfig, FederatedData, Split, load
from bouquet.data.prepare import Preparation, preparation, size_warning
from tests.conftest import Run
from tests.unit.test_folder import arrays

DTYPE = torch.float32
GENERATOR = np.random.default_rng(0)
# Age, blood pressure, income, and a constant.
RAW = GENERATOR.normal([50, 120, 30_000, 7], [15, 20, 9_000, 0], (40, 4))
SCALERS = {"standard": StandardScaler, "robust": RobustScaler, "minmax": MinMaxScaler}


@pytest.mark.parametrize("scale", SCALERS)
def test_a_scale_is_scikit_learns(scale: str) -> None:
    """Constants keep their size, as there."""
    x = torch.from_numpy(RAW)
    made = preparation(x[:30], scale, "refuse")(x)
    expected = SCALERS[scale]().fit(RAW[:30]).transform(RAW)
    np.testing.assert_allclose(made.numpy(), expected, rtol=1e-9, atol=1e-9)


def test_a_constant_that_rounds_is_a_constant() -> None:
    """The mean of many 0.1 is not quite 0.1: that must not be blown up."""
    x = torch.full((37, 1), 0.1, dtype=torch.float64)
    assert preparation(x, "standard", "refuse").size.tolist() == [1.0]
    # Quartiles that do not differ say nothing of size either.
    seldom = torch.tensor([[0.0]] * 9 + [[5.0]])
    assert preparation(seldom, "robust", "refuse")(seldom).flatten().tolist() == [0.0] * 9 + [5.0]


def test_gaps_are_filled_before_sizes_are_taken() -> None:
    nan = float("nan")
    x = torch.tensor([[1.0, nan], [3.0, nan], [nan, nan]])
    assert preparation(x, "none", "mean")(x).tolist() == [[1, 0], [3, 0], [2, 0]]
    assert preparation(x, "none", "zero")(x).tolist() == [[1, 0], [3, 0], [0, 0]]
    assert preparation(x, "minmax", "mean")(x).tolist() == [[0, 0], [1, 0], [0.5, 0]]


def test_a_preparation_survives_its_file_to_the_last_bit() -> None:
    x = torch.from_numpy(RAW).to(DTYPE).reshape(40, 2, 2)
    x[3, 0, 1] = float("nan")
    made = preparation(x, "robust", "mean")
    again = Preparation.from_json(made.to_json(), (2, 2), DTYPE)
    assert torch.equal(made(x), again(x))


def federation(validation: float = 0.0) -> FederatedData:
    x = torch.from_numpy(RAW).to(DTYPE)
    parts = torch.arange(40).chunk(4)
    clients = {"a": Split(parts[0], parts[1]), "b": Split(parts[2], parts[3])}
    return FederatedData(x, torch.arange(40) % 2, clients, 2).holding_out(validation, 0)


def test_only_a_clients_own_training_examples_decide() -> None:
    data = federation(0.3)
    split = data.clients["a"]
    changed = data.x.clone()
    others = torch.cat([split.test, split.validation, torch.arange(20, 40)])
    changed[others] *= 100
    same = FederatedData(changed, data.y, data.clients, 2).preparing("standard", "refuse")
    made = data.preparing("standard", "refuse")
    assert torch.equal(made.x[split.train], same.x[split.train])
    assert made.x[split.train].mean(dim=0).tolist() == pytest.approx([0, 0, 0, 0], abs=1e-5)
    assert made.x[split.test].mean(dim=0).abs().max() > 0.01  # those had no say
    # A device that has nobody else's data gets the same numbers.
    alone = federation().restricted(["a"]).holding_out(0.3, 0).preparing("standard", "refuse")
    for part in ("train", "validation", "test"):
        mine, shared = getattr(alone.clients["a"], part), getattr(split, part)
        assert torch.equal(alone.x[mine], made.x[shared])


def test_what_is_not_asked_for_is_not_done() -> None:
    data = federation()
    assert data.preparing("none", "refuse") is data


def test_words_and_quadratic_problems_have_no_size() -> None:
    x, split = torch.arange(6).reshape(3, 2), Split(torch.tensor([0]), torch.tensor([1]))
    text = FederatedData(x, x, {"a": split}, 7)
    with pytest.raises(BadInput, match=r"data\.scale must be 'none' for whole numbers, which"):
        text.preparing("standard", "refuse")
    assert text.preparing("none", "mean") is text
    quadratic = FederatedData(torch.ones(1, 1, 1), torch.ones(1, 1), {"a": split}, 0)
    with pytest.raises(BadInput, match=r"data\.scale must be 'none' for a quadratic problem"):
        quadratic.preparing("minmax", "refuse")


@pytest.mark.parametrize(
    ("sizes", "warned"),
    [([1, 1, 1], False), ([1, 50, 1], False), ([1, 200, 1], True), ([500, 500, 500], True)],
)
def test_inputs_of_unlike_or_large_size_are_warned_of(sizes: list[float], warned: bool) -> None:
    x = torch.from_numpy(GENERATOR.normal(0, sizes, (200, 3)))
    assert bool(size_warning(x, "none")) is warned
    assert not size_warning(x, "standard")


def test_images_and_text_are_not_warned_of() -> None:
    """Pixels at the border hardly ever change, which is no matter."""
    assert not size_warning(load(DataConfig(clients=2), 0, DTYPE).x, "none")
    assert not size_warning(torch.tensor([[5000], [1]]), "none")


# In runs


def patients(path: Path) -> Path:
    """Three hospitals whose two classes are told apart by age."""
    rng = np.random.default_rng(1)
    for client in ("003", "07", "west"):
        x = rng.normal([50, 120, 30_000], [15, 20, 9_000], (60, 3)).astype("float32")
        x[::4, 1] = np.nan
        arrays(path / client, x, (x[:, 0] > 50).astype(int))
    (path / "classes.txt").write_text("young\nold\n")
    return path


def keys(path: Path, **data: str) -> dict[str, object]:
    told = {"name": "folder", "path": str(path), "missing": "mean", **data}
    return {
        "scheme": "apfl",
        "rounds": 8,
        "save_predictors": True,
        "validation": 0.2,
        "data": told,
        "model": {"name": "linear"},
    }


def test_raw_columns_train_once_they_are_scaled_and_are_warned_of_before(
    start: Callable[..., Run], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = patients(tmp_path / "data")
    start(**keys(path), nodes=2, on_divergence="drop")
    said = [record.message for record in caplog.records if "data.scale=standard" in record.message]
    assert len(said) == 1
    caplog.clear()
    run = start(**keys(path, scale="standard"), nodes=2)
    assert run.summary["personal"]["accuracy"]["mean"] > 0.9
    assert not [record for record in caplog.records if "data.scale" in record.message]


def test_clients_get_the_same_numbers_on_any_node(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    told = keys(patients(tmp_path / "data"), scale="robust")
    one, three = (start(**told, nodes=nodes) for nodes in (1, 3))
    for client in ("003", "07", "west"):
        first, second = (
            read_predictor(find_predictor(run.path, client)).preparation for run in (one, three)
        )
        assert first == second


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_saved_model_takes_what_was_measured(start: Callable[..., Run], tmp_path: Path) -> None:
    """Its accuracy on raw test examples is the run's, in every form; its weights are its own."""
    config = DataConfig(name="folder", path=str(patients(tmp_path / "data")), missing="mean")
    run = start(**keys(tmp_path / "data", scale="standard"))
    raw = load(config, 0, DTYPE)
    for row in run.clients:
        test = raw.clients[row["client"]].test
        file = find_predictor(run.path, row["client"])
        predictor = read_predictor(file)
        assert raw.x[test].isnan().any()
        right = (predictor.classes(raw.x[test]) == raw.y[test]).float().mean()
        assert float(right) == pytest.approx(float(row["personal_accuracy"]), abs=1e-6)
        assert predictor.names == ("young", "old")
        assert {name.split(".")[-1] for name in load_file(file)} == {"weight", "bias"}
        names = [path.name for path in export(predictor, tmp_path / "out")]
        script = torch.jit.load(tmp_path / "out" / names[1])
        torch.testing.assert_close(script(raw.x[test]), predictor.module(raw.x[test]))
        session = onnxruntime.InferenceSession(tmp_path / "out" / names[2])
        (y,) = session.run(["y"], {"x": raw.x[test].numpy()})
        torch.testing.assert_close(torch.from_numpy(y), predictor.module(raw.x[test]))
        with safe_open(tmp_path / "out" / names[0], framework="pt") as exported:
            words = exported.metadata()
        assert json.loads(words["preparation"]).keys() == {"fill", "shift", "size"}
        assert json.loads(words["class-names"]) == ["young", "old"]


def test_a_model_without_filling_refuses_gaps(start: Callable[..., Run]) -> None:
    run = start(rounds=1, save_predictors=True, data={"clients": 2}, model={"name": "linear"})
    predictor = read_predictor(find_predictor(run.path, "000"))
    assert predictor.preparation == ""
    for bad in (float("nan"), float("inf")):
        with pytest.raises(BadInput, match="neither gaps"):
            predictor.classes(torch.full((1, 64), bad))
