"""The list of planted mistakes fits the code it is about."""

import tomllib
from pathlib import Path

import pytest

from bouquet.strategies import SCHEMES

ROOT = Path(__file__).resolve().parents[2]
LIST = tomllib.loads((ROOT / "benchmarks" / "mutants.toml").read_text("utf-8"))


def own_file(scheme: str) -> str:
    return f"strategies/{scheme.replace('-', '_')}.py"


@pytest.mark.parametrize("scheme", list(LIST))
def test_every_mistake_can_still_be_planted(scheme: str) -> None:
    """Its text is there once, what replaces it is Python, and no two mistakes are the same."""
    planted = set()
    for one in LIST[scheme]["mutant"]:
        file = ROOT / one.get("file", own_file(scheme))
        text, old = file.read_text("utf-8"), one["old"].strip("\n")
        assert text.count(old) == 1, one["mistake"]
        wrong = text.replace(old, one["new"].strip("\n"))
        compile(wrong, str(file), "exec")
        assert wrong != text
        planted.add((file, wrong))
    assert len(planted) == len(LIST[scheme]["mutant"])


def test_every_scheme_has_its_mistakes() -> None:
    files = {
        Path(one.get("file", own_file(name))).stem
        for name, group in LIST.items()
        for one in group["mutant"]
    }
    assert files >= {Path(own_file(name)).stem for name in SCHEMES}
