"""Weights from a file: what fits is taken, all else is refused in a sentence."""

import pickle
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from bouquet.client_app.predictor import export, read_predictor
from bouquet.core.errors import BadInput
from bouquet.models import ModelConfig, PersonalConfig, build
from bouquet.models.weights import checksum
from bouquet.problem import problem
from bouquet.settings import parse
from tests.conftest import Run

Start = Callable[..., Run]
TINY: dict[str, Any] = {"hidden": 6, "layers": 1}
ROUND: dict[str, Any] = {
    "rounds": 1,
    "local_steps": 1,
    "nodes": 1,
    "lr": 1e-9,
    "store": "disk",
    "data": {"clients": 3},
}


def model(path: Path | str = "", dtype: torch.dtype = torch.float32, **keys: Any) -> nn.Module:
    config = ModelConfig("mlp", **TINY, weights=str(path), **keys)
    return build(config, (64,), 10, 0, dtype)


def trained() -> dict[str, Tensor]:
    """Weights of the model that are not those it starts with."""
    rng = torch.Generator().manual_seed(7)
    own = model().state_dict()
    return {name: torch.randn(value.shape, generator=rng) for name, value in own.items()}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file that fits."""
    save_file(trained(), tmp_path / "base.safetensors")
    return tmp_path / "base.safetensors"


def test_a_model_starts_from_the_file(file: Path) -> None:
    found = model(file).state_dict()
    assert all(torch.equal(found[name], value) for name, value in trained().items())


@pytest.mark.parametrize("there", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_numbers_become_the_runs_type(tmp_path: Path, there: torch.dtype) -> None:
    values = {name: value.to(there) for name, value in trained().items()}
    save_file(values, tmp_path / "base.safetensors")
    found = model(tmp_path / "base.safetensors", torch.float64).state_dict()
    assert all(torch.equal(found[name], value.double()) for name, value in values.items())


def test_what_is_skipped_starts_as_it_would(tmp_path: Path) -> None:
    """An output layer for other classes, and one that this model has not."""
    values = trained() | {"output.weight": torch.zeros(3, 6), "pooler.weight": torch.zeros(2)}
    save_file(values, tmp_path / "base.safetensors")
    found = model(tmp_path / "base.safetensors", weights_skip="output.* pooler.*").state_dict()
    fresh = model().state_dict()
    for name, value in found.items():
        assert torch.equal(value, fresh[name] if name.startswith("output") else values[name])


def test_parts_of_a_split_are_added_to_what_the_file_says(file: Path) -> None:
    """A personal head starts as the shared one: as the file's."""
    config = ModelConfig("mlp", **TINY, weights=str(file))
    found = build(config, (64,), 10, 0, torch.float32, PersonalConfig("additive-head"))
    assert torch.equal(found.get_parameter("output.personal.weight"), trained()["output.weight"])


def without(*names: str) -> dict[str, Tensor]:
    return {name: value for name, value in trained().items() if name not in names}


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            without("output.bias"),
            "does not fit the model 'mlp': it lacks output.bias. model.weights",
        ),
        (trained() | {"head.bias": torch.zeros(1)}, "'mlp': it has besides head.bias"),
        (
            trained() | {"output.weight": torch.zeros(3, 6)},
            r"of another shape is output.weight \(3 x 6 there, 10 x 6 in the model\)",
        ),
        (
            trained() | {"output.bias": torch.zeros(10, dtype=torch.int64)},
            r"of another type is output.bias \(torch.int64 there, torch.float32 in",
        ),
        (
            without("output.bias") | {f"x{n}": torch.zeros(1) for n in range(7)},
            "lacks output.bias; it has besides x0, x1, x2, x3, x4 and 2 more",
        ),
        (
            trained() | {"output.bias": torch.full((10,), 1e300, dtype=torch.float64)},
            "must have finite numbers in torch.float32, which output.bias has not",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    tmp_path: Path, values: dict[str, Tensor], sentence: str
) -> None:
    save_file(values, tmp_path / "base.safetensors")
    with pytest.raises(BadInput, match=f"^model.weights '.*base.safetensors' .*{sentence}"):
        model(tmp_path / "base.safetensors")


