"""A node: the clients it hosts, their data and personal state, and their work.

Nothing here knows about messages; ``bouquet.client_app.main`` translates.
"""

import json
import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bouquet.augmentation import augmented
from bouquet.client_app.predictor import save_predictor
from bouquet.client_app.stores import Store
from bouquet.core import cohort
from bouquet.core.batches import Plan, chosen_of, draw, gather, paces
from bouquet.core.errors import BadInput
from bouquet.core.measure import prefix
from bouquet.core.placement import CPU, moved
from bouquet.core.round import Total, rows_of
from bouquet.core.scheme import Work
from bouquet.core.seeding import generator
from bouquet.core.task import Batch
from bouquet.core.trees import (
    Nothing,
    Tree,
    fingerprint,
    finite,
    flatten,
    pick,
    sha256,
    size_in_bytes,
    stack,
    unflatten,
)
from bouquet.problem import POOL, Problem
from bouquet.settings import Settings
from bouquet.storage.atomic import write_atomically
from bouquet.storage.files import OUTCOMES, BadFile, file_name, seal
from bouquet.storage.state import Identity, PersonalState
from bouquet.strategies.local_optimizers import side_by_side, without_moments

# States are saved many at a time, for a disk takes as long for one; but not more than this.
UNSAVED_BYTES = 64 * 2**20


@dataclass
class Result:
    """What a node found out in a round.

    Parameters
    ----------
    clients : list of str
        Those that did their work, in order.
    failures : dict
        The others, and why.
    diverged : list of str
        Those among the failures whose training gave NaN or infinity.
    mean : Tree
        Weighted mean of the uploads, flattened; of the fields that a scheme wants one by
        one, a row for each of ``clients``.
    weight : float
        Sum of their weights.
    metrics : dict
        For each measure a list with a number for each of ``clients``.
    diagnostics : dict
        The scheme's own numbers about personal states, likewise; no reply carries them.
    seconds : dict
        Where the time went.
    """

    clients: list[str] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    diverged: list[str] = field(default_factory=list)
    mean: Tree = field(default_factory=dict)
    weight: float = 0.0
    metrics: dict[str, list[float]] = field(default_factory=dict)
    diagnostics: dict[str, list[float]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=lambda: {"training": 0.0, "evaluation": 0.0})


