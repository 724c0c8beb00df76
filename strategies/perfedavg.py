"""Per-FedAvg: a shared model that is good after a step on the client's own data.

Fallah, Mokhtari and Ozdaglar (2020), *Personalized federated learning: a meta-learning
approach*, algorithm 1; its first-order and Hessian-free variants, appendix G.

====================  ====================================================
paper                 here
====================  ====================================================
w_k                   ``payload.w``
α                     ``perfedavg.inner-lr``, the step a client adapts by
β                     ``sgd.lr``, the step of w
D, D′, D″             three batches a local step, drawn one after another
δ                     ``perfedavg.delta``
====================  ====================================================

A local step is w ← w − β (I − α ∇²f(w; D″)) g with g = ∇f(w − α ∇f(w; D); D′). That is a
gradient step on ⟨w, g⟩ − α ⟨∇f(w; D″), g⟩ with g held constant, so autograd forms the
Hessian-vector product and the Hessian itself never exists.

The paper lets a client adapt on its test data; here it adapts on its training data.
"""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from strategies.core.config import MOST_STEPS, key
from strategies.core.descent import Sgd, descend, functional_gradient
from strategies.core.scheme import Model, Scheme, Work
from strategies.core.task import Batch
from strategies.core.trees import Nothing, Tree, detach, dot


@dataclass(frozen=True)
class Config:
    """Per-FedAvg's keys."""

    inner_lr: float = key(
        0.01, "step a client adapts by", low=0.0, degenerate="0 is FedAvg with step lr", step=True
    )
    mode: str = key(
        "exact",
        "how the Hessian enters: exactly, not at all, or by differences of gradients",
        choices=("exact", "first-order", "hessian-free"),
    )
    delta: float = key(1e-3, "hessian-free: step of the difference", low=0.0, open_low=True)
    adapt_steps: int = key(1, "steps a client adapts by before it predicts", low=1, high=MOST_STEPS)


class Triple(NamedTuple):
    """The batches D, D′ and D″ of a local step."""

    inner: Batch
    outer: Batch
    curvature: Batch
    active: Tensor


def draws(config: Config, steps: int) -> int:
    """Three batches a local step."""
    return 3 * steps


def local_update(work: Work[Config], payload: Model, personal: Nothing) -> tuple[Model, Nothing]:
    """Steps on the meta-objective F(w) = f(w − α ∇f(w))."""
    config, batches = work.config, work.batches
    slope = functional_gradient(work.task.loss)  # unlike plain autograd's, it has a gradient

    def shifted(w: Tree, direction: Tree, size: float) -> Tree:
        return {name: w[name] + size * direction[name] for name in w}

    def objective(w: Tree, step: Triple) -> Tensor:
        here = detach(w)
        adapted = shifted(here, slope(here, step.inner), -config.inner_lr)
        g = detach(slope(adapted, step.outer))
        if config.mode == "first-order":
            return dot(w, g)
        if config.mode == "exact":
            return dot(w, g) - config.inner_lr * dot(slope(w, step.curvature), g)
        ahead = slope(shifted(here, g, config.delta), step.curvature)
        behind = slope(shifted(here, g, -config.delta), step.curvature)
        product = {n: (ahead[n] - behind[n]) / (2 * config.delta) for n in g}
        return dot(w, g) - config.inner_lr * dot(w, detach(product))

    triples = [
        Triple(*three, three[0].active)
        for three in zip(batches[::3], batches[1::3], batches[2::3], strict=True)
    ]
    return Model(descend(objective, payload.w, triples, work.sgd)), personal


def adapts(config: Config) -> int:
    """Batches of its own the client adapts on before it predicts."""
    return config.adapt_steps


def predictor(work: Work[Config], payload: Model, personal: Nothing) -> Tree:
    """The weights after gradient steps of size α on the client's training data."""
    inner = Sgd(work.config.inner_lr, gradient=work.sgd.gradient)
    return descend(work.task.loss, payload.w, work.batches, inner)


def newcomer(work: Work[Config], payload: Model, shared: Tree) -> Tree:
    """A newcomer adapts as everybody does, by as many steps as it is given."""
    return predictor(work, payload, Nothing())


SCHEME = Scheme(
    name="perfedavg",
    title="Personalized FedAvg by meta-learning",
    paper="Fallah, Mokhtari and Ozdaglar 2020, algorithm 1 and appendix G",
    shares="w_i, the client's weights after its local steps",
    keeps="nothing; it adapts the received weights to its data when it predicts",
    config=Config,
    draws=draws,
    local_update=local_update,
    adapts=adapts,
    predictor=predictor,
    newcomer=newcomer,
)
