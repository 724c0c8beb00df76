"""A user's own data, and that a device opens nobody else's."""

import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from bouquet.core.errors import BadInput
from bouquet.data import DataConfig, FederatedData, Split, load
from bouquet.data.folder import split_up
from tests.unit.test_cli import Bouquet, bouquet
from tests.unit.test_data import DTYPE, equal, own

__all__ = ["bouquet"]

ROOT = Path(__file__).parents[2]


def read(path: Path, only: list[str] | None = None, **keys: Any) -> FederatedData:
    return load(DataConfig(name="folder", path=str(path), **keys), 0, DTYPE, only)


def arrays(place: Path, x: Any, y: Any, name: str = "data") -> None:
    place.mkdir(parents=True, exist_ok=True)
    np.savez(place / f"{name}.npz", x=x, y=y)


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """Anna has 8 examples of two classes, Bert says what he tests on."""
    arrays(tmp_path / "anna", np.arange(16.0).reshape(8, 2), np.arange(8) % 2)
    arrays(tmp_path / "bert", np.ones((3, 2)), [0, 1, 2], "train")
    arrays(tmp_path / "bert", np.zeros((2, 2)), [1, 2], "test")
    (tmp_path / ".hidden").mkdir()
    return tmp_path


def test_directories_of_arrays_are_clients(two: Path) -> None:
    data = read(two)
    assert list(data.clients) == ["anna", "bert"]
    assert data.classes == 3
    assert data.x.dtype == DTYPE
    anna, bert = data.clients.values()
    assert (len(anna.train), len(anna.test)) == (6, 2)
    assert data.x[bert.train].tolist() == [[1, 1]] * 3
    assert data.x[bert.test].tolist() == [[0, 0]] * 2
    assert data.y[bert.test].tolist() == [1, 2]


def test_some_of_the_directories_can_be_drawn(two: Path) -> None:
    assert len(read(two, max_clients=1).clients) == 1
    assert len(read(two, max_clients=9).clients) == 2
    with pytest.raises(BadInput, match=r"data\.downsample must be 0 for a directory .* not 0\.8"):
        read(two, downsample=0.8)


def test_several_files_of_a_client_are_one(tmp_path: Path) -> None:
    for number in range(3):
        arrays(tmp_path / "anna", np.full((2, 1), number), [0, 1], f"day{number}")
    data = read(tmp_path)
    assert data.x[:, 0].tolist() == [0, 0, 1, 1, 2, 2]
    assert data.x.dtype == torch.int64  # whole numbers stand for words


def test_bytes_are_pixels(tmp_path: Path) -> None:
    arrays(tmp_path / "anna", np.array([[0], [255]], dtype=np.uint8), [0, 1])
    assert read(tmp_path).x.tolist() == [[0], [1]]


def test_a_device_opens_its_own_directory_alone(two: Path) -> None:
    (two / "classes.txt").write_text("one\ntwo\nthree\n")
    everyone = read(two)
    # Nobody else's can be read any more, or is even there.
    (two / "bert" / "train.npz").write_bytes(b"not to be opened")
    alone = read(two, only=["anna"])
    assert list(alone.clients) == ["anna"]
    assert alone.classes == 3
    assert len(alone.x) == 8
    split, same = alone.clients["anna"], everyone.clients["anna"]
    assert torch.equal(alone.x[split.train], everyone.x[same.train])
    assert torch.equal(alone.x[split.test], everyone.x[same.test])
    for file in (two / "bert").iterdir():
        file.unlink()
    (two / "bert").rmdir()
    assert equal(read(two, only=["anna"]), alone)
    with pytest.raises(BadInput, match="has no directory of client 'bert'"):
        read(two, only=["bert"])


@pytest.mark.parametrize("client", ["../two", "..", "anna/../anna", "/etc"])
def test_a_client_is_never_a_path(two: Path, client: str) -> None:
    (two / "classes.txt").write_text("a\nb\nc\n")
    with pytest.raises(BadInput, match="has no directory of client"):
        read(two, only=[client])


def test_a_device_must_know_all_classes(two: Path) -> None:
    with pytest.raises(BadInput, match=r"classes.txt is missing: a device"):
        read(two, only=["anna"])


def test_some_clients_of_any_data_set_have_what_they_had_among_all() -> None:
    everyone = load(DataConfig(clients=5), 0, DTYPE)
    some = load(DataConfig(clients=5), 0, DTYPE, only=["003", "001"])
    assert list(some.clients) == ["001", "003"]
    assert len(some.x) == sum(len(own(everyone, client)) for client in ("001", "003"))
    for client, split in some.clients.items():
        same = everyone.clients[client]
        assert torch.equal(some.x[split.train], everyone.x[same.train])
        assert torch.equal(some.y[split.test], everyone.y[same.test])
    with pytest.raises(BadInput, match="There is no client '9' among the 5"):
        load(DataConfig(clients=5), 0, DTYPE, only=["9"])


