"""Keys that are right on their own and do not go together."""

import re
from typing import TYPE_CHECKING

from bouquet.core.errors import BadInput
from bouquet.core.placement import DEVICES
from bouquet.core.scheme import AnyScheme
from bouquet.core.wrapper import Wrapper
from bouquet.strategies.afl import Agnostic
from bouquet.strategies.perfedavg import PerFedAvg
from bouquet.strategies.registry import SCHEMES, find
from bouquet.strategies.robust import Robust

if TYPE_CHECKING:
    from bouquet.settings import JoinConfig, RunConfig


def check_local_work(run: "RunConfig", default_steps: int) -> None:
    """Local work is so many steps or so many passes; the steps nobody asked for give way."""
    if run.local_epochs and run.local_steps not in (0, default_steps):
        raise BadInput(
            "Set local-steps or local-epochs, not both: they are "
            f"{run.local_steps} and {run.local_epochs}."
        )
    if not run.local_epochs and not run.local_steps:
        raise BadInput("local-steps and local-epochs are both 0: one of them must be positive.")


def check_schedule(run: "RunConfig", rounds: int = 0) -> None:
    """The step size's course must fit into the rounds of a stage; without, of the run."""
    if run.lr_schedule == "exponential" and not run.lr_decay:
        raise BadInput(
            "lr-decay must be positive with lr-schedule 'exponential': the rounds until the rate "
            "is halved, not 0."
        )
    if run.lr_decay_per_step and not find(run.scheme).descends:
        raise BadInput(
            f"lr-decay-per-step must be 0 for {run.scheme}, whose clients take no gradient steps, "
            f"not {run.lr_decay_per_step:g}."
        )
    rounds = rounds or run.rounds
    if run.warmup and run.warmup >= rounds:
        raise BadInput(f"warmup must be less than the {rounds} rounds there are, not {run.warmup}.")


def check_averaging(run: "RunConfig") -> None:
    """Only what averages can average otherwise."""
    scheme = find(run.scheme)()
    learned = isinstance(scheme.assembled(), Agnostic)
    if scheme.averages and not (run.weights == "agnostic" and learned):
        return
    averaging = ", ".join(name for name, one in SCHEMES.items() if one().averages)
    if run.weights == "agnostic":
        raise BadInput(
            f"weights must not be 'agnostic' for {run.scheme}; it goes with the schemes that "
            f"average and are not agnostic themselves: {averaging}."
        )
    if (run.server_optimizer, run.server_lr) != ("mean", 1.0) and not scheme.averages:
        raise BadInput(
            f"server-optimizer must be 'mean' and server-lr 1 for {run.scheme}, whose server does "
            f"not average; others go with {averaging}."
        )


def check_aggregation(run: "RunConfig", scheme: AnyScheme) -> None:
    """What is done about single uploads has a mean to protect, of weights nobody can set."""
    if not isinstance(scheme, Robust):
        return
    keys = "aggregation must be 'mean' and max-update-norm 0"
    if run.weights == "agnostic" or isinstance(find(run.scheme)().assembled(), Agnostic):
        raise BadInput(
            f"{keys} where weights are agnostic: they follow losses, which a client may make up."
        )
    if not scheme.averages or scheme.pooled:
        averaging = [name for name, one in SCHEMES.items() if one().averages and not one.pooled]
        raise BadInput(
            f"{keys} for {run.scheme}, whose server does not average; others go with "
            f"{', '.join(averaging)}."
        )


def check_decay(run: "RunConfig") -> None:
    """A scheme that takes no gradient steps would decay nothing."""
    scheme = find(run.scheme)
    own = f"whose own is {scheme.decay}" if scheme.decay else "whose clients take no gradient steps"
    for name in ("weight_decay", "decoupled_weight_decay"):
        if getattr(run, name) and not scheme.descends:
            raise BadInput(
                f"{name.replace('_', '-')} must be 0 for {run.scheme}, {own}, "
                f"not {getattr(run, name):g}."
            )


