"""A CSV file's cells, by column."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bouquet.core.errors import BadInput
from bouquet.data.archives import reading

# What stands in a cell of which nothing is known.
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})


@dataclass(frozen=True)
class Table:
    """A table as it was written.

    Parameters
    ----------
    path : Path
        The file.
    columns : dict of str to list of str
        The cells of every column, without spaces around them.
    lines : list of int
        The line of the file each row ends on.
    """

    path: Path
    columns: dict[str, list[str]]
    lines: list[int]

    def wrong(self, row: int, column: str, why: str) -> BadInput:
        """A refusal of a cell."""
        return BadInput(f"{self.path}, line {self.lines[row]}, column {column!r}: {why}.")


def read_table(path: Path) -> Table:
    """A CSV file's cells, or a sentence that says on which line it is not one."""
    try:
        with reading(path), open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            rows = [(reader.line_num, row) for row in reader if row]
    except csv.Error as error:
        raise BadInput(
            f"{path}, line {reader.line_num} is no line of a CSV file: {error}."
        ) from error
    if not rows:
        raise BadInput(f"{path} is empty: it must have a line of column names and rows below it.")
    (_, head), *rows = rows
    header = [name.strip() for name in head]
    _check_header(path, header)
    for line, row in rows:
        if len(row) != len(header):
            raise BadInput(f"{path}, line {line} has {len(row)} cells, not {len(header)}.")
    if not rows:
        raise BadInput(f"{path} has column names but no rows below them.")
    columns = {name: [row[n].strip() for _, row in rows] for n, name in enumerate(header)}
    return Table(path, columns, [line for line, _ in rows])


def _check_header(path: Path, header: Sequence[str]) -> None:
    for mark, word in ((";", "semicolons"), ("\t", "tabs"), ("|", "bars")):
        if len(header) == 1 and mark in header[0]:
            raise BadInput(f"{path} has {word} between its columns: save it with commas.")
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise BadInput(f"{path} has two columns {twice[0]!r}: which one is meant?")


def as_number(cell: str) -> float | None:
    """A cell's number; None for a word. Python's 1_000 is a word to everybody else."""
    try:
        return None if "_" in cell else float(cell)
    except ValueError:
        return None
