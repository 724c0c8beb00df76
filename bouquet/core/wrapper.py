"""A scheme around another scheme."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bouquet.core.scheme import AnyScheme, Federation, Records, Round, Scheme, Work
from bouquet.core.task import Task
from bouquet.core.trees import Tree

# What a wrapper says of itself as the scheme inside does.
FACTS = (
    *("name", "title", "paper", "shares", "keeps", "exception", "version", "kind", "weights"),
    *(
        "clips",
        "payload_rows",
        "upload_rows",
        "alone",
        "pooled",
        "batches_a_step",
        "everyone",
        "descends",
        "decay",
        "later",
    ),
    *("plain", "first_shows", "sent", "derivable"),
)


@dataclass(frozen=True)
class Wrapper(Scheme[Any, Any, Any, Any]):
    """A scheme that holds another and changes some of what it does.

    As it stands it changes nothing. A wrapper whose server holds more than the scheme's says
    how to take that apart (``server_of``) and put it together again (``server_with``).

    Parameters
    ----------
    inner : Scheme
        The scheme inside.
    """

    inner: AnyScheme

    def __post_init__(self) -> None:
        for fact in FACTS:
            object.__setattr__(self, fact, getattr(self.inner, fact))

    def server_of(self, server: Any) -> Any:
        """The scheme's own part of the server's state."""
        return server

    def server_with(self, inner: Any, server: Any) -> Any:
        """A new state of the scheme's own beside what the wrapper adds."""
        return inner

    def received(self, payload: Any) -> Any:
        """What the scheme itself would have received."""
        return payload

    def kept(self, personal: Any) -> Any:
        """What the scheme itself would have kept."""
        return personal

    @property
    def records(self) -> Records:
        """The scheme's own."""
        return self.inner.records

    @property
    def stateless(self) -> bool:
        """As the scheme is."""
        return self.inner.stateless

    def init_personal(self, task: Task, examples: int) -> Any:
        """As the scheme does."""
        return self.inner.init_personal(task, examples)

    def local_update(self, work: Work, payload: Any, personal: Any) -> tuple[Any, Any]:
        """As the scheme does."""
        return self.inner.local_update(work, self.received(payload), self.kept(personal))

    def predictor(self, work: Work, payload: Any, personal: Any) -> Tree:
        """As the scheme does."""
        return self.inner.predictor(work, self.received(payload), self.kept(personal))

    def shared(self, task: Task, payload: Any) -> Tree:
        """As the scheme does."""
        return self.inner.shared(task, self.received(payload))

    def begins_at(self, work: Work, payload: Any, personal: Any) -> Tree:
        """As the scheme does."""
        return self.inner.begins_at(work, self.received(payload), self.kept(personal))

    def newcomer(self, work: Work, payload: Any, shared: Tree) -> Tree:
        """As the scheme does."""
        return self.inner.newcomer(work, self.received(payload), shared)

    def diagnostics(self, personal: Any, shared: Tree) -> Tree:
        """As the scheme does."""
        return self.inner.diagnostics(self.kept(personal), shared)

    def init_server(self, task: Task) -> Any:
        """As the scheme does."""
        return self.inner.init_server(task)

    def downlink(self, server: Any, clients: Sequence[str]) -> Any:
        """As the scheme does."""
        return self.inner.downlink(self.server_of(server), clients)

    def upload_like(self, server: Any) -> Any:
        """As the scheme does."""
        return self.inner.upload_like(self.server_of(server))

    def unmoved(self, server: Any) -> Any:
        """As the scheme does."""
        return self.inner.unmoved(self.server_of(server))

    def aggregate(self, server: Any, uploads: Round[Any]) -> Any:
        """As the scheme does."""
        return self.server_with(self.inner.aggregate(self.server_of(server), uploads), server)

    def welcome(self, server: Any, federation: Federation) -> Any:
        """As the scheme does."""
        return self.server_with(self.inner.welcome(self.server_of(server), federation), server)

    def weigh(self, server: Any, weights: Mapping[str, float]) -> Mapping[str, float]:
        """As the scheme does."""
        return self.inner.weigh(self.server_of(server), weights)

    def advise(self, federation: Federation) -> str:
        """As the scheme does."""
        return self.inner.advise(federation)

    def draws(self, steps: int) -> int:
        """As the scheme does."""
        return self.inner.draws(steps)

    def adapts(self) -> int:
        """As the scheme does."""
        return self.inner.adapts()

    def looks(self) -> float:
        """As the scheme does."""
        return self.inner.looks()

    def personal_part(self, split: str) -> str:
        """As the scheme does."""
        return self.inner.personal_part(split)
