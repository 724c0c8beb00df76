"""The conformance vectors: where they come from, what they catch, and that our schemes agree."""

import ast
import copy
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bouquet.conformance import cases, check, generate
from bouquet.conformance.reference.afl import onto_simplex
from bouquet.conformance.reference.case import Case
from bouquet.conforming import SCHEMES, output
from bouquet.core.errors import BadInput

ROOT = Path(__file__).parents[2] / "conformance"
NAMES = [path.stem for path in check.vectors()]
ROUNDING = 1e-12  # another numpy may add in another order


def vector(name: str) -> dict[str, Any]:
    return check.read_vector(check.find(name))


def expected(told: dict[str, Any]) -> dict[str, Any]:
    """What the reference makes of a file, as an output."""
    scheme = import_module(f"bouquet.conformance.reference.{told['scheme']}")
    case = Case(told)
    found = [generate.plain(one, case.problem.shapes) for one in scheme.iterates(case)]
    return {"name": told["name"], "iterates": found}


def farthest(told: dict[str, Any], found: dict[str, Any]) -> float:
    return max(max(one.deviations) for one in check.compare(told, found))


@pytest.mark.parametrize("name", NAMES)
def test_our_scheme_takes_the_steps_that_its_paper_prescribes(name: str) -> None:
    told = vector(name)
    found = check.compare(told, output(told))
    assert check.agrees(found), check.table(found)


def test_there_are_vectors_for_each_of_the_ten_schemes() -> None:
    assert {vector(name)["scheme"] for name in NAMES} == set(SCHEMES)
    assert len(SCHEMES) == 10


# Where they come from


def test_the_committed_files_are_what_the_reference_gives() -> None:
    plans = list(cases.plans())
    assert sorted(plan.name for plan in plans) == sorted(NAMES), "python -m conformance.generate"
    for plan in plans:
        fresh, committed = generate.vector(plan), vector(plan.name)
        found = {"name": plan.name, "iterates": fresh.pop("expected")}
        assert farthest(committed, found) < ROUNDING
        assert fresh == {name: value for name, value in committed.items() if name != "expected"}


def test_the_reference_imports_numpy_and_nothing_of_ours() -> None:
    files = [*ROOT.glob("*.py"), *ROOT.glob("reference/*.py")]
    assert len(files) > 12
    for path in files:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                modules = [one.name for one in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                modules = [str(node.module)]
            else:
                continue
            for module in modules:
                first = module.partition(".")[0]
                assert first == "numpy" or first in sys.stdlib_module_names, (path.name, module)


@pytest.mark.parametrize(
    "name", ["plsgd-quadratic-all", "plsgd-softmax-sampled", "plsgd-mlp-sampled"]
)
def test_gradients_and_curvatures_are_those_of_finite_differences(name: str) -> None:
    """(f(x + h e) − f(x − h e)) / 2h, and the same of the gradient along a direction."""
    case, h, batch = Case(vector(name)), 1e-5, [0, 2]
    problem, x = case.problem, case.start
    along = np.random.default_rng(0).normal(size=x.shape)
    for client in ("a", "b"):
        slope = [
            (problem.loss(client, x + h * e, batch) - problem.loss(client, x - h * e, batch))
            / (2 * h)
            for e in np.eye(len(x))
        ]
        np.testing.assert_allclose(problem.gradient(client, x, batch), slope, atol=1e-9)
        ahead, behind = (problem.gradient(client, x + s * h * along, batch) for s in (1, -1))
        curved = problem.curvature(client, x, batch, along)
        np.testing.assert_allclose(curved, (ahead - behind) / (2 * h), atol=1e-8)
        assert np.abs(curved).max() > 0.01


def test_the_projection_is_the_nearest_point_of_the_simplex() -> None:
    """It is, if and only if no corner of the simplex lies ahead of it on the way to the point."""
    for point in np.random.default_rng(1).normal(0, 1.5, (50, 4)):
        nearest = onto_simplex(point)
        assert nearest.min() >= 0
        assert nearest.sum() == pytest.approx(1, abs=1e-12)
        assert ((np.eye(4) - nearest) @ (point - nearest)).max() < 1e-12


# What they catch


def symbols_that_count(told: dict[str, Any]) -> Iterator[str]:
    """Those with a value that is no count, but for the ones that a file says are not used."""
    for name, one in told["symbols"].items():
        unused = (name, told["variant"]) in {("eta_alpha", "fixed")}
        unused |= name == "delta" and (
            told["variant"] != "hessian-free" or told["problem"] == "quadratic"
        )
        if isinstance(one["value"], float) and not unused:
            yield name


@pytest.mark.parametrize("name", NAMES)
def test_no_symbol_can_be_a_little_wrong(name: str) -> None:
    told = vector(name)
    assert list(symbols_that_count(told))
    for symbol in symbols_that_count(told):
        wrong = copy.deepcopy(told)
        wrong["symbols"][symbol]["value"] *= 0.99
        assert farthest(told, expected(wrong)) > 10 * told["tolerance"], symbol


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        ("apfl-mlp-sampled", "fixed"),
        ("fedu-quadratic-sampled", "sampled"),
        ("perfedavg-mlp-sampled", "first-order"),
        ("perfedavg-mlp-sampled", "hessian-free"),
        ("perfedavg-quadratic-all", "first-order"),
    ],
)
def test_a_variant_is_not_taken_for_another(name: str, variant: str) -> None:
    told = vector(name)
    assert farthest(told, expected(told | {"variant": variant})) > 10 * told["tolerance"]


