"""The papers' experiments: what a recipe may say, and what is made of results."""

import functools
import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bouquet import engines, jobs
from bouquet.cli import main
from bouquet.colours import colour_of
from bouquet.core.config import Scalar
from bouquet.core.errors import BadInput, RunFailed
from bouquet.imports import imported
from bouquet.jobs import Plan
from bouquet.reproduction import running
from bouquet.reproduction.figure import draw, followed_in, in_settings
from bouquet.reproduction.outcome import NOT, ORDER, REPRODUCED, Number, judged, outcome, value
from bouquet.reproduction.page import page
from bouquet.reproduction.recipe import Recipe, find, folder, names, shortened
from bouquet.reproduction.running import finals_of, keep, kept
from bouquet.reproduction.tuning import choices_of, summary_of, trials_of
from bouquet.settings import parse
from bouquet.storage.events import Event
from bouquet.storage.runs import read, read_summary
from bouquet.sweeping.trials import FAILED

# In this process, one run after the other: nothing to start.
reproduce = functools.partial(running.reproduce, workers=1, quiet=True)

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
        for setting in entry.settings:
            parse(recipe.trial_keys(entry, recipe.tuning.seeds[0], setting))


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
        (
            'better = ["own", "shared"]',
            'better = ["own", "shared"]\nby = ["examples.mean"]',
            "by must be a measure, or a list of one for each of better, not ['examples.mean']",
        ),
        ("rounds = 2", "rounds = [1, 2]", "rounds must be one value, not [1, 2]"),
        ("rounds = 2", "rounds = ", "is not TOML"),
        (
            'name = "own"',
            'name = "own"\ntune = { lr = 0.1 }',
            "lr must be a list such as [0.01, 0.1]",
        ),
        ('name = "own"', 'name = "own"\ntune = { lr = [1, 1] }', "lr has a value more than once"),
        (
            'name = "own"',
            'name = "own"\ntune-by = "best.personal.loss.max"',
            "must end in one of mean",
        ),
        ("[keys]", "[tune]\nvalidation = 0\n[keys]", "validation must be above 0 and at most 0.9"),
        ("[keys]", "[tune]\nseeds = []\n[keys]", "[tune] seeds must be whole numbers"),
        ("[keys]", "[tune]\nrounds = 3\n[keys]", "[tune] must have none but keys, seeds, valid"),
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
        ([0.7, 0.8 - 2e-10], [0.7, 0.8], "yes"),  # no more apart than rounding leaves them
    ],
)
def test_a_claim_holds_or_not(
    recipe: Recipe, own: list[float], shared: list[float], holds: str
) -> None:
    found = outcome(recipe, {"own": summaries(own), "shared": summaries(shared)}, {})
    assert [claim.holds for claim in found.claims] == [holds]


def test_a_claim_can_compare_two_numbers_of_one_entry(tmp_path: Path) -> None:
    """Such as how many examples those who are hurt have, beside everybody."""
    text = RECIPE.replace(
        'better = ["own", "shared"]',
        'better = ["own", "own"]\nby = ["examples.mean", "examples.hurt"]',
    )
    recipe = find(written(tmp_path, text))
    for hurt, holds in ((60.0, "yes"), (90.0, "no")):
        told = [{"examples": {"mean": 84.0, "hurt": hurt}}] * 2
        (claim,) = outcome(recipe, {"own": told, "shared": told}, {}).claims
        assert claim.holds == holds
        assert claim.numbers == f"own, examples.mean 84.00, own, examples.hurt {hurt:.2f}"


