"""A scheme as the strategy of anybody's ServerApp; see :mod:`bouquet.flower`."""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from logging import INFO
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import nn

from bouquet.core.errors import BadInput, RunFailed
from bouquet.core.task import Task, as_state
from bouquet.core.trees import Tree, is_statistic, plain
from bouquet.flower import wire
from bouquet.flower.private import is_deployed, log
from bouquet.models import personal_names
from bouquet.objects import SchemeLike, flat, told_of
from bouquet.parts import loss_of, metric_of
from bouquet.server_app.assembly import check_deployable, going_on
from bouquet.server_app.divergence import divergence
from bouquet.server_app.loop import full_evaluation
from bouquet.server_app.membership import Roster
from bouquet.server_app.report import Report
from bouquet.server_app.strategy import SchemeStrategy
from bouquet.server_app.summary import add_evaluation, event_of
from bouquet.settings import DTYPES, Settings, parse
from bouquet.storage.events import Event
from bouquet.storage.runfolder import new_name

# Keys of runs in our own loop: Flower's has other words for them, or no such thing.
_ELSEWHERE = {
    "rounds": "strategy.start(num_rounds=...)",
    "round-timeout": "strategy.start(timeout=...)",
    "over-select": "bouquet deploy",
    "dtype": "the type of initial_arrays",
    **dict.fromkeys(("store", "state-dir"), "state-dir in the node config"),
    "data": "client_app",
    **dict.fromkeys(
        ("nodes", "out", "resume", "pipeline", "stage-keys", "save-outcomes", "join"),
        "bouquet simulate",
    ),
}
# Rounds until somebody says how many: as good as no end.
_UNTOLD = 10**9


class PersonalizedStrategy(Strategy):
    """A scheme as a strategy of any ServerApp.

    The nodes' app must be :func:`client_app`. ``Result.arrays`` of :meth:`start` is the shared
    model; evaluations are means over the clients of ``shared_loss``, ``personal_loss`` and the
    accuracies.

    Parameters
    ----------
    scheme : Scheme, class or str
        Such as ``APFL(alpha=0.3)``, or a name of ``bouquet schemes``.
    **keys
        Keys of the run with their usual defaults, ``_`` for ``-``, groups as dicts:
        ``local_steps=5``, ``lr=0.05``, ``clients_per_round=10``, ``seed=1``, ``eval_every=1``,
        ``min_clients=3``, ``personal={"split": "head.*"}``.
    """

    def __init__(self, scheme: SchemeLike, **keys: Any) -> None:
        told = flat(keys)
        for name in told:
            where = _ELSEWHERE.get(name.partition(".")[0])
            if where:
                raise BadInput(f"{name} is no key of a strategy; see {where}.")
        settings = parse(told_of(scheme) | told | {"rounds": _UNTOLD})
        check_deployable(settings)  # a node may be a device
        self.settings = self._settings = settings.in_stage(settings.stages[0])
        self._strategy: SchemeStrategy | None = None
        self._begin(_UNTOLD)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Flower's own loop, from the beginning; see there for the parameters."""
        if train_config or evaluate_config:
            raise BadInput(
                "train_config and evaluate_config must be empty: what clients do is told by keys "
                "of PersonalizedStrategy, such as lr=0.05."
            )
        self._begin(num_rounds)
        with _one_thread():
            result = super().start(
                grid, initial_arrays, num_rounds, timeout, evaluate_fn=evaluate_fn
            )
        if not any(event["clients"] for event in self._events):
            why = next(iter(self.report.failures.values()), "nobody was there")
            raise RunFailed(f"No client finished a single round: {why}")
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One message a node; in the first round, after every node has introduced itself."""
        if self._strategy is None:
            self._initial: Tree = wire.unpack(arrays)
            self._settings = _typed(self._settings, self._initial)
        deployed = is_deployed(grid)
        if deployed:
            self._settings = going_on(self._settings)
        self._roster.update(grid, self._settings, self._name, threading.Event(), deployed)
        if self._strategy is None:
            task = _task(self._settings, self._roster, self._initial)
            self._strategy = SchemeStrategy(
                self._settings, task, self._roster, self._name, "predictors", warm=True
            )
        return self._strategy.configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The shared model after a round, and no numbers: training gives none."""
        arrays, metrics = self._begun.aggregate_train(server_round, replies)
        if self._roster.facts and self._roster.facts.buffers:
            task, shared = self._begun.task, self._begun.shared
            arrays = wire.named(as_state(task.constants | shared, self._initial))
        self._events.append(event_of(self._begun.stage.name, server_round, self.report))
        self._stop_if_diverged(self.report, None)
        return arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One message a node, in the rounds that ``eval_every`` says and the last."""
        self._evaluates = full_evaluation(self._settings, server_round, self._begun.stage)
        if not self._evaluates:
            return []
        return self._begun.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Means over the clients; nothing in a round without an evaluation."""
        if not self._evaluates:
            return None
        metrics = self._begun.aggregate_evaluate(server_round, replies)
        add_evaluation(self._events[-1], self._roster, self.report, self._begun.task.metric)
        self._stop_if_diverged(Report(), self.report)
        return metrics

    def summary(self) -> None:
        """Log what is about to run."""
        log(INFO, "%s", self.settings.scheme.title)

    @property
    def report(self) -> Report:
        """What came of the last messages, client by client."""
        return self._begun.report

    def _begin(self, rounds: int) -> None:
        """Forget what an earlier run left: nodes, server, and the name of its personal state."""
        self._settings = parse(self.settings.flat() | {"rounds": rounds})
        self._roster, self._name = Roster(), new_name()
        self._strategy = None
        self._initial = {}
        self._events: list[Event] = []
        self._evaluates = False

    @property
    def _begun(self) -> SchemeStrategy:
        if self._strategy is None:
            raise RunFailed("The first call to a strategy is configure_train.")
        return self._strategy

    def _stop_if_diverged(self, trained: Report, evaluated: Report | None) -> None:
        if self._settings.run.on_divergence != "drop":
            guess = self._begun.task.guess
            seen = divergence(self._settings, guess, self._events, trained, evaluated)
            if seen:
                raise RunFailed(seen)


