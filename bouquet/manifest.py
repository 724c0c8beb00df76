"""The file that declares the Flower app and its keys: the checkout's, or the wheel's copy of it."""

import tomllib
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parent
APP = PACKAGE.parent
# Folders that stand beside the package in a checkout; a wheel has them in it. A bundle has all but
# the recipes and the conformance vectors, which no node needs.
BESIDE = ("client_app/", "conformance/", "models/", "recipes/", "server_app/", "strategies/")


def manifest() -> Path:
    """Where it is."""
    packaged = Path(__file__).with_name("pyproject.toml")
    return packaged if packaged.exists() else APP / "pyproject.toml"


def flower_app() -> dict[str, Any]:
    """What it tells Flower."""
    told: dict[str, Any] = tomllib.loads(manifest().read_text("utf-8"))["tool"]["flwr"]["app"]
    return told
