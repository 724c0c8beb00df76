"""No reply, introduction, message or file ends a run with a traceback: seeded nonsense of each."""

from pathlib import Path

import pytest

from tests.fuzzing import ACCEPTED, KINDS, REFUSED, attempt

# Cases of each kind; `benchmarks/fuzz.py` does thousands.
CASES = {
    "configurations": 300,
    "replies": 300,
    "introductions": 300,
    "messages": 300,
    "files": 50,
    "runs": 30,
}


@pytest.mark.parametrize("kind", KINDS)
def test_nonsense_is_refused_with_a_sentence_or_does_no_harm(kind: str, tmp_path: Path) -> None:
    with KINDS[kind](tmp_path) as case:
        found = {attempt(case, 0, kind, number) for number in range(CASES[kind])}
    assert found == {REFUSED, ACCEPTED}  # else the nonsense is too wild, or too tame
