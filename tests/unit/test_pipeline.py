"""Pipelines: stages that start from each other, schedules, and going on in any of them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from bouquet.core.errors import BadInput
from bouquet.settings import parse
from bouquet.storage.events import Event
from tests.conftest import Quadratics, Run
from tests.unit.algebra import EXACT, clients, descended

Start = Callable[..., Run]
SMALL: dict[str, Any] = {
    "local_steps": 3,
    "data": {"clients": 4, "partition": "dirichlet"},
    "model": {"hidden": 8, "layers": 1},
    "save_predictors": True,
}


def test_a_stage_starts_where_the_one_before_stopped(start: Start, quadratics: Quadratics) -> None:
    """Two FedAvg rounds, then Local from their weights, by the closed forms."""
    run = start(pipeline="fedavg:2 local:3", local_steps=2, lr=0.3, **quadratics.keys)
    w = quadratics.init
    for _ in range(2):
        w = np.mean([descended(w, a, c, 0.3, 2) for a, c in clients(quadratics)], axis=0)
    for k, (a, c) in enumerate(clients(quadratics)):
        expected = descended(w, a, c, 0.3, 6)
        np.testing.assert_allclose(run.predictor(f"{k:03}"), expected, atol=EXACT, rtol=0)
    assert [event["stage"] for event in run.events] == ["fedavg"] * 2 + ["local"] * 3
    assert [event["round"] for event in run.events] == [1, 2, 3, 4, 5]
    assert run.summary["pipeline"] == "fedavg:2 local:3"


def test_fedavg_twice_is_fedavg_once(start: Start) -> None:
    """Rounds are counted through, so the clients even see the same batches."""
    split = start(pipeline="fedavg:2 fedavg:2", **SMALL)
    assert split.sha == start(scheme="fedavg", rounds=4, **SMALL).sha


def test_a_stage_has_its_own_keys(start: Start, quadratics: Quadratics) -> None:
    keys = {"stage2.lr": 0.5, "stage2.local-steps": 1}
    settings = parse(
        {"pipeline": "fedavg:1 fedavg:1", "lr": 0.2, "local-steps": 3, "dtype": "float64",
         "batch-size": 0, "data.name": "quadratic", "data.path": str(quadratics.path)} | keys
    )  # fmt: skip
    run = start(settings=settings)
    w = quadratics.init
    for lr, steps in ((0.2, 3), (0.5, 1)):
        w = np.mean([descended(w, a, c, lr, steps) for a, c in clients(quadratics)], axis=0)
    np.testing.assert_allclose(run.shared(), w, atol=EXACT, rtol=0)


@pytest.mark.parametrize(
    ("keys", "rates"),
    [
        ({"lr-schedule": "constant"}, [0.4, 0.4, 0.4, 0.4]),
        ({"lr-schedule": "linear"}, [0.4, 0.3, 0.2, 0.1]),
        ({"lr-schedule": "linear", "warmup": 2}, [0.2, 0.4, 0.4, 0.2]),
        ({"lr-schedule": "exponential", "lr-decay": 2}, [0.4, 0.4, 0.2, 0.2]),
        ({"warmup": 3}, [0.4 / 3, 0.8 / 3, 0.4, 0.4]),
    ],
)
def test_the_learning_rate_takes_its_course(
    start: Start, quadratics: Quadratics, keys: dict[str, object], rates: list[float]
) -> None:
    settings = parse(
        {"scheme": "fedavg", "rounds": 4, "lr": 0.4, "local-steps": 2, "dtype": "float64",
         "batch-size": 0, "data.name": "quadratic", "data.path": str(quadratics.path)} | keys
    )  # fmt: skip
    run = start(settings=settings)
    w = quadratics.init
    for lr in rates:
        w = np.mean([descended(w, a, c, lr, 2) for a, c in clients(quadratics)], axis=0)
    np.testing.assert_allclose(run.shared(), w, atol=EXACT, rtol=0)


@pytest.mark.parametrize("middle", ["fedalt", "fedsim"])
def test_fine_tuning_at_the_end_changes_only_the_personal_part(start: Start, middle: str) -> None:
    """u stays as the stage before left it; v goes on from each client's own."""
    two = start(pipeline=f"fedavg:2 {middle}:2", **SMALL)
    three = start(pipeline=f"fedavg:2 {middle}:2 finetune:2", **SMALL)
    for client in ("000", "003"):
        before = load_file(two.path / "predictors" / f"{client}.safetensors")
        after = load_file(three.path / "predictors" / f"{client}.safetensors")
        for name, value in before.items():
            same = name not in ("output.weight", "output.bias")
            assert np.array_equal(after[name], value) == same
    assert [len(event["clients"]) for event in three.events[-2:]] == [4, 4]


