"""Readers of official files, on tiny files in the official formats."""

import gzip
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.io import savemat

from bouquet.core.errors import BadInput
from bouquet.data import DataConfig, FederatedData, load
from bouquet.data.archives import arrays_of
from bouquet.data.text import ALPHABET
from tests.unit.test_data import DTYPE, own

RNG = np.random.default_rng(0)


def read(name: str, path: Path, **keys: Any) -> FederatedData:
    return load(DataConfig(name=name, path=str(path), **keys), 0, DTYPE)


# Images


def idx(array: np.ndarray[Any, np.dtype[np.uint8]]) -> bytes:
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()


def write_idx(folder: Path, train: int = 30, test: int = 10, packed: bool = False) -> Any:
    images = RNG.integers(0, 256, (train + test, 28, 28), dtype=np.uint8)
    labels = (np.arange(train + test) % 10).astype(np.uint8)
    folder.mkdir(parents=True, exist_ok=True)
    for part, chosen in (("train", slice(train)), ("t10k", slice(train, None))):
        for what, array in (("images-idx3", images[chosen]), ("labels-idx1", labels[chosen])):
            content = idx(array)
            file = folder / f"{part}-{what}-ubyte"
            if packed:
                Path(f"{file}.gz").write_bytes(gzip.compress(content))
            else:
                file.write_bytes(content)
    return images, labels


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
@pytest.mark.parametrize("packed", [False, True])
def test_idx_files_are_read_plain_or_packed(tmp_path: Path, name: str, packed: bool) -> None:
    images, labels = write_idx(tmp_path, packed=packed)
    data = read(name, tmp_path, clients=2, partition="iid")
    assert data.x.shape == (40, 1, 28, 28)
    assert data.x.dtype == DTYPE
    assert torch.equal(data.x[:, 0], torch.from_numpy(images).to(DTYPE) / 255)
    assert data.y.tolist() == labels.tolist()


def test_a_folder_of_torchvision_is_read(tmp_path: Path) -> None:
    write_idx(tmp_path / "MNIST" / "raw")
    assert len(read("mnist", tmp_path, clients=2, partition="iid").x) == 40


