"""What a program or a notebook uses to search: sweep, and what it returns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bouquet.api import MEASURES, Run, Runs, Table, line_of
from bouquet.core.config import Scalar
from bouquet.core.errors import BadInput
from bouquet.data import DataConfig
from bouquet.imports import called
from bouquet.objects import ModelLike, SchemeLike, told_of
from bouquet.program import held_by, in_memory, resumable, values_of, written
from bouquet.report.seeds import over_seeds
from bouquet.storage.runfolder import unused
from bouquet.sweeping import course
from bouquet.sweeping.asked import from_tables
from bouquet.sweeping.results import Results, worded


@dataclass(frozen=True)
class Sweep:
    """A sweep's folder, as a program sees it.

    Parameters
    ----------
    folder : Path
        Where it is.
    """

    folder: Path

    @property
    def chosen(self) -> dict[str, Mapping[str, Scalar]]:
        """The setting that was chosen for each scheme, on validation data."""
        return Results(self.folder).chosen

    @property
    def runs(self) -> Runs:
        """The runs of what was chosen, on all training data: in order of schemes, then seeds."""
        return Runs(tuple(map(Run, Results(self.folder).finals)), self.folder / "final")

    def table(self) -> Table:
        """A line a scheme: what was chosen, and how it does on test data over the seeds."""
        chosen = self.chosen
        rows = []
        for one in over_seeds([run.summary for run in self.runs]):
            scheme, *measured = line_of(one)
            rows.append((scheme, worded(chosen[str(scheme)]), *measured))
        return Table(("scheme", "chosen", "seeds", *MEASURES), tuple(rows))

    def trials(self) -> Table:
        """A line a setting: how the personal models do on validation data."""
        found = Results(self.folder)
        names = list(found.asked.grid)
        rows = tuple(
            (one.scheme, *(one.setting.get(name, "") for name in names), one.value, one.loss)
            for one in found.scores
        )
        measure = found.scores[0].measure.name
        return Table(("scheme", *names, f"validation {measure}", "validation loss"), rows)

    def __repr__(self) -> str:
        words = "; ".join(f"{name}: {worded(one)}" for name, one in self.chosen.items())
        return f"Sweep({words or 'not finished'}, {str(self.folder)!r})"


def sweep(
    schemes: Sequence[SchemeLike] = (),
    *,
    grid: Mapping[str, Any] | None = None,
    seeds: Sequence[int] = (0,),
    tune_seeds: Sequence[int] = (),
    data: object = "",
    model: ModelLike = "",
    engine: str = "inline",
    workers: int = 0,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    progress: bool = True,
    search: str = "grid",
    trials: int = 0,
    validation: float = 0.2,
    folds: int = 0,
    measure: str = "metric",
    stop: str = "never",
    together: int = 0,
    **keys: Any,
) -> Sweep:
    """Search for good keys of several schemes, and compare the schemes with them.

    Every scheme tries as many settings. Each is compared on the clients' validation data, the
    best is trained on all training data with every seed, and judged on test data.

    Parameters
    ----------
    schemes : sequence of str, Scheme or class
        As :func:`bouquet.compare` takes them.
    grid : mapping
        The keys to search, as ``{"lr": [0.01, 0.1], "apfl": {"alpha": [0.3, 0.7]}}``; a scheme's
        own count for it alone. With ``search="random"`` a range may stand for a list,
        ``{"low": 0.01, "high": 1.0, "log": True}``.
    seeds : sequence of int
        What is chosen runs with each of them.
    tune_seeds : sequence of int
        The seeds of the trials; without, all of ``seeds``.
    data, model, progress, **keys
        As :func:`bouquet.simulate` takes them.
    engine : str
        ``inline`` for workers that are processes on this machine, ``ray`` for a Ray cluster's.
    workers : int
        How many run side by side; 0 for one a core.
    out : str or Path, optional
        The sweep's folder. If it holds the same sweep, that goes on.
    resume : str or Path, optional
        The folder of a sweep to go on with, all of which is known.
    search, trials, validation, folds, measure, stop, together
        As in a sweep's file (``docs/sweeps.md``).
    """
    before = resumable(resume, out, data)
    if before is not None:
        if schemes or grid or keys:
            raise BadInput("resume goes on with a sweep as it is: say nothing else of it.")
        asked = course.resumed(before)
        course.run(asked, before, engine=engine, count=workers, quiet=not progress)
        return Sweep(before)
    told = [told_of(one) for one in schemes]
    values = values_of("", data, model, keys, out)
    if in_memory(data):
        values |= held_by(Path(out) if out is not None else unused("sweep-folder"))
    place = str(values.pop("out", ""))
    searched = _kebab(grid or {})
    own = {name: value for one in told for name, value in one.items() if name != "scheme"}
    asked = from_tables(
        {
            "schemes": [str(one["scheme"]) for one in told],
            "seeds": list(seeds),
            "tune-seeds": list(tune_seeds or seeds),
            "search": search,
            "trials": trials,
            **({"folds": folds} if folds else {"validation": validation}),
            "measure": measure,
            "stop": stop,
            "together": together,
            "keys": {n: v for n, v in (own | values).items() if n in values or n not in searched},
            "grid": searched,
        }
    )
    name = called(str(values.get("data.name") or DataConfig().name))
    folder = course.folder_of(asked, place, name)
    with written(data, folder):
        course.run(asked, folder, engine=engine, count=workers, quiet=not progress)
    return Sweep(folder)


def _kebab(grid: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A grid as a file would have it, with dots between names."""
    found: dict[str, Any] = {}
    for name, values in grid.items():
        full = prefix + name.replace("_", "-")
        if isinstance(values, Mapping) and not {"low", "high"} & values.keys():
            found |= _kebab(values, f"{full}.")
        else:
            found[full] = values
    return found
