"""Who is helped and who is hurt: statistics against scipy, by hand, and on known truths."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from bouquet.report.verdict import (
    Floats,
    advise,
    compare,
    default_model,
    holm,
    mcnemar,
    mean_interval,
    verdict,
)


@given(better=st.integers(0, 60), worse=st.integers(0, 60))
def test_mcnemar_is_scipys_exact_binomial_test_of_the_examples_that_differ(
    better: int, worse: int
) -> None:
    expected = binomtest(better, better + worse).pvalue if better + worse else 1.0
    assert mcnemar(better, worse) == pytest.approx(expected, rel=1e-9)


def test_mcnemar_by_hand() -> None:
    """Five differ, all in favour of one: 2 of the 32 ways that coins can fall."""
    assert mcnemar(5, 0) == mcnemar(0, 5) == 2 / 32
    assert mcnemar(3, 3) == 1.0


def test_only_the_examples_that_differ_count() -> None:
    first = np.array([1, 1, 0, 0, 1, 0, 0, 0.0])
    second = np.array([1, 1, 1, 1, 0, 1, 1, 1.0])
    pair = compare(first, second)
    assert (pair.examples, pair.better, pair.worse) == (8, 5, 1)
    assert pair.change == 0.5
    assert pair.p == binomtest(1, 6).pvalue


def test_the_interval_is_agresti_and_mins() -> None:
    """One kind each has half an example more: b = 5.5, c = 1.5, n = 10."""
    pair = compare(np.array([0.0] * 5 + [1] + [1, 1]), np.array([1.0] * 5 + [0] + [1, 1]))
    middle = (5.5 - 1.5) / 10
    half = 1.959964 * np.sqrt((5.5 + 1.5) - (5.5 - 1.5) ** 2 / 10) / 10
    assert (pair.low, pair.high) == pytest.approx((middle - half, middle + half), rel=1e-6)


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(500):
        first = rng.random(40) < 0.7
        second = np.where(rng.random(40) < 0.3, rng.random(40) < 0.9, first)
        truth = 0.3 * (0.9 - 0.7)
        pair = compare(first.astype(float), second.astype(float))
        hits += pair.low <= truth <= pair.high
    assert 0.92 <= hits / 500 <= 0.99


def test_a_text_counts_by_the_sign_of_its_difference() -> None:
    pair = compare(np.array([0.5, 0.2, 0.9]), np.array([0.6, 0.1, 0.9]))
    assert (pair.better, pair.worse) == (1, 1)
    assert pair.change == pytest.approx(0.0)


def test_holm_by_hand() -> None:
    """Of three: times 3, 2 and 1 in order of size, never smaller than the one before."""
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_made_up_clients_get_the_verdict_they_deserve() -> None:
    """One is truly helped, one truly hurt, forty are as before but for chance."""
    rng = np.random.default_rng(0)
    shared = [rng.random(200) < 0.6 for _ in range(42)]
    personal = [np.where(rng.random(200) < 0.3, rng.random(200) < 0.6, one) for one in shared]
    personal[0], personal[1] = rng.random(200) < 0.95, rng.random(200) < 0.25
    pairs = [
        compare(a.astype(float), b.astype(float)) for a, b in zip(shared, personal, strict=True)
    ]
    adjusted = holm([pair.p for pair in pairs])
    said = [verdict(one.leans, one.p, p) for one, p in zip(pairs, adjusted, strict=True)]
    assert said[:2] == ["helped", "hurt"]
    assert not {"helped", "hurt"} & set(said[2:])


def test_equal_models_are_seldom_told_apart() -> None:
    """The exact test errs on at most one in twenty; with Holm on none of a run's clients."""
    rng = np.random.default_rng(2)
    flips = rng.binomial(30, 0.5, size=2000)
    wrong = np.mean([mcnemar(int(heads), int(30 - heads)) <= 0.05 for heads in flips])
    assert 0.02 < wrong <= 0.055


def test_no_difference_and_a_difference_by_chance_are_not_called_by_name() -> None:
    assert verdict(4 - 0, mcnemar(4, 0), 1.0) == "no difference shown"
    assert verdict(9 - 1, mcnemar(9, 1), 0.4) == "perhaps helped"
    assert verdict(1 - 9, mcnemar(1, 9), 0.4) == "perhaps hurt"
    assert verdict(1 - 9, mcnemar(1, 9), 0.04) == "hurt"


