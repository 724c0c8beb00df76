"""Every scheme over gRPC, on a device and on a gateway with two clients."""

from collections.abc import Callable

import pytest

from bouquet.strategies import SCHEMES
from tests.conftest import WORKING, Run
from tests.edge.conftest import Fleet, states

pytestmark = pytest.mark.edge
NODES = 2
DEPLOYABLE = [name for name in WORKING if not SCHEMES[name].pooled]


def test_every_scheme_ends_with_the_bits_of_a_simulation(
    fleet: Fleet, inline: Callable[..., Run]
) -> None:
    """One run with a stage for each, which starts from the weights of the one before.

    The devices' states are compared too, so a scheme that shares little is not passed over.
    """
    keys = {"pipeline": " ".join(f"{name}:1" for name in DEPLOYABLE), "eval_every": 0}
    there, here = fleet.start(**keys).finish(), inline(**keys)
    assert [event["stage"] for event in there.events] == DEPLOYABLE
    assert all(event["clients"] == ["000", "001", "002"] for event in there.events)
    assert there.sha == here.sha
    kept = states(here.path / "state")
    stateful = [name for name in DEPLOYABLE if SCHEMES[name]().stateful]
    assert len(kept) >= 2 * len(stateful)
    assert fleet.states(there) == kept
    # dFedU's clients mix on the device: what comes down are neighbours' models, not the mixture.
    down = {event["stage"]: event["bytes_down"] for event in there.events}
    assert down["dfedu"] > down["fedu"]
