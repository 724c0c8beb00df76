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

Running statistics take in D, at w.

The paper lets a client adapt on its test data; here it adapts on its training data.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import Tensor

from bouquet.core.batches import side_by_side
from bouquet.core.config import MOST_STEPS, key
from bouquet.core.descent import Sgd, functional_gradient
from bouquet.core.scheme import Averaging, Model, Work
from bouquet.core.statistics import unheard
from bouquet.core.task import Batch
from bouquet.core.trees import Nothing, Tree, detach, dot


class Triple(NamedTuple):
    """The batches D, D′ and D″ of a local step."""

    inner: Batch
    outer: Batch
    curvature: Batch
    active: Tensor


def shifted(w: Tree, direction: Tree, size: float) -> Tree:
    """A point a little way along a direction."""
    return {name: w[name] + size * direction[name] for name in w}


@dataclass(frozen=True)
class PerFedAvg(Averaging[Nothing]):
    """Personalized FedAvg by meta-learning."""

    name = "perfedavg"
    title = "Personalized FedAvg by meta-learning"
    paper = "Fallah, Mokhtari and Ozdaglar 2020, algorithm 1 and appendix G"
    shares = "w_i, the client's weights after its local steps"
    keeps = "nothing; it adapts the received weights to its data when it predicts"
    batches_a_step = 3

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

    def local_update(self, work: Work, payload: Model, personal: Nothing) -> tuple[Model, Nothing]:
        """Steps on the meta-objective F(w) = f(w − α ∇f(w))."""
        # Unlike plain autograd's, it has a gradient.
        slope = functional_gradient(unheard(work.task.loss))

        def objective(w: Tree, step: Triple) -> Tensor:
            here = detach(w)
            work.task.observe(w, step.inner)
            adapted = shifted(here, slope(here, step.inner), -self.inner_lr)
            g = detach(slope(adapted, step.outer))
            if self.mode == "first-order":
                return dot(w, g)
            if self.mode == "exact":
                return dot(w, g) - self.inner_lr * dot(slope(w, step.curvature), g)
            ahead = slope(shifted(here, g, self.delta), step.curvature)
            behind = slope(shifted(here, g, -self.delta), step.curvature)
            product = {n: (ahead[n] - behind[n]) / (2 * self.delta) for n in g}
            return dot(w, g) - self.inner_lr * dot(w, detach(product))

        def triple(inner: Batch, outer: Batch, curvature: Batch) -> Triple:
            return Triple(inner, outer, curvature, inner.active)

        triples = side_by_side(triple, *(work.batches[first::3] for first in range(3)))
        return Model(work.descend(objective, payload.w, triples)), personal

    def adapts(self) -> int:
        """Batches of its own the client adapts on before it predicts."""
        return self.adapt_steps

    def predictor(self, work: Work, payload: Model, personal: Nothing) -> Tree:
        """The weights after gradient steps of size α on the client's training data."""
        plain = replace(work, sgd=Sgd(self.inner_lr, gradient=work.sgd.gradient))
        return plain.descend(work.task.loss, payload.w, work.batches)

    def newcomer(self, work: Work, payload: Model, shared: Tree) -> Tree:
        """A newcomer adapts as everybody does, by as many steps as it is given."""
        return self.predictor(work, payload, Nothing())
