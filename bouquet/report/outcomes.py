"""What a run's clients get right, or lose, example by example, and what follows from it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bouquet.core.measure import ACCURATE, Measure, told
from bouquet.report.digits import with_interval
from bouquet.report.verdict import advise, compare, default_model, holm, mean_interval, verdict
from bouquet.storage.files import OUTCOMES, unseal
from bouquet.storage.runs import Run

Floats = NDArray[np.floating]
Row = dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """What two models of one client get right, or lose.

    Parameters
    ----------
    client : str
        Whose.
    right : dict of str to array
        By ``test_shared``, ``test_personal``, ``validation_shared``, ``validation_personal``.
    examples : dict of str to str
        A hash of the examples of each part: only what is about the same ones is compared.
    measure : Measure
        What the numbers are.
    """

    client: str
    right: dict[str, Floats]
    examples: dict[str, str]
    measure: Measure = ACCURATE


@dataclass(frozen=True)
class Verdicts:
    """The verdict on every client of a run, and in all.

    Parameters
    ----------
    run : Run
        Which.
    rows : list of dict
        A row a client.
    local : str
        The name of the Local run compared with; empty without.
    measure : Measure
        What models are compared by on each example: a metric, or the loss.
    """

    run: Run
    rows: list[Row]
    local: str = ""
    measure: Measure = ACCURATE

    def count(self, word: str, column: str = "verdict") -> int:
        """How many clients have a verdict."""
        return sum(row.get(column) == word for row in self.rows)

    def sentences(self) -> list[str]:
        """What the verdicts come to, in words."""
        said = [self._spoken("personal", "shared", "verdict", "change")]
        if self.local:
            said.append(self._spoken("personal", "Local", "verdict_local", "change_local"))
        advised = [row for row in self.rows if row.get("advice")]
        if advised:
            kinds = dict.fromkeys(row["advice"] for row in advised)
            counts = ", ".join(
                f"{sum(row['advice'] == kind for row in advised)} {kind}" for kind in kinds
            )
            name = self.measure.name
            means = {
                what: self._number(float(np.mean([row[f"{what}_{name}"] for row in advised])))
                for what in ("advised", "shared", "personal")
            }
            gives = "is right on" if self.measure == ACCURATE else f"gives a mean {name} of"
            sure = sum(row["advice_sure"] for row in advised)
            said.append(
                f"To deploy, chosen on validation examples: {counts}. For {sure} of these "
                f"{len(advised)} clients the examples show it (p at most 5%); the others have too "
                "few that differ and get the default. On the test examples that "
                f"choice {gives} {means['advised']} (always shared {means['shared']}, always "
                f"personal {means['personal']}; means over clients)."
            )
        return said

    def _number(self, value: float) -> str:
        return f"{value:.2%}" if self.measure == ACCURATE else f"{value:.4g}"

    def _spoken(self, one: str, other: str, column: str, change: str) -> str:
        gaps = [row[change] for row in self.rows if change in row]
        low, high = mean_interval(gaps)
        helped, hurt = self.count("helped", column), self.count("hurt", column)
        perhaps = [self.count(f"perhaps {word}", column) for word in ("helped", "hurt")]
        unclear = self.count("no difference shown", column)
        way = "decrease" if self.measure.lower_is_better else "change"
        return (
            f"The {one} model against {other}, of {len(gaps)} clients: {helped} helped and {hurt} "
            f"hurt with 95% confidence for all of them together; {perhaps[0]} more helped and "
            f"{perhaps[1]} more hurt, each by its own test alone; {unclear} without a difference "
            f"shown. Mean {way} in {self.measure.name} "
            f"{with_interval(float(np.mean(gaps)), low, high)}, a 95% interval."
        )


def read_outcomes(run: Path) -> dict[str, Outcome]:
    """The outcomes in a run's folder by client; empty where none were saved."""
    found = {}
    for path in sorted((run / "outcomes").glob("*.safetensors")):
        header, tensors = unseal(path, OUTCOMES)
        parts = {k: v for k, v in header.items() if k in ("test", "validation")}
        right = {name: value.numpy() for name, value in tensors.items()}
        measure = told({"metric": json.loads(header.get("measure", "null"))})
        found[header["client"]] = Outcome(header["client"], right, parts, measure)
    return found


