"""What a run's clients have in common: the data, and the task these pose to the model."""

import functools
import threading
from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import cached_property
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from bouquet.augmentation import Augment, augment_of, try_augment
from bouquet.core.errors import BadInput
from bouquet.core.measure import CLASSES
from bouquet.core.placement import CPU, kept, moved
from bouquet.core.task import Task
from bouquet.core.trees import (
    Tree,
    fingerprint,
)
from bouquet.data import DataConfig, FederatedData, load
from bouquet.imports import Stamp, is_path, stamp
from bouquet.models import (
    Maker,
    buffers_of,
    build,
    emptied,
    frozen_names,
    named_splits,
    personal_names,
    refuse_inputs,
    refuse_large,
    refuse_more,
    refuse_output,
    rest,
)
from bouquet.parts import loss_of, metric_of, try_measures
from bouquet.probe import paired, probed
from bouquet.settings import AMP, Settings

# The one learner of a scheme that pools the clients' data.
POOL = "pool"

_loading = threading.Lock()
Stamps = tuple[Stamp, ...]


@dataclass(frozen=True)
class Problem:
    """Data and task, the same for every node of a run.

    Parameters
    ----------
    data : FederatedData
        On the CPU, as all that messages and files hold is.
    task : Task
        Likewise.
    device : torch.device
        Where the work is done.
    augment : callable, optional
        What changes the inputs of training batches.
    """

    data: FederatedData
    task: Task
    device: torch.device = CPU
    augment: Augment | None = None

    @cached_property
    def work(self) -> Task:
        """The task where the work is done; one object, which recorded steps are known by."""
        if self.device == CPU:
            return self.task
        places = ("initial", "constants", "frozen")
        return replace(self.task, **{n: moved(getattr(self.task, n), self.device) for n in places})

    @property
    def x(self) -> Tensor:
        """All inputs where the work is done."""
        return kept(self.data.x, self.device)

    @property
    def y(self) -> Tensor:
        """All targets where the work is done."""
        return kept(self.data.y, self.device)


def make_task(
    settings: Settings,
    input_shape: tuple[int, ...],
    classes: int,
    init: Tensor | None,
    make: Maker | None = None,
    targets: str = CLASSES,
) -> Task:
    """The task on data of a given shape; ``init`` replaces the model's own start.

    With ``make`` the model is what it makes, and only called by the name of the settings.
    """
    personal = replace(settings.personal, split=settings.split)
    try:
        module = build(
            settings.model, input_shape, classes, settings.run.seed, settings.dtype, personal, make
        )
        statistics, constants = buffers_of(module, input_shape, settings.dtype)
        # A parameter that is used in two places has one name here, and is one there.
        initial = {name: value.detach() for name, value in module.named_parameters()}
        frozen = {n: initial.pop(n) for n in sorted(frozen_names(list(initial), personal))}
        names = personal_names([*initial, *statistics], personal.split, named_splits(module))
    except BadInput as error:  # in the words of the key that the user may have set
        raise BadInput(str(error).replace("personal.split", settings.split_key)) from error
    if init is not None:
        initial = {name: init.to(settings.dtype) for name in initial}
    # On meta, the module is the structure without a second copy of the weights.
    structure = emptied(module).train()
    run = settings.run
    if run.statistics == "frozen":
        rest(structure, statistics)
        statistics, constants = {}, constants | statistics
    if run.statistics == "personal":
        names = names.union(statistics)
    # Models of ours are what their keys say; a user's own may be anything.
    ours = make is None and not is_path(settings.model.name)
    options = (run.weight_decay, run.loss, run.amp, targets)
    kind = (settings.model, personal, input_shape, classes, *options)
    return Task(
        structure,
        initial | statistics,
        classes,
        names.intersection(initial | statistics),
        run.weight_decay,
        whole=bool(statistics),
        kind=kind if ours else None,
        criterion=loss_of(run.loss, classes, targets),
        metric=metric_of(run.metric, classes, targets),
        amp=AMP[run.amp],
        constants=constants,
        frozen=frozen,
        targets=targets,
    )


def problem(
    settings: Settings,
    only: tuple[str, ...] | None = None,
    make: Maker | None = None,
    device: torch.device = CPU,
    most: int = 0,
) -> Problem:
    """Load data once per process, and make the task once per thread.

    Nodes of an inline simulation are threads: they share the data, which nobody
    writes to, but not the task's module. A device loads ``only`` its own clients' data, and
    no model of more than ``most`` parameters.
    """
    with _loading:
        same = settings.with_run(out="", rounds=1)  # these two make no difference
        stamps = _stamps(settings)
        return _problem(same, stamps, threading.get_ident(), only, make, device, most)