def test_what_torchvision_fetched_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOUQUET_CACHE", str(tmp_path))
    write_idx(tmp_path / "torchvision" / "FashionMNIST" / "raw", packed=True)
    data = load(DataConfig(name="fashion-mnist", clients=2, partition="iid"), 0, DTYPE)
    assert len(data.x) == 40


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "it is not an idx file"),
        (idx(np.zeros((30, 28, 28), dtype=np.uint8))[:-1], "cannot reshape"),
        (idx(np.zeros((30, 8, 8), dtype=np.uint8)), "cannot be read: "),
        (gzip.compress(b"x" * 999)[:-9], "cannot be read: "),
    ],
    ids=["empty", "truncated", "small", "half packed"],
)
def test_damaged_idx_files_are_refused(tmp_path: Path, content: bytes, sentence: str) -> None:
    write_idx(tmp_path)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(content)
    with pytest.raises(BadInput, match=sentence):
        read("mnist", tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="has no train-images-idx3-ubyte, as the official"):
        read("mnist", tmp_path)
    write_idx(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(BadInput, match="cannot be read: No such file"):
        read("mnist", tmp_path)
    with pytest.raises(BadInput, match=r"data.path '.*none' is not a directory"):
        read("mnist", tmp_path / "none")


def cifar(folder: Path, save: Callable[[Path, Any, Any], object]) -> tuple[Any, Any]:
    pixels = RNG.integers(0, 256, (12, 3072), dtype=np.uint8)
    labels = np.arange(12) % 10
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    for number, name in enumerate(names):
        chosen = slice(2 * number, 2 * number + 2)
        save(folder / name, pixels[chosen], labels[chosen])
    return pixels, labels


def save_binary(path: Path, pixels: Any, labels: Any) -> None:
    rows = np.concatenate([labels[:, None].astype(np.uint8), pixels], axis=1)
    Path(f"{path}.bin").write_bytes(rows.tobytes())


def save_python(path: Path, pixels: Any, labels: Any) -> None:
    """As Python 2 and an old numpy wrote them, protocol 2."""
    batch = {b"data": pixels, b"labels": labels.tolist(), b"batch_label": b"one"}
    content = pickle.dumps(batch, protocol=2)
    path.write_bytes(content.replace(b"numpy._core.multiarray", b"numpy.core.multiarray"))


@pytest.mark.parametrize("save", [save_binary, save_python])
def test_both_versions_of_cifar10_are_read(
    tmp_path: Path, save: Callable[[Path, Any, Any], object]
) -> None:
    pixels, labels = cifar(tmp_path, save)
    data = read("cifar10", tmp_path, clients=2, partition="iid")
    assert data.x.shape == (12, 3, 32, 32)
    assert torch.equal(data.x, torch.from_numpy(pixels.reshape(-1, 3, 32, 32)).to(DTYPE) / 255)
    assert data.y.tolist() == labels.tolist()


class _Evil:
    def __reduce__(self) -> Any:
        return (exec, ("raise SystemExit('ran')",))


def test_a_pickle_can_run_nothing(tmp_path: Path) -> None:
    cifar(tmp_path, save_python)
    for protocol in (0, 2, 4):
        evil = pickle.dumps({b"data": _Evil()}, protocol=protocol)
        with pytest.raises(pickle.UnpicklingError, match=r"asks for .*exec, refused"):
            arrays_of(evil)
        (tmp_path / "data_batch_1").write_bytes(evil)
        with pytest.raises(BadInput, match=r"cannot be read: it asks for .*exec, refused"):
            read("cifar10", tmp_path)


@pytest.mark.parametrize("name", ["os.system", "numpy.load", "builtins.getattr", "codecs.decode"])
def test_a_pickle_gets_no_other_names(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    with pytest.raises(pickle.UnpicklingError, match="refused"):
        arrays_of(f"c{module}\n{attribute}\n.".encode())


def test_emnist_is_read_from_leafs_files(tmp_path: Path) -> None:
    for part, counts in (("train", {"f01": 6, "f02": 4}), ("test", {"f01": 2})):
        users = {
            user: {"x": RNG.random((count, 784)).tolist(), "y": [61] * count}
            for user, count in counts.items()
        }
        (tmp_path / part).mkdir()
        file = {"users": list(users), "num_samples": list(counts.values()), "user_data": users}
        (tmp_path / part / f"all_data_0_{part}.json").write_text(json.dumps(file))
    data = read("emnist-writers", tmp_path)
    assert data.x.shape == (12, 1, 28, 28)
    assert {client: len(own(data, client)) for client in data.clients} == {"f01": 8, "f02": 4}
    assert data.classes == 62
    assert set(data.y.tolist()) == {61}


def test_emnist_without_files_or_with_other_labels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"data\.path must name the directory with"):
        load(DataConfig(name="emnist-writers"), 0, DTYPE)
    with pytest.raises(BadInput, match="has no JSON files of LEAF"):
        read("emnist-writers", tmp_path)
    users = {"a": {"x": [[0] * 784] * 2, "y": [1, 62]}}
    (tmp_path / "one.json").write_text(json.dumps({"user_data": users}))
    with pytest.raises(BadInput, match="an image and a label from 0 to 61 each"):
        read("emnist-writers", tmp_path)


# Sensors


def write_har(folder: Path) -> None:
    for part, subjects in (("train", [1, 1, 1, 3, 3, 3]), ("test", [2, 2, 2, 2])):
        (folder / part).mkdir()
        rows = [" ".join(f"{value: .7e}" for value in RNG.random(561)) for _ in subjects]
        (folder / part / f"X_{part}.txt").write_text("".join(f"  {row}\n" for row in rows))
        activities = [number % 6 + 1 for number in range(len(subjects))]
        for what, numbers in (("y", activities), ("subject", subjects)):
            text = "".join(f"{number}\n" for number in numbers)
            (folder / part / f"{what}_{part}.txt").write_text(text)


def test_uci_har_is_read_by_subject(tmp_path: Path) -> None:
    write_har(tmp_path)
    data = read("uci-har", tmp_path)
    assert data.x.shape == (10, 561)
    assert {client: len(own(data, client)) for client in data.clients} == {
        "01": 3,
        "02": 4,
        "03": 3,
    }
    assert data.y.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3]
    assert data.classes == 6


def test_uci_har_with_a_line_too_few_is_refused(tmp_path: Path) -> None:
    write_har(tmp_path)
    (tmp_path / "test" / "y_test.txt").write_text("1\n2\n")
    with pytest.raises(BadInput, match="must have a line per example"):
        read("uci-har", tmp_path)