def _typed(settings: Settings, initial: Tree) -> Settings:
    """Settings with the type that the initial weights have; buffers may be whole numbers."""
    every = {value.dtype for value in initial.values()}
    found = {dtype for dtype in every if dtype.is_floating_point} or every
    for name, dtype in DTYPES.items():
        if found == {dtype}:
            return settings.with_run(dtype=name)
    listed = ", ".join(sorted(str(one).removeprefix("torch.") for one in found)) or "nothing"
    raise BadInput(f"initial_arrays must all be float32, or all float64, not {listed}.")


def _task(settings: Settings, roster: Roster, initial: Tree) -> Task:
    """The task as the server knows it: weights without a model."""
    assert roster.facts is not None  # a roster that was updated has met a node
    run, classes, targets = settings.run, roster.facts.classes, roster.facts.targets
    weights, constants = _apart(settings, roster.facts.buffers, initial)
    personal = personal_names(list(weights), settings.split)
    if run.statistics == "personal":
        personal = personal.union(filter(is_statistic, weights))
    return Task(
        nn.Module(),
        weights,
        classes,
        personal,
        run.weight_decay,
        criterion=loss_of(run.loss, classes, targets),
        metric=metric_of(run.metric, classes, targets),
        constants=constants,
        targets=targets,
    )


def _apart(settings: Settings, buffers: Sequence[str], initial: Tree) -> tuple[Tree, Tree]:
    """What training moves of a model's state, and what it does not, by the nodes' own words."""
    missing = [plain(name) for name in buffers if plain(name) not in initial]
    if missing:
        raise BadInput(
            f"initial_arrays must be the model's whole state_dict(), and lack {missing[0]!r}."
        )
    names = {plain(name): name for name in buffers}
    state = {names.get(name, name): value for name, value in initial.items()}
    state |= {name: state[name].to(settings.dtype) for name in filter(is_statistic, buffers)}
    frozen = settings.run.statistics == "frozen"
    still = {name for name in buffers if frozen or not is_statistic(name)}
    return (
        {name: value for name, value in state.items() if name not in still},
        {name: value for name, value in state.items() if name in still},
    )


@contextmanager
def _one_thread() -> Iterator[None]:
    """Sums depend on the number of threads, and engines must agree to the last bit."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
