"""What the site has besides the pages in docs/: pages made from the code, and links out of docs/.

MkDocs calls the functions that start with ``on_``; the others are pure.
"""

import inspect
import re
from pathlib import Path, PurePosixPath
from typing import Any

import click
import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from rich.text import Text

import bouquet
from bouquet import flower
from bouquet.cli import catalogue
from bouquet.cli.main import app

DOCS = Path(__file__).parent
ROOT = DOCS.parent
MADE = "This page is made from the code."
# A page called by its file's name.
CALLED = re.compile(r"\[(?P<name>[\w-]+\.md)\]\((?P=name)")
# A link or an image that leaves its folder: its words, and where it leads.
LINK = re.compile(r"(?P<image>!?)\[(?P<words>[^\]]*)\]\((?P<target>\.\./[^)]+)\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put every decision into the navigation: nobody has to remember."""
    assert config.nav is not None
    for entry in config.nav:
        entry.get("Decisions", []).extend(f"adr/{file.name}" for file in decisions())
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made, and the pictures that pages show from elsewhere."""
    made = {
        "commands.md": commands_page(),
        "keys.md": keys_page(catalogue.read()),
        "reference.md": reference_page(),
        "adr/index.md": decisions_page(),
    }
    for name, content in made.items():
        files.append(File.generated(config, name, content=content))
    for name in sorted(pictures()):
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links that leave docs/ elsewhere, and call pages by their titles."""
    return titled(inside(markdown, PurePosixPath(page.file.src_uri).parent))


def decisions() -> list[Path]:
    """The decisions' files, oldest first."""
    return sorted(DOCS.glob("adr/[0-9]*.md"))


def pictures() -> set[str]:
    """Pictures outside docs/ that pages show, by their path in the checkout."""
    pages = [page.read_text("utf-8") for page in DOCS.glob("*.md")]
    found = [one for text in pages for one in LINK.finditer(text) if one["image"]]
    return {one["target"].removeprefix("../") for one in found}


def inside(markdown: str, folder: PurePosixPath) -> str:
    """A page's text with links out of docs/ replaced by what the site has, or by where it is.

    >>> inside("![a](../b/c.png) and [d](../e.py)", PurePosixPath("."))
    '![a](b/c.png) and d (`e.py` in the checkout)'
    """
    if folder != PurePosixPath("."):  # ../ leads to docs/ from there
        return markdown

    def led(one: re.Match[str]) -> str:
        target = one["target"].removeprefix("../")
        if one["image"]:
            return f"![{one['words']}]({target})"
        words = one["words"].strip("`")
        same = words.rstrip("/") == target.rstrip("/")
        return f"`{target}`" if same else f"{one['words']} (`{target}` in the checkout)"

    return LINK.sub(led, markdown)


def titled(markdown: str) -> str:
    """A page's text with other pages called by their titles, as a site has no files."""

    def called(one: re.Match[str]) -> str:
        heading = (DOCS / one["name"]).read_text("utf-8").partition("\n")[0]
        return f"[{heading.removeprefix('# ')}]({one['name']}"

    return CALLED.sub(called, markdown)


def decisions_page() -> str:
    """The list of decisions."""
    titles = [(file.name, file.read_text("utf-8").partition("\n")[0]) for file in decisions()]
    lines = [f"- [{title.removeprefix('# ')}]({name})" for name, title in titles]
    # Titles begin with their number, which a list would take for its own.
    return "# Decisions\n\nWhy things are as they are, a page each.\n\n" + "\n".join(
        line.replace(". ", " · ", 1) for line in lines
    )


def commands_page() -> str:
    """Every command with its arguments and options."""
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group)
    parts = [f"# Commands\n\n{MADE} `bouquet COMMAND --help` says the same.\n"]
    for name, command in group.commands.items():
        parts += _command(f"bouquet {name}", command, 2)
    return "\n".join(parts)


def _command(name: str, command: click.Command, level: int) -> list[str]:
    context = click.Context(command, info_name=name)
    usage = f"{name} {' '.join(command.collect_usage_pieces(context))}"
    parts = [f"{'#' * level} {name}\n", f"```text\n{usage}\n```\n", _told(command)]
    rows = [row for one in command.params if (row := _parameter(one, context))]
    if rows:
        parts.append("\n".join(["| | meaning |", "|---|---|", *rows]) + "\n")
    if isinstance(command, click.Group):
        for sub, child in command.commands.items():
            parts += _command(f"{name} {sub}", child, level + 1)
    return parts


def _told(command: click.Command) -> str:
    """A command's help: sentences, then its examples as a block."""
    words, _, examples = inspect.cleandoc(command.help or "").partition("[bold]Example")
    sentences = _escaped(Text.from_markup(words).plain.strip())
    lines = [line.strip() for line in examples.splitlines()[1:] if line.strip()]
    shown = "\n".join(lines).replace("\\\n", "\\\n    ")
    return f"{sentences}\n\n```text\n{shown}\n```\n" if lines else f"{sentences}\n"


def _parameter(one: click.Parameter, context: click.Context) -> str:
    record = one.get_help_record(context)
    if isinstance(one, click.Argument):
        name = one.make_metavar(context)
        return f"| `{name}` | {_cell(getattr(one, 'help', '') or '')} |"
    if record is None or one.name in ("help", "install_completion", "show_completion"):
        return ""
    meaning = record[1].replace("\\[", "[")  # typer has it ready for rich
    return f"| `{record[0]}` | {_cell(meaning)} |"


def keys_page(told: catalogue.Catalogue) -> str:
    """Every key, by its group."""
    titles = {one.name: one.title for one in told.schemes}
    parts = [
        f"# Keys\n\n{MADE} `bouquet keys` says the same, `bouquet keys WORD` those about a word; "
        "how keys are given is under [Start in five minutes](start.md).\n"
    ]
    groups = dict.fromkeys(key.name.rpartition(".")[0] for key in told.keys)
    for group in groups:
        name = f"{group}.*" if group else "Of every run"
        title = f" · {titles[group]}" if group in titles else ""
        rows = [
            f"| `{one.name}` | `{one.default}` | {_cell(one.allowed)} | {_cell(one.meaning)} |"
            for one in told.keys_under(group)
        ]
        head = ["| key | default | may be | meaning |", "|---|---|---|---|"]
        parts.append("\n".join([f"## {_escaped(name)}{title}\n", *head, *rows]) + "\n")
    return "\n".join(parts)


def reference_page() -> str:
    """What programs import, from its docstrings."""
    parts = ["# Python reference\n\nWhat programs may import; all else may change.\n"]
    homes: dict[str, Any] = {"bouquet": bouquet.__all__, "bouquet.flower": flower.__all__}
    homes["bouquet.testing"] = ["check_scheme"]
    for home, names in homes.items():
        parts.append(f"## {home}\n")
        parts += [f"::: {home}.{name}\n" for name in names]
    return "\n".join(parts)


def _cell(words: str) -> str:
    return _escaped(" ".join(words.split())).replace("|", "\\|")


def _escaped(words: str) -> str:
    """Words with what Markdown would take for its own made plain, but for code."""
    parts = re.split(r"(`[^`]*`)", words)
    return "".join(
        part if part.startswith("`") else re.sub(r"([*_<\[\]])", r"\\\1", part) for part in parts
    )
