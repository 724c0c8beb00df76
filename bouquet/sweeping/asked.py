"""What a sweep is asked for, by a file or by a program: all of it checked before anything runs."""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tomli_w

from bouquet.core.config import Key, Scalar, flatten, key, keys_of, read, refuse_unknown, write
from bouquet.core.errors import BadInput
from bouquet.imports import KEYS, absolute, is_offered, named_paths
from bouquet.settings import all_keys, schemes_of
from bouquet.strategies.registry import SCHEMES, find

FILE = "sweep.toml"
# What the sweep itself tells its runs.
OWN = (
    *("scheme", "pipeline", "stage-keys", "seed", "out", "resume", "state-dir"),
    *("validation", "validation-folds", "validation-fold", "evaluate-on"),
)
LISTS = ("schemes", "seeds", "tune-seeds")
TABLES = ("keys", "grid")


@dataclass(frozen=True)
class Range:
    """The values of a key that is drawn: any between two.

    Parameters
    ----------
    low, high : float
        The ends.
    log : bool
        Whether every factor is as likely, instead of every difference.
    """

    low: float
    high: float
    log: bool = False


Values = tuple[Scalar, ...] | Range


@dataclass(frozen=True)
class Search:
    """How a sweep goes about it."""

    search: str = key(
        "grid", "try every combination, or draw some at random", choices=("grid", "random")
    )
    trials: int = key(0, "settings that each scheme tries; 0 = the whole grid", low=0, high=100_000)
    validation: float = key(
        0.2,
        "share of each client's training examples that settings are compared on",
        low=0.0,
        high=0.9,
    )
    folds: int = key(
        0,
        "k-fold cross-validation instead: so many parts, held out in turn; 0 = no",
        low=0,
        high=1000,
    )
    measure: str = key(
        "metric",
        "what settings are compared by: the personal models' metric, or their loss",
        choices=("metric", "loss"),
    )
    stop: str = key(
        "never",
        "end trials early: never, or by halving, which goes on with the best third ever again",
        choices=("never", "halving"),
    )
    together: int = key(
        0,
        "trials that train as one computation where they differ in numbers alone; 0 = as many as "
        "gain by it, 1 = each by itself",
        low=0,
        high=1000,
    )


@dataclass(frozen=True)
class Asked:
    """A sweep.

    Parameters
    ----------
    schemes : tuple of str
        Names or import paths, in order.
    seeds : tuple of int
        What is chosen runs with each of them.
    tune_seeds : tuple of int
        The seeds of the trials.
    grid : mapping
        The keys that are searched, each with its values; a scheme's own counts for it alone.
    keys : mapping
        The keys that all runs have in common.
    how : Search
        All else.
    """

    schemes: tuple[str, ...]
    seeds: tuple[int, ...]
    tune_seeds: tuple[int, ...]
    grid: Mapping[str, Values]
    keys: Mapping[str, Scalar]
    how: Search

    @property
    def has_objects(self) -> bool:
        """Whether it names what only this process has."""
        return any(map(is_offered, (*self.schemes, *(name for _, name in named_paths(self.keys)))))

    def told(self) -> dict[str, Any]:
        """All of it, as :func:`from_tables` reads it."""
        words: dict[str, Any] = {
            "schemes": list(self.schemes),
            "seeds": list(self.seeds),
            "tune-seeds": list(self.tune_seeds),
            **write(self.how),
            "keys": dict(sorted(self.keys.items())),
            "grid": {
                name: asdict(values) if isinstance(values, Range) else list(values)
                for name, values in self.grid.items()
            },
        }
        if self.how.folds:
            del words["validation"]
        return words

    def to_toml(self) -> bytes:
        """The text of its file."""
        return tomli_w.dumps(self.told()).encode()