def verdicts(run: Run, others: Sequence[Run]) -> Verdicts | None:
    """The verdict on each client, also against Local where a run of it has the same examples."""
    own = read_outcomes(run.path)
    if not own:
        return None
    local, theirs = _alone(run, own, others)
    sizes = {row["client"]: row.get("train_examples") for row in run.clients}
    default = _default(list(own.values()))
    rows = [
        _row(one, theirs.get(client), sizes.get(client), default)
        for client, one in sorted(own.items())
    ]
    _judge(rows, "")
    _judge([row for row in rows if "p_local" in row], "_local")
    return Verdicts(run, rows, local, next(iter(own.values())).measure)


def _alone(
    run: Run, own: Mapping[str, Outcome], others: Sequence[Run]
) -> tuple[str, dict[str, Outcome]]:
    """The name and outcomes of a run that trained the same clients alone, if there is one."""
    for other in others if run.scheme != "local" else ():
        theirs = read_outcomes(other.path) if other.scheme == "local" else {}
        if any(_same(one, theirs.get(client), "test") for client, one in own.items()):
            return other.name, theirs
    return "", {}


def _same(one: Outcome, other: Outcome | None, part: str) -> bool:
    """Whether two outcomes are about the same examples, and the same of them."""
    if other is None or one.measure != other.measure:
        return False
    return one.examples.get(part) == other.examples.get(part)


def _default(own: Sequence[Outcome]) -> str:
    """The model for clients whose own validation examples are too few to tell."""
    judged = [one.right for one in own if "validation" in one.examples]
    return default_model(
        [right["validation_shared"] for right in judged],
        [right["validation_personal"] for right in judged],
        own[0].measure,
    )


def _row(own: Outcome, local: Outcome | None, train_examples: object, default: str) -> Row:
    right, measure = own.right, own.measure
    pair = compare(right["test_shared"], right["test_personal"], measure)
    row: Row = {
        "client": own.client,
        "train_examples": train_examples,
        "test_examples": pair.examples,
        f"shared_{measure.name}": float(right["test_shared"].mean()),
        f"personal_{measure.name}": float(right["test_personal"].mean()),
        "change": pair.change,
        "change_low": pair.low,
        "change_high": pair.high,
        "better_on": pair.better,
        "worse_on": pair.worse,
        "p": pair.p,
        "leans": pair.leans,
    }
    candidates = {"shared": right, "personal": right}
    if local is not None and _same(own, local, "test"):
        alone = compare(local.right["test_personal"], right["test_personal"], measure)
        row |= {
            f"local_{measure.name}": float(local.right["test_personal"].mean()),
            "change_local": alone.change,
            "better_on_local": alone.better,
            "worse_on_local": alone.worse,
            "p_local": alone.p,
            "leans_local": alone.leans,
        }
        if _same(own, local, "validation"):
            candidates["local"] = local.right
    if "validation" in own.examples:
        row |= _advice(candidates, default, measure)
    return row


def _advice(candidates: dict[str, dict[str, Floats]], default: str, measure: Measure) -> Row:
    """The model to deploy, chosen on validation examples, and what it gives on the test's."""
    whose = {name: "personal" if name == "local" else name for name in candidates}
    advice = advise(
        {name: right[f"validation_{whose[name]}"] for name, right in candidates.items()},
        default,
        measure,
    )
    chosen = candidates[advice.model]
    return {
        "validation_examples": len(chosen["validation_shared"]),
        "advice": advice.model,
        "advice_p": advice.p,
        "advice_sure": advice.sure,
        f"advised_{measure.name}": float(chosen[f"test_{whose[advice.model]}"].mean()),
    }


def _judge(rows: list[Row], suffix: str) -> None:
    """Add adjusted p-values and verdicts to rows that have p-values."""
    adjusted = holm([row[f"p{suffix}"] for row in rows])
    for row, p in zip(rows, adjusted, strict=True):
        row[f"p_holm{suffix}"] = p
        row[f"verdict{suffix}"] = verdict(row.pop(f"leans{suffix}"), row[f"p{suffix}"], p)