def started_from(loaded: Problem, weights: Tree) -> Problem:
    """The same problem, some of whose weights start where an earlier stage left them."""
    task = loaded.task
    known = {n: v for n, v in (task.fixed | task.initial).items() if n in weights}
    if fingerprint(weights) != fingerprint(known):
        raise BadInput("The weights this stage starts from do not fit this node's model.")
    return replace(loaded, task=task.starting_from(weights))


def _stamps(settings: Settings) -> Stamps:
    """Change when a file does, so that nobody trains on what it held before."""
    run = settings.run
    named = (settings.data.name, settings.model.name, run.loss, run.metric, run.augment)
    files = [settings.data.path, settings.model.weights]
    return tuple(map(stamp, (*files, *(name.rpartition(":")[0] for name in named))))


@functools.lru_cache(maxsize=64)
def _problem(
    settings: Settings,
    stamps: Stamps,
    thread: int,
    only: tuple[str, ...] | None,
    make: Maker | None,
    device: torch.device,
    most: int,
) -> Problem:
    run = settings.run
    held = (run.validation, run.seed, run.validation_folds, run.validation_fold)
    data = _data(settings.data, run.seed, settings.dtype, stamps, only, held)
    return posed(settings, data, make, device, most)


def posed(
    settings: Settings,
    data: FederatedData,
    make: Maker | None = None,
    device: torch.device = CPU,
    most: int = 0,
) -> Problem:
    """The problem some data pose to the model, which is tried on them if it is a user's own.

    A model of more than ``most`` parameters is refused, unless that is 0.
    """
    if data.classes:
        tokens = not data.x.is_floating_point()
        refuse_inputs(settings.model, tokens=tokens, classes=data.targets == CLASSES)
    shape = tuple(data.x.shape[1:])
    ours = make is None and not is_path(settings.model.name)
    if most and ours:
        personal = replace(settings.personal, split=settings.split)
        refuse_large(settings.model, shape, data.classes, personal, most)
    task = make_task(settings, shape, data.classes, data.init, make, data.targets)
    if most and not ours:  # what a model of a user's own is cannot be told before it is made
        held = (task.initial | task.frozen).values()
        refuse_more(settings.model.name, sum(one.numel() for one in held), most)
    if ":" in settings.model.name:
        task = _tried(settings, task, data)
    try_measures(settings, task, data)
    augment = augment_of(settings.run.augment)
    try_augment(settings.run.augment, augment, data.x)
    return Problem(data, task, device, augment)


def _tried(settings: Settings, task: Task, data: FederatedData) -> Task:
    """Ask a user's own model about two examples: what is wrong with it, and what it needs."""
    model, x, y = settings.model.name, data.x[:2], data.y[:2]
    try:
        with torch.no_grad():
            output = task.output(task.initial, x)
            refuse_output(model, output, y, data.classes)
            known = probed(task, data.x)
    except BadInput:
        raise
    except Exception as error:  # whatever the user's code raises
        raise BadInput(
            f"model.name {model!r} fails on examples of shape {tuple(x.shape[1:])}: {error}"
        ) from error
    if known.whole and settings.run.cohort == "vmap":
        raise BadInput(
            f"cohort must be 'auto' or 'loop' for model.name {model!r}, not 'vmap': it draws at "
            "random or takes statistics over a batch, so its clients train one by one."
        )
    looks = settings.scheme.looks()
    return paired(model, known, data, settings.run.batch_size, looks) if known.whole else known


# Data that somebody still uses: runs of several seeds that go side by side share each one's.
_used: WeakValueDictionary[Hashable, FederatedData] = WeakValueDictionary()


@functools.lru_cache(maxsize=1)
def _data(
    config: DataConfig,
    seed: int,
    dtype: torch.dtype,
    stamps: Stamps,
    only: tuple[str, ...] | None,
    held: tuple[float, int, int, int],
) -> FederatedData:
    key = (config, seed, dtype, stamps, only, held)
    data = _used.get(key)
    if data is None:
        data = load(config, seed, dtype, only).holding_out(*held)
        _used[key] = data = data.preparing(config.scale, config.missing)
    return data


def forget() -> None:
    """Let go of what runs that are over had, but for the last data."""
    _problem.cache_clear()
