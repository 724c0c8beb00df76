"""Which schemes there are: ours by name, those of installed packages, others by import path."""

import re
from dataclasses import Field
from importlib.metadata import entry_points

from bouquet.core.errors import BadInput
from bouquet.core.scheme import AnyScheme, Scheme
from bouquet.imports import imported, is_path
from bouquet.strategies.afl import AFL
from bouquet.strategies.apfl import APFL
from bouquet.strategies.centralized import Centralized
from bouquet.strategies.dfedu import DFedU
from bouquet.strategies.ditto import Ditto
from bouquet.strategies.fedala import FedALA
from bouquet.strategies.fedalt import FedAlt
from bouquet.strategies.fedavg import FedAvg
from bouquet.strategies.fedbabu import FedBABU
from bouquet.strategies.fedbn import FedBN
from bouquet.strategies.fedper import FedPer
from bouquet.strategies.fedprox import FedProx
from bouquet.strategies.fedrep import FedRep
from bouquet.strategies.fedrod import FedRoD
from bouquet.strategies.fedsim import FedSim
from bouquet.strategies.fedu import FedU
from bouquet.strategies.finetune import Finetune
from bouquet.strategies.ifca import IFCA
from bouquet.strategies.lg_fedavg import LGFedAvg
from bouquet.strategies.local import Local
from bouquet.strategies.minibatch import Minibatch
from bouquet.strategies.mocha import Mocha
from bouquet.strategies.mr_mtl import MRMTL
from bouquet.strategies.perfedavg import PerFedAvg
from bouquet.strategies.pfedme import PFedMe
from bouquet.strategies.plsgd import PLSGD
from bouquet.strategies.scaffold import Scaffold
from bouquet.strategies.tune import Tune

SCHEMES: dict[str, type[AnyScheme]] = {
    scheme.name: scheme
    for scheme in (
        FedAvg,
        Local,
        APFL,
        FedU,
        DFedU,
        FedSim,
        FedAlt,
        FedBN,
        FedPer,
        FedRep,
        LGFedAvg,
        FedBABU,
        FedRoD,
        FedALA,
        IFCA,
        MRMTL,
        PLSGD,
        PerFedAvg,
        Ditto,
        PFedMe,
        Finetune,
        FedProx,
        Scaffold,
        AFL,
        Mocha,
        Minibatch,
        Tune,
        Centralized,
    )
}

# Where installed packages say which schemes they bring.
ENTRY_POINTS = "bouquet.schemes"
# What keys begin with that are no scheme's.
TAKEN = re.compile(r"data|model|personal|join|stage\d*")


def lookup(name: str) -> type[AnyScheme] | None:
    """The scheme of a name: one of ours, of an installed package, or by import path; or none."""
    if name in SCHEMES:
        return SCHEMES[name]
    if is_path(name):
        return _checked(imported(name, "scheme"), name)
    for entry in entry_points(group=ENTRY_POINTS, name=name):
        return _checked(imported(entry.value, "scheme"), name)
    return None


def find(name: str) -> type[AnyScheme]:
    """The scheme of a name, or a sentence that says which there are."""
    found = lookup(name)
    if found is not None:
        return found
    known = [*SCHEMES, *(entry.name for entry in entry_points(group=ENTRY_POINTS))]
    raise BadInput(
        f"scheme must be one of {', '.join(known)}, or package.module:Name or ./file.py:Name for "
        f"one of yours, not {name!r}."
    )


def _checked(found: object, name: str) -> type[AnyScheme]:
    if not isinstance(found, type) or not issubclass(found, Scheme):
        raise BadInput(f"scheme {name!r} must be a subclass of bouquet.Scheme, not {found!r}.")
    ours = found.name in SCHEMES and SCHEMES[found.name] is not found
    if ours or TAKEN.fullmatch(found.name) or not re.fullmatch(r"[a-z][a-z0-9-]*", found.name):
        raise BadInput(
            f"scheme {name!r} must have a name of its own, of small letters, digits and dashes, "
            f"not {found.name!r}."
        )
    if any(isinstance(value, Field) for value in vars(found).values()):
        raise BadInput(
            f"scheme {name!r} must be made a dataclass, with @dataclass(frozen=True), to have keys."
        )
    return found
