"""What there is, as the lists show it: schemes, keys, models and data sets.

They say it of themselves, in modules that import PyTorch, which takes seconds. Lists and shell
completion read it from ``catalogue.json`` instead, which :mod:`bouquet.cli.gather` writes.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from bouquet.core.config import Key
    from bouquet.core.scheme import AnyScheme

FILE = Path(__file__).with_name("catalogue.json")
FACTS = ("paper", "shares", "keeps", "exception", "derivable", "weights")


class ListedKey(NamedTuple):
    """A key: its default as ``-c`` takes it, what is allowed, and what it means."""

    name: str
    default: str
    allowed: str
    meaning: str


class ListedScheme(NamedTuple):
    """A scheme, and what it says of itself, by ``FACTS``."""

    name: str
    title: str
    facts: dict[str, str]


class ListedModel(NamedTuple):
    """A model."""

    name: str
    doc: str


class ListedData(NamedTuple):
    """A data set, its model, and whether it has clients of its own."""

    name: str
    doc: str
    model: str
    natural: bool


class Catalogue(NamedTuple):
    """All there is, in the order of the lists."""

    schemes: list[ListedScheme]
    keys: list[ListedKey]
    models: list[ListedModel]
    data: list[ListedData]

    def keys_under(self, *groups: str) -> list[ListedKey]:
        """The keys of some groups, such as ``model``."""
        return [key for key in self.keys if key.name.rpartition(".")[0] in groups]


def read() -> Catalogue:
    """The catalogue as it was last written."""
    told: dict[str, list[dict[str, Any]]] = json.loads(FILE.read_text("utf-8"))
    return Catalogue(
        [ListedScheme(**one) for one in told["schemes"]],
        [ListedKey(**one) for one in told["keys"]],
        [ListedModel(**one) for one in told["models"]],
        [ListedData(**one) for one in told["data"]],
    )


def listed_scheme(scheme: "type[AnyScheme]") -> ListedScheme:
    """A scheme as it is listed, ours or anybody's."""
    facts = {what: str(getattr(scheme, what)) for what in FACTS if getattr(scheme, what)}
    return ListedScheme(scheme.name, scheme.title, facts)


def listed_key(key: "Key") -> ListedKey:
    """A key as it is listed."""
    default = str(key.default).lower() if key.kind is bool else str(key.default) or "''"
    note = f"; {key.degenerate}" if key.degenerate else ""
    return ListedKey(key.name, default, key.allowed, key.doc + note)
