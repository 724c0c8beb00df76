"""What a program or a notebook uses: simulate, compare, load, and what they return."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from torch import nn

from bouquet import comparison, jobs
from bouquet.continuing import new_folder
from bouquet.core.errors import BadInput
from bouquet.jobs import Plan
from bouquet.objects import ModelLike, SchemeLike, told_of
from bouquet.program import held_by, in_memory, resumable, values_of, written
from bouquet.report.seeds import Result, outcome, over_seeds
from bouquet.settings import parse
from bouquet.storage.events import Event
from bouquet.storage.runfolder import unused
from bouquet.storage.runs import Row, read_clients, read_events, read_summary

if TYPE_CHECKING:
    import pandas as pd

MEASURES = ("shared", "shared ±", "personal", "personal ±", "worst client")
COLUMNS = ("scheme", "seeds", *MEASURES)


@dataclass(frozen=True)
class Run:
    """A run's folder, as a program sees it.

    Parameters
    ----------
    folder : Path
        Where it is.
    """

    folder: Path

    @property
    def summary(self) -> dict[str, Any]:
        """How the run ended, as ``summary.json`` has it; empty until it does."""
        return read_summary(self.folder / "summary.json")

    @property
    def events(self) -> list[Event]:
        """Its rounds, as ``events.jsonl`` has them."""
        return read_events(self.folder / "events.jsonl")

    @property
    def clients(self) -> list[Row]:
        """A row a client, as ``clients.csv`` has them."""
        return read_clients(self.folder / "clients.csv")

    def shared_model(self) -> nn.Module:
        """The model the server holds, ready to call."""
        from bouquet.rebuild import shared_model

        return shared_model(self.folder)

    def model_of(self, client: str) -> nn.Module:
        """A client's own model, ready to call on inputs as they were measured."""
        from bouquet.rebuild import predictor_of

        return predictor_of(self.folder, client).module

    def to_frame(self, what: str = "clients") -> "pd.DataFrame":
        """The clients, or with ``"events"`` the rounds, as a pandas DataFrame."""
        if what not in ("clients", "events"):
            raise BadInput(f"to_frame takes 'clients' or 'events', not {what!r}.")
        frame = _pandas().DataFrame(self.clients if what == "clients" else self.events)
        return frame.set_index("client" if what == "clients" else "round")

    def __repr__(self) -> str:
        summary = self.summary
        if not summary:
            return f"Run({str(self.folder)!r}, not finished)"
        shared, personal, _ = outcome(summary)
        words = f"shared {shared:.4f}, personal {personal:.4f}"
        return f"Run({summary['scheme']!r}, {words}, {str(self.folder)!r})"


