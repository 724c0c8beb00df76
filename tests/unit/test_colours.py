"""The schemes' colours: always the same, and to be told apart."""

import itertools

import numpy as np
import numpy.typing as npt
import pytest

from bouquet.colours import DASHES, PALETTE, SCHEMES, colour_of, dashes
from bouquet.strategies.registry import SCHEMES as BUILT_IN

Array = npt.NDArray[np.float64]

# How people without one kind of cone see linear RGB (Machado et al. 2009, severity 1).
EYES = {
    "usual": np.eye(3),
    "no red cones": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "no green cones": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
}
# From linear RGB to OKLab, where distances are as people see them (Ottosson 2020).
CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def linear(colour: str) -> Array:
    parts = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def distance(one: str, other: str, eyes: str) -> float:
    seen = [LAB @ np.cbrt(CONES @ np.clip(EYES[eyes] @ linear(c), 0, 1)) for c in (one, other)]
    return float(np.linalg.norm(seen[0] - seen[1]))


def contrast(one: str, other: str) -> float:
    """As the Web Content Accessibility Guidelines define it."""
    light = sorted(float(linear(c) @ [0.2126, 0.7152, 0.0722]) + 0.05 for c in (one, other))
    return light[1] / light[0]


def test_every_built_in_scheme_has_a_place() -> None:
    assert sorted(SCHEMES) == sorted(BUILT_IN)


def test_a_name_has_one_colour_whatever_else_there_is() -> None:
    assert colour_of("fedavg") == "#0072b2"
    assert colour_of("fedavg", dark=True) == "#5db3ec"
    # Of a name that nobody knows, too, in every process: not by Python's own hash.
    assert colour_of("mine") == PALETTE[3][0]


def test_the_schemes_most_often_compared_have_colours_of_their_own() -> None:
    usual = ("fedavg", "local", "apfl", "ditto", "finetune", "pfedme", "fedrep", "perfedavg")
    assert len({colour_of(scheme) for scheme in usual}) == len(usual)


@pytest.mark.parametrize("eyes", EYES)
@pytest.mark.parametrize("dark", [False, True])
def test_colours_can_be_told_apart(eyes: str, dark: bool) -> None:
    shown = [pair[dark] for pair in PALETTE]
    near = [distance(one, other, eyes) for one, other in itertools.combinations(shown, 2)]
    assert min(near) > 0.06  # some three times what is just noticeable


@pytest.mark.parametrize(("page", "dark"), [("#ffffff", False), ("#181d23", True)])
def test_colours_stand_out_from_the_page(page: str, dark: bool) -> None:
    assert min(contrast(pair[dark], page) for pair in PALETTE) >= 3  # the guidelines' for graphics


def test_lines_of_one_colour_are_broken_differently() -> None:
    assert colour_of("apfl") == colour_of("fedper")
    assert dashes(["apfl", "fedavg", "fedper", "apfl"]) == [0, 0, 1, 2]
    assert dashes(["apfl"] * 5)[-1] < len(DASHES)
