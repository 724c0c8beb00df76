"""Augmentation: whose inputs it changes, by which draws, and which functions are refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import bouquet
from bouquet.augmentation import augmented
from bouquet.core.errors import BadInput
from bouquet.core.task import Batch
from bouquet.flower import PersonalizedStrategy, client_app
from bouquet.objects import flat
from bouquet.problem import problem
from bouquet.settings import parse
from tests.conftest import Run
from tests.unit.test_flower import CLASSES, QUICK, Net, train
from tests.unit.test_flower import load as in_app
from tests.zoo import jitter

Start = Callable[..., Run]
KEYS: dict[str, Any] = {
    "scheme": "finetune", "rounds": 2, "local_steps": 3, "batch_size": 12, "dtype": "float64",
    "save_predictors": True, "model": {"name": "linear"},
    "data": {"clients": 4, "partition": "dirichlet", "test_fraction": 0.9},
}  # fmt: skip
WEIGHT, BIAS = "output.weight", "output.bias"


def emptied(x: Tensor, draws: torch.Generator) -> Tensor:
    """Nothing is left to see."""
    return torch.zeros_like(x)


def test_training_batches_are_changed_and_neither_what_is_judged_nor_what_adapts(
    start: Start,
) -> None:
    """Of empty inputs only a bias can learn; a client that tunes when it predicts sees its own."""
    run = start(augment="tests.unit.test_augmentation:emptied", **KEYS)
    loaded = problem(parse(flat(KEYS)))
    initial, data = loaded.task.initial, loaded.data
    np.testing.assert_allclose(run.shared(WEIGHT), initial[WEIGHT].numpy(), atol=1e-15, rtol=0)
    assert (run.shared(BIAS) != initial[BIAS].numpy()).all()
    assert not np.allclose(run.predictor("000", WEIGHT), run.shared(WEIGHT))
    weight, bias = (torch.from_numpy(run.shared(name)) for name in (WEIGHT, BIAS))
    for row in run.clients:
        test = data.clients[row["client"]].test
        said = torch.nn.functional.linear(data.x[test].flatten(1), weight, bias)
        loss = float(torch.nn.functional.cross_entropy(said, data.y[test]))
        assert float(row["shared_loss"]) == pytest.approx(loss, rel=1e-9)


def test_a_clients_draws_are_its_own_in_any_company(start: Start) -> None:
    """Side by side and padded, one by one, on other nodes: the same models but for rounding."""
    keys = {**KEYS, "scheme": "apfl", "augment": "tests.zoo:jitter"}
    first = start(**keys, nodes=2, cohort="vmap")
    for company in ({"nodes": 4}, {"nodes": 1, "cohort": "loop"}):
        other = start(**keys, **company)
        for client in ("000", "001", "002", "003"):
            one, twin = (run.predictor(client, WEIGHT) for run in (first, other))
            np.testing.assert_allclose(one, twin, atol=1e-11)
    assert start(**keys, nodes=2, cohort="vmap").sha == first.sha
    assert start(**{**keys, "augment": "none"}, nodes=2, cohort="vmap").sha != first.sha


def batches(places: int, *counts: int) -> Batch:
    """Batches of one client, so many examples real and the others padding."""
    real = torch.arange(places) < torch.tensor(counts).unsqueeze(1)
    x = torch.ones(1, len(counts), places, 2)
    return Batch(x, x, real.float().unsqueeze(0), torch.ones(1, len(counts)))


def changed(client: str = "ann", seed: int = 0, round_: int = 1, places: int = 3) -> Tensor:
    seeds = (seed, "train", round_)
    return augmented(batches(places, 3, 0, 2), jitter, [client], seeds).x[0]


def test_draws_are_by_seed_client_and_round_and_padding_has_none() -> None:
    found = changed()
    assert found.equal(changed())
    assert not found[0, 0].equal(found[0, 1])
    assert not found[0, 0].equal(found[2, 0])
    for other in (changed("bob"), changed(seed=1), changed(round_=2)):
        assert not found[0, 0].equal(other[0, 0])
    assert (found[1] == 1).all()
    assert (found[2, 2:] == 1).all()
    padded = changed(places=5)
    assert padded[:, :3].equal(found)
    assert (padded[:, 3:] == 1).all()


def test_what_is_given_is_left_as_it_was() -> None:
    given = batches(3, 3)

    def in_place(x: Tensor, draws: torch.Generator) -> Tensor:
        return x.zero_()

    assert not augmented(given, in_place, ["ann"], (0,)).x.any()
    assert (given.x == 1).all()


BAD = """
import torch

