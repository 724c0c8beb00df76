"""What an experiment of a paper is: keys, seeds, and the numbers it published.

A recipe is a TOML file. Beside what every run has (``[keys]``) and each run's own (``[[runs]]``), a
run may have keys that the paper tuned or does not give::

    [tune]                     # how settings are tried; may be left out
    seeds = [0]                # the first of the recipe's
    validation = 0.2           # share of each client's training data that they are compared on
    keys = { rounds = 50 }     # what is different in trials

    [[runs]]
    name = "fedu"
    keys = { scheme = "fedu" }
    tune = { lr = [0.01, 0.1], fedu = { eta = [0.001, 0.01] } }   # every combination is tried
    tune-by = "personal.accuracy.mean"   # a place in summary.json, of the validation numbers

With ``--quick`` the first value of each list counts, untried, unless ``[quick]`` has
``tune = true``. A measure is a place in ``summary.json``; ``best.`` before it makes it the best of
a run's full evaluations instead of the last. ``why`` says why ours differ: a run's
or a claim's own, or in front of all tables that of those that have none.
"""

import hashlib
import itertools
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bouquet.core.config import Scalar, flatten
from bouquet.core.errors import BadInput
from bouquet.imports import KEYS

PAPERS = {
    "apfl": "Deng, Kamani and Mahdavi 2020, *Adaptive personalized federated learning*",
    "fedu": "Dinh et al. 2021, *A new look and convergence rate of federated multitask learning*",
    "partial": "Pillutla et al. 2022, *Federated learning with partial model personalization*",
    "perfedavg": "Fallah, Mokhtari and Ozdaglar 2020, *Personalized federated learning*",
    "plsgd": "*Federated learning with additive personalization* (personalized local SGD)",
}

_FIELDS = {
    "title", "paper", "place", "minutes", "seeds", "note", "fraction", "keys", "quick", "runs",
    "claims", "computed", "tune", "why",
}  # fmt: skip
_OF_RUN = {"name", "label", "keys", "published", "tune", "tune-by", "why"}
_OF_CLAIM = {"says", "better", "by", "why"}
_OF_TUNE = {"seeds", "validation", "keys"}
BY = "personal.accuracy.mean"
# Of a run's rounds, the log has no more than these over clients.
BEST, OF_ROUNDS = "best.", ("mean", "p10", "p90")


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
    tune : mapping of str to tuple
        Keys that are tried, each with its values.
    tune_by : str
        The measure they are compared by, on validation data.
    why : str
        Why we think ours differ, for where they do.
    """

    name: str
    label: str
    keys: Mapping[str, Scalar]
    published: Mapping[str, float] = field(default_factory=dict)
    tune: Mapping[str, tuple[Scalar, ...]] = field(default_factory=dict)
    tune_by: str = BY
    why: str = ""

    @property
    def settings(self) -> list[dict[str, Scalar]]:
        """Every combination of the values of what is tried; one that is empty where nothing is."""
        return [
            dict(zip(self.tune, one, strict=True)) for one in itertools.product(*self.tune.values())
        ]


@dataclass(frozen=True)
class Tuning:
    """How settings are tried.

    Parameters
    ----------
    seeds : tuple of int
        Of each setting's trials.
    validation : float
        The share of each client's training examples that settings are compared on.
    keys : mapping
        What is different in trials; ``rounds`` shortens a pipeline's stages alike.
    """

    seeds: tuple[int, ...]
    validation: float = 0.2
    keys: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True)
class Claim:
    """Something a paper says of its results.

    Parameters
    ----------
    says : str
        In words.
    better : tuple of str
        Entries of which each does at least as well as the next.
    by : tuple of str
        The measure of each; one and the same, but where an entry is compared with itself.
    why : str
        Why we think it does not hold, for where it does not.
    """

    says: str
    better: tuple[str, ...]
    by: tuple[str, ...]
    why: str = ""


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
    tuning : Tuning
        How entries' settings are tried.
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
    tuning: Tuning = Tuning((0,))

    def keys_of(
        self, entry: Entry, seed: int, setting: Mapping[str, Scalar] | None = None
    ) -> dict[str, Scalar]:
        """All that a run is told, with a setting of what is tried; the first, if not given."""
        chosen = entry.settings[0] if setting is None else setting
        own = {**entry.keys, **chosen}
        # One node: runs that go side by side need no threads, and end alike on any machine.
        keys = {"nodes": 1, **self.keys, **own, "seed": seed}
        if keys.get("pipeline") and "rounds" not in own:
            keys.pop("rounds", None)  # its stages say how many there are
        return keys

    def trial_keys(
        self, entry: Entry, seed: int, setting: Mapping[str, Scalar]
    ) -> dict[str, Scalar]:
        """All that a trial is told: as the run, but judged on what it holds out of training."""
        less = dict(self.tuning.keys)
        rounds = less.pop("rounds", None)
        keys = self.keys_of(entry, seed, {**less, **setting})
        if isinstance(rounds, int) and "rounds" not in setting:
            keys = shortened(keys, rounds)
        if not entry.tune_by.startswith(BEST):
            keys["eval-every"] = 0
        keys |= {"validation": self.tuning.validation, "evaluate-on": "validation"}
        return keys | {"save-predictors": False, "save-outcomes": False}

    @property
    def mark(self) -> str:
        """What changes when the recipe's numbers would: its words may change, its keys not."""
        told = [
            [entry.name, self.keys_of(entry, 0), entry.settings, entry.tune_by]
            for entry in self.entries
        ]
        rest = [self.computed, self.tuning.validation, self.tuning.keys, self.tuning.seeds]
        words = json.dumps([told, rest if self.tuned else self.computed], sort_keys=True)
        here = str(folder().absolute())  # of a file of code, where it is beside the recipes
        return hashlib.sha256(words.replace(here, "").encode()).hexdigest()[:12]

    def is_of(self, mark: str) -> bool:
        """Whether results with a mark are this recipe's; older ones have none."""
        return mark in ("", self.mark)

    @property
    def tuned(self) -> bool:
        """Whether anything is chosen on validation data."""
        return any(len(entry.settings) > 1 for entry in self.entries)

    @property
    def total_minutes(self) -> float:
        """About how long all of it takes, trials included, if all entries take alike."""
        rounds, less = self.keys.get("rounds"), self.tuning.keys.get("rounds")
        share = less / rounds if isinstance(rounds, int) and isinstance(less, int) else 1.0
        tried = [len(entry.settings) for entry in self.entries if len(entry.settings) > 1]
        trials = sum(tried) * len(self.tuning.seeds) * min(1.0, share)
        return self.minutes * (len(self.seeds) + trials / max(1, len(self.entries)))


