"""Which clients there are and where they live."""

import functools
import itertools
import math
import reprlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from logging import INFO, WARNING

from flwr.app import ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid

from bouquet.bound import clients_of
from bouquet.core.config import Scalar
from bouquet.core.errors import BadInput, RunFailed
from bouquet.core.seeding import generator
from bouquet.core.trees import Tree
from bouquet.flower import wire
from bouquet.flower.exchange import (
    DEPLOYED_PAUSE,
    HALF_SENT,
    lost,
    named_nodes,
    pause,
    pull,
    push,
)
from bouquet.flower.private import fetching_at_most, log
from bouquet.server_app.replies import (
    LARGEST_INTRODUCTION,
    MOST_EXAMPLES,
    Facts,
    Introduction,
    Refused,
    read_introduction,
)
from bouquet.settings import Settings

# Seconds that a simulation waits for its nodes.
PATIENCE = 60.0
# Seconds after which devices that were left out are asked again, while too few are there.
ASK_AGAIN = 30.0


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


@dataclass(frozen=True)
class _Presence:
    """Who of everybody is there, from a round until somebody else comes."""

    everybody: dict[str, Client]
    first: int
    until: float
    there: dict[str, Client]


@dataclass(frozen=True)
class _Voice:
    """Nodes that say the same of the data, and their introductions."""

    facts: Facts
    said: dict[int, Introduction]


