"""Local optimizers: what a client's optimizer remembers in a round, and from round to round.

How the steps are taken is in :mod:`bouquet.core.optimizers`. Here a scheme's clients get the
optimizer's memory: a new one every round, or with ``optimizer-state = keep`` the one they had,
which joins what is personal and never leaves the device.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

from bouquet.core.optimizers import Memory
from bouquet.core.scheme import Record, Records, Work
from bouquet.core.task import Task
from bouquet.core.trees import Tree, extended
from bouquet.core.wrapper import Wrapper

R = TypeVar("R", bound=Record)

# What the moments are called among all that a client keeps.
FIELD = "optimizer"


@dataclass(frozen=True)
class Remembering(Wrapper):
    """A scheme whose clients' optimizer remembers its steps for a round, or for good.

    Parameters
    ----------
    inner : Scheme
        Any whose steps need not be plain.
    keeps_moments : bool
        Whether for good. A client that predicts or comes after training begins anew even so.
    """

    keeps_moments: bool

    @property
    def records(self) -> Records:
        """The scheme's own, with the moments that a client keeps."""
        inner = self.inner.records
        if not self.keeps_moments:
            return inner
        return inner._replace(personal=extended(inner.personal, **{FIELD: Tree}))

    def init_personal(self, task: Task, examples: int) -> Any:
        """No moments yet: of which parts there will be any, the first round shows."""
        inner = self.inner.init_personal(task, examples)
        return self.records.personal(*inner, {}) if self.keeps_moments else inner

    def kept(self, personal: Any) -> Any:
        """All but the moments."""
        if not self.keeps_moments:
            return personal
        return self.inner.records.personal(*personal[:-1])

    def local_update(self, work: Work, payload: Any, personal: Any) -> tuple[Any, Any]:
        """The scheme's own, with a memory."""
        before = getattr(personal, FIELD) if self.keeps_moments else {}
        memory = Memory(work.sgd.optimizer, before)
        upload, kept = super().local_update(replace(work, memory=memory), payload, personal)
        if not self.keeps_moments:
            return upload, kept
        return upload, self.records.personal(*kept, memory.tree)

    def predictor(self, work: Work, payload: Any, personal: Any) -> Tree:
        """The scheme's own, with a memory."""
        return super().predictor(_fresh(work), payload, personal)

    def newcomer(self, work: Work, payload: Any, shared: Tree) -> Tree:
        """The scheme's own, with a memory."""
        return super().newcomer(_fresh(work), payload, shared)


def _fresh(work: Work) -> Work:
    return replace(work, memory=Memory(work.sgd.optimizer))


def side_by_side(states: Sequence[R]) -> list[R]:
    """Clients' states with moments of the same names: whoever has none of a name has zeros.

    Moments start at zero, so nothing changes for those who take part for the first time.
    """
    if not states or not hasattr(states[0], FIELD):
        return list(states)
    like: Tree = {name: one for state in states for name, one in getattr(state, FIELD).items()}

    def completed(own: Tree) -> Tree:
        return {name: own.get(name, torch.zeros_like(one)) for name, one in like.items()}

    return [state._replace(**{FIELD: completed(getattr(state, FIELD))}) for state in states]  # type: ignore[attr-defined]


def without_moments(flat: Tree) -> Tree:
    """A flattened state but for its moments, which may be another optimizer's, or none."""
    return {name: value for name, value in flat.items() if not name.startswith(f"{FIELD}/")}
