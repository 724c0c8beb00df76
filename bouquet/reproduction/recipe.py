"""What an experiment of a paper is: keys, seeds, and the numbers it published."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bouquet.core.config import Scalar, flatten
from bouquet.core.errors import BadInput

PAPERS = {
    "apfl": "Deng, Kamani and Mahdavi 2020, *Adaptive personalized federated learning*",
    "fedu": "Dinh et al. 2021, *A new look and convergence rate of federated multitask learning*",
    "partial": "Pillutla et al. 2022, *Federated learning with partial model personalization*",
    "perfedavg": "Fallah, Mokhtari and Ozdaglar 2020, *Personalized federated learning*",
    "plsgd": "*Federated learning with additive personalization* (personalized local SGD)",
}

_FIELDS = {
    "title", "paper", "place", "minutes", "seeds", "note", "fraction", "keys", "quick", "runs",
    "claims", "computed",
}  # fmt: skip
_OF_RUN = {"name", "label", "keys", "published"}
_OF_CLAIM = {"says", "better", "by"}


@dataclass(frozen=True)
class Entry:
    """A line of a table: a scheme with its keys.

    Parameters
    ----------
    name, label : str
        What its folders and what people call it.
    keys : mapping
        Its own, flat.
    published : mapping of str to float
        The paper's numbers by measure, such as ``personal.accuracy.mean``: a place in
        ``summary.json``. Accuracies are in percent.
    """

    name: str
    label: str
    keys: Mapping[str, Scalar]
    published: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Claim:
    """Something a paper says of its results.

    Parameters
    ----------
    says : str
        In words.
    better : tuple of str
        Entries of which each does at least as well as the next.
    by : str
        The measure.
    """

    says: str
    better: tuple[str, ...]
    by: str


@dataclass(frozen=True)
class Recipe:
    """An experiment.

    Parameters
    ----------
    name : str
        What people call it: the file's.
    title, paper, place : str
        What it is about, whose it is, and where it stands there.
    minutes : float
        What one seed takes on two cores, about.
    seeds : tuple of int
        Each entry runs with each.
    keys : mapping
        What all entries have in common.
    entries : tuple of Entry
        What is run.
    claims : tuple of Claim
        What must come out beside the numbers.
    note : str
        What the paper leaves open or had otherwise, and what we did.
    fraction : str
        What part of the paper's experiment it is, where it is not all.
    computed : str
        ``file.py:function`` beside the recipe that gives the numbers, where no run does.
    """

    name: str
    title: str
    paper: str
    place: str
    minutes: float
    seeds: tuple[int, ...]
    keys: Mapping[str, Scalar]
    entries: tuple[Entry, ...]
    claims: tuple[Claim, ...] = ()
    note: str = ""
    fraction: str = ""
    computed: str = ""

    def keys_of(self, entry: Entry, seed: int) -> dict[str, Scalar]:
        """All that a run is told."""
        return {**self.keys, **entry.keys, "seed": seed}


def folder() -> Path:
    """Where the recipes are: in the package, or beside it in a checkout."""
    inside = Path(__file__).parents[1] / "recipes"
    return inside if inside.is_dir() else Path(__file__).parents[2] / "reproduce"


def names() -> list[str]:
    """The recipes there are."""
    return sorted(path.stem for path in folder().glob("*.toml"))


def find(name: str, *, quick: bool = False) -> Recipe:
    """A recipe by its name, or by the path of a file of one's own.

    Parameters
    ----------
    name : str
        A name of :func:`names`, or a path that ends in ``.toml``.
    quick : bool
        Whether to make it a matter of minutes: its ``quick`` table replaces keys and seeds.
    """
    path = Path(name) if name.endswith(".toml") else folder() / f"{name}.toml"
    if not path.is_file():
        raise BadInput(
            f"recipe must be one of {', '.join(names())}, or a .toml file, not {name!r}."
        )
    try:
        told = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is not TOML: {error}.") from error
    return _read(told, path, quick)


def _read(told: Mapping[str, Any], path: Path, quick: bool) -> Recipe:
    _refuse_others(told, _FIELDS, path, "")
    keys = flatten(told.get("keys", {}))
    less = dict(told.get("quick", {})) if quick else {}
    seeds = less.pop("seeds", told.get("seeds", [0]))
    if not isinstance(seeds, list) or not seeds or not all(type(one) is int for one in seeds):
        raise BadInput(f"{path}: seeds must be whole numbers such as [0, 1, 2], not {seeds!r}.")
    entries = tuple(_entry(one, path) for one in told.get("runs", []))
    known = [one.name for one in entries]
    if len(set(known)) < len(known):
        raise BadInput(f"{path}: every run must have a name of its own.")
    claims = tuple(_claim(one, known, path) for one in told.get("claims", []))
    if not entries and "computed" not in told:
        raise BadInput(f"{path}: there must be [[runs]], or computed.")
    words = {
        name: _text(told, name, path, needed=name in ("title", "paper", "place"))
        for name in ("title", "paper", "place", "note", "fraction", "computed")
    }
    if words["paper"] not in PAPERS:
        raise BadInput(f"{path}: paper must be one of {', '.join(PAPERS)}.")
    changed = {**keys, **flatten(less)}
    minutes = float(told.get("minutes", 0))
    return Recipe(path.stem, minutes=minutes, seeds=tuple(seeds), keys=_scalars(changed, path),
                  entries=entries, claims=claims, **words)  # fmt: skip


def _entry(told: Mapping[str, Any], path: Path) -> Entry:
    _refuse_others(told, _OF_RUN, path, "[[runs]] ")
    name = _text(told, "name", path, needed=True)
    published = {key: float(value) for key, value in flatten(told.get("published", {})).items()}  # type: ignore[arg-type]
    label = _text(told, "label", path) or name
    return Entry(name, label, _scalars(flatten(told.get("keys", {})), path), published)


def _claim(told: Mapping[str, Any], known: list[str], path: Path) -> Claim:
    _refuse_others(told, _OF_CLAIM, path, "[[claims]] ")
    better = tuple(told.get("better", ()))
    for one in better:
        if one not in known:
            raise BadInput(f"{path}: [[claims]] better must name runs, not {one!r}.")
    by = _text(told, "by", path) or "personal.accuracy.mean"
    return Claim(_text(told, "says", path, needed=True), better, by)


def _text(told: Mapping[str, Any], name: str, path: Path, needed: bool = False) -> str:
    found = told.get(name, "")
    if not isinstance(found, str) or (needed and not found):
        raise BadInput(f"{path}: {name} must be text, not {found!r}.")
    return found


def _scalars(flat: Mapping[str, object], path: Path) -> dict[str, Scalar]:
    for name, value in flat.items():
        if not isinstance(value, (bool, int, float, str)):
            raise BadInput(f"{path}: {name} must be one value, not {value!r}.")
    return dict(flat)  # type: ignore[arg-type]


def _refuse_others(told: Mapping[str, Any], known: set[str], path: Path, where: str) -> None:
    for name in told:
        if name not in known:
            listed = ", ".join(sorted(known))
            raise BadInput(f"{path}: {where}must have none but {listed}, not {name!r}.")