def test_fine_tuning_goes_on_from_each_clients_own_personal_part(start: Start) -> None:
    """Steps too small to see leave every model where personalized training left it."""
    two = start(pipeline="fedavg:2 fedalt:2", **SMALL)
    three = start(pipeline="fedavg:2 fedalt:2 finetune:1", tune={"personal_lr": 1e-30}, **SMALL)
    for client in ("000", "003"):
        name = "output.weight"
        np.testing.assert_array_equal(three.predictor(client, name), two.predictor(client, name))


def test_partial_fine_tuning_right_after_fedavg(start: Start) -> None:
    """FT (part.): the last layer of the pre-trained model, nothing else."""
    base = start(scheme="fedavg", rounds=2, **SMALL)
    tuned = start(pipeline="fedavg:2 finetune:3", **SMALL)
    own = load_file(tuned.path / "predictors" / "001.safetensors")
    np.testing.assert_array_equal(own["hidden1.weight"], base.shared("hidden1.weight"))
    assert (own["output.weight"] != base.shared("output.weight")).any()
    assert tuned.summary["personal"]["loss"]["mean"] < base.summary["shared"]["loss"]["mean"]


def test_the_personal_part_starts_at_the_warm_start(start: Start) -> None:
    """One tiny step after pre-training leaves v near the pre-trained weights, not the initial."""
    run = start(
        pipeline="fedavg:3 fedalt:1", **(SMALL | {"lr": 0.2, "fedalt": {"personal_lr": 1e-9}})
    )
    base = start(scheme="fedavg", rounds=3, lr=0.2, **SMALL)
    own = load_file(run.path / "predictors" / "000.safetensors")["output.weight"]
    np.testing.assert_allclose(own, base.shared("output.weight"), atol=1e-6)


def test_stateless_clients_start_from_the_warm_start_every_time(start: Start) -> None:
    keys = SMALL | {"fedalt": {"stateless": True}, "lr": 1e-30, "batch_size": 0}
    settings = {
        "pipeline": "fedavg:1 fedalt:1",
        **keys,
        "fedalt": {"stateless": True, "personal_lr": 0.1},
    }
    once = start(**settings)
    again = start(**(settings | {"pipeline": "fedavg:1 fedalt:2"}))
    name = "output.weight"
    np.testing.assert_allclose(once.predictor("000", name), again.predictor("000", name), atol=1e-5)


@pytest.mark.parametrize("middle", ["fedalt", "fedsim"])
def test_fine_tuning_after_a_stateless_stage_starts_at_the_warm_start(
    start: Start, middle: str
) -> None:
    """What a stateless client had is gone: steps too small to see leave v at the warm start."""
    keys = SMALL | {middle: {"stateless": True}, "tune": {"personal_lr": 1e-30}}
    base = start(scheme="fedavg", rounds=1, **SMALL)
    two = start(pipeline=f"fedavg:1 {middle}:2", **keys)
    three = start(pipeline=f"fedavg:1 {middle}:2 finetune:1", **keys)
    for client in ("000", "003"):
        own = three.predictor(client, "output.weight")
        np.testing.assert_array_equal(own, base.shared("output.weight"))
        assert (two.predictor(client, "output.weight") != own).any()
        hidden = three.predictor(client, "hidden1.weight")
        np.testing.assert_array_equal(hidden, two.predictor(client, "hidden1.weight"))


def test_fine_tuning_takes_all_its_steps_one_round_after_the_other(start: Start) -> None:
    """u rests, so with full batches six steps in a round are three in each of two."""
    keys = SMALL | {"batch_size": 0, "stage_keys": '{"stage2.local-steps": 6}'}
    once = start(pipeline="fedavg:1 finetune:1", **keys)
    twice = start(pipeline="fedavg:1 finetune:2", **(SMALL | {"batch_size": 0}))
    name = "output.weight"
    np.testing.assert_array_equal(twice.predictor("000", name), once.predictor("000", name))
    assert (once.predictor("000", name) != once.predictor("001", name)).any()


