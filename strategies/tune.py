"""Tune: the server rests, and every client tunes its personal part.

The last stage of Pillutla et al. (2022), section 5: after personalized training, or right after
FedAvg ("FT (part.)"), the clients take steps on v_i with u as it is. In a pipeline the stage is
called ``finetune``; the symbols are those of :mod:`bouquet.strategies.fedsim`. Nothing is sent.

v_i goes on from where the stage before left it, or from the warm start where that stage was
stateless (appendix C.3: what a stateless device had is gone).
"""

from dataclasses import dataclass

from bouquet.core.scheme import Model, Round, Work
from bouquet.core.trees import Nothing
from bouquet.strategies.fedsim import Partial, Personal, tuned


@dataclass(frozen=True)
class Tune(Partial[Nothing]):
    """Fine-tuning of the personal part with the server at rest."""

    name = "tune"
    title = "Fine-tuning of the personal part with the server at rest"
    paper = "Pillutla et al. 2022, section 5: the pipeline's last stage, called finetune there"
    shares = "nothing"
    everyone = True

    def local_update(
        self, work: Work, payload: Model, personal: Personal
    ) -> tuple[Nothing, Personal]:
        """Steps on v with u fixed."""
        parts = self.start(work, payload, personal)
        return Nothing(), Personal(tuned(work, parts, work.batches, self.personal_lr))

    def upload_like(self, server: Model) -> Nothing:
        """Nothing is sent."""
        return Nothing()

    def aggregate(self, server: Model, uploads: Round[Nothing]) -> Model:
        """Nothing came in: the server stays as it is."""
        return server
