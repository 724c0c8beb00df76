"""Our schemes in anybody's Flower app: a Strategy for its ServerApp, and the ClientApp to it.

>>> from bouquet.flower import PersonalizedStrategy, client_app
>>> strategy = PersonalizedStrategy(APFL(alpha=0.3), local_steps=5)  # doctest: +SKIP
>>> strategy.start(grid, ArrayRecord(Net().state_dict()), num_rounds=10)  # doctest: +SKIP
>>> app = client_app(model=Net, data=load, classes=10)  # doctest: +SKIP

What is personal stays on the nodes: in their Context, or on their disk where the node config has a
``state-dir``. A message says what to do and with which keys; model and data are the app's own.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bouquet.client_app.factory import client_app
    from bouquet.server_app.personalized import PersonalizedStrategy

__all__ = ["PersonalizedStrategy", "client_app"]

# The two halves are above this room, whose own modules know Flower and nothing of runs.
_HOMES = {
    "PersonalizedStrategy": "bouquet.server_app.personalized",
    "client_app": "bouquet.client_app.factory",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