def shortened(keys: Mapping[str, Scalar], rounds: int) -> dict[str, Scalar]:
    """Keys of a run of so many rounds; of a pipeline, every stage has its share of them."""
    words = [word.rpartition(":") for word in str(keys.get("pipeline", "")).split()]
    if not words or not all(count.isdecimal() for _, _, count in words):  # which parsing refuses
        return {**keys, "rounds": rounds}
    share = min(1.0, rounds / max(1, sum(int(count) for _, _, count in words)))
    stages = [f"{name}:{max(1, round(share * int(count)))}" for name, _, count in words]
    rest = {name: value for name, value in keys.items() if name != "rounds"}
    return {**rest, "pipeline": " ".join(stages)}


def folder() -> Path:
    """Where the recipes are: in the package, or beside it in a checkout."""
    inside = Path(__file__).parents[1] / "recipes"
    return inside if inside.is_dir() else Path(__file__).parents[2] / "reproduce"


def names() -> list[str]:
    """The recipes there are."""
    return sorted(path.stem for path in folder().glob("*.toml"))


def committed() -> dict[str, str]:
    """The recipes whose results are beside them, and the marks of what these were made from."""
    return {
        path.parent.name: json.loads(path.read_text(encoding="utf-8"))["about"].get("mark", "")
        for path in folder().glob("results/*/result.json")
    }


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
    keys = _keys(told, path)
    less = dict(told.get("quick", {})) if quick else {}
    seeds = _seeds(less.pop("seeds", told.get("seeds", [0])), path)
    tuned = not quick or less.pop("tune", False) is True
    quickly = _scalars(flatten(less), path)
    common = {"why": told.get("why", "")}
    entries = tuple(_entry(common | one, path, tuned) for one in told.get("runs", []))
    if isinstance(quickly.get("rounds"), int):
        entries = tuple(_short(one, keys, int(quickly["rounds"])) for one in entries)
    known = [one.name for one in entries]
    if len(set(known)) < len(known):
        raise BadInput(f"{path}: every run must have a name of its own.")
    claims = tuple(_claim(common | one, known, path) for one in told.get("claims", []))
    if not entries and "computed" not in told:
        raise BadInput(f"{path}: there must be [[runs]], or computed.")
    words = {
        name: _text(told, name, path, needed=name in ("title", "paper", "place"))
        for name in ("title", "paper", "place", "note", "fraction", "computed")
    }
    if words["paper"] not in PAPERS:
        raise BadInput(f"{path}: paper must be one of {', '.join(PAPERS)}.")
    minutes = float(told.get("minutes", 0))
    return Recipe(path.stem, minutes=minutes, seeds=seeds, keys={**keys, **quickly},
                  entries=entries, claims=claims, tuning=_tuning(told.get("tune", {}), seeds, path),
                  **words)  # fmt: skip


def _short(entry: Entry, common: Mapping[str, Scalar], rounds: int) -> Entry:
    """An entry whose pipeline, if it has one, is as short as all else."""
    pipeline = entry.keys.get("pipeline", common.get("pipeline"))
    if not pipeline:
        return entry
    return replace(entry, keys=shortened({**entry.keys, "pipeline": pipeline}, rounds))