def told(better: int, worse: int, same: int = 4) -> dict[str, Floats]:
    """Personal is right and shared wrong on some examples, and the other way round."""
    shared = [0.0] * better + [1.0] * worse + [1.0] * same
    personal = [1.0] * better + [0.0] * worse + [1.0] * same
    return {"shared": np.array(shared), "personal": np.array(personal)}


def test_the_default_is_advised_until_a_test_speaks_against_it() -> None:
    """Five all one way have p = 2/32, six have 2/64."""
    assert advise(told(0, 5), "personal").model == "personal"
    against = advise(told(0, 6), "personal")
    assert (against.model, against.p, against.sure) == ("shared", 2 / 64, True)
    assert advise(told(6, 0), "shared").model == "personal"


def test_advice_says_how_sure_it_is() -> None:
    unsure, sure = advise(told(2, 1), "personal"), advise(told(9, 0), "personal")
    assert (unsure.p, unsure.sure) == (1.0, False)
    assert (sure.model, sure.p, sure.sure) == ("personal", 2 / 2**9, True)
    # Kept against the evidence, for want of enough of it: nothing to be sure of.
    assert not advise(told(0, 5), "personal").sure


def test_two_rivals_need_more_evidence_than_one() -> None:
    right = told(0, 6)
    assert advise(right | {"local": right["personal"]}, "personal").model == "personal"
    right = told(0, 8)
    found = advise(right | {"local": right["personal"]}, "personal")
    assert (found.model, found.p) == ("shared", 2 * 2 / 2**8)


def drawn(rng: np.random.Generator, size: int, shared: float, personal: float) -> dict[str, Floats]:
    """Two models' answers to the same examples, each right as often as it says."""
    luck = rng.random(size)
    other = np.where(rng.random(size) < 0.5, luck, rng.random(size))  # half of it in common
    return {"shared": (luck < shared) * 1.0, "personal": (other < personal) * 1.0}


def mean_gain(worlds: list[tuple[float, float]], size: int) -> float:
    """How much better than always personal the advice truly is, over many draws."""
    rng = np.random.default_rng(4)
    gains = []
    for shared, personal in worlds * 200:
        truth = {"shared": shared, "personal": personal}
        gains.append(truth[advise(drawn(rng, size, *truth.values()), "personal").model] - personal)
    return float(np.mean(gains))


@pytest.mark.parametrize("size", [2, 5, 8, 15, 30])
def test_following_the_advice_is_not_worse_than_always_taking_the_default(size: int) -> None:
    """Where the default is best it costs next to nothing, and where it may be either it gains."""
    for shared, personal in ((0.975, 0.999), (0.9, 0.95), (0.6, 0.9), (0.8, 0.8)):
        assert mean_gain([(shared, personal)], size) > -0.001
    either = [(0.6, 0.9), (0.9, 0.6), (0.8, 0.85), (0.85, 0.8)]
    assert mean_gain(either, size) >= 0
    assert mean_gain(either, 100) > 0.05


def test_with_plenty_of_evidence_the_advice_switches() -> None:
    rng = np.random.default_rng(5)
    for _ in range(50):
        assert advise(drawn(rng, 400, 0.9, 0.7), "personal").model == "shared"


def test_all_clients_together_choose_the_default() -> None:
    """Three examples each say nothing of one client, but nine clients agree."""
    worse, better = told(0, 1, 2), told(1, 0, 2)

    def default(clients: list[dict[str, Floats]]) -> str:
        return default_model([c["shared"] for c in clients], [c["personal"] for c in clients])

    assert default([worse] * 9) == "shared"
    assert default([worse] * 5) == "personal"
    assert default([worse] * 6 + [better] * 3) == "personal"
    assert default([told(0, 0)] * 9) == "shared"  # one model with two names


def test_the_mean_over_clients_has_an_interval_near_students() -> None:
    values = np.random.default_rng(3).normal(0.1, 0.2, 100)
    low, high = mean_interval(values.tolist())
    half = 1.96 * values.std(ddof=1) / 10
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.006)