number = 3
calls = []


def flat(x, draws):
    return x.flatten(1)[:, :3]


def listed(x, draws):
    return x.tolist()


def halved(x, draws):
    return x.half()


def nan(x, draws):
    return x / 0 * 0


def broken(x, draws):
    raise KeyError("angle")


def careless(x, draws):
    return x + torch.randn(x.shape)


def lonely(x, draws):
    return x - x.std(dim=0)


def asks_more(x):
    return x


def later(x, draws):
    calls.append(1)
    return x if len(calls) < 9 else x[:, :3]
"""


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    file = tmp_path / "bad.py"
    file.write_text(BAD)
    return file


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "flat",
            r"must give inputs of the shape and type of its own, \(1, 64\) float32, not \(1, ",
        ),
        ("listed", r"must give inputs of the shape and type of its own, .*, not list\.$"),
        ("halved", r"must give inputs of the shape and type of its own, .*, not .* float16\.$"),
        ("nan", r"must give finite inputs, not NaN or infinity\.$"),
        ("lonely", r"must give finite inputs, not NaN or infinity\.$"),  # of one example alone
        ("broken", r"fails on inputs of shape \(1, 64\): KeyError: 'angle'\.$"),
        ("asks_more", r"fails on inputs of shape \(1, 64\): TypeError: asks_more\(\) takes 1"),
        ("careless", r"must draw from the generator it is given alone"),
        ("number", r"must name a function, not 3\.$"),
        ("absent", r"cannot be imported: "),
    ],
)
@pytest.mark.filterwarnings("ignore:std.*degrees of freedom")
def test_a_function_that_will_not_do_is_refused_before_anything_is_trained(
    name: str, words: str, bad: Path, start: Start, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=rf"^augment '.*bad\.py:{name}' {words}"):
        start(augment=f"{bad}:{name}", rounds=1, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_function_that_goes_wrong_later_fails_its_clients_with_the_reason(
    bad: Path, start: Start
) -> None:
    with pytest.raises(bouquet.RunFailed, match="no client finished a single round"):
        start(augment=f"{bad}:later", rounds=1, data={"clients": 2})


def test_a_word_that_is_no_path_is_refused() -> None:
    with pytest.raises(BadInput, match=r"^augment must be one of 'none', or package\.module:name"):
        parse({"augment": "flip"})


def test_mochas_dual_variables_are_those_of_examples_as_they_are() -> None:
    with pytest.raises(BadInput, match=r"^augment must be 'none' for mocha, whose dual variables"):
        parse({"scheme": "mocha", "model.name": "linear", "augment": "tests.zoo:jitter"})


def test_a_program_gives_the_function_itself(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"rounds": 1, "local_steps": 2, "progress": False}
    named = bouquet.simulate(augment=jitter, out=tmp_path / "named", **keys)
    own = bouquet.simulate(augment=lambda x, draws: jitter(x, draws), out=tmp_path / "own", **keys)
    assert named.summary["shared_sha256"] == own.summary["shared_sha256"]
    with pytest.raises(BadInput, match=r"^augment is an object of this program"):
        bouquet.simulate(augment=lambda x, draws: x, engine="ray", **keys)


def test_a_flower_app_follows_only_the_augmentation_it_brings() -> None:
    strategy = PersonalizedStrategy("fedavg", augment=jitter, **QUICK)
    with pytest.raises(BadInput, match=r"^augment .* is not one of this app's; .*augments=\["):
        train(strategy)
    app = client_app(Net, in_app, classes=CLASSES, augments=[jitter])
    (own,) = train(strategy, app, rounds=1).evaluate_metrics_clientapp.values()
    (usual,) = train(
        PersonalizedStrategy("fedavg", **QUICK), rounds=1
    ).evaluate_metrics_clientapp.values()
    assert own["shared_loss"] != usual["shared_loss"]
