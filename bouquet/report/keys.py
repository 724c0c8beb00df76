"""The hyper-parameters of runs: those that differ, each scheme's own, and the rest."""

from collections.abc import Sequence
from typing import Any

from bouquet.report.digits import NONE
from bouquet.report.tables import Cell, Table, table_of
from bouquet.settings import all_keys
from bouquet.storage.runs import INCIDENTAL, Group
from bouquet.strategies.registry import SCHEMES

# What else says where a run was made, or is said by its name already.
_KNOWN = INCIDENTAL | {"scheme", "pipeline", "resume", "store", "device"}


def settings_table(groups: Sequence[Group]) -> Table:
    """A line a configuration, with the keys that differ and those of its scheme."""
    differ = [key for key in _names(groups) if _differs(key, groups) and not _of_a_scheme(key)]
    rows: list[list[str | Cell]] = []
    for group in groups:
        row: list[str | Cell] = [Cell(group.name, scheme=group.runs[0].scheme)]
        row += [worded(group.runs[0].config.get(key)) for key in differ]
        told = [f"{key}={worded(value)}" for key, value in own_keys(group).items()]
        rows.append([*row, Cell(", ".join(told) or NONE, long=True)])
    last = "the scheme's own keys"
    note = "" if differ else "All other keys are the same for all."
    return table_of(["configuration", *differ, last], rows, note)


def common_table(groups: Sequence[Group]) -> Table:
    """What all configurations have in common: a line a key; first those that somebody set."""
    config = groups[0].runs[0].config
    same = [key for key in _names(groups) if not _differs(key, groups) and not _of_a_scheme(key)]
    usual = {key.name: key.default for key in all_keys()}
    same.sort(key=lambda key: config[key] == usual.get(key))
    rows: list[list[str | Cell]] = [
        [key, Cell(worded(config[key]), bold=config[key] != usual.get(key)), worded(usual.get(key))]
        for key in same
    ]
    note = "Keys that all configurations have in common; bold is what is not the default."
    return table_of(["key", "value", "default"], rows, note)


def own_keys(group: Group) -> dict[str, Any]:
    """The keys of a configuration's scheme, or of the schemes of its pipeline."""
    stages = [word.partition(":")[0] for word in group.runs[0].scheme.split()]
    config = group.runs[0].config
    found = {key: value for key, value in config.items() if key.partition(".")[0] in stages}
    if len(stages) > 1:
        return found
    return {key.partition(".")[2]: value for key, value in found.items()}


def worded(value: object) -> str:
    """A key's value as it is written on the command line."""
    if value is None or value == "":
        return NONE
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _names(groups: Sequence[Group]) -> list[str]:
    found = dict.fromkeys(key for group in groups for key in group.runs[0].config)
    return [key for key in found if key not in _KNOWN]


def _differs(key: str, groups: Sequence[Group]) -> bool:
    return len({str(group.runs[0].config.get(key)) for group in groups}) > 1


def _of_a_scheme(key: str) -> bool:
    """Whether it is one of a scheme's: its own lines have it, and others do not use it."""
    head, point, _ = key.partition(".")
    return bool(point) and head in SCHEMES
