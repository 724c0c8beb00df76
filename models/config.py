"""The keys under ``model``, and what a model says about itself."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from bouquet.core.config import key

Shape = tuple[int, ...]


@dataclass(frozen=True)
class ModelConfig:
    """The keys under ``model``; which of them count depends on the model."""

    name: str = key(
        "", "the model; empty for the data set's own, package.module:name for one of yours"
    )
    hidden: int = key(200, "mlp: units of each hidden layer", low=1)
    layers: int = key(2, "mlp, char-lstm: hidden layers", low=1)
    width: int = key(256, "transformer, char-lstm: numbers a position is turned into", low=1)
    blocks: int = key(4, "transformer: blocks", low=1)
    heads: int = key(4, "transformer: attention heads of a block; they share its width", low=1)
    output: str = key(
        "", "a model of yours that gives an object: the part with the scores, such as logits"
    )
    weights: str = key("", "safetensors file that the model's weights start from; empty for none")
    weights_skip: str = key("", "patterns of names that are not taken from model.weights")
    weights_sha256: str = key(
        "", "the SHA-256 that model.weights must have; empty = whatever it has when the run starts"
    )

    @property
    def bare(self) -> "ModelConfig":
        """The same model for whoever has its weights: no file is read."""
        return replace(self, weights="", weights_skip="", weights_sha256="")


@dataclass(frozen=True)
class Layout:
    """Where a model's named splits are; a module's attribute ``layout``.

    Patterns are separated by spaces and matched as in a shell: ``conv1.* output.*``.

    Parameters
    ----------
    splits : mapping of str to str
        Named splits: patterns over the names of parameters. Without an entry, ``input`` and
        ``output`` are the first and the last layer.
    adapters : str
        Patterns over the names of modules (linear or convolutions) that the split
        ``adapter`` follows with an adapter each; empty if the model takes none.
    split_input : str
        The module (linear or convolution) that reads the input vector or image and that
        ``split-input`` divides; empty if the model cannot be divided so.
    output : str
        The linear module whose output is the model's, for ``additive-head``.
    """

    splits: Mapping[str, str] = field(default_factory=dict)
    adapters: str = ""
    split_input: str = ""
    output: str = "output"
