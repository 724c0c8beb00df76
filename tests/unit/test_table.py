"""Tables: what they mean, and that nothing in them is guessed at."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from bouquet.core.errors import BadInput
from bouquet.data import FederatedData
from tests.unit.test_data import own
from tests.unit.test_folder import read


def table(path: Path, text: str, only: list[str] | None = None, **keys: Any) -> FederatedData:
    file = path / "t.csv"
    file.write_bytes(text.encode())
    return read(file, only, **keys)


def rows(head: str, *lines: str) -> str:
    return "".join(f"{line}\n" for line in (head, *lines))


def test_a_table_has_a_column_that_says_whose(tmp_path: Path) -> None:
    lines = [f"{'anna' if number < 4 else 'bert'},{number},yes" for number in range(7)]
    text = rows("client,size,label", *lines, "bert,9,no")
    data = table(tmp_path, text)
    assert {client: len(own(data, client)) for client in data.clients} == {"anna": 4, "bert": 4}
    assert data.x.flatten().tolist() == [0, 1, 2, 3, 4, 5, 6, 9]
    assert data.y.tolist() == [1] * 7 + [0]
    assert data.names == ("no", "yes")
    assert list(table(tmp_path, text, only=["anna"]).clients) == ["anna"]


def test_the_user_names_the_columns(tmp_path: Path) -> None:
    text = rows("age,who,ill,size,note", "40,a,no,1.5,x", "50,a,yes,1.6,y", "60,a,no,1.7,z")
    keys: dict[str, Any] = {"client_column": "who", "label_column": "ill"}
    assert table(tmp_path, text, columns="size, age", **keys).x.tolist() == [
        pytest.approx([1.5, 40]),
        pytest.approx([1.6, 50]),
        pytest.approx([1.7, 60]),
    ]
    for wrong in ("ill", "height", "age,age"):
        with pytest.raises(BadInput, match=r"data\.columns must name different columns of inputs"):
            table(tmp_path, text, columns=wrong, **keys)
    with pytest.raises(BadInput, match=r"a column 'client' \(data\.client-column\); it has age, w"):
        table(tmp_path, text)
    with pytest.raises(BadInput, match=r"are both 'ill'"):
        table(tmp_path, text, client_column="ill", label_column="ill")


# Clients


def test_ids_stay_as_they_are_written_but_for_spaces_around_them(tmp_path: Path) -> None:
    text = rows("client,x,label", "003,1,a", " 003 ,2,b", "3,3,a", "3,4,b")
    assert list(table(tmp_path, text).clients) == ["003", "3"]


def test_a_row_of_nobody_is_refused(tmp_path: Path) -> None:
    text = rows("client,x,label", "a,1,b", " ,2,b")
    with pytest.raises(BadInput, match=r"line 3, column 'client': it is empty"):
        table(tmp_path, text)


# Labels


def labelled(*labels: str) -> str:
    return rows("client,x,label", *(f"a,0,{label}" for label in labels))


def test_labels_that_are_numbers_go_by_size(tmp_path: Path) -> None:
    data = table(tmp_path, labelled("10", "9", "-2", "10"))
    assert (data.names, data.y.tolist()) == (("-2", "9", "10"), [2, 1, 0, 2])


def test_whole_numbers_are_classes_also_where_a_program_wrote_them_as_reals(tmp_path: Path) -> None:
    assert table(tmp_path, labelled("1.0", "2.0", "1")).names == ("1", "2")


def test_stray_spaces_make_no_class(tmp_path: Path) -> None:
    assert table(tmp_path, labelled("yes", " yes", "yes ", "no")).names == ("no", "yes")


def test_a_measurement_is_no_class(tmp_path: Path) -> None:
    """174 different prices would be 174 classes that nobody ever gets right."""
    prices = labelled(*(f"{number}.5" for number in range(174)))
    said = (
        r"t\.csv, line 2, column 'label': the label 0\.5 is a real number, no class; data\.labels"
    )
    with pytest.raises(BadInput, match=said):
        table(tmp_path, prices)
    assert table(tmp_path, prices, labels="classes").classes == 174


@pytest.mark.parametrize("label", ["{}", "id{}"])
def test_what_nearly_every_row_has_its_own_of_is_no_class(tmp_path: Path, label: str) -> None:
    shared = labelled(*(label.format(number // 5) for number in range(300)))
    assert table(tmp_path, shared).classes == 60
    unique = labelled(*(label.format(number) for number in range(60)))
    with pytest.raises(BadInput, match=r"column 'label' has 60 classes in 60 labels: is it"):
        table(tmp_path, unique)
    assert table(tmp_path, unique, labels="classes").classes == 60


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        (("1", "", "2"), r"line 3, column 'label': it is empty, but it says the row's class"),
        (("1", "2", "NaN"), r"line 4, column 'label': it is missing"),
        (("cat", "nan"), r"line 3, column 'label': it is missing"),
        (("1", "inf"), r"line 3, column 'label': the label inf is a real number"),
        (("1", "01"), r"column 'label' writes one number in two ways"),
    ],
)
def test_a_label_that_is_none_is_refused(
    tmp_path: Path, labels: tuple[str, ...], sentence: str
) -> None:
    with pytest.raises(BadInput, match=sentence):
        table(tmp_path, labelled(*labels))


def test_the_classes_beside_a_table_are_all_there_are(tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("well\nill\n")
    assert table(tmp_path, labelled("ill", "ill")).y.tolist() == [1, 1]
    with pytest.raises(BadInput, match=r"line 3, column 'label': 'dead' is none of the classes"):
        table(tmp_path, labelled("ill", "dead"))


# Inputs


def given(head: str, *cells: str) -> str:
    return rows(f"client,label,{head}", *(f"a,{n % 2},{cell}" for n, cell in enumerate(cells)))


def test_words_are_refused_with_the_key_that_takes_them(tmp_path: Path) -> None:
    said = r"line 4, column 'sex': 'f' is no number; data\.categories=one-hot"
    with pytest.raises(BadInput, match=said):
        table(tmp_path, given("sex", "1", "", "f"))


def test_words_become_columns_or_numbers(tmp_path: Path) -> None:
    text = given("age,sex", "40,m", "50,f", "60,m")
    one_hot = table(tmp_path, text, categories="one-hot")
    assert one_hot.x.tolist() == [[40, 0, 1], [50, 1, 0], [60, 0, 1]]
    assert table(tmp_path, text, categories="index").x.tolist() == [[40, 1], [50, 0], [60, 1]]
    with pytest.raises(BadInput, match=r"data\.scale must be 'none' with data\.categories 'index'"):
        table(tmp_path, text, categories="index", scale="standard")


def test_a_column_called_like_a_word_of_another_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"column 'sex=f' is called like a word of another column"):
        table(tmp_path, given("sex=f,sex", "1,f", "0,m"), categories="one-hot")


def test_a_missing_word_is_a_word_of_its_own_if_gaps_may_be(tmp_path: Path) -> None:
    text = given("sex", "m", "f", "")
    with pytest.raises(BadInput, match=r"line 4, column 'sex': it is missing"):
        table(tmp_path, text, categories="one-hot")
    data = table(tmp_path, text, categories="one-hot", missing="zero")
    assert data.x.argmax(dim=1).unique().numel() == 3


def test_names_of_people_are_no_categories(tmp_path: Path) -> None:
    text = given("name", *(f"person {number}" for number in range(30)))
    with pytest.raises(
        BadInput, match=r"column 'name' has 30 different words in 30 rows: .* data\.columns"
    ):
        table(tmp_path, text, categories="one-hot")


@pytest.mark.parametrize("gap", ["", "NA", "nan", "?", "null"])
def test_a_gap_is_refused_by_line_and_column_unless_it_is_filled(tmp_path: Path, gap: str) -> None:
    text = given("age,size", "1,2", f"3,{gap}", "5,6")
    said = r"line 3, column 'size': it is missing \(data\.missing=mean or zero would fill it\)"
    with pytest.raises(BadInput, match=said):
        table(tmp_path, text)
    data = table(tmp_path, text, missing="zero").preparing("none", "zero")
    assert data.x.tolist() == [[1, 2], [3, 0], [5, 6]]


@pytest.mark.parametrize("cell", ["inf", "-Infinity", "1e300"])
def test_a_number_without_end_is_refused(tmp_path: Path, cell: str) -> None:
    with pytest.raises(BadInput, match=r"line 3, column 'x': .* is more than float32 can hold"):
        table(tmp_path, given("x", "1", cell), missing="mean")


@pytest.mark.parametrize("cell", ["1_000", '"1,5"', "5 kg"])
def test_what_only_looks_like_a_number_is_a_word(tmp_path: Path, cell: str) -> None:
    with pytest.raises(BadInput, match=r"line 3, column 'x': .* is no number"):
        table(tmp_path, given("x", "1", cell))


# Devices


def test_a_device_with_its_own_rows_alone_must_be_told_classes_and_words(tmp_path: Path) -> None:
    everyone = rows("client,sex,label", "a,m,ill", "a,m,well", "b,f,ill", "b,d,dead")
    whole = table(tmp_path, everyone, categories="one-hot")
    mine = rows("client,sex,label", "a,m,ill", "a,m,well")
    with pytest.raises(BadInput, match=r"classes\.txt is missing: .* has one device's rows alone"):
        table(tmp_path, mine, only=["a"], categories="one-hot")
    (tmp_path / "classes.txt").write_text("".join(f"{name}\n" for name in whole.names))
    with pytest.raises(BadInput, match=r"categories\.json must have the words of column 'sex'"):
        table(tmp_path, mine, only=["a"], categories="one-hot")
    (tmp_path / "categories.json").write_text(json.dumps({"sex": ["d", "f", "m"]}))
    alone = table(tmp_path, mine, only=["a"], categories="one-hot")
    assert torch.equal(alone.x, whole.x[:2])
    assert torch.equal(alone.y, whole.y[:2])
    with pytest.raises(BadInput, match=r"line 2, column 'sex': 'x' is none of its words"):
        table(tmp_path, mine.replace("m", "x", 1), only=["a"], categories="one-hot")


@pytest.mark.parametrize("text", ["[1]", '{"sex": "m"}', '{"sex": [1]}', '{"sex": ["m", "m"]}'])
def test_wrong_words_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "categories.json").write_text(text)
    with pytest.raises(BadInput, match=r"categories\.json must be like"):
        table(tmp_path, given("sex", "m", "f"), categories="one-hot")


def test_numbers_that_are_told_to_be_words_are_words(tmp_path: Path) -> None:
    (tmp_path / "categories.json").write_text('{"ward": ["1", "2", "3"]}')
    data = table(tmp_path, given("ward", "1", "3"), categories="one-hot")
    assert data.x.tolist() == [[1, 0, 0], [0, 0, 1]]
    with pytest.raises(BadInput, match=r"line 2, column 'ward'"):
        table(tmp_path, given("ward", "1", "3"))


# Files that are not what they seem


def test_a_byte_order_mark_and_other_line_ends_are_no_matter(tmp_path: Path) -> None:
    data = table(tmp_path, "\ufeffclient,x,label\r\na,1,0\r\n\r\na,2,1\r\n")
    assert data.x.tolist() == [[1], [2]]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        ("client,x,label\n", "has column names but no rows"),
        ("client,x\na,1\n", r"must have a column 'label' \(data.label-column\); it has client, x"),
        ("client,label\na,1\n", "has no columns of inputs beside client and label"),
        ("client;x;label\na;1;0\n", "has semicolons between its columns"),
        ("client\tx\tlabel\na\t1\t0\n", "has tabs between its columns"),
        ("client,x,x,label\na,1,2,0\n", "has two columns 'x'"),
        ("client,x, x,label\na,1,2,0\n", "has two columns 'x'"),
        (",client,x,label\n0,a,1,0\n", r"column 1 has no name\. Is it a row number \(pandas"),
        ("client,x,label\na,1,0\na,1\n", "line 3 has 2 cells, not 3"),
        ("client,x,label\na,1,0,9\n", "line 2 has 4 cells, not 3"),
        ('client,x,label\na,1,0\na,"1,0\n', "line 3 is no line of a CSV file"),
    ],
)
def test_a_wrong_table_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        table(tmp_path, text)


def test_another_encoding_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("client,x,label\na,1,0\n", encoding="utf-16")
    with pytest.raises(BadInput, match=r"t\.csv cannot be read: 'utf-8' codec"):
        read(tmp_path / "t.csv")
