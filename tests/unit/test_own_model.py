"""Models by import path, and the example in docs/models.md."""

import logging
import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bouquet.core.errors import BadInput
from bouquet.models import ModelConfig, PersonalConfig
from bouquet.models.summary import shares
from bouquet.problem import problem
from bouquet.settings import parse
from tests.conftest import Run

DOCUMENT = Path(__file__).parents[2] / "docs" / "models.md"
Write = Callable[[str], None]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write the file a model's path names."""

    def write(code: str) -> None:
        (tmp_path / "mynets.py").write_text(textwrap.dedent(code))
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, "mynets", raising=False)

    return write


def blocks(language: str) -> list[str]:
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", DOCUMENT.read_text(), re.M | re.S)
    return [text for kind, text in fences if kind == language]


def commands() -> list[list[str]]:
    lines = [line for block in blocks("") for line in block.splitlines()]
    return [shlex.split(line.removeprefix("PYTHONPATH=. ")) for line in lines]


def test_the_documented_model_trains_as_documented(
    module: Write, start: Callable[..., Run]
) -> None:
    (code,) = blocks("python")
    module(code)
    (words,) = [words for words in commands() if words[1] == "simulate"]
    keys = dict(word.split("=", 1) for word in words if "=" in word)
    assert keys["model.name"] == "mynets:Net"
    small = {"rounds": 1, "local-steps": 1, "data.clients": 3, "store": "disk"}
    run = start(settings=parse(keys | small))
    kept = {name.removeprefix("v/") for name in run.personal("000")}
    assert kept == {"first.weight", "first.bias", "last.weight", "last.bias"}


def test_the_documented_model_has_every_split(module: Write) -> None:
    (code,) = blocks("python")
    module(code)
    rows = shares(ModelConfig("mynets:Net"), PersonalConfig(), (64,), 10, [])
    personal = {row.split: row.personal for row in rows}
    assert personal == {
        "input": 65 * 32,
        "output": 330,
        "adapter": 2 * (33 * 16 + 17 * 32),
        "split-input": 33 * 16,
        "additive-head": 331,
        "lora": 8 * (64 + 32 + 32 + 32 + 32 + 10),
        "lora-b": 8 * (32 + 32 + 10),
        "ends": 65 * 32 + 330,
        "full": sum(row.shared for row in rows if row.split == "none"),
        "none": 0,
    }


NET = "import torch\nfrom torch import nn\n\ndef Net(input_shape, classes):\n    "


@pytest.mark.parametrize(
    ("code", "path", "sentence"),
    [
        ("", "nowhere.nets:Net", "cannot be imported: No module named 'nowhere'"),
        ("", "mynets:Net", "cannot be imported: module 'mynets' has no attribute 'Net'"),
        ("", "mynets:", "cannot be imported"),
        ("", ":Net", "cannot be imported"),
        ("def", "mynets:Net", "cannot be imported: .*syntax"),
        ("1 / 0", "mynets:Net", "cannot be imported: division by zero"),
        ("Net = 3", "mynets:Net", "must name a class or a function, not 3"),
        ("def Net(): pass", "mynets:Net", "must take an example's shape .*: too many"),
        ("def Net(a, b, c): pass", "mynets:Net", "must take .*missing a required argument: 'c'"),
        (NET + "return 3", "mynets:Net", "must give a torch.nn.Module, not int"),
        (NET + "return nn.ReLU()", "mynets:Net", "must have parameters to train, and has none"),
        (
            NET + "return nn.Linear(input_shape, classes)",
            "mynets:Net",
            "fails for examples of shape 64 and 10 classes: TypeError: ",
        ),
        (
            NET + "a = nn.BatchNorm1d(64, affine=False)\n    "
            "return nn.Sequential(a, a, nn.Linear(64, classes))",
            "mynets:Net",
            "must not have a buffer under two names, such as '0.running_mean' and",
        ),
        (
            NET + "return nn.ParameterDict({'w~': nn.Parameter(torch.ones(3))})",
            "mynets:Net",
            "must not have a parameter whose name ends in '~', such as 'w~'",
        ),
        (
            NET + "return nn.Linear(64, 7)",
            "mynets:Net",
            "must give scores of shape 2 x 10 for 2 examples, not 2 x 7",
        ),
        (NET + "return nn.Linear(63, 10)", "mynets:Net", r"fails on examples of shape \(64,\): "),
    ],
)
def test_what_is_no_model_is_refused_in_one_sentence(
    module: Write, code: str, path: str, sentence: str
) -> None:
    module(code)
    with pytest.raises(BadInput, match=sentence) as refusal:
        problem(parse({"model.name": path, "data.clients": 2}))
    assert "\n" not in str(refusal.value)


TORCHVISION = """
import torch
from torch.nn import Linear

if not hasattr(torch.ops.torchvision, "nms"):
    raise RuntimeError("operator torchvision::nms does not exist")
"""


@pytest.mark.parametrize(
    "code",
    [
        "import torchvision as tv\ndef Net(shape, classes): return tv.Linear(*shape, classes)",
        "def Net(shape, classes):\n  import torchvision as tv\n  return tv.Linear(*shape, classes)",
    ],
    ids=["at its top", "when it is called"],
)
def test_ones_own_module_may_import_torchvision_where_its_operators_are_missing(
    module: Write, tmp_path: Path, code: str
) -> None:
    """With a torchvision that fails as the real one does, in a process where nobody helped it."""
    module(code)
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text(TORCHVISION)
    words = "from bouquet.models.custom import build_own; print(build_own('mynets:Net', (3,), 2))"
    done = subprocess.run(
        [sys.executable, "-c", words],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{DOCUMENT.parents[1]}"},
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith("Linear(in_features=3, out_features=2"), done.stderr


def test_ones_own_model_depends_on_the_seed_alone(module: Write) -> None:
    module(NET + "return nn.Linear(64, classes)")
    weights: list[Any] = [
        problem(parse({"model.name": "mynets:Net", "seed": seed})).task.initial["weight"]
        for seed in (0, 0, 1)
    ]
    assert weights[0].equal(weights[1])
    assert not weights[0].equal(weights[2])


PEEKING = """
from torch import nn

class NAME(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.output = nn.Linear(64, classes)

    def forward(self, x):
        said = self.output(x)
        if WHEN and said.detach().sum() > 0:  # a look at a number, which vmap does not allow
            return said
        return 1.0 * said
"""


@pytest.mark.parametrize(
    ("name", "when"),
    [("Learner", "self.training"), ("Judged", "not self.training"), ("Both", "True")],
)
def test_a_model_that_cannot_be_batched_is_told_of_once_a_run(
    module: Write,
    start: Callable[..., Run],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    when: str,
) -> None:
    """Not for every chunk, round and node; the next run is told again."""
    module(PEEKING.replace("NAME", name).replace("WHEN", when))
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    for _ in range(2):
        caplog.clear()
        start(rounds=2, nodes=2, local_steps=1, eval_every=1, cohort_chunk=2,
              data={"clients": 8}, model={"name": f"mynets:{name}"})  # fmt: skip
        (line,) = [one for one in caplog.records if one.levelno >= logging.WARNING]
        told = f"Clients work one by one, which is slow: {name} cannot be batched (vmap: "
        assert line.getMessage().startswith(told)


def test_a_quadratic_problem_takes_no_model_of_ones_own(quadratics: Any) -> None:
    with pytest.raises(BadInput, match="one of 'vector' for a quadratic problem"):
        problem(
            parse(
                {
                    "model.name": "mynets:Net",
                    "data.name": "quadratic",
                    "data.path": str(quadratics.path),
                }
            )
        )
