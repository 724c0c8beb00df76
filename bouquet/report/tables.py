"""A table on a page and in a paper: the same cells as HTML and as LaTeX."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from textwrap import wrap

from bouquet.colours import colour_of


@dataclass(frozen=True)
class Cell:
    """What stands at one place.

    Parameters
    ----------
    text : str
        For people.
    bold : bool
        Whether it stands out.
    scheme : str
        Whose colour goes before the text; nobody's where it is empty.
    long : bool
        Whether its lines may be broken.
    """

    text: str
    bold: bool = False
    scheme: str = ""
    long: bool = False


@dataclass(frozen=True)
class Table:
    """Columns, rows of as many cells, and what to know of them.

    Parameters
    ----------
    columns : tuple of str
        Their names.
    rows : tuple of tuple of Cell
        The first cell of each says what the row is about.
    note : str
        What the numbers are.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""


def table_of(columns: Iterable[str], rows: Iterable[Iterable[str | Cell]], note: str = "") -> Table:
    """A table of texts, or of cells where there is more to say."""
    cells = (tuple(Cell(one) if isinstance(one, str) else one for one in row) for row in rows)
    return Table(tuple(columns), tuple(cells), note)


def to_html(table: Table) -> str:
    """A table that scrolls by itself where the screen is small, and its note."""
    marks = [' class="long"' if long else "" for long in _long(table)]
    head = "".join(
        f'<th scope="col"{mark}>{escape(column)}</th>'
        for column, mark in zip(table.columns, marks, strict=True)
    )
    body = "".join(f"<tr>{''.join(map(_html, row))}</tr>" for row in table.rows)
    note = f'<p class="soft">{escape(table.note)}</p>' if table.note else ""
    return (
        f'<div class="wide" tabindex="0"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>{note}"
    )


def _long(table: Table) -> list[bool]:
    """Of each column, whether a cell in it may be broken."""
    found = zip(*table.rows, strict=True)
    return [any(cell.long for cell in cells) for cells in found] or [False] * len(table.columns)


def _html(cell: Cell) -> str:
    word = cell.text.removeprefix("perhaps ")
    kinds = [word] if word in ("helped", "hurt") else []
    kinds += ["long"] * cell.long
    mark = f' class="{" ".join(kinds)}"' if kinds else ""
    text = f"<b>{escape(cell.text)}</b>" if cell.bold else escape(cell.text)
    return f"<td{mark}>{dot(cell.scheme) if cell.scheme else ''}{text}</td>"


def dot(scheme: str) -> str:
    """A scheme's colour, as its lines in the figures have it."""
    light, dark = colour_of(scheme), colour_of(scheme, dark=True)
    return f'<span class="dot" style="--light:{light};--dark:{dark}"></span>'


# A letter by itself each: whatever a run or a key is called, it stays text.
_LATEX = str.maketrans(
    {one: f"\\{one}" for one in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}
    | {"±": r"$\pm$", "–": "--"}
)


def escaped(text: str) -> str:
    """Text as LaTeX sets it, whatever is in it."""
    return "".join(one if one.isprintable() else " " for one in text).translate(_LATEX)


def to_latex(table: Table) -> str:
    """A ``tabular`` in the style of booktabs, to be put into a ``table`` of one's own."""
    kinds = [r"p{0.6\linewidth}" if long else "r" for long in _long(table)]
    lines = [
        "% \\usepackage{booktabs}",
        *(f"% {line}" for line in table.note.splitlines()),
        f"\\begin{{tabular}}{{@{{}}l{''.join(kinds[1:])}@{{}}}}",
        "\\toprule",
        _line(map(_heading, table.columns, _long(table))),
        "\\midrule",
        *(_line(map(_latex, row)) for row in table.rows),
        "\\bottomrule",
        "\\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _heading(text: str, long: bool) -> str:
    """A column's name, in short lines on top of each other unless it is a broad one."""
    width = max(14, len(text)) if long else 14
    lines = wrap(text, width, break_long_words=False, break_on_hyphens=False)
    stacked = r"\\".join(map(escaped, lines))
    return rf"\shortstack[r]{{{stacked}}}" if len(lines) > 1 else stacked


def _line(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _latex(cell: Cell) -> str:
    text = escaped(cell.text)
    text = re.sub(r"(?<!\w)-(?=\d)", "$-$", text)  # a minus, not a hyphen
    # A row that begins with a bracket would be taken for an option of the line before.
    text = f"{{}}{text}" if text[:1] in ("[", "*") else text
    return rf"\textbf{{{text}}}" if cell.bold else text


def as_rows(rows: Sequence[dict[str, str]]) -> Table:
    """A table of rows that may have different columns."""
    columns = tuple(dict.fromkeys(column for row in rows for column in row))
    return table_of(columns, ([row.get(column, "") for column in columns] for row in rows))
