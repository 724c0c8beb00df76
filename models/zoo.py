"""The models: small modules that keep nothing but parameters, so that a cohort can train batched.

All run under ``torch.func.functional_call`` and ``vmap``: no batch norm, nothing in place.
The last layer is called ``output``, whatever comes before it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import nn

from bouquet.core.errors import BadInput
from bouquet.core.seeding import generator
from bouquet.models.config import ModelConfig, Shape
from bouquet.models.custom import Maker, build_own
from bouquet.models.images import cnn, resnet18
from bouquet.models.simple import linear, mlp, vector
from bouquet.models.splits import PersonalConfig, add_parts
from bouquet.models.structure import take_part
from bouquet.models.text import char_lstm, transformer
from bouquet.models.weights import load_weights


@dataclass(frozen=True)
class ModelInfo:
    """A model's entry in the registry.

    Parameters
    ----------
    name : str
        What ``model.name`` calls it.
    doc : str
        What it is, in one line.
    builder : callable
        From a config, an example's shape and the number of classes to a module.
    shape, classes : tuple of int, int
        Of the examples ``bouquet models`` shows it for: those of its paper.
    problem : str
        What it is for: ``classification``, ``text`` or ``a quadratic problem``.
    """

    name: str
    doc: str
    builder: Callable[[ModelConfig, Shape, int], nn.Module]
    shape: Shape
    classes: int
    problem: str = "classification"


def build(
    config: ModelConfig,
    input_shape: Shape,
    classes: int,
    seed: int,
    dtype: torch.dtype,
    personal: PersonalConfig | None = None,
    make: Maker | None = None,
) -> nn.Module:
    """A model with initial weights that depend on the arguments alone.

    Parameters
    ----------
    config : ModelConfig
        Which model, and its size.
    input_shape : tuple of int
        The shape of one example.
    classes : int
        How many classes to tell apart; 0 for a quadratic problem.
    seed : int
        Of the initial weights; torch's own generator is left as it was.
    dtype : torch.dtype
        Of the weights, which are the same numbers in every dtype up to rounding.
    personal : PersonalConfig, optional
        The split, which may add parts to the model; the rest starts the same with them.
    make : callable, optional
        Makes the model, whatever ``config`` calls it.
    """
    _refuse_unfit(config.name, [info.name for info in _fitting(bool(classes))], bool(classes))
    if config.output and ":" not in config.name:
        raise BadInput(
            f"model.output must be empty for {config.name!r}, which gives scores and nothing else, "
            f"not {config.output!r}."
        )
    with torch.random.fork_rng(devices=[]):
        _seed(seed, "model")
        if ":" in config.name:
            module = build_own(config.name, input_shape, classes, make)
        else:
            module = MODELS[config.name].builder(config, input_shape, classes)
        if config.weights:
            load_weights(module.to(dtype), config)
        elif config.weights_sha256 and personal is not None and personal.frozen:
            raise BadInput(
                "personal.frozen with model.weights needs that file on every node, for what is "
                "frozen never travels: a device's owner gives it with bouquet node --weights FILE."
            )
        take_part(module, config.output)
        if personal is not None:
            _seed(seed, "personal")
            add_parts(module, config.name, personal)
        return module.to(dtype)


def refuse_inputs(config: ModelConfig, *, tokens: bool, classes: bool = True) -> None:
    """Refuse a model for numbers where the data set has tokens, and the other way round.

    Ours for text say something of every position, which is only of use for classes.
    """
    info = MODELS.get(config.name)
    if info is not None and tokens and not classes:
        raise BadInput(
            "model.name must be your own, such as ./file.py:Name, for words with data.labels "
            f"'values' or 'several', not {config.name!r}."
        )
    if info is None or (info.problem == "text") == tokens:
        return
    problem = "text" if tokens else "classification"
    fitting = [one.name for one in MODELS.values() if one.problem == problem]
    raise BadInput(_sentence(fitting, f" for {problem}", config.name))


def refuse_large(
    config: ModelConfig, input_shape: Shape, classes: int, personal: PersonalConfig, most: int
) -> None:
    """Refuse a model of ours with more than ``most`` parameters, without making room for one."""
    bare = replace(config, weights="", weights_sha256="")
    try:
        with torch.device("meta"):  # shapes without numbers
            module = build(bare, input_shape, classes, 0, torch.float32, personal)
    except BadInput:  # which is said, in other words, where the model is made
        return
    refuse_more(config.name, sum(one.numel() for one in module.parameters()), most)


def refuse_more(name: str, count: int, most: int) -> None:
    """Refuse a model by the number of its parameters."""
    if count > most:
        raise BadInput(
            f"model.name {name!r} has {count} parameters with these keys; the policy of the device "
            f"allows {most} (parameters)."
        )


def _fitting(classifies: bool) -> list[ModelInfo]:
    return [i for i in MODELS.values() if (i.problem != "a quadratic problem") == classifies]


def _refuse_unfit(name: str, fitting: list[str], classifies: bool) -> None:
    if name in fitting or (":" in name and classifies):
        return
    if name not in MODELS and ":" not in name:
        raise BadInput(_sentence(list(MODELS), "", name))
    problem = "classification" if classifies else "a quadratic problem"
    raise BadInput(_sentence(fitting, f" for {problem}", name))


def _sentence(names: list[str], problem: str, name: str) -> str:
    listed = ", ".join(repr(one) for one in names)
    return f"model.name must be one of {listed}{problem}, not {name!r}."


def _seed(seed: int, purpose: str) -> None:
    # The CPU's generator and no other: torch.manual_seed would seed the GPUs' as well.
    torch.default_generator.manual_seed(int(generator(seed, purpose).integers(2**63)))


MNIST = (1, 28, 28)

MODELS: dict[str, ModelInfo] = {
    entry.name: entry
    for entry in (
        ModelInfo(
            "char-lstm",
            "model.layers LSTM layers of model.width, characters embedded in 8 numbers",
            char_lstm,
            (80,),
            86,
            problem="text",
        ),
        ModelInfo(
            "cnn", "two 5x5 convolutions (32, 64) with pooling, then 512 units", cnn, MNIST, 10
        ),
        ModelInfo("linear", "multinomial logistic regression", linear, (784,), 10),
        ModelInfo("mlp", "model.layers hidden layers of model.hidden units, ReLU", mlp, (784,), 10),
        ModelInfo(
            "resnet18",
            "ResNet-18 with group norm; a 3x3 first convolution for small images",
            resnet18,
            MNIST,
            62,
        ),
        ModelInfo(
            "transformer",
            "causal: model.blocks blocks, model.heads heads, model.width numbers a position",
            transformer,
            (20,),
            10_000,
            problem="text",
        ),
        ModelInfo(
            "vector",
            "one vector w, the unknown of a quadratic problem",
            vector,
            (3, 3),
            0,
            problem="a quadratic problem",
        ),
    )
}