def _tuning(told: Mapping[str, Any], seeds: tuple[int, ...], path: Path) -> Tuning:
    _refuse_others(told, _OF_TUNE, path, "[tune] ")
    share = told.get("validation", Tuning.validation)
    if type(share) not in (int, float) or not 0 < share <= 0.9:
        raise BadInput(f"{path}: [tune] validation must be above 0 and at most 0.9, not {share!r}.")
    tried = _seeds(told.get("seeds", [seeds[0]]), path, "[tune] ")
    return Tuning(tried, float(share), _keys(told, path))


def _seeds(told: object, path: Path, where: str = "") -> tuple[int, ...]:
    if not isinstance(told, list) or not told or not all(type(one) is int for one in told):
        raise BadInput(
            f"{path}: {where}seeds must be whole numbers such as [0, 1, 2], not {told!r}."
        )
    return tuple(told)


def _entry(told: Mapping[str, Any], path: Path, tuned: bool) -> Entry:
    _refuse_others(told, _OF_RUN, path, "[[runs]] ")
    name = _text(told, "name", path, needed=True)
    published = {key: float(value) for key, value in flatten(told.get("published", {})).items()}  # type: ignore[arg-type]
    for measure in published:
        _refuse_unknown_best(measure, path)
    label = _text(told, "label", path) or name
    tune = _tried(told.get("tune", {}), path)
    if not tuned:
        tune = {one: values[:1] for one, values in tune.items()}
    by = _text(told, "tune-by", path) or BY
    _refuse_unknown_best(by, path)
    return Entry(name, label, _keys(told, path), published, tune, by, _text(told, "why", path))


def _tried(told: Mapping[str, Any], path: Path) -> dict[str, tuple[Scalar, ...]]:
    """The values of each key that is tried."""
    found = {}
    for name, values in flatten(told).items():
        if not isinstance(values, list) or not values:
            raise BadInput(f"{path}: tune: {name} must be a list such as [0.01, 0.1].")
        found[name] = tuple(_scalars({name: one}, path)[name] for one in values)
        if len(set(found[name])) < len(values):
            raise BadInput(f"{path}: tune: {name} has a value more than once.")
    return found


def _claim(told: Mapping[str, Any], known: list[str], path: Path) -> Claim:
    _refuse_others(told, _OF_CLAIM, path, "[[claims]] ")
    better = tuple(told.get("better", ()))
    for one in better:
        if one not in known:
            raise BadInput(f"{path}: [[claims]] better must name runs, not {one!r}.")
    told_by = told.get("by", BY)
    by = tuple(told_by) if isinstance(told_by, list) else (told_by,) * len(better)
    if len(by) != len(better) or not all(isinstance(one, str) and one for one in by):
        raise BadInput(
            f"{path}: [[claims]] by must be a measure, or a list of one for each of better, "
            f"not {told_by!r}."
        )
    for one in by:
        _refuse_unknown_best(one, path)
    return Claim(_text(told, "says", path, needed=True), better, by, _text(told, "why", path))


def _refuse_unknown_best(measure: str, path: Path) -> None:
    if measure.startswith(BEST) and measure.rpartition(".")[2] not in OF_ROUNDS:
        listed = ", ".join(OF_ROUNDS)
        raise BadInput(f"{path}: {measure} must end in one of {listed}, as it has {BEST!r} before.")


def _text(told: Mapping[str, Any], name: str, path: Path, needed: bool = False) -> str:
    found = told.get(name, "")
    if not isinstance(found, str) or (needed and not found):
        raise BadInput(f"{path}: {name} must be text, not {found!r}.")
    return found


def _keys(told: Mapping[str, Any], path: Path) -> dict[str, Scalar]:
    """The table ``keys`` of a table."""
    return _scalars(flatten(told.get("keys", {})), path)


def _scalars(flat: Mapping[str, object], path: Path) -> dict[str, Scalar]:
    for name, value in flat.items():
        if not isinstance(value, (bool, int, float, str)):
            raise BadInput(f"{path}: {name} must be one value, not {value!r}.")
    return {name: _beside(path, name, value) for name, value in flat.items()}  # type: ignore[arg-type]


def _beside(path: Path, name: str, value: Scalar) -> Scalar:
    """A file of code that is named as beside the recipe, by where it is."""
    if name not in ("scheme", *KEYS) or not str(value).startswith("./"):
        return value
    return str(path.parent.absolute() / str(value))


def _refuse_others(told: Mapping[str, Any], known: set[str], path: Path, where: str) -> None:
    for name in told:
        if name not in known:
            listed = ", ".join(sorted(known))
            raise BadInput(f"{path}: {where}must have none but {listed}, not {name!r}.")
