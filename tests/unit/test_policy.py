"""A device's policy: what it says, when, and that no server's key gets past it."""

import re
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Error, Message, MessageType, RecordDict

from bouquet.client_app.device import device
from bouquet.client_app.policy import Policy, read_policy
from bouquet.core.config import keys_of
from bouquet.core.errors import BadInput
from bouquet.engines import LocalNodes
from bouquet.flower import wire
from bouquet.models import MODELS, ModelConfig, PersonalConfig, build, refuse_large
from bouquet.server_app.replies import Refused, read_introduction
from tests.unit.test_cli import Bouquet, bouquet
from tests.unit.test_device import answer

__all__ = ["bouquet"]  # the fixture
ROOT = Path(__file__).parents[2]


def written(folder: Path, text: str) -> str:
    path = folder / "policy.toml"
    path.write_text(text, "utf-8")
    return str(path)


# The file


def test_a_file_says_some_keys_and_the_rest_are_the_defaults(tmp_path: Path) -> None:
    assert read_policy("") == Policy()
    text = 'schemes = ["apfl", "mine:Scheme"]\nmodels = "mlp, linear"\nrounds-a-day = 3\n'
    found = read_policy(written(tmp_path, text))
    assert found == Policy(schemes="apfl,mine:Scheme", models="mlp, linear", rounds_a_day=3)
    assert found.named == {"apfl", "mine:Scheme", "mlp", "linear"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("wings = 2", "must not have wings; it may have schemes, models"),
        ("parameters = -1", "parameters must be a whole number of at least 0"),
        ("metrics = 1", "metrics must be true or false"),
        ('hours = "22-6"', "hours must be like 22:00-06:00, not '22-6'"),
        ('hours = "24:00-06:00"', "hours must be like"),
        ("schemes = [1]", "a list must be of texts"),
        ("schemes = ", "cannot be read"),
    ],
)
def test_a_wrong_file_is_refused_in_a_sentence(tmp_path: Path, text: str, why: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(BadInput, match=why) as refusal:
        read_policy(path)
    assert path in str(refusal.value)


def test_a_policy_that_is_gone_lets_nothing_happen(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be read"):
        device({"client-id": "a", "state-dir": str(tmp_path), "policy": str(tmp_path / "gone")})


def test_the_guide_has_every_key_and_an_example_that_holds(tmp_path: Path) -> None:
    guide = (ROOT / "docs/policy.md").read_text("utf-8")
    for one in keys_of(Policy):
        assert f"| `{one.name}` |" in guide
    (example,) = re.findall(r"```toml\n(.*?)```", guide, re.S)
    found = read_policy(written(tmp_path, example))
    assert (found.parameters, found.hours) == (5_000_000, "22:00-06:00")


def test_the_command_shows_a_policy_or_refuses_it(bouquet: Bouquet) -> None:
    Path("policy.toml").write_text("rounds-a-day = 7")
    outcome = bouquet("node", "policy", "policy.toml")
    assert outcome.code == 0
    assert "rounds-a-day" in outcome.out
    assert "The installed app is " in outcome.out
    Path("policy.toml").write_text("rounds-a-day = -7")
    assert bouquet("node", "policy", "policy.toml").code == 2
    words = ["--superlink", "h:1", "--ca", "policy.toml", "--key", "policy.toml"]
    words += ["--client-id", "a", "--state-dir", "state", "--policy", "policy.toml"]
    assert bouquet("node", *words).code == 2  # before anything is started
    assert not Path("state").exists()


# When


def at(hour: int, minute: int = 0) -> datetime:
    return datetime(2026, 1, 31, hour, minute)


@pytest.mark.parametrize(
    ("hours", "open_", "closed"),
    [
        ("22:00-06:00", [at(22), at(23, 59), at(0), at(5, 59)], [at(6), at(12), at(21, 59)]),
        ("09:30-17:00", [at(9, 30), at(16, 59)], [at(9, 29), at(17), at(0)]),
        ("01:00-02:00, 13:00-14:00", [at(1), at(13, 30)], [at(2), at(12)]),
        ("", [at(0), at(12)], []),
    ],
)
def test_work_is_for_the_owners_hours(
    hours: str, open_: list[datetime], closed: list[datetime]
) -> None:
    policy = Policy(hours=hours)
    for now in open_:
        policy.refuse_now(now)
    for now in closed:
        with pytest.raises(BadInput, match="Not now: .* at " + hours):
            policy.refuse_now(now)


def test_the_owners_command_says_not_now(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("bouquet.client_app.policy.PATIENCE", 0.2)
    Policy(command="true").refuse_now(at(0))
    Policy(command=f"test -d '{tmp_path}'").refuse_now(at(0))
    for command in ("false", "sleep 60", "no-such-command", "'unclosed"):
        with pytest.raises(BadInput, match="Not now: the command"):
            Policy(command=command).refuse_now(at(0))


def test_a_day_has_so_many_rounds_and_one_sent_twice_counts_once(tmp_path: Path) -> None:
    policy = Policy(rounds_a_day=2)
    for named in ("run 1", "run 2", "run 1", "run 2"):
        policy.count_round(tmp_path, named, at(1))
    with pytest.raises(BadInput, match="lets the device train 2 rounds a day"):
        policy.count_round(tmp_path, "run 3", at(23))
    policy.count_round(tmp_path, "run 3", datetime(2026, 2, 1))
    Policy().count_round(tmp_path, "run 4", at(1))  # any number
    (tmp_path / "rounds.json").write_text("{")
    with pytest.raises(BadInput, match=r"rounds\.json is damaged"):
        policy.count_round(tmp_path, "run 4", at(1))


# What


def refusal(folder: Path, policy: str, keys: dict[str, object]) -> str:
    """What a device with a policy says when it is asked who it is; empty if it tells."""
    own: dict[str, str | int] = {"client-id": "000", "state-dir": str(folder / "state")}
    reply = answer({"data.clients": 2} | keys, own | {"policy": written(folder, policy)})
    return str(reply.content.config_records[wire.NOTE].get("refused", ""))


@pytest.mark.parametrize(
    ("policy", "keys", "why"),
    [
        ("", {"model.name": "mlp", "model.hidden": 30000}, "has 902.* allows 100000000"),
        ("parameters = 1000", {"model.name": "mlp"}, "the device allows 1000"),
        ("parameters = 10000", {"personal.split": "lora", "personal.rank": 4000}, "parameters"),
        ('schemes = ["fedavg"]', {"scheme": "apfl"}, "scheme 'apfl' is not allowed .* fedavg"),
        ('schemes = "fedavg"', {"pipeline": "fedavg:1 apfl:1"}, "scheme 'apfl' is not allowed"),
        ('models = ["linear"]', {"model.name": "mlp"}, "model.name 'mlp' is not allowed"),
        ("", {"share-label-counts": True}, "lets no label counts leave"),
        ('command = "false"', {}, "Not now"),
    ],
)
def test_a_server_is_refused_what_the_owner_does_not_allow(
    tmp_path: Path, policy: str, keys: dict[str, object], why: str
) -> None:
    assert re.search(why, refusal(tmp_path, policy, keys))


@pytest.mark.parametrize(
    ("policy", "keys"),
    [
        ("", {"model.name": "mlp"}),
        ("parameters = 0", {"model.name": "mlp", "model.hidden": 300}),
        ('schemes = ["apfl"]\nmodels = ["mlp"]', {"scheme": "apfl", "model.name": "mlp"}),
        ("label-counts = true", {"share-label-counts": True}),
    ],
)
def test_a_server_gets_what_the_owner_allows(
    tmp_path: Path, policy: str, keys: dict[str, object]
) -> None:
    assert refusal(tmp_path, policy, keys) == ""


def test_a_model_that_is_too_large_is_never_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(*words: Any) -> None:
        raise AssertionError("made room for it")

    monkeypatch.setattr("bouquet.problem.make_task", made)
    keys: dict[str, object] = {"model.name": "mlp", "model.hidden": 30000}
    assert "parameters" in refusal(tmp_path, "", keys)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("split", ["output", "adapter", "lora", "split-input", "additive-head"])
def test_parameters_are_counted_as_they_will_be(name: str, split: str) -> None:
    config, personal, info = ModelConfig(name=name), PersonalConfig(split=split), MODELS[name]
    try:
        module = build(config, info.shape, info.classes, 0, torch.float32, personal)
    except BadInput:  # no such split: nothing to count, and said elsewhere
        refuse_large(config, info.shape, info.classes, personal, 1)
        return
    count = sum(one.numel() for one in module.parameters())
    refuse_large(config, info.shape, info.classes, personal, count)
    with pytest.raises(BadInput, match=f"has {count} parameters"):
        refuse_large(config, info.shape, info.classes, personal, count - 1)


def test_a_model_of_ones_own_is_counted_once_it_is_made(tmp_path: Path) -> None:
    keys: dict[str, object] = {"model.name": "tests.zoo:Plain"}
    listed = 'models = ["tests.zoo:Plain"]\n'
    assert refusal(tmp_path, listed, keys) == ""
    assert "allows 7 (parameters)" in refusal(tmp_path, listed + "parameters = 7", keys)
    assert "is not allowed" in refusal(tmp_path, "", keys)


@pytest.mark.parametrize("how", ["stage-keys", "stage2.loss"])
def test_the_key_of_a_stage_is_no_way_round(tmp_path: Path, how: str) -> None:
    trap = tmp_path / "trap.py"
    trap.write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')")
    own = device({"client-id": "a", "state-dir": str(tmp_path)})
    assert own is not None
    value = f'{{"stage2.loss": "{trap}:f"}}' if how == "stage-keys" else f"{trap}:f"
    with pytest.raises(BadInput, match=r"stage2\.loss .* is not allowed"):
        own.refuse_strangers({"pipeline": "fedavg:1 apfl:1", how: value})


def test_counts_that_stay_are_told_as_one(tmp_path: Path) -> None:
    own: dict[str, str | int] = {"client-id": "000", "state-dir": str(tmp_path / "state")}
    policy = written(tmp_path, "example-counts = false")
    reply = answer({"data.clients": 2}, own | {"policy": policy})
    metrics = reply.content.metric_records[wire.METRICS]
    assert metrics["train_examples"] == metrics["test_examples"] == [1]


def test_a_refusal_is_passed_on_in_its_own_words() -> None:
    """Flower words an error by its class; whoever runs the server reads a sentence."""
    LocalNodes(1).close()  # Flower's messages want to know which run they are of
    asked = Message(RecordDict(), 1, MessageType.QUERY)
    for reason, said in (
        ("<class 'bouquet.core.errors.BadInput'>:<'Not now.'>", "Not now."),
        ("<class 'ValueError'>:<'odd'>", "<class 'ValueError'>:<'odd'>"),
    ):
        with pytest.raises(Refused) as refused:
            read_introduction(Message(Error(1, reason), reply_to=asked))
        assert str(refused.value) == said


# How much


@pytest.mark.parametrize(
    ("policy", "work", "why"),
    [
        ("memory=600", "torch.zeros(2 * 10**8)", "more than the 600 MB"),
        ("memory=600", "bytearray(10**9)", "more than the 600 MB"),
        ("cpu_seconds=1", "exec('while True: pass')", "more than the 1 CPU seconds"),
    ],
    ids=["tensors", "bytes", "time"],
)
def test_a_message_has_so_much_of_the_machine(policy: str, work: str, why: str) -> None:
    """In a process of its own, as on a device; what comes after, the reply, is not bounded."""
    code = f"""
import resource, time, torch
from bouquet.client_app.policy import Policy
from bouquet.deploy.worker import bounds
before = time.process_time()
policy = Policy({policy})
if policy.cpu_seconds == 1:  # what importing took is not the message's
    policy = Policy(cpu_seconds=1 + int(before))
try:
    with bounds(policy):
        {work}
except Exception as error:
    print(type(error).__name__, str(error).replace(f"{{policy.cpu_seconds}} CPU", "1 CPU"))
held = torch.zeros(2 * 10**8)
while time.process_time() < policy.cpu_seconds % 3600 + 1.5:
    pass
print("replied")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("BadInput What is asked takes " + why), (done.stdout, done.stderr)
    assert done.stdout.endswith("replied\n")


def test_unless_told_a_process_may_hold_half_of_the_machine() -> None:
    total = 2 * Policy().most_memory
    assert 10**9 < total < 10**14
    assert Policy(memory=5).most_memory == 5 * 10**6
