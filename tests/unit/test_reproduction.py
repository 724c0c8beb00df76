"""The papers' experiments: what a recipe may say, and what is made of results."""

import json
import math
from pathlib import Path

import pytest

from bouquet.core.errors import BadInput
from bouquet.reproduction.figure import draw
from bouquet.reproduction.outcome import NOT, ORDER, REPRODUCED, Number, judged, outcome
from bouquet.reproduction.page import page
from bouquet.reproduction.recipe import Recipe, find, names
from bouquet.reproduction.running import keep, kept, plans, reproduce
from bouquet.settings import parse

RECIPE = """
title = "two schemes"
paper = "apfl"
place = "table 9"
seeds = [0, 1]

[keys]
rounds = 2
local-steps = 2
data = { name = "digits", clients = 4 }
model = { name = "linear" }

[quick]
seeds = [5]
rounds = 1

[[runs]]
name = "shared"
label = "FedAvg"
keys = { scheme = "fedavg" }
published = { shared.accuracy.mean = 50 }

[[runs]]
name = "own"
keys = { scheme = "local", data = { classes-per-client = 3 } }
published = { personal.accuracy.mean = 90 }

[[claims]]
says = "own models do better"
better = ["own", "shared"]
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    return find(written(tmp_path, RECIPE))


def written(folder: Path, text: str) -> str:
    (folder / "mine.toml").write_text(text)
    return str(folder / "mine.toml")


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("quick", [False, True], ids=["whole", "quick"])
def test_every_recipe_can_be_run(name: str, quick: bool) -> None:
    """Its keys are ones there are, and go together."""
    recipe = find(name, quick=quick)
    for entry in recipe.entries:
        parse(recipe.keys_of(entry, recipe.seeds[0]))


def test_an_entry_has_its_own_keys_beside_the_common_ones(recipe: Recipe) -> None:
    keys = recipe.keys_of(recipe.entries[1], 1)
    assert (keys["rounds"], keys["scheme"], keys["seed"]) == (2, "local", 1)
    assert (keys["data.name"], keys["data.classes-per-client"]) == ("digits", 3)


def test_quick_is_fewer_rounds_and_seeds(tmp_path: Path) -> None:
    quick = find(written(tmp_path, RECIPE), quick=True)
    assert (quick.seeds, quick.keys["rounds"]) == ((5,), 1)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('paper = "apfl"', 'paper = "mine"', "paper must be one of apfl, fedu"),
        ("seeds = [0, 1]", "seeds = []", "seeds must be whole numbers such as [0, 1, 2], not []"),
        ("seeds = [0, 1]", "seedz = [0]", "must have none but"),
        ('title = "two schemes"', "", "title must be text, not ''"),
        ('name = "own"', 'name = "shared"', "every run must have a name of its own"),
        ('better = ["own", "shared"]', 'better = ["me"]', "better must name runs, not 'me'"),
        ("rounds = 2", "rounds = [1, 2]", "rounds must be one value, not [1, 2]"),
        ("rounds = 2", "rounds = ", "is not TOML"),
    ],
)
def test_a_wrong_recipe_is_refused(tmp_path: Path, old: str, new: str, sentence: str) -> None:
    with pytest.raises(BadInput) as refused:
        find(written(tmp_path, RECIPE.replace(old, new, 1)))
    assert sentence in str(refused.value)


def test_a_recipe_nobody_wrote_is_refused() -> None:
    with pytest.raises(BadInput, match=r"recipe must be one of .*, or a .toml file, not 'fedx'"):
        find("fedx")


def number(published: float, mean: float, std: float, measure: str = "accuracy") -> Number:
    return Number("one", "One", measure, published, mean, std, 3)


@pytest.mark.parametrize(
    ("one", "verdict"),
    [
        (number(90, 90.9, 0.1), REPRODUCED),  # within a point
        (number(90, 92.9, 1.5), REPRODUCED),  # within two deviations
        (number(90, 91.1, 0.1), NOT),
        (number(90, 91.1, math.nan), NOT),  # one seed says nothing of its spread
        (number(0.5, 0.54, 0.0, "loss"), REPRODUCED),  # within a tenth
        (number(0.5, 0.56, 0.0, "loss"), NOT),
        (number(90, math.nan, math.nan), NOT),
    ],
)
def test_near_enough_is_reproduced(one: Number, verdict: str) -> None:
    (found,) = judged([one])
    assert found.verdict == verdict


def test_further_off_the_order_counts() -> None:
    """80 < 85 < 90 published; of those only what keeps its place has the same order."""
    low, middle, high = number(80, 60, 0.1), number(85, 65, 0.1), number(90, 63, 0.1)
    assert [one.verdict for one in judged([low, middle])] == [ORDER, ORDER]
    assert [one.verdict for one in judged([low, middle, high])] == [ORDER, NOT, NOT]


def test_entries_the_paper_has_close_together_have_no_order() -> None:
    one, other = number(80.0, 70, 0.1), number(80.9, 60, 0.1)
    assert [found.verdict for found in judged([one, other])] == [NOT, NOT]


def summaries(values: list[float]) -> list[dict[str, object]]:
    return [{"personal": {"accuracy": {"mean": value}}} for value in values]


@pytest.mark.parametrize(
    ("own", "shared", "holds"),
    [
        ([0.9, 0.8], [0.7, 0.6], "yes"),
        ([0.6, 0.7], [0.7, 0.8], "no"),  # a point apart in every seed
        ([0.5, 0.9], [0.9, 0.6], "within noise"),
    ],
)
def test_a_claim_holds_or_not(
    recipe: Recipe, own: list[float], shared: list[float], holds: str
) -> None:
    found = outcome(recipe, {"own": summaries(own), "shared": summaries(shared)}, {})
    assert [claim.holds for claim in found.claims] == [holds]


def test_a_reproduction_goes_on_where_it_stopped(recipe: Recipe, tmp_path: Path) -> None:
    """What is finished is not run again, and the end is the same."""
    out = tmp_path / "out"
    first = reproduce(recipe, out, quiet=True)
    assert plans(recipe, out) == []
    gone = out / "own-seed1" / "summary.json"
    seconds = json.loads(gone.read_text())["seconds"]
    gone.unlink()
    (plan,) = plans(recipe, out)
    assert plan.resume == gone.parent
    again = reproduce(recipe, out, quiet=True)
    assert seconds > 0
    assert again.numbers == first.numbers
    assert again.claims == first.claims


def test_results_are_kept_drawn_and_put_on_a_page(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, results = tmp_path / "out", tmp_path / "results"
    quick = find(str(tmp_path / "mine.toml"), quick=True)
    found = reproduce(quick, out, quiet=True)
    keep(found, results / "mine")
    draw(quick, found, out, results / "mine")
    back = kept(results / "mine")
    assert back is not None
    assert back.numbers[0].mean == found.numbers[0].mean
    assert (results / "mine" / "figure.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr("bouquet.reproduction.recipe.folder", lambda: tmp_path)
    text = page(results)
    ours = f"{found.numbers[0].mean:.2f}"
    assert f"| FedAvg | shared.accuracy.mean | 50 | {ours} |" in text
    assert "own models do better" in text
    assert "figure.png" in text
    assert "| mine | not run yet" in page(tmp_path / "nothing")
