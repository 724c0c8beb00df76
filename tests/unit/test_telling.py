"""Rounds in words."""

from bouquet.storage.events import Event, Failure, telling


def event(round_: int, *, failed: int = 0, **metrics: float) -> Event:
    return {
        "round": round_,
        "stage": "fedavg",
        "seconds": 1.5,
        "timing": {},
        "nodes": {},
        "clients": [],
        "failures": [Failure(client="a", reason="why")] * failed,
        "bytes_up": 0,
        "bytes_down": 0,
        "metrics": dict(metrics),
    }


def test_a_round_without_evaluation_shows_what_was_last_known_and_when() -> None:
    words = telling()
    assert words(event(1)) == "1.50 s/round"
    known = "1.50 s/round  shared accuracy 0.5000  personal accuracy 0.7500"
    assert words(event(2, shared_accuracy=0.5, personal_accuracy=0.75)) == known
    assert words(event(3, failed=2)) == f"{known} (round 2)  2 failed"
    assert words(event(4, shared_loss=2e5)) == "1.50 s/round  shared loss 2.000e+05"


def test_beside_a_bar_it_is_brief() -> None:
    words = telling(brief=True)
    first = event(1, failed=1, shared_accuracy=0.5, personal_accuracy=0.75)
    assert words(first) == "1 failed  shared 0.5000  personal 0.7500"
    assert words(event(2)) == "shared 0.5000  personal 0.7500 (round 1)"
    assert words(event(3, shared_loss=1.0)) == "shared loss 1.0000"
