"""Every block of every page: commands and keys that there are, files that can be read.

Python is run as it stands, by the tests that ``RUN`` names. A command that trains is run by the
guides' own tests; here it is read as the command line reads it, and its keys are checked; one
that only looks something up is run. A block without a language has commands; ``text`` is what a
command says, or a layout of files. What is not ours needs a note in front of it:
``<!-- not run: why -->`` or ``<!-- run by tests/... -->``.
"""

import configparser
import re
import shlex
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import click
import pytest
import typer

from bouquet.cli.main import app
from bouquet.cli.options import key_values
from bouquet.client_app.policy import read_policy
from bouquet.settings import parse
from bouquet.storage.runfolder import read_toml
from bouquet.sweeping.asked import from_tables
from tests.pages import ROOT, blocks, pages
from tests.unit.test_cli import Bouquet, bouquet

__all__ = ["bouquet"]

COMMANDS = ("", "sh")
PYTHON = ("python", "py")
# How many blocks of Python a page has, and the tests that run them.
RUN = {
    "../README.md": (1, "tests/unit/test_guides.py"),
    "api.md": (6, "tests/unit/test_guides.py"),
    "conformance.md": (1, "tests/unit/test_guides.py"),
    "data.md": (1, "tests/unit/test_folder.py"),
    "models.md": (2, "tests/unit/test_own_model.py tests/unit/test_buffers.py"),
    "parts.md": (1, "tests/unit/test_guides.py"),
    "pretrained.md": (1, "tests/unit/test_objects_given.py"),
    "schemes.md": (2, "tests/unit/test_guides.py"),
}
ALL = [block for page in ("../README.md", *pages()) for block in blocks(page)]
OURS = {
    f"{block.page}: {shlex.join(words)}": words[1:]
    for block in ALL
    if block.language in COMMANDS
    for words in block.commands
    if words[0] == "bouquet"
}
# Parts of a user's own, which other tests have the files of.
OWN = re.compile(r"((scheme|model\.name|data\.name|loss|metric|augment)=)?[./\w]+:[A-Za-z]\w+$")
LOOKS_UP = re.compile(r"(schemes|keys|models|data list|data describe digits)\b")


def is_own(word: str) -> bool:
    return OWN.match(word) is not None


QUICK = {
    name: words
    for name, words in OURS.items()
    if LOOKS_UP.match(" ".join(words)) and not any(map(is_own, words))
}


def understood(words: list[str]) -> dict[str, Any]:
    """What the command line makes of words, without doing it."""
    command = typer.main.get_command(app)
    told: dict[str, Any] = {}
    while words or not told:
        context = command.make_context("bouquet", list(words))
        told |= context.params
        if not isinstance(command, click.Group) or not (rest := _left(context)):
            break
        _, found, words = command.resolve_command(context, rest)
        assert found is not None
        command = found
    return told


def _left(context: click.Context) -> list[str]:
    return [*context._protected_args, *context.args]


def test_every_block_says_what_it_is() -> None:
    kinds = {*COMMANDS, *PYTHON, "toml", "ini", "latex", "text"}
    assert not [one for one in ALL if one.language not in kinds]
    assert not [one for one in ALL if one.language == "text" and "bouquet " in one.text]


def test_python_is_run_by_the_tests_that_are_named() -> None:
    code = [one for one in ALL if one.language in PYTHON]
    found = Counter(one.page for one in code if not one.note)
    assert found == {page: number for page, (number, _) in RUN.items()}
    for page, (_, files) in RUN.items():
        assert all(page in (ROOT / file).read_text("utf-8") for file in files.split()), page
    for one in code:
        compile(one.text, one.page, "exec")


def test_a_note_gives_a_reason_or_a_test_that_there_is() -> None:
    for one in ALL:
        if one.note.startswith("run by "):
            assert one.page in (ROOT / one.note.removeprefix("run by ")).read_text("utf-8"), one
        elif one.note:
            assert len(one.note.removeprefix("not run: ").split()) > 3, one


def test_commands_that_are_not_ours_have_a_note() -> None:
    for one in ALL:
        if one.language in COMMANDS and not one.note:
            assert {words[0] for words in one.commands} == {"bouquet"}, one


@pytest.mark.parametrize("words", OURS.values(), ids=OURS)
def test_our_commands_are_understood(words: list[str]) -> None:
    keys = understood(words).get("keys") or []
    if not any(map(is_own, keys)):
        parse(key_values(None, keys))


@pytest.mark.parametrize("words", QUICK.values(), ids=QUICK)
def test_commands_that_look_something_up_run_as_they_stand(
    words: list[str], bouquet: Bouquet
) -> None:
    done = bouquet(*words)
    assert (done.code, bool(done.out)) == (0, True), done.err


def test_our_commands_in_services_are_understood() -> None:
    units = [one for one in ALL if one.language == "ini"]
    assert len(units) == 3
    for one in units:
        unit = configparser.RawConfigParser(comment_prefixes="#")
        unit.read_string(one.text)
        program, *words = shlex.split(unit["Service"]["ExecStart"].replace("\\\n", " "))
        assert program.startswith("/srv/bouquet/.venv/bin/")
        if program.endswith("/bouquet"):
            understood(words)


def test_files_of_keys_are_read(tmp_path: Path) -> None:
    files = [one for one in ALL if one.language == "toml"]
    assert files
    for one in files:
        file = tmp_path / "it.toml"
        file.write_text(one.text)
        if one.page == "sweeps.md":
            tables = {"schemes": ["apfl"]} | tomllib.loads(one.text)
            from_tables({name: value for name, value in tables.items() if name != "out"})
        elif one.page == "policy.md":
            read_policy(str(file))
        else:
            parse(read_toml(file))
