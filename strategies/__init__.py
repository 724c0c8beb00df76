"""The schemes. ``SCHEMES[name]`` is the only dispatch."""

from strategies import apfl, fedavg, local
from strategies.core.scheme import Scheme

SCHEMES: dict[str, Scheme] = {module.SCHEME.name: module.SCHEME for module in (fedavg, local, apfl)}