def test_vehicle_is_read_by_sensor(tmp_path: Path) -> None:
    sizes = [5, 8]
    cells = {"X": np.empty((1, 2), dtype=object), "Y": np.empty((1, 2), dtype=object)}
    for number, size in enumerate(sizes):
        cells["X"][0, number] = RNG.random((size, 100))
        cells["Y"][0, number] = np.where(np.arange(size) % 2, 1.0, -1.0)[:, None]
    savemat(tmp_path / "vehicle.mat", cells)
    for path in (tmp_path, tmp_path / "vehicle.mat"):
        data = read("vehicle", path)
        assert data.x.shape == (13, 100)
        assert [len(own(data, client)) for client in data.clients] == sizes
        assert data.y.tolist() == [0, 1, 0, 1, 0, 0, 1, 0, 1, 0, 1, 0, 1]
        assert data.classes == 2
    (tmp_path / "vehicle.mat").write_bytes(b"nothing")
    with pytest.raises(BadInput, match=r"vehicle.mat cannot be read: "):
        read("vehicle", tmp_path)


# Text


def test_stackoverflow_is_read_by_author(tmp_path: Path) -> None:
    (tmp_path / "stackoverflow.word_count").write_text('{"the": 9, "a": 5, "code": 7}')
    posts = [{"client": "7", "tokens": "the code the zebra"}] * 12 + [
        {"client": "8", "tokens": "a"}
    ]
    lines = "".join(json.dumps(post) + "\n" for post in posts)
    (tmp_path / "train.jsonl").write_text(lines)
    data = read("stackoverflow", tmp_path)
    assert list(data.clients) == ["7"]  # the other has too few words
    stream = [2, 3, 2, 0, 1] * 12
    assert data.x.tolist() == [stream[:20], stream[20:40]]
    assert data.y.tolist() == [stream[1:21], stream[21:41]]
    assert data.x.dtype == data.y.dtype == torch.int64
    assert data.classes == 5


def test_plays_in_a_folder_are_read_by_role(tmp_path: Path) -> None:
    speech = "To be, or not to be\\[!] that is the question_\n" * 30
    (tmp_path / "hamlet.md").write_text(
        f"# Hamlet\n\n_Enter HAMLET_\n\n**HAMLET**  \n{speech}\n**First Clown**  \nAy.  \n"
    )
    data = read("shakespeare", tmp_path)
    assert list(data.clients) == ["hamlet-HAMLET"]
    text = "".join(ALPHABET[number] for number in data.x.flatten())
    assert text.startswith("To be, or not to be[!] that is the question\nTo be")
    assert torch.equal(data.x.flatten()[1:], data.y.flatten()[:-1])
    split = data.clients["hamlet-HAMLET"]
    assert split.train.max() < split.test.min()  # the last is held out
    assert data.classes == len(ALPHABET) == 80
    assert sum(data.label_counts("hamlet-HAMLET")) == 80 * len(split.train)


def write_movies(folder: Path, year: str = "1995") -> None:
    head = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
    rows = "".join(f"{user}\t{film}\t{film + 2}\t{film}\n" for user in (1, 2) for film in (1, 2))
    (folder / "ml-100k.inter").write_text(head + rows)
    films = f"1\tA Film\t{year}\tComedy Drama\n2\tB\t\tDrama\n"
    (folder / "ml-100k.item").write_text("item_id\ttitle\tyear\tclass\n" + films)


def test_movielens_tables_are_read_by_user(tmp_path: Path) -> None:
    write_movies(tmp_path)
    data = read("movielens", tmp_path)
    assert list(data.clients) == ["001", "002"]
    assert data.y[own(data, "001")].sort().values.tolist() == [2, 3]
    assert data.x[data.y == 2].tolist() == [[1, 1, 9.5]] * 2  # comedy, drama, the year
    assert data.x[data.y == 3].tolist() == [[0, 1, 9]] * 2


@pytest.mark.parametrize(
    ("name", "file", "content"),
    [
        ("movielens", "ml-100k.inter", "head\n1\t7\t3\t4\n"),
        ("movielens", "ml-100k.item", "head\n1\n"),
        ("shakespeare", "play.md", b"\xff\xfe"),
        ("emnist-writers", "one.json", "[]"),
        ("emnist-writers", "one.json", '{"user_data": {"a": {"x": [[0]], "y": [1]}}}'),
        ("emnist-writers", "one.json", '{"user_data": {"a": {"y": [1]}}}'),
        ("stackoverflow", "stackoverflow.word_count", "[[1]]"),
        ("stackoverflow", "posts.jsonl", '{"tokens": "a"}\n'),
        ("uci-har", "train/X_train.txt", "1 2\n3\n"),
    ],
)
def test_what_is_not_in_the_official_format_is_named(
    tmp_path: Path, name: str, file: str, content: str | bytes
) -> None:
    write_movies(tmp_path)
    write_har(tmp_path)
    (tmp_path / "stackoverflow.word_count").write_text('{"a": 1}')
    (tmp_path / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(BadInput, match=r"cannot be read: .+\.$"):
        read(name, tmp_path)