def test_any_data_set_can_be_split_up_for_devices(tmp_path: Path) -> None:
    whole = load(DataConfig(clients=3), 0, DTYPE)
    split_up(whole, tmp_path / "parts")
    again = read(tmp_path / "parts")
    assert again.classes == 10
    for client, split in whole.clients.items():
        same = again.clients[client]
        assert torch.equal(whole.x[split.train], again.x[same.train])
        assert torch.equal(whole.y[split.test], again.y[same.test])
    with pytest.raises(BadInput, match="is there already; name a new directory"):
        split_up(whole, tmp_path / "parts")


def test_text_can_be_split_up_too(tmp_path: Path) -> None:
    x = torch.arange(40).reshape(5, 8)
    split = Split(torch.arange(3), torch.arange(3, 5))
    split_up(FederatedData(x, x + 1, {"a": split, "b": split}, 41), tmp_path / "parts")
    again = read(tmp_path / "parts")
    assert torch.equal(again.x[again.clients["b"].train], x[:3])
    assert torch.equal(again.y[again.clients["a"].test], x[3:] + 1)
    assert again.x.dtype == torch.int64
    assert again.classes == 41


def image(file: Path, value: int, mode: str = "L", size: tuple[int, int] = (4, 3)) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode == "L" else (value, 0, 0)).save(file)


def test_images_by_class_are_read(tmp_path: Path) -> None:
    for client, kinds in (("anna", "cat"), ("bert", "dog")):
        for number in range(3):
            image(tmp_path / client / kinds / f"{number}.png", 51 * number)
    (tmp_path / "anna" / "cat" / "notes.txt").write_text("no image")
    data = read(tmp_path)
    assert data.x.shape == (6, 1, 3, 4)
    assert data.x[:3, 0, 0, 0].tolist() == pytest.approx([0, 0.2, 0.4])
    assert data.y.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.classes == 2


def test_colour_images_have_three_channels(tmp_path: Path) -> None:
    for number in range(2):
        image(tmp_path / "anna" / "cat" / f"{number}.png", 255, mode="RGB")
    data = read(tmp_path)
    assert data.x.shape == (2, 3, 3, 4)
    assert data.x[0, :, 0, 0].tolist() == [1, 0, 0]


def bad_label(path: Path) -> None:
    arrays(path / "anna", np.zeros((2, 1)), [0.5, 1])


def negative(path: Path) -> None:
    arrays(path / "anna", np.zeros((2, 1)), [-1, 1])


def short(path: Path) -> None:
    arrays(path / "anna", np.zeros((2, 1)), [0])


def objects(path: Path) -> None:
    arrays(path / "anna", np.array([{}, {}]), [0, 1])


def shapes(path: Path) -> None:
    arrays(path / "anna", np.zeros((2, 1)), [0, 1])
    arrays(path / "bert", np.zeros((2, 3)), [0, 1])


def many(path: Path) -> None:
    arrays(path / "anna", np.zeros((2, 1)), [0, 5])
    (path / "classes.txt").write_text("a\nb\n")


def nothing(path: Path) -> None:
    (path / "anna").mkdir()


def truncated(path: Path) -> None:
    arrays(path / "anna", np.zeros((2, 1)), [0, 1])
    file = path / "anna" / "data.npz"
    file.write_bytes(file.read_bytes()[:60])


def nobody(path: Path) -> None:
    pass


def a_pickle(path: Path) -> None:
    (path / "anna").mkdir()
    (path / "anna" / "data.npz").write_bytes(pickle.dumps({"x": [[1.0]], "y": [0]}))


def one_array(path: Path) -> None:
    (path / "anna").mkdir()
    with open(path / "anna" / "data.npz", "wb") as file:
        np.save(file, np.zeros((2, 1)))


def no_labels(path: Path) -> None:
    (path / "anna").mkdir()
    np.savez(path / "anna" / "data.npz", x=np.zeros((2, 1)), label=[0, 1])


def flat(path: Path) -> None:
    arrays(path / "anna", np.zeros(2), [0, 1])


def gap(path: Path) -> None:
    arrays(path / "anna", np.array([[0, 1], [2, np.nan]]), [0, 1])


def infinite(path: Path) -> None:
    arrays(path / "anna", np.array([[0, -np.inf], [2, 1]]), [0, 1])


def too_large(path: Path) -> None:
    arrays(path / "anna", np.array([[0.0], [1e300]]), [0, 1])


def pixels_and_numbers(path: Path) -> None:
    arrays(path / "anna", np.full((2, 1), 255, dtype=np.uint8), [0, 1])
    arrays(path / "bert", np.full((2, 1), 1.0), [0, 1])


def wrong_test_label(path: Path) -> None:
    arrays(path / "anna", np.zeros((2, 1)), [0, 1], "train")
    arrays(path / "anna", np.zeros((2, 1)), [0, 2], "test")
    (path / "classes.txt").write_text("a\nb\n")


