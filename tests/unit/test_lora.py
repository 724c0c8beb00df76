"""Low-rank adapters, and weights that nobody trains or sends."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import grad

from bouquet.client_app.predictor import read_predictor
from bouquet.core import cohort, replay
from bouquet.core.errors import BadInput
from bouquet.core.task import Task
from bouquet.models import ModelConfig, PersonalConfig, build, frozen_names, personal_names
from bouquet.models.lora import add_lora, linear_layers
from bouquet.models.summary import shares
from bouquet.problem import make_task
from bouquet.rebuild import predictor_of, shared_model
from bouquet.settings import parse
from bouquet.testing import check_scheme
from tests.conftest import Run

Start = Callable[..., Run]
TINY: dict[str, Any] = {"name": "mlp", "hidden": 6, "layers": 1}
ROUND: dict[str, Any] = {
    "scheme": "fedalt",
    "rounds": 1,
    "local_steps": 2,
    "batch_size": 4,
    "nodes": 1,
    "dtype": "float64",
    "data": {"clients": 3},
    "model": TINY,
    "store": "disk",
    "save_predictors": True,
}
OWN = {"hidden1.weight", "hidden1.bias", "output.weight", "output.bias"}
A, B = ({f"{layer}.lora.{half}" for layer in ("hidden1", "output")} for half in "ab")


def task_of(split: str, frozen: str = "", **keys: Any) -> Task:
    told = {"personal.split": split, "personal.frozen": frozen, "scheme": "fedalt"}
    model = {f"model.{name}": value for name, value in TINY.items()}
    return make_task(parse(told | model | keys | {"dtype": "float64"}), (64,), 10, None)


class Blocks(nn.Module):
    """A model with torch's own attention, as people have them."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2)
        self.line = nn.Linear(4, 3)


# What is added


def test_a_layer_adds_the_scaled_product_of_its_two_halves() -> None:
    """By hand: W x + b + (α/r) B A x, with α = 6 and r = 3."""
    module = nn.Sequential(nn.Linear(5, 4))
    layer: Any = module[0]
    x = torch.rand(2, 5)
    plain = layer(x)
    add_lora(module, rank=3, alpha=6.0, target="")
    assert torch.equal(layer(x), plain)
    assert (layer.lora.a.shape, layer.lora.b.shape) == ((3, 5), (4, 3))
    nn.init.normal_(layer.lora.b)
    torch.testing.assert_close(layer(x), plain + 2.0 * x @ layer.lora.a.T @ layer.lora.b.T)


def test_a_model_that_is_one_layer_has_an_adapter_too() -> None:
    module = nn.Linear(5, 4)
    add_lora(module, 2, 2.0, "")
    names = [name for name, _ in module.named_parameters()]
    assert personal_names(names, "lora") == {"lora.a", "lora.b"}


def test_both_halves_are_personal_or_b_alone() -> None:
    both, half = task_of("lora"), task_of("lora-b")
    assert both.personal == A | B
    assert half.personal == B
    assert both.initial.keys() == half.initial.keys() == OWN | A | B


def test_the_first_gradient_reaches_every_b() -> None:
    task = task_of("lora")
    x, y = torch.rand(4, 64, dtype=torch.float64), torch.arange(4)
    slopes = grad(lambda weights: task.losses(weights, x, y)[0].sum())(task.initial)
    assert all(slopes[name].abs().sum() > 0 for name in B)


def test_patterns_choose_the_layers() -> None:
    keys: dict[str, Any] = {"personal.lora-target": "hid*", "personal.rank": 2}
    task = task_of("lora", **keys)
    assert task.personal == {"hidden1.lora.a", "hidden1.lora.b"}
    assert task.initial["hidden1.lora.a"].shape == (2, 64)


def test_the_transformer_has_adapters_on_attention_and_feed_forward_layers() -> None:
    config = ModelConfig("transformer", width=8, blocks=1, heads=2)
    layers = linear_layers(build(config, (5,), 7, 0, torch.float32))
    ends = ["attention.input", "attention.output", "forward1", "forward2"]
    assert list(layers) == [f"blocks.0.{end}" for end in ends]


