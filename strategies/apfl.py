"""APFL: every client mixes a model of its own with the shared one.

Deng, Kamani and Mahdavi (2020), *Adaptive personalized federated learning*,
algorithm 1 (Local Descent APFL), equation 10 (adaptive α) and equation 17 (newcomers).

====================  ====================================================
paper                 here
====================  ====================================================
w_i                   ``payload.w``, then ``upload.w``
v_i                   ``personal.v``, starts at the initial w
α_i                   ``personal.alpha``, starts at ``apfl.alpha``
v̄_i                   ``mix(v, w, alpha)`` = α v + (1 − α) w
η                     ``sgd.lr``; for α ``apfl.alpha-lr`` where set
p_t = (t + a)²        the weight of step t, with a = ``apfl.output-offset``
v̂_i, ŵ                averages over t; see :mod:`bouquet.strategies.averaged`
====================  ====================================================

A local step is one joint gradient step on f(w; ξ) + f(α v + (1 − α) [w]; ξ) with
[w] held constant: all parts move from the values before the step, on the same
batch, and the chain rule gives v the factor α and α the slope ⟨v − w, ∇f(v̄)⟩.
α moves once a round, in the first local step, or in every step. Running statistics are mixed as
weights are; those of v become what a step's batch makes of the mixture's.

With ``apfl.output = average`` a client predicts with the output of theorem 3,
α_i v̂_i + (1 − α_i) ŵ, where v̂_i and ŵ average v_i and the mean of the round's w_j over all
steps t with the weights p_t. A client that sits rounds out averages over the steps it took.

The paper's figures judge a client in the middle of a round, after its τ local steps, when w_i is
its own copy of w. With ``apfl.predict-steps = τ`` a client takes such steps before it predicts, and
forgets them again.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from bouquet.core.config import MOST_STEPS, key
from bouquet.core.errors import BadInput
from bouquet.core.scheme import AnyScheme, Averaging, Model, Work
from bouquet.core.task import Batch, Task
from bouquet.core.trees import Tree, detach, distance, mix, norm
from bouquet.strategies.averaged import Average, Averaged


class Personal(NamedTuple):
    """What stays on the device."""

    v: Tree
    alpha: Tensor


class Mixture(NamedTuple):
    """What a local step moves."""

    w: Tree
    v: Tree
    alpha: Tensor


@dataclass(frozen=True)
class APFL(Averaging[Personal]):
    """Adaptive personalized federated learning."""

    name = "apfl"
    title = "Adaptive personalized federated learning"
    paper = "Deng, Kamani and Mahdavi 2020, algorithm 1, equations 10 and 17"
    shares = "w_i, the client's copy of the shared weights after its local steps"
    keeps = "v_i, its own weights, and alpha_i, their share in the mixture"
    version = 3

    alpha: float = key(
        0.5,
        "weight of the own model in the mixture: fixed, or where it starts",
        low=0.0,
        high=1.0,
        degenerate="0 (fixed) is FedAvg, 1 (fixed) is Local",
    )
    adaptive: bool = key(True, "learn alpha on the device", degenerate="false keeps alpha fixed")
    alpha_lr: float = key(0.0, "step size of alpha; 0 = lr", low=0.0, step=True)
    alpha_update: str = key("round", "how often alpha moves", choices=("round", "step"))
    output: str = key(
        "last",
        "predict with the last models, or with their average over all steps",
        choices=("last", "average"),
    )
    output_offset: float = key(0.0, "a in the average's weights (t + a)^2", low=0.0)
    predict_steps: int = key(
        0,
        "local steps a client takes before it predicts, as the paper's figures have it; newcomers "
        "take theirs with both models",
        low=0,
        high=MOST_STEPS,
        degenerate="0 predicts with what a round ends with",
    )

    def init_personal(self, task: Task, examples: int) -> Personal:
        """V starts at the initial w."""
        dtype = next(iter(task.initial.values())).dtype
        return Personal(task.initial, torch.tensor(self.alpha, dtype=dtype))

    def local_update(
        self, work: Work, payload: Model, personal: Personal
    ) -> tuple[Model, Personal]:
        """The steps in which α moves, then the others."""

        def objective(p: Mixture, batch: Batch) -> Tensor:
            mixture = mix(p.v, detach(p.w), p.alpha)
            return work.task.loss(p.w, batch) + work.task.loss(mixture, batch)

        moves = {"round": 1, "step": len(work.batches)}[self.alpha_update] if self.adaptive else 0
        point = work.descend(
            objective,
            Mixture(payload.w, personal.v, personal.alpha),
            work.batches[:moves],
            rates={"alpha": self.alpha_lr or work.sgd.lr},
            project=lambda p: p._replace(alpha=p.alpha.clamp(0.0, 1.0)),
        )
        point = work.descend(objective, point, work.batches[moves:], hold=("alpha",))
        return Model(point.w), Personal(point.v, point.alpha)

    def adapts(self) -> int:
        """A batch of its own training data for each step before it predicts."""
        return self.predict_steps

    def predictor(self, work: Work, payload: Model, personal: Personal) -> Tree:
        """v̄ = α v + (1 − α) w with the newest w, or after local steps from there."""
        if self.predict_steps:
            payload, personal = self.local_update(work, payload, personal)
        return mix(personal.v, payload.w, personal.alpha)

    def newcomer(self, work: Work, payload: Model, shared: Tree) -> Tree:
        """Equation 17: v starts at the shared model and takes steps with w and α fixed.

        In the paper's figure 6 newcomers step with w and α too, as clients do before they predict
        where ``predict_steps`` asks for it.
        """
        if self.predict_steps:
            own = self.init_personal(work.task, 0)._replace(v=shared)
            return self.predictor(work, Model(shared), own)

        def objective(v: Tree, batch: Batch) -> Tensor:
            return work.task.loss(mix(v, shared, self.alpha), batch)

        return mix(work.descend(objective, shared, work.batches), shared, self.alpha)

    def diagnostics(self, personal: Personal, shared: Tree) -> Tree:
        """α, the size of the own model, and its distance from the shared one."""
        own = {"personal_norm": norm(personal.v), "drift": distance(personal.v, shared)}
        return {"alpha": personal.alpha, **own}

    def assembled(self) -> AnyScheme:
        """With the output of theorem 3 where it is asked for."""
        if self.output == "average" and self.predict_steps:
            raise BadInput(
                "apfl.predict-steps must be 0 with apfl.output='average', which is an average over "
                "the steps of training."
            )
        return self if self.output == "last" else Averaged(self, self.average())

    def average(self) -> Average[Mixture, Personal]:
        """The averages v̂ and ŵ over the points after each step, weighted by p_t."""
        return Average(
            shared=lambda before, after: after.w,
            own=lambda before, after: after.v,
            start=lambda task: task.initial,
            weight=lambda t: (t + self.output_offset) ** 2,
            predict=lambda shared, own, personal: mix(own, shared, personal.alpha),
            judged=True,
        )
