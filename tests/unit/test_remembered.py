"""Partitions that were drawn before are not drawn again, and are the same."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bouquet.data import DataConfig, partitions, remembered
from bouquet.data.partitions import Indices, partition

LABELS = np.arange(120) % 10
CONFIG = DataConfig(clients=6, partition="pathological")
OTHERS = [
    {"clients": 5},
    {"partition": "iid"},
    {"partition": "dirichlet"},
    {"partition": "dirichlet", "dirichlet_alpha": 5.0},
    {"classes_per_client": 3},
]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BOUQUET_CACHE", str(tmp_path))
    return tmp_path / "partitions"


def forbid_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    def draw(*_: object) -> list[Indices]:
        raise AssertionError("drawn again")

    monkeypatch.setattr(partitions, "_drawn", draw)


def same(one: list[Indices], other: list[Indices]) -> bool:
    pairs = zip(one, other, strict=True)
    return len(one) == len(other) and all(
        a.dtype == b.dtype and np.array_equal(a, b) for a, b in pairs
    )


def test_what_was_drawn_is_not_drawn_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = partition(LABELS, CONFIG, seed=3)
    forbid_drawing(monkeypatch)
    assert same(partition(LABELS, CONFIG, seed=3), first)


@pytest.mark.parametrize("changes", OTHERS, ids=str)
def test_another_partition_is_another_one(
    cache: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object]
) -> None:
    """Each key that counts is part of what a partition is known by."""
    partition(LABELS, CONFIG, seed=3)
    partition(LABELS, replace(CONFIG, partition="dirichlet"), seed=3)
    known = partition(LABELS, replace(CONFIG, **changes), seed=3)  # type: ignore[arg-type]
    monkeypatch.setenv("BOUQUET_CACHE", str(cache.parent / "empty"))
    assert same(known, partition(LABELS, replace(CONFIG, **changes), seed=3))  # type: ignore[arg-type]


def test_seed_and_labels_count(cache: Path) -> None:
    first = partition(LABELS, CONFIG, seed=3)
    assert not same(partition(LABELS, CONFIG, seed=4), first)
    assert not same(partition(LABELS[::-1].copy(), CONFIG, seed=3), first)
    assert len(list(cache.iterdir())) == 3


def test_a_damaged_file_is_drawn_and_written_anew(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = partition(LABELS, CONFIG, seed=3)
    (file,) = cache.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[:-8] + b"\1" * 8)
    assert same(partition(LABELS, CONFIG, seed=3), first)
    file.write_bytes(whole[:40])
    assert same(partition(LABELS, CONFIG, seed=3), first)
    forbid_drawing(monkeypatch)
    assert same(partition(LABELS, CONFIG, seed=3), first)


def test_without_a_place_to_write_partitions_are_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BOUQUET_CACHE", str(tmp_path / "file"))
    assert len(partition(LABELS, CONFIG, seed=3)) == CONFIG.clients


def test_only_the_newest_are_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "MOST", 2)
    for seed in range(3):
        partition(LABELS, CONFIG, seed)
    assert len(list(cache.iterdir())) == 2
    forbid_drawing(monkeypatch)
    partition(LABELS, CONFIG, seed=2)