@dataclass
class Roster:
    """The clients that have introduced themselves.

    Parameters
    ----------
    clients : dict
        By id. It is replaced when anybody comes or moves, and never written to: as long as it is
        the same one, nothing has to be worked out again for those who sit idle.
    nodes : set of int
        Those that have answered.
    facts : Facts or None
        What most of them say of the data; from the first round on it stays as it is.
    asked : dict
        Nodes that have not answered yet, and the messages that asked them.
    expected : int
        How many nodes there are, by what they say; of devices it is never known.
    left_out : dict
        Nodes whose introduction was no good, and why; they are asked again in the next round.
    markers : list of str
        Files that a simulated node must see before it does anything: else it would write where
        the run does not read.
    bound : dict
        The clients that nodes' keys are registered for, of nodes that ever were there.
    begun : bool
        Whether enough were there once.
    refusals : dict
        Nodes that were left out since somebody last asked for the news, and why.
    """

    clients: dict[str, Client] = field(default_factory=dict)
    nodes: set[int] = field(default_factory=set)
    facts: Facts | None = None
    asked: dict[int, str] = field(default_factory=dict)
    expected: int = 1
    left_out: dict[int, BadInput | RunFailed] = field(default_factory=dict)
    markers: list[str] = field(default_factory=list)
    bound: dict[int, set[str]] = field(default_factory=dict)
    begun: bool = False
    refusals: dict[int, str] = field(default_factory=dict)
    _voices: list[_Voice] = field(default_factory=list, repr=False)
    _presence: _Presence = field(default_factory=lambda: _Presence({}, 0, 0, {}), repr=False)
    # The nodes by their places, worked out for a table of clients.
    _places: tuple[dict[str, Client], list[tuple[int, int]]] = field(
        default_factory=lambda: ({}, []), repr=False
    )

    @property
    def marked(self) -> dict[str, list[str]]:
        """What a message says of markers."""
        return {"markers": self.markers} if self.markers else {}

    def present(self, round_: int) -> dict[str, Client]:
        """The clients that are there in a round, in order of their ids; not to be written to."""
        known = self._presence
        if known.everybody is not self.clients or not known.first <= round_ < known.until:
            there = {one: who for one, who in sorted(self.clients.items()) if who.joins <= round_}
            later = (who.joins for who in self.clients.values() if who.joins > round_)
            self._presence = _Presence(self.clients, round_, min(later, default=math.inf), there)
        return self._presence.there

    def hold_back(self, count: int, until: int) -> None:
        """Let the last clients appear in a later round."""
        late = sorted(self.clients)[len(self.clients) - count :]
        self.clients = self.clients | {one: replace(self.clients[one], joins=until) for one in late}

    def sample(self, count: int, seed: int, round_: int) -> list[Client]:
        """A round's clients: drawn from the sorted ids by the seed and the round alone."""
        ids = list(self.present(round_))
        if count and count < len(ids):
            chosen = generator(seed, "sample", round_).choice(len(ids), count, replace=False)
            ids = [ids[place] for place in sorted(chosen)]
        return [self.clients[one] for one in ids]

    def dealt(self, chosen: Sequence[Client]) -> list[Client]:
        """Clients, in order of their ids, dealt out to the nodes in turn.

        Where everybody takes part, that is where they are; else nodes have equally many of them,
        and none waits for another.
        """
        everybody, places = self._places
        if everybody is not self.clients:  # else nobody came or moved
            places = sorted({who.place: who.node for who in self.clients.values()}.items())
            self._places = (self.clients, places)
        return [
            replace(who, node=node, place=place)
            for who, (place, node) in zip(chosen, itertools.cycle(places), strict=False)
        ]

    def update(
        self,
        grid: Grid,
        settings: Settings,
        state_dir: str,
        stop: threading.Event,
        deployed: bool = False,
        tell: Callable[[str], None] = lambda words: None,
    ) -> None:
        """Ask nodes that are new which clients they host, and wait until enough are there.

        A simulation has enough when all nodes have answered. A deployment has when
        ``min-clients`` have; from then on nobody waits for a device's introduction. A node whose
        introduction is no good is left out. If too few are left, a simulation ends with the
        reason; a deployment waits for others, and asks those again, unless the nodes that it
        left out are all there are and would have been enough. In a simulation, where all nodes
        have the same user, what a node says is wrong with the input ends it at once. ``tell`` is
        told what a deployment waits for, and nothing once it no longer waits.
        """
        limit, least = time.monotonic() + PATIENCE, settings.run.min_clients if deployed else 1
        again = time.monotonic() + ASK_AGAIN
        most = settings.run.max_examples if deployed else MOST_EXAMPLES
        self.left_out = {}
        told = ""
        while True:
            if deployed and time.monotonic() > again:
                self.left_out, again = {}, time.monotonic() + ASK_AGAIN
            names = named_nodes(grid, stop)
            online = set(names)
            self.bound |= {
                n: set(clients_of(name)) for n, name in names.items() if clients_of(name)
            }
            self._ask(grid, settings, state_dir, online, stop)
            node_of = {one: node for node, one in self.asked.items()}
            for reply in self._pulled(grid, set(node_of), stop):
                node = node_of[reply.metadata.reply_to_message_id]
                del self.asked[node]
                if lost(reply):  # if it comes back, it is asked again
                    continue
                try:
                    found = _introduction(reply, most)
                    self._check_claims(node, found)
                    self.expected = max(self.expected, 1 if deployed else found.nodes)
                    self._hear(node, found, online)
                except (BadInput, RunFailed) as error:
                    if isinstance(error, BadInput) and not deployed:
                        raise
                    self._leave_out(node, error)
            if self._enough(least) and (deployed or not self.asked):
                self.begun = True
                self._voices.clear()
                if deployed:
                    tell("")
                return
            if deployed and (words := self._waits_for(least)) != told:
                told = words
                log(INFO, "%s", words)
                tell(words)
            if deployed:
                self._give_up_devices(online, least)
            else:
                self._give_up(time.monotonic() > limit)
            pause(DEPLOYED_PAUSE if deployed else 0.005, stop)

    def _waits_for(self, least: int) -> str:
        there = f"Waiting for clients: {len(self.clients)} of {least} are there."
        no_good = (self._named(node) for node in self.refusals.keys() - self.nodes)
        return " ".join([there, *sorted(no_good)])

    def _named(self, node: int) -> str:
        whose = ", ".join(sorted(self.bound.get(node, ()))) or "of no client by its key"
        return f"Node {node} ({whose}) is left out: {self.refusals[node]}"

    def _pulled(self, grid: Grid, asked: set[str], stop: threading.Event) -> list[Message]:
        with fetching_at_most(grid, LARGEST_INTRODUCTION):
            return pull(grid, asked, stop) if asked else []

    def _enough(self, least: int) -> bool:
        answered = len(self.nodes | self.left_out.keys())
        return answered >= self.expected and len(self.clients) >= max(1, least)

    def take_refusals(self) -> dict[int, str]:
        """Nodes that were left out since this was last called, and why."""
        news, self.refusals = self.refusals, {}
        return news

    def _leave_out(self, node: int, error: BadInput | RunFailed) -> None:
        self.left_out[node] = error
        self.refusals[node] = str(error)
        log(WARNING, "%s", self._named(node))

    def _give_up_devices(self, online: set[int], least: int) -> None:
        """End a deployment whose devices are there and all no good: one bad device ends none."""
        alone = not self.clients and online <= self.left_out.keys()
        if alone and sum(len(self.bound.get(n, {n})) for n in self.left_out) >= max(1, least):
            raise next(iter(self.left_out.values()))

    def _give_up(self, late: bool) -> None:
        """End a simulation that waits in vain: too many were left out, or nodes do not come."""
        answered = self.nodes | self.left_out.keys()
        if self.left_out and not self.asked and len(answered) >= self.expected:
            raise next(iter(self.left_out.values()))
        if late and not self.asked:
            raise RunFailed(
                f"Of {self.expected} nodes, {len(answered)} introduced themselves within "
                f"{PATIENCE:.0f} seconds."
            )

    def _ask(
        self,
        grid: Grid,
        settings: Settings,
        state_dir: str,
        online: set[int],
        stop: threading.Event,
    ) -> None:
        """Ask the nodes that are new; a node that left before it answered is forgotten."""
        self.asked = {node: one for node, one in self.asked.items() if node in online}
        self.left_out = {node: why for node, why in self.left_out.items() if node in online}
        fresh = sorted(online - self.nodes - self.asked.keys() - self.left_out.keys())
        note = ConfigRecord({"state-dir": state_dir, **self.marked})
        asks = [message(settings, node, MessageType.QUERY, 0, {}, note) for node in fresh]
        sent = zip(fresh, push(grid, asks, stop) if asks else (), strict=True)
        self.asked |= {node: one for node, one in sent if one is not None}

    def _check_claims(self, node: int, found: Introduction) -> None:
        """Refuse a node that says it hosts another's client, whether the other is there or not.

        A key that is bound to no clients may have those that no other is bound to.
        """
        claimed, own = {who.id for who in found.clients}, self.bound.get(node)
        others = set[str]().union(*self.bound.values())
        strange = sorted(claimed & others if own is None else claimed - own)
        if strange:
            raise RunFailed(
                f"It says it hosts {reprlib.repr(', '.join(strange))}, which its key is not "
                "registered for."
            )

    def _hear(self, node: int, found: Introduction, online: set[int]) -> None:
        """Take in a node that says of the data what most do, not what the first happened to say.

        Once a round has been, nobody outvotes those who were there.
        """
        if found.warning:
            log(WARNING, "%s", found.warning)
        if self.begun:
            self._check_agreement(found.facts)
            self._welcome(node, found, online)
            return
        for voice in self._voices:  # it may have said something else when it was asked before
            voice.said.pop(node, None)
        agreeing = [voice for voice in self._voices if not found.facts.differs(voice.facts)]
        if not agreeing:
            agreeing = [_Voice(found.facts, {})]
            self._voices += agreeing
        agreeing[0].said[node] = found
        most = max(self._voices, key=lambda voice: len(voice.said))
        if most.facts is self.facts:
            self._check_agreement(found.facts)
            self._welcome(node, found, online)
        else:  # the first node, or one that tips the scales
            self._follow(most, online)

    def _follow(self, most: _Voice, online: set[int]) -> None:
        """Take in those who now are the most, and leave out who was there before."""
        before, self.facts, self.nodes, self.clients = self.nodes, most.facts, set(), {}
        for node in before:
            self._leave_out(node, RunFailed("Most nodes say something else of the data."))
        for node, found in most.said.items():
            self.left_out.pop(node, None)
            self._welcome(node, found, online)

    def _check_agreement(self, facts: Facts) -> None:
        disagreement = facts.differs(self.facts) if self.facts else ""
        if disagreement:
            raise RunFailed(f"Nodes disagree on {disagreement}.")

    def _welcome(self, node: int, found: Introduction, online: set[int]) -> None:
        """Take in a node's clients."""
        self.nodes.add(node)
        clients = dict(self.clients)
        for who in found.clients:
            before = clients.get(who.id)
            if before is not None and before.node in online - {node}:
                log(WARNING, "Node %s says it is client %s, which is there already.", node, who.id)
                continue
            if before is not None:  # a device that was restarted without a key is a new node
                log(WARNING, "Client %s is now on node %s.", who.id, node)
            joins = 0 if before is None else before.joins
            clients[who.id] = Client(
                who.id, node, 0, who.train_examples, who.test_examples, who.labels, joins
            )
        self.clients = _settled(clients)


