"""MR-MTL: every client its own model, pulled towards the mean of all.

Liu, Hu, Wu and Smith (2022), *On privacy and personalization in cross-silo federated learning*,
mean-regularized multi-task learning, without the noise it adds for privacy.

====================  ====================================================
paper                 here
====================  ====================================================
w_k                   ``personal.w``, and what is uploaded; starts at w̄⁰
w̄                     ``payload.w``, the mean as received this round
λ                     ``mr-mtl.lambda``
η                     ``sgd.lr``
====================  ====================================================

A client's round are steps on f_k(w_k) + (λ/2) ‖w_k − w̄‖² from its own last w_k; the server takes
the uniform mean of the w_k. Clients that sit a round out are not in it, for the server keeps no
model of theirs. Where f_k has curvature L, the steps need η (L + λ) < 2.

A client's own model is what it sends: what the server needs is the sum alone, which a node that
hosts many clients, or secure aggregation, gives it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from bouquet.core.config import key
from bouquet.core.scheme import Averaging, Model, Work
from bouquet.core.task import Batch, Task
from bouquet.core.trees import Tree, distance, half_square, norm


@dataclass(frozen=True)
class MRMTL(Averaging[Model]):
    """Mean-regularized multi-task learning."""

    name = "mr-mtl"
    title = "Mean-regularized multi-task learning"
    paper = "Liu, Hu, Wu and Smith 2022, mean-regularized multi-task learning"
    shares = "w_i, the client's own model after its local steps"
    keeps = "w_i, the same"
    exception = "the mean that models are pulled towards is a mean of the clients' own"
    sent = ("w",)

    strength: float = key(
        0.1,
        "pull of a client's model towards the mean of all",
        name="lambda",
        low=0.0,
        degenerate="0 is Local",
        step=True,
    )

    def init_personal(self, task: Task, examples: int) -> Model:
        """Everyone starts at the initial weights."""
        return Model(task.initial)

    def local_update(self, work: Work, payload: Model, personal: Model) -> tuple[Model, Model]:
        """Steps from the client's own model; what it sends is what it keeps."""
        own = Model(self.pulled(work, personal.w, payload.w, work.batches))
        return own, own

    def pulled(self, work: Work, w: Tree, mean: Tree, batches: Sequence[Batch]) -> Tree:
        """Steps on f(w) + (λ/2) ‖w − w̄‖²."""

        def objective(w: Tree, batch: Batch) -> Tensor:
            return work.task.loss(w, batch) + self.strength * half_square(w, mean)

        return work.descend(objective, w, batches)

    def predictor(self, work: Work, payload: Model, personal: Model) -> Tree:
        """The client's own model."""
        return personal.w

    def begins_at(self, work: Work, payload: Model, personal: Model) -> Tree:
        """A client's loss is f_k(w_k)."""
        return personal.w

    def newcomer(self, work: Work, payload: Model, shared: Tree) -> Tree:
        """It starts at the mean and is held near it."""
        return self.pulled(work, shared, shared, work.batches)

    def diagnostics(self, personal: Model, shared: Tree) -> Tree:
        """The size of the client's model and its distance from the mean."""
        return {"personal_norm": norm(personal.w), "drift": distance(personal.w, shared)}
