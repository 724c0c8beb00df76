"""A client's own model in a file that says how to build it: of use without server or data."""

import json
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from bouquet.core.config import read, write
from bouquet.core.errors import BadInput
from bouquet.core.measure import CLASSES, SEVERAL, VALUES
from bouquet.core.task import Task
from bouquet.core.trees import Tree
from bouquet.data.federated import FederatedData, numbered
from bouquet.data.prepare import Preparation, Prepared
from bouquet.models import ModelConfig, PersonalConfig, build, filled
from bouquet.settings import DTYPES, Settings
from bouquet.storage.atomic import write_atomically
from bouquet.storage.files import BadFile, file_name, seal, unseal

FORMAT = "bouquet-predictor-1"


@dataclass(frozen=True)
class Predictor:
    """A client's own model.

    Parameters
    ----------
    client, scheme : str
        Whose it is, and what trained it.
    round : int
        The round after which it was written.
    shape : tuple of int
        Of one example.
    dtype : torch.dtype
        Of examples: whole numbers for text.
    weights : Tree
        The model's parameters and buffers.
    module : Module
        The model with these weights. It takes inputs as they were measured: what
        ``data.missing`` and ``data.scale`` do to them is part of it.
    names : tuple of str
        What the classes, or the values or labels predicted, are called.
    inputs : tuple of str
        What the inputs are called, if they have names.
    preparation : str
        What is done to inputs, as the file's header has it; empty for nothing.
    targets : str
        What is predicted: ``classes``, ``values`` or ``several`` labels.
    """

    client: str
    scheme: str
    round: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    weights: Tree
    module: nn.Module
    names: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    preparation: str = ""
    targets: str = CLASSES

    def classes(self, x: Tensor) -> Tensor:
        """The most likely class of each example; of text, of each position."""
        return self.output(x).argmax(dim=-1)

    def words(self, x: Tensor) -> list[str]:
        """What is predicted of each example, as a line of text.

        A class's name (of text, a name a position), values with commas between, or the names of
        the labels that are more likely than not with semicolons between.
        """
        said = self.output(x)
        if self.targets == VALUES:
            return [",".join(f"{value:.7g}" for value in row) for row in said.tolist()]
        if self.targets == SEVERAL:
            return [
                ";".join(name for name, score in zip(self.names, row, strict=True) if score > 0)
                for row in said.tolist()
            ]
        rows = said.argmax(dim=-1).reshape(len(x), -1).tolist()
        return [" ".join(self.names[label] for label in row) for row in rows]

    def output(self, x: Tensor) -> Tensor:
        """What the model says of each example: values, or scores of classes or labels."""
        if x.shape[1:] != self.shape:
            raise BadInput(f"Examples must have the shape {self.shape}, not {tuple(x.shape[1:])}.")
        filled = x.isnan() & ('"fill"' in self.preparation)
        if not (x.isfinite() | filled).all():
            raise BadInput("Examples must have neither gaps (NaN) nor infinite numbers.")
        with torch.no_grad():
            found: Tensor = self.module(x.to(self.dtype))
        return found


def save_predictor(
    folder: Path,
    client: str,
    round_: int,
    weights: Tree,
    settings: Settings,
    task: Task,
    data: FederatedData,
) -> None:
    """Write a client's own model, with how its inputs are made and its classes are called."""
    x, weights = data.x, {**task.frozen, **weights}
    personal = replace(settings.personal, split=settings.split)
    header = {
        "client": client,
        "scheme": settings.scheme.name,
        "round": str(round_),
        "seed": str(settings.run.seed),
        "dtype": settings.run.dtype,
        "text": json.dumps(not x.is_floating_point()),
        "shape": json.dumps(list(x.shape[1:])),
        "classes": str(task.classes),
        "class-names": json.dumps(data.names),
        "input-names": json.dumps(data.inputs),
        "model": json.dumps(write(settings.model.bare, "model") | write(personal, "personal")),
    }
    if task.targets != CLASSES:
        header["targets"] = task.targets
    # Not among the tensors: those are the model's own, as anybody's load_state_dict wants them.
    if client in data.prepared:
        header["preparation"] = data.prepared[client].to_json()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{file_name(client)}.safetensors"
    write_atomically(path, seal(FORMAT, header, task.state_dict(weights)))


