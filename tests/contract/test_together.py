"""What a run trains beside others, as one computation, it would train alone."""

from pathlib import Path
from typing import Any

import pytest

from bouquet.core import together
from bouquet.core.cohort import FEWEST_STEPS
from bouquet.core.replay import RECORDED
from bouquet.core.together import Asked, NotAlike
from bouquet.jobs import Plan, prepared
from bouquet.laboratory import SMALL, assert_close
from bouquet.program import keys_of_program
from bouquet.strategies import SCHEMES
from bouquet.sweeping import company
from tests.contract.test_laws import NEEDS

RATES = ({"lr": 0.05}, {"lr": 0.2}, {"lr": 0.2, "seed": 1})


def trained(folder: Path, scheme: str, several: Any, **keys: Any) -> list[Path]:
    """Runs of a scheme with several settings, trained together."""
    common = SMALL | {"dtype": "float64", "nodes": 1, "rounds": 2, "local_steps": 3} | keys
    common |= NEEDS.get(scheme, {})
    plans = []
    for place, own in enumerate(several):
        where = {"out": str(folder / str(place))}
        plans.append(Plan(keys_of_program(scheme, common | own) | where))
    ready = prepared(plans, "inline")
    wrong = company.train(ready, [lambda event: None] * len(ready))
    assert wrong == [None] * len(ready)
    return [one.folder for one in ready]


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How often runs trained together, and why not."""
    said: list[str] = []
    update = together.update

    def listening(asked: list[Asked]) -> Any:
        try:
            found = update(asked)
        except NotAlike as why:
            said.append(str(why))
            raise
        said.append("together")
        return found

    monkeypatch.setattr(together, "update", listening)
    return said


def assert_alike(folder: Path, scheme: str, several: Any, **keys: Any) -> None:
    beside = trained(folder / "beside", scheme, several, **keys)
    for place, own in enumerate(several):
        (alone,) = trained(folder / f"alone{place}", scheme, [own], **keys)
        assert_close(beside[place], alone)


@pytest.mark.parametrize("scheme", [name for name, one in SCHEMES.items() if not one.alone])
def test_step_sizes_and_seeds_are_one_more_axis(
    scheme: str, tmp_path: Path, heard: list[str]
) -> None:
    assert_alike(tmp_path, scheme, RATES)
    assert heard == ["together"] * 2


@pytest.mark.parametrize(
    ("scheme", "several"),
    [
        ("ditto", [{"ditto": {"lambda": 0.1}}, {"ditto": {"lambda": 2.0}, "lr": 0.3}]),
        ("fedprox", [{"fedprox": {"mu": 0.1}}, {"fedprox": {"mu": 1.0}}]),
        ("apfl", [{"apfl": {"alpha": 0.1}, "lr": 0.05}, {"apfl": {"alpha": 0.9}, "lr": 0.3}]),
        ("plsgd", [{"plsgd": {"alpha": 0.5}}, {"plsgd": {"alpha": 2.0}, "lr": 0.2}]),
        ("fedalt", [{"fedalt": {"personal_lr": 0.4}, "lr": 0.1}, {"lr": 0.2}]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_schemes_own_numbers_are_rows_of_recorded_steps(
    scheme: str, several: Any, tmp_path: Path, heard: list[str]
) -> None:
    several = [{scheme: several[0].get(scheme, {})} | one for one in several]
    refused = len(RECORDED.refused)
    assert_alike(tmp_path, scheme, several, local_steps=FEWEST_STEPS)
    assert heard == ["together"] * 2
    assert len(RECORDED.refused) == refused


def test_where_weights_start_is_a_seeds_own(tmp_path: Path, heard: list[str]) -> None:
    keys = {"fedalt": {"stateless": True}}
    assert_alike(tmp_path, "fedalt", RATES, **keys)
    assert heard == ["together"] * 2


@pytest.mark.parametrize(
    ("several", "why"),
    [
        ([{"apfl": {"alpha_lr": 0.1}}, {"apfl": {"alpha_lr": 0.2}}], "data-dependent control flow"),
        ([{"grad_clip": 1.0}, {"grad_clip": 2.0}], "steps are not plain ones"),
        ([{"weight_decay": 0.1}, {"weight_decay": 0.2}], "models differ"),
        ([{"batch_size": 4}, {"batch_size": 8, "cohort": "loop"}], "not train as one computation"),
        ([{"apfl": {"alpha_update": "step"}}, {}], "alpha_update differs"),
    ],
)
def test_what_cannot_be_batched_trains_one_after_the_other(
    several: Any, why: str, tmp_path: Path, heard: list[str]
) -> None:
    assert_alike(tmp_path, "apfl", several)
    assert len(heard) == 1  # nobody tries again
    assert why in heard[0]


def test_many_clients_whose_steps_are_recorded_gain_nothing_and_train_apart(
    tmp_path: Path, heard: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(together, "ENOUGH_RECORDED", 3)
    assert_alike(tmp_path, "fedavg", RATES[:2], local_steps=FEWEST_STEPS)
    assert heard == ["recorded steps of so many clients gain nothing by more"]