@dataclass(frozen=True)
class Node:
    """A node at work.

    Parameters
    ----------
    settings : Settings
        Of the run.
    problem : Problem
        Data and task.
    clients : collection of str
        The clients it hosts.
    store : Store
        Their personal state.
    first : int
        The first round of the stage.
    update : callable
        Does a chunk's local updates, as :func:`bouquet.core.cohort.update`.
    """

    settings: Settings
    problem: Problem
    clients: Collection[str]
    store: Store
    first: int = 1
    update: Callable[..., tuple[Any, Any]] = cohort.update

    def train(
        self,
        round_: int,
        clients: Sequence[str],
        weights: Sequence[float],
        payload_tree: Tree,
    ) -> Result:
        """Train the named clients on what the server sent, and keep their new state."""
        scheme = self.settings.scheme
        payload = self._there(self._checked(payload_tree, clients))
        plan = self._plan()
        result = Result()
        weight_of = dict(zip(clients, weights, strict=True))
        total, unsaved = Total(scheme), list[PersonalState]()
        for chunk, states in self._chunks(clients, round_, plan, result):
            started = time.perf_counter()
            batches = self._batches(chunk, plan, "train", round_)
            personal = self._there(stack(states))
            received = self._received(payload, clients, chunk)
            upload, personal = self.update(
                scheme,
                self._work(round_, chunk),
                received,
                personal,
                batches,
                self.settings.run.cohort,
                self._looked_through(chunk, "train", round_),
            )
            personal = moved(personal, CPU)
            valid = finite(upload, len(chunk)) & finite(personal, len(chunk))
            for place, client in enumerate(chunk):
                if not valid[place]:
                    result.failures[client] = f"its training in round {round_} gave NaN or infinity"
                    result.diverged.append(client)
                elif scheme.stateful:
                    unsaved.append(self._state(client, round_, pick(personal, place)))
            if sum(size_in_bytes(state.tensors) for state in unsaved) > UNSAVED_BYTES:
                self.store.save(*unsaved)
                unsaved.clear()
            due = torch.tensor([weight_of[client] for client in chunk], dtype=torch.float64)
            total.add(_select(upload, valid), due[valid])
            result.clients += [one for one, ok in zip(chunk, valid.tolist(), strict=True) if ok]
            result.seconds["training"] += time.perf_counter() - started
        self.store.save(*unsaved)
        result.weight = sum(weight_of[client] for client in result.clients)
        if result.clients:
            result.mean = moved(total.mean(result.weight), CPU)
        return result

    def evaluate(
        self,
        round_: int,
        clients: Sequence[str],
        payload_tree: Tree,
        predictors: Path | None,
        adapt: int = -1,
        outcomes: Path | None = None,
    ) -> Result:
        """Evaluate the shared and the personal model of the named clients.

        With ``predictors`` each client's own model is also written to that folder, and with
        ``outcomes`` what the two models make of each example. With ``adapt`` of at least 0 they
        are newcomers, who adapt by that many rounds' local work.
        """
        payload = self._checked(payload_tree, clients)
        there = self._there(payload)
        result = Result()
        plan, parts = self._adaptation(adapt), self.settings.parts
        for chunk, states in self._chunks(clients, round_ + 1, plan, result, parts):
            received, personal = self._received(there, clients, chunk), self._there(stack(states))
            models = self._evaluate_chunk(round_, chunk, received, personal, result, adapt)
            result.clients += chunk
            if self.settings.scheme.stateful and adapt < 0:
                self._add_diagnostics(self._received(payload, clients, chunk), states, result)
            if predictors is not None:
                self._save_predictors(predictors, round_, chunk, models)
            if outcomes is not None and self.problem.task.measured:
                self._save_outcomes(outcomes, round_, chunk, received, models)
        return result

    def _chunks(
        self,
        clients: Sequence[str],
        before: int,
        plan: Plan,
        result: Result,
        judged: Sequence[str] = (),
    ) -> Iterator[tuple[list[str], list[Any]]]:
        """Chunks of clients with their personal states; those without a usable one fail."""
        scheme, most = self.settings.scheme, self.settings.run.cohort_chunk
        work = [self._load(client, plan, judged) for client in clients]
        steps = max((steps for steps, _ in work), default=0)
        for chunk in cohort.chunks(
            clients,
            [load for _, load in work],
            self.problem.work,
            self.problem.data.x[:1].nbytes,
            1 if scheme.alone else most,
            cohort.records(self.problem.work, steps, plan.batch_size),
        ):
            states: dict[str, Any] = {}
            for client in chunk:
                if client not in self.clients and not (scheme.pooled and client == POOL):
                    result.failures[client] = "this node does not host it"
                    continue
                try:
                    states[client] = self._personal(client, before)
                except BadFile as error:
                    result.failures[client] = str(error)
            if states:
                yield list(states), side_by_side(list(states.values()))

    def _load(self, client: str, plan: Plan, judged: Sequence[str]) -> tuple[int, int]:
        """How many local steps a client takes, and how many examples it goes through."""
        data = self.problem.data.clients.get(client)
        if data is None:  # the pool, which is alone, or somebody this node refuses
            return plan.steps, 0
        held, steps = len(data.train), plan.local_steps(len(data.train))
        seen = plan.draws(steps) * plan.size(held) + math.ceil(self.settings.scheme.looks() * held)
        return steps, seen + max((len(getattr(data, part)) for part in judged), default=0)

    def _evaluate_chunk(
        self,
        round_: int,
        clients: list[str],
        payload: Any,
        personal: Any,
        result: Result,
        adapt: int = -1,
    ) -> Tree:
        started = time.perf_counter()
        scheme, task, run = self.settings.scheme, self.problem.work, self.settings.run
        work = self._work(round_, clients)
        looks = scheme.adapts() > 0 or scheme.looks() > 0
        differ = scheme.stateful or looks or bool(scheme.payload_rows) or adapt >= 0
        plan = self._adaptation(adapt)
        if adapt >= 0:
            batches = self._batches(clients, plan, "join", round_)
            seen = self._looked_through(clients, "join", round_)
            own = cohort.newcomers(scheme, work, payload, batches, run.cohort, seen)
        elif differ:
            batches = self._batches(clients, plan, "adapt", round_)
            seen = self._looked_through(clients, "adapt", round_)
            own = cohort.predictors(scheme, work, payload, personal, batches, run.cohort, seen)
        else:
            own = scheme.predictor(work, payload, Nothing())
        received = scheme.shared(task, payload)
        same = not differ and all(own[name] is value for name, value in received.items())
        for part in self.settings.parts:
            x, y, real = self._side_by_side(self._held(clients, part))
            shared = cohort.score(task, received, x, y, real, own=False)
            scores = shared if same else cohort.score(task, own, x, y, real, own=differ)
            for whose, one in (("shared", shared), ("personal", scores)):
                name = f"{prefix(part)}{whose}"
                result.metrics.setdefault(f"{name}_loss", []).extend(one.loss.tolist())
                if task.measured:
                    measured = result.metrics.setdefault(f"{name}_{task.measured}", [])
                    measured.extend(one.metric.tolist())
        result.seconds["evaluation"] += time.perf_counter() - started
        return own if differ else {k: v.expand(len(clients), *v.shape) for k, v in own.items()}

    def _add_diagnostics(self, payload: Any, states: Sequence[Any], result: Result) -> None:
        scheme = self.settings.scheme
        shared = scheme.shared(self.problem.task, payload)
        for name, values in cohort.diagnostics(scheme, states, shared).items():
            result.diagnostics.setdefault(name, []).extend(values)

    def _batches(self, clients: list[str], plan: Plan, purpose: str, round_: int) -> Batch:
        train = [self._train_examples(client) for client in clients]
        task = self.problem.task
        plan = replace(plan, chance=task.draws, paired=task.paired)
        seeds = (self.settings.run.seed, purpose, round_)
        drawn = draw(clients, train, plan, seeds, self.settings.dtype)
        batches = gather(self.problem.x, self.problem.y, drawn)
        if self.settings.run.lr_decay_per_step:
            batches = batches._replace(pace=self._paces(train, batches, purpose, round_))
        if purpose == "train" and self.problem.augment is not None:
            batches = augmented(batches, self.problem.augment, clients, seeds)
        return batches

    def _paces(self, train: list[Tensor], batches: Batch, purpose: str, round_: int) -> Tensor:
        """How far each step's size has fallen; steps to adapt by follow those of the round."""
        trains = purpose == "train"
        rounds = round_ - self.first + (not trains)
        taken = [rounds * self._plan().local_steps(len(own)) for own in train]
        a_step = self.settings.scheme.batches_a_step if trains else 1
        decay = self.settings.run.lr_decay_per_step
        return paces(taken, batches.active.shape[1], a_step, decay).to(batches.active)

    def _looked_through(self, clients: list[str], purpose: str, round_: int) -> tuple[Batch, ...]:
        """The part of their data that clients look through, for schemes that have them do so."""
        share = self.settings.scheme.looks()
        plan = Plan(0, 1, self.settings.run.batch_size, share=share)
        return (self._batches(clients, plan, f"{purpose}-data", round_),) if share else ()

    def _there(self, value: Any) -> Any:
        """A record where the work is done."""
        return moved(value, self.problem.device)

    def _train_examples(self, client: str) -> Tensor:
        """Where a client's training examples are; the pool has everybody's."""
        held = self.problem.data.clients
        if client == POOL:
            return torch.cat([held[one].train for one in sorted(held)])
        return held[client].train

    def _held(self, clients: Sequence[str], part: str) -> list[Tensor]:
        """Where each client's examples of a part are: ``test``, ``train`` or ``validation``."""
        return [getattr(self.problem.data.clients[client], part) for client in clients]

    def _side_by_side(self, parts: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Examples of several clients side by side, padded."""
        longest = max(len(part) for part in parts)
        index = torch.stack(
            [torch.nn.functional.pad(p, (0, longest - len(p)), value=-1) for p in parts]
        )
        index = index.to(self.problem.device)
        real = (index >= 0).to(self.settings.dtype)
        index = index.clamp(min=0)
        return chosen_of(self.problem.x, index), chosen_of(self.problem.y, index), real

    def _save_predictors(self, folder: Path, round_: int, clients: list[str], models: Tree) -> None:
        task, data = self.problem.task, self.problem.data
        models = moved(models, CPU)
        for place, client in enumerate(clients):
            own = {name: value[place] for name, value in models.items()}
            save_predictor(folder, client, round_, own, self.settings, task, data)

    def _save_outcomes(
        self, folder: Path, round_: int, clients: list[str], payload: Any, models: Tree
    ) -> None:
        """Write what the two models make of each example, for a paired test on the same ones.

        They are about single examples of a client: no reply carries them.
        """
        folder.mkdir(parents=True, exist_ok=True)
        scheme, task, data = self.settings.scheme, self.problem.work, self.problem.data
        shared = scheme.shared(task, payload)
        found: dict[str, Tree] = {client: {} for client in clients}
        run = self.settings.run
        parts = ["test", "validation"] if run.validation or run.validation_folds else ["test"]
        for part in parts:
            held = self._held(clients, part)
            x, y, real = self._side_by_side(held)
            for whose, weights, own in (("shared", shared, False), ("personal", models, True)):
                each = cohort.single(task, weights, x, y, real, own=own).cpu()
                for client, row, kept in zip(clients, each, held, strict=True):
                    found[client][f"{part}_{whose}"] = row[: len(kept)].float()
        for client, tensors in found.items():
            split = data.clients[client]
            words = {"client": client, "round": str(round_)}
            if task.compared_by.said:
                words["measure"] = json.dumps(task.compared_by.said)
            for part in parts:
                place = getattr(split, part)
                words[part] = sha256({"x": data.x[place], "y": data.y[place]})
            path = folder / f"{file_name(client)}.safetensors"
            write_atomically(path, seal(OUTCOMES, words, tensors))

    def _personal(self, client: str, before: int) -> Any:
        scheme = self.settings.scheme
        if not scheme.stateful:
            return Nothing()
        fresh = scheme.init_personal(self.problem.task, len(self._train_examples(client)))
        state = self.store.load(self._identity(client), before)
        if state is None:
            return fresh
        if fingerprint(without_moments(state.tensors)) != fingerprint(
            without_moments(flatten(fresh))
        ):
            raise BadFile(f"The personal state of client {client} does not fit its model.")
        return unflatten(scheme.records.personal, state.tensors)

    def _state(self, client: str, round_: int, personal: Any) -> PersonalState:
        return PersonalState(self._identity(client), round_, flatten(personal))

    def _identity(self, client: str) -> Identity:
        scheme = self.settings.scheme
        shape = fingerprint(self.problem.task.initial)
        return Identity(scheme.state_kind, scheme.version, shape, client)

    def _work(self, round_: int, clients: Sequence[str]) -> Work:
        run = self.settings.run
        luck = float(generator(run.seed, "luck", round_, *clients).random())
        return Work(
            self.problem.work,
            self.settings.sgd,
            (),
            run.local_steps,
            round_,
            luck,
        )

    def _plan(self) -> Plan:
        run, draws = self.settings.run, self.settings.scheme.draws
        return Plan(run.local_steps, run.local_epochs, run.batch_size, draws)

    def _adaptation(self, adapt: int) -> Plan:
        """The work before clients predict; of newcomers, as much as in so many rounds."""
        run = self.settings.run
        if adapt < 0:
            return Plan(self.settings.scheme.adapts(), 0, run.batch_size)
        return Plan(adapt * run.local_steps, adapt * run.local_epochs, run.batch_size)

    def _checked(self, payload: Tree, clients: Sequence[str]) -> Any:
        """The payload's record, or a refusal of one that does not fit the model."""
        scheme = self.settings.scheme
        server = scheme.init_server(self.problem.task)
        expected = flatten(scheme.downlink(server, clients))
        if fingerprint(payload) != fingerprint(expected):
            raise BadInput("What the server sent does not fit this node's model.")
        return unflatten(scheme.records.payload, payload)

    def _received(self, payload: Any, clients: Sequence[str], chunk: Sequence[str]) -> Any:
        """What a chunk of the clients was sent: their rows of what is each client's own."""
        if list(chunk) == list(clients):
            return payload
        place_of = {client: place for place, client in enumerate(clients)}
        return rows_of(self.settings.scheme, payload, [place_of[client] for client in chunk])


def _select(record: Any, valid: Tensor) -> Any:
    if bool(valid.all()):
        return record
    return unflatten(type(record), {k: v[valid] for k, v in flatten(record).items()})
