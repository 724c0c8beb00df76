"""Splits that add personal parts, the paper's counts, and models for text."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad
from torch.nn.functional import cross_entropy

from bouquet.core.errors import BadInput
from bouquet.core.task import Batch, Task
from bouquet.data import DATASETS, FederatedData, Split
from bouquet.models import (
    MODELS,
    Layout,
    ModelConfig,
    PersonalConfig,
    build,
    layout_of,
    offers,
    personal_names,
)
from bouquet.models.images import group_norm
from bouquet.models.splits import add_parts
from bouquet.models.summary import shares
from bouquet.models.text import Lstm
from bouquet.models.vision import torchvision
from bouquet.problem import _data, _problem, make_task, problem
from bouquet.settings import Settings, parse
from bouquet.strategies import fedsim
from tests.conftest import Run

Start = Callable[..., Run]

# As small as they go: ResNet-18 has one size, and few pixels.
SMALL: dict[str, Any] = {"hidden": 6, "width": 8, "blocks": 2, "heads": 2}
TOKENS, LENGTH = 7, 5
LAST = ["lora", "lora-b", "full", "none"]
SPLITS = {
    "char-lstm": ["input", "output", "additive-head", *LAST],
    "cnn": ["input", "output", "adapter", "split-input", "additive-head", *LAST],
    "linear": ["input", "output", "additive-head", *LAST],
    "mlp": ["input", "output", "adapter", "split-input", "additive-head", *LAST],
    "resnet18": ["input", "output", "adapter", "split-input", "additive-head", *LAST],
    "transformer": ["input", "output", "adapter", "additive-head", *LAST],
}
every_split = pytest.mark.parametrize(
    ("name", "split"), [(name, split) for name in SPLITS for split in SPLITS[name]]
)
adapted = pytest.mark.parametrize("name", ["cnn", "mlp", "resnet18", "transformer"])


def made(name: str, split: str = "none", seed: int = 0) -> nn.Module:
    shape, classes = ((LENGTH,), TOKENS) if is_text(name) else ((64,), 10)
    config = ModelConfig(name=name, **SMALL)
    personal = PersonalConfig(split=split, bottleneck=3)
    return build(config, shape, classes, seed, torch.float64, personal)


def is_text(name: str) -> bool:
    return MODELS[name].problem == "text"


def examples(name: str) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(3)
    if is_text(name):
        text = torch.randint(TOKENS, (4, LENGTH + 1), generator=source)
        return text[:, :-1].clone(), text[:, 1:].clone()
    images = torch.rand(4, 64, generator=source, dtype=torch.float64)
    return images, torch.randint(10, (4,), generator=source)


def task_of(name: str, split: str) -> Task:
    module = made(name, split)
    initial = {key: value.detach() for key, value in module.named_parameters()}
    personal = personal_names(list(initial), split, layout_of(module).splits)
    return Task(module.to("meta"), initial, TOKENS if is_text(name) else 10, personal)


# The paper's tables


@pytest.mark.parametrize(
    ("name", "shape", "classes", "split", "personal", "shared"),
    [
        ("transformer", (20,), 10_000, "input", "0.8M", "4.9M"),
        ("transformer", (20,), 10_000, "output", "0.8M", "4.9M"),
        ("transformer", (20,), 10_000, "adapter", "0.07M", "5.7M"),
        ("resnet18", (3, 224, 224), 2028, "input", "0.01M", "12.2M"),
        ("resnet18", (3, 224, 224), 2028, "output", "1M", "11.2M"),
        ("resnet18", (3, 224, 224), 2028, "adapter", "1.4M", "12.2M"),
        ("resnet18", (1, 28, 28), 62, "input", "0.7K", "11.2M"),
        ("resnet18", (1, 28, 28), 62, "output", "0.03M", "11.2M"),
        ("resnet18", (1, 28, 28), 62, "adapter", "1.4M", "11.2M"),
    ],
)
def test_the_counts_are_those_of_tables_5_to_7_in_pillutla_et_al(
    name: str, shape: tuple[int, ...], classes: int, split: str, personal: str, shared: str
) -> None:
    rows = shares(ModelConfig(name=name), PersonalConfig(), shape, classes, [])
    (row,) = [row for row in rows if row.split == split]
    assert rounded_as(personal, row.personal) == personal
    assert rounded_as(shared, row.shared) == shared


def rounded_as(printed: str, count: int) -> str:
    """A count with the unit and the digits of a printed one."""
    unit = {"K": 1e3, "M": 1e6}[printed[-1]]
    digits = len(printed[:-1].partition(".")[2])
    return f"{count / unit:.{digits}f}{printed[-1]}"


# Splits


def test_every_model_offers_the_splits_it_has() -> None:
    assert {name: offers(made(name)) for name in SPLITS} == SPLITS


@every_split
def test_merging_what_was_split_gives_the_model_back(name: str, split: str) -> None:
    task = task_of(name, split)
    parts = fedsim.split(task, task.initial)
    merged = fedsim.merge(parts)
    assert merged.keys() == task.initial.keys()
    assert all(merged[n] is task.initial[n] for n in merged)
    assert bool(parts.u) == (split != "full" and (name, split) not in ALL_OF_IT)
    assert bool(parts.v) == (split != "none")


# A linear model has one layer, its first and its last.
ALL_OF_IT = {("linear", "input"), ("linear", "output")}


@pytest.mark.parametrize("split", ["adapter", "lora", "lora-b"])
@adapted
def test_adapters_start_as_the_identity(name: str, split: str) -> None:
    x, _ = examples(name)
    assert torch.equal(made(name, split)(x), made(name)(x))


@pytest.mark.parametrize("name", [n for n in SPLITS if n != "transformer"])
def test_a_fresh_head_changes_no_probability(name: str) -> None:
    x, _ = examples(name)
    with_head, without = made(name, "additive-head")(x), made(name)(x)
    torch.testing.assert_close(with_head.exp(), without.softmax(-1), atol=1e-12, rtol=0)


@every_split
def test_all_devices_start_from_the_same_parts(name: str, split: str) -> None:
    before = torch.get_rng_state()
    first, again = made(name, split).state_dict(), made(name, split).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(value, again[key]) for key, value in first.items())


@pytest.mark.parametrize("split", ["adapter", "additive-head", "lora"])
@adapted
def test_the_rest_has_the_names_and_the_weights_it_has_alone(name: str, split: str) -> None:
    whole, alone = task_of(name, split), task_of(name, "none")
    assert whole.initial.keys() - whole.personal == alone.initial.keys()
    for key, value in alone.initial.items():
        assert torch.equal(value, whole.initial[key])


@adapted
def test_every_adapter_can_learn_from_the_first_step(name: str) -> None:
    task = task_of(name, "adapter")
    x, y = examples(name)
    slopes = grad(lambda weights: task.losses(weights, x, y)[0].sum())(task.initial)
    layers = {key.partition(".adapter.")[0] for key in task.personal}
    moving = {key.partition(".adapter.")[0] for key in task.personal if slopes[key].abs().sum() > 0}
    assert moving == layers
    expected = {"cnn": 2, "mlp": 2, "resnet18": 16, "transformer": 2 * SMALL["blocks"]}
    assert len(layers) == expected[name]


def test_a_bottleneck_goes_through_as_few_numbers_as_asked_for() -> None:
    weights = made("transformer", "adapter").state_dict()
    assert weights["blocks.0.attention.output.adapter.down.weight"].shape == (3, 8)
    assert weights["blocks.1.forward2.adapter.up.weight"].shape == (8, 3)
    assert weights["blocks.1.forward2.adapter.down.weight"].abs().min() > 0


def test_adapters_are_added_to_what_the_layer_says() -> None:
    """By hand: x + up(relu(down(x))), and x + conv(norm(x))."""
    module = made("mlp", "adapter")
    hidden: Any = module.get_submodule("hidden1")
    nn.init.normal_(hidden.adapter.up.weight)
    x = torch.rand(2, 64, dtype=torch.float64)
    plain = nn.functional.linear(x, hidden.weight, hidden.bias)
    changed = plain + hidden.adapter.up(hidden.adapter.down(plain).relu())
    torch.testing.assert_close(hidden(x), changed)
    conv: Any = made("cnn", "adapter").get_submodule("conv1")
    nn.init.normal_(conv.adapter.conv.weight)
    image = torch.rand(2, 1, 8, 8, dtype=torch.float64)
    plain = nn.functional.conv2d(image, conv.weight, conv.bias, padding=2)
    torch.testing.assert_close(conv(image), plain + conv.adapter.conv(conv.adapter.norm(plain)))


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_a_divided_input_layer_reads_the_last_inputs_with_its_personal_half(name: str) -> None:
    """A quarter of the features, or of the rows of an 8x8 image: the same 16 numbers."""
    config, personal = ModelConfig(name=name, **SMALL), PersonalConfig("split-input", inputs=0.25)
    module = build(config, (64,), 10, 0, torch.float64, personal)
    layer: Any = module.get_submodule(layout_of(module).split_input)
    shape = (1, 64) if name == "mlp" else (1, 1, 8, 8)
    x = torch.rand(1, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    before = layer(x.reshape(shape))
    x[:, 48:] += 1
    changed = layer(x.reshape(shape)) != before
    # The personal half answers with a third of 6 units (a quarter, rounded), or with 2 rows.
    shared, own = (changed[:, :4], changed[:, 4:]) if name == "mlp" else changed.split([6, 2], 2)
    assert own.all()
    assert not shared.any()
    for parameter in layer.personal.parameters():
        nn.init.zeros_(parameter)
    after = layer(x.reshape(shape))
    assert (after[:, 4:] == 0).all() if name == "mlp" else (after[:, :, 6:] == 0).all()


def test_the_additive_head_mixes_probabilities_by_a_learned_weight() -> None:
    """θ h + (1 − θ) h_i with θ = sigmoid(mix), against both by hand."""
    module: Any = made("linear", "additive-head")
    x, _ = examples("linear")
    nn.init.normal_(module.output.personal.weight)
    nn.init.constant_(module.output.mix, -1.5)
    theta = torch.tensor(-1.5, dtype=torch.float64).sigmoid()
    h = nn.functional.linear(x, module.output.weight, module.output.bias).softmax(-1)
    own = module.output.personal(x).softmax(-1)
    torch.testing.assert_close(module(x).exp(), theta * h + (1 - theta) * own)
    assert "output.mix" in task_of("linear", "additive-head").personal


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("linear", "adapter"),
        ("linear", "split-input"),
        ("char-lstm", "adapter"),
        ("char-lstm", "split-input"),
        ("transformer", "split-input"),
    ],
)
def test_a_split_a_model_lacks_is_refused_with_those_it_has(name: str, split: str) -> None:
    listed = ", ".join(map(repr, SPLITS[name]))
    with pytest.raises(BadInput, match=f"must be one of {listed} or a pattern .*not '{split}'"):
        made(name, split)


def test_one_input_cannot_be_divided() -> None:
    with pytest.raises(BadInput, match="'split-input' where there is only one input"):
        build(ModelConfig("mlp"), (1,), 2, 0, torch.float32, PersonalConfig("split-input"))


def test_a_long_list_of_names_is_shortened() -> None:
    names = [f"layer{number}.weight" for number in range(40)]
    with pytest.raises(BadInput, match=r"one of layer0.*layer5\.weight, \.\.\., layer36.*'last'"):
        personal_names(names, "last")


@pytest.mark.parametrize(
    ("layout", "split", "sentence"),
    [
        (Layout(adapters="bend"), "adapter", "nn.Linear or nn.Conv2d layers, not 'bend'.* ReLU"),
        (Layout(split_input="first"), "split-input", "names a layer 'first' that is not there"),
        (Layout(output="bend"), "additive-head", "layers, not 'bend'"),
        (Layout(adapters="first*"), "adapter", "must be 'full'.*matches one of line.weight"),
    ],
)
def test_a_wrong_layout_is_refused(layout: Layout, split: str, sentence: str) -> None:
    module = nn.Sequential()
    module.add_module("line", nn.Linear(2, 2))
    module.add_module("bend", nn.ReLU())
    module.layout = layout  # type: ignore[assignment]

    def chosen() -> frozenset[str]:
        add_parts(module, "own", PersonalConfig(split))
        return personal_names([name for name, _ in module.named_parameters()], split)

    with pytest.raises(BadInput, match=sentence):
        chosen()


# ResNet-18


def test_the_resnet_computes_what_torchvisions_own_does() -> None:
    """With the same weights, on images large enough to need no change."""
    shape = (3, 64, 64)
    module = build(ModelConfig("resnet18"), shape, 5, 0, torch.float32)
    other = torchvision().models.resnet18(num_classes=5, norm_layer=group_norm)
    rename = {"conv1.": "input.conv.", "bn1.": "input.norm.", "fc.": "output."}
    weights = module.state_dict()
    for key in other.state_dict():
        (first, rest) = key.split(".", 1)
        name = rename.get(f"{first}.", f"{first}.") + rest
        other.state_dict()[key].copy_(weights[name])
    x = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0))
    assert torch.equal(module(x), other(x))


def test_the_resnet_for_small_images_has_a_3x3_first_convolution_and_no_pooling() -> None:
    module = build(ModelConfig("resnet18"), (3, 32, 32), 10, 0, torch.float32)
    assert module.get_parameter("input.conv.weight").shape == (64, 3, 3, 3)
    x = torch.rand(1, 3, 32, 32)
    for name, layer in module.named_children():
        x = layer(x)
        if name == "layer1":
            assert x.shape == (1, 64, 32, 32)
        if name == "layer4":
            assert x.shape == (1, 512, 4, 4)
    assert x.shape == (1, 10)


# Text


@pytest.mark.parametrize("name", ["char-lstm", "transformer"])
def test_a_model_for_text_never_looks_ahead(name: str) -> None:
    module = made(name)
    x, _ = examples(name)
    output = module(x)
    assert output.shape == (4, LENGTH, TOKENS)
    x[:, 3] = (x[:, 3] + 1) % TOKENS
    changed = (module(x) != output).flatten(2).any(2).any(0)
    assert changed.tolist() == [False, False, False, True, True]


def test_the_transformer_knows_where_a_token_is() -> None:
    module = made("transformer")
    x = torch.full((1, LENGTH), 2)
    assert not torch.allclose(module(x)[:, 0], module(x)[:, 1])


def test_the_lstm_is_torchs() -> None:
    """Against nn.LSTM with the same weights; its gates are in another order."""
    ours = Lstm(3, 4)
    theirs = nn.LSTM(3, 4, batch_first=True)
    keep, write, read, new = range(4)
    for name, value in (
        ("weight_ih_l0", ours.input.weight),
        ("bias_ih_l0", ours.input.bias),
        ("weight_hh_l0", ours.recurrent.weight),
    ):
        gates = value.detach().chunk(4)
        getattr(theirs, name).data = torch.cat([gates[g] for g in (write, keep, new, read)])
    nn.init.zeros_(theirs.get_parameter("bias_hh_l0"))
    x = torch.rand(2, 6, 3, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(ours(x), theirs(x)[0])


def test_a_texts_loss_and_accuracy_are_means_over_its_positions() -> None:
    task = task_of("transformer", "none")
    x, y = examples("transformer")
    output = task.output(task.initial, x)
    losses, right = task.losses(task.initial, x, y)
    for row in range(4):
        torch.testing.assert_close(losses[row], cross_entropy(output[row], y[row]))
        assert right[row] == (output[row].argmax(1) == y[row]).double().mean()


def test_positions_without_a_target_do_not_count() -> None:
    task = task_of("transformer", "none")
    x, y = examples("transformer")
    y[0, 2:] = -100
    y[1] = -100
    output = task.output(task.initial, x)
    losses, right = task.judge(output, x, y)
    torch.testing.assert_close(losses[0], cross_entropy(output[0, :2], y[0, :2]))
    assert right[0] == (output[0, :2].argmax(1) == y[0, :2]).double().mean()
    assert losses[1] == right[1] == 0


@pytest.mark.parametrize(
    ("model", "width", "sentence"),
    [
        ("transformer", 6, "model.width must be a multiple of model.heads = 4, not 6"),
        ("char-lstm", 8, "must not be 'char-lstm' for examples of shape 2 x 3"),
    ],
)
def test_sizes_text_models_cannot_have_are_refused(model: str, width: int, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        build(ModelConfig(model, width=width), (2, 3), 5, 0, torch.float32)


# Training


@every_split
def test_a_step_down_the_slope_lowers_the_loss(name: str, split: str) -> None:
    task = task_of(name, split)
    x, y = examples(name)
    batch = Batch(x, y, torch.full((4,), 0.25, dtype=torch.float64), torch.tensor(1.0))
    slopes = grad(task.loss)(task.initial, batch)
    moved = {key: value - 1e-3 * slopes[key] for key, value in task.initial.items()}
    assert task.loss(moved, batch) < task.loss(task.initial, batch)


@pytest.fixture
def text(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The data set ``digits`` replaced by three clients' texts of a few tokens."""
    rows = torch.randint(TOKENS, (30, LENGTH + 1), generator=torch.Generator().manual_seed(0))
    clients = {
        f"{number:03d}": Split(
            train=torch.arange(10 * number, 10 * number + 7 - number),
            test=torch.arange(10 * number + 7, 10 * number + 10),
        )
        for number in range(3)
    }
    texts = FederatedData(rows[:, :-1], rows[:, 1:], clients, TOKENS)
    entry = replace(DATASETS["digits"], loader=lambda *_: texts, model="transformer")
    monkeypatch.setitem(DATASETS, "digits", entry)
    forget()
    yield
    forget()


