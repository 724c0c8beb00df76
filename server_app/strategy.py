"""The one Flower strategy that all schemes run through.

It turns a scheme's pure functions into messages and checks every reply before the
scheme sees it: what is an error, late, not finite, of the wrong shape or from a
client that was not asked is counted, logged and left out, and the round goes on.
"""

import functools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from logging import INFO, WARNING
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from bouquet.core.errors import BadInput
from bouquet.core.measure import counts
from bouquet.core.round import Part, is_each, united, upload_shape
from bouquet.core.scheme import Federation, Member
from bouquet.core.task import Task
from bouquet.core.trees import Tree, fingerprint, flatten, is_finite, norm, plain
from bouquet.flower import wire
from bouquet.flower.exchange import lost
from bouquet.flower.private import is_deployed, log
from bouquet.problem import POOL
from bouquet.server_app.membership import (
    Client,
    Roster,
    addressed,
    by_node,
    common_parts,
    packed,
)
from bouquet.server_app.replies import Refused, Reply, largest, read_reply
from bouquet.server_app.report import Report
from bouquet.settings import Settings
from bouquet.stages import Stage
from bouquet.strategies.robust import Robust


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
    thawed : collection of str
        Frozen weights that an earlier stage trained: nodes must be told them, too.
    outcomes_dir : str
        Where simulated nodes write which examples their clients' models get right.
    diagnostics_dir : str
        Where simulated nodes write numbers about personal states; empty for real devices.
    anywhere : bool
        Whether any node can train any client: then those of a round are dealt out evenly.
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
        anywhere: bool = False,
        thawed: Collection[str] = (),
    ) -> None:
        scheme = settings.scheme
        self.stage = stage or settings.stages[0]
        self.settings, self.task, self.roster = settings, task, roster
        self.state_dir, self.predictors_dir = state_dir, predictors_dir
        self.outcomes_dir, self.diagnostics_dir = outcomes_dir, diagnostics_dir
        self._anywhere = anywhere
        self.server = scheme.init_server(task) if server is None else server
        self.report = Report()
        self.federation = Federation()
        self._present: Mapping[str, Client] | None = None
        # Clients start personal weights from it; shared ones arrive anyway.
        parts = scheme.personal_part(settings.personal.split) != "none"
        named = task.personal if parts else set(task.initial) if scheme.stateful else set()
        told = sorted({*named, *thawed}) if warm else ()
        self._warm = {name: task.whole_model[name] for name in told}
        if warm:  # an attention mask may hold infinities, which no message carries
            self._warm |= {n: v for n, v in task.constants.items() if is_finite({n: v})}
        self._asked: dict[int, list[Client]] = {}
        self._weights: Mapping[str, float] = {}
        self._kind = ""
        self._wanted = 0

    def payload(self, clients: Sequence[str]) -> Any:
        """What goes to some clients now."""
        return self.settings.scheme.downlink(self.server, clients)

    @property
    def shared(self) -> Tree:
        """The model the server holds, as every client would use it unchanged."""
        some = list(self.federation.members)[:1]
        return self.settings.scheme.shared(self.task, self.payload(some))

    def gather(self, round_: int) -> None:
        """Find out who is there in a round, and let the scheme welcome those who are new."""
        run, scheme = self.settings.run, self.settings.scheme
        present = self.roster.present(round_)
        if present is self._present:  # the usual case, which must not cost more with more clients
            return
        self._present = present
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
        warning = scheme.advise(self.federation)
        if warning:
            log(WARNING, warning)
        self.server = scheme.welcome(self.server, self.federation)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """One message a node, naming its sampled clients.

        ``arrays`` is not needed: the scheme's server state says what to send.
        """
        run = self.settings.run
        self.gather(server_round)
        wanted = run.clients_per_round
        # In a simulation nobody is late, and a run must not depend on who answers first.
        asked = over_selected(wanted, run.over_select) if is_deployed(grid) else wanted
        chosen = self.roster.sample(asked, run.seed, server_round)
        self._wanted = wanted if wanted < len(chosen) else 0
        if self.settings.scheme.pooled:
            chosen = [_pool(chosen)]
        elif self._anywhere:
            chosen = self.roster.dealt(chosen)
        return self._messages(MessageType.TRAIN, server_round, chosen, {})

    def enough(self, replies: Sequence[Message]) -> bool:
        """Whether as many clients have answered as a round wants, of more that were asked."""
        groups = [self._asked[one.metadata.src_node_id] for one in replies if not one.has_error()]
        return 0 < self._wanted <= sum(map(len, groups))

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
        return wire.named(self.shared), self._metrics()

    def take_in(self, server_round: int, replies: Iterable[Message]) -> None:
        """Give the scheme the mean of the valid uploads; without any, nothing changes.

        An upload may be finite and yet so large that the server's arithmetic overflows. Then
        the largest is left out, as if it had been refused, until what the server holds is finite.
        """
        parts = self._valid(server_round, replies)
        while parts:
            new = self._aggregated(server_round, parts)
            if new is not None:
                self.server = new
                return
            worst = max(parts, key=lambda part: float(norm(_all(part.arrays))))
            parts = [part for part in parts if part is not worst]
            reason = "weights so large that the server's would become NaN or infinite"
            self.report.drop(server_round, worst.clients, reason)
        log(WARNING, "Round %s had no valid reply: the weights stay as they were.", server_round)

    def _aggregated(self, round_: int, parts: Sequence[Reply]) -> Any:
        """The server's state after the scheme has taken in uploads; None if it is not finite."""
        scheme = self.settings.scheme
        with np.errstate(over="ignore", invalid="ignore"):
            shares = [Part(part.clients, part.weight, part.arrays) for part in parts]
            uploads = united(scheme, shares, self.federation, round_)
            try:
                new = scheme.aggregate(self.server, uploads)
            except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
                return None  # of a matrix that is not finite
        if not is_finite(flatten(new)):
            return None
        if isinstance(scheme, Robust):
            self.report.clipped = scheme.clipped(self.server, uploads)
        return new

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Collect every client's scores.

        A run that goes on without those that diverge has no mean that one of them can spoil.
        """
        self._valid(server_round, replies)
        if self.settings.run.on_divergence == "drop":
            for client in [one for one, found in self.report.scores.items() if _broken(found)]:
                self.report.drop(server_round, [client], "a loss or metric of NaN or infinity")
        return self._metrics()

    def summary(self) -> None:
        """Log what is about to run."""
        log(INFO, "%s with %s clients", self.settings.scheme.title, len(self.roster.clients))

    def _messages(
        self, kind: str, round_: int, clients: Iterable[Client], note: dict[str, Any]
    ) -> list[Message]:
        self.report = Report()
        scheme = self.settings.scheme
        self._asked, self._kind = by_node(clients), kind
        self._wanted = self._wanted if kind == MessageType.TRAIN else 0
        due = {one.id: self._due(one) for group in self._asked.values() for one in group}
        training = kind == MessageType.TRAIN
        self._weights = scheme.weigh(self.server, due) if training else due
        told, told_bytes = self._told
        common = common_parts(told, {} if scheme.payload_rows else flatten(self.payload([])))
        if self._warm:
            common[wire.WARM] = wire.pack(self._warm)
        messages = []
        for node, group in self._asked.items():
            ids = [client.id for client in group]
            words = {
                "round": round_,
                "clients": ids,
                "weights": [self._weights[client] for client in ids],
                "state-dir": self.state_dir,
                "diagnostics-dir": self.diagnostics_dir,
                **self.roster.marked,
                "lr": self.settings.lr_in(round_, self.stage),
                **({"first-round": self.stage.first} if self.settings.sgd.paced else {}),
                **note,
            }
            sent = addressed(self.settings, node, kind, round_, common, ConfigRecord(words))
            if scheme.payload_rows:
                sent.content[wire.ARRAYS] = wire.pack(flatten(self.payload(ids)))
            messages.append(sent)
        each = sum(wire.size(_apart(sent.content, common)) for sent in messages)
        shared = told_bytes + wire.size(_apart(common, {wire.SETTINGS: told}))
        self.report.bytes_down = shared * len(messages) + each
        return messages

    @functools.cached_property
    def _told(self) -> tuple[ConfigRecord, int]:
        """The settings as messages have them, the same in every round, and their bytes."""
        record = packed(self.settings)
        return record, wire.size(RecordDict({wire.SETTINGS: record}))

    def _due(self, client: Client) -> float:
        """A client's weight by the key ``weights``."""
        return 1.0 if self.settings.weights == "uniform" else float(client.train_examples)

    def _valid(self, round_: int, replies: Iterable[Message]) -> list[Reply]:
        """The replies that count, in the order of the nodes; the rest goes into the report."""
        report, silent = self.report, dict(self._asked)
        report.nodes = {group[0].place: None for group in self._asked.values()}
        valid = []
        turns = {node: turn for turn, node in enumerate(self._asked)}
        # Sums depend on the order of the clients, which must not be that of arrival.
        for answer in sorted(replies, key=lambda one: turns.get(one.metadata.src_node_id, -1)):
            node = answer.metadata.src_node_id
            asked = silent.pop(node, None)
            if asked is None:
                log(WARNING, "A reply of node %s in round %s was not asked for.", node, round_)
                continue
            ids = [client.id for client in asked]
            report.nodes[asked[0].place] = None if lost(answer) else 0.0
            try:
                reply = self._read(round_, answer, ids)
            except Refused as why:
                report.fail(round_, ids, str(why))
                continue
            except BadInput as error:
                if self.diagnostics_dir:  # a simulation, whose nodes have the run's own user
                    raise
                report.fail(round_, ids, str(error))
                continue
            report.nodes[asked[0].place] = sum(reply.seconds.values())
            report.note(round_, reply, ids)
            if reply.clients:
                valid.append(reply)
        late = "no reply in time" if not self._wanted else "no reply before enough others'"
        for asked in silent.values():
            report.fail(round_, [client.id for client in asked], late)
        report.sort()
        return valid

    def _read(self, round_: int, answer: Message, asked: Sequence[str]) -> Reply:
        """A reply whose content can be trusted."""
        measured, parts = self.task.measured, self.settings.parts
        most = self.most_bytes(len(asked))
        if not answer.has_error():
            self.report.bytes_up += _size(answer, most)
        reply = read_reply(answer, self._kind, round_, asked, measured, parts, most)
        uploads = reply.clients if self._kind == MessageType.TRAIN else []
        expected = sum(self._weights[client] for client in uploads)
        if not math.isclose(reply.weight, expected, rel_tol=1e-9):
            raise Refused(f"a weight of {reply.weight} where {expected} is due")
        if fingerprint(reply.arrays) != upload_shape(
            self.settings.scheme, self.server, len(uploads)
        ):
            raise Refused("weights of the wrong names, shapes or types")
        if not is_finite(reply.arrays):
            raise Refused("weights that are NaN or infinite")
        return reply

    @property
    def most_due(self) -> int:
        """Bytes that any reply to the last messages may have."""
        return max((self.most_bytes(len(group)) for group in self._asked.values()), default=0)

    def most_bytes(self, clients: int) -> int:
        """Bytes that a reply about so many clients may have."""
        if self._kind != MessageType.TRAIN:
            return largest(0, 0, clients)
        scheme = self.settings.scheme
        like = flatten(scheme.upload_like(self.server))
        sizes = [v.nbytes * (clients if is_each(scheme, n) else 1) for n, v in like.items()]
        return largest(sum(sizes), len(sizes), clients)

    def _metrics(self) -> MetricRecord:
        """Means over the clients, as Flower's strategies report them."""
        names = dict.fromkeys(name for scores in self.report.scores.values() for name in scores)
        columns = {
            name: [one[name] for one in self.report.scores.values() if counts(name, one[name])]
            for name in names
        }
        return MetricRecord({name: sum(one) / len(one) for name, one in columns.items() if one})


