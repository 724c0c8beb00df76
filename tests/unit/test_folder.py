"""A user's own data, and that a device opens nobody else's."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from data import DataConfig, FederatedData, Split, load
from data.folder import split_up
from strategies.core.errors import BadInput
from tests.unit.test_data import DTYPE, equal, own

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


def test_a_table_has_a_column_that_says_whose(tmp_path: Path) -> None:
    rows = [f"{'anna' if number < 4 else 'bert'},{number},yes" for number in range(7)]
    (tmp_path / "t.csv").write_text("client,size,label\n" + "\n".join(rows) + "\nbert,9,no\n")
    data = read(tmp_path / "t.csv")
    assert {client: len(own(data, client)) for client in data.clients} == {"anna": 4, "bert": 4}
    assert data.x.flatten().tolist() == [0, 1, 2, 3, 4, 5, 6, 9]
    assert data.y.tolist() == [1] * 7 + [0]
    assert list(read(tmp_path / "t.csv", only=["anna"]).clients) == ["anna"]


def test_labels_that_are_numbers_go_by_size(tmp_path: Path) -> None:
    rows = [f"anna,0,{label}\n" for label in (10, 9, 2, 10)]
    (tmp_path / "t.csv").write_text("client,x,label\n" + "".join(rows))
    assert read(tmp_path / "t.csv").y.tolist() == [2, 1, 0, 2]


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


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (bad_label, r"data.npz: the labels must be whole numbers from 0"),
        (negative, r"data.npz: the labels must be whole numbers from 0"),
        (short, r"data.npz: x must be numbers and have as many rows as y"),
        (objects, r"data.npz cannot be read: Object arrays cannot be loaded"),
        (shapes, r"all examples must have one shape, not 1 and 3"),
        (many, r"anna has the label 5, but there are 2 classes"),
        (nothing, r"anna has neither .npz files nor directories of images"),
        (truncated, r"data.npz cannot be read"),
        (nobody, r"has no directories, one for each client"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, make: Any, sentence: str) -> None:
    make(tmp_path)
    with pytest.raises(BadInput, match=sentence):
        read(tmp_path)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "must have a column 'client'"),
        ("client,x\na,1\n", "must have a column 'label'"),
        ("client,x,label\na,b,1\n", "an input must be a number"),
    ],
)
def test_a_wrong_table_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(BadInput, match=sentence):
        read(tmp_path / "t.csv")


def test_the_documented_example_works(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "data.md").read_text()
    (script,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (commands,) = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True)
    run = "import sys; sys.path.insert(0, {!r}); from bouquet.cli import main; main()"
    for command in commands.splitlines():
        program, *words = command.split()
        assert program == "bouquet"
        done = subprocess.run(
            [sys.executable, "-c", run.format(str(ROOT)), *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "summary.json").exists()
