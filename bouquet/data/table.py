"""A CSV file: a column that says whose a row is, some of labels, and inputs in the others.

What could be read in two ways is refused, by line and column: a wrong guess would train to
nonsense without a word.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bouquet.core.errors import BadInput
from bouquet.core.measure import SEVERAL, VALUES
from bouquet.data.archives import reading
from bouquet.data.csv_file import MISSING, Table, as_number, read_table
from bouquet.data.examples import FEW_KINDS, LABELS_REMEDY, owned, refuse_labels
from bouquet.data.federated import DataConfig, FederatedData
from bouquet.data.targets import kind_of, label_columns, labels_in, values_in, words_in

CLASSES = "classes.txt"
CATEGORIES = "categories.json"

Vocabularies = Mapping[str, Sequence[str]]

_WHOLE = re.compile(r"[+-]?\d+")


def table(
    config: DataConfig, seed: int, dtype: torch.dtype, path: Path, only: Sequence[str] | None
) -> FederatedData:
    """The federation in a CSV file.

    Parameters
    ----------
    config : DataConfig
        Which columns, and what to do with words and gaps.
    seed : int
        Decides the draws.
    dtype : torch.dtype
        Of the inputs.
    path : Path
        The file; ``classes.txt`` and ``categories.json`` may be beside it.
    only : sequence of str, optional
        The clients a device has.
    """
    sheet = read_table(path)
    named = _input_columns(config, sheet)
    owners = _cells(sheet, config.client_column, "says whose the row is")
    # Whoever has nobody else's rows cannot know what the others' have in them.
    alone = only is not None and set(owners) <= set(only)
    names, y = _targets(config, sheet, alone, dtype)
    inputs, x = _inputs(config, sheet, named, alone, dtype)
    data = owned(config, seed, x, y, owners, len(names), targets=kind_of(config))
    return replace(data, names=tuple(names), inputs=inputs)


def table_inputs(path: Path, inputs: Sequence[str]) -> Tensor:
    """The inputs in a CSV file, by the names :func:`table` gave them when the model was trained.

    The columns may be in any order and others may be there; a gap is NaN.
    """
    sheet, gaps_may_be = read_table(path), DataConfig(missing="mean")
    x: dict[str, Tensor] = {}
    words: dict[str, list[str]] = {}
    for name in inputs:
        column = next((one for one in sheet.columns if name.startswith(f"{one}=")), None)
        if name in sheet.columns:
            numbers = _numbers(gaps_may_be, sheet, name, torch.float64)
            if numbers is None:
                raise BadInput(f"{path}, column {name!r} must have numbers, as in training.")
            x[name] = numbers
        elif column is None:
            raise BadInput(f"{path} has no column for the input {name!r} of the model.")
        else:
            words.setdefault(column, []).append(name.removeprefix(f"{column}="))
            x[name] = torch.tensor([cell == words[column][-1] for cell in sheet.columns[column]])
    for column, known in words.items():
        for row, cell in enumerate(sheet.columns[column]):
            if cell not in known:
                raise sheet.wrong(row, column, f"{cell!r} is none of {', '.join(map(repr, known))}")
    return torch.stack([one.double() for one in x.values()], dim=1)


def _input_columns(config: DataConfig, sheet: Table) -> list[str]:
    """The names of the columns of inputs."""
    columns, path = list(sheet.columns), sheet.path
    labels = label_columns(config)
    if config.client_column in labels:
        raise BadInput(
            f"data.client-column and data.label-column are both {config.client_column!r}."
        )
    roles = [config.client_column, *labels]
    for name in roles:
        if name not in columns:
            key = "data.client-column" if name == config.client_column else "data.label-column"
            listed = ", ".join(columns)
            raise BadInput(f"{path} must have a column {name!r} ({key}); it has {listed}.")
    chosen = [name.strip() for name in config.columns.split(",") if name.strip()]
    for name in chosen:
        if name not in columns or name in roles or chosen.count(name) > 1:
            raise BadInput(
                f"data.columns must name different columns of inputs in {path}, not {name!r}."
            )
    named = chosen or [name for name in columns if name not in roles]
    if "" in named:
        raise BadInput(
            f"{path}: column {columns.index('') + 1} has no name. Is it a row number (pandas: "
            "index=False leaves it out)? data.columns can say which columns are inputs."
        )
    if not named:
        raise BadInput(f"{path} has no columns of inputs beside {' and '.join(roles)}.")
    return named


def _cells(sheet: Table, column: str, what: str) -> list[str]:
    """A column that must not have gaps."""
    cells = sheet.columns[column]
    if "" in cells:
        raise sheet.wrong(cells.index(""), column, f"it is empty, but it {what}")
    return cells


def _targets(
    config: DataConfig, sheet: Table, alone: bool, dtype: torch.dtype
) -> tuple[list[str], Tensor]:
    """What is predicted: its names, and every row's class, values or labels."""
    columns, kind = label_columns(config), kind_of(config)
    if kind == VALUES:
        return columns, values_in(sheet, columns, dtype)
    if kind == SEVERAL and len(columns) > 1:
        return columns, labels_in(sheet, columns, dtype)
    if kind == SEVERAL:
        names = _all_classes(sheet, alone)
        return words_in(sheet, columns[0], names, dtype)
    names, labels = _labels(config, sheet, alone)
    return names, torch.from_numpy(labels)


