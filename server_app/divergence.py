"""Noticing that a run has diverged, and ending it with a sentence that helps."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from server_app.adapter import Report
from server_app.runfolder import RunFolder
from strategies.core.config import keys_of
from strategies.core.errors import RunFailed
from strategies.settings import RunConfig, Settings


@dataclass(frozen=True)
class Divergence:
    """What was seen, and whether the weights the last round left were bad already."""

    seen: str
    stale: bool = False


def stop_if_diverged(
    settings: Settings,
    folder: RunFolder,
    events: Sequence[Mapping[str, Any]],
    trained: Report,
    evaluated: Report | None,
) -> None:
    """End a run whose training gave NaN or whose loss has exploded.

    Parameters
    ----------
    settings : Settings
        Of the run.
    folder : RunFolder
        Its folder, which keeps the last good checkpoint.
    events : sequence
        The rounds so far, this one included.
    trained, evaluated : Report
        What came of this round's training, and of its full evaluation where there was one.
    """
    found = _diverged(trained, evaluated, _limits(settings, events))
    if found is None:
        return
    if found.stale:
        folder.restore_checkpoint()
    good = folder.read_checkpoint().round
    raise RunFailed(
        f"{settings.run.scheme} diverged in round {events[-1]['round']}: {found.seen}. Lower "
        f"{' or '.join(_step_sizes(settings))}. The checkpoint of round {good} is kept in "
        f"{folder.checkpoint}."
    )


def _limits(settings: Settings, events: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """How large each mean loss may become: many times what it was at first."""
    limits = {}
    for measure in ("shared_loss", "personal_loss"):
        found = [event["metrics"][measure] for event in events if measure in event["metrics"]]
        first = found[0] if found and found[0] is not None and math.isfinite(found[0]) else 1.0
        limits[measure] = settings.run.diverged_at * max(1.0, first)
    return limits


def _diverged(
    trained: Report, evaluated: Report | None, limits: Mapping[str, float]
) -> Divergence | None:
    if trained.diverged:
        return Divergence(f"the training of client {trained.diverged[0]} gave NaN or infinity")
    for report in (trained, evaluated):
        for measure, limit in limits.items():
            losses = {c: s[measure] for c, s in report.scores.items()} if report else {}
            if not losses or sum(losses.values()) / len(losses) <= limit:
                continue
            worst = max(losses, key=lambda c: math.inf if math.isnan(losses[c]) else losses[c])
            what = measure.replace("_", " ")
            # Training begins with a look at the weights that were received.
            stale = report is trained and measure == "shared_loss"
            return Divergence(f"the {what} of client {worst} is {losses[worst]:.3g}", stale)
    return None


def _step_sizes(settings: Settings) -> list[str]:
    """The keys whose values may be too large, and these values."""
    flat = settings.flat()
    run = [one for one in keys_of(RunConfig) if one.name == "lr" or flat[one.name] != one.default]
    keys = [*run, *keys_of(settings.scheme.config, settings.run.scheme)]
    return [f"{one.name} ({flat[one.name]})" for one in keys if one.step and flat[one.name]]