@dataclass(frozen=True)
class Table:
    """A small table that prints well, in a terminal and in a notebook.

    Parameters
    ----------
    columns : tuple of str
        Their headings.
    rows : tuple of tuple
        Text and numbers.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str | float, ...], ...]

    def __str__(self) -> str:
        words = [self.columns, *[tuple(_word(cell) for cell in row) for row in self.rows]]
        wide = [max(len(row[place]) for row in words) for place in range(len(self.columns))]
        lines = ["  ".join(cell.ljust(wide[n]) for n, cell in enumerate(row)) for row in words]
        return "\n".join(line.rstrip() for line in lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{name}</th>" for name in self.columns)
        body = "".join(
            f"<tr>{''.join(f'<td>{_word(cell)}</td>' for cell in row)}</tr>" for row in self.rows
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def to_frame(self) -> "pd.DataFrame":
        """The table as a pandas DataFrame."""
        return _pandas().DataFrame(list(self.rows), columns=list(self.columns))


@dataclass(frozen=True)
class Runs(Sequence[Run]):
    """Several runs on the same clients.

    Parameters
    ----------
    runs : tuple of Run
        In order of schemes, then seeds.
    folder : Path
        The folder that holds theirs.
    """

    runs: tuple[Run, ...]
    folder: Path

    @overload
    def __getitem__(self, place: int) -> Run: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Run]: ...
    def __getitem__(self, place: int | slice) -> Run | Sequence[Run]:
        """One run, or some of them."""
        return self.runs[place]

    def __len__(self) -> int:
        return len(self.runs)

    def table(self) -> Table:
        """A line a scheme: means over clients, and their standard deviation over seeds."""
        return Table(COLUMNS, tuple(map(line_of, over_seeds([run.summary for run in self.runs]))))


def simulate(
    scheme: SchemeLike = "",
    *,
    data: object = "",
    model: ModelLike = "",
    engine: str = "inline",
    out: str | Path | None = None,
    resume: str | Path | None = None,
    progress: bool = True,
    **keys: Any,
) -> Run:
    """Train simulated clients.

    Parameters
    ----------
    scheme : str, Scheme or class
        A name of ``bouquet schemes``, ``package.module:Name``, ``./file.py:Name``, or the scheme
        itself: ``APFL(alpha=0.3)``. Empty for ``apfl``.
    data : str, mapping, iterable or callable
        A name of ``bouquet data list``, or clients in memory: a mapping of ids to (x, y),
        (x, y, x_test, y_test) or torch data sets, or an iterable of (id, x, y). Those are written
        to the run's folder, so that it can be resumed. Or a function that gives them, or its
        path, ``./file.py:name``, which a resumed run calls again. Empty for ``digits``.
    model : str, Module or callable
        A name of ``bouquet models``, ``package.module:name``, a module, or a function of an
        example's shape and the number of classes. Empty for the data set's own.
    engine : str
        ``inline`` or ``ray``.
    out : str or Path, optional
        The run's folder; without, a new one under ``runs/``.
    resume : str or Path, optional
        The folder of a run to go on with; ``rounds`` is all that may change.
    progress : bool
        Whether to show how it goes on.
    **keys
        Any other key, with ``_`` for ``-``, groups as dicts: ``rounds=20``, ``seed=1``,
        ``apfl={"alpha": 0.3}``. ``clients`` is short for ``data={"clients": ...}``. ``loss`` and
        ``metric`` may be functions of a batch's outputs and targets.

    Examples
    --------
    >>> bouquet.simulate("apfl", rounds=20, clients=20)  # doctest: +SKIP
    """
    before = resumable(resume, out, data)
    values = values_of(scheme, data, model, keys, out)
    if in_memory(data):
        values |= held_by(new_folder(parse(values)).path)
    (ready,) = jobs.prepared([Plan(values, before)], engine)
    with written(data, ready.folder):
        jobs.simulate([ready], engine, quiet=not progress)
    return Run(ready.folder)


def compare(
    schemes: Sequence[SchemeLike] = (),
    *,
    seeds: Sequence[int] = (),
    data: object = "",
    model: ModelLike = "",
    engine: str = "inline",
    out: str | Path | None = None,
    resume: str | Path | None = None,
    progress: bool = True,
    **keys: Any,
) -> Runs:
    """Train the same clients with several schemes; the parameters are those of :func:`simulate`.

    With ``seeds`` every scheme runs with each of them. ``resume`` is the folder of a comparison to
    go on with: runs that are not finished, then those that are missing, also of schemes and seeds
    that are new.
    """
    before = resumable(resume, out, data)
    told = [told_of(one) for one in schemes]
    values = values_of("", data, model, keys, out)
    if in_memory(data):
        values |= held_by(Path(out) if out is not None else unused("compare-folder"))
    own = {name: value for one in told for name, value in one.items() if name != "scheme"}
    whole = comparison.begun([str(one["scheme"]) for one in told], seeds, own | values, before)
    plans = whole.plans()
    with whole.kept():
        ready = jobs.prepared(plans, engine)
        with written(data, whole.folder):
            jobs.simulate(ready, engine, quiet=not progress)
    return Runs(tuple(map(Run, whole.runs())), whole.folder)


def load(folder: str | Path) -> Run:
    """A run's folder, finished or not."""
    path = Path(folder)
    if not (path / "config.toml").is_file():
        raise BadInput(f"{path} holds no run (there is no config.toml in it).")
    return Run(path)


def line_of(one: Result) -> tuple[str | float, ...]:
    """A scheme's line of a table, in the order of ``COLUMNS``."""
    shared, personal = ((part.mean, part.std or 0.0) for part in (one.shared, one.personal))
    return (one.scheme, one.seeds, *shared, *personal, one.worst.mean)


def _word(cell: str | float) -> str:
    return f"{cell:.4f}" if isinstance(cell, float) else str(cell)


def _pandas() -> Any:
    try:
        import pandas
    except ImportError as error:
        raise BadInput("to_frame needs pandas, which is not installed.") from error
    return pandas