def read_predictor(path: Path) -> Predictor:
    """Read a client's own model, or refuse the file by name."""
    words, weights = unseal(path, FORMAT)
    if not int(words["classes"]):
        raise BadInput(f"{path} is of a quadratic problem, which predicts nothing.")
    keys, dtype = json.loads(words["model"]), DTYPES[words["dtype"]]
    shape = tuple(json.loads(words["shape"]))
    module = build(
        read(ModelConfig, keys, "model"),
        shape,
        int(words["classes"]),
        int(words["seed"]),
        dtype,
        read(PersonalConfig, keys, "personal"),
    )
    try:
        filled(module, weights)
    except RuntimeError as error:
        raise BadFile(f"{path} does not fit its model; it was left as it is.") from error
    kind = torch.int64 if json.loads(words["text"]) else dtype
    prepared = words.get("preparation", "")
    if prepared:
        module = Prepared(Preparation.from_json(prepared, shape, dtype), module)
    return Predictor(
        words["client"],
        words["scheme"],
        int(words["round"]),
        shape,
        kind,
        weights,
        module.eval(),
        tuple(json.loads(words.get("class-names", "[]"))) or numbered(int(words["classes"])),
        tuple(json.loads(words.get("input-names", "[]"))),
        prepared,
        words.get("targets", CLASSES),
    )


def written(folder: Path, client: str) -> Path | None:
    """The file of a client's own model in a run's folder or a device's, if one was written."""
    name = f"{file_name(client)}.safetensors"
    places = [folder / "predictors" / name, *sorted(folder.glob(f"devices/*/predictors/{name}"))]
    return next((place for place in places if place.exists()), None)


def find_predictor(folder: Path, client: str) -> Path:
    """A client's own model in a run's folder, or in a device's."""
    place = written(folder, client)
    if place is None:
        raise BadInput(
            f"{folder} has no model of client {client!r} in predictors/; a run writes them with "
            "-c save-predictors=true."
        )
    return place


def export(predictor: Predictor, folder: Path) -> list[Path]:
    """Write a model for others: its weights, TorchScript, and ONNX if its library is there.

    A user's own model may not allow the last two, which then are left out. Returns the files
    written.
    """
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    base = folder / file_name(predictor.client)
    weights = base.with_name(f"{base.name}.safetensors")
    words = {
        "client": predictor.client,
        "scheme": predictor.scheme,
        "class-names": json.dumps(predictor.names),
        "input-names": json.dumps(predictor.inputs),
    }
    words |= {"preparation": predictor.preparation} if predictor.preparation else {}
    words |= {"targets": predictor.targets} if predictor.targets != CLASSES else {}
    save_file(predictor.weights, weights, words)
    written = [weights]
    for ending, write_as in ((".pt", _torchscript), (".onnx", _onnx)):
        file = base.with_name(base.name + ending)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch would rather have its newer formats
                write_as(predictor, file)
        except OSError:
            raise
        except Exception:  # whatever a user's own model raises when it is traced
            continue
        written.append(file)
    return written


def _torchscript(predictor: Predictor, file: Path) -> None:
    traced = torch.jit.trace(predictor.module, _zeros(predictor, 2))
    other = _zeros(predictor, 3)
    torch.testing.assert_close(traced(other), predictor.module(other))
    torch.jit.save(traced, file)


def _onnx(predictor: Predictor, file: Path) -> None:
    torch.onnx.export(
        predictor.module,
        (_zeros(predictor, 2),),
        file,
        input_names=["x"],
        output_names=["y"],
        dynamic_axes={"x": {0: "examples"}, "y": {0: "examples"}},
        dynamo=False,  # the newer exporter needs yet another library
    )


def _zeros(predictor: Predictor, examples: int) -> Tensor:
    return torch.zeros(examples, *predictor.shape, dtype=predictor.dtype)
