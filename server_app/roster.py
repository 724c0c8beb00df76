"""Which clients there are and where they live."""

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from logging import WARNING
from typing import cast

from flwr.app import ConfigRecord, Error, Message, MessageType, MetricRecord
from flwr.common.constant import ErrorCode
from flwr.common.logger import log
from flwr.serverapp import Grid
from torch import Tensor

from strategies.core import wire
from strategies.core.errors import BadInput, RunFailed
from strategies.core.seeding import generator
from strategies.core.trees import Tree
from strategies.settings import Settings

# Seconds between two looks at a SuperLink: each look is a request to another process.
DEPLOYED_PAUSE = 0.25
# Seconds after which Flower gives up on a reply that was sent by half.
HALF_SENT = 200.0


@dataclass(frozen=True)
class Facts:
    """What the server must know of the data to build the model; it never sees the data.

    Parameters
    ----------
    input_shape : tuple of int
        Of one example.
    classes : int
        0 for quadratic problems.
    init : Tensor or None
        Where the weights of a quadratic problem start.
    names : tuple of str
        What the classes are called; empty where nobody says.
    inputs : tuple of str
        What the inputs are called, likewise.
    """

    input_shape: tuple[int, ...]
    classes: int
    init: Tensor | None
    names: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Client:
    """A client as the server knows it.

    Parameters
    ----------
    id : str
        Its stable name.
    node : int
        Flower's id of the node that hosts it, another one in every run.
    place : int
        The node's place among the nodes, which are in order of their first clients.
    train_examples, test_examples : int
        How much data it has.
    labels : tuple of int
        Examples of each label, where the user lets nodes tell.
    joins : int
        The round it appears in; 0 for a client that is there from the start.
    """

    id: str
    node: int
    place: int
    train_examples: int
    test_examples: int
    labels: tuple[int, ...] = ()
    joins: int = 0


@dataclass
class Roster:
    """The clients that have introduced themselves.

    Parameters
    ----------
    clients : dict
        By id.
    nodes : set of int
        Those that have answered.
    facts : Facts or None
        What they say of the data.
    asked : dict
        Nodes that have not answered yet, and the messages that asked them.
    expected : int
        How many nodes there are, by what they say.
    """

    clients: dict[str, Client] = field(default_factory=dict)
    nodes: set[int] = field(default_factory=set)
    facts: Facts | None = None
    asked: dict[int, str] = field(default_factory=dict)
    expected: int = 1

    def present(self, round_: int) -> dict[str, Client]:
        """The clients that are there in a round, in order of their ids."""
        return {one: who for one, who in sorted(self.clients.items()) if who.joins <= round_}

    def hold_back(self, count: int, until: int) -> None:
        """Let the last clients appear in a later round."""
        for one in sorted(self.clients)[len(self.clients) - count :]:
            self.clients[one] = replace(self.clients[one], joins=until)

    def sample(self, count: int, seed: int, round_: int) -> list[Client]:
        """A round's clients: drawn from the sorted ids by the seed and the round alone."""
        ids = list(self.present(round_))
        if count and count < len(ids):
            chosen = generator(seed, "sample", round_).choice(len(ids), count, replace=False)
            ids = [ids[place] for place in sorted(chosen)]
        return [self.clients[one] for one in ids]

    def update(
        self,
        grid: Grid,
        settings: Settings,
        state_dir: str,
        stop: threading.Event,
        deployed: bool = False,
    ) -> None:
        """Ask nodes that are new which clients they host, and wait until enough are there.

        A simulation has enough when all nodes have answered. A deployment has when
        ``min-clients`` have; from then on nobody waits for a device's introduction.
        """
        limit, least = time.monotonic() + 60.0, settings.run.min_clients if deployed else 1
        while True:
            online = set(grid.get_node_ids())
            self._ask(grid, settings, state_dir, online)
            for reply in list(grid.pull_messages(set(self.asked.values()))) if self.asked else []:
                answered = reply.metadata.reply_to_message_id
                self.asked = {node: one for node, one in self.asked.items() if one != answered}
                if lost(reply):  # if it comes back, it is asked again
                    continue
                try:
                    self.expected = max(self.expected, self._welcome(reply, online))
                except (BadInput, RunFailed) as error:
                    if not (deployed and self._enough(least)):
                        raise
                    log(WARNING, "A node is left out: %s", error)
            if self._enough(least) and (deployed or not self.asked):
                return
            if time.monotonic() > limit and not (deployed or self.asked):
                raise RunFailed("No node has introduced itself within 60 seconds.")
            pause(DEPLOYED_PAUSE if deployed else 0.005, stop)

    def _enough(self, least: int) -> bool:
        return len(self.nodes) >= self.expected and len(self.clients) >= max(1, least)

    def _ask(self, grid: Grid, settings: Settings, state_dir: str, online: set[int]) -> None:
        """Ask the nodes that are new; a node that left before it answered is forgotten."""
        self.asked = {node: one for node, one in self.asked.items() if node in online}
        fresh = sorted(online - self.nodes - self.asked.keys())
        note = ConfigRecord({"state-dir": state_dir})
        asks = [message(settings, node, MessageType.QUERY, 0, {}, note) for node in fresh]
        self.asked |= zip(fresh, grid.push_messages(asks) if asks else (), strict=True)

    def _welcome(self, reply: Message, online: set[int]) -> int:
        """Take in a node; returns how many nodes it says there are."""
        node = reply.metadata.src_node_id
        if reply.has_error():
            raise RunFailed(f"A node could not introduce itself: {reply.error.reason}")
        note = reply.content.config_records[wire.NOTE]
        if "refused" in note:
            raise BadInput(str(note["refused"]))
        if "warning" in note:
            log(WARNING, "%s", note["warning"])
        metrics = reply.content.metric_records[wire.METRICS]
        arrays = wire.unpack(reply.content.array_records[wire.ARRAYS])
        shape = tuple(cast(list[int], metrics["input_shape"]))
        facts = Facts(
            shape,
            cast(int, metrics["classes"]),
            arrays.get("init"),
            tuple(cast(list[str], note.get("class-names", []))),
            tuple(cast(list[str], note.get("input-names", []))),
        )
        if self.facts is not None and facts.input_shape != self.facts.input_shape:
            raise BadInput(
                f"Nodes disagree on the data's shape: {facts.input_shape} and "
                f"{self.facts.input_shape}."
            )
        if self.facts is not None and facts.names != self.facts.names:
            raise BadInput("Nodes disagree on the classes' names: classes.txt must be one for all.")
        if self.facts is not None and facts.inputs != self.facts.inputs:
            raise BadInput(
                "Nodes disagree on the columns of inputs or their order: name them in data.columns."
            )
        self.facts = self.facts or facts
        self.nodes.add(node)
        train = cast(list[int], metrics["train_examples"])
        test = cast(list[int], metrics["test_examples"])
        labels = cast(list[int], metrics.get("label_counts", []))
        for place, client in enumerate(cast(list[str], note["clients"])):
            before = self.clients.get(client)
            if before is not None and before.node in online - {node}:
                log(WARNING, "Node %s says it is client %s, which is there already.", node, client)
                continue
            if before is not None:  # a device that was restarted without a key is a new node
                log(WARNING, "Client %s is now on node %s.", client, node)
            own = tuple(labels[place * facts.classes : (place + 1) * facts.classes])
            joins = 0 if before is None else before.joins
            self.clients[client] = Client(client, node, 0, train[place], test[place], own, joins)
        self._settle_places()
        return cast(int, metrics["nodes"])

    def _settle_places(self) -> None:
        """Number the nodes in order of their first clients: the same in every run and engine."""
        places: dict[int, int] = {}
        for one in sorted(self.clients):
            who = self.clients[one]
            place = places.setdefault(who.node, len(places))
            self.clients[one] = replace(who, place=place)