def check_optimizer(run: "RunConfig", scheme: AnyScheme) -> None:
    """Not every scheme's steps may be another optimizer's, and each optimizer has its own decay."""
    if run.optimizer == "sgd":
        return
    plain = scheme.plain or ("" if scheme.descends else "whose clients take no gradient steps")
    if plain:
        raise BadInput(f"optimizer must be 'sgd' for {run.scheme}, {plain}, not {run.optimizer!r}.")
    for optimizer, name, own in (
        ("adam", "decoupled_weight_decay", "weight-decay, or optimizer must be 'adamw'"),
        ("adamw", "weight_decay", "decoupled-weight-decay, or optimizer must be 'adam'"),
    ):
        if run.optimizer == optimizer and getattr(run, name):
            raise BadInput(
                f"{name.replace('_', '-')} must be 0 with optimizer {optimizer!r}, whose own is "
                f"{own}, not {getattr(run, name):g}."
            )
    if run.optimizer_state == "keep" and scheme.stateless:
        raise BadInput(
            f"optimizer-state must be 'reset' with {run.scheme}.stateless, whose personal part "
            "starts anew at every participation, not 'keep'."
        )


def check_augment(run: "RunConfig") -> None:
    """Not every scheme's examples may change from round to round."""
    if run.augment != "none" and not find(run.scheme).descends:
        raise BadInput(
            f"augment must be 'none' for {run.scheme}, whose dual variables are those of examples "
            f"that stay as they are, not {run.augment!r}."
        )


def check_judging(run: "RunConfig") -> None:
    """Not every scheme trains by any loss."""
    scheme = find(run.scheme)
    if run.loss != "auto" and not scheme.descends:
        raise BadInput(
            f"loss must be 'auto' for {run.scheme}, whose steps are made for that one, "
            f"not {run.loss!r}."
        )


def check_validation(run: "RunConfig") -> None:
    """A share or a fold is held out, and only what is held out can be judged on."""
    folds, fold = run.validation_folds, run.validation_fold
    if folds == 1:
        raise BadInput("validation-folds must be 0 or at least 2, not 1: the rest is trained on.")
    if folds and run.validation:
        raise BadInput(
            f"Set validation or validation-folds, not both: they are {run.validation:g} and "
            f"{folds}."
        )
    if fold and fold >= folds:
        raise BadInput(f"validation-fold must be less than validation-folds, {folds}, not {fold}.")
    if run.evaluate_on == "validation" and not (folds or run.validation):
        raise BadInput(
            "evaluate-on must be 'test' where nothing is held out, not 'validation': set "
            "validation or validation-folds."
        )


def check_device(device: str) -> None:
    """A device's name; whether there is one is for the machine to say that computes."""
    if not re.fullmatch(DEVICES, device):
        raise BadInput(f"device must be auto, cpu, cuda, cuda:N or mps, not {device!r}.")


def check_precision(run: "RunConfig", scheme: AnyScheme) -> None:
    """Some types and schemes leave nothing to mixed precision, or too little."""
    if run.device == "mps" and run.dtype == "float64":
        raise BadInput("dtype must be 'float32' with device 'mps', which has no 'float64'.")
    if run.amp == "none":
        return
    if run.dtype == "float64":
        raise BadInput(f"amp must be 'none' with dtype 'float64', not {run.amp!r}.")
    if not scheme.descends:
        raise BadInput(
            f"amp must be 'none' for {run.scheme}, whose clients take no gradient steps, "
            f"not {run.amp!r}."
        )
    while isinstance(scheme, Wrapper):
        scheme = scheme.inner
    if isinstance(scheme, PerFedAvg) and scheme.mode == "hessian-free":
        raise BadInput(
            f"amp must be 'none' with perfedavg.mode 'hessian-free', not {run.amp!r}: the "
            "differences it takes are smaller than what bf16 rounds away."
        )


def check_statistics(run: "RunConfig", scheme: AnyScheme) -> None:
    """Statistics are personal where parts of a model are; elsewhere whole models are."""
    if run.statistics == "personal" and not _splits(scheme):
        known = ", ".join(name for name, one in SCHEMES.items() if _splits(one()))
        raise BadInput(
            f"statistics must be 'average' or 'frozen' for {run.scheme}, not 'personal', which "
            f"goes with the schemes that split a model: {known}."
        )


def _splits(scheme: AnyScheme) -> bool:
    return scheme.stateful and scheme.personal_part("full") != "none"


def check_join(join: "JoinConfig", run: "RunConfig") -> None:
    """Clients can only come late to a run that lasts, and to a scheme that has clients."""
    if join.clients and join.round > run.rounds:
        raise BadInput(
            f"join.round must be at most rounds, {run.rounds}, or 0 for after training, "
            f"not {join.round}."
        )
    if join.clients and find(run.scheme).pooled:
        raise BadInput(f"join.clients must be 0 for {run.scheme}, not {join.clients}.")