def test_a_reproduction_goes_on_where_it_stopped(recipe: Recipe, tmp_path: Path) -> None:
    """What is finished is not run again, what had begun goes on, and the end is the same."""
    out = tmp_path / "out"
    whole = reproduce(recipe, tmp_path / "whole")

    def interrupt(event: Event) -> None:
        raise KeyboardInterrupt

    ended, _, _, begun = finals_of(recipe, out)
    for one, observe in ((ended, print), (begun, interrupt)):
        (ready,) = jobs.prepared([one.plan(2)], "inline")
        with suppress(KeyboardInterrupt):
            engines.simulate([replace(ready.job, observe=observe)], "inline")
    assert [one for one in finals_of(recipe, out) if one.done(2)] == [ended]
    assert begun.plan(2).resume == begun.folder
    kept_as_it_was = (ended.folder / "summary.json").stat().st_mtime_ns
    found = reproduce(recipe, out)
    assert (ended.folder / "summary.json").stat().st_mtime_ns == kept_as_it_was
    assert (found.numbers, found.claims) == (whole.numbers, whole.claims)
    for one in (begun, *finals_of(recipe, tmp_path / "whole")):  # nobody goes on with them
        assert not {"server", "state"} & {part.name for part in one.folder.iterdir()}


def test_results_are_kept_drawn_and_put_on_a_page(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, results = tmp_path / "out", tmp_path / "results"
    quick = find(str(tmp_path / "mine.toml"), quick=True)
    found = reproduce(quick, out)
    keep(found, results / "mine")
    draw(quick, found, out, results / "mine")
    back = kept(results / "mine")
    assert back is not None
    assert back.numbers[0].mean == found.numbers[0].mean
    assert (results / "mine" / "figure.png").read_bytes().startswith(b"\x89PNG")
    drawing = (results / "mine" / "figure.svg").read_text()
    assert {colour_of("fedavg"), colour_of("local")} <= set(re.findall("#[0-9a-f]{6}", drawing))
    # What is said of clients' sizes is drawn client by client, not round by round.
    claim = replace(quick.claims[0], by=("examples.mean", "examples.hurt"))
    draw(replace(quick, claims=(claim,)), found, out, tmp_path)
    changes = (tmp_path / "figure.svg").read_text()
    assert ("training examples" in changes, "training examples" in drawing) == (True, False)
    monkeypatch.setattr("bouquet.reproduction.recipe.folder", lambda: tmp_path)
    text = page(results)
    ours = f"{found.numbers[0].mean:.2f}"
    assert f"| FedAvg | shared.accuracy.mean | 50 | {ours} |" in text
    assert "own models do better" in text
    assert "figure.png" in text
    assert "| mine | not run yet" in page(tmp_path / "nothing")


# Side by side


def test_runs_side_by_side_end_with_the_bits_of_a_simulation(
    recipe: Recipe, tmp_path: Path
) -> None:
    """In processes of their own, in this one, or by ``bouquet simulate`` with the same keys."""
    running.reproduce(recipe, tmp_path / "beside", workers=2, quiet=True)
    assert (tmp_path / "beside" / "logs" / "worker1.log").exists()
    reproduce(recipe, tmp_path / "alone")
    values = recipe.keys_of(recipe.entries[0], 1) | {"out": str(tmp_path / "simulated")}
    jobs.simulate(jobs.prepared([Plan(values)], "inline"), "inline", quiet=True)
    ends = [
        read_summary(tmp_path / one / "summary.json")["shared_sha256"]
        for one in ("beside/shared-seed1", "alone/shared-seed1", "simulated")
    ]
    assert len(set(ends)) == 1


def test_a_run_has_as_many_nodes_on_any_machine(recipe: Recipe) -> None:
    assert recipe.keys_of(recipe.entries[0], 0)["nodes"] == 1
    told = replace(recipe, keys={**recipe.keys, "nodes": 3})
    assert told.keys_of(told.entries[0], 0)["nodes"] == 3


def test_a_run_that_diverges_is_told_and_stops_no_other(recipe: Recipe, tmp_path: Path) -> None:
    wild = replace(recipe.entries[0], keys={"scheme": "fedavg", "lr": 1e9})
    wrong, out = replace(recipe, entries=(wild, recipe.entries[1])), tmp_path / "out"
    found = reproduce(wrong, out)
    shared, own = found.numbers
    assert (shared.diverged, shared.seeds, shared.verdict) == (2, 0, NOT)
    assert shared.words[1] == "nan (2 of 2 seeds diverged)"
    assert (own.diverged, own.seeds) == (0, 2)
    assert found.claims[0].holds == "not known"
    draw(wrong, found, out, tmp_path)
    marks = [(out / f"shared-seed{seed}" / FAILED).stat().st_mtime_ns for seed in (0, 1)]
    reproduce(wrong, out)  # they would diverge again
    assert [(out / f"shared-seed{n}" / FAILED).stat().st_mtime_ns for n in (0, 1)] == marks


def test_a_run_that_fails_otherwise_stops_no_other(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "DIVERGED", "what no run says")
    wild = replace(recipe.entries[0], keys={"scheme": "fedavg", "lr": 1e9})
    wrong = replace(recipe, entries=(wild, recipe.entries[1]))
    with pytest.raises(RunFailed, match=r"shared-seed0, shared-seed1 failed: .*diverge"):
        reproduce(wrong, tmp_path / "out")
    assert (tmp_path / "out" / "own-seed1" / "summary.json").exists()


def test_a_seed_that_diverges_is_in_no_mean(recipe: Recipe) -> None:
    ends = {"shared": summaries([0.9, 0.8, 0.7]), "own": summaries([0.95, 0.9, 0.6])}
    ends["own"][2] = {}
    found = outcome(recipe, ends, {})
    own = found.numbers[-1]
    assert (own.diverged, own.seeds, own.verdict) == (1, 2, NOT)
    assert own.mean == pytest.approx(92.5)
    assert found.claims[0].holds == "yes"  # by the seeds that both have
    assert found.claims[0].numbers == "own 92.50 (1 of 3 seeds diverged), FedAvg 80.00"


def test_a_run_with_other_keys_is_not_taken_for_the_recipes(recipe: Recipe, tmp_path: Path) -> None:
    reproduce(recipe, tmp_path / "out")
    changed = replace(recipe, keys={**recipe.keys, "local-steps": 3})
    with pytest.raises(BadInput, match=r"shared-seed0 was run with local-steps 2, not 3"):
        reproduce(changed, tmp_path / "out")


def test_what_is_refused_leaves_nothing_behind(recipe: Recipe, tmp_path: Path) -> None:
    """Also where it is found out by a worker: here that there are no files at the path."""
    nowhere = {"data.name": "folder", "data.path": str(tmp_path / "nothing")}
    wrong = replace(recipe, keys={**recipe.keys, **nowhere})
    with pytest.raises(BadInput, match="nothing"):
        reproduce(wrong, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# Tuning

TUNED = RECIPE.replace(
    """keys = { scheme = "fedavg" }
""",
    """keys = { scheme = "fedavg" }
tune = { lr = [1e9, 0.001, 0.5], weights = ["uniform"] }
tune-by = "shared.accuracy.mean"
""",
)


@pytest.fixture
def tuned(tmp_path: Path) -> Recipe:
    return find(written(tmp_path, TUNED))


def told(run: Path) -> dict[str, Any]:
    """A run's keys."""
    return read(run).config


def test_the_best_setting_on_validation_data_runs_with_every_seed(
    tuned: Recipe, tmp_path: Path
) -> None:
    """One that diverges is out, and the others go on."""
    out = tmp_path / "out"
    found = reproduce(tuned, out)
    trials = {
        float(re.findall(r"lr=([^,]*)", path.name)[0]): path for path in out.glob("tuning/shared/*")
    }
    assert sorted(trials) == [0.001, 0.5, 1e9]
    for path in trials.values():
        keys = told(path)
        assert (keys["validation"], keys["evaluate-on"], keys["seed"]) == (0.2, "validation", 0)
        assert not {"server", "state"} & {one.name for one in path.iterdir()}
    accuracy = {
        lr: read_summary(path / "summary.json")["shared"]["accuracy"]["mean"]
        for lr, path in trials.items()
        if lr < 1
    }
    assert accuracy[0.5] > accuracy[0.001]
    (choice,) = found.choices
    assert dict(choice.setting) == {"lr": 0.5, "weights": "uniform"}
    assert (choice.tried, choice.diverged) == (3, 1)
    assert choice.value == pytest.approx(100 * accuracy[0.5])
    for seed in (0, 1):
        keys = told(out / f"shared-seed{seed}")
        assert (keys["lr"], keys["weights"], keys["seed"]) == (0.5, "uniform", seed)
        assert (keys["validation"], keys["evaluate-on"]) == (0.0, "test")
    assert not (out / "tuning" / "own").exists()


def test_trials_that_ended_are_not_run_again(tuned: Recipe, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = reproduce(tuned, out)
    (out / "shared-seed0" / "summary.json").unlink()
    before = {path: path.stat().st_mtime_ns for path in out.glob("tuning/*/*/*")}
    again = reproduce(tuned, out)
    assert {path: path.stat().st_mtime_ns for path in out.glob("tuning/*/*/*")} == before
    assert (again.numbers, again.choices) == (first.numbers, first.choices)


def test_a_longer_list_tries_only_what_is_new(tuned: Recipe, tmp_path: Path) -> None:
    out = tmp_path / "out"
    reproduce(tuned, out)
    before = {path: path.stat().st_mtime_ns for path in out.glob("tuning/*/*/summary.json")}
    entry = replace(tuned.entries[0], tune={"lr": (0.1, *tuned.entries[0].tune["lr"]),
                                            "weights": ("uniform",)})  # fmt: skip
    longer = replace(tuned, entries=(entry, tuned.entries[1]))
    trials = [one for alike in trials_of(longer, entry, out) for one in alike]
    assert [one.done(one.rounds) for one in trials] == [False, True, True, True]
    assert all(path.stat().st_mtime_ns == when for path, when in before.items())


def test_a_trial_with_other_keys_is_not_taken_for_the_recipes(
    tuned: Recipe, tmp_path: Path
) -> None:
    reproduce(tuned, tmp_path / "out")
    entry = replace(tuned.entries[0], keys={"scheme": "fedavg", "local-steps": 3})
    changed = replace(tuned, entries=(entry, tuned.entries[1]))
    with pytest.raises(BadInput, match=r"tuning/shared/lr=.* was run with local-steps 2, not 3"):
        reproduce(changed, tmp_path / "out")


def test_what_will_be_refused_is_before_any_trial(
    recipe: Recipe, tuned: Recipe, tmp_path: Path
) -> None:
    only = replace(recipe, entries=recipe.entries[1:], claims=())
    reproduce(only, tmp_path / "out")
    changed = replace(tuned, keys={**tuned.keys, "local-steps": 3})
    with pytest.raises(BadInput, match="own-seed0 was run with local-steps 2, not 3"):
        reproduce(changed, tmp_path / "out")
    assert not (tmp_path / "out" / "tuning").exists()


def test_trials_have_keys_and_seeds_of_their_own(tmp_path: Path) -> None:
    text = TUNED.replace(
        "[keys]",
        "[tune]\nseeds = [7, 8]\nvalidation = 0.4\nkeys = { rounds = 1, batch-size = 9 }\n[keys]",
    )
    recipe = find(written(tmp_path, text))
    trials = trials_of(recipe, recipe.entries[0], tmp_path)
    assert [[one.seed for one in alike] for alike in trials] == [[7, 8]] * 3
    assert {one.rounds for alike in trials for one in alike} == {1}
    assert {one.values["validation"] for alike in trials for one in alike} == {0.4}
    assert {one.values["batch-size"] for alike in trials for one in alike} == {9}
    assert not any("batch-size" in one.values for one in finals_of(recipe, tmp_path))
    assert {one.rounds for one in finals_of(recipe, tmp_path)} == {2}


@pytest.mark.parametrize(
    ("by", "rows", "chosen"),
    [
        ("personal.accuracy.mean", [(0.7, 1.0), (0.9, 1.0), (0.8, 0.1)], 1),
        ("personal.accuracy.mean", [(0.9, 1.0), (0.9, 0.5), (0.8, 0.1)], 1),  # the lower loss
        ("personal.accuracy.mean", [(0.8, 0.5), (0.9, 0.5), (0.9, 0.5)], 1),  # the first
        ("personal.loss.mean", [(0.9, 1.0), (0.9, 0.5), (0.2, 0.1)], 2),  # the lowest
    ],
)
def test_the_choice(
    tmp_path: Path, by: str, rows: Sequence[tuple[float, float]], chosen: int
) -> None:
    recipe = find(
        written(
            tmp_path, TUNED.replace("1e9", "0.1").replace('shared.accuracy.mean"\n', by + '"\n', 1)
        )
    )
    entry = recipe.entries[0]
    assert entry.tune_by == by
    for (trial,), (accuracy, loss) in zip(trials_of(recipe, entry, tmp_path), rows, strict=True):
        trial.folder.mkdir(parents=True)
        said = {"personal": {"accuracy": {"mean": accuracy}, "loss": {"mean": loss}}}
        (trial.folder / "summary.json").write_text(json.dumps(said))
    (choice,) = choices_of(recipe, tmp_path)
    assert choice.setting == entry.settings[chosen]


def test_what_diverged_is_out_however_good_it_was_before(tuned: Recipe, tmp_path: Path) -> None:
    """Of three rounds the second is the best, and the third the end."""
    entry = replace(tuned.entries[0], tune_by="best.personal.accuracy.mean")
    for (trial,), accuracy in zip(trials_of(tuned, entry, tmp_path), (0.9, 0.7, 0.6), strict=True):
        trial.folder.mkdir(parents=True)
        logged(trial.folder, [{"personal_accuracy": 0.1}, {"personal_accuracy": accuracy}])
    trials_of(tuned, entry, tmp_path)[0][0].fail("it diverged")
    (choice,) = choices_of(replace(tuned, entries=(entry,)), tmp_path)
    assert (choice.setting["lr"], choice.diverged) == (0.001, 1)


def logged(folder: Path, metrics: Sequence[Mapping[str, float | None]]) -> None:
    """A run's log, a line for each round's metrics."""
    event = {"stage": "x", "seconds": 1.0, "timing": {}, "nodes": {}, "clients": [],
             "failures": [], "bytes_up": 0, "bytes_down": 0}  # fmt: skip
    lines = [json.dumps({**event, "round": n + 1, "metrics": one}) for n, one in enumerate(metrics)]
    (folder / "events.jsonl").write_text("\n".join(lines))


def test_where_no_setting_comes_to_an_end_there_is_no_choice(tuned: Recipe, tmp_path: Path) -> None:
    wild = replace(tuned.entries[0], tune={"lr": (1e8, 1e9)})
    with pytest.raises(RunFailed, match=r"No setting of shared came to an end: .*diverge"):
        reproduce(replace(tuned, entries=(wild, tuned.entries[1])), tmp_path / "out")


def test_a_measure_that_no_trial_has_is_refused(tuned: Recipe, tmp_path: Path) -> None:
    entry = replace(tuned.entries[0], tune={"lr": (0.1, 0.2)}, tune_by="personal.accuracy.best")
    with pytest.raises(BadInput, match=r"tune-by of shared must be a number in summary\.json"):
        reproduce(replace(tuned, entries=(entry, tuned.entries[1])), tmp_path / "out")


def test_quick_takes_the_first_values_untried(tmp_path: Path) -> None:
    quick = find(written(tmp_path, TUNED.replace("1e9, ", "")), quick=True)
    assert [trials_of(quick, one, tmp_path) for one in quick.entries] == [[], []]
    assert quick.keys_of(quick.entries[0], 5)["lr"] == 0.001
    asked = TUNED.replace("[quick]", "[quick]\ntune = true")
    short = find(written(tmp_path, asked), quick=True)
    assert [one.rounds for (one,) in trials_of(short, short.entries[0], tmp_path)] == [1, 1, 1]


PIPELINE = TUNED.replace(
    'tune = { lr = [1e9, 0.001, 0.5], weights = ["uniform"] }',
    "tune = { stage2 = { lr = [0.001, 0.5] } }",
).replace('keys = { scheme = "fedavg" }', 'keys = { pipeline = "fedavg:4 finetune:2" }')


def test_a_pipeline_can_be_tuned(tmp_path: Path) -> None:
    recipe = find(written(tmp_path, PIPELINE))
    found = reproduce(replace(recipe, seeds=(0,)), tmp_path / "out")
    assert [set(one.setting) for one in found.choices] == [{"stage2.lr"}]
    assert read_summary(tmp_path / "out" / "shared-seed0" / "summary.json")["rounds"] == 6


def test_a_pipeline_is_shortened_stage_by_stage(tmp_path: Path) -> None:
    keys: dict[str, Scalar] = {"pipeline": "fedavg:100 fedalt:50 finetune:1", "rounds": 151}
    assert shortened(keys, 30) == {"pipeline": "fedavg:20 fedalt:10 finetune:1"}
    assert shortened({"lr": 1.0}, 30) == {"lr": 1.0, "rounds": 30}
    text = PIPELINE.replace("[keys]", "[tune]\nkeys = { rounds = 3 }\n[keys]")
    recipe = find(written(tmp_path, text))
    assert {one.rounds for (one,) in trials_of(recipe, recipe.entries[0], tmp_path)} == {3}
    assert [one.rounds for one in finals_of(replace(recipe, seeds=(0,)), tmp_path)] == [6, 2]
    quick = find(written(tmp_path, text), quick=True)
    assert [one.rounds for one in finals_of(quick, tmp_path)] == [2, 1]


def test_the_choice_is_kept_and_shown(
    tuned: Recipe,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    words = ["--workers", "1", "--quiet", "--out", str(tmp_path / "out")]
    words += ["--results", str(tmp_path / "results")]
    code, out = cli(monkeypatch, capfd, str(tmp_path / "mine.toml"), *words)
    assert code == 0
    assert "FedAvg: lr=0.5 weights=uniform (best of 3, 1 of which diverged:" in out
    back = kept(tmp_path / "results" / "mine")
    assert back is not None
    assert [dict(one.setting) for one in back.choices] == [{"lr": 0.5, "weights": "uniform"}]
    rows = (tmp_path / "results" / "mine" / "table.csv").read_text().splitlines()
    assert rows[0].endswith(",chosen")
    assert [row.rpartition(",")[2] for row in rows[1:]] == ['"lr=0.5 weights=uniform"', '""']
    monkeypatch.setattr("bouquet.reproduction.recipe.folder", lambda: tmp_path)
    assert "- FedAvg: lr=0.5 weights=uniform (best of 3," in page(tmp_path / "results")


# Measures, differences, reasons


def test_the_best_round_is_of_full_evaluations(tmp_path: Path) -> None:
    """The highest accuracy and the lowest loss, each of its own round."""
    rounds: list[Mapping[str, float | None]] = [
        {"personal_accuracy": 0.5, "personal_loss": 1.0, "personal_accuracy_p10": 0.3},
        {},
        {"personal_accuracy": 0.8, "personal_loss": 2.0, "personal_accuracy_p10": 0.2},
        {"personal_accuracy": 0.7, "personal_loss": None, "personal_accuracy_p10": 0.1},
    ]
    logged(tmp_path, rounds)
    (tmp_path / "summary.json").write_text('{"personal": {"accuracy": {"mean": 0.7}}}')
    summary = summary_of(tmp_path)
    assert value(summary, "personal.accuracy.mean") == pytest.approx(70)
    assert value(summary, "best.personal.accuracy.mean") == pytest.approx(80)
    assert value(summary, "best.personal.accuracy.p10") == pytest.approx(30)
    assert value(summary, "best.personal.loss.mean") == 1.0
    assert math.isnan(value(summary, "best.shared.loss.mean"))


def test_a_recipe_may_ask_for_the_best_round(tmp_path: Path) -> None:
    text = RECIPE.replace("shared.accuracy.mean = 50", "best.shared.accuracy.mean = 50")
    recipe = replace(find(written(tmp_path, text)), seeds=(0,))
    recipe = replace(recipe, keys={**recipe.keys, "eval-every": 1, "rounds": 4})
    found = reproduce(recipe, tmp_path / "out")
    events = read(tmp_path / "out" / "shared-seed0").events
    accuracies = [one["metrics"]["shared_accuracy"] for one in events]
    assert len(accuracies) == 4
    assert found.numbers[0].mean == pytest.approx(100 * max(a for a in accuracies if a is not None))
    assert followed_in(recipe) == "shared.accuracy"


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (Number("a", "A", "accuracy", 90, 90.12, 0.1, 4), ("90", "90.12 ± 0.10", "+0.12 ± 0.05")),
        (Number("a", "A", "accuracy", 90, 89.5, math.nan, 1), ("90", "89.50", "-0.50")),
        (
            Number("a", "A", "loss", 0.5, 0.4, 0.02, 4),
            ("0.5", "0.4000 ± 0.0200", "-0.1000 ± 0.0100"),
        ),
    ],
)
def test_a_difference_is_told_with_its_standard_error(
    one: Number, words: tuple[str, str, str]
) -> None:
    assert one.words == words


def test_reasons_are_given_where_ours_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = RECIPE.replace('label = "FedAvg"', 'label = "FedAvg"\nwhy = "other data"')
    text = text.replace('name = "own"', 'name = "own"\nwhy = "too few"')
    text += 'why = "an easy task"\n'
    recipe = find(written(tmp_path, text))
    monkeypatch.setattr("bouquet.reproduction.recipe.folder", lambda: tmp_path)

    def shown(shared: float, own: float) -> str:
        def said(whose: str, accuracy: float) -> list[Mapping[str, Any]]:
            return [{whose: {"accuracy": {"mean": accuracy}}}] * 2

        both = {"shared": said("shared", shared), "own": said("personal", own)}
        both["shared"] = [{**one, "personal": one["shared"]} for one in both["shared"]]
        keep(outcome(recipe, both, running.about(recipe, 0.0)), tmp_path / "results" / "mine")
        return page(tmp_path / "results")

    well = shown(0.5, 0.9)
    assert not re.findall("other data|too few|an easy task", well)
    ill = shown(0.6, 0.55)
    assert "- **FedAvg:** other data" in ill
    assert "- **own:** too few" in ill
    assert "- *own models do better:* an easy task" in ill
    written(tmp_path, text.replace("too few", "other data"))
    assert "- **FedAvg; own:** other data" in shown(0.6, 0.55)  # one reason, told once
    written(tmp_path, 'why = "another century"\n' + text.replace('why = "too few"', ""))
    ill = shown(0.6, 0.55)  # whatever has no reason of its own
    assert "- **FedAvg:** other data" in ill
    assert "- **own:** another century" in ill
    assert "- *own models do better:* an easy task" in ill


@pytest.mark.parametrize(
    ("old", "new", "others"),
    [
        ('title = "two schemes"', 'title = "2 schemes"', False),
        ("published = { shared.accuracy.mean = 50 }", "", False),
        ("seeds = [0, 1]", "seeds = [0]", False),  # the page says which
        ("local-steps = 2", "local-steps = 3", True),
        ("local-steps = 2", 'local-steps = 2\nmodel.name = "mlp"', True),
        ('keys = { scheme = "fedavg" }', 'keys = { scheme = "fedavg", lr = 0.3 }', True),
        ('scheme = "fedavg" }', 'scheme = "fedavg" }\ntune = { lr = [0.1, 0.2] }', True),
    ],
)
def test_numbers_of_an_earlier_recipe_are_marked(
    recipe: Recipe,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    old: str,
    new: str,
    others: bool,
) -> None:
    monkeypatch.setattr("bouquet.reproduction.recipe.folder", lambda: tmp_path)
    results = tmp_path / "results"
    keep(outcome(recipe, {"shared": [], "own": []}, running.about(recipe, 0.0)), results / "mine")
    assert "earlier recipe" not in page(results)
    text = RECIPE.replace('model = { name = "linear" }\n', "") if "model" in new else RECIPE
    assert old in text
    written(tmp_path, text.replace(old, new))
    assert ("earlier recipe" in page(results)) == others


def test_a_recipes_mark_does_not_depend_on_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks = set()
    for place in (tmp_path / "one", tmp_path / "other"):
        place.mkdir()
        monkeypatch.setattr("bouquet.reproduction.recipe.folder", lambda at=place: at)
        marks.add(find(written(place, RECIPE.replace('"linear"', '"./own.py:Model"'))).mark)
    assert len(marks) == 1


# The list


def cli(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *words: str
) -> tuple[int, str]:
    monkeypatch.setenv("COLUMNS", "250")
    monkeypatch.setattr(sys, "argv", ["bouquet", "reproduce", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0), capfd.readouterr().out


def test_some_of_a_recipes_seeds_can_be_run(
    recipe: Recipe,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    words = [str(tmp_path / "mine.toml"), "--out", str(tmp_path / "out"), "--quiet"]
    code, _ = cli(monkeypatch, capfd, *words, "--quick", "--seeds", "7")
    assert code == 0
    found = json.loads((tmp_path / "out" / "result.json").read_text())
    assert found["about"]["seeds"] == [7]
    assert sorted(one.name for one in (tmp_path / "out").glob("*-seed*")) == [
        "own-seed7",
        "shared-seed7",
    ]


def test_recipes_are_listed_by_what_they_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, minutes in (("a", 300), ("b", 2), ("c", 30)):
        text = RECIPE.replace("seeds = [0, 1]", f"seeds = [0, 1]\nminutes = {minutes}")
        (tmp_path / f"{name}.toml").write_text(text)
    for name, about in (("b", {}), ("c", {"mark": "another"})):
        (tmp_path / "results" / name).mkdir(parents=True)
        result = json.dumps({"about": about})
        (tmp_path / "results" / name / "result.json").write_text(result)
    monkeypatch.setattr("bouquet.reproduction.recipe.folder", lambda: tmp_path)
    code, out = cli(monkeypatch, capfd)
    rows = [line for line in out.splitlines() if "table 9" in line]
    assert code == 0
    assert [re.findall(r"\w+", row)[0] for row in rows] == ["b", "c", "a"]
    assert ["4 min" in rows[0], "60 min" in rows[1], "10.0 h" in rows[2]] == [True] * 3
    assert ["committed" in row for row in rows] == [True, False, False]
    assert ["of an" in row for row in rows] == [False, True, False]  # an earlier recipe
    assert all("apfl" in row and "two schemes" in row for row in rows)


def test_trials_count_for_what_a_recipe_costs(tmp_path: Path) -> None:
    """Two entries, two seeds: 4 runs; three trials at half the rounds are 1.5 more."""
    text = TUNED.replace("[keys]", "minutes = 8\n[tune]\nkeys = { rounds = 1 }\n[keys]")
    assert find(written(tmp_path, text)).total_minutes == pytest.approx(8 * (4 + 1.5) / 2)


def test_every_recipe_file_is_listed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    _, out = cli(monkeypatch, capfd)
    files = sorted(path.stem for path in folder().glob("*.toml"))
    assert sorted(set(re.findall(r"^\W+([\w-]+) ", out, re.MULTILINE)) & set(files)) == files


# A recipe's own code


def test_code_beside_a_recipe_is_found_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = RECIPE.replace('model = { name = "linear" }', 'model = { name = "./net.py:Net" }')
    recipe = find(written(tmp_path, text))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert recipe.keys["model.name"] == f"{tmp_path / 'net.py'}:Net"


def test_the_network_of_perfedavg_is_the_papers() -> None:
    recipe = find("perfedavg-figure1")
    network: Any = imported(str(recipe.keys["model.name"]), "model.name")((1, 28, 28), 10)
    sizes = [tuple(one.weight.shape) for one in network if hasattr(one, "weight")]
    assert sizes == [(80, 784), (60, 80), (10, 60)]
    assert [type(one).__name__ for one in network].count("ELU") == 2


def test_many_lines_are_drawn_in_a_panel_for_each_setting() -> None:
    schemes = ["APFL, α = 0.25", "APFL, α = 0.5", "FedAvg", "SCAFFOLD"]
    labels = [f"{scheme}, {setting}" for setting in ("iid", "two classes") for scheme in schemes]
    assert in_settings(labels) == {
        "iid": dict(zip(schemes, range(4), strict=True)),
        "two classes": dict(zip(schemes, range(4, 8), strict=True)),
    }
    assert set(in_settings(labels[:-1])) == {"iid", "two classes"}  # one of them lacks a line
    for others in ([*labels[:5], "Ditto, cold", "IFCA, cold"], labels[:4], [*labels, "FedProx"]):
        assert in_settings(others) == {"": {label: n for n, label in enumerate(others)}}
