"""Which parameters are personal: a split is a choice among their names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import nn

from bouquet.core.config import key
from bouquet.core.errors import BadInput
from bouquet.core.trees import is_statistic, plain
from bouquet.models.adapters import add_adapters, add_head, split_input
from bouquet.models.buffers import batch_norms
from bouquet.models.config import Layout
from bouquet.models.lora import add_lora, linear_layers

# The splits that add parts of their own to a model, and what those are called.
ADDED = {
    "adapter": "*.adapter.*",
    "split-input": "*.personal.*",
    "additive-head": "*.personal.* *.mix",
    "lora": "lora.* *.lora.*",
    "lora-b": "lora.b *.lora.b",
}
BATCH_NORM = "batch-norm"
# All that they add, also what is shared of it.
PARTS = ADDED | {"lora-b": ADDED["lora"]}


@dataclass(frozen=True)
class PersonalConfig:
    """The keys under ``personal``."""

    split: str = key(
        "output",
        "personal parameters: input, output, adapter, split-input, additive-head, batch-norm, "
        "lora, lora-b (see `bouquet models NAME`), full, none, or a pattern of names",
    )
    bottleneck: int = key(16, "adapter: numbers a linear layer's adapter goes through", low=1)
    inputs: float = key(
        0.5,
        "split-input: share of the inputs, the last ones, that are read by the personal half",
        low=0,
        high=0.99,
        open_low=True,
    )
    rank: int = key(8, "lora, lora-b: rank of what is added to a layer's weights", low=1)
    lora_alpha: float = key(
        8.0, "lora, lora-b: what is added is scaled by this over the rank", low=0, open_low=True
    )
    lora_target: str = key(
        "", "lora, lora-b: patterns of the names of linear layers; empty = all of them"
    )
    frozen: str = key(
        "",
        "patterns of the model's own parameters that neither train nor travel: * for all, "
        "'* !output.*' for all but some; what a split adds always trains",
    )


def layout_of(module: nn.Module) -> Layout:
    """Where a model's splits are; a model that does not say has a first and a last layer."""
    found = getattr(module, "layout", None)
    return found if isinstance(found, Layout) else Layout(output="")


def named_splits(module: nn.Module) -> dict[str, str]:
    """The patterns of the splits that a model names, and of its batch-norm layers."""
    norms = {BATCH_NORM: " ".join(f"{name}.*".lstrip(".") for name in batch_norms(module))}
    return {**norms, **layout_of(module).splits}


def offers(module: nn.Module) -> list[str]:
    """The names of the splits a model has."""
    layout = layout_of(module)
    added = {
        "adapter": layout.adapters,
        "split-input": layout.split_input,
        "additive-head": layout.output,
        **dict.fromkeys(("lora", "lora-b"), linear_layers(module)),
    }
    own = [name for name in layout.splits if name not in ("input", "output")]
    norms = [BATCH_NORM] if batch_norms(module) else []
    added_ones = [name for name in added if added[name]]
    return ["input", "output", *norms, *added_ones, *own, "full", "none"]


def add_parts(module: nn.Module, model: str, personal: PersonalConfig) -> None:
    """Add what a split needs to a model without it.

    Parameters
    ----------
    module : nn.Module
        Changed in place; most splits leave it as it is.
    model : str
        Its name.
    personal : PersonalConfig
        Which split, and its sizes.
    """
    layout = layout_of(module)
    if personal.split in ADDED and personal.split not in offers(module):
        raise BadInput(
            f"personal.split must be one of {', '.join(map(repr, offers(module)))} or a pattern "
            f"for the model {model!r}, not {personal.split!r}."
        )
    match personal.split:
        case "adapter":
            add_adapters(module, layout, personal.bottleneck)
        case "split-input":
            split_input(module, layout, personal.inputs)
        case "additive-head":
            add_head(module, layout)
        case "lora" | "lora-b":
            add_lora(module, personal.rank, personal.lora_alpha, personal.lora_target)


def frozen_names(names: Sequence[str], personal: PersonalConfig) -> frozenset[str]:
    """The parameters that neither train nor travel: everybody has them from the start.

    Parameters
    ----------
    names : sequence of str
        All parameters, from input to output.
    personal : PersonalConfig
        Which are frozen, and the split, whose own parts never are.
    """
    words = personal.frozen.split()
    for word in words:
        if not _matching(names, word.removeprefix("!")):
            raise BadInput(
                f"personal.frozen must be patterns that match some of {_listed(names)}, "
                f"not {word!r}."
            )
    found = _matching(names, *(word for word in words if not word.startswith("!")))
    found -= _matching(names, *(word[1:] for word in words if word.startswith("!")))
    found -= _matching(names, *PARTS.get(personal.split, "").split())
    if len(found) == len(names):
        raise BadInput(
            f"personal.frozen must leave something to train, which {personal.frozen!r} does not "
            f"with the split {personal.split!r}."
        )
    return found


def _matching(names: Sequence[str], *patterns: str) -> frozenset[str]:
    return frozenset(n for n in names if any(fnmatchcase(plain(n), one) for one in patterns))


def personal_names(
    names: Sequence[str], split: str, named: Mapping[str, str] | None = None
) -> frozenset[str]:
    """The personal ones among a model's parameters and statistics.

    Parameters
    ----------
    names : sequence of str
        All parameters, from input to output, and all statistics.
    split : str
        ``full`` or ``none`` for all or none, a split's name, or patterns such as
        ``conv1.* output.*``.
    named : mapping of str to str, optional
        The patterns of splits the model names itself; without one, ``input`` and ``output``
        are the first and the last layer, and ``batch-norm`` the layers with a running mean, if any.
    """
    if split == "none":
        return frozenset()
    if split == "full":
        return frozenset(names)
    learned = [name for name in names if not is_statistic(name)]
    layers = {"input": _beside(names, learned[0]), "output": _beside(names, learned[-1])}
    means = [name for name in names if plain(name).rpartition(".")[2] == "running_mean"]
    layers[BATCH_NORM] = " ".join(_beside(names, name) for name in means)
    patterns = {**layers, **ADDED, **(named or {})}.get(split, split).split()
    found = _matching(names, *patterns)
    if not found and split != BATCH_NORM:
        raise BadInput(
            "personal.split must be 'full', 'none', a split's name (see bouquet models NAME) or a "
            f"pattern that matches one of {_listed(names)}, not {split!r}."
        )
    return found


def _beside(names: Sequence[str], one: str) -> str:
    """The parameters of the same layer."""
    layer, _, _ = one.rpartition(".")
    return " ".join(plain(name) for name in names if name.rpartition(".")[0] == layer)


def _listed(names: Sequence[str]) -> str:
    """The names, or the first and last of many."""
    called = [plain(name) for name in names]
    shown = called if len(called) <= 12 else [*called[:6], "...", *called[-4:]]
    return ", ".join(shown)
