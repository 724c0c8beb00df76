"""A pipeline's stages: which scheme trains in which rounds, with which keys.

``pipeline = "fedavg:100 fedalt:50 finetune:5"`` trains 100 rounds with FedAvg, goes on from its
weights with FedAlt for 50, and lets every client tune its personal part for 5. A stage has the
run's keys but for its own: ``stage2.lr = 0.01`` counts in the second only.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from bouquet.core.config import Scalar
from bouquet.core.errors import BadInput
from bouquet.strategies.registry import SCHEMES, find, lookup

# What the stages of a run have in common.
COMMON = (
    *("seed", "dtype", "nodes", "out", "store", "state-dir", "rounds", "pipeline", "scheme"),
    *("metric", "evaluate-on"),
)


@dataclass(frozen=True)
class Stage:
    """Some rounds of a run.

    Parameters
    ----------
    number : int
        From 1.
    name : str
        What the pipeline calls it.
    scheme : str
        What trains in it.
    first, last : int
        Its rounds.
    """

    number: int
    name: str
    scheme: str
    first: int
    last: int


def stages(pipeline: str, scheme: str, rounds: int) -> tuple[Stage, ...]:
    """A pipeline's stages; a run without one has a single stage."""
    if not pipeline.strip():
        return (Stage(1, find(scheme).name, scheme, 1, rounds),)
    found: list[Stage] = []
    for word in pipeline.split():
        name, _, count = word.rpartition(":")
        trainer = lookup(name)
        if trainer is None or not re.fullmatch(r"[1-9]\d{0,8}", count):
            raise BadInput(
                "pipeline must be stages such as 'fedavg:100 fedalt:50 finetune:5', a scheme and "
                f"its rounds, not {word!r}; the schemes are {', '.join(SCHEMES)}."
            )
        if trainer.pooled:
            raise BadInput(f"pipeline must not have {name}, which is not federated.")
        first = found[-1].last + 1 if found else 1
        trains = (trainer.later if found else "") or name
        called = trainer.name if ":" in name else name
        found.append(Stage(len(found) + 1, called, trains, first, first + int(count) - 1))
    return tuple(found)


def named_schemes(values: Mapping[str, object]) -> list[str]:
    """The schemes that flat keys name: the run's, and those of a pipeline's stages."""
    stages = [word.rpartition(":")[0] for word in str(values.get("pipeline", "")).split()]
    return [name for name in (str(values.get("scheme", "")), *stages) if name]


def own_keys(values: Mapping[str, object], count: int) -> tuple[str, dict[str, object]]:
    """The stages' own keys as one text, and the other keys.

    Parameters
    ----------
    values : mapping
        Flat keys, among them ``stage2.lr`` and the like, or ``stage-keys``, the text itself.
    count : int
        How many stages there are.
    """
    told = values.get("stage-keys", "")
    try:
        own = dict(json.loads(str(told))) if told else {}
    except (ValueError, TypeError) as error:
        raise BadInput(
            f'stage-keys must be a JSON object such as {{"stage2.lr": 0.01}}, not {told!r}.'
        ) from error
    own |= {name: value for name, value in values.items() if is_own(name)}
    rest = {n: v for n, v in values.items() if not is_own(n) and n != "stage-keys"}
    for name in own:
        number, _, key = name.removeprefix("stage").partition(".")
        if not is_own(name) or not 1 <= int(number) <= count:
            raise BadInput(f"{name} names no stage; the pipeline has {count}, from stage1 on.")
        if key in COMMON or key.startswith(("data.", "model.", "join.")):
            raise BadInput(f"{name} cannot be: {key} is the same in all stages.")
    return json.dumps(dict(sorted(own.items()))) if own else "", rest


def is_own(name: str) -> bool:
    """Whether a key is one stage's own."""
    return re.fullmatch(r"stage\d{1,4}\.[a-z].*", name) is not None


def keys_of_stage(text: str, stage: Stage) -> dict[str, Scalar]:
    """The keys that are one stage's own, by their plain names."""
    start = f"stage{stage.number}."
    own = json.loads(text) if text else {}
    return {n.removeprefix(start): v for n, v in own.items() if n.startswith(start)}