def test_stateless_fine_tuning_starts_anew_every_round(start: Start) -> None:
    """u rests, so with full batches every round of it ends where the first one did."""
    keys = SMALL | {"batch_size": 0, "tune": {"stateless": True}}
    once = start(pipeline="fedavg:1 fedalt:1 finetune:1", **keys)
    twice = start(pipeline="fedavg:1 fedalt:1 finetune:2", **keys)
    on = start(pipeline="fedavg:1 fedalt:1 finetune:2", **(keys | {"tune": {}}))
    name = "output.weight"
    np.testing.assert_array_equal(twice.predictor("000", name), once.predictor("000", name))
    assert (on.predictor("000", name) != once.predictor("000", name)).any()


@pytest.mark.parametrize("stop", [1, 2, 3, 4, 5])
def test_a_pipeline_goes_on_in_any_stage(start: Start, stop: int) -> None:
    """Interrupted after any round, also between two stages, it ends as if never stopped."""
    pipeline = "fedavg:2 fedalt:2 finetune:2"
    keys = SMALL | {"clients_per_round": 3, "server_optimizer": "mean"}
    whole = start(pipeline=pipeline, **keys)
    folder = whole.path.parent / "stopped"

    class Enough(Exception):
        pass

    from bouquet.engines import simulate, with_nodes
    from bouquet.server_app.main import Job
    from bouquet.storage.runfolder import RunFolder
    from tests.conftest import kebab

    def interrupt(event: Event) -> None:
        if event["round"] == stop:
            raise Enough

    settings = with_nodes(parse(kebab({"pipeline": pipeline, **keys})))
    with pytest.raises(Enough):
        simulate([Job(settings, RunFolder(folder), observe=interrupt)], "inline")
    resumed = start(folder=folder, resume=True, settings=settings)
    assert (resumed.sha, resumed.clients) == (whole.sha, whole.clients)
    assert [event["stage"] for event in resumed.events] == [
        event["stage"] for event in whole.events
    ]


def test_adapters_come_with_the_stage_that_personalizes_them(start: Start) -> None:
    """FedAvg trains the bare model; FedAlt adds adapters to it, as the identity."""
    keys = SMALL | {"personal": {"split": "adapter"}, "lr": 1e-30}
    run = start(pipeline="fedavg:1 fedalt:1", **keys)
    base = start(scheme="fedavg", rounds=1, **keys)
    own = load_file(run.path / "predictors" / "000.safetensors")
    assert any("adapter" in name for name in own)
    assert not any("adapter" in name for name in base.server())
    assert run.summary["personal"]["loss"]["mean"] == pytest.approx(
        base.summary["shared"]["loss"]["mean"], rel=1e-5
    )


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"pipeline": "fedavg"}, "pipeline must be stages such as"),
        ({"pipeline": "fedavg:0"}, "pipeline must be stages such as"),
        ({"pipeline": "fedmagic:3"}, "not 'fedmagic:3'; the schemes are"),
        ({"pipeline": "centralized:3"}, "pipeline must not have centralized"),
        ({"pipeline": "fedavg:3", "rounds": 5}, "rounds is 5, but the pipeline's stages have 3"),
        (
            {"pipeline": "fedavg:3", "stage2.lr": 0.1},
            "stage2.lr names no stage; the pipeline has 1",
        ),
        ({"stage1.lr": 0.1}, "stage1.lr names no stage; the pipeline has 0"),
        ({"pipeline": "fedavg:3", "stage1.seed": 4}, "seed is the same in all stages"),
        ({"pipeline": "fedavg:3", "stage1.data.clients": 4}, "the same in all stages"),
        ({"pipeline": "fedavg:3", "stage1.lr": -1.0}, "lr must be a number above 0, not -1.0"),
        ({"pipeline": "fedavg:3", "stage1.warmup": 3}, "warmup must be less than the 3 rounds"),
        ({"stage-keys": "lr"}, "stage-keys must be a JSON object"),
        ({"lr-schedule": "exponential"}, "lr-decay must be positive"),
    ],
)
def test_a_wrong_pipeline_gets_one_sentence(keys: dict[str, object], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        parse(keys)


def test_a_pipelines_settings_parse_back_to_the_same() -> None:
    settings = parse({"pipeline": "fedavg:3  fedalt:2", "stage2.lr": 0.5, "stage1.batch-size": 7})
    assert settings.run.rounds == 5
    assert parse(settings.flat()) == settings
