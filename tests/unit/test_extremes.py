"""Values a key allows but nobody needs end in a sentence, or in a run; never in a traceback."""

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from bouquet.core.config import LARGEST
from bouquet.core.errors import BadInput, RunFailed
from bouquet.settings import all_keys, parse
from tests.conftest import Run

Start = Callable[..., Run]


def own(name: str) -> bool:
    """Whether a key is of the run or of a scheme."""
    return not name.startswith(("data.", "model.", "personal."))


FLOATS = [one for one in all_keys() if one.kind is float]
# All but the one that asks for a run without an end.
COUNTS = [
    one
    for one in all_keys()
    if one.kind is int and one.high == math.inf and own(one.name) and one.name != "rounds"
]
SMALL: dict[str, object] = {
    "rounds": 2, "local-steps": 2, "data.clients": 3, "model.name": "linear",
}  # fmt: skip
# What must be set for a key to count.
WITH: dict[str, dict[str, object]] = {
    "apfl.output-offset": {"apfl.output": "average"},
    "perfedavg.delta": {"perfedavg.mode": "hessian-free"},
    "server-tau": {"server-optimizer": "adam"},
    "server-beta1": {"server-optimizer": "momentum"},
    "server-beta2": {"server-optimizer": "yogi"},
}


@pytest.mark.parametrize("key", FLOATS, ids=lambda key: key.name)
def test_a_number_beyond_all_use_is_refused_by_name(key: Any) -> None:
    with pytest.raises(BadInput, match=rf"^{key.name} must be .*not 1e\+300\.$"):
        parse({key.name: 1e300})


@pytest.mark.parametrize("end", ["largest", "smallest"])
@pytest.mark.parametrize("key", [one for one in FLOATS if own(one.name)], ids=lambda key: key.name)
def test_the_ends_of_a_range_give_a_run_or_a_sentence(start: Start, key: Any, end: str) -> None:
    scheme = key.name.partition(".")[0] if "." in key.name else "plsgd"
    value = min(key.high, LARGEST) if end == "largest" else key.low or 1e-300
    keys = SMALL | {"scheme": scheme} | WITH.get(key.name, {}) | {key.name: value}
    with suppress(BadInput, RunFailed):
        start(settings=parse(keys))


@pytest.mark.parametrize("key", COUNTS, ids=lambda key: key.name)
def test_a_huge_count_gives_a_run_or_a_sentence(start: Start, key: Any) -> None:
    scheme = key.name.partition(".")[0] if key.name.startswith("mocha.") else "fedavg"
    keys = SMALL | {"scheme": scheme, "lr-schedule": "exponential", "lr-decay": 1}
    with suppress(BadInput, RunFailed):
        start(settings=parse(keys | {key.name: 2**62}))


def test_several_of_the_largest_together_end_in_a_sentence(start: Start) -> None:
    steep = {"lr": LARGEST, "plsgd.alpha": LARGEST, "plsgd.beta": LARGEST, "grad-clip": LARGEST}
    with pytest.raises(RunFailed, match=r"plsgd diverged in round \d: .*Lower lr"):
        start(settings=parse(SMALL | {"scheme": "plsgd"} | steep))
