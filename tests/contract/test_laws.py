"""Laws that hold for every scheme, whoever adds it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bouquet.core.scheme import Model, Work
from bouquet.core.trees import Nothing
from bouquet.engines import simulate
from bouquet.laboratory import Laboratory, assert_same_end
from bouquet.server_app.main import Job
from bouquet.storage.runfolder import RunFolder
from bouquet.strategies import SCHEMES
from bouquet.strategies.apfl import APFL, Personal
from bouquet.strategies.fedavg import FedAvg
from bouquet.testing import LAWS, check_scheme
from tests.conftest import WORKING

Room = Callable[[str], Laboratory]

# Local optimizers whose moments are kept, each in a scheme that moves other parts, and steps of
# falling size on inputs that are changed.
KEPT = {"optimizer_state": "keep", "lr": 0.02}
OPTIMIZED: dict[str, dict[str, Any]] = {
    "apfl, momentum": {"optimizer": "momentum", "lr_decay_per_step": 0.01, **KEPT},
    "ditto, nesterov": {"optimizer": "nesterov", "augment": "tests.zoo:jitter", **KEPT},
    "fedalt, adam": {"optimizer": "adam", "lr_decay_per_step": 0.01, **KEPT},
    "fedavg, adamw": {"optimizer": "adamw", "decoupled_weight_decay": 0.01, **KEPT},
}
ALL = [*WORKING, *OPTIMIZED]
every_scheme = pytest.mark.parametrize("scheme", ALL)

# What a scheme cannot do without: linear models, everyone taking part.
NEEDS: dict[str, dict[str, Any]] = OPTIMIZED | {
    "mocha": {"model": {"name": "linear"}},
    "dfedu": {"clients_per_round": 0},
    "centralized": {"clients_per_round": 0},
    # A strong pull lets θ and w_i meet, to the last bit, where the loss is flat.
    "pfedme": {"pfedme": {"lambda": 2.0}},
    # Steps and passes that take long and show nothing more.
    "fedrep": {"fedrep": {"head_steps": 2}},
    "fedala": {"fedala": {"share": 0.1}},
}


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Room:
    """A scheme's laboratory, in which no run is made twice."""
    rooms: dict[str, Laboratory] = {}

    def of(scheme: str) -> Laboratory:
        folder = rooms[scheme].folder if scheme in rooms else tmp_path_factory.mktemp("room")
        name = scheme.partition(",")[0]
        return rooms.setdefault(scheme, Laboratory(name, folder, NEEDS.get(scheme, {})))

    return of


@pytest.mark.parametrize(
    ("scheme", "law"),
    # Without batch norm fedbn keeps nothing; tests/unit/test_buffers.py has it with.
    [
        (s, law)
        for s in (*SCHEMES, *OPTIMIZED)
        for law in LAWS
        if (s, law) != ("fedbn", "sends_nothing_personal")
    ],
)
def test_every_scheme_keeps_the_law(scheme: str, law: str, room: Room) -> None:
    LAWS[law](room(scheme))


@pytest.fixture(scope="module")
def ray_runs(tmp_path_factory: pytest.TempPathFactory, room: Room) -> dict[str, Path]:
    """Every scheme on Flower's simulation engine, which takes long enough to start once."""
    folder = tmp_path_factory.mktemp("ray")
    simulate([Job(room(s).settings(), RunFolder(folder / s)) for s in ALL], "ray")
    return {scheme: folder / scheme for scheme in ALL}


@every_scheme
def test_inline_and_ray_end_with_the_same_bits(
    scheme: str, room: Room, ray_runs: dict[str, Path]
) -> None:
    assert_same_end(room(scheme).run(room(scheme).settings()), ray_runs[scheme])


@every_scheme
def test_a_run_stopped_on_ray_goes_on_inline(
    scheme: str, room: Room, ray_runs: dict[str, Path]
) -> None:
    """Its folder holds all there is to know, personal state included."""
    five = room(scheme).settings(rounds=5)
    assert_same_end(room(scheme).run(five), room(scheme).resumed(five, ray_runs[scheme]))


# Laws catch what they are about


@dataclass(frozen=True)
class Leaky(APFL):
    """Sends the client's own weights."""

    name = "leaky"

    def local_update(
        self, work: Work, payload: Model, personal: Personal
    ) -> tuple[Model, Personal]:
        """What stays, goes."""
        _, kept = super().local_update(work, payload, personal)
        return Model(kept.v), kept


@dataclass(frozen=True)
class Forgetful(APFL):
    """Remembers rounds in a place that a restart forgets."""

    name = "forgetful"

    def local_update(
        self, work: Work, payload: Model, personal: Personal
    ) -> tuple[Model, Personal]:
        """Half the step where the object has been used before."""
        seen = self.__dict__.setdefault("_seen", set())
        first = work.round not in seen
        seen.add(work.round)
        upload, kept = super().local_update(work, payload, personal)
        return (upload if first else Model({n: v * 0.5 for n, v in upload.w.items()})), kept


@dataclass(frozen=True)
class Careless(FedAvg):
    """Writes into what it was given."""

    name = "careless"

    def local_update(self, work: Work, payload: Model, personal: Nothing) -> tuple[Model, Nothing]:
        """In place."""
        for value in payload.w.values():
            value.mul_(0.9)
        return Model(dict(payload.w)), personal


@pytest.mark.parametrize(
    ("scheme", "law"),
    [
        (Leaky, "sends_nothing_personal"),
        (Forgetful, "gives_the_same_answer_twice"),
        (Careless, "changes_nothing_it_is_given"),
    ],
)
def test_a_scheme_that_breaks_a_law_is_told_which(scheme: Any, law: str) -> None:
    with pytest.raises(AssertionError, match=law.replace("_", " ")):
        check_scheme(scheme, laws=[law])


def test_a_scheme_from_outside_is_checked_with_one_call() -> None:
    @dataclass(frozen=True)
    class Mine(FedAvg):
        name = "mine"

    check_scheme(
        Mine, laws=["changes_nothing_it_is_given", "does_not_depend_on_the_number_of_nodes"]
    )
