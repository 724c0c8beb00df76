"""Which trials train together."""

from collections.abc import Sequence

from bouquet.sweeping.trials import Trial


def grouped(trials: Sequence[Trial], together: int) -> list[list[Trial]]:
    """Trials in groups that train as one computation."""
    return [[one] for one in trials]
