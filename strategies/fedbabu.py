"""FedBABU: everybody trains the body under a head that stays at random, and tunes at the end.

Oh, Kim and Yun (2022), *FedBABU: toward enhanced representation for federated image
classification*, algorithm 1.

====================  ==========================================================
paper                 here
====================  ==========================================================
θ_{G,ext}             ``payload.w``, then ``upload.w``: the body
θ_{G,cls}             the head, which ``personal.split`` chooses, at its initial value
τ                     local steps, on the body alone
n_k / n               the uploads' weights (``examples``)
τ_f                   ``fedbabu.steps``, of fine-tuning before a client predicts
====================  ==========================================================

The head is the same on all devices, is made from the seed, and never moves in training: it is
neither sent nor kept. A client tunes the whole model to its training data before it predicts, as
the paper does unless it says otherwise, or with ``fedbabu.tunes`` the body or the head alone. The
paper counts τ_f in passes over the data, here it is in steps, as for
``finetune``. The shared model that is reported is the body with the random head.
"""

from dataclasses import dataclass

from bouquet.core.config import MOST_STEPS, key
from bouquet.core.scheme import Averaging, Model, Work
from bouquet.core.task import Task
from bouquet.core.trees import Nothing, Tree
from bouquet.strategies.fedsim import Parts, merge, split

# The part that rests while a client tunes.
RESTS = {"full": (), "body": ("v",), "head": ("u",)}


@dataclass(frozen=True)
class FedBABU(Averaging[Nothing]):
    """Body aggregation and body update."""

    name = "fedbabu"
    title = "Body aggregation and body update"
    paper = "Oh, Kim and Yun 2022, algorithm 1"
    shares = "the body after its local steps; the head stays as it was made from the seed"
    keeps = "nothing; it tunes the received body and the random head when it predicts"
    weights = "examples"
    clips = "all"

    steps: int = key(
        10,
        "steps a client takes before it predicts",
        low=0,
        high=MOST_STEPS,
        degenerate="0 predicts with the random head",
    )
    tunes: str = key("full", "what those steps move", choices=tuple(RESTS))

    def personal_part(self, split: str) -> str:
        """The head."""
        return split

    def init_server(self, task: Task) -> Model:
        """The server holds the body only."""
        return Model(split(task, task.initial).u)

    def shared(self, task: Task, payload: Model) -> Tree:
        """The body under the random head."""
        return merge(Parts(payload.w, split(task, task.initial).v))

    def begins_at(self, work: Work, payload: Model, personal: Nothing) -> Tree:
        """The same."""
        return self.shared(work.task, payload)

    def local_update(self, work: Work, payload: Model, personal: Nothing) -> tuple[Model, Nothing]:
        """τ steps on the body, the head at rest."""
        whole = self.shared(work.task, payload)
        return Model(self.moved(work, whole, rests=("v",)).u), personal

    def moved(self, work: Work, whole: Tree, rests: tuple[str, ...]) -> Parts:
        """Body and head after steps in which one of them may rest."""
        return work.descend(
            lambda parts, batch: work.task.loss(merge(parts), batch),
            split(work.task, whole),
            work.batches,
            hold=rests,
        )

    def adapts(self) -> int:
        """A batch of its own training data for each step."""
        return self.steps

    def predictor(self, work: Work, payload: Model, personal: Nothing) -> Tree:
        """Body and head tuned to the client's data."""
        return self.newcomer(work, payload, self.shared(work.task, payload))

    def newcomer(self, work: Work, payload: Model, shared: Tree) -> Tree:
        """A newcomer tunes as everybody does, by as many steps as it is given."""
        return merge(self.moved(work, shared, RESTS[self.tunes]))
