"""FedAlt: first the personal parameters move, then the shared ones.

Pillutla et al. (2022), *Federated learning with partial model personalization*,
algorithm 1 with LocalAlt (algorithm 3); the symbols are those of
:mod:`strategies.fedsim`.

====================  ====================================================
paper                 here
====================  ====================================================
τ_v                   ``fedalt.personal-steps``, on v with u as received
τ_u                   local steps, on u with the new v
γ_v                   ``fedalt.personal-lr``
====================  ====================================================
"""

from dataclasses import dataclass, replace

from strategies import fedsim
from strategies.core.config import MOST_STEPS, key
from strategies.core.descent import descend
from strategies.core.scheme import Model, Work
from strategies.fedsim import Parts, Personal, merge


@dataclass(frozen=True)
class Config(fedsim.Config):
    """FedAlt's keys."""

    personal_steps: int = key(
        0, "steps of the personal part; 0 = local-steps", low=0, high=MOST_STEPS
    )


def draws(config: Config, steps: int) -> int:
    """Batches for whichever part takes more steps."""
    return max(steps, config.personal_steps)


def local_update(work: Work[Config], payload: Model, personal: Personal) -> tuple[Model, Personal]:
    """τ_v steps on v, then τ_u steps on u."""
    config, loss = work.config, work.task.loss
    u, v = fedsim.start(work, payload, personal)
    own = work.batches[: config.personal_steps] if config.personal_steps else work.local_batches
    v = fedsim.own_steps(work, Parts(u, v), own)
    u = descend(lambda u, batch: loss(merge(Parts(u, v)), batch), u, work.local_batches, work.sgd)
    return Model(u), Personal(v)


SCHEME = replace(
    fedsim.SCHEME,
    name="fedalt",
    title="Partial personalization, one part after the other",
    paper="Pillutla et al. 2022, algorithms 1 and 3 (LocalAlt)",
    config=Config,
    draws=draws,
    local_update=local_update,
)
