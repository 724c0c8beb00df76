"""Where a SuperLink listens, by Flower's version."""

from pathlib import Path

import pytest

from bouquet.core.errors import BadInput
from bouquet.deploy import addresses
from bouquet.deploy.addresses import Addresses
from bouquet.deploy.commands import link_command


def have(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(addresses, "version", {"flwr": version}.__getitem__)


def test_nodes_have_a_port_of_their_own_up_to_1_39(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    have(monkeypatch, "1.39.2")
    found = addresses.addresses("0.0.0.0:9092")
    assert found == Addresses("0.0.0.0:9092", "127.0.0.1:8000")
    words = link_command(tmp_path, found)
    assert words[:5] == ["flower-superlink", "--host", "127.0.0.1", "--port", "8000"]
    assert words[5:7] == ["--fleet-api-address", "0.0.0.0:9092"]
    said = addresses.addresses("0.0.0.0:9092", "10.0.0.1:1234")
    assert said.words[:4] == ["--host", "10.0.0.1", "--port", "1234"]


@pytest.mark.parametrize("version", ["1.40.0", "1.42.0", "2.0.0.dev20270101"])
def test_all_share_a_port_from_1_40_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str
) -> None:
    """Devices must reach it, and runs are still started on this machine."""
    have(monkeypatch, version)
    found = addresses.addresses("0.0.0.0:9092")
    assert found == Addresses("0.0.0.0:9092", "127.0.0.1:9092")
    words = link_command(tmp_path, found)
    assert words[:5] == ["flower-superlink", "--host", "0.0.0.0", "--port", "9092"]
    assert "--fleet-api-address" not in words
    assert addresses.addresses("0.0.0.0:9092", "server:9092").control == "server:9092"
    with pytest.raises(BadInput, match=r"--control must be left out, not '127\.0\.0\.1:8000'"):
        addresses.addresses("0.0.0.0:9092", "127.0.0.1:8000")