def _all_classes(sheet: Table, alone: bool) -> list[str] | None:
    """The names in ``classes.txt``, if it is there; whoever has their own rows alone needs it."""
    names = named_classes(sheet.path.parent)
    if names is None and alone:
        raise BadInput(
            f"{sheet.path.parent / CLASSES} is missing: {sheet.path} has one device's rows alone, "
            "which cannot know all classes without that file, a name in each line."
        )
    return names


def _labels(config: DataConfig, sheet: Table, alone: bool) -> tuple[list[str], NDArray[np.int64]]:
    """The names of the classes, and every row's class."""
    column, path = config.label_column, sheet.path
    words = [" ".join(cell.split()) for cell in _cells(sheet, column, "says the row's class")]
    names = _all_classes(sheet, alone)
    if names is None:
        if config.labels == "auto":
            words = _class_names(sheet, column, words)
        names = sorted(set(words), key=_in_order)
        refuse_labels(config, len(names), len(words), f"{path}, column {column!r}")
    class_of = {name: number for number, name in enumerate(names)}
    for row, word in enumerate(words):
        if word not in class_of:
            raise sheet.wrong(row, column, f"{word!r} is none of the classes in {CLASSES}")
    return names, np.array([class_of[word] for word in words], dtype=np.int64)


def _class_names(sheet: Table, column: str, words: list[str]) -> list[str]:
    """Labels that can be classes: words, or whole numbers, also where written like 3.0."""
    numbers = [number for word in words if (number := as_number(word)) is not None]
    gap = next((row for row, word in enumerate(words) if word.lower() == "nan"), None)
    if gap is not None:
        raise sheet.wrong(gap, column, "it is missing, but it says the row's class")
    if len(numbers) < len(words):
        return words
    for row, number in enumerate(numbers):
        if not number.is_integer():
            raise sheet.wrong(
                row, column, f"the label {words[row]} is a real number, no class; {LABELS_REMEDY}"
            )
    named = [
        word if _WHOLE.fullmatch(word) else str(int(number))
        for word, number in zip(words, numbers, strict=True)
    ]
    if len(set(named)) != len(set(numbers)):
        raise BadInput(f"{sheet.path}, column {column!r} writes one number in two ways (1 and 01).")
    return named


def named_classes(folder: Path) -> list[str] | None:
    """The names in a folder's ``classes.txt``, if it has one."""
    file = folder / CLASSES
    if not file.exists():
        return None
    with reading(file):
        text = file.read_text("utf-8-sig")
    names = [" ".join(line.split()) for line in text.rstrip().splitlines()]
    if not names or not all(names):
        raise BadInput(f"{file} must have a class's name in each line, and no line without.")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise BadInput(f"{file} has the class {twice!r} twice.")
    return names


