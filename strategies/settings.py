"""Everything a run is told, read from flat keys and checked.

The same keys come from the command line, a TOML file or Flower's run config, and
:meth:`Settings.flat` writes every one of them, resolved, so that a run folder's
``config.toml`` says all there is to say.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from data import DATASETS, DataConfig
from models import ModelConfig, PersonalConfig
from strategies import SCHEMES
from strategies.core.config import Key, Scalar, key, keys_of, read, refuse_unknown, write
from strategies.core.errors import BadInput
from strategies.core.scheme import Scheme

DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class RunConfig:
    """The keys that have no prefix."""

    scheme: str = key("apfl", "the method; see `bouquet schemes`", choices=tuple(SCHEMES))
    rounds: int = key(20, "rounds of training", low=1)
    clients_per_round: int = key(0, "clients that train in a round; 0 = all", low=0)
    local_steps: int = key(10, "gradient steps a client takes in a round", low=0)
    local_epochs: int = key(0, "passes over its data instead of local-steps", low=0)
    batch_size: int = key(20, "examples in a step; 0 = all the client has", low=0)
    lr: float = key(0.1, "local learning rate", low=0.0, open_low=True)
    weights: str = key(
        "auto",
        "a client's weight in the mean; auto = the scheme's own",
        choices=("auto", "uniform", "examples"),
    )
    grad_clip: float = key(0.0, "largest gradient norm; 0 = any", low=0.0)
    weight_decay: float = key(0.0, "pull of the weights towards 0; 0 = none", low=0.0)
    seed: int = key(0, "of every random choice", low=0)
    dtype: str = key("float32", "of weights and data", choices=tuple(DTYPES))
    eval_every: int = key(
        5, "evaluate all clients every n rounds and at the end; 0 = only at the end", low=0
    )
    store: str = key(
        "auto",
        "where personal state lives; auto = memory on inline, disk on ray",
        choices=("auto", "memory", "context", "disk"),
    )
    state_dir: str = key("", "folder of the disk store; empty = in the run's folder")
    nodes: int = key(0, "nodes that host the clients of a simulation; 0 = one per worker", low=0)
    save_predictors: bool = key(False, "write every client's final model to the run's folder")
    round_timeout: float = key(
        0.0, "seconds to wait for a round's replies; 0 = as long as it takes", low=0.0
    )
    share_label_counts: bool = key(
        False, "let nodes tell how many examples of each label they hold"
    )
    cohort: str = key(
        "auto",
        "train a node's clients as one computation or one by one",
        choices=("auto", "vmap", "loop"),
    )
    cohort_chunk: int = key(0, "most clients in one computation; 0 = by the model's size", low=0)
    out: str = key("", "the run's folder; empty = a new one under runs/")


@dataclass(frozen=True)
class Settings:
    """A whole configuration.

    Parameters
    ----------
    run, data, model, personal : RunConfig, DataConfig, ModelConfig, PersonalConfig
        The keys without a prefix, and those under ``data``, ``model`` and ``personal``.
    schemes : tuple
        Every scheme's own config, in the order of the registry.
    """

    run: RunConfig
    data: DataConfig
    model: ModelConfig
    personal: PersonalConfig
    schemes: tuple[Any, ...]

    @property
    def scheme(self) -> Scheme:
        """The scheme the run trains with."""
        return SCHEMES[self.run.scheme]

    @property
    def scheme_config(self) -> Any:
        """That scheme's own config."""
        return self.schemes[list(SCHEMES).index(self.run.scheme)]

    @property
    def weights(self) -> str:
        """How uploads are weighted, with the scheme's own choice where the user made none."""
        return self.scheme.weights if self.run.weights == "auto" else self.run.weights

    @property
    def dtype(self) -> torch.dtype:
        """The type of weights and data."""
        return DTYPES[self.run.dtype]

    def flat(self) -> dict[str, Scalar]:
        """Every key and its value."""
        flat = write(self.run) | write(self.data, "data") | write(self.model, "model")
        flat |= write(self.personal, "personal")
        for name, config in zip(SCHEMES, self.schemes, strict=True):
            flat |= write(config, name)
        return flat

    def with_run(self, **changes: Any) -> "Settings":
        """The same settings but for some keys without a prefix."""
        return replace(self, run=replace(self.run, **changes))


def all_keys() -> list[Key]:
    """Every key there is."""
    keys = [*keys_of(RunConfig), *keys_of(DataConfig, "data"), *keys_of(ModelConfig, "model")]
    keys += keys_of(PersonalConfig, "personal")
    for name, scheme in SCHEMES.items():
        keys += keys_of(scheme.config, name)
    return keys


def parse(values: Mapping[str, object]) -> Settings:
    """Settings from flat keys: unknown ones refused, types and ranges checked, gaps filled."""
    refuse_unknown(values, (one.name for one in all_keys()))
    run = read(RunConfig, values)
    data = read(DataConfig, values, "data")
    model = read(ModelConfig, values, "model")
    if run.local_epochs:
        if run.local_steps not in (0, RunConfig().local_steps):
            raise BadInput(
                "Set local-steps or local-epochs, not both: they are "
                f"{run.local_steps} and {run.local_epochs}."
            )
        run = replace(run, local_steps=0)
    elif not run.local_steps:
        raise BadInput("local-steps and local-epochs are both 0: one of them must be positive.")
    return Settings(
        run=run,
        data=data,
        model=replace(model, name=model.name or DATASETS[data.name].model),
        personal=read(PersonalConfig, values, "personal"),
        schemes=tuple(read(s.config, values, name) for name, s in SCHEMES.items()),
    )
