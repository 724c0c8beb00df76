"""What a program or a notebook uses: simulate, compare, load, and what they return."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from torch import nn

from bouquet.continuing import new_folder
from bouquet.core.errors import BadInput
from bouquet.core.measure import in_summary
from bouquet.data.memory import write_clients
from bouquet.engines import simulate as run_jobs
from bouquet.engines import with_nodes
from bouquet.imports import is_offered, named_paths, offer
from bouquet.objects import ModelLike, SchemeLike, factory, flat, told_of
from bouquet.progress import progress as showing
from bouquet.server_app.main import Job
from bouquet.settings import Settings, parse
from bouquet.storage.runfolder import RunFolder, unused
from bouquet.storage.runs import Row, read_clients, read_events, read_summary
from bouquet.strategies.registry import find

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
    def events(self) -> list[dict[str, Any]]:
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
        parts = [f"{whose} {_mean(summary, whose):.4f}" for whose in ("shared", "personal")]
        return f"Run({summary['scheme']!r}, {', '.join(parts)}, {str(self.folder)!r})"


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
        lines: dict[str, list[dict[str, Any]]] = {}
        for run in self.runs:
            lines.setdefault(str(run.summary["scheme"]), []).append(run.summary)
        return Table(COLUMNS, tuple(_line(*one) for one in lines.items()))


def simulate(
    scheme: SchemeLike = "apfl",
    *,
    data: object = "digits",
    model: ModelLike = "",
    engine: str = "inline",
    out: str | Path | None = None,
    progress: bool = True,
    **keys: Any,
) -> Run:
    """Train simulated clients.

    Parameters
    ----------
    scheme : str, Scheme or class
        A name of ``bouquet schemes``, ``package.module:Name``, ``./file.py:Name``, or the scheme
        itself: ``APFL(alpha=0.3)``.
    data : str, mapping, iterable or callable
        A name of ``bouquet data list``, or clients in memory: a mapping of ids to (x, y),
        (x, y, x_test, y_test) or torch data sets, or an iterable of (id, x, y). Those are written
        to the run's folder, so that it can be resumed. Or a function that gives them, or its
        path, ``./file.py:name``, which a resumed run calls again.
    model : str, Module or callable
        A name of ``bouquet models``, ``package.module:name``, a module, or a function of an
        example's shape and the number of classes. Empty for the data set's own.
    engine : str
        ``inline`` or ``ray``.
    out : str or Path, optional
        The run's folder; without, a new one under ``runs/``.
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
    values = _values(scheme, data, model, keys)
    (run,) = _run([values | ({} if out is None else {"out": str(out)})], data, engine, progress)
    return run


def compare(
    schemes: Sequence[SchemeLike],
    *,
    seeds: Sequence[int] = (),
    data: object = "digits",
    model: ModelLike = "",
    engine: str = "inline",
    out: str | Path | None = None,
    progress: bool = True,
    **keys: Any,
) -> Runs:
    """Train the same clients with several schemes; the parameters are those of :func:`simulate`.

    With ``seeds`` every scheme runs with each of them.
    """
    if not schemes:
        raise BadInput("compare takes schemes, such as ['fedavg', 'apfl'].")
    folder = Path(out) if out is not None else unused("compare")
    jobs = []
    for one in schemes:
        values = _values(one, data, model, keys)
        name = find(str(values["scheme"])).name
        for seed in seeds or ("",):
            place = folder / (name if seed == "" else f"{name}-seed{seed}")
            own = {"out": str(place)} | ({} if seed == "" else {"seed": seed})
            jobs.append(values | own)
    return Runs(tuple(_run(jobs, data, engine, progress)), folder)


def load(folder: str | Path) -> Run:
    """A run's folder, finished or not."""
    path = Path(folder)
    if not (path / "config.toml").is_file():
        raise BadInput(f"{path} holds no run (there is no config.toml in it).")
    return Run(path)


def _values(
    scheme: SchemeLike, data: object, model: ModelLike, keys: Mapping[str, Any]
) -> dict[str, object]:
    """All that was said, as flat keys."""
    values = keys_of_program(scheme, keys)
    if isinstance(data, str):
        values["data.name"] = data
    elif callable(data):
        values["data.name"] = offer(data)
    if not isinstance(model, str):
        values["model.name"] = offer(factory(model))
    elif model:
        values["model.name"] = model
    return values


def keys_of_program(scheme: SchemeLike, keys: Mapping[str, Any]) -> dict[str, object]:
    """A scheme and keys as a program says them, as the flat keys that ``parse`` takes."""
    values = flat(keys)
    if "clients" in values:
        values["data.clients"] = values.pop("clients")
    return told_of(scheme) | values


def _run(
    jobs: Sequence[dict[str, object]], data: object, engine: str, progress: bool
) -> Iterator[Run]:
    if engine not in ("inline", "ray"):
        raise BadInput(f"engine must be 'inline' or 'ray', not {engine!r}.")
    in_memory = not isinstance(data, str) and not callable(data)
    prepared: list[Job] = []
    try:
        with showing(quiet=not progress) as follow:
            for values in jobs:
                told = values | ({"data.name": "folder", "data.path": "."} if in_memory else {})
                settings = with_nodes(parse(told))
                _refuse_objects(settings, engine)
                folder = new_folder(settings)
                if in_memory:
                    settings = _with_data(data, told, folder)
                observe = follow(settings.scheme.name, settings.run.rounds, 0, "")
                prepared.append(Job(settings, folder, observe=observe))
            run_jobs(prepared, engine)
    except BadInput:
        for job in prepared if in_memory else ():  # nothing is left of what was refused
            if not (job.folder.path / "config.toml").exists():
                shutil.rmtree(job.folder.path, ignore_errors=True)
        raise
    return (Run(job.folder.path) for job in prepared)


def _with_data(data: object, values: dict[str, object], folder: RunFolder) -> Settings:
    """The settings of a run whose data are in its own folder."""
    place = folder.path / "data"
    try:
        write_clients(data, place)
    except BaseException:
        shutil.rmtree(folder.path, ignore_errors=True)
        raise
    return with_nodes(parse(values | {"data.path": str(place.absolute())}))


def _refuse_objects(settings: Settings, engine: str) -> None:
    """What only this process has, other processes cannot use."""
    for what, name in (("scheme", settings.run.scheme), *named_paths(settings.flat())):
        if engine != "inline" and is_offered(name):
            raise BadInput(
                f"{what.removesuffix('.name')} is an object of this program, which ray's workers "
                "do not have: name it by import path, package.module:Name or ./file.py:Name."
            )


def _line(name: str, summaries: Sequence[dict[str, Any]]) -> tuple[str | float, ...]:
    columns = {w: np.array([_mean(one, w) for one in summaries]) for w in ("shared", "personal")}
    what = in_summary(summaries[0])
    worst = float(np.mean([what.worst(one["personal"][what.name]) for one in summaries]))
    spread = {
        w: float(values.std(ddof=1)) if len(values) > 1 else 0.0 for w, values in columns.items()
    }
    shared, own = (float(columns[w].mean()) for w in ("shared", "personal"))
    return (name, len(summaries), shared, spread["shared"], own, spread["personal"], worst)


def _mean(summary: Mapping[str, Any], whose: str) -> float:
    return float(summary[whose][in_summary(summary).name]["mean"])


def _word(cell: str | float) -> str:
    return f"{cell:.4f}" if isinstance(cell, float) else str(cell)


def _pandas() -> Any:
    try:
        import pandas
    except ImportError as error:
        raise BadInput("to_frame needs pandas, which is not installed.") from error
    return pandas
