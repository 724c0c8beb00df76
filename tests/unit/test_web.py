"""The dashboard's code by itself: its tests are beside this file, in its own language."""

import shutil
import subprocess
from pathlib import Path

import pytest

from bouquet.watch.dashboard import FILES

HERE = Path(__file__).parent / "web"
TESTS = sorted(HERE.glob("*.test.mjs"))


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_pages_code_does_what_its_own_tests_say() -> None:
    told = subprocess.run(
        ["node", "--test", *map(str, TESTS)], capture_output=True, text=True, timeout=60
    )
    assert told.returncode == 0, told.stdout
    assert "# pass 0" not in told.stdout


@pytest.mark.parametrize("pure", ["view.js", "runs.js", "series.js", "scale.js"])
def test_what_is_pure_knows_no_page(pure: str) -> None:
    text = FILES[pure].read_text()
    assert not [word for word in ("document", "window", "fetch(", "location") if word in text]
