"""Files that are there whole or not at all, and know when they were damaged."""

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from bouquet.core.trees import Tree, sha256
from bouquet.storage.atomic import put, write_aside, write_atomically
from bouquet.storage.files import BadFile, seal, unseal

KIND = "bouquet-test-1"
HEADER = {"round": "7", "client": "ä/b"}
TREE = {"w": torch.arange(6, dtype=torch.float32).reshape(2, 3), "alpha": torch.tensor(0.5)}

words = st.text(st.characters(codec="utf-8"))
arrays = npst.arrays(
    st.sampled_from([np.float32, np.float64, np.int64]),
    npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
)
trees = st.dictionaries(words, arrays.map(lambda array: torch.from_numpy(np.asarray(array))))
# The folder is one for all examples; each writes the file anew.
checked = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def written(folder: Path, content: bytes) -> Path:
    path = folder / "state.safetensors"
    path.write_bytes(content)
    return path


def refusal(path: Path, kind: str = KIND) -> str:
    """Why a file is refused; it must say which one, and leave it as it is."""
    before = path.read_bytes()
    with pytest.raises(BadFile) as refused:
        unseal(path, kind)
    assert path.read_bytes() == before
    assert str(path) in str(refused.value)
    return str(refused.value)


def out_of_space(*args: object) -> NoReturn:
    raise OSError(28, "No space left on device")


# Sealed files


@checked
@given(st.dictionaries(words, words), trees)
def test_header_and_tensors_come_back_as_they_were(
    tmp_path: Path, header: dict[str, str], tree: Tree
) -> None:
    header = {name: word for name, word in header.items() if name not in ("format", "checksum")}
    found, tensors = unseal(written(tmp_path, seal(KIND, header, tree)), KIND)
    assert found == {"format": KIND, **header}
    assert sha256(tensors) == sha256(tree)


def test_a_tensor_that_is_not_laid_out_row_by_row_can_be_sealed(tmp_path: Path) -> None:
    path = written(tmp_path, seal(KIND, {}, {"w": TREE["w"].mT}))
    assert torch.equal(unseal(path, KIND)[1]["w"], TREE["w"].mT)


def test_a_file_cut_short_anywhere_is_refused_by_name(tmp_path: Path) -> None:
    content = seal(KIND, HEADER, TREE)
    for length in range(len(content)):
        assert "is damaged" in refusal(written(tmp_path, content[:length]))


def test_a_file_with_something_at_its_end_is_refused_by_name(tmp_path: Path) -> None:
    assert "is damaged" in refusal(written(tmp_path, seal(KIND, HEADER, TREE) + b"\0"))


def test_a_file_with_any_bit_turned_over_is_refused_by_name(tmp_path: Path) -> None:
    content = seal(KIND, HEADER, TREE)
    for place, bit in itertools.product(range(len(content)), range(8)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << bit
        refusal(written(tmp_path, bytes(damaged)))


@pytest.mark.parametrize(
    ("found", "instead"), [(b"[2,3]", b"[3,2]"), (b"[2,3]", b"[6,1]"), (b'"F32"', b'"I32"')]
)
def test_a_file_whose_tensors_changed_shape_or_type_is_refused(
    tmp_path: Path, found: bytes, instead: bytes
) -> None:
    content = seal(KIND, HEADER, TREE)
    assert found in content
    assert "is damaged" in refusal(written(tmp_path, content.replace(found, instead)))


def test_a_file_whose_header_was_edited_is_refused(tmp_path: Path) -> None:
    content = seal(KIND, HEADER, TREE)
    assert b'"round":"7"' in content
    edited = content.replace(b'"round":"7"', b'"round":"8"')
    assert "its checksum is wrong" in refusal(written(tmp_path, edited))


def test_a_file_of_another_kind_is_refused_with_both_kinds_named(tmp_path: Path) -> None:
    path = written(tmp_path, seal(KIND, HEADER, TREE))
    assert f"is {KIND}, not bouquet-other-1;" in refusal(path, "bouquet-other-1")


def test_a_plain_safetensors_file_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import save

    assert f"is an unknown format, not {KIND};" in refusal(written(tmp_path, save(TREE)))


@pytest.mark.parametrize("content", [b"", b"hello", b"\x80\x04N.", b"PK\x03\x04", b"\xff" * 100])
def test_what_is_no_safetensors_file_at_all_is_refused(tmp_path: Path, content: bytes) -> None:
    assert "is damaged" in refusal(written(tmp_path, content))


# Atomic writing


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = written(tmp_path, b"old")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_written_aside_does_not_show_until_it_is_put(tmp_path: Path) -> None:
    path = written(tmp_path, b"old")
    aside = write_aside(path, b"new")
    assert path.read_bytes() == b"old"
    put(aside, path)
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("fails", ["fsync", "replace"])
def test_writing_that_fails_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    path = written(tmp_path, b"old")
    monkeypatch.setattr(os, fails, out_of_space)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_content_is_safe_on_disk_before_it_takes_the_files_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a power cut could leave the new name with none of the content."""
    calls: list[str] = []
    sync, replace = os.fsync, os.replace

    def noted(name: str, call: Callable[..., None]) -> Callable[..., None]:
        def noting(*words: object) -> None:
            calls.append(name)
            call(*words)

        return noting

    monkeypatch.setattr(os, "fsync", noted("sync", sync))
    monkeypatch.setattr(os, "replace", noted("replace", replace))
    write_atomically(tmp_path / "file", b"new")
    assert calls == ["sync", "replace", "sync"]  # the content, the name, the folder
