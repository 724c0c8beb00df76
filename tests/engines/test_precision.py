"""Mixed precision on both engines."""

from collections.abc import Callable
from typing import Any

from tests.conftest import Run


def test_bf16_gives_the_same_bits_inline_and_on_ray(start: Callable[..., Run]) -> None:
    keys: dict[str, Any] = {
        "scheme": "apfl",
        "rounds": 2,
        "nodes": 2,
        "amp": "bf16",
        "data": {"clients": 4},
    }
    inline, ray = start(**keys), start(engine="ray", **keys)
    assert inline.sha == ray.sha
    columns = ("client", "shared_loss", "personal_loss", "alpha")
    assert [[one[name] for name in columns] for one in inline.clients] == [
        [one[name] for name in columns] for one in ray.clients
    ]