def test_a_uniform_mean_is_not_taken_for_a_weighted_one() -> None:
    told = vector("fedalt-mlp-sampled")
    weights = vector("fedalt-mlp-sampled-weighted")["weights"]
    assert farthest(told, expected(told | {"weights": weights})) > 10 * told["tolerance"]


def test_some_alphas_and_weights_reach_their_bounds() -> None:
    alphas = [one["alpha"] for one in vector("apfl-quadratic-sampled-clipped")["expected"]]
    assert {0.0, 1.0} <= {value for one in alphas for value in one.values()}
    first = vector("afl-quadratic-all-corner")["expected"][0]["lambda"]
    assert sorted(value > 0 for value in first.values()) == [False, True, True, True]


# The checker


NAME = "apfl-quadratic-all"


@pytest.fixture
def right() -> dict[str, Any]:
    """An output that agrees."""
    return copy.deepcopy({"name": NAME, "iterates": vector(NAME)["expected"]})


def verdicts(given: dict[str, Any]) -> dict[str, check.Verdict]:
    return {one.quantity: one for one in check.compare(vector(NAME), given)}


def test_what_agrees_within_the_tolerance_agrees(right: dict[str, Any]) -> None:
    right["iterates"][1]["v"]["b"]["x"][2] *= 1 + 1e-10
    assert check.agrees(list(verdicts(right).values()))


def test_the_first_deviation_is_told_with_its_round_and_place(right: dict[str, Any]) -> None:
    right["iterates"][1]["v"]["b"]["x"][2] += 1e-6
    right["iterates"][2]["v"]["a"]["x"][0] += 1.0
    found = verdicts(right)
    assert found["v"].first == 2
    assert [one.first for name, one in found.items() if name != "v"] == [None] * 4
    assert found["v"].row[1:3] == ("1 of 3", "round 2: b x[2]")
    assert not check.agrees(list(found.values()))


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_what_is_no_number_deviates(right: dict[str, Any], wrong: float) -> None:
    right["iterates"][0]["w"]["x"][0] = wrong
    assert verdicts(right)["w"].first == 1


def test_what_is_missing_or_of_another_shape_deviates(right: dict[str, Any]) -> None:
    del right["iterates"][0]["alpha"]
    del right["iterates"][1]["v"]["c"]
    right["iterates"][2]["w"]["x"].append(0.0)
    places = {name: one.row[2] for name, one in verdicts(right).items()}
    assert places["alpha"] == "round 1: missing"
    assert places["v"] == "round 2: c x[0] is missing"
    assert places["w"] == "round 3: x[3] is unexpected"


def test_another_scheme_is_refused_here() -> None:
    with pytest.raises(BadInput, match="no scheme here for vectors of 'fedfoo'"):
        output(vector(NAME) | {"scheme": "fedfoo"})


def test_the_checker_runs_alone(right: dict[str, Any], tmp_path: Path) -> None:
    """With no package at all: isolated Python, a copy of the one file."""
    shutil.copy(ROOT / "check.py", tmp_path)
    (tmp_path / "mine.json").write_text(json.dumps(right))
    words = ["check.py", str(check.find(NAME)), "mine.json"]
    done = subprocess.run(
        [sys.executable, "-I", *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1].split() == ["w", "3", "of", "3", "-", "-", "0.0e+00"]