def a_third_part(path: Path) -> None:
    for part in ("train", "test", "validation"):
        arrays(path / "anna", np.zeros((2, 1)), [0, 1], part)


def two_kinds(path: Path) -> None:
    arrays(path / "anna", np.zeros((2, 1)), [0, 1])
    (path / "anna" / "cat").mkdir()


def spaces(path: Path) -> None:
    for name in ("anna", "anna "):
        arrays(path / name, np.zeros((2, 1)), [0, 1])


def ages(path: Path) -> None:
    arrays(path / "anna", np.zeros((30, 1)), np.arange(30) + 20)


def class_twice(path: Path) -> None:
    arrays(path / "anna", np.zeros((2, 1)), [0, 1])
    (path / "classes.txt").write_text("cat\ncat\n")


def class_without_name(path: Path) -> None:
    arrays(path / "anna", np.zeros((2, 1)), [0, 1])
    (path / "classes.txt").write_text("cat\n\ndog\n")


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (bad_label, r"data.npz: the labels must be whole numbers from 0"),
        (negative, r"data.npz: the labels must be whole numbers from 0"),
        (short, r"data.npz: x must have as many rows as y, 1, not 2"),
        (objects, r"data.npz cannot be read: its array x is damaged, or holds other things than"),
        (shapes, r"all examples must have one shape, not 1 and 3"),
        (many, r"anna has the label 5, but there are 2 classes"),
        (nothing, r"anna has neither .npz files nor directories of images"),
        (truncated, r"data.npz cannot be read"),
        (nobody, r"has no directories, one for each client"),
        (a_pickle, r"data.npz cannot be read: it is damaged, or no .npz file"),
        (one_array, r"data.npz cannot be read: it is damaged, or no .npz file"),
        (no_labels, r"data.npz must have an array y; it has x, label"),
        (flat, r"data.npz: x must be numbers, a row for each example"),
        (gap, r"data.npz: example 1 of x is NaN at 1, from 0 \(data.missing=mean or zero"),
        (infinite, r"data.npz: example 0 of x is infinite at 1, from 0\."),
        (too_large, r"in torch.float32: example 1 of x is infinite at 0"),
        (pixels_and_numbers, r"of one kind in all files, not bytes \(pixels\) and real numbers"),
        (wrong_test_label, r"anna has the label 2, but there are 2 classes"),
        (a_third_part, r"anna has test.npz: then it must have train.npz and no other"),
        (two_kinds, r"anna has .npz files and directories: only one of them"),
        (spaces, r"has a directory 'anna ': a client's id has no spaces around it"),
        (ages, r"has 50 classes in 30 labels: is it a measurement\? data.labels=classes"),
        (class_twice, r"classes.txt has the class 'cat' twice"),
        (class_without_name, r"classes.txt must have a class's name in each line"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, make: Any, sentence: str) -> None:
    make(tmp_path)
    with pytest.raises(BadInput, match=sentence) as refused:
        read(tmp_path)
    assert "pickle" not in str(refused.value)  # nobody is told to load one


def test_ages_can_be_classes_if_the_user_says_so(tmp_path: Path) -> None:
    ages(tmp_path)
    assert read(tmp_path, labels="classes").classes == 50


def test_classes_keep_their_names(two: Path) -> None:
    assert read(two).names == ("0", "1", "2")
    (two / "classes.txt").write_text("\ufeffcat\nbig  dog \ncow\n\n")
    data = read(two)
    assert data.names == ("cat", "big dog", "cow")
    split_up(data, two / "parts")
    assert (two / "parts" / "classes.txt").read_text() == "cat\nbig dog\ncow\n"


def test_a_client_that_cannot_be_a_directory_is_not_renamed(tmp_path: Path) -> None:
    split = Split(torch.tensor([0]), torch.tensor([1]))
    for client in ("a/b", "..", ".hidden"):
        data = FederatedData(torch.zeros(2, 1), torch.tensor([0, 1]), {client: split}, 2)
        with pytest.raises(BadInput, match="cannot be the name of a directory"):
            split_up(data, tmp_path / "parts")
    data = FederatedData(torch.zeros(2, 1), torch.tensor([0, 1]), {"0 3.a": split}, 2)
    split_up(data, tmp_path / "parts")
    assert list(read(tmp_path / "parts").clients) == ["0 3.a"]


def test_the_documented_example_works(tmp_path: Path, bouquet: Bouquet) -> None:
    text = (ROOT / "docs" / "data.md").read_text()
    (script,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (commands,) = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True)
    for command in commands.splitlines():
        program, *words = command.split()
        assert program == "bouquet"
        done = bouquet(*words)
        assert done.code == 0, done.err
    assert (tmp_path / "run" / "summary.json").exists()
