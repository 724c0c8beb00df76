"""Values to predict and several labels an example: from files, from memory, and refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bouquet.core.errors import BadInput
from bouquet.data import DataConfig, FederatedData, Split, load
from bouquet.data.folder import split_up
from bouquet.data.memory import in_memory, write_clients
from bouquet.imports import offer
from bouquet.problem import problem
from bouquet.settings import parse
from tests.unit.test_data import DTYPE
from tests.unit.test_folder import arrays, read
from tests.unit.test_table import rows, table

VALUES: dict[str, Any] = {"labels": "values", "label_column": "height"}
SEVERAL: dict[str, Any] = {"labels": "several", "label_column": "sea,city"}


# Tables


def test_a_column_of_numbers_is_what_is_predicted(tmp_path: Path) -> None:
    text = rows("client,rain,height", "a,1,0.5", "a,2,-3", "b,3,1e2", "b,4,7")
    data = table(tmp_path, text, **VALUES)
    assert data.y.tolist() == [[0.5], [-3], [100], [7]]
    assert (data.y.dtype, data.classes, data.names) == (DTYPE, 1, ("height",))
    assert (data.targets, data.inputs) == ("values", ("rain",))
    assert data.label_counts("a") == []


def test_several_columns_are_predicted_together_in_the_order_they_are_named(tmp_path: Path) -> None:
    text = rows("width,client,height,rain", "1,a,2,3", "4,a,5,6")
    data = table(tmp_path, text, labels="values", label_column="height, width")
    assert data.y.tolist() == [[2, 1], [5, 4]]
    assert (data.names, data.inputs) == (("height", "width"), ("rain",))


def test_columns_of_0_and_1_are_labels_an_example_may_have_any_of(tmp_path: Path) -> None:
    text = rows("client,red,sea,city", "a,1,0,1", "a,2,1,1.0", "a,3,0,0")
    data = table(tmp_path, text, **SEVERAL)
    assert data.y.tolist() == [[0, 1], [1, 1], [0, 0]]
    assert (data.targets, data.names) == ("several", ("sea", "city"))
    train = data.clients["a"].train
    assert data.label_counts("a") == data.y[train].sum(dim=0).tolist()


def test_a_cell_may_name_the_labels_with_semicolons_between(tmp_path: Path) -> None:
    text = rows("client,x,label", "a,1,sea; city", "a,2,", "a,3,big  forest", "a,4,city")
    data = table(tmp_path, text, labels="several")
    assert data.names == ("big forest", "city", "sea")
    assert data.y.tolist() == [[0, 1, 1], [0, 0, 0], [1, 0, 0], [0, 1, 0]]
    (tmp_path / "classes.txt").write_text("sea\ncity\nbig forest\nmoon\n")
    told = table(tmp_path, text, labels="several")
    assert told.names == ("sea", "city", "big forest", "moon")
    assert told.y.tolist() == [[1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 1, 0], [0, 1, 0, 0]]


def test_a_device_with_its_own_rows_alone_needs_names_only_of_words(tmp_path: Path) -> None:
    numbers = rows("client,rain,height", "a,1,0.5", "a,2,-3")
    assert table(tmp_path, numbers, ["a"], **VALUES).names == ("height",)
    words = rows("client,x,label", "a,1,sea;city", "a,2,sea")
    with pytest.raises(BadInput, match=r"classes\.txt is missing: .* one device's rows alone"):
        table(tmp_path, words, ["a"], labels="several")
    (tmp_path / "classes.txt").write_text("sea\ncity\nmoon\n")
    assert table(tmp_path, words, ["a"], labels="several").classes == 3


@pytest.mark.parametrize(
    ("keys", "lines", "sentence"),
    [
        (VALUES, ["a,1,tall", "a,2,3"], r"line 2, column 'height': 'tall' is no number, but it "),
        (VALUES, ["a,1,2", "a,2,"], r"line 3, column 'height': it is missing, but it must be a va"),
        (
            VALUES,
            ["a,1,2", "a,2,1e39"],
            r"line 3, column 'height': 1e39 is more than float32 can",
        ),
        (
            VALUES | {"label_column": "height,depth"},
            ["a,1,2"],
            r"must have a column 'depth' \(data\.label-column\); it has client, x, height",
        ),
        (
            VALUES | {"label_column": "height,height"},
            ["a,1,2"],
            r"data\.label-column must name one or several different columns, .* not 'height,hei",
        ),
        (
            VALUES | {"label_column": " ,"},
            ["a,1,2"],
            r"data\.label-column must name one or several",
        ),
        (VALUES | {"label_column": "client,x"}, ["a,1,2"], r"label-column are both 'client'"),
        (
            VALUES | {"label_column": "x,height"},
            ["a,1,2"],
            r"no columns of inputs beside client an",
        ),
        (
            {"labels": "several", "label_column": "x,height", "columns": "x"},
            ["a,1,2"],
            r"data\.columns must name different columns of inputs .* not 'x'",
        ),
        (
            {"labels": "several", "label_column": "height"},
            ["a,1,sea", "a,2,city"],
            r"column 'height' has no cell with two labels, .* data\.labels=classes",
        ),
        (
            {"label_column": "height"},
            ["a,1,2.5", "a,2,3.5"],
            r"the label 2\.5 is a real number, no class; .* data\.labels=values predicts",
        ),
    ],
)
def test_what_cannot_be_predicted_is_refused_by_line_and_column(
    tmp_path: Path, keys: dict[str, Any], lines: list[str], sentence: str
) -> None:
    with pytest.raises(BadInput, match=sentence):
        table(tmp_path, rows("client,x,height", *lines), **keys)


def test_labels_other_than_0_and_1_are_refused(tmp_path: Path) -> None:
    for cell, why in (("2", "it must be 0 or 1 .* not 2"), ("yes", "'yes' is no number")):
        text = rows("client,x,sea,city", "a,1,0,1", f"a,2,1,{cell}")
        with pytest.raises(BadInput, match=rf"line 3, column 'city': {why}"):
            table(tmp_path, text, **SEVERAL)


def test_a_word_that_classes_txt_lacks_is_refused(tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("sea\n")
    text = rows("client,x,label", "a,1,sea", "a,2,sea;city")
    with pytest.raises(BadInput, match=r"line 3, column 'label': 'city' is none of those in clas"):
        table(tmp_path, text, labels="several")


# Directories


def test_arrays_of_real_numbers_are_values(tmp_path: Path) -> None:
    arrays(tmp_path / "anna", np.ones((4, 2)), np.array([0.5, 1.5, 2.5, 3.5]))
    arrays(tmp_path / "bert", np.ones((4, 2)), np.array([[1], [2], [3], [4]]))
    data = read(tmp_path, labels="values")
    assert data.y.flatten().tolist() == [0.5, 1.5, 2.5, 3.5, 1, 2, 3, 4]
    assert (data.classes, data.names, data.y.dtype) == (1, ("0",), DTYPE)
    assert list(read(tmp_path, ["bert"], labels="values").clients) == ["bert"]
    (tmp_path / "classes.txt").write_text("height\n")
    assert read(tmp_path, labels="values").names == ("height",)


def test_arrays_of_0_and_1_are_several_labels(tmp_path: Path) -> None:
    arrays(tmp_path / "anna", np.ones((4, 2)), np.array([[1, 0, 1]] * 4))
    data = read(tmp_path, labels="several")
    assert (data.classes, data.targets, data.y[0].tolist()) == (3, "several", [1, 0, 1])


@pytest.mark.parametrize(
    ("labels", "y", "sentence"),
    [
        ("values", [0.5, np.nan], r"data\.npz: y must be finite numbers, one an example or a row"),
        ("values", np.ones((2, 1, 1)), r"y must be finite numbers"),
        ("values", np.ones((2, 2)), r"y must have 1 numbers an example, not 2"),
        ("several", [0, 1], r"data\.npz: y must be 0 or 1, a row of them an example"),
        ("several", [[0], [2]], r"y must be 0 or 1"),
        ("auto", [0.5, 1.5], r"the labels must be whole numbers from 0; data\.labels=values pred"),
    ],
)
def test_arrays_that_are_something_else_are_refused(
    tmp_path: Path, labels: str, y: Any, sentence: str
) -> None:
    arrays(tmp_path / "anna", np.ones((2, 2)), np.array([[1.0], [0.0]]))
    arrays(tmp_path / "bert", np.ones((2, 2)), y)
    with pytest.raises(BadInput, match=sentence):
        read(tmp_path, labels=labels)


def test_images_by_class_have_no_values(tmp_path: Path) -> None:
    (tmp_path / "anna" / "cat").mkdir(parents=True)
    with pytest.raises(BadInput, match=r"anna must have \.npz files with data\.labels 'values'"):
        read(tmp_path, labels="values")


def test_a_federation_that_is_split_up_is_read_again(tmp_path: Path) -> None:
    text = rows("client,rain,height,width", *(f"a,{n},{n / 2},{-n}" for n in range(8)))
    data = table(tmp_path, text, labels="values", label_column="height,width")
    split_up(data, tmp_path / "parts")
    again = read(tmp_path / "parts", ["a"], labels="values")
    assert (again.names, again.classes) == (("height", "width"), 2)
    for part in ("train", "test"):
        one, other = (getattr(each.clients["a"], part) for each in (data, again))
        assert torch.equal(data.y[one], again.y[other])


# Memory, and functions


def test_clients_in_memory_may_have_values(tmp_path: Path) -> None:
    held = {"a": (np.ones((4, 2)), np.arange(4) / 2), "b": (np.ones((3, 2)), np.arange(3) / 3)}
    data = in_memory(held, 0, 0, DTYPE, DataConfig(labels="values"))
    write_clients(held, tmp_path)
    assert torch.equal(data.y, read(tmp_path, labels="values").y)
    with pytest.raises(BadInput, match=r"^data: y must have 2 numbers an example, not 1"):
        in_memory(held, 2, 0, DTYPE, DataConfig(labels="values"))


def whole(y: torch.Tensor, classes: int, targets: str) -> FederatedData:
    parts = {"a": Split(torch.arange(2), torch.tensor([2]))}
    return FederatedData(torch.zeros(3, 2), y, parts, classes, targets=targets)


def test_a_function_may_give_a_federation_with_values() -> None:
    def given() -> FederatedData:
        return whole(torch.tensor([[0.5], [1], [2]]), 1, "values")

    config = DataConfig(name=offer(given), labels="values")
    data = load(config, 0, DTYPE)
    assert (data.y.dtype, data.targets, data.y.flatten().tolist()) == (DTYPE, "values", [0.5, 1, 2])
    with pytest.raises(
        BadInput, match=r"data\.labels must be 'values', as .* has them, not 'auto'"
    ):
        load(DataConfig(name=offer(given)), 0, DTYPE)


@pytest.mark.parametrize(
    ("y", "classes", "targets", "sentence"),
    [
        (torch.ones(3, 1), 2, "values", "y must have 2 numbers an example, not 1"),
        (torch.full((3, 1), torch.inf), 1, "values", "y must be finite numbers"),
        (torch.full((3, 1), 0.5), 1, "several", "y must be 0 or 1"),
        (
            torch.ones(3, 1),
            1,
            "both",
            "targets must be 'classes', 'values' or 'several', not 'both'",
        ),
    ],
)
def test_a_federation_that_contradicts_itself_is_refused(
    y: torch.Tensor, classes: int, targets: str, sentence: str
) -> None:
    def given() -> FederatedData:
        return whole(y, classes, targets)

    with pytest.raises(BadInput, match=sentence):
        load(DataConfig(name=offer(given), labels="values"), 0, DTYPE)


def test_large_values_are_warned_of(tmp_path: Path) -> None:
    text = rows("client,rain,height", "a,1,0.5", "a,2,-250000")
    data = table(tmp_path, text, **VALUES)
    assert data.size_warning("none").startswith("The values to predict are large (up to 2.5e+05)")
    small = table(tmp_path, text.replace("-250000", "-250"), **VALUES)
    assert small.size_warning("none") == ""


# What does not go together


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        (
            {"loss": "cross-entropy"},
            r"^loss must be 'auto', 'mse', 'mae' or your own for data\.lab",
        ),
        ({"loss": "bce"}, r"^loss must be .* for data\.labels 'values', not 'bce'"),
        (
            {"metric": "accuracy"},
            r"^metric must be one of 'r2', 'mse', 'mae' or your own for data\.",
        ),
        ({"metric": "top-2"}, r"^metric must be .* for data\.labels 'values', not 'top-2'"),
        ({"data.labels": "several", "loss": "mse"}, r"^loss must be 'auto', 'bce' or your own"),
        (
            {"data.labels": "several", "metric": "r2"},
            r"^metric must be one of 'accuracy', 'f1', 'auc' or your own for data\.labels 'sev",
        ),
        ({"data.labels": "numbers"}, r"^data\.labels must be one of 'auto', 'classes', 'values', "),
        ({"data.name": "digits"}, r"^data\.labels must be 'classes', as data\.name 'digits' has t"),
        ({"model.name": "transformer"}, r"^model\.name must be one of .* for classification, not "),
        (
            {"model.name": "tests.unit.test_targets:wide"},
            r"must give scores of shape 2 x 2 for 2 e",
        ),
    ],
)
def test_losses_metrics_and_models_that_do_not_fit_are_refused(
    tmp_path: Path, keys: dict[str, object], sentence: str
) -> None:
    arrays(tmp_path / "anna", np.ones((4, 3)), np.array([[1, 0], [0, 1], [1, 1], [0, 0]]))
    told = {"data.name": "folder", "data.path": str(tmp_path), "data.labels": "values"}
    with pytest.raises(BadInput, match=sentence):
        problem(parse(told | keys))


def wide(shape: tuple[int, ...], classes: int) -> torch.nn.Module:
    return torch.nn.Linear(shape[0], classes + 1)


def test_words_have_values_with_a_model_of_your_own_alone(tmp_path: Path) -> None:
    arrays(tmp_path / "anna", np.ones((4, 3), dtype=np.int64), np.arange(4) / 2)
    told = {"data.name": "folder", "data.path": str(tmp_path), "data.labels": "values"}
    with pytest.raises(BadInput, match=r"^model\.name must be your own, .* not 'transformer'"):
        problem(parse(told | {"model.name": "transformer"}))


def test_quadratic_problems_have_their_own_loss_and_no_metric_of_ours(quadratics: Any) -> None:
    told = {"data.name": "quadratic", "data.path": str(quadratics.path)}
    for key, name in (("loss", "mse"), ("metric", "r2")):
        with pytest.raises(BadInput, match=rf"^{key} must be 'auto' or your own for data without"):
            problem(parse(told | {key: name}))


def test_the_usual_metric_goes_by_what_is_predicted() -> None:
    assert parse({}).run.metric == "accuracy"
    assert parse({"data.labels": "values"}).run.metric == "r2"
    assert parse({"data.labels": "several"}).run.metric == "f1"
    assert parse({"data.labels": "values", "metric": "mae"}).run.metric == "mae"
