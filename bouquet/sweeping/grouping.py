"""Which trials train together, as one computation: those that differ in numbers alone."""

from collections.abc import Hashable, Sequence
from itertools import groupby

from bouquet.settings import all_keys
from bouquet.storage.files import BadFile
from bouquet.storage.runfolder import RunFolder
from bouquet.strategies.registry import find
from bouquet.sweeping.trials import Trial

# Measured: beyond so many the computation is as fast as it gets, and fewer groups keep fewer cores
# busy. So few of one seed are filled up with another's, at the price of its data in memory.
MOST, FEW = 8, 4


def grouped(trials: Sequence[Trial], together: int) -> list[list[Trial]]:
    """Trials in groups that train together.

    It depends on the sweep alone, not on the machine or on what is done already: a trial's last
    bits may depend on those it trains with.

    Parameters
    ----------
    trials : sequence of Trial
        All there are.
    together : int
        Most in a group; 0 for as many as gain by it.
    """
    groups: list[list[Trial]] = []
    for _, alike in groupby(sorted(trials, key=lambda one: str(_kind(one))), key=_kind):
        group: list[Trial] = []
        for one in sorted(alike, key=lambda one: (one.seed, one.fold, one.number)):
            moved_on = bool(group) and (group[-1].seed, group[-1].fold) != (one.seed, one.fold)
            full = len(group) == (together or MOST)
            if not group or full or (moved_on and not together and len(group) >= FEW):
                group = []
                groups.append(group)
            group.append(one)
    order = {id(one): place for place, one in enumerate(trials)}
    return sorted(groups, key=lambda group: order[id(group[0])])


def _kind(one: Trial) -> Hashable:
    """All but the numbers in which trials that train together may differ."""
    scheme = find(one.scheme)
    known = {key.name: key for key in all_keys([scheme])}
    numbers = {
        name
        for name in one.setting
        if known[name].kind is float and ("." not in name or name.startswith(f"{scheme.name}."))
    }
    rest = {name: value for name, value in one.setting.items() if name not in numbers}
    return (one.name, tuple(sorted(rest.items())))


def align(group: Sequence[Trial]) -> None:
    """Bring trials that were killed in one round back to the same one.

    They trained in step, so that some have a checkpoint of one round more than others, which they
    go back from: then they train together again, and end with the same bits.
    """
    folders = [RunFolder(one.folder) for one in group]
    rounds = {one: _round(one) for one in folders if one.checkpoint.exists()}
    last = max(rounds.values(), default=0)
    if last - 1 in rounds.values():
        for one in (folder for folder, round_ in rounds.items() if round_ == last):
            one.restore_checkpoint()


def _round(folder: RunFolder) -> int:
    try:
        return folder.read_checkpoint().round
    except BadFile:  # which the run itself will refuse, by name
        return -1
