"""The documentation's pages, as tests read them."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
FENCE = re.compile(
    r"^(?:<!-- (?P<note>(?:not run|run by)[^\n]*) -->\n)?```(?P<language>\w*)"
    r'(?: title="(?P<title>[^"\n]+)")?\n(?P<text>.*?)^```$',
    re.M | re.S,
)


@dataclass(frozen=True)
class Block:
    """A fenced block: what it is in, the file it is to be put in, and the note before it."""

    page: str
    language: str
    title: str
    text: str
    note: str

    @property
    def commands(self) -> list[list[str]]:
        """The words of each command, without comments and where its output goes."""
        lines = re.sub(r"\\?\n +", " ", self.text).splitlines()  # what is indented goes on
        split = [shlex.split(line.partition(" > ")[0], comments=True) for line in lines]
        return [words for words in map(_bare, split) if words]


def _bare(words: list[str]) -> list[str]:
    """A command without what it sets in the environment, and without an ellipsis."""
    while words and re.match(r"[A-Z_]+=", words[0]):
        words = words[1:]
    return [word for word in words if word != "..."]


def pages() -> list[str]:
    """Every page, by its path in docs/."""
    return sorted(str(file.relative_to(DOCS)) for file in DOCS.rglob("*.md"))


def blocks(page: str) -> list[Block]:
    """A page's blocks from top to bottom."""
    text = (DOCS / page).read_text("utf-8")
    found = [
        Block(page, one["language"], one["title"] or "", one["text"], one["note"] or "")
        for one in FENCE.finditer(text)
    ]
    fences = re.findall(r"^\s*(?:```|~~~)", text, re.M)
    assert len(fences) == 2 * len(found), f"{page} has a block that no test understands."
    return found
