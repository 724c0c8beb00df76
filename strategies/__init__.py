"""The schemes: one file each, found by name or by import path."""

from strategies.registry import SCHEMES

__all__ = ["SCHEMES"]
