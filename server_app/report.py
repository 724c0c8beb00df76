"""What came of messages to nodes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from logging import WARNING

from bouquet.flower.private import log
from bouquet.server_app.replies import Reply


@dataclass
class Report:
    """What came of a round's messages.

    Parameters
    ----------
    clients : list of str
        Those whose replies counted.
    failures : dict
        The others, and why.
    diverged : list of str
        Those among the failures whose training gave NaN or infinity.
    scores : dict
        Each client's numbers: ``{client: {"shared_loss": ...}}``.
    seconds : dict
        The slowest node's time by kind of work.
    nodes : dict
        The seconds each node that was asked worked, by its place; None for one that was silent.
    clipped : list of str
        Those whose uploads were too long, and were cut.
    bytes_up, bytes_down : int
        Of the messages' contents.
    """

    clients: list[str] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    diverged: list[str] = field(default_factory=list)
    scores: dict[str, dict[str, float]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    nodes: dict[int, float | None] = field(default_factory=dict)
    clipped: list[str] = field(default_factory=list)
    bytes_up: int = 0
    bytes_down: int = 0

    def note(self, round_: int, reply: Reply, asked: Sequence[str]) -> None:
        """Take in what a valid reply says of the clients its node was asked about."""
        self.clients += reply.clients
        self.diverged += reply.diverged
        for name, values in reply.scores.items():
            for client, value in zip(reply.clients, values, strict=True):
                self.scores.setdefault(client, {})[name] = value
        for what, spent in reply.seconds.items():
            self.seconds[what] = max(self.seconds.get(what, 0.0), spent)
        for client, reason in reply.failures.items():
            self.fail(round_, [client], reason)
        named = {*reply.clients, *reply.failures}
        unnamed = [client for client in asked if client not in named]
        if unnamed:
            self.fail(round_, unnamed, "its node's reply says nothing about it")

    def fail(self, round_: int, clients: Sequence[str], reason: str) -> None:
        """Note and log why clients are left out."""
        self.failures |= dict.fromkeys(clients, reason)
        log(WARNING, "Round %s: left out client %s: %s", round_, ", ".join(clients), reason)

    def drop(self, round_: int, clients: Sequence[str], reason: str) -> None:
        """Leave out clients whose replies would have counted."""
        self.clients = [one for one in self.clients if one not in clients]
        for client in clients:
            self.scores.pop(client, None)
        self.fail(round_, clients, reason)
        self.sort()

    def sort(self) -> None:
        """Order by client, not by who was heard of first."""
        self.clients.sort()
        self.failures = dict(sorted(self.failures.items()))
