"""Which parameters are personal: a split is a choice among their names."""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from strategies.core.config import key
from strategies.core.errors import BadInput


@dataclass(frozen=True)
class PersonalConfig:
    """The keys under ``personal``."""

    split: str = key(
        "output",
        "personal parameters: output, input (last, first layer), full, none, or a pattern of names",
    )


def personal_names(names: Sequence[str], split: str) -> frozenset[str]:
    """The personal ones among a model's parameters.

    Parameters
    ----------
    names : sequence of str
        All parameters, from input to output.
    split : str
        ``output`` or ``input`` for the last or first layer, ``full`` or ``none`` for all or
        none, or patterns such as ``conv1.* output.*``.
    """
    layers = {"input": names[0], "output": names[-1]}
    if split == "none":
        return frozenset()
    if split == "full":
        return frozenset(names)
    if split in layers:
        layer, _, _ = layers[split].rpartition(".")
        return frozenset(name for name in names if name.rpartition(".")[0] == layer)
    patterns = split.split()
    found = frozenset(n for n in names if any(fnmatchcase(n, pattern) for pattern in patterns))
    if not found:
        raise BadInput(
            "personal.split must be 'input', 'output', 'full', 'none' or a pattern that matches "
            f"one of {', '.join(names)}, not {split!r}."
        )
    return found
