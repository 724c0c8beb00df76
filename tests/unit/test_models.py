"""What the models promise: shapes, seeds, and that a cohort can train batched."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap

from bouquet.core.errors import BadInput
from bouquet.models import MODELS, ModelConfig, build
from bouquet.models.vision import torchvision

CLASSIFIERS = ["cnn", "linear", "mlp", "resnet18"]
ALL = "'char-lstm', 'cnn', 'linear', 'mlp', 'resnet18', 'transformer', 'vector'"


def model(name: str, shape: tuple[int, ...] = (64,), classes: int = 10, seed: int = 0) -> nn.Module:
    """A model for digits, unless told otherwise."""
    return build(ModelConfig(name=name), shape, classes, seed, torch.float32)


def size(module: nn.Module) -> int:
    """How many numbers there are to train."""
    return sum(parameter.numel() for parameter in module.parameters())


def test_the_registry_goes_by_the_names() -> None:
    assert list(MODELS) == [entry.name for entry in MODELS.values()]
    assert ", ".join(map(repr, MODELS)) == ALL


@pytest.mark.parametrize("name", CLASSIFIERS)
@pytest.mark.parametrize("shape", [(64,), (784,), (1, 28, 28), (3, 32, 30)])
def test_a_classifier_scores_every_class_of_every_example(
    name: str, shape: tuple[int, ...]
) -> None:
    assert model(name, shape, classes=7)(torch.zeros(2, *shape)).shape == (2, 7)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("linear", 7_850), ("mlp", 199_210), ("cnn", 1_663_370)],
)
def test_models_for_mnist_have_the_sizes_in_mcmahan_et_al(name: str, expected: int) -> None:
    """784-10; 784-200-200-10, the paper's 2NN; and its CNN."""
    assert size(model(name, (784,))) == expected


def test_hidden_and_layers_shape_the_mlp() -> None:
    module = build(ModelConfig(name="mlp", hidden=5, layers=3), (4,), 2, 0, torch.float32)
    weights = [tuple(p.shape) for p in module.parameters() if p.ndim == 2]
    assert weights == [(5, 4), (5, 5), (5, 5), (2, 5)]


def test_hidden_layers_bend_the_mlp() -> None:
    """Without ReLU the mlp would be affine: f(-x) + f(x) = 2 f(0)."""
    module, x = model("mlp"), torch.ones(1, 64)
    assert not torch.allclose(module(x) + module(-x), 2 * module(torch.zeros(1, 64)), atol=1e-3)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_the_last_layer_is_called_output(name: str) -> None:
    names = [name for name, _ in model(name).named_parameters()]
    assert names[-2:] == ["output.weight", "output.bias"]


def test_the_cnn_reads_a_flat_image_row_by_row() -> None:
    flat, image = model("cnn", (64,)), model("cnn", (1, 8, 8))
    x = torch.rand(2, 64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(flat(x), image(x.reshape(2, 1, 8, 8)))


def test_the_vector_is_the_answer_to_every_example() -> None:
    module = model("vector", (3, 3), classes=0)
    assert {name: tuple(p.shape) for name, p in module.named_parameters()} == {"w": (3,)}
    w = torch.tensor([1.0, 2.0, 3.0])
    answer = functional_call(module, {"w": w}, torch.zeros(2, 3, 3))
    assert torch.equal(answer, torch.stack([w, w]))


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_the_seed_alone_decides_the_weights(name: str) -> None:
    before = torch.get_rng_state()
    first, again, other = model(name, seed=1), model(name, seed=1), model(name, seed=2)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(5)
    later = model(name, seed=1)
    for key, value in first.state_dict().items():
        assert torch.equal(value, again.state_dict()[key])
        assert torch.equal(value, later.state_dict()[key])
        # Norms start at one and zero whatever the seed.
        assert value.unique().numel() == 1 or not torch.equal(value, other.state_dict()[key])


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_both_dtypes_start_from_the_same_weights(name: str) -> None:
    single = build(ModelConfig(name=name), (64,), 10, 0, torch.float32).state_dict()
    double = build(ModelConfig(name=name), (64,), 10, 0, torch.float64).state_dict()
    for key, value in double.items():
        assert value.dtype == torch.float64
        assert torch.equal(single[key], value.float())


@pytest.mark.parametrize("name", list(MODELS))
def test_a_cohort_in_one_batch_gets_the_gradients_of_each_alone(name: str) -> None:
    shape, classes = ((4, 4), 0) if name == "vector" else ((16,), 3)
    config = ModelConfig(name=name, hidden=5, width=8, blocks=1)
    clients = [build(config, shape, classes, seed, torch.float64) for seed in range(3)]
    source = torch.Generator().manual_seed(0)
    x = torch.rand(3, 2, *shape, generator=source, dtype=torch.float64)
    if MODELS[name].problem == "text":
        x = torch.randint(classes, x.shape, generator=source)

    def loss(weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = functional_call(clients[0], weights, x)
        return ((scores - 1) ** 2).sum()

    together = vmap(grad(loss))(stack_module_state(clients)[0], x)
    for number, client in enumerate(clients):
        alone = grad(loss)(dict(client.named_parameters()), x[number])
        for key, value in alone.items():
            assert value.abs().sum() > 0
            assert torch.allclose(together[key][number], value, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "sentence"),
    [
        ("", (64,), 10, f"must be one of {ALL}, not ''"),
        ("resnet", (64,), 10, f"must be one of {ALL}, not 'resnet'"),
        ("vector", (64,), 10, "one of 'char-lstm', .* for classification, not 'vector'"),
        ("cnn", (4, 4), 0, "must be one of 'vector' for a quadratic problem, not 'cnn'"),
        ("mlp", (4, 4), 0, "must be one of 'vector' for a quadratic problem, not 'mlp'"),
        ("cnn", (60,), 10, "not be 'cnn' for examples of shape 60: .*square"),
        ("cnn", (9,), 10, "not be 'cnn' for examples of shape 9: .*at least 4"),
        ("cnn", (28, 28), 10, "not be 'cnn' for examples of shape 28 x 28"),
        ("cnn", (1, 3, 28), 10, "not be 'cnn' for examples of shape 1 x 3 x 28"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(
    name: str, shape: tuple[int, ...], classes: int, sentence: str
) -> None:
    with pytest.raises(BadInput, match=sentence):
        model(name, shape, classes)


def test_torchvision_works_beside_any_torch() -> None:
    package = torchvision()
    assert torchvision() is package
    from torchvision.transforms.functional import hflip

    assert hflip(torch.tensor([[[1, 2]]])).tolist() == [[[2, 1]]]
