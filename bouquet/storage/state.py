"""Personal state as a typed, versioned record."""

from dataclasses import dataclass

from bouquet.core.trees import Tree
from bouquet.storage.files import BadFile


class BadState(BadFile):
    """Stored personal state that cannot be used; it is left as it is."""


@dataclass(frozen=True)
class Identity:
    """What personal state belongs to: scheme, its version, model shape and client."""

    scheme: str
    version: int
    fingerprint: str
    client: str


@dataclass(frozen=True)
class PersonalState:
    """What a client keeps between rounds.

    Parameters
    ----------
    identity : Identity
        What it belongs to.
    round : int
        The round that left it.
    tensors : Tree
        The scheme's personal record, flattened.
    """

    identity: Identity
    round: int
    tensors: Tree

    def check(self, wanted: Identity, place: str) -> None:
        """Refuse state of another scheme, version, model or client, naming its place."""
        for what in ("scheme", "version", "fingerprint", "client"):
            found, expected = getattr(self.identity, what), getattr(wanted, what)
            if found != expected:
                word = "model fingerprint" if what == "fingerprint" else what
                raise BadState(
                    f"{place} holds personal state of {word} {found!r}, not {expected!r}; "
                    "it was left as it is."
                )