def _introduction(reply: Message, most_examples: int) -> Introduction:
    try:
        return read_introduction(reply, most_examples)
    except Refused as why:
        raise RunFailed(f"A node could not introduce itself: {why}") from why


def _settled(clients: dict[str, Client]) -> dict[str, Client]:
    """Number the nodes in order of their first clients: the same in every run and engine."""
    places: dict[int, int] = {}
    settled = {}
    for one, who in sorted(clients.items()):
        place = places.setdefault(who.node, len(places))
        settled[one] = who if who.place == place else replace(who, place=place)
    return settled


def by_node(clients: Iterable[Client]) -> dict[int, list[Client]]:
    """Clients grouped by node, nodes and clients in an order that is the same in every run."""
    groups: dict[int, list[Client]] = {}
    for client in sorted(clients, key=lambda one: (one.place, one.id)):
        groups.setdefault(client.node, []).append(client)
    return groups


def common_parts(settings: ConfigRecord, tree: Tree) -> RecordDict:
    """What messages of a round have in common, packed once for all nodes."""
    content = wire.content(tree, MetricRecord(), ConfigRecord())
    content[wire.SETTINGS] = settings
    return content


def packed(settings: Settings) -> ConfigRecord:
    """Settings for messages. Flower looks at every key and value of a record: make it once."""
    return ConfigRecord(dict(_flat(settings)))


@functools.lru_cache(maxsize=8)
def _flat(settings: Settings) -> dict[str, Scalar]:
    return settings.flat()


def message(
    settings: Settings, node: int, kind: str, round_: int, tree: Tree, note: ConfigRecord
) -> Message:
    """A message to a node that is the only one of its kind."""
    return addressed(settings, node, kind, round_, common_parts(packed(settings), tree), note)


def addressed(
    settings: Settings, node: int, kind: str, round_: int, common: RecordDict, note: ConfigRecord
) -> Message:
    """A message to a node; the round is Flower's group id."""
    content = RecordDict(dict(common) | {wire.NOTE: note})
    timeout = settings.run.round_timeout
    ttl = timeout + HALF_SENT if timeout else None
    return Message(content, node, kind, ttl=ttl, group_id=str(round_))
