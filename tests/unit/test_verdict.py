"""Who is helped and who is hurt: statistics against scipy, by hand, and on known truths."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from bouquet.verdict import advise, compare, holm, mcnemar, mean_interval, verdict


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
    said = [
        verdict(one.better, one.worse, one.p, p) for one, p in zip(pairs, adjusted, strict=True)
    ]
    assert said[:2] == ["helped", "hurt"]
    assert not {"helped", "hurt"} & set(said[2:])


def test_equal_models_are_seldom_told_apart() -> None:
    """The exact test errs on at most one in twenty; with Holm on none of a run's clients."""
    rng = np.random.default_rng(2)
    flips = rng.binomial(30, 0.5, size=2000)
    wrong = np.mean([mcnemar(int(heads), int(30 - heads)) <= 0.05 for heads in flips])
    assert 0.02 < wrong <= 0.055


def test_no_difference_and_a_difference_by_chance_are_not_called_by_name() -> None:
    assert verdict(4, 0, mcnemar(4, 0), 1.0) == "no difference shown"
    assert verdict(9, 1, mcnemar(9, 1), 0.4) == "perhaps helped"
    assert verdict(1, 9, mcnemar(1, 9), 0.4) == "perhaps hurt"
    assert verdict(1, 9, mcnemar(1, 9), 0.04) == "hurt"


def test_of_equals_the_first_is_advised() -> None:
    assert advise({"shared": 0.5, "personal": 0.75, "local": 0.75}) == "personal"
    assert advise({"shared": 0.5, "personal": 0.5}) == "shared"


def test_the_mean_over_clients_has_an_interval_near_students() -> None:
    values = np.random.default_rng(3).normal(0.1, 0.2, 100)
    low, high = mean_interval(values.tolist())
    half = 1.96 * values.std(ddof=1) / 10
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.006)