def by_node(clients: Iterable[Client]) -> dict[int, list[Client]]:
    """Clients grouped by node, nodes and clients in an order that is the same in every run."""
    groups: dict[int, list[Client]] = {}
    for client in sorted(clients, key=lambda one: (one.place, one.id)):
        groups.setdefault(client.node, []).append(client)
    return groups


def message(
    settings: Settings, node: int, kind: str, round_: int, tree: Tree, note: ConfigRecord
) -> Message:
    """A message to a node; the round is Flower's group id."""
    content = wire.content(tree, MetricRecord(), note)
    content[wire.SETTINGS] = ConfigRecord(dict(settings.flat()))
    timeout = settings.run.round_timeout
    ttl = timeout + HALF_SENT if timeout else None
    return Message(content, node, kind, ttl=ttl, group_id=str(round_))


def exchange(
    grid: Grid,
    messages: Sequence[Message],
    timeout: float,
    stop: threading.Event,
    least: float = 0.002,
) -> list[Message]:
    """Send messages and wait for the replies.

    Flower's own ``send_and_receive`` looks every 0.1 s (3 s in a deployment); this
    one looks often at first and ever more rarely, so that it adds 2% at most. A message that a
    node lost, because its app was killed or it was itself and is there again, is sent once more.

    Parameters
    ----------
    grid : Grid
        Flower's.
    messages : sequence of Message
        One a node.
    timeout : float
        Seconds; 0 for as long as it takes. A reply that comes later is never read.
    stop : Event
        Set when the run is to end at once.
    least : float
        Seconds between two looks, at least.
    """
    waiting = dict(zip(grid.push_messages(messages), messages, strict=True))
    started = time.monotonic()
    replies: list[Message] = []
    again: set[str] = set()
    while waiting:
        # A look can take minutes: Flower waits for a reply that a killed node sent half of. What
        # the others sent meanwhile is found by a last look, however late.
        last = timeout and time.monotonic() - started > timeout
        for reply in grid.pull_messages(set(waiting)):
            which = reply.metadata.reply_to_message_id
            asked = waiting.pop(which)
            if not lost(reply):
                replies.append(reply)
            elif which in again or asked.metadata.dst_node_id not in set(grid.get_node_ids()):
                replies.append(unanswered(asked, reply.error.reason))
            else:
                (new,) = grid.push_messages([once_more(asked)])
                waiting[new] = asked
                again.add(new)
        if last:
            break
        if waiting:
            pause(min(max(least, 0.02 * (time.monotonic() - started)), 1.0), stop)
    return replies


def lost(reply: Message) -> bool:
    """Whether a reply is the SuperLink's or the SuperNode's word that there will be none."""
    return reply.has_error() and reply.error.code in (
        ErrorCode.NODE_UNAVAILABLE,
        ErrorCode.CLIENT_APP_CRASHED,
    )


def once_more(asked: Message) -> Message:
    """The same message; a node that has done what it asks for answers as it did."""
    data = asked.metadata
    return Message(
        asked.content, data.dst_node_id, data.message_type, ttl=data.ttl, group_id=data.group_id
    )


def unanswered(asked: Message, why: str | None) -> Message:
    """A reply in place of a node that gave none: the SuperLink's own does not name the node."""
    return Message(Error(ErrorCode.NODE_UNAVAILABLE, why), reply_to=asked)


def pause(seconds: float, stop: threading.Event) -> None:
    """Wait, unless the run is to end."""
    if stop.wait(seconds):
        raise RunFailed("The run was interrupted.")
