"""Typed configs read from flat run configs.

A config is a frozen dataclass whose fields are made by :func:`key`. It is read
from a flat mapping such as Flower's run config: the field ``alpha_lr`` of a
config with the prefix ``apfl`` is the key ``apfl.alpha-lr``. Types and ranges
are checked and a key that no config declares is refused, so a typo never runs.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, TypeVar, cast

from bouquet.core.errors import BadInput

Scalar = bool | int | float | str
C = TypeVar("C")

# No step size, strength or count of seconds is larger for a reason, and the product of a few of
# them is still a float32.
LARGEST = 1e9
# A round's batches are drawn before it begins, so there must be room for them.
MOST_STEPS = 10**6

_TYPE_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


@dataclasses.dataclass(frozen=True)
class Key:
    """One key a user can set.

    Parameters
    ----------
    name : str
        The full kebab-case name, prefix included.
    field : str
        The dataclass field it fills.
    kind : type
        ``bool``, ``int``, ``float`` or ``str``.
    default : Scalar
        What it is when the user says nothing.
    doc : str
        Its meaning, in a few words.
    low, high : float
        The closed range of a number.
    open_low : bool
        Whether ``low`` itself is excluded.
    choices : tuple of str
        The words a text may be; empty for any text.
    own : bool
        Whether it may also be the path of something of the user's own.
    degenerate : str
        The value at which the scheme turns into a simpler one, and which one.
    step : bool
        Whether too large a value makes training diverge.
    """

    name: str
    field: str
    kind: type
    default: Scalar
    doc: str
    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    choices: tuple[str, ...] = ()
    own: bool = False
    degenerate: str = ""
    step: bool = False

    @property
    def allowed(self) -> str:
        """What a value must be, in words."""
        if self.choices:
            listed = "one of " + ", ".join(repr(choice) for choice in self.choices)
            yours = ", or package.module:name or ./file.py:name for one of yours"
            return listed + yours * self.own
        words = _TYPE_NAMES[self.kind]
        if self.kind is int or self.kind is float:
            low, high = _plain(self.low), _plain(self.high)
            if math.isfinite(self.low) and math.isfinite(self.high):
                return f"{words} {'above' if self.open_low else 'from'} {low} to {high}"
            if math.isfinite(self.low):
                return f"{words} {'above' if self.open_low else 'of at least'} {low}"
            if math.isfinite(self.high):
                return f"{words} of at most {high}"
        return words

    def check(self, value: object) -> Scalar:
        """The value in the key's own type, or a sentence that says why not."""
        wrong = BadInput(f"{self.name} must be {self.allowed}, not {_shortened(value)}.")
        if isinstance(value, bool) and self.kind is not bool:
            raise wrong
        if isinstance(value, int) and abs(value) >= 2**63:  # more than a message can carry
            raise wrong
        if isinstance(value, str) and not _writable(value):
            raise wrong
        if self.kind is float and isinstance(value, int):
            value = float(value)
        if not isinstance(value, self.kind) or (self.choices and not self._chosen(value)):
            raise wrong
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            too_low = value <= self.low if self.open_low else value < self.low
            if not math.isfinite(value) or too_low or value > self.high:
                raise wrong
            if self.kind is float and value > LARGEST:
                raise BadInput(f"{self.name} must be at most {_plain(LARGEST)}, not {value!r}.")
        return value  # type: ignore[return-value]  # one of the four kinds by now

    def _chosen(self, value: object) -> bool:
        return value in self.choices or (self.own and ":" in str(value))


def _writable(text: str) -> bool:
    """Whether a file can hold the text, and be called it."""
    return "\0" not in text and text.encode("utf-8", "ignore").decode() == text


def _shortened(value: object) -> str:
    # Python refuses to write out a whole number of thousands of digits.
    text = "a huge number" if isinstance(value, int) and abs(value) >= 2**63 else repr(value)
    return text if len(text) < 80 else f"{text[:76]} ..."


def _plain(number: float) -> str:
    return f"{number:g}"


def key(
    default: Scalar,
    doc: str,
    *,
    name: str = "",
    low: float = -math.inf,
    high: float = math.inf,
    open_low: bool = False,
    choices: tuple[str, ...] = (),
    own: bool = False,
    degenerate: str = "",
    step: bool = False,
) -> Any:
    """Declare a config field; see :class:`Key` for the parameters.

    ``name`` replaces the field's own name where that is a Python keyword.
    """
    facts = {
        "doc": doc,
        "low": low,
        "high": high,
        "open_low": open_low,
        "choices": choices,
        "own": own,
        "degenerate": degenerate,
        "step": step,
    }
    return dataclasses.field(default=default, metadata={"key": facts, "name": name})


def keys_of(config: type, prefix: str = "") -> Iterator[Key]:
    """The keys a config declares, in the order it declares them."""
    for field in dataclasses.fields(config):
        if "key" not in field.metadata:
            continue
        name = field.metadata["name"] or field.name.replace("_", "-")
        yield Key(
            name=f"{prefix}.{name}" if prefix else name,
            field=field.name,
            kind=type(field.default),
            default=cast(Scalar, field.default),
            **field.metadata["key"],
        )


def read(config: type[C], values: Mapping[str, object], prefix: str = "") -> C:
    """A config from a flat mapping, every value checked; other keys are left alone."""
    found = {
        one.field: one.check(values[one.name])
        for one in keys_of(config, prefix)
        if one.name in values
    }
    return config(**found)


def write(config: object, prefix: str = "") -> dict[str, Scalar]:
    """The flat mapping :func:`read` would read the same config from."""
    return {one.name: getattr(config, one.field) for one in keys_of(type(config), prefix)}


def refuse_unknown(names: Iterable[str], known: Iterable[str]) -> None:
    """Refuse a key nobody declared, with those that are most like it."""
    valid = sorted(known)
    for name in names:
        if name not in valid:
            near = _alike(name, valid)
            hint = f"did you mean {_either(near)}? " if near else ""
            raise BadInput(f"Unknown key {name}: {hint}`bouquet keys` lists all there are.")


def _alike(name: str, valid: list[str]) -> list[str]:
    """A few keys like a name, or else those of some group whose last part is like its own."""
    near = get_close_matches(name, valid, n=3, cutoff=0.7)
    if near:
        return near
    parts = {one: one.rpartition(".")[2] for one in valid}
    best = get_close_matches(name.rpartition(".")[2], set(parts.values()), n=1, cutoff=0.7)
    return [one for one, part in parts.items() if part in best][:3]


def _either(names: list[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def flatten(tables: Mapping[str, Any], prefix: str = "") -> dict[str, object]:
    """TOML tables as a flat mapping: ``{"apfl": {"alpha": 1}}`` is ``{"apfl.alpha": 1}``."""
    flat: dict[str, object] = {}
    for name, value in tables.items():
        full = f"{prefix}.{name}" if prefix else name
        if isinstance(value, Mapping):
            flat |= flatten(value, full)
        else:
            flat[full] = value
    return flat
