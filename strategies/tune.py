"""Tune: the server rests, and every client tunes its personal part.

The last stage of Pillutla et al. (2022), section 5: after personalized training, or right after
FedAvg ("FT (part.)"), the clients take steps on v_i with u as it is. In a pipeline the stage is
called ``finetune``; the symbols are those of :mod:`strategies.fedsim`. Nothing is sent.

v_i goes on from where the stage before left it, or from the warm start where that stage was
stateless (appendix C.3: what a stateless device had is gone).
"""

from dataclasses import replace
from typing import Any

from strategies import fedsim
from strategies.core.scheme import Model, Round, Work
from strategies.core.trees import Nothing
from strategies.fedsim import Personal
from strategies.local import nothing


def local_update(
    work: Work[fedsim.Config], payload: Model, personal: Personal
) -> tuple[Nothing, Personal]:
    """Steps on v with u fixed."""
    parts = fedsim.start(work, payload, personal)
    return Nothing(), Personal(fedsim.own_steps(work, parts, work.batches))


def aggregate(config: fedsim.Config, server: Model, uploads: Round) -> Any:
    """Nothing came in: the server stays as it is."""
    return server


SCHEME = replace(
    fedsim.SCHEME,
    name="tune",
    title="Fine-tuning of the personal part with the server at rest",
    paper="Pillutla et al. 2022, section 5: the pipeline's last stage, called finetune there",
    shares="nothing",
    upload=Nothing,
    upload_like=nothing,
    local_update=local_update,
    aggregate=aggregate,
)
