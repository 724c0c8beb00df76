"""What a shell can complete."""

from bouquet.cli import catalogue


def schemes(incomplete: str) -> list[str]:
    """The names of our schemes that begin so."""
    return [one.name for one in catalogue.read().schemes if one.name.startswith(incomplete)]


def keys(incomplete: str) -> list[str]:
    """The keys that begin so, as ``-c`` takes them, and the schemes after ``scheme=``."""
    if incomplete.startswith("scheme="):
        return [f"scheme={name}" for name in schemes(incomplete.removeprefix("scheme="))]
    return [f"{name}=" for name in key_names(incomplete)]


def key_names(incomplete: str) -> list[str]:
    """The names of keys that begin so."""
    return [one.name for one in catalogue.read().keys if one.name.startswith(incomplete)]
