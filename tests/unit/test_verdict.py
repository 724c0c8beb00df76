"""Who is helped and who is hurt: statistics against scipy, by hand, and on known truths."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, permutation_test, wilcoxon
from scipy.stats import t as student

from bouquet.core.measure import LOSS, Measure
from bouquet.report.verdict import (
    GRID,
    Floats,
    advise,
    compare,
    default_model,
    holm,
    mcnemar,
    mean_interval,
    sign_flip,
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


# Losses, and other numbers of each example


@given(seed=st.integers(0, 10**6), size=st.integers(2, 9))
def test_flipping_signs_is_scipys_exact_permutation_test(seed: int, size: int) -> None:
    """All ways to exchange the two models' losses on an example, none of them left to chance.

    Sums that are as near to each other as the grid's steps may change places.
    """
    gaps = np.random.default_rng(seed).standard_t(2, size) + 0.7
    paired = permutation_test(
        (gaps, np.zeros(size)),
        lambda one, other, axis: (one - other).mean(axis=axis),
        permutation_type="samples",
        vectorized=True,
    )
    sums, step = np.abs(paired.null_distribution), np.abs(gaps).sum() / GRID
    low, high = (np.mean(sums >= abs(gaps.mean()) + shift) for shift in (step, -step))
    assert low - 1e-9 <= sign_flip(gaps) <= high + 1e-9
    assert high - low <= 4 / 2**size  # or it would say little


def test_flipping_signs_by_hand() -> None:
    """3, 2 and -1 sum up to 4; of the 8 sums 6, 4 and -4, -6 are as far from 0."""
    assert sign_flip(np.array([3.0, 2.0, -1.0])) == pytest.approx(4 / 8)
    assert sign_flip(np.array([3.0, 2.0, 1.0])) == pytest.approx(2 / 8)
    assert sign_flip(np.array([5.0])) == sign_flip(np.zeros(7)) == sign_flip(np.zeros(0)) == 1.0


@given(better=st.integers(0, 40), worse=st.integers(0, 40), size=st.sampled_from([1.0, 0.3, 70.0]))
def test_with_differences_of_one_size_it_is_mcnemars(better: int, worse: int, size: float) -> None:
    gaps = np.array([size] * better + [-size] * worse + [0.0] * 5)
    assert sign_flip(gaps) == pytest.approx(mcnemar(better, worse), rel=1e-9)


def test_one_example_that_outweighs_all_others_shows_nothing() -> None:
    gaps = np.array([1e9] + [1.0] * 30)
    assert sign_flip(gaps) == 1.0


def errors(rng: np.random.Generator, size: int, worse: float) -> tuple[Floats, Floats]:
    """Two models' squared errors on the same examples, the first's larger by a share."""
    hard = rng.exponential(size=size)
    first, second = (hard * rng.normal(size=size) ** 2 for _ in range(2))
    return first * (1 + worse), second


@pytest.mark.parametrize("size", [8, 30, 120])
def test_models_with_equal_losses_are_seldom_told_apart(size: int) -> None:
    rng = np.random.default_rng(6)
    ps = [compare(*errors(rng, size, 0.0), LOSS).p for _ in range(800)]
    assert 0.025 < np.mean(np.array(ps) <= 0.05) < 0.065


def test_a_model_with_lower_losses_is_found_out_and_the_more_so_with_more_examples() -> None:
    rng = np.random.default_rng(7)
    found = []
    for size in (20, 80, 320):
        pairs = [compare(*errors(rng, size, 1.5), LOSS) for _ in range(100)]
        assert not any(one.p <= 0.05 and one.leans < 0 for one in pairs)
        found.append(np.mean([one.p <= 0.05 for one in pairs]))
    assert found == sorted(found)
    assert found[0] > 0.2
    assert found[-1] > 0.99


def test_it_is_about_the_mean_not_about_which_sign_is_more_frequent() -> None:
    """A model a little better nearly always, and much worse at times, has the same mean loss.

    Wilcoxon's signed ranks, which look at the usual example, would call it better.
    """
    rng = np.random.default_rng(8)
    flips, ranks = [], []
    for _ in range(200):
        gaps = np.where(rng.random(200) < 0.9, 1.0, -9.0) + 0.01 * rng.normal(size=200)
        flips.append(sign_flip(gaps) <= 0.05)
        ranks.append(wilcoxon(gaps).pvalue <= 0.05)
    assert np.mean(flips) < 0.09
    assert np.mean(ranks) > 0.9


def test_a_decrease_in_loss_helps_and_its_interval_is_students() -> None:
    shared, personal = np.array([3.0, 2.0, 4.0, 1.0]), np.array([1.0, 2.5, 1.0, 1.0])
    pair = compare(shared, personal, LOSS)
    assert (pair.better, pair.worse, pair.change) == (2, 1, 4.5 / 4)
    assert pair.leans > 0
    gaps = shared - personal
    expected = student.interval(0.95, 3, gaps.mean(), gaps.std(ddof=1) / 2)
    assert (pair.low, pair.high) == pytest.approx(expected)
    other = compare(shared, personal, Measure("score"))  # of which more is better
    assert (other.change, other.p) == (-pair.change, pair.p)
    assert compare(shared[:1], personal[:1], LOSS).high == np.inf


def test_advice_by_losses_takes_the_model_that_is_shown_to_lose_less() -> None:
    losses = {"shared": np.linspace(0.1, 0.8, 8), "personal": np.linspace(1.1, 1.8, 8)}
    found = advise(losses, "personal", LOSS)
    assert (found.model, found.sure) == ("shared", True)
    assert found.p == pytest.approx(2 / 2**8)
    assert advise(losses, "shared", LOSS).model == "shared"


def test_the_default_by_losses_is_what_most_clients_lose_less_by() -> None:
    """However much one of them loses: their targets may be of any size."""
    small, large = np.array([0.1, 0.2]), np.array([0.3, 0.4])
    huge = [1e6 * large]
    assert default_model([small] * 9 + huge, [large] * 9 + [small], LOSS) == "shared"
    assert default_model([large] * 9, [small] * 9, LOSS) == "personal"
