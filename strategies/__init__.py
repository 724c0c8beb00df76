"""The schemes: one file each, found by name or by import path."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bouquet.strategies.registry import SCHEMES

__all__ = ["SCHEMES"]


def __getattr__(name: str) -> Any:
    # Not before it is needed: schemes import PyTorch, and errors and keys are below this package.
    if name == "SCHEMES":
        from bouquet.strategies.registry import SCHEMES

        return SCHEMES
    raise AttributeError(f"module 'strategies' has no attribute {name!r}")
