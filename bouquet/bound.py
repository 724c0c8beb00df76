"""Which clients a key is for: a name Flower keeps with it, set by the SuperLink's owner alone."""

from collections.abc import Sequence

from bouquet.core.errors import BadInput

# Other names that an owner may have given a node bind it to nobody.
_MARK = "clients:"


def ids_in(words: str, what: str) -> tuple[str, ...]:
    """Client ids separated by commas, sorted; or a sentence about ``what`` they were given as."""
    ids = [one.strip() for one in words.split(",")]
    if not all(ids) or len(set(ids)) != len(ids):
        raise BadInput(
            f"{what} must be one id, or several different ones separated by commas, not {words!r}."
        )
    return tuple(sorted(ids))


def name_for(clients: Sequence[str]) -> str:
    """The name of a node whose key is for some clients."""
    return _MARK + ",".join(clients)


def clients_of(name: str) -> tuple[str, ...]:
    """The clients that a node's key is for, by its name; empty for a key that is bound to none."""
    return tuple(name.removeprefix(_MARK).split(",")) if name.startswith(_MARK) else ()
