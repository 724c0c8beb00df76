"""How figures look: on a wide page, on a phone, in a paper's column and across its page."""

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import Any

from bouquet.colours import DASHES, PALETTE, colour_of, dashes

# The page's own colours, light and dark.
INK, PAPER = "#1b1f24", "#ffffff"
GREY = "#8a8a8a"  # what is nobody's; it stands out from either paper
# A light colour's dark twin: a drawing for dark pages is the same with these in place.
DARK = dict(PALETTE) | {INK: "#e6e9ed", PAPER: "#14181d"}
MARKERS = "os^Dv<>P"


@dataclass(frozen=True)
class Look:
    """The size of figures and of what is written in them.

    Parameters
    ----------
    width : float
        Inches.
    font : float
        Points, as the reader sees it where the figure is not scaled.
    across : int
        How many panels are side by side at most.
    """

    width: float
    font: float
    across: int

    @property
    def narrow(self) -> bool:
        """Whether there is no room for two things side by side."""
        return self.width < 5

    def wrapped(self, text: str, share: float = 1.0) -> str:
        """Text in lines that fit into a share of the width."""
        return fill(text, max(10, int(self.letters * share)))

    @property
    def letters(self) -> float:
        """About how many letters go into the width."""
        return self.width * 72 / (0.55 * self.font)


PAGE = Look(11, 10, 3)
# Where the columns of most papers are no wider and no narrower; a phone shows no more either.
COLUMN, WIDE = Look(3.3, 8, 2), Look(6.9, 8, 3)


@dataclass(frozen=True)
class Drawing:
    """A figure that is not saved yet."""

    figure: Any
    name: str
    title: str
    words: str


Draw = Callable[[Look], Sequence[Drawing]]


@dataclass(frozen=True)
class Picture:
    """A figure for pages, and what it shows in words.

    Parameters
    ----------
    name, title, words : str
        What its files are called, its heading, what it shows.
    png, svg : bytes
        For wide pages.
    narrow : bytes
        For phones, as SVG.
    """

    name: str
    title: str
    words: str
    png: bytes
    svg: bytes
    narrow: bytes

    @property
    def dark(self) -> bytes:
        """For wide pages that are dark."""
        return darkened(self.svg)


def drawn(draw: Draw) -> list[Picture]:
    """Figures for wide pages and for phones."""
    wide, narrow = _saved(draw, PAGE, "png", "svg"), _saved(draw, COLUMN, "svg")
    return [
        Picture(one.name, one.title, one.words, *files, *small)
        for (one, files), (_, small) in zip(wide, narrow, strict=True)
    ]


def for_paper(draw: Draw) -> dict[str, bytes]:
    """PDF files by name: each figure for one column of a paper, and across its page."""
    looks = {"column": COLUMN, "wide": WIDE}
    return {
        f"{one.name}-{name}.pdf": file
        for name, look in looks.items()
        for one, (file,) in _saved(draw, look, "pdf")
    }


def _saved(draw: Draw, look: Look, *kinds: str) -> list[tuple[Drawing, list[bytes]]]:
    from matplotlib import rc_context

    with rc_context(style(look)):
        return [(one, [saved(one.figure, kind) for kind in kinds]) for one in draw(look)]


def style(look: Look) -> dict[Any, Any]:
    """What matplotlib is told for a look."""
    small = round(0.85 * look.font, 1)
    return {
        **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor"), INK),
        **dict.fromkeys(("xtick.color", "ytick.color"), INK),
        **dict.fromkeys(("font.size", "axes.labelsize", "axes.titlesize"), look.font),
        **dict.fromkeys(("xtick.labelsize", "ytick.labelsize", "legend.fontsize"), small),
        "figure.labelsize": look.font,
        "legend.frameon": False,
        "lines.linewidth": 1.2 if look.width < PAGE.width else 1.6,
        "lines.markersize": 2.5 if look.width < PAGE.width else 3.5,
        "pdf.fonttype": 42,  # letters stay letters; many publishers refuse the usual type
    }


def canvas(width: float, height: float) -> Any:
    """A figure of so many inches."""
    from matplotlib.figure import Figure

    # A Figure by itself knows no windows, so this works where there is no screen.
    return Figure(figsize=(width, height), layout="constrained")


def legend(figure: Any, look: Look, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """A legend below all axes, where it hides nothing."""
    longest = max((len(line) for label in labels for line in label.splitlines()), default=0)
    across = max(1, min(len(labels), int(look.letters / (longest + 7))))
    figure.legend(handles, labels, loc="outside lower center", ncols=across)


def lines_of(schemes: Sequence[str]) -> list[dict[str, Any]]:
    """How each of several lines is drawn: a scheme's colour, and strokes and marks of its own."""
    return [
        {
            "color": colour_of(scheme),
            "linestyle": (0, DASHES[dash]) if DASHES[dash] else "-",
            "marker": MARKERS[place % len(MARKERS)],
        }
        for place, (scheme, dash) in enumerate(zip(schemes, dashes(schemes), strict=True))
    ]


def darkened(svg: bytes) -> bytes:
    """The same drawing for a dark page."""
    return re.sub(
        rb"#[0-9a-f]{6}\b", lambda one: DARK.get(one[0].decode(), one[0].decode()).encode(), svg
    )


def saved(figure: Any, kind: str) -> bytes:
    """A figure's file: ``png``, ``svg`` or ``pdf``."""
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
    content = io.BytesIO()
    # Without the time and the program's version, the same runs give the same file.
    facts: dict[str, dict[str, None]] = {
        "png": {"Software": None},
        "svg": {"Date": None},
        "pdf": {"CreationDate": None, "Producer": None, "Creator": None},
    }
    figure.savefig(content, format=kind, dpi=130, metadata=facts[kind])
    return content.getvalue()
