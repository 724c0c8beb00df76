"""A sweep's folder as readers see it: what was chosen, how settings did, and the end."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from bouquet.core.config import Scalar
from bouquet.core.errors import BadInput
from bouquet.storage.runs import read_summary
from bouquet.sweeping.asked import FILE, Asked, Range, read_file
from bouquet.sweeping.course import CHOSEN
from bouquet.sweeping.trials import Score, finals_of, scores, trials_of

Setting = Mapping[str, Scalar]


@dataclass(frozen=True)
class Results:
    """What a sweep's folder says; it may not be finished.

    Parameters
    ----------
    folder : Path
        Where it is.
    """

    folder: Path

    @cached_property
    def asked(self) -> Asked:
        """What the sweep is about."""
        if not (self.folder / FILE).is_file():
            raise BadInput(f"{self.folder} holds no sweep (there is no {FILE} in it).")
        return read_file(self.folder / FILE)[0]

    @cached_property
    def scores(self) -> list[Score]:
        """How each setting did on validation data, as far as its trials are."""
        return scores(self.asked, trials_of(self.asked, self.folder))

    @property
    def choice(self) -> dict[str, dict[str, Any]]:
        """What was chosen for each scheme, as ``chosen.json`` has it; empty until it is."""
        found: dict[str, dict[str, Any]] = read_summary(self.folder / CHOSEN).get("schemes", {})
        return found

    @property
    def chosen(self) -> dict[str, Setting]:
        """The setting that was chosen for each scheme."""
        return {name: one["setting"] for name, one in self.choice.items()}

    @property
    def finals(self) -> list[Path]:
        """The folders of the runs of what was chosen, those that have ended."""
        if not self.choice:
            return []
        numbers = {name: int(one["number"]) for name, one in self.choice.items()}
        every = [one.folder for one in finals_of(self.asked, self.folder, numbers)]
        return [one for one in every if (one / "summary.json").exists()]

    def axis(self, name: str) -> str:
        """How a searched key's values are best drawn: ``linear``, ``log`` or ``names``."""
        values = self.asked.grid[name]
        if isinstance(values, Range):
            return "log" if values.log else "linear"
        if not all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values):
            return "names"
        numbers = [float(value) for value in values]
        return "log" if min(numbers) > 0 and max(numbers) / min(numbers) >= 10 else "linear"


def is_sweep(folder: Path) -> bool:
    """Whether a folder is a sweep's."""
    return (folder / FILE).is_file()


def worded(setting: Setting) -> str:
    """A setting in words."""
    return " ".join(f"{name}={value}" for name, value in setting.items())
