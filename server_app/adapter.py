"""The one Flower strategy that all schemes run through.

It turns a scheme's pure functions into messages and checks every reply before the
scheme sees it: what is an error, late, not finite, of the wrong shape or from a
client that was not asked is counted, logged and left out, and the round goes on.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from logging import INFO, WARNING
from typing import Any, cast

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from client_app.node import POOL
from server_app.roster import Client, Roster, by_node, lost, message
from strategies.core import wire
from strategies.core.scheme import Federation, Member, Round
from strategies.core.task import Task
from strategies.core.trees import Tree, fingerprint, flatten, unflatten
from strategies.settings import Settings
from strategies.stages import Stage


class Refused(Exception):
    """A reply that is left out, and why."""


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
    bytes_up, bytes_down : int
        Of the messages' contents.
    """

    clients: list[str] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    diverged: list[str] = field(default_factory=list)
    scores: dict[str, dict[str, float]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    nodes: dict[int, float | None] = field(default_factory=dict)
    bytes_up: int = 0
    bytes_down: int = 0


class SchemeStrategy(Strategy):
    """A scheme as a Flower strategy.

    Parameters
    ----------
    settings : Settings
        Of the run.
    task : Task
        Model and loss; the data stay on the nodes.
    roster : Roster
        The clients there are.
    state_dir, predictors_dir : str
        Where simulated nodes keep personal state and write final models.
    server : record, optional
        The scheme's server state to go on from.
    stage : Stage, optional
        The stage this is of; the whole run without a pipeline.
    warm : bool
        Whether the task starts from another stage's weights, which nodes must be told.
    outcomes_dir : str
        Where simulated nodes write which examples their clients' models get right.
    diagnostics_dir : str
        Where simulated nodes write numbers about personal states; empty for real devices.
    """

    def __init__(
        self,
        settings: Settings,
        task: Task,
        roster: Roster,
        state_dir: str = "",
        predictors_dir: str = "",
        server: Any = None,
        stage: Stage | None = None,
        warm: bool = False,
        outcomes_dir: str = "",
        diagnostics_dir: str = "",
    ) -> None:
        scheme = settings.scheme
        self.stage = stage or settings.stages[0]
        self.settings, self.task, self.roster = settings, task, roster
        self.state_dir, self.predictors_dir = state_dir, predictors_dir
        self.outcomes_dir, self.diagnostics_dir = outcomes_dir, diagnostics_dir
        self.server = scheme.init_server(settings.scheme_config, task) if server is None else server
        self.report = Report()
        self.federation = Federation()
        # Clients start personal weights from it; shared ones arrive anyway.
        named = task.personal if scheme.splits else set(task.initial) if scheme.stateful else set()
        self._warm = {name: task.initial[name] for name in sorted(named)} if warm else {}
        self._asked: dict[int, list[Client]] = {}
        self._weights: Mapping[str, float] = {}
        self._kind = ""

    def payload(self, clients: Sequence[str]) -> Any:
        """What goes to some clients now."""
        return self.settings.scheme.downlink(self.settings.scheme_config, self.server, clients)

    @property
    def shared(self) -> Tree:
        """The model the server holds, as every client would use it unchanged."""
        scheme, config = self.settings.scheme, self.settings.scheme_config
        return scheme.shared(config, self.task, self.payload(list(self.federation.members)[:1]))

    def gather(self, round_: int) -> None:
        """Find out who is there in a round, and let the scheme welcome those who are new."""
        run, scheme = self.settings.run, self.settings.scheme
        present = self.roster.present(round_)
        if present.keys() == self.federation.members.keys():
            return
        members = {
            one: Member(who.train_examples, self._due(who), who.labels)
            for one, who in present.items()
        }
        self.federation = Federation(
            members,
            self.settings.model.name,
            run.lr,
            run.local_steps,
            run.local_epochs,
            run.clients_per_round,
            run.seed,
        )
        warning = scheme.advise(self.settings.scheme_config, self.federation)
        if warning:
            log(WARNING, warning)
        self.server = scheme.welcome(self.settings.scheme_config, self.server, self.federation)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """One message a node, naming its sampled clients.

        ``arrays`` is not needed: the scheme's server state says what to send.
        """
        run = self.settings.run
        self.gather(server_round)
        chosen = self.roster.sample(run.clients_per_round, run.seed, server_round)
        if self.settings.scheme.pooled:
            chosen = [_pool(chosen)]
        return self._messages(MessageType.TRAIN, server_round, chosen, {})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """One message a node, naming all its clients that are there."""
        return self.ask_scores(server_round, self.roster.present(server_round).values())

    def ask_scores(
        self, server_round: int, clients: Iterable[Client], adapt: int = -1
    ) -> list[Message]:
        """One message a node to evaluate some clients.

        With ``adapt`` of at least 0 they are newcomers that first adapt to the frozen
        server's model by that many rounds' local work.
        """
        run = self.settings.run
        last = server_round >= run.rounds
        note = {
            "predictors-dir": self.predictors_dir if last and run.save_predictors else "",
            "outcomes-dir": self.outcomes_dir if last and run.save_outcomes else "",
            "adapt": adapt,
        }
        return self._messages(MessageType.EVALUATE, server_round, clients, note)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Take in a round's replies, and return what Flower's own loop wants to know."""
        self.take_in(server_round, replies)
        return wire.pack(self.shared), self._metrics()

    def take_in(self, server_round: int, replies: Iterable[Message]) -> None:
        """Give the scheme the mean of the valid uploads; without any, nothing changes."""
        scheme, config = self.settings.scheme, self.settings.scheme_config
        parts: list[tuple[float, list[str], Tree]] = []
        for reply in self._valid(server_round, replies):
            arrays = wire.unpack(reply.content.array_records[wire.ARRAYS])
            parts.append((self._weight(reply), self._clients_of(reply), arrays))
        if parts:
            clients = [client for _, named, _ in parts for client in named]
            uploads = Round(
                unflatten(scheme.upload, self._united(parts, clients)),
                tuple(sorted(clients)),
                self.federation,
                server_round,
            )
            self.server = scheme.aggregate(config, self.server, uploads)
        else:
            log(
                WARNING, "Round %s had no valid reply: the weights stay as they were.", server_round
            )

    def _united(self, parts: list[tuple[float, list[str], Tree]], clients: list[str]) -> Tree:
        """The nodes' means as one mean, and their rows as one table in order of the clients."""
        total = sum(weight for weight, _, _ in parts)
        order = sorted(range(len(clients)), key=lambda place: clients[place])
        united: Tree = {}
        for name, value in parts[0][2].items():
            if name.partition("/")[0] in self.settings.scheme.each:
                united[name] = torch.cat([tree[name] for _, _, tree in parts])[order]
            else:
                shares = [weight / total * tree[name].double() for weight, _, tree in parts]
                united[name] = torch.stack(shares).sum(dim=0).to(value.dtype)
        return united

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Collect every client's scores."""
        for _ in self._valid(server_round, replies):
            pass
        return self._metrics()

    def summary(self) -> None:
        """Log what is about to run."""
        log(INFO, "%s with %s clients", self.settings.scheme.title, len(self.roster.clients))

    def _messages(
        self, kind: str, round_: int, clients: Iterable[Client], note: dict[str, Any]
    ) -> list[Message]:
        self.report = Report()
        scheme, config = self.settings.scheme, self.settings.scheme_config
        self._asked, self._kind = by_node(clients), kind
        due = {one.id: self._due(one) for group in self._asked.values() for one in group}
        training = kind == MessageType.TRAIN
        self._weights = scheme.weigh(config, self.server, due) if training else due
        common = None if scheme.own else flatten(self.payload([]))
        messages = []
        for node, group in self._asked.items():
            ids = [client.id for client in group]
            words = {
                "round": round_,
                "clients": ids,
                "weights": [self._weights[client] for client in ids],
                "state-dir": self.state_dir,
                "diagnostics-dir": self.diagnostics_dir,
                "lr": self.settings.lr_in(round_, self.stage),
                **note,
            }
            tree = flatten(self.payload(ids)) if common is None else common
            one = message(self.settings, node, kind, round_, tree, ConfigRecord(words))
            if self._warm:
                one.content[wire.WARM] = wire.pack(self._warm)
            messages.append(one)
        self.report.bytes_down = sum(wire.size(one.content) for one in messages)
        return messages

    def _due(self, client: Client) -> float:
        """A client's weight by the key ``weights``."""
        return 1.0 if self.settings.weights == "uniform" else float(client.train_examples)

    def _valid(self, round_: int, replies: Iterable[Message]) -> list[Message]:
        """The replies that count, in the order of the nodes; the rest goes into the report."""
        silent = dict(self._asked)
        self.report.nodes = {group[0].place: None for group in self._asked.values()}
        valid: dict[int, Message] = {}
        for reply in replies:
            node = reply.metadata.src_node_id
            asked = silent.pop(node, None)
            if asked is None:
                log(WARNING, "A reply of node %s in round %s was not asked for.", node, round_)
                continue
            self.report.nodes[asked[0].place] = None if lost(reply) else _seconds_of(reply)
            try:
                self._check(round_, reply, asked)
            except Refused as why:
                self._fail(round_, [client.id for client in asked], str(why))
                continue
            self._take_scores(reply)
            named = {*self.report.clients, *self.report.failures}
            unnamed = [client.id for client in asked if client.id not in named]
            if unnamed:
                self._fail(round_, unnamed, "its node's reply says nothing about it")
            if self._clients_of(reply):
                valid[node] = reply
        for asked in silent.values():
            self._fail(round_, [client.id for client in asked], "no reply in time")
        self.report.clients.sort()
        self.report.failures = dict(sorted(self.report.failures.items()))
        return [valid[node] for node in self._asked if node in valid]

    def _check(self, round_: int, reply: Message, asked: Sequence[Client]) -> None:
        """Refuse a reply whose content cannot be trusted."""
        if reply.has_error():
            raise Refused(reply.error.reason or "an error without a reason")
        if reply.metadata.message_type != self._kind:
            raise Refused(f"a reply to another kind of message, {reply.metadata.message_type}")
        try:
            note = reply.content.config_records[wire.NOTE]
            metrics = reply.content.metric_records[wire.METRICS]
            arrays = wire.unpack(reply.content.array_records[wire.ARRAYS])
            self.report.bytes_up += wire.size(reply.content)
            if note["round"] != round_:
                raise Refused(f"a late reply of round {note['round']!r}")
            clients = cast(list[str], note["clients"])
            failed = cast(list[str], note["failed"])
            reasons = cast(list[str], note["reasons"])
            if len(failed) != len(reasons) or not all(isinstance(one, str) for one in reasons):
                raise Refused("a malformed reply: failures without reasons")
            strangers = set(clients + failed) - {client.id for client in asked}
            if strangers:
                raise Refused(f"a reply for clients that were not asked: {sorted(strangers)}")
            if not set(cast(list[str], note["diverged"])) <= set(failed):
                raise Refused("a malformed reply: clients diverged that did not fail")
            if len(set(clients + failed)) != len(clients + failed):
                raise Refused("a reply that names a client twice")
            for name, values in metrics.items():
                if isinstance(values, list) and len(values) != len(clients):
                    raise Refused(f"a malformed reply: {name} has {len(values)} numbers")
            if clients and self._kind == MessageType.TRAIN:
                self._check_upload(self._weight(reply), arrays, clients)
        except Refused:
            raise
        except Exception as error:  # no bytes a node can send may end the run
            raise Refused(f"a malformed reply ({type(error).__name__}: {error})") from error

    def _check_upload(self, weight: float, arrays: Tree, clients: Sequence[str]) -> None:
        expected = sum(self._weights[client] for client in clients)
        if not math.isclose(weight, expected, rel_tol=1e-9):
            raise Refused(f"a weight of {weight} where {expected} is due")
        if fingerprint(arrays) != self._upload_shape(len(clients)):
            raise Refused("weights of the wrong names, shapes or types")
        if not all(bool(value.isfinite().all()) for value in arrays.values()):
            raise Refused("weights that are NaN or infinite")

    def _upload_shape(self, count: int) -> str:
        scheme, config = self.settings.scheme, self.settings.scheme_config
        like = flatten(scheme.upload_like(config, self.server))
        each = [name for name in like if name.partition("/")[0] in scheme.each]
        return fingerprint(like | {n: like[n].expand(count, *like[n].shape) for n in each})

    def _take_scores(self, reply: Message) -> None:
        note = reply.content.config_records[wire.NOTE]
        clients = self._clients_of(reply)
        self.report.clients += clients
        self.report.diverged += cast(list[str], note["diverged"])
        for name, values in reply.content.metric_records[wire.METRICS].items():
            if isinstance(values, list):
                for client, value in zip(clients, values, strict=True):
                    self.report.scores.setdefault(client, {})[name] = float(value)
            elif name.startswith("seconds_"):
                what = name.removeprefix("seconds_")
                self.report.seconds[what] = max(self.report.seconds.get(what, 0.0), float(values))
        reasons = zip(
            cast(list[str], note["failed"]), cast(list[str], note["reasons"]), strict=True
        )
        for client, reason in reasons:
            self._fail(cast(int, note["round"]), [client], reason)

    def _fail(self, round_: int, clients: Sequence[str], reason: str) -> None:
        for client in clients:
            self.report.failures[client] = reason
        log(WARNING, "Round %s: left out client %s: %s", round_, ", ".join(clients), reason)

    def _metrics(self) -> MetricRecord:
        """Means over the clients, as Flower's strategies report them."""
        names = dict.fromkeys(name for scores in self.report.scores.values() for name in scores)
        columns = {n: [s[n] for s in self.report.scores.values() if n in s] for n in names}
        return MetricRecord({name: sum(column) / len(column) for name, column in columns.items()})

    @staticmethod
    def _clients_of(reply: Message) -> list[str]:
        return cast(list[str], reply.content.config_records[wire.NOTE]["clients"])

    @staticmethod
    def _weight(reply: Message) -> float:
        return float(cast(float, reply.content.metric_records[wire.METRICS]["weight"]))


def _seconds_of(reply: Message) -> float:
    """How long a node worked, by its own reckoning; 0 where it does not say."""
    if reply.has_error():
        return 0.0
    told = reply.content.metric_records.get(wire.METRICS) or MetricRecord()
    spent = [value for name, value in told.items() if name.startswith("seconds_")]
    return float(sum(value for value in spent if isinstance(value, (int, float))))


def _pool(clients: Sequence[Client]) -> Client:
    """The one learner that has everybody's data, on the first node."""
    first = min(clients, key=lambda one: (one.place, one.id))
    examples = sum(client.train_examples for client in clients)
    return Client(POOL, first.node, first.place, examples, 0)
