"""The schemes. ``SCHEMES[name]`` is the only dispatch."""

from strategies import (
    apfl,
    ditto,
    fedalt,
    fedavg,
    fedprox,
    fedsim,
    finetune,
    local,
    perfedavg,
    pfedme,
    plsgd,
    scaffold,
)
from strategies.core.scheme import Scheme

SCHEMES: dict[str, Scheme] = {
    module.SCHEME.name: module.SCHEME
    for module in (
        fedavg,
        local,
        apfl,
        fedsim,
        fedalt,
        plsgd,
        perfedavg,
        ditto,
        pfedme,
        finetune,
        fedprox,
        scaffold,
    )
}