def test_a_pickle_is_never_opened(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (pytest.fail, ("it was opened",))

    (tmp_path / "base.bin").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(BadInput, match="must be a safetensors file, the only kind that is read"):
        model(tmp_path / "base.bin")


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(BadInput, match=r"^model.weights 'nowhere' cannot be read: No such file"):
        model("nowhere")


def test_a_pattern_that_skips_nothing_is_refused(file: Path) -> None:
    with pytest.raises(BadInput, match="weights-skip must match names of weights, such as hidden1"):
        model(file, weights_skip="outptu.*")


def test_another_file_than_the_one_that_was_meant_is_refused(file: Path) -> None:
    model(file, weights_sha256=checksum(str(file)))
    with pytest.raises(BadInput, match=f"SHA-256 is 1234 .*not {checksum(str(file))}"):
        model(file, weights_sha256="1234")


# Runs


def test_everybody_starts_from_the_file_and_the_run_remembers_which(
    start: Start, file: Path
) -> None:
    keys = ROUND | {"model": {"name": "mlp", **TINY, "weights": str(file)}}
    run = start(scheme="apfl", **keys)
    for name, value in trained().items():
        assert abs(run.shared(name) - value.numpy()).max() < 1e-6
        assert abs(run.personal("001")[f"v/{name}"] - value.numpy()).max() < 1e-6
    told = tomllib.loads((run.path / "config.toml").read_text())["model"]
    assert told["weights-sha256"] == checksum(str(file))


def test_a_run_goes_on_with_the_same_file_alone(start: Start, file: Path) -> None:
    keys = ROUND | {"model": {"name": "mlp", **TINY, "weights": str(file)}}
    keys |= {"scheme": "fedalt", "personal": {"split": "lora-b", "frozen": "*"}}
    whole, stopped = start(**keys | {"rounds": 2}), start(**keys)
    settings = parse(tomllib_flat(stopped.path)).with_run(rounds=2)
    assert start(settings=settings, folder=stopped.path, resume=True).sha == whole.sha
    save_file({name: value + 1 for name, value in trained().items()}, file)
    with pytest.raises(BadInput, match="must be the file whose SHA-256"):
        start(settings=settings.with_run(rounds=3), folder=stopped.path, resume=True)


def tomllib_flat(folder: Path) -> dict[str, object]:
    from bouquet.storage.runfolder import RunFolder

    return RunFolder(folder).read_keys()


@pytest.mark.filterwarnings("ignore:.*torch.jit.load.*:DeprecationWarning")
def test_an_exported_model_needs_no_file_and_can_be_the_next_ones_start(
    start: Start, file: Path, tmp_path: Path
) -> None:
    keys = ROUND | {"lr": 0.1, "save_predictors": True, "scheme": "fedalt"}
    keys |= {"model": {"name": "mlp", **TINY, "weights": str(file)}}
    run = start(personal={"split": "output", "frozen": "hidden*"}, **keys)
    file.unlink()
    own = read_predictor(run.path / "predictors" / "001.safetensors")
    assert torch.equal(own.weights["hidden1.weight"], trained()["hidden1.weight"])
    exported, *others = export(own, tmp_path / "exported")
    again, x = model(exported), torch.rand(3, 64)
    assert load_file(exported).keys() == trained().keys()
    assert torch.equal(again(x), own.module(x))
    assert {one.suffix for one in others} == {".pt", ".onnx"}
    scripted = torch.jit.load(others[0])
    assert torch.equal(scripted(x), own.module(x))


def test_a_file_that_changes_is_read_anew(file: Path) -> None:
    settings = parse({"model.weights": str(file), "model.hidden": 6, "model.layers": 1})
    first = problem(settings).task.initial
    save_file({name: value + 1 for name, value in trained().items()}, file)
    again = problem(settings).task.initial
    assert all(torch.equal(again[name], value + 1) for name, value in first.items())
