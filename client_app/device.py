"""What a real device says about itself, in Flower's ``--node-config``."""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from bouquet.bound import ids_in
from bouquet.client_app.policy import Policy, listed, read_policy
from bouquet.core.errors import BadInput
from bouquet.imports import KEYS, is_path, named_paths
from bouquet.storage.files import file_name
from bouquet.storage.privacy import keep_to_owner, private_folder

# Letters of a sentence for the server, which shortens it as well.
LONGEST = 500
# A path that starts at a root, between quotes and with any letters, or else without blanks.
_ROOT = r"(?:[A-Za-z]:)?[\\/](?![\\/])"
_QUOTED_PATH = re.compile(rf"(?<=['\"])(?P<path>{_ROOT}[^'\"]*)(?=['\"])")
_PATH = re.compile(rf"(?<![\w.~\\/-])(?P<path>{_ROOT}[^\s'\",;:()<>]+)")
# What may follow a folder's name where it is the whole of it.
_WHOLE = r"(?=[\\/'\"\s,;:.()<>]|$)"
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
    policy : Policy
        Its owner's other rules.
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
    policy: Policy = field(default_factory=Policy)
    state_recovery: str = "refuse"

    def chosen(self, wished: str) -> str:
        """Where it computes: as its owner says, else as it finds best unless asked for the CPU."""
        return self.computes_on or ("cpu" if wished == "cpu" else "auto")

    def discreet(self, text: str) -> str:
        """A sentence for the server: files by what they are, not by where they are."""
        named = {self.data_path: "data.path", self.weights: "model.weights"}
        named[str(self.folder.absolute())] = "state-dir"
        named = {place: name for place, name in named.items() if Path(place).is_absolute()}
        own = [Path(place) / "x" for place in (*named, str(Path.home()))]
        # Where the name of a folder around them has a blank, nobody else could tell its end.
        around = {str(folder) for place in own for folder in place.parents if " " in str(folder)}
        named = dict.fromkeys(around, "...") | named
        for place in sorted(named, key=len, reverse=True):
            text = re.sub(re.escape(place) + _WHOLE, named[place], text)
        for path in (_QUOTED_PATH, _PATH):
            text = path.sub(lambda found: re.split(r"[\\/]", found["path"].rstrip("\\/"))[-1], text)
        return text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."

    def refuse_strangers(self, values: Mapping[str, object]) -> None:
        """Refuse settings that name what the owner did not allow, before any of it is loaded."""
        from bouquet.stages import named_schemes
        from bouquet.strategies.registry import (
            SCHEMES,  # torch, which starting a node does not need
        )

        allowed = self.policy.named | set(self.allowed)
        # A scheme that is not ours may also be an installed package's, by a plain name.
        named = [("scheme", name) for name in named_schemes(values) if name not in SCHEMES]
        for key, name in [*named, *named_paths(values), *_paths_of_stages(values)]:
            if name not in allowed:
                raise BadInput(
                    f"{key} {name!r} is not allowed on the device of client "
                    f"{', '.join(self.clients)}: its owner lets it in with bouquet node "
                    f"--allow {name}."
                )
        self._refuse_unlisted("scheme", named_schemes(values), self.policy.schemes)

    def refuse_model(self, name: str) -> None:
        """Refuse a model that is not among those the owner lists, if any are listed."""
        if not is_path(name):  # else it was looked at before
            self._refuse_unlisted("model.name", [name], self.policy.models)

    def _refuse_unlisted(self, key: str, names: Sequence[str], allowed: str) -> None:
        for name in names if allowed else ():
            if name not in {*listed(allowed), *self.allowed}:
                raise BadInput(
                    f"{key} {name!r} is not allowed on the device of client "
                    f"{', '.join(self.clients)}: its owner lets it run {allowed}."
                )

    def refuse_work(self, trains: str = "") -> None:
        """Refuse what the owner does not let a server have done at this hour, or today.

        Parameters
        ----------
        trains : str
            The run and the round that it is to train in; empty for other work.
        """
        now = datetime.now().astimezone()
        self.policy.refuse_now(now)
        if trains:
            self.policy.count_round(private_folder(self.folder), trains, now)

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

    @property
    def outcomes(self) -> Path:
        """Which examples the clients' models get right."""
        return self.folder / "outcomes"

    def keep_private(self, named: str) -> None:
        """Let nobody but the owner look at what a run leaves here, also where others once could."""
        keep_to_owner()
        states = self.states(named)
        kept = [self.folder, self.runs, self.predictors, self.outcomes, self.sent]
        for folder in [*kept, *[one for one in states.parents if self.runs in one.parents], states]:
            if folder.exists() or folder == self.folder:
                private_folder(folder)

    def states(self, named: str) -> Path:
        """Where a run's personal state is; the name comes from outside and is never a way out."""
        return self.runs.joinpath(*[file_name(part) for part in named.split("/") if part])


def device(node_config: Mapping[str, object]) -> Device | None:
    """The device a node is, by its config; None for a simulated node, which has no client-id."""
    if "client-id" not in node_config:
        return None
    ids = ids_in(str(node_config["client-id"]), "client-id in the node config")
    folder = str(node_config.get("state-dir", ""))
    if not folder:
        raise BadInput("state-dir must be in the node config of a node with a client-id.")
    allowed = [one.strip() for one in str(node_config.get("allow", "")).split(",")]
    return Device(
        ids,
        Path(folder),
        str(node_config.get("data.path", "")),
        tuple(one for one in allowed if one),
        str(node_config.get("device", "")),
        str(node_config.get("model.weights", "")),
        read_policy(str(node_config.get("policy", ""))),
        _recovery(str(node_config.get("state-recovery", "refuse"))),
    )


def _paths_of_stages(values: Mapping[str, object]) -> list[tuple[str, str]]:
    """The paths that stages' own keys name, such as ``stage2.loss``."""
    from bouquet.stages import is_own

    own = {name: value for name, value in values.items() if is_own(name)}
    with suppress(ValueError, TypeError):  # what is no JSON is refused where it is read
        own |= dict(json.loads(str(values.get("stage-keys") or "{}")))
    said = [(name, str(value)) for name, value in own.items()]
    return [(name, path) for name, path in said if name.partition(".")[2] in KEYS and is_path(path)]


def _recovery(word: str) -> str:
    if word not in RECOVERIES:
        raise BadInput(f"state-recovery must be {' or '.join(RECOVERIES)}, not {word!r}.")
    return word
