"""Models whose output is an object, weights under two names, and Hugging Face's models."""

import re
import shlex
import sys
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bouquet.client_app.predictor import export, read_predictor
from bouquet.core.errors import BadInput
from bouquet.models import ModelConfig, PersonalConfig, build, emptied, filled
from bouquet.problem import make_task, problem
from bouquet.settings import parse
from tests.conftest import Run

Start = Callable[..., Run]
GUIDE = Path(__file__).parents[2] / "docs" / "pretrained.md"


@dataclass
class Said:
    """What such a model gives."""

    logits: Tensor
    hidden: Tensor
    loss: None = None


Pair = namedtuple("Pair", ["logits", "hidden"])


class Talkative(nn.Module):
    """Gives its scores as a part of something."""

    def __init__(self, kind: Callable[..., object], classes: int) -> None:
        super().__init__()
        self.kind, self.line = kind, nn.Linear(64, classes)

    def forward(self, x: Tensor) -> object:
        return self.kind(logits=self.line(x), hidden=x)


def attributes(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Talkative(Said, classes)


def mapping(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Talkative(OrderedDict, classes)


def named_tuple(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Talkative(Pair, classes)


def plain(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Linear(64, classes)


class Tied(nn.Module):
    """Reads and writes with one matrix, and has a constant that is never saved."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.line = nn.Linear(64, 16)
        self.embedding = nn.Embedding(classes, 16)
        self.output = nn.Linear(16, classes, bias=False)
        self.output.weight = self.embedding.weight
        self.register_buffer("factor", torch.tensor(0.5), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.output(self.line(x)) * self.factor
        return scores


def keys(name: str, output: str = "", **more: object) -> dict[str, object]:
    path = f"{__name__}:{name}"
    return {"model.name": path, "model.output": output, "data.clients": 3} | more


@pytest.mark.parametrize("name", ["attributes", "mapping", "named_tuple"])
def test_a_part_of_an_object_is_the_models_output(name: str) -> None:
    task = problem(parse(keys(name, "logits"))).task
    x = torch.rand(2, 64)
    line = nn.functional.linear(x, task.initial["line.weight"], task.initial["line.bias"])
    torch.testing.assert_close(task.output(task.initial, x), line)


@pytest.mark.parametrize(
    ("name", "output", "sentence"),
    [
        ("attributes", "", "one of 'hidden', 'logits': model.name '.*attributes' gives Said"),
        ("mapping", "", "one of 'hidden', 'logits': model.name '.*mapping' gives OrderedDict"),
        ("attributes", "logit", "one of 'hidden', 'logits' for .* gives Said, not 'logit'"),
        ("attributes", "loss", "one of 'hidden', 'logits' for .* gives Said, not 'loss'"),
        ("plain", "logits", "empty for a model that gives Tensor, not 'logits'"),
    ],
)
def test_a_wrong_part_is_refused_with_those_there_are(
    name: str, output: str, sentence: str
) -> None:
    with pytest.raises(BadInput, match=f"^model.output must be {sentence}"):
        problem(parse(keys(name, output)))


def test_our_models_give_scores_and_nothing_else() -> None:
    with pytest.raises(BadInput, match=r"^model.output must be empty for 'mlp', .*not 'logits'"):
        make_task(parse({"model.name": "mlp", "model.output": "logits"}), (64,), 10, None)


# Weights under two names


def test_a_weight_under_two_names_is_one(start: Start) -> None:
    task = problem(parse(keys("Tied"))).task
    assert list(task.initial) == ["line.weight", "line.bias", "embedding.weight"]
    x, other = torch.rand(2, 64), torch.rand(10, 16)
    found = task.output(task.initial | {"embedding.weight": other}, x)
    line = nn.functional.linear(x, task.initial["line.weight"], task.initial["line.bias"])
    torch.testing.assert_close(found, line @ other.T / 2)


def test_emptied_and_filled_a_model_is_as_it_was() -> None:
    module: Any = Tied((64,), 10)
    x = torch.rand(2, 64)
    said, weights = module(x), {n: p.detach().clone() for n, p in module.named_parameters()}
    empty: Any = emptied(module)
    assert {p.device.type for p in empty.parameters()} == {"meta"}
    assert empty.output.weight is empty.embedding.weight
    other: Any = filled(Tied((64,), 10), weights)
    assert torch.equal(other(x), said)
    for wrong in ({}, weights | {"stranger": x}, weights | {"line.bias": x}):
        with pytest.raises(RuntimeError):
            filled(Tied((64,), 10), wrong)


def test_a_file_may_have_a_tied_weight_under_either_name(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    values = {n: p.detach().clone() + 1 for n, p in Tied((64,), 10).named_parameters()}
    config = ModelConfig(f"{__name__}:Tied", weights=str(tmp_path / "base.safetensors"))
    for name in ("embedding.weight", "output.weight"):
        tied = values.pop("embedding.weight", None)
        values |= {} if tied is None else {name: tied}
        save_file(values, config.weights)
        found: Any = build(config, (64,), 10, 0, torch.float32)
        assert torch.equal(found.output.weight, values[name])
        values["embedding.weight"] = values.pop(name)


# Hugging Face


@pytest.fixture
def guided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The keys of the guide's command, its file where it should be."""
    pytest.importorskip("transformers")
    text = GUIDE.read_text("utf-8")
    ((_, code), (_, command)) = re.findall(r"^```(python|)\n(.*?)^```$", text, re.M | re.S)
    (tmp_path / "hf.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "hf", raising=False)
    return dict(word.split("=", 1) for word in shlex.split(command) if "=" in word)


SMALL = {"rounds": 1, "local-steps": 2, "nodes": 1, "store": "disk", "dtype": "float64"}


@pytest.mark.filterwarnings("ignore:.*torch.jit.load.*:DeprecationWarning")
def test_the_guides_model_trains_alike_together_and_one_by_one(
    start: Start, guided: dict[str, str]
) -> None:
    small = guided | SMALL | {"save-predictors": True}
    together, alone = (start(settings=parse(small | {"cohort": how})) for how in ("vmap", "loop"))
    kept = together.personal("person1")
    assert kept
    assert all(name.endswith(".lora.b") for name in kept)
    assert any("query" in name for name in kept)
    assert {name.rpartition(".")[2] for name in together.server()} == {"a", "weight", "bias"}
    assert "w/classifier.weight" in together.server()
    assert not any("embeddings" in name for name in together.server())
    for name, value in kept.items():
        assert abs(value - alone.personal("person1")[name]).max() < 1e-9
    for name, value in together.server().items():
        assert abs(value - alone.server()[name]).max() < 1e-9
    own = read_predictor(together.path / "predictors" / "person1.safetensors")
    x = torch.randint(12, (3, 6))
    assert own.module(x).shape == (3, 2)
    exported = {one.suffix: one for one in export(own, together.path / "exported")}
    assert exported.keys() == {".safetensors", ".pt", ".onnx"}
    torch.testing.assert_close(torch.jit.load(exported[".pt"])(x), own.module(x))


def test_a_language_model_with_tied_weights_and_transposed_layers(start: Start) -> None:
    """GPT-2's layers are Conv1D, and its output layer is its embedding."""
    transformers = pytest.importorskip("transformers")
    from bouquet.models.vision import torchvision

    torchvision()

    def gpt2(shape: tuple[int, ...], classes: int) -> nn.Module:
        words = {"n_positions": shape[0], "vocab_size": classes, "n_embd": 8, "n_layer": 1}
        config = transformers.GPT2Config(
            **words, n_head=2, bos_token_id=0, eos_token_id=0, use_cache=False
        )
        made: nn.Module = transformers.GPT2LMHeadModel(config)
        return made

    config = ModelConfig("hf:gpt2", output="logits")
    bare, full = (
        build(config, (5,), 7, 0, torch.float32, PersonalConfig(split, rank=2), gpt2).eval()
        for split in ("none", "lora")
    )
    x = torch.arange(5)[None]
    assert bare(x).shape == (1, 5, 7)
    assert torch.equal(bare(x), full(x))
    layer: Any = full.get_submodule("transformer.h.0.attn.c_attn")
    assert (layer.lora.a.shape, layer.lora.b.shape) == ((2, 8), (24, 2))
    nn.init.normal_(layer.lora.b)
    assert not torch.equal(bare(x), full(x))
    names = [name for name, _ in full.named_parameters()]
    assert "transformer.wte.weight" in names
    assert "lm_head.weight" not in names
