"""The guides for programs: every piece of code in them runs as it stands."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests import pages
from tests.unit.test_cli import Bouquet, bouquet

__all__ = ["bouquet"]

ROOT = Path(__file__).parents[2]


def blocks(guide: str, language: str) -> list[str]:
    text = (ROOT / "docs" / guide).read_text("utf-8")
    return [
        code
        for kind, code in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S)
        if kind == language
    ]


def run(code: str, folder: Path) -> str:
    """Run Python as a user would, in a folder of their own."""
    words = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=words,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_guide_to_the_api_and_the_readme_run_as_they_stand(tmp_path: Path) -> None:
    said = run("\n".join(blocks("api.md", "python") + blocks("../README.md", "python")), tmp_path)
    assert "Run('apfl', shared 0." in said
    assert re.search(r"^apfl +2 ", said, re.M)
    assert "Linear(in_features=8, out_features=2" in said
    assert re.search(r"^apfl +lr=0\.\d+ +2 ", said, re.M)


def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path) -> None:
    notebook = json.loads((ROOT / "examples" / "notebook.ipynb").read_text("utf-8"))
    cells = ["".join(one["source"]) for one in notebook["cells"] if one["cell_type"] == "code"]
    assert not [one for one in notebook["cells"] if one.get("outputs")]
    said = run("\n".join([*cells, "print(runs.table())"]), tmp_path)
    assert re.search(r"^local +2 ", said, re.M)


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the guide's scheme."""
    folder = tmp_path_factory.mktemp("mine")
    (folder / "mine.py").write_text(blocks("schemes.md", "python")[0])
    return folder


def commands() -> list[str]:
    """Without those for Ray, on which tests/engines/test_ray.py runs a scheme of one's own."""
    lines = [line for block in blocks("schemes.md", "") for line in block.splitlines()]
    return [line for line in lines if "--engine ray" not in line]


def said_by(command: str, bouquet: Bouquet) -> str:
    """What a guide's command prints."""
    program, *words = shlex.split(command)
    assert program == "bouquet"
    done = bouquet(*words)
    assert done.code == 0, done.err
    return done.out


@pytest.mark.parametrize("command", commands())
def test_the_commands_for_a_scheme_of_ones_own_run_as_they_stand(
    command: str, mine: Path, bouquet: Bouquet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(mine)
    assert "slowhead" in said_by(command, bouquet)


def test_the_guide_to_parts_of_ones_own_runs_as_it_stands(tmp_path: Path, bouquet: Bouquet) -> None:
    (tmp_path / "mine.py").write_text(blocks("parts.md", "python")[0])
    describe, simulate = blocks("parts.md", "")[0].splitlines()
    assert "north" in said_by(describe, bouquet)
    assert "apfl-hospitals" in said_by(simulate, bouquet)
    (table,) = tmp_path.glob("runs/*/clients.csv")
    assert "personal_brier-score" in table.read_text("utf-8")


def test_the_guides_scheme_keeps_the_laws_as_the_guide_says(mine: Path) -> None:
    run(f"{blocks('schemes.md', 'python')[1]}\ntest_it_keeps_the_laws()", mine)


def test_the_guides_scheme_is_short() -> None:
    assert len(blocks("schemes.md", "python")[0].splitlines()) <= 40


def test_the_commands_of_the_concepts_run_as_they_stand(bouquet: Bouquet, tmp_path: Path) -> None:
    lines = [line for block in blocks("concepts.md", "") for line in block.splitlines()]
    assert len(lines) == 3
    for line in lines:
        assert bouquet(*shlex.split(line)[1:]).code == 0
    assert json.loads((tmp_path / "runs" / "first" / "summary.json").read_text())["rounds"] == 6
    assert (tmp_path / "report.html").exists()


def test_the_guide_to_conformance_runs_as_it_stands(tmp_path: Path, bouquet: Bouquet) -> None:
    (adapter,) = blocks("conformance.md", "python")
    run(adapter, tmp_path)
    listing, ours, theirs = blocks("conformance.md", "")[0].splitlines()
    assert "apfl-mlp-sampled" in said_by(listing, bouquet)
    for command in (ours, theirs):
        assert re.search(r"^v_bar +4 of 4 +-", said_by(command, bouquet), re.M)


def test_the_guide_to_conformance_names_every_key_of_the_vectors() -> None:
    text = (ROOT / "docs" / "conformance.md").read_text("utf-8")
    listed = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\|.*?\|", text, re.M))))
    files = [json.loads(path.read_text("utf-8")) for path in ROOT.glob("conformance/vectors/*")]
    assert {key for file in files for key in file} <= listed


def test_the_guide_to_reports_names_the_files_that_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bouquet.cli import main

    monkeypatch.chdir(tmp_path)
    for line in "".join(blocks("report.md", "")).splitlines():
        monkeypatch.setattr(sys, "argv", shlex.split(line))
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
    text = (ROOT / "docs" / "report.md").read_text("utf-8")
    beside = re.findall(r"`(two[\w-]*\.\w+)`", text)
    papers = re.findall(r"`(\w+(?:-column|-wide)?\.(?:pdf|tex))`", text)
    assert (len(beside), len(papers)) == (4, 7)
    assert all((tmp_path / name).is_file() for name in beside)
    made = {path.name for path in (tmp_path / "paper").iterdir()}
    assert set(papers) <= made
    names = {name.partition("-")[0] for name in made if name.endswith(".pdf")}
    assert names == {"accuracy", "loss", "spread", "change"}  # all that the page has


def test_the_first_five_minutes_go_as_they_are_told(bouquet: Bouquet) -> None:
    folder = Path.cwd()
    for block in pages.blocks("start.md"):
        if block.title:
            (folder / block.title).write_text(block.text)
        elif not block.language and not block.note:
            for _, *words in block.commands:
                if words[0] in ("compare", "simulate", "report", "export"):
                    done = bouquet(*words)
                    assert done.code == 0, done.err
    three = {scheme: folder / "runs" / "first" / scheme for scheme in ("fedavg", "local", "apfl")}
    (table,) = (one.text for one in pages.blocks("start.md") if one.language == "text")
    for scheme, run in three.items():
        summary = json.loads((run / "summary.json").read_text())
        (line,) = (line for line in table.splitlines() if f" {scheme} " in line)
        told = [cell.strip() for cell in line.split("│")]
        got = [summary[whose]["accuracy"]["mean"] for whose in ("shared", "personal")]
        assert [float(cell) for cell in told[2:4]] == pytest.approx(got, abs=0.02)
    assert json.loads((folder / "runs/mine/summary.json").read_text())["rounds"] == 7
    assert (folder / "report.html").exists()
    assert (folder / "model").exists()


def test_the_threat_model_names_tests_that_there_are() -> None:
    """What is called protected is shown by a test, until somebody renames it."""
    text = (ROOT / "docs" / "security.md").read_text("utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text)
    assert len(named) > 20
    for file, test in named:
        assert not test or f"def {test}(" in (ROOT / file).read_text("utf-8"), (file, test)
