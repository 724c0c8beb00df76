"""What a real device says about itself, in Flower's ``--node-config``."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bouquet.core.errors import BadInput
from bouquet.imports import named_paths
from bouquet.storage.files import file_name

RECOVERIES = ("refuse", "previous")


@dataclass(frozen=True)
class Device:
    """A node that is no simulation.

    Parameters
    ----------
    clients : tuple of str
        Whose data it has: one client, or those of a gateway.
    folder : Path
        Where it keeps what is personal. The server has no say in it.
    data_path : str
        Its own data; empty for data sets that need none.
    allowed : tuple of str
        The import paths of schemes, models, data, losses, metrics and augmentations that its owner
        lets it load, besides ours.
    computes_on : str
        The device its owner lets it compute on, as the key ``device`` names it; empty for any.
    weights : str
        Its own copy of the file ``model.weights``; empty where it has none.
    state_recovery : str
        What to do where a client's newest state is damaged: ``refuse``, or go on from the
        ``previous`` one.
    """

    clients: tuple[str, ...]
    folder: Path
    data_path: str
    allowed: tuple[str, ...] = ()
    computes_on: str = ""
    weights: str = ""
    state_recovery: str = "refuse"

    def chosen(self, wished: str) -> str:
        """Where it computes: as its owner says, else as it finds best unless asked for the CPU."""
        return self.computes_on or ("cpu" if wished == "cpu" else "auto")

    def refuse_strangers(self, values: Mapping[str, object]) -> None:
        """Refuse settings that name code the owner did not allow, before any of it is loaded."""
        from bouquet.stages import named_schemes
        from bouquet.strategies.registry import (
            SCHEMES,  # torch, which starting a node does not need
        )

        # A scheme that is not ours may also be an installed package's, by a plain name.
        named = [("scheme", name) for name in named_schemes(values) if name not in SCHEMES]
        for key, name in [*named, *named_paths(values)]:
            if name not in self.allowed:
                raise BadInput(
                    f"{key} {name!r} is not allowed on the device of client "
                    f"{', '.join(self.clients)}: its owner lets it in with bouquet node "
                    f"--allow {name}."
                )

    @property
    def runs(self) -> Path:
        """Personal state, a folder a run."""
        return self.folder / "runs"

    @property
    def predictors(self) -> Path:
        """The clients' own models."""
        return self.folder / "predictors"

    @property
    def sent(self) -> Path:
        """The record of what was sent, a file a run."""
        return self.folder / "sent"

    def states(self, named: str) -> Path:
        """Where a run's personal state is; the name comes from outside and is never a way out."""
        return self.runs.joinpath(*[file_name(part) for part in named.split("/") if part])


def device(node_config: Mapping[str, object]) -> Device | None:
    """The device a node is, by its config; None for a simulated node, which has no client-id."""
    if "client-id" not in node_config:
        return None
    ids = [one.strip() for one in str(node_config["client-id"]).split(",")]
    if not all(ids) or len(set(ids)) != len(ids):
        raise BadInput(
            "client-id in the node config must be one id, or several different ones separated by "
            f"commas, not {node_config['client-id']!r}."
        )
    folder = str(node_config.get("state-dir", ""))
    if not folder:
        raise BadInput("state-dir must be in the node config of a node with a client-id.")
    allowed = [one.strip() for one in str(node_config.get("allow", "")).split(",")]
    return Device(
        tuple(sorted(ids)),
        Path(folder),
        str(node_config.get("data.path", "")),
        tuple(one for one in allowed if one),
        str(node_config.get("device", "")),
        str(node_config.get("model.weights", "")),
        _recovery(str(node_config.get("state-recovery", "refuse"))),
    )


def _recovery(word: str) -> str:
    if word not in RECOVERIES:
        raise BadInput(f"state-recovery must be {' or '.join(RECOVERIES)}, not {word!r}.")
    return word
