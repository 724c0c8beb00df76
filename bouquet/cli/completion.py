"""What a shell can complete. Read from files: to import the schemes takes seconds."""

import re

from bouquet.manifest import APP, flower_app


def schemes(incomplete: str) -> list[str]:
    """The names of our schemes that begin so."""
    texts = [file.read_text("utf-8") for file in sorted((APP / "strategies").glob("*.py"))]
    names = [name for text in texts for name in re.findall(r'^    name = "(.*)"$', text, re.M)]
    return [name for name in names if name.startswith(incomplete)]


def keys(incomplete: str) -> list[str]:
    """The keys that begin so, as ``-c`` takes them, and the schemes after ``scheme=``."""
    if incomplete.startswith("scheme="):
        return [f"scheme={name}" for name in schemes(incomplete.removeprefix("scheme="))]
    return [f"{name}=" for name in key_names(incomplete)]


def key_names(incomplete: str) -> list[str]:
    """The names of keys that begin so."""
    names = []
    for name, value in flower_app()["config"].items():
        inner = [f"{name}.{key}" for key in value] if isinstance(value, dict) else [name]
        names += [one for one in inner if one.startswith(incomplete)]
    return names
