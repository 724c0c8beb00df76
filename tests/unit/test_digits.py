"""How many digits a number has on the page: as many as are known, and no more."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bouquet.report.digits import decimals, plain, with_interval, with_spread


@pytest.mark.parametrize(
    ("value", "spread", "said"),
    [
        (0.92314, 0.0042, "0.923 ± 0.004"),
        (0.92314, 0.0142, "0.923 ± 0.014"),  # rounded to 0.01, a third of it would be lost
        (0.92314, 0.0196, "0.92 ± 0.02"),
        (0.5, 0.0096, "0.500 ± 0.010"),
        (123.4, 12.3, "123 ± 12"),
        (12345.0, 432.1, "12300 ± 400"),
        (-0.0312, 0.28, "0.0 ± 0.3"),
        (3, 0.0, "3 ± 0"),
        (0.99713, None, "0.997"),
        (0.99713, math.nan, "0.997"),
        (None, 0.1, "–"),
        (math.nan, 0.1, "–"),
    ],
)
def test_a_mean_has_the_digits_its_deviation_supports(
    value: float | None, spread: float | None, said: str
) -> None:
    assert with_spread(value, spread) == said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ((0.3772, 0.1885, 0.5779), "+0.38 (+0.19 to +0.58)"),
        ((-0.0212, -0.0423, -0.0031), "-0.021 (-0.042 to -0.003)"),  # not up to 0
        ((-0.0012, -0.0391, 0.0378), "0.00 (-0.04 to +0.04)"),  # the sign of nothing
        ((0.0, 0.0, 0.0), "0 (0 to 0)"),
        ((0.25, -math.inf, math.inf), "+0.250"),  # one example says nothing of its spread
        ((math.nan, 0.0, 1.0), "–"),
    ],
)
def test_a_change_has_a_sign_and_the_digits_its_interval_supports(
    change: tuple[float, float, float], said: str
) -> None:
    assert with_interval(*change) == said


@given(spread=st.floats(1e-9, 1e9))
def test_the_last_digit_is_not_below_a_twentieth_of_the_spread_nor_above_it(spread: float) -> None:
    place = 10.0 ** -decimals(spread)
    assert spread / 20 < place <= 1.0001 * spread


@given(value=st.floats(-1e3, 1e3), spread=st.floats(1e-6, 1e2))
def test_what_is_left_out_is_less_than_the_spread(value: float, spread: float) -> None:
    told, _, deviation = with_spread(value, spread).partition(" ± ")
    assert abs(float(told) - value) <= 0.51 * spread
    assert float(deviation) == pytest.approx(spread, rel=0.26)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0.04131, "0.041"), (0.62, "0.620"), (0.00123456, "0.00123"), (12.345, "12.3"),
        (99.97, "100"), (1023.4, "1023"), (7.0, "7"), (0.0, "0"), (math.inf, "–"), (None, "–"),
    ],
)  # fmt: skip
def test_a_number_of_unknown_spread_has_three_digits(value: float | None, said: str) -> None:
    assert plain(value) == said
