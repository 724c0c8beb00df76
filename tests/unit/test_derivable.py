"""What a server can compute of a client's personal state, for those schemes that say so."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from flwr.app import Context, Message, MessageType

from bouquet.client_app.stores import read_state
from bouquet.core.trees import Tree
from bouquet.engines import LocalNodes
from bouquet.flower import wire
from bouquet.server_app.loop import run
from bouquet.settings import parse
from bouquet.storage.runfolder import RunFolder
from bouquet.strategies import SCHEMES
from tests.conftest import kebab
from tests.unit.test_marker import answering_as_ours

LR = 0.05
KEYS: dict[str, Any] = {
    "rounds": 4,
    "local_steps": 3,
    "lr": LR,
    "nodes": 4,  # a client each, so that no sum hides what it sends
    "clients_per_round": 3,
    "dtype": "float64",
    "data": {"name": "synthetic", "clients": 4},
    "store": "disk",
    "eval_every": 0,
}
# What went to a client and what came back, round after round.
Seen = list[tuple[Tree, Tree]]


def observed(folder: Path, **keys: Any) -> dict[str, Seen]:
    """All that a server sees of each client's training."""
    seen: dict[str, Seen] = defaultdict(list)

    def watch(
        message: Message, context: Context, follow: Callable[[Message, Context], Message]
    ) -> Message:
        reply = follow(message, context)
        if message.metadata.message_type == MessageType.TRAIN:
            (client,) = cast(list[str], reply.content.config_records[wire.NOTE]["clients"])
            sides = (one.content.array_records[wire.ARRAYS] for one in (message, reply))
            down, up = map(wire.unpack, sides)
            seen[client].append((down, up))
        return reply

    with closing(LocalNodes(4, answering_as_ours(watch))) as grid:
        run(grid, parse(kebab(KEYS | keys)), RunFolder(folder), engine="inline")
    return seen


def field(tree: Tree, name: str) -> Tree:
    return {n.partition("/")[2]: v for n, v in tree.items() if n.startswith(f"{name}/")}


def kept(folder: Path, client: str, name: str) -> Tree:
    return field(read_state(folder / "state" / f"{client}.safetensors").tensors, name)


def added_up(moves: Sequence[Tree], scale: float = 1.0) -> Tree:
    return {name: scale * torch.stack([one[name] for one in moves]).sum(0) for name in moves[0]}


def moved(seen: Seen) -> list[Tree]:
    return [
        {name: value - field(down, "w")[name] for name, value in field(up, "w").items()}
        for down, up in seen
    ]


def theta_of_plsgd(seen: Seen) -> Tree:
    return added_up(moved(seen), 0.7)


def control_variate(seen: Seen) -> Tree:
    return added_up([field(up, "c") for _, up in seen])


def theta_of_pfedme(strength: float) -> Callable[[Seen], Tree]:
    """The last step was w_i = w − lr λ (w − θ), if it was the only one; or lr λ is 1."""

    def solved(seen: Seen) -> Tree:
        down, up = (field(one, "w") for one in seen[-1])
        return {n: w - (w - up[n]) / (LR * strength) for n, w in down.items()}

    return solved


CASES: dict[str, tuple[dict[str, Any], str, Callable[[Seen], Tree]]] = {
    "plsgd": (
        {"scheme": "plsgd", "plsgd": {"alpha": 0.7}, "grad_clip": 0.5, "weight_decay": 0.01},
        "theta",
        theta_of_plsgd,
    ),
    "scaffold": ({"scheme": "scaffold"}, "c", control_variate),
    "pfedme, one local step": (
        {"scheme": "pfedme", "local_steps": 1},
        "theta",
        theta_of_pfedme(15.0),
    ),
    "pfedme, lr lambda = 1": (
        {"scheme": "pfedme", "pfedme": {"lambda": 1 / LR, "inner_lr": 0.01}},
        "theta",
        theta_of_pfedme(1 / LR),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_called_derivable_can_be_computed_from_what_a_client_sends(
    tmp_path: Path, case: str
) -> None:
    keys, name, compute = CASES[case]
    folder = tmp_path / "run"
    seen = observed(folder, **keys)
    assert len(seen) == 4
    assert SCHEMES[keys["scheme"]].derivable.startswith(f"{name}_i")
    for client, exchanged in seen.items():
        own, found = kept(folder, client, name), compute(exchanged)
        assert own.keys() == found.keys()
        assert max(float(value.abs().max()) for value in own.values()) > 1e-3
        for n, value in own.items():
            torch.testing.assert_close(found[n], value, rtol=1e-9, atol=1e-12)


def test_of_pfedme_with_more_steps_that_is_no_longer_so(tmp_path: Path) -> None:
    """Of the conditions that the scheme names, neither can be left out."""
    seen = observed(tmp_path / "run", scheme="pfedme")
    for client, exchanged in seen.items():
        own, found = kept(tmp_path / "run", client, "theta"), theta_of_pfedme(15.0)(exchanged)
        assert any(float((found[n] - value).abs().max()) > 1e-3 for n, value in own.items())


def test_a_scheme_that_keeps_what_it_sent_says_so() -> None:
    for scheme in SCHEMES.values():
        if scheme.sent:
            assert scheme.exception or scheme.derivable, scheme.name
        if scheme.keeps == "nothing":
            assert not scheme.derivable, scheme.name


@pytest.mark.parametrize("scheme", ["apfl", "ditto", "fedsim", "fedalt", "fedrep", "fedrod"])
def test_schemes_for_which_nothing_is_known_say_nothing(scheme: str) -> None:
    assert not SCHEMES[scheme].derivable


@pytest.mark.parametrize(
    ("scheme", "share"), [("apfl", 0.5), ("ditto", 1.0)], ids=["apfl", "ditto"]
)
def test_a_first_local_step_starts_from_what_everyone_knows(
    tmp_path: Path, scheme: str, share: float
) -> None:
    """docs/security.md: with one local step, v_i of round 1 moves as w_i does; not afterwards."""
    for rounds in (1, 2):
        folder = tmp_path / str(rounds)
        keys = {"scheme": scheme, "rounds": rounds, "local_steps": 1, "clients_per_round": 0}
        for client, exchanged in observed(folder, **keys).items():
            own, start = kept(folder, client, "v"), field(exchanged[0][0], "w")
            move = added_up(moved(exchanged), share)
            off = max(float((start[n] + move[n] - v).abs().max()) for n, v in own.items())
            assert (off < 1e-12) == (rounds == 1)
