"""What is predicted other than classes: values, or which of several labels an example has."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bouquet.core.errors import BadInput
from bouquet.core.measure import CLASSES, SEVERAL, VALUES
from bouquet.data.csv_file import MISSING, Table, as_number
from bouquet.data.examples import checked_labels
from bouquet.data.federated import DataConfig

Array = NDArray[np.generic]

BETWEEN = ";"  # the labels in one cell


def kind_of(config: DataConfig) -> str:
    """What ``data.labels`` says is predicted."""
    return CLASSES if config.labels == "auto" else config.labels


def label_columns(config: DataConfig) -> list[str]:
    """The columns of labels: one of classes, or some, with commas, of values or several labels."""
    if kind_of(config) == CLASSES:
        return [config.label_column]
    columns = [name.strip() for name in config.label_column.split(",") if name.strip()]
    if not columns or len(set(columns)) < len(columns):
        raise BadInput(
            "data.label-column must name one or several different columns, with commas between, "
            f"not {config.label_column!r}."
        )
    return columns


def values_in(sheet: Table, columns: Sequence[str], dtype: torch.dtype) -> Tensor:
    """Columns of numbers to predict."""
    found = torch.tensor(
        [_numbers(sheet, column, "a value to predict") for column in columns], dtype=torch.float64
    ).T.to(dtype)
    for row, place in found.isinf().nonzero()[:1].tolist():
        cell = sheet.columns[columns[place]][row]
        raise sheet.wrong(row, columns[place], f"{cell} is more than {str(dtype)[6:]} can hold")
    return found.contiguous()


def labels_in(sheet: Table, columns: Sequence[str], dtype: torch.dtype) -> Tensor:
    """Columns of 0 and 1, one for each label."""
    found = torch.tensor([_numbers(sheet, column, "0 or 1") for column in columns])
    for place, row in ((found != 0) & (found != 1)).nonzero()[:1].tolist():
        cell = sheet.columns[columns[place]][row]
        raise sheet.wrong(
            row, columns[place], f"it must be 0 or 1 (data.labels=several), not {cell}"
        )
    return found.T.to(dtype).contiguous()


def words_in(
    sheet: Table, column: str, names: Sequence[str] | None, dtype: torch.dtype
) -> tuple[list[str], Tensor]:
    """A column whose cells have any number of labels: all labels' names, and who has which.

    Parameters
    ----------
    sheet : Table
        The file.
    column : str
        Which.
    names : sequence of str, optional
        All labels there are; without, those in the file.
    dtype : torch.dtype
        Of the result.
    """
    rows = [
        [" ".join(word.split()) for word in cell.split(BETWEEN) if word.strip()]
        for cell in sheet.columns[column]
    ]
    if names is None and not any(len(row) > 1 for row in rows):
        raise BadInput(
            f"{sheet.path}, column {column!r} has no cell with two labels, and {BETWEEN!r} between "
            "them: data.labels=classes takes one an example, and data.label-column=a,b columns of "
            "0 and 1."
        )
    known = list(names or sorted({word for row in rows for word in row}))
    place_of = {name: place for place, name in enumerate(known)}
    found = torch.zeros(len(rows), len(known), dtype=dtype)
    for number, row in enumerate(rows):
        for word in row:
            if word not in place_of:
                raise sheet.wrong(number, column, f"{word!r} is none of those in classes.txt")
            found[number, place_of[word]] = 1
    return known, found


def _numbers(sheet: Table, column: str, what: str) -> list[float]:
    found = []
    for row, cell in enumerate(sheet.columns[column]):
        number = None if cell.lower() in MISSING else as_number(cell)
        if number is None or math.isnan(number):
            gone = "it is missing" if cell.lower() in MISSING else f"{cell!r} is no number"
            raise sheet.wrong(row, column, f"{gone}, but it must be {what}")
        found.append(number)
    return found


def labels_of(config: DataConfig, y: Array, where: object) -> Array:
    """Labels as ``data.labels`` takes them."""
    kind = kind_of(config)
    return checked_labels(y, where) if kind == CLASSES else checked_targets(y, kind, where)


def refuse_strange(config: DataConfig, y: Array, classes: int, where: object) -> None:
    """Refuse labels beyond the classes there are, and rows of more or fewer values."""
    if kind_of(config) != CLASSES:
        if y.shape[1] != classes:
            raise BadInput(f"{where}: y must have {classes} numbers an example, not {y.shape[1]}.")
    elif (last := int(y.max(initial=-1))) >= classes:
        raise BadInput(f"{where} has the label {last}, but there are {classes} classes.")


def checked_targets(y: Array, kind: str, where: object) -> NDArray[np.float64]:
    """Values, or several labels, as a row of numbers an example."""
    rows = y[:, None] if y.ndim == 1 else y
    numbers = rows.ndim == 2 and rows.shape[1] > 0 and rows.dtype.kind in "iufb"
    if kind == VALUES and not (numbers and np.isfinite(rows).all()):
        raise BadInput(
            f"{where}: y must be finite numbers, one an example or a row of them, to predict "
            "values (data.labels=values)."
        )
    if kind == SEVERAL and not (numbers and y.ndim == 2 and np.isin(rows, (0, 1)).all()):
        raise BadInput(
            f"{where}: y must be 0 or 1, a row of them an example, for several labels "
            "(data.labels=several)."
        )
    return rows.astype(np.float64)
