"""Noticing that a run has diverged, and ending it with a sentence that helps."""

import math
from collections.abc import Mapping, Sequence

from bouquet.core.config import keys_of
from bouquet.core.errors import RunFailed
from bouquet.server_app.report import Report
from bouquet.settings import RunConfig, Settings
from bouquet.storage.events import Event
from bouquet.storage.runfolder import RunFolder
from bouquet.strategies.registry import find

# What is said of every run that did.
DIVERGED = "diverged in round"


def stop_if_diverged(
    settings: Settings,
    folder: RunFolder,
    guess: float | None,
    events: Sequence[Event],
    trained: Report,
    evaluated: Report | None,
) -> None:
    """End a run whose training gave NaN or whose loss has exploded.

    Parameters
    ----------
    settings : Settings
        Of the run.
    folder : RunFolder
        Its folder, which keeps the checkpoint of the round before.
    guess : float, optional
        The loss of a model that knows nothing, where that is known.
    events : sequence
        The rounds so far, this one included.
    trained, evaluated : Report
        What came of this round's training, and of its full evaluation where there was one.
    """
    seen = divergence(settings, guess, events, trained, evaluated)
    if seen:
        raise RunFailed(
            f"{seen} The checkpoint of round {folder.read_checkpoint().round} is kept in "
            f"{folder.checkpoint}."
        )


def divergence(
    settings: Settings,
    guess: float | None,
    events: Sequence[Event],
    trained: Report,
    evaluated: Report | None,
) -> str:
    """What was seen of a divergence, and which keys to change; empty if all is well."""
    seen = _diverged(trained, evaluated, _limits(settings, guess, events))
    return seen and (
        f"{settings.scheme.name} {DIVERGED} {events[-1]['round']}: {seen}. Lower "
        f"{' or '.join(_step_sizes(settings))}."
    )


def _limits(settings: Settings, guess: float | None, events: Sequence[Event]) -> dict[str, float]:
    """How large each mean loss may become: many times a guess's, or what it was at first."""
    limits = {}
    for measure in ("shared_loss", "personal_loss"):
        found = [number for event in events if (number := event["metrics"].get(measure))]
        first = found[0] if found and math.isfinite(found[0]) else 1.0
        limits[measure] = settings.run.diverged_at * max(1.0, first if guess is None else guess)
    return limits


def _diverged(trained: Report, evaluated: Report | None, limits: Mapping[str, float]) -> str:
    """What was seen of a divergence, if anything."""
    if trained.diverged:
        return f"the training of client {trained.diverged[0]} gave NaN or infinity"
    for measure, limit in limits.items():
        losses = {c: s[measure] for c, s in evaluated.scores.items()} if evaluated else {}
        if losses and not sum(losses.values()) / len(losses) <= limit:
            worst = max(losses, key=lambda c: math.inf if math.isnan(losses[c]) else losses[c])
            return f"the {measure.replace('_', ' ')} of client {worst} is {losses[worst]:.3g}"
    return ""


def _step_sizes(settings: Settings) -> list[str]:
    """The keys whose values may be too large, and these values."""
    flat = settings.flat()
    run = [one for one in keys_of(RunConfig) if one.name == "lr" or flat[one.name] != one.default]
    keys = [*run, *keys_of(find(settings.run.scheme), settings.scheme.name)]
    return [f"{one.name} ({flat[one.name]})" for one in keys if one.step and flat[one.name]]