def forget() -> None:
    _data.cache_clear()
    _problem.cache_clear()


ROUND: dict[str, Any] = {
    "scheme": "fedalt",
    "rounds": 1,
    "local_steps": 2,
    "batch_size": 4,
    "nodes": 1,
    "lr": 0.01,
    "dtype": "float64",
    "data": {"clients": 3},
    "store": "disk",
}


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("linear", "additive-head"),
        ("mlp", "adapter"),
        ("mlp", "split-input"),
        ("cnn", "adapter"),
        ("cnn", "split-input"),
        ("cnn", "additive-head"),
    ],
)
def test_images_train_a_round_in_one_computation_or_one_by_one(
    start: Start, name: str, split: str
) -> None:
    assert_alike(start, name, split)


@pytest.mark.parametrize("split", ["input", "output", "adapter", "split-input", "additive-head"])
def test_only_personal_names_move_where_only_they_are_trained(start: Start, split: str) -> None:
    keys = ROUND | {"lr": 1e-30, "model": SMALL, "personal": {"split": split}}
    run = start(fedalt={"personal_lr": 0.1}, **keys)
    task = problem(settings_of("mlp", split)).task
    for name, value in run.server().items():
        # The mean of equal weights is equal up to float rounding.
        assert abs(value - task.initial[name.removeprefix("w/")].numpy()).max() < 1e-15
    kept = run.personal("000")
    assert {name.removeprefix("v/") for name in kept} == task.personal
    assert all(
        (value != task.initial[name.removeprefix("v/")].numpy()).any()
        for name, value in kept.items()
    )