def over_selected(wanted: int, factor: float) -> int:
    """How many clients are asked so that enough answer soon; 0 for all."""
    return math.ceil(round(wanted * factor, 6))


def _apart(content: RecordDict, common: Mapping[str, Any]) -> RecordDict:
    """What a message has that others have not."""
    return RecordDict({name: one for name, one in content.items() if one is not common.get(name)})


def _all(arrays: Tree) -> Tree:
    """An upload whose statistics count like its weights."""
    return {plain(name): value for name, value in arrays.items()}


def _broken(scores: Mapping[str, float]) -> bool:
    """Whether a client's numbers are no numbers; a metric alone may be undefined."""
    return any(counts(name, value) and not math.isfinite(value) for name, value in scores.items())


def _size(reply: Message, most: int) -> int:
    """Bytes of a reply, which may hold what has no size; one that is too large is not packed."""
    try:
        found = wire.declared(reply.content)
        return found if found > most else wire.size(reply.content)
    except Exception:  # whatever Flower makes of it; reading the reply says what is wrong
        return 0


def _pool(clients: Sequence[Client]) -> Client:
    """The one learner that has everybody's data, on the first node."""
    first = min(clients, key=lambda one: (one.place, one.id))
    examples = sum(client.train_examples for client in clients)
    return Client(POOL, first.node, first.place, examples, 0)
