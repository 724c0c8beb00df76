"""The command line."""

from bouquet.cli.main import main

__all__ = ["main"]
