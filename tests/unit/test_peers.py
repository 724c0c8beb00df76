"""The comparison with other simulators counts what it says it counts."""

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks" / "peers")
    monkeypatch.syspath_prepend(ROOT / "benchmarks")


@pytest.fixture
def peers() -> ModuleType:
    return importlib.import_module("peers")


@pytest.fixture
def work() -> ModuleType:
    return importlib.import_module("work")


def test_a_ratio_is_to_the_plain_loops_on_both_sides(peers: ModuleType) -> None:
    """Median 2 of the peer, medians 1 and 3 of the loops: as fast as their mean."""
    one = peers.Measured("W2", "inline", [2.0, 9.0, 1.0], ([1.0, 1.0, 8.0], [3.0, 3.0, 0.1]), 0.0)
    assert one.ratio == 1.0


def test_the_table_has_the_median_repetition_and_the_spread(peers: ModuleType) -> None:
    report = peers.Report(peers.machine(), rounds=1, repeat=3)
    for seconds in (0.5, 1.5, 0.7):
        one = peers.Measured("W2", "fedjax", [seconds], ([1.0], [1.0]), 0.0)
        report.measured.append(one)
    report.versions["fedjax"] = {"fedjax": "0.0.17"}
    report.left_out["pfl", ""] = "could not be installed: no such version"
    text = peers.markdown(report)
    assert "| plain loop, one thread | 1.000 s = 1 |" in text
    assert "| FedJAX (jit) | 0.70 (0.50–1.50) |" in text
    assert "FedJAX (jit): fedjax 0.0.17." in text
    assert "threads is left out: it could not be installed: no such version." in text
    assert [one["ratio"] for one in json.loads(peers.as_json(report))["measured"]] == [
        0.5,
        1.5,
        0.7,
    ]


def test_a_peer_that_fails_is_left_out_with_its_last_words(
    peers: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The others go on, each still between two plain loops."""
    loops = iter([1.0, 2.0, 4.0])

    def run(name: str, workload: str, rounds: int, folder: Path) -> dict[str, object]:
        if name == "fedjax":
            code = "import sys; sys.exit('the loss went up')"
            peers.told("run", [sys.executable, "-c", code])
        return {"seconds": [next(loops) if name == "plain" else 3.0], "versions": {}}

    monkeypatch.setattr(peers, "run", run)
    report = peers.Report(peers.machine(), rounds=1, repeat=1)
    peers.compete(report, "W2", ["inline", "fedjax", "ray"], tmp_path)
    assert report.left_out == {("fedjax", "W2"): "could not run: the loss went up"}
    beside = {one.peer: one.beside for one in report.measured}
    assert beside == {"inline": ([1.0], [2.0]), "ray": ([2.0], [4.0])}


@pytest.mark.parametrize("name", ["W1a", "W1b", "W2", "W3"])
def test_peers_train_the_network_that_we_train(work: ModuleType, name: str) -> None:
    from bouquet.problem import problem
    from bouquet.settings import parse

    keys = importlib.import_module("speed").keys(name, "fedavg")
    ours = problem(parse(keys | {"data.clients": 1, "clients-per-round": 1})).task.initial
    theirs = work.net(work.Work.named(name, 1)).state_dict()
    assert [x.shape for x in theirs.values()] == [x.shape for x in ours.values()]


def test_an_adapter_with_other_work_tells_no_time(
    work: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """W2 has 100 clients of 20 steps a round."""
    monkeypatch.setattr(sys, "argv", ["adapter", "W2", "1"])

    def tell(steps: int, *losses: float) -> None:
        work.main(lambda _: work.Outcome([0.1], steps, losses), ("numpy",))

    with pytest.raises(SystemExit, match="1999 gradient steps instead of 2000"):
        tell(1999, 2.0, 1.0)
    with pytest.raises(SystemExit, match="the loss went from"):
        tell(2000, 1.0, 1.0)
    with pytest.raises(SystemExit, match="a step on 19 examples, not 20"):
        work.Tally(20).count(19)
    assert capsys.readouterr().out == ""
    tell(2000, 2.0, 1.0)
    assert json.loads(capsys.readouterr().out)["seconds"] == [0.1]
