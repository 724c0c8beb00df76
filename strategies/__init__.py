"""The schemes. ``SCHEMES[name]`` is the only dispatch."""

from strategies import (
    afl,
    apfl,
    centralized,
    dfedu,
    ditto,
    fedalt,
    fedavg,
    fedprox,
    fedsim,
    fedu,
    finetune,
    local,
    minibatch,
    mocha,
    perfedavg,
    pfedme,
    plsgd,
    scaffold,
    tune,
)
from strategies.core.scheme import Scheme

SCHEMES: dict[str, Scheme] = {
    module.SCHEME.name: module.SCHEME
    for module in (
        fedavg,
        local,
        apfl,
        fedu,
        dfedu,
        fedsim,
        fedalt,
        plsgd,
        perfedavg,
        ditto,
        pfedme,
        finetune,
        fedprox,
        scaffold,
        afl,
        mocha,
        minibatch,
        tune,
        centralized,
    )
}