def read_file(path: Path) -> tuple[Asked, str]:
    """What a file asks for, and the folder it names; or a sentence that says what is wrong."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror}).") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is not valid TOML: {error}.") from error
    out = tables.pop("out", "")
    if not isinstance(out, str):
        raise BadInput(f"out must be the name of a folder, not {out!r}.")
    return from_tables(tables), out


def from_tables(tables: Mapping[str, Any]) -> Asked:
    """A sweep from tables as a file has them, every value checked."""
    plain = [one.name for one in keys_of(Search)]
    for name in tables:
        if name not in (*LISTS, *plain, *TABLES):
            raise BadInput(
                f"Unknown key {name} of a sweep, which takes out, {', '.join((*LISTS, *plain))}; "
                "keys of runs go into the tables [keys] and [grid]."
            )
    for name in TABLES:
        if not isinstance(tables.get(name, {}), Mapping):
            raise BadInput(f"{name} must be a table of keys, not {tables[name]!r}.")
    if tables.get("folds") and "validation" in tables:
        raise BadInput(
            f"Set validation or folds, not both: they are {tables['validation']!r} and "
            f"{tables['folds']!r}."
        )
    schemes = _schemes(tables.get("schemes"))
    known = _known(schemes)
    seeds = _seeds(tables.get("seeds", [0]), "seeds")
    asked = Asked(
        schemes,
        seeds,
        _seeds(tables.get("tune-seeds", list(seeds)), "tune-seeds"),
        _grid(tables.get("grid", {}), known, [find(one).name for one in schemes]),
        _keys(tables.get("keys", {}), known),
        read(Search, tables),
    )
    _check(asked)
    return asked


def _schemes(told: object) -> tuple[str, ...]:
    if not isinstance(told, Sequence) or isinstance(told, str) or not told:
        raise BadInput(f"schemes must be a list such as ['fedavg', 'apfl'], not {told!r}.")
    names = [find(str(one)).name for one in told]
    for name in names:
        if names.count(name) > 1:
            raise BadInput(f"schemes has {name!r} more than once.")
    return tuple(absolute(str(one)) for one in told)


def _seeds(told: object, what: str) -> tuple[int, ...]:
    wrong = BadInput(f"{what} must be different whole numbers such as [0, 1, 2], not {told!r}.")
    if not isinstance(told, Sequence) or isinstance(told, str) or not told:
        raise wrong
    for one in told:
        if isinstance(one, bool) or not isinstance(one, int) or not 0 <= one < 2**63:
            raise wrong
    if len(set(told)) != len(told):
        raise wrong
    return tuple(told)


def _known(schemes: Iterable[str]) -> dict[str, Key]:
    """Every key there is, those of schemes from outside included."""
    kinds = {**SCHEMES, **{find(one).name: find(one) for one in schemes}}
    for one in schemes:
        schemes_of({"scheme": one})  # refuses one that takes another's name
    return {one.name: one for one in all_keys(list(kinds.values()))}


def _keys(told: Mapping[str, Any], known: Mapping[str, Key]) -> dict[str, Scalar]:
    values = flatten(told)
    refuse_unknown(values, known)
    _refuse_own(values, "keys")
    found = {name: known[name].check(value) for name, value in values.items()}
    return {name: absolute(str(one)) if name in KEYS else one for name, one in found.items()}


def _grid(
    told: Mapping[str, Any], known: Mapping[str, Key], schemes: Sequence[str]
) -> dict[str, Values]:
    values = dict(_leaves(told))
    refuse_unknown(values, known)
    _refuse_own(values, "grid")
    groups = {find(one).name for one in SCHEMES} | set(schemes)
    for name in values:
        group = name.partition(".")[0]
        if "." in name and group in groups and group not in schemes:
            raise BadInput(
                f"grid: {name} counts for none of the schemes {', '.join(schemes)}; leave it out."
            )
    if not values:
        raise BadInput("grid must name a key to search, such as lr = [0.01, 0.1].")
    return {name: _values(known[name], value) for name, value in values.items()}


def _leaves(tables: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Keys with dots between; a table of low and high is a value."""
    for name, value in tables.items():
        if isinstance(value, Mapping) and not {"low", "high"} & value.keys():
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _values(one: Key, told: Any) -> Values:
    if isinstance(told, Mapping):
        return _range(one, told)
    if not isinstance(told, Sequence) or isinstance(told, str) or not told:
        raise BadInput(
            f"grid: {one.name} must be a list such as [0.01, 0.1], or a range such as "
            f"{{low = 0.01, high = 1, log = true}}, not {told!r}."
        )
    found = tuple(map(one.check, told))
    if len(set(found)) != len(found):
        raise BadInput(f"grid: {one.name} has a value more than once: {list(told)!r}.")
    return found


def _range(one: Key, told: Mapping[str, Any]) -> Range:
    where = f"grid: {one.name}"
    if one.kind not in (int, float):
        raise BadInput(f"{where} must be a list: there is no range of what is {one.allowed}.")
    if not {"low", "high"} <= told.keys() <= {"low", "high", "log"}:
        raise BadInput(f"{where} must have low and high, and may have log, not {dict(told)!r}.")
    low, high, log = one.check(told["low"]), one.check(told["high"]), told.get("log", False)
    assert isinstance(low, (int, float))
    assert isinstance(high, (int, float))
    if not low < high:
        raise BadInput(f"{where}: low must be less than high, not {low!r} and {high!r}.")
    if not isinstance(log, bool):
        raise BadInput(f"{where}: log must be true or false, not {log!r}.")
    if log and low <= 0:
        raise BadInput(f"{where}: low must be above 0 with log, not {low!r}.")
    return Range(low, high, log)


def _refuse_own(names: Iterable[str], where: str) -> None:
    for name in names:
        if name in OWN:
            raise BadInput(
                f"{where}: {name} cannot be set here: a sweep tells its runs itself, by its own "
                f"{', '.join((*LISTS, 'validation', 'folds'))} and out."
            )


def _check(asked: Asked) -> None:
    """What is right by itself and does not go together."""
    how, twice = asked.how, sorted(asked.grid.keys() & asked.keys.keys())
    if twice:
        raise BadInput(f"{twice[0]} is in [keys] and in [grid]: it is fixed or searched, not both.")
    ranges = [name for name, values in asked.grid.items() if isinstance(values, Range)]
    if ranges and how.search == "grid":
        raise BadInput(f"grid: {ranges[0]} is a range, which goes with search = 'random'.")
    if how.search == "random" and not how.trials:
        raise BadInput("trials must be above 0 with search = 'random': the settings to draw.")
    if not how.folds and not how.validation:
        raise BadInput("validation must be above 0: settings are compared on what is held out.")
    if how.folds == 1:
        raise BadInput("folds must be 0 or at least 2, not 1: the rest is trained on.")
    if how.stop == "halving":
        _check_halving(asked)


def _check_halving(asked: Asked) -> None:
    """A trial that stops and goes on must be one that never stopped."""
    if "rounds" in asked.grid:
        raise BadInput("rounds cannot be searched with stop = 'halving', which deals them out.")
    courses = asked.grid.get("lr-schedule", (asked.keys.get("lr-schedule"),))
    if "linear" in (courses if isinstance(courses, tuple) else ()):
        raise BadInput(
            "lr-schedule must not be 'linear' with stop = 'halving': its course depends on rounds "
            "that a trial may not reach."
        )