def test_layers_of_torchs_own_attention_have_none() -> None:
    """Its output layer is an nn.Linear whose forward nobody calls: an adapter would be idle."""
    assert list(linear_layers(Blocks())) == ["line"]
    with pytest.raises(BadInput, match=r"not 'attention.*calls none of its layers"):
        add_lora(Blocks(), 2, 2.0, "line attention*")


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("hidden1 hiden*", r"must match linear layers, such as hidden1, output, not 'hiden\*'\."),
        ("relu1", r"not 'relu1' \(ReLU is none\)"),
    ],
)
def test_a_pattern_without_a_linear_layer_is_refused(target: str, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        task_of("lora", **{"personal.lora-target": target})


@pytest.mark.parametrize(
    ("key", "value"),
    [("personal.rank", 0), ("personal.lora-alpha", 0.0), ("personal.lora-target", 3)],
)
def test_keys_have_a_sentence(key: str, value: object) -> None:
    with pytest.raises(BadInput, match=f"^{key} must be .*not {value}"):
        parse({key: value})


# What is frozen


def test_what_is_frozen_is_no_part_of_what_trains() -> None:
    task = task_of("lora-b", "*")
    assert task.frozen.keys() == OWN
    assert task.initial.keys() == A | B
    assert task.personal == B
    whole = task_of("lora-b")
    assert all(torch.equal(value, whole.initial[name]) for name, value in task.frozen.items())
    x = torch.rand(2, 64, dtype=torch.float64)
    assert torch.equal(task.output(task.initial, x), whole.output(whole.initial, x))


@pytest.mark.parametrize(
    ("split", "frozen", "expected"),
    [
        ("none", "hidden*", {"hidden1.weight", "hidden1.bias"}),
        ("lora", "* !output.*", {"hidden1.weight", "hidden1.bias"}),
        ("lora", "!output.* *.bias", {"hidden1.bias"}),
        ("lora", "", set()),
        ("adapter", "*", OWN),
    ],
)
def test_patterns_choose_what_is_frozen(split: str, frozen: str, expected: set[str]) -> None:
    added = {"lora": A | B, "adapter": {"hidden1.adapter.down.weight"}}.get(split, set())
    names = sorted(OWN | added)
    assert frozen_names(names, PersonalConfig(split, frozen=frozen)) == expected


@pytest.mark.parametrize(
    ("split", "frozen", "sentence"),
    [
        ("none", "*", "leave something to train, which '\\*' does not with the split 'none'"),
        ("lora", "hiden*", "be patterns that match some of hidden1.weight.*not 'hiden\\*'"),
        ("lora", "* !outptu.*", "not '!outptu.\\*'"),
    ],
)
def test_what_cannot_be_frozen_is_refused(split: str, frozen: str, sentence: str) -> None:
    with pytest.raises(BadInput, match=f"personal.frozen must .*{sentence}"):
        task_of(split, frozen)


def test_the_summary_counts_what_is_frozen() -> None:
    config, personal = ModelConfig("mlp", hidden=6, layers=1), PersonalConfig(rank=2, frozen="*")
    rows = {row.split: row for row in shares(config, personal, (64,), 10, [])}
    half = 2 * (6 + 10)
    assert (rows["lora-b"].personal, rows["lora-b"].shared) == (half, 2 * (64 + 6))
    assert rows["lora-b"].frozen == rows["lora"].frozen == 65 * 6 + 7 * 10
    assert "none" not in rows  # nothing would train


# Runs


def test_frozen_weights_stay_and_never_travel(start: Start) -> None:
    run = start(personal={"split": "lora-b", "rank": 2, "frozen": "*"}, **ROUND)
    task = task_of("lora-b", "*", **{"personal.rank": 2})
    assert run.server().keys() == {f"w/{name}" for name in A}
    assert run.personal("000").keys() == {f"v/{name}" for name in B}
    for name in B:
        assert (run.personal("000")[f"v/{name}"] != 0).any()
    for name, value in task.frozen.items():
        assert (run.predictor("000", name) == value.numpy()).all()
    # A client's own model is whole: it says what the run says it says.
    own = read_predictor(run.path / "predictors" / "000.safetensors")
    x = torch.rand(3, 64, dtype=torch.float64)
    weights = {n: torch.from_numpy(run.predictor("000", n)) for n in task.initial}
    torch.testing.assert_close(own.module(x), task.output(weights, x))


def test_freezing_the_base_saves_the_bytes_of_the_base(start: Start) -> None:
    """A round and its evaluation: the base comes twice and goes once, with or without a head."""
    keys = ROUND | {"eval_every": 0}
    free, frozen = (
        start(personal={"split": "lora-b", "rank": 2, "frozen": what}, **keys) for what in ("", "*")
    )
    base = 8 * (65 * 6 + 7 * 10)
    for way, times in (("bytes_up", 1), ("bytes_down", 2)):
        saved = free.summary[way] - frozen.summary[way]
        assert times * base < saved < times * (base + 4 * 400)  # and the arrays' headers


def test_the_first_personal_steps_are_those_with_a_base_that_trains(start: Start) -> None:
    """In fedalt's first round v moves before u: frozen or not, it moves alike."""
    runs = [
        start(personal={"split": "lora", "rank": 2, "frozen": what}, **ROUND)
        for what in ("", "*", "* !output.*")
    ]
    for name in A | B:
        first, *others = (run.personal("001")[f"v/{name}"] for run in runs)
        assert all(abs(first - other).max() < 1e-12 for other in others)


@pytest.mark.parametrize("frozen", ["", "*"])
def test_clients_train_alike_together_and_one_by_one(start: Start, frozen: str) -> None:
    keys = ROUND | {"personal": {"split": "lora-b", "rank": 2, "frozen": frozen}}
    together, alone = (start(cohort=how, **keys) for how in ("vmap", "loop"))
    for name, value in together.server().items():
        assert abs(value - alone.server()[name]).max() < 1e-12
    for name, value in together.personal("002").items():
        assert abs(value - alone.personal("002")[name]).max() < 1e-12


@pytest.mark.parametrize(("scheme", "frozen"), [("fedalt", "*"), ("fedavg", "hidden*")])
def test_recorded_steps_hold_on_to_what_is_frozen(
    start: Start, monkeypatch: pytest.MonkeyPatch, scheme: str, frozen: str
) -> None:
    """Of two seeds, two bases: a recording of one must not serve the other."""
    replay.RECORDED.programs.clear()
    replay.RECORDED.refused.clear()
    keys = ROUND | {"local_steps": 16, "personal": {"split": "lora-b", "frozen": frozen}}
    keys |= {"scheme": scheme, "save_predictors": False}
    recorded = [start(seed=seed, **keys) for seed in (0, 1)]
    assert replay.RECORDED.programs
    assert not replay.RECORDED.refused
    monkeypatch.setattr(cohort, "records", lambda *words: False)
    for seed, run in enumerate(recorded):
        plain = start(seed=seed, **keys)
        for name, value in plain.server().items():
            assert abs(run.server()[name] - value).max() < 1e-12


def test_a_later_stage_freezes_what_an_earlier_one_trained(start: Start) -> None:
    stage2 = {"personal.split": "lora", "personal.frozen": "*"}
    run = start(
        **ROUND | {"scheme": "fedalt", "rounds": 2},
        pipeline="fedavg:1 fedalt:1",
        **{f"stage2.{key}": value for key, value in stage2.items()},
    )
    fresh, first = task_of("none").initial, start(**ROUND | {"scheme": "fedavg"})
    for name in OWN:
        assert (run.predictor("000", name) == first.shared(name)).all()
        assert (run.predictor("000", name) != fresh[name].numpy()).any()


def test_models_are_rebuilt_whole_from_what_a_run_left(start: Start) -> None:
    keys = ROUND | {"personal": {"split": "lora-b", "rank": 2, "frozen": "*"}}
    run, bare = start(**keys), start(**keys | {"save_predictors": False})
    shared = shared_model(bare.path).state_dict()
    frozen = task_of("lora-b", "*", **{"personal.rank": 2}).frozen
    assert all(torch.equal(shared[name], value) for name, value in frozen.items())
    assert all((shared[name].numpy() == run.shared(name)).all() for name in A)
    own = predictor_of(bare.path, "001").weights
    assert own.keys() == OWN | A | B
    assert all((value.numpy() == run.predictor("001", name)).all() for name, value in own.items())


def test_a_scheme_keeps_the_laws_with_a_frozen_base() -> None:
    laws = ("sends_nothing_personal", "ends_after_a_stop_as_if_never_stopped")
    keys = {"personal": {"split": "lora-b", "rank": 2, "frozen": "*"}}
    check_scheme("fedalt", keys=keys, laws=(*laws, "does_not_depend_on_the_number_of_nodes"))
