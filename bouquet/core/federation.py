"""What the server's half of a scheme knows: the clients, the run, and a round's uploads."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

Upload = TypeVar("Upload", bound=tuple[Any, ...])


@dataclass(frozen=True)
class Member:
    """A client as the server's half of a scheme knows it.

    Parameters
    ----------
    examples : int
        How many it trains on.
    weight : float
        Its weight in a mean, by the key ``weights``.
    labels : tuple of int
        Examples of each label, where the user lets clients tell; else empty.
    """

    examples: int
    weight: float = 1.0
    labels: tuple[int, ...] = ()


@dataclass(frozen=True)
class Federation:
    """Who takes part, and the facts of the run the server's half may need.

    Parameters
    ----------
    members : mapping of str to Member
        The clients there are now.
    model : str
        The model's name.
    lr : float
        Local step size.
    steps, epochs : int
        Local steps, or passes over the data; the other is 0.
    sampled : int
        Clients in a round; 0 for all.
    seed : int
        Of the run.
    """

    members: Mapping[str, Member] = field(default_factory=dict)
    model: str = ""
    lr: float = 0.0
    steps: int = 0
    epochs: int = 0
    sampled: int = 0
    seed: int = 0


@dataclass(frozen=True)
class Round(Generic[Upload]):
    """What the server knows of a round's valid uploads.

    Parameters
    ----------
    mean : record
        Their weighted mean; the fields a scheme names in ``upload_rows`` have a row for every
        one of ``clients`` instead.
    clients : tuple of str
        Whose they are, in order of the ids.
    federation : Federation
        Everyone, present in this round or not.
    number : int
        The round's number, from 1.
    """

    mean: Upload
    clients: tuple[str, ...]
    federation: Federation
    number: int = 1