def _inputs(
    config: DataConfig, sheet: Table, named: Sequence[str], alone: bool, dtype: torch.dtype
) -> tuple[tuple[str, ...], Tensor]:
    """The inputs' names, and those of every row; NaN where one is missing and may be."""
    known = _known_categories(sheet.path.parent)
    inputs: dict[str, Tensor] = {}
    for column in named:
        numbers = None if column in known else _numbers(config, sheet, column, dtype)
        if numbers is None:
            fresh = _categories(config, sheet, column, known, alone)
        else:
            fresh = {column: numbers}
        for name in inputs.keys() & fresh.keys():
            raise BadInput(
                f"{sheet.path}: column {name!r} is called like a word of another column."
            )
        inputs |= fresh
    return tuple(inputs), torch.stack([one.to(dtype) for one in inputs.values()], dim=1)


def _numbers(config: DataConfig, sheet: Table, column: str, dtype: torch.dtype) -> Tensor | None:
    """A column of numbers; None where it has words."""
    cells = sheet.columns[column]
    gaps = [cell.lower() in MISSING for cell in cells]
    numbers = [math.nan if gap else as_number(c) for c, gap in zip(cells, gaps, strict=True)]
    values = [number for number in numbers if number is not None]
    if len(values) < len(numbers):
        return None
    _refuse_gaps(config, sheet, column, gaps)
    x = torch.tensor(values, dtype=torch.float64).to(dtype)
    if x.isinf().any():
        row = int(x.isinf().nonzero()[0])
        raise sheet.wrong(row, column, f"{cells[row]} is more than {str(dtype)[6:]} can hold")
    return x


def _refuse_gaps(config: DataConfig, sheet: Table, column: str, gaps: Sequence[bool]) -> None:
    if config.missing == "refuse" and True in gaps:
        why = "it is missing (data.missing=mean or zero would fill it)"
        raise sheet.wrong(gaps.index(True), column, why)


def _categories(
    config: DataConfig, sheet: Table, column: str, known: Vocabularies, alone: bool
) -> dict[str, Tensor]:
    """A column of words as inputs by name, as ``data.categories`` has it; a gap is a word too."""
    cells = sheet.columns[column]
    if config.categories == "refuse":
        row = next(
            (n for n, c in enumerate(cells) if c.lower() not in MISSING and as_number(c) is None), 0
        )
        raise sheet.wrong(
            row,
            column,
            f"{cells[row]!r} is no number; data.categories=one-hot (or index) takes the column's "
            "words for categories, data.columns leaves it out",
        )
    _refuse_gaps(config, sheet, column, [not cell for cell in cells])
    if column not in known and alone:
        raise BadInput(
            f"{sheet.path.parent / CATEGORIES} must have the words of column {column!r}: "
            f"{sheet.path} has one device's rows alone, which cannot know all of them."
        )
    different = len(set(cells))
    if column not in known and different > FEW_KINDS and len(cells) < 2 * different:
        raise BadInput(
            f"{sheet.path}, column {column!r} has {different} different words in "
            f"{len(cells)} rows: leave it out with data.columns."
        )
    if config.scale != "none" and config.categories == "index":
        raise BadInput(
            f"data.scale must be 'none' with data.categories 'index', not {config.scale!r}: the "
            "numbers stand for words."
        )
    words = list(known.get(column, sorted(set(cells))))
    words += [""] if config.missing != "refuse" and "" not in words else []
    number_of = {word: number for number, word in enumerate(words)}
    for row, cell in enumerate(cells):
        if cell not in number_of:
            raise sheet.wrong(row, column, f"{cell!r} is none of its words in {CATEGORIES}")
    numbers = torch.tensor([number_of[cell] for cell in cells])
    if config.categories == "index":
        return {column: numbers}
    return {f"{column}={word}": numbers == number for number, word in enumerate(words)}


def _known_categories(folder: Path) -> Vocabularies:
    """The columns of words and all their words, if ``categories.json`` tells."""
    file = folder / CATEGORIES
    if not file.exists():
        return {}
    with reading(file):
        vocabularies = json.loads(file.read_text("utf-8-sig"))
    for words in vocabularies.values() if isinstance(vocabularies, dict) else [None]:
        texts = words if isinstance(words, list) else []
        if not texts or len({word for word in texts if isinstance(word, str)}) < len(texts):
            raise BadInput(f'{file} must be like {{"column": ["word", "other"]}}, no word twice.')
    return dict(vocabularies)


def _in_order(label: str) -> tuple[float, str]:
    """Numbers by size, then words by letters."""
    number = as_number(label)
    return (math.inf if number is None or math.isnan(number) else number, label)
