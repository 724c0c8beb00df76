"""Everything a run is told, read from flat keys and checked.

The same keys come from the command line, a TOML file or Flower's run config, and
:meth:`Settings.flat` writes every one of them, resolved, so that a run folder's
``config.toml`` says all there is to say.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

import torch

from bouquet.checks import (
    check_aggregation,
    check_augment,
    check_averaging,
    check_decay,
    check_device,
    check_join,
    check_judging,
    check_local_work,
    check_optimizer,
    check_precision,
    check_schedule,
    check_statistics,
    check_validation,
)
from bouquet.core.config import (
    MOST_STEPS,
    Key,
    Scalar,
    key,
    keys_of,
    read,
    refuse_unknown,
    write,
)
from bouquet.core.descent import Sgd
from bouquet.core.errors import BadInput
from bouquet.core.judging import LOSSES, METRICS, USUAL_METRIC
from bouquet.core.measure import CLASSES
from bouquet.core.optimizers import KINDS as OPTIMIZERS
from bouquet.core.optimizers import Optimizer
from bouquet.core.scheme import AnyScheme
from bouquet.data import DataConfig, data_set
from bouquet.imports import absolute
from bouquet.models import ModelConfig, PersonalConfig, checksum
from bouquet.stages import Stage, is_own, keys_of_stage, named_schemes, own_keys, stages
from bouquet.strategies.afl import AFL, Agnostic
from bouquet.strategies.local_optimizers import Remembering
from bouquet.strategies.registry import SCHEMES, find, lookup
from bouquet.strategies.robust import KINDS as AGGREGATIONS
from bouquet.strategies.robust import Aggregation, Robust
from bouquet.strategies.server_optimizers import KINDS, Optimized, ServerOptimizer

Kind = TypeVar("Kind", bound=AnyScheme)
DTYPES = {"float32": torch.float32, "float64": torch.float64}
AMP = {"none": None, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class RunConfig:
    """The keys that have no prefix."""

    scheme: str = key(
        "apfl", "the method: one of `bouquet schemes`, or package.module:Name, ./file.py:Name"
    )
    pipeline: str = key(
        "", "stages instead of one scheme: 'fedavg:100 fedalt:50 finetune:5', scheme and rounds"
    )
    stage_keys: str = key("", "keys of single stages as JSON; stage2.lr=0.01 is short for it")
    rounds: int = key(20, "rounds of training", low=1)
    clients_per_round: int = key(0, "clients that train in a round; 0 = all", low=0)
    over_select: float = key(
        1.0,
        "devices: so many times clients-per-round are asked, and the first to answer count",
        low=1.0,
        high=10.0,
    )
    local_steps: int = key(10, "gradient steps a client takes in a round", low=0, high=MOST_STEPS)
    local_epochs: int = key(
        0, "passes over its data instead of local-steps", low=0, high=MOST_STEPS
    )
    batch_size: int = key(20, "examples in a step; 0 = all the client has", low=0)
    lr: float = key(0.1, "local learning rate", low=0.0, open_low=True, step=True)
    lr_schedule: str = key(
        "constant",
        "its course over a stage's rounds: constant, linear to 0, or halved every lr-decay rounds",
        choices=("constant", "linear", "exponential"),
    )
    lr_decay: int = key(0, "exponential: rounds until the rate is halved", low=0)
    warmup: int = key(0, "rounds in which the rate rises to lr", low=0)
    lr_decay_per_step: float = key(
        0.0,
        "d of a rate that also falls by the step, times 1 / (1 + d t): t counts a client's local "
        "steps since its stage began, those of rounds it sat out included",
        low=0.0,
        degenerate="0 keeps the rate within a round",
    )
    optimizer: str = key(
        "sgd",
        "how clients take their local steps; adam's decay is weight-decay, adamw's "
        "decoupled-weight-decay",
        choices=OPTIMIZERS,
    )
    optimizer_state: str = key(
        "reset",
        "its moments: begun anew in every round, or kept on the device from round to round",
        choices=("reset", "keep"),
    )
    optimizer_momentum: float = key(
        0.9,
        "momentum, nesterov: how much of the past they keep",
        low=0.0,
        high=0.9999,
        degenerate="0 is sgd",
    )
    optimizer_beta1: float = key(
        0.9, "adam, adamw: how much of the past they keep", low=0.0, high=0.9999
    )
    optimizer_beta2: float = key(
        0.999, "adam, adamw: the same for the squares", low=0.0, high=0.999999
    )
    optimizer_eps: float = key(1e-8, "adam, adamw: what keeps their division from 0", low=1e-12)
    weights: str = key(
        "auto",
        "a client's weight in the mean; auto = the scheme's own, agnostic = learned as in afl",
        choices=("auto", "uniform", "examples", "agnostic"),
    )
    server_optimizer: str = key("mean", "how the server moves to the clients' mean", choices=KINDS)
    server_lr: float = key(1.0, "its step size", low=0.0, open_low=True, step=True)
    server_beta1: float = key(
        0.9, "momentum, adam, yogi: how much of the past they keep", low=0.0, high=0.9999
    )
    server_beta2: float = key(0.99, "adam, yogi: the same for their squares", low=0.0, high=0.9999)
    server_tau: float = key(1e-3, "adam, yogi: what keeps their division from 0", low=1e-12)
    aggregation: str = key(
        "mean",
        "what the server makes of the clients' uploads: their mean, or of each weight a trimmed "
        "mean or the median, in which every client counts alike",
        choices=AGGREGATIONS,
    )
    trim: float = key(
        0.1,
        "trimmed: the share of clients left out at each end, at least one",
        low=0.0,
        high=0.49,
        degenerate="0 is the mean",
    )
    max_update_norm: float = key(
        0.0,
        "longest update, in medians of the round's updates: longer ones are clipped; 0 = any",
        low=0.0,
        degenerate="0 clips nothing",
    )
    grad_clip: float = key(0.0, "largest gradient norm; 0 = any", low=0.0)
    grad_clip_over: str = key(
        "auto",
        "where a step moves two models, the norm of both (all) or of each (parts); auto = the "
        "paper's way: both for fedsim, each where one half is another method's (apfl, plsgd)",
        choices=("auto", "all", "parts"),
    )
    weight_decay: float = key(
        0.0, "strength x of (x/2)|w|^2 in every client's loss; 0 = none", low=0.0
    )
    decoupled_weight_decay: float = key(
        0.0, "strength of decay beside the gradient, not clipped, as in AdamW; 0 = none", low=0.0
    )
    statistics: str = key(
        "average",
        "batch norm's running statistics and other buffers that training changes: average them as "
        "weights, keep them personal (in schemes that split a model), or leave them as they start",
        choices=("average", "personal", "frozen"),
    )
    loss: str = key(
        "auto",
        "what clients train to lower; auto = cross-entropy for classes, mse (or mae) for values, "
        "bce for several labels, or the quadratic problem's own",
        choices=("auto", *LOSSES),
        own=True,
    )
    metric: str = key(
        "auto",
        "what models are compared by, beside the loss; auto = accuracy for classes, r2 for values, "
        "f1 for several labels",
        choices=("auto", *METRICS),
        own=True,
    )
    augment: str = key(
        "none",
        "how the inputs of training batches are changed: a function of them and a generator",
        choices=("none",),
        own=True,
    )
    seed: int = key(0, "of every random choice", low=0)
    dtype: str = key("float32", "of weights and data", choices=tuple(DTYPES))
    device: str = key(
        "auto",
        "where nodes compute: cpu, cuda, cuda:1 or mps; auto = cuda if there is one, else cpu; "
        "real devices choose for themselves unless it is cpu",
    )
    amp: str = key(
        "none",
        "mixed precision: the model's products in local steps as bf16, all else in float32",
        choices=tuple(AMP),
    )
    eval_every: int = key(
        5, "evaluate all clients every n rounds and at the end; 0 = only at the end", low=0
    )
    store: str = key(
        "auto",
        "where personal state lives; auto = memory on inline, disk on ray",
        choices=("auto", "memory", "context", "disk"),
    )
    state_dir: str = key("", "folder of the disk store; empty = in the run's folder")
    personal_from: str = key(
        "fresh",
        "on devices: start without personal state, or keep what the last run of the scheme left",
        choices=("fresh", "keep"),
    )
    nodes: int = key(
        0, "nodes that host the clients of a simulation; 0 = one per worker", low=0, high=10_000
    )
    save_predictors: bool = key(False, "write every client's final model to the run's folder")
    save_outcomes: bool = key(
        False,
        "write what each client's shared and personal model make of each example: whether it is "
        "right, or its loss",
    )
    validation: float = key(
        0.0,
        "share of each client's training examples held out, to choose a model by; 0 = none",
        low=0.0,
        high=0.9,
    )
    validation_folds: int = key(
        0,
        "cut each client's training examples into so many parts instead, and hold one out; 0 = no",
        low=0,
        high=1000,
    )
    validation_fold: int = key(0, "which of them, from 0", low=0, high=999)
    evaluate_on: str = key(
        "test",
        "the part of its data that a client's models are judged on: its test examples, these and "
        "its training examples as well, or what is held out",
        choices=("test", "test,train", "validation"),
    )
    min_clients: int = key(
        0, "on devices: clients that must be there before the first round; 0 = any", low=0
    )
    max_examples: int = key(
        1_000_000,
        "on devices: the most examples a client may say it has; a node that says more is left out",
        low=1,
    )
    round_timeout: float = key(
        0.0,
        "seconds to wait for a round's replies; 0 = as long as it takes, on devices 600",
        low=0.0,
    )
    on_divergence: str = key(
        "auto",
        "when a client's training gives NaN or the loss explodes: stop the run, or go on without "
        "(drop) those clients; auto = stop, on devices drop",
        choices=("auto", "stop", "drop"),
    )
    diverged_at: float = key(
        1000.0,
        "the loss has exploded at this many times a guess's (where no guess is known, its first "
        "value)",
        low=1.0,
    )
    share_label_counts: bool = key(
        False, "let nodes tell how many examples of each label they hold"
    )
    cohort: str = key(
        "auto",
        "train a node's clients as one computation, one by one, or one by one with the steps "
        "compiled (needs a C++ compiler; pays in long runs)",
        choices=("auto", "vmap", "loop", "compiled"),
    )
    cohort_chunk: int = key(0, "most clients in one computation; 0 = by the model's size", low=0)
    out: str = key("", "the run's folder; empty = a new one under runs/")
    resume: bool = key(False, "with flwr run: go on with the run in the folder `out`")


@dataclass(frozen=True)
class JoinConfig:
    """The keys under ``join``: clients that come late."""

    clients: int = key(0, "how many clients, the last by id, come late", low=0)
    round: int = key(
        0, "the round they appear in; 0 = after training, adapting with the server frozen", low=0
    )
    rounds: int = key(5, "after training: rounds of local work they adapt by", low=0, high=10_000)


@dataclass(frozen=True)
class Settings:
    """A whole configuration.

    Parameters
    ----------
    run, data, model, personal, join : RunConfig, DataConfig, ModelConfig, PersonalConfig, \
            JoinConfig
        The keys without a prefix, and those under ``data``, ``model``, ``personal`` and
        ``join``.
    schemes : tuple of Scheme
        Every scheme with its keys: ours, then those from outside that the run names.
    """

    run: RunConfig
    data: DataConfig
    model: ModelConfig
    personal: PersonalConfig
    join: JoinConfig
    schemes: tuple[AnyScheme, ...]

    @cached_property
    def scheme(self) -> AnyScheme:
        """The scheme the run trains with, its weights and its server's optimizer as told."""
        run = self.run
        scheme = self._of(find(run.scheme)).assembled()
        if self.optimizer.remembers:
            scheme = Remembering(scheme, run.optimizer_state == "keep")
        if run.weights == "agnostic":
            scheme = Agnostic(scheme, self._of(AFL).lambda_lr)
        optimizer = ServerOptimizer(
            run.server_optimizer, run.server_lr, run.server_beta1, run.server_beta2, run.server_tau
        )
        scheme = scheme if optimizer.is_mean else Optimized(scheme, optimizer)
        aggregation = self.aggregation
        return scheme if aggregation.is_mean else Robust(scheme, aggregation)

    @property
    def aggregation(self) -> Aggregation:
        """How a round's uploads become one."""
        return Aggregation(self.run.aggregation, self.run.trim, self.run.max_update_norm)

    def _of(self, kind: type[Kind]) -> Kind:
        """A scheme with its keys."""
        # By name: a file that changed since is another class.
        return cast(Kind, next(one for one in self.schemes if one.name == kind.name))

    @property
    def split(self) -> str:
        """Which parameters are personal; a model that is not split has no personal parts."""
        return self.scheme.personal_part(self.personal.split)

    @property
    def split_key(self) -> str:
        """The key that says so: the one for all schemes, or the scheme's own."""
        common = self.scheme.personal_part("any") == "any"
        return "personal.split" if common else f"{self.scheme.name}.split"

    @property
    def sgd(self) -> Sgd:
        """How clients take their local steps."""
        run = self.run
        over = self.scheme.clips if run.grad_clip_over == "auto" else run.grad_clip_over
        return Sgd(
            run.lr,
            run.grad_clip,
            over == "all",
            run.decoupled_weight_decay,
            optimizer=self.optimizer,
            paced=run.lr_decay_per_step > 0,
        )

    @property
    def optimizer(self) -> Optimizer:
        """What makes the direction of a local step."""
        run = self.run
        return Optimizer(
            run.optimizer,
            run.optimizer_momentum,
            run.optimizer_beta1,
            run.optimizer_beta2,
            run.optimizer_eps,
        )

    @property
    def weights(self) -> str:
        """How uploads are weighted, with the scheme's own choice where the user made none."""
        chosen = self.run.weights
        return self.scheme.weights if chosen in ("auto", "agnostic") else chosen

    @property
    def parts(self) -> tuple[str, ...]:
        """Which of their clients' examples models are judged on."""
        return tuple(self.run.evaluate_on.split(","))

    @property
    def dtype(self) -> torch.dtype:
        """The type of weights and data."""
        return DTYPES[self.run.dtype]

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The run's stages, one where there is no pipeline."""
        return stages(self.run.pipeline, self.run.scheme, self.run.rounds)

    def in_stage(self, stage: Stage) -> "Settings":
        """The settings of one stage: the run's, but for the stage's own keys.

        ``rounds`` stays that of the whole run.
        """
        trainer = find(stage.scheme)
        everyone = {"clients-per-round": 0} if trainer.everyone else {}
        flat = self.flat() | {"pipeline": "", "stage-keys": "", "scheme": stage.scheme} | everyone
        chosen = parse(
            flat | keys_of_stage(self.run.stage_keys, stage), [type(one) for one in self.schemes]
        )
        # Whoever reads these knows our schemes and the one they name, no other stage's.
        known = [one for one in chosen.schemes if one.name in {*SCHEMES, trainer.name}]
        return replace(chosen, schemes=tuple(known))

    def lr_in(self, round_: int, stage: Stage) -> float:
        """The local learning rate in a round of a stage."""
        run, done = self.run, round_ - stage.first
        if done < run.warmup:
            return run.lr * (done + 1) / run.warmup
        done -= run.warmup
        if run.lr_schedule == "linear":
            return run.lr * (1 - done / (stage.last - stage.first + 1 - run.warmup))
        if run.lr_schedule == "exponential":
            return float(run.lr * 0.5 ** (done // run.lr_decay))
        return run.lr

    def flat(self) -> dict[str, Scalar]:
        """Every key and its value."""
        flat = write(self.run) | write(self.data, "data") | write(self.model, "model")
        flat |= write(self.personal, "personal") | write(self.join, "join")
        for scheme in self.schemes:
            flat |= write(scheme, scheme.name)
        return flat

    def pinned(self) -> "Settings":
        """The same settings, with the file that weights start from settled: where, and which."""
        model = self.model
        if not model.weights:
            return self
        path = str(Path(model.weights).absolute())
        known = model.weights_sha256 or checksum(path)
        return replace(self, model=replace(model, weights=path, weights_sha256=known))

    def with_run(self, **changes: Any) -> "Settings":
        """The same settings but for some keys without a prefix."""
        return replace(self, run=replace(self.run, **changes))


def all_keys(schemes: Sequence[type[AnyScheme]] = tuple(SCHEMES.values())) -> list[Key]:
    """Every key there is."""
    keys = [*keys_of(RunConfig), *keys_of(DataConfig, "data"), *keys_of(ModelConfig, "model")]
    keys += [*keys_of(PersonalConfig, "personal"), *keys_of(JoinConfig, "join")]
    for scheme in schemes:
        keys += keys_of(scheme, scheme.name)
    return keys


def schemes_of(values: Mapping[str, object]) -> list[type[AnyScheme]]:
    """Our schemes, and those from outside that keys name."""
    known = dict(SCHEMES)
    for name in named_schemes(values):
        scheme = lookup(name)  # where there is none, it is refused where it is used
        if scheme is not None and known.setdefault(scheme.name, scheme) is not scheme:
            raise BadInput(
                f"scheme {name!r} must have a name of its own: another is called {scheme.name!r}."
            )
    return list(known.values())


def parse(
    values: Mapping[str, object], schemes: Sequence[type[AnyScheme]] | None = None
) -> Settings:
    """Settings from flat keys: unknown ones refused, types and ranges checked, gaps filled.

    Parameters
    ----------
    values : mapping
        The keys.
    schemes : sequence, optional
        Whose keys there are; without, our schemes' and those that the keys name.
    """
    schemes = schemes_of(values) if schemes is None else schemes
    known = {one.name: one for one in all_keys(schemes)}
    refuse_unknown(map(plain_name, values), known)
    run = read(RunConfig, {n: v for n, v in values.items() if n != "stage-keys"})
    run = replace(
        run,
        scheme=absolute(run.scheme),
        loss=absolute(run.loss),
        metric=absolute(run.metric),
        augment=absolute(run.augment),
    )
    run, values = _with_pipeline(run, values)
    data = read(DataConfig, values, "data")
    data = replace(data, name=absolute(data.name))
    if run.metric == "auto":
        run = replace(run, metric=USUAL_METRIC[CLASSES if data.labels == "auto" else data.labels])
    model = read(ModelConfig, values, "model")
    check_local_work(run, RunConfig().local_steps)
    if run.local_epochs:
        run = replace(run, local_steps=0)
    check_averaging(run)
    check_decay(run)
    check_augment(run)
    check_judging(run)
    check_validation(run)
    check_device(run.device)
    check_schedule(run)
    join = read(JoinConfig, values, "join")
    check_join(join, run)
    settings = Settings(
        run=run,
        data=data,
        model=replace(model, name=absolute(model.name) or data_set(data.name).model),
        personal=read(PersonalConfig, values, "personal"),
        join=join,
        schemes=tuple(read(scheme, values, scheme.name) for scheme in schemes),
    )
    check_aggregation(run, settings.scheme)
    check_optimizer(run, settings.scheme)
    check_precision(run, settings.scheme)
    check_statistics(run, settings.scheme)
    if run.pipeline:  # a stage's wrong key is refused now, not when its turn comes
        for stage in settings.stages:
            check_schedule(settings.in_stage(stage).run, stage.last - stage.first + 1)
    return settings


def plain_name(name: str) -> str:
    """A key's name without the stage it is for."""
    return name.partition(".")[2] if is_own(name) else name


def _with_pipeline(
    run: RunConfig, values: Mapping[str, object]
) -> tuple[RunConfig, dict[str, object]]:
    """The run's keys with those the pipeline settles, and all keys without the stages' own."""
    planned = stages(run.pipeline, run.scheme, run.rounds)
    if not run.pipeline.strip():
        own, rest = own_keys(values, 0)
        return replace(run, pipeline="", stage_keys=own), rest
    own, rest = own_keys(values, len(planned))
    total = planned[-1].last
    if run.rounds not in (total, RunConfig().rounds):
        raise BadInput(
            f"rounds is {run.rounds}, but the pipeline's stages have {total}; leave rounds out."
        )
    words = [word.rpartition(":") for word in run.pipeline.split()]
    pipeline = " ".join(f"{absolute(name)}:{count}" for name, _, count in words)
    return replace(
        run, pipeline=pipeline, stage_keys=own, rounds=total, scheme=planned[-1].scheme
    ), rest