@pytest.mark.parametrize("split", ["adapter", "lora", "output"])
@pytest.mark.usefixtures("text")
def test_the_transformer_trains_a_round_in_one_computation_or_one_by_one(
    start: Start, split: str
) -> None:
    assert_alike(start, "transformer", split)


@pytest.mark.usefixtures("text")
def test_the_lstm_trains_a_round_in_one_computation_or_one_by_one(start: Start) -> None:
    assert_alike(start, "char-lstm", "output")


def test_the_resnet_trains_a_round(start: Start) -> None:
    run = start(
        **ROUND | {"local_steps": 1, "dtype": "float32", "clients_per_round": 1},
        model={"name": "resnet18"},
        personal={"split": "adapter"},
    )
    assert run.summary["personal"]["loss"]["mean"] > 0


def settings_of(name: str, split: str) -> Settings:
    keys = {"data.clients": 3, "dtype": "float64", "personal.split": split, "model.name": name}
    return parse(
        keys | {"scheme": "fedalt"} | {f"model.{key}": value for key, value in SMALL.items()}
    )


def assert_alike(start: Start, name: str, split: str) -> None:
    """Both ways end alike; only personal names are kept, and they have moved."""
    keys = ROUND | {"model": SMALL | {"name": name}, "personal": {"split": split}}
    together, alone = (start(cohort=how, **keys) for how in ("vmap", "loop"))
    task = problem(settings_of(name, split)).task
    for client in ("000", "001", "002"):
        kept, other = together.personal(client), alone.personal(client)
        assert {key.removeprefix("v/") for key in kept} == task.personal
        for key, value in kept.items():
            assert abs(value - other[key]).max() < 1e-9
        assert any((kept[f"v/{n}"] != task.initial[n].numpy()).any() for n in task.personal)
    for key, value in together.server().items():
        assert abs(value - alone.server()[key]).max() < 1e-9
    assert together.server().keys() == {f"w/{n}" for n in task.initial.keys() - task.personal}
    assert 0 <= together.summary["personal"]["accuracy"]["mean"] <= 1


@pytest.mark.usefixtures("text")
def test_a_model_for_numbers_is_refused_where_there_is_text() -> None:
    with pytest.raises(BadInput, match="one of 'char-lstm', 'transformer' for text, not 'mlp'"):
        problem(parse({"model.name": "mlp"}))


def test_a_model_for_text_is_refused_where_there_are_numbers() -> None:
    with pytest.raises(BadInput, match="'resnet18' for classification, not 'transformer'"):
        problem(parse({"model.name": "transformer"}))


def test_a_split_reaches_the_task() -> None:
    settings = parse(
        {
            "scheme": "fedalt",
            "model.name": "mlp",
            "personal.split": "adapter",
            "personal.bottleneck": 5,
        }
    )
    task = make_task(settings, (64,), 10, None)
    assert task.personal
    assert all(".adapter." in name for name in task.personal)
    assert task.initial["hidden1.adapter.down.weight"].shape == (5, 200)
