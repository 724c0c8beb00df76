"""A scheme's runs with several seeds as one result."""

import math
from typing import Any

import pytest

from bouquet.report.seeds import over_seeds, spread


def summary(
    scheme: str, what: str, shared: float | None, personal: dict[str, Any]
) -> dict[str, Any]:
    told = {"shared": {what: {"mean": shared}}, "personal": {what: personal}}
    return {"scheme": scheme, "helped": 3, "hurt": 0, **told}


def test_a_spread_is_a_mean_and_the_deviation_of_a_sample() -> None:
    """(1 + 3) / 2 = 2, and the squares 1 + 1 over n - 1 = 1."""
    found = spread([1.0, 3.0])
    assert found.mean == 2.0
    assert found.std == pytest.approx(2**0.5)
    assert spread([1.0]) == (1.0, None)
    assert spread([1.0, math.inf]) == (math.inf, None)


def test_schemes_are_in_the_order_of_their_first_runs() -> None:
    better = {"mean": 0.9, "min": 0.5, "max": 1.0}
    found = over_seeds([summary(name, "accuracy", 0.8, better) for name in ("b", "a", "b")])
    assert [(one.scheme, one.seeds) for one in found] == [("b", 2), ("a", 1)]


@pytest.mark.parametrize(("what", "worst"), [("accuracy", 0.5), ("loss", 1.0)])
def test_the_worst_client_has_the_least_accuracy_or_the_largest_loss(
    what: str, worst: float
) -> None:
    (found,) = over_seeds([summary("a", what, 0.8, {"mean": 0.9, "min": 0.5, "max": 1.0})])
    assert (found.shared.mean, found.personal.mean, found.worst.mean) == (0.8, 0.9, worst)


def test_a_number_that_was_not_finite_makes_the_mean_so() -> None:
    """``summary.json`` has null for it."""
    told = [
        summary("a", "loss", shared, {"mean": 1.0, "min": 1.0, "max": 1.0})
        for shared in (1.0, None)
    ]
    assert math.isnan(over_seeds(told)[0].shared.mean)
