"""The dashboard's server: what it tells, whom it refuses, and that it only reads."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from bouquet.colours import colour_of
from bouquet.core.errors import BadInput
from bouquet.storage.history import Line
from bouquet.storage.runs import read
from bouquet.watch.dashboard import FILES, HEADERS, make_app, serve
from bouquet.watch.live import History, Log, Watch
from bouquet.watch.views import (
    MOST_CELLS,
    MOST_POINTS,
    client_details,
    details,
    history_details,
    overview,
)
from tests.conftest import Run
from tests.serving import Visitor, serving
from tests.unit.test_report import event, write_run

Visit = Callable[..., Visitor]


@pytest.fixture
def visit() -> Iterator[Visit]:
    """Serves a folder for as long as the test lasts."""
    with ExitStack() as open_:
        yield lambda folder, token="": open_.enter_context(serving(folder, token))


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    failed = [{"client": "b", "reason": "no reply in time"}]
    events = [
        event(1, clients=["a"], failures=failed, timing={"training": 0.5, "round": 0.8}),
        event(2, clients=["a", "b"], bytes_up=10, bytes_down=20),
    ]
    write_run(folder / "one", "\n".join(events) + "\n")
    write_run(folder / "deep" / "two", event(1) + "\n", scheme="local")
    (tmp_path / "secret.txt").write_text("secret")
    return folder


# What it tells


def test_every_run_in_the_folder_has_a_line(visit: Visit, runs: Path) -> None:
    lines = {line["name"]: line for line in visit(runs).get("/api/runs").json()}
    assert lines.keys() == {"one", "deep/two"}
    one = lines["one"]
    assert (one["scheme"], one["data"], one["round"], one["rounds"]) == ("apfl", "digits", 2, 3)
    assert (one["state"], one["left"]) == ("running", 1.0)
    assert one["personal_accuracy"] == 0.6


def test_lines_tell_what_runs_differ_in_and_nothing_else(tmp_path: Path) -> None:
    """Not the keys of another scheme, nor what does not change what a run is about."""
    for name, keys in {
        "one": {"scheme": "apfl", "lr": 0.1, "apfl.alpha": 0.5, "ditto.lambda": 1, "rounds": 3},
        "two": {"scheme": "apfl", "lr": 0.1, "apfl.alpha": 0.3, "ditto.lambda": 2, "nodes": 7},
        "three": {"scheme": "ditto", "lr": 0.2, "apfl.alpha": 0.1, "ditto.lambda": 1, "seed": 4},
    }.items():
        write_run(tmp_path / name, "", **keys)
    told = {line["name"]: line["keys"] for line in overview(Watch(tmp_path).runs())}
    assert told == {
        "one": {"lr": 0.1, "apfl.alpha": 0.5},
        "two": {"lr": 0.1, "apfl.alpha": 0.3},
        "three": {"lr": 0.2},
    }


def test_a_scheme_keeps_its_colour_and_its_configurations_are_told_apart(tmp_path: Path) -> None:
    write_run(tmp_path / "a", lr=0.1)
    write_run(tmp_path / "b", lr=0.2)
    write_run(tmp_path / "c", lr=0.2, seed=1)
    write_run(tmp_path / "d", scheme="local")
    a, b, c, d = overview(Watch(tmp_path).runs())
    assert a["colour"] == [colour_of("apfl"), colour_of("apfl", dark=True)]
    assert a["colour"] == b["colour"] == c["colour"] != d["colour"]
    assert a["dash"] != b["dash"]
    assert b["dash"] == c["dash"]  # of one configuration


def test_a_line_tells_when_a_run_began_and_what_it_spent(tmp_path: Path) -> None:
    lines = [
        event(1, seconds=2.0, time=1000.0, bytes_up=5, bytes_down=7),
        event(2, seconds=3.0, time=1005.0, bytes_up=1, bytes_down=1),
    ]
    write_run(tmp_path / "run", "\n".join(lines) + "\n")
    (line,) = overview(Watch(tmp_path).runs())
    assert (line["started"], line["seconds"], line["bytes"]) == (998.0, 5.0, 14)
    write_run(tmp_path / "waiting")
    waiting = {line["name"]: line for line in overview(Watch(tmp_path).runs())}["waiting"]
    assert waiting["started"] == pytest.approx(time.time(), abs=60)


def test_curves_of_many_runs_have_what_was_spent_until_each_point(
    visit: Visit, tmp_path: Path
) -> None:
    """A round without numbers costs as well."""
    lines = [
        event(1, seconds=2.0, bytes_up=5),
        event(2, seconds=3.0, bytes_up=5, metrics={}),
        event(3, seconds=4.0, bytes_down=1),
    ]
    write_run(tmp_path / "run", "\n".join(lines) + "\n")
    write_run(tmp_path / "other", event(1) + "\n")
    page = visit(tmp_path)
    told = page.get("/api/curves?name=run&name=other&name=gone&name=..").json()
    assert told.keys() == {"run", "other"}
    curve = told["run"]["curve"]
    assert (curve["round"], curve["seconds"], curve["bytes"]) == ([1, 3], [2, 9], [5, 11])
    assert curve["personal_accuracy"] == [0.6, 0.6]
    assert page.get("/api/curves").status == 422  # it must be said of which


def test_a_runs_details(visit: Visit, runs: Path) -> None:
    told = visit(runs).get("/api/run", {"name": "one"}).json()
    assert told["curve"]["round"] == [1, 2]
    assert told["curve"]["personal_accuracy_p10"] == [0.1, 0.1]
    assert told["cost"]["bytes_down"] == [0, 20]
    assert told["cost"]["training"] == [0.5, 0]
    assert told["cost"]["waiting"] == [pytest.approx(0.5), 1.0]
    assert told["failures"] == [{"round": 1, "client": "b", "reason": "no reply in time"}]
    rows = {row["client"]: row for row in told["clients"]}
    assert (rows["a"]["trained"], rows["a"]["last_seen"], rows["a"]["failures"]) == (2, 2, 0)
    assert (rows["b"]["trained"], rows["b"]["last_seen"], rows["b"]["failures"]) == (1, 2, 1)


def test_a_clients_history(visit: Visit, runs: Path) -> None:
    told = visit(runs).get("/api/client", {"run": "one", "client": "b"}).json()
    assert told["trained"] == [2]
    assert told["failures"][0]["reason"] == "no reply in time"
    assert visit(runs).get("/api/client", {"run": "one", "client": "z"}).status == 404


def test_a_real_run_is_shown_as_its_folder_tells(start: Callable[..., Run]) -> None:
    run = start(scheme="apfl", rounds=2, data={"clients": 3}, nodes=1, model={"name": "linear"})
    found = read(run.path)
    assert found.state() == "finished"
    rows = details(found)["clients"]
    for row, expected in zip(rows, run.clients, strict=True):
        assert row["alpha"] == pytest.approx(float(expected["alpha"]))
        gap = float(expected["personal_accuracy"]) - float(expected["shared_accuracy"])
        assert row["change"] == pytest.approx(gap)
        assert row["trained"] == 2
    told = client_details(found, rows[0]["client"])
    assert told is not None
    assert told["trained"] == [1, 2]


# Clients' histories


def line(round_: int, **columns: object) -> str:
    """A line of the history of two clients."""
    return json.dumps({"version": 1, "round": round_, "clients": ["a", "b"], **columns})


def written(run: Path, *lines: str) -> list[Line]:
    (run / "history.jsonl").write_text("\n".join(lines) + "\n")
    return History(run / "history.jsonl").update()


def test_a_clients_own_numbers_over_the_rounds(visit: Visit, runs: Path) -> None:
    alone = {"round": 2, "clients": ["b"], "shared_accuracy": [0.75]}
    written(
        runs / "one",
        line(1, shared_accuracy=[0.1, 0.2], alpha=[0.5, 0.6]),
        json.dumps(alone),
        line(3, shared_accuracy=[0.3, None], alpha=[0.7, 0.8]),
    )
    told = visit(runs).get("/api/client", {"run": "one", "client": "a"}).json()["course"]
    assert told == {"round": [1, 3], "shared_accuracy": [0.1, 0.3], "alpha": [0.5, 0.7]}
    told = visit(runs).get("/api/client", {"run": "one", "client": "b"}).json()["course"]
    assert told == {
        "round": [1, 2, 3],
        "shared_accuracy": [0.2, 0.75, None],
        "alpha": [0.6, None, 0.8],
    }


def test_what_is_personal_is_told_as_percentiles(visit: Visit, runs: Path) -> None:
    """Of 0 to 10 in eleven clients, the percentiles are the numbers themselves."""
    ids = [f"{n:02d}" for n in range(11)]
    lines = [{"round": 1, "clients": ids, "alpha": list(range(11)), "shared_loss": [1.0] * 11}]
    lines.append({"round": 2, "clients": ids[:2], "alpha": [None, 3.0]})
    lines.append({"round": 3, "clients": ids[:1], "alpha": [None]})
    written(runs / "one", *map(json.dumps, lines))
    told = visit(runs).get("/api/history", {"name": "one"}).json()["spreads"]
    assert told.keys() == {"alpha"}  # not the loss, and nothing this scheme does not have
    assert told["alpha"]["round"] == [1, 2]
    wanted = {"p10": 1, "p25": 2.5, "p50": 5, "p75": 7.5, "p90": 9}
    assert {name: told["alpha"][name][0] for name in wanted} == wanted
    assert {told["alpha"][name][1] for name in wanted} == {3.0}


def test_a_run_without_a_history_is_shown_all_the_same(visit: Visit, runs: Path) -> None:
    told = visit(runs).get("/api/history", {"name": "one"}).json()
    assert told["spreads"] == {}
    assert [row["client"] for row in told["clients"]] == ["a", "b"]
    told = visit(runs).get("/api/client", {"run": "one", "client": "a"}).json()
    assert told["course"] == {"round": []}


def test_the_table_of_a_run_that_goes_on_has_the_newest_numbers(runs: Path) -> None:
    (runs / "one" / "clients.csv").write_text("client,shared_accuracy\na,0.25\nb,0.25\n")
    lines = written(
        runs / "one",
        line(1, shared_accuracy=[0.1, 0.2], personal_accuracy=[0.1, 0.2]),
        json.dumps({"round": 2, "clients": ["a"], "shared_accuracy": [0.5]}),
    )
    rows = {row["client"]: row for row in history_details(read(runs / "one"), lines)["clients"]}
    assert (rows["a"]["shared_accuracy"], rows["b"]["shared_accuracy"]) == (0.5, 0.2)
    with open(runs / "one" / "events.jsonl", "a") as file:
        file.write(event(3) + "\n")
    (runs / "one" / "summary.json").write_text('{"helped": 1}')
    rows = {row["client"]: row for row in history_details(read(runs / "one"), lines)["clients"]}
    assert rows["a"]["shared_accuracy"] == 0.25  # it has ended: the table is the last word
    assert rows["b"]["personal_accuracy"] == 0.2


@pytest.mark.parametrize(
    "broken",
    [
        '{"round": 2, "clients": ["a", "b"], "alpha": [0.',
        "",
        "nonsense",
        "[1]",
        "3",
        '{"clients": ["a"]}',
        '{"round": 2}',
        '{"round": "x", "clients": ["a"], "alpha": [1]}',
        '{"round": 2, "clients": "a", "alpha": [1]}',
        '{"round": 2, "clients": [1], "alpha": [1]}',
        '{"round": 2, "clients": ["a"], "alpha": [1, 2]}',
        '{"round": 2, "clients": ["a"], "alpha": ["x"]}',
        '{"round": 2, "clients": ["a"], "alpha": [[1]]}',
        '{"round": 2, "clients": ["a"], "alpha": 1}',
    ],
)
def test_a_broken_line_of_the_history_is_skipped(runs: Path, broken: str) -> None:
    lines = written(runs / "one", line(1, alpha=[1, 2]), broken, line(3, alpha=[1, 2]))
    assert [one.round for one in lines] == [1, 3]


def test_a_half_written_line_waits_for_its_rest(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    history = History(path)
    assert history.update() == []
    path.write_text(line(1, alpha=[1, 2]) + "\n" + line(2, alpha=[1, 2])[:30])
    assert [one.round for one in history.update()] == [1]
    with open(path, "a") as file:
        file.write(line(2, alpha=[1, 2])[30:] + "\n")
    assert [one.round for one in history.update()] == [1, 2]
    (tmp_path / "new").write_text(line(1, alpha=[1, 2]) + "\n")  # as --resume does
    os.replace(tmp_path / "new", path)
    assert [one.round for one in history.update()] == [1]


def test_a_long_history_is_thinned_out_and_keeps_its_last_round(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", event(1, clients=["a"]) + "\n", rounds=1000)
    lines = written(run, *(line(n, alpha=[0.1, 0.2]) for n in range(1, 1001)))
    spread = history_details(read(run), lines)["spreads"]["alpha"]
    course = client_details(read(run), "a", lines)["course"]  # type: ignore[index]
    for rounds in (spread["round"], course["round"]):
        assert len(rounds) <= MOST_POINTS
        assert rounds[-1] == 1000


# Nodes


def test_nodes_are_told_with_their_last_contact(tmp_path: Path) -> None:
    hosts = {"0": {"id": "7", "clients": ["a", "b"]}, "1": {"id": "9", "clients": ["c"]}}
    failed = [{"client": "c", "reason": "no reply in time"}]
    events = [
        event(1, nodes={"0": 1.0, "1": 4.0}, hosts=hosts, time=100.0),
        event(2, nodes={"0": 2.0, "1": None}, failures=failed, time=110.0),
        event(3, nodes={"1": None}, failures=failed, time=120.0),
    ]
    north, south = details(read(write_run(tmp_path / "run", "\n".join(events))))["nodes"]
    assert (north["node"], north["clients"], north["names"]) == ("0", 2, ["a", "b"])
    assert (north["last_seen"], north["time"], north["seconds"]) == (2, 110.0, 1.5)
    assert (north["missed"], north["failures"]) == (0, 0)
    assert (south["last_seen"], south["time"], south["seconds"]) == (1, 100.0, 4.0)
    assert (south["missed"], south["failures"]) == (2, 2)


def test_a_node_that_is_numbered_anew_keeps_its_past(tmp_path: Path) -> None:
    """When a client comes that sorts before all others, its node becomes the first."""
    before = {"0": {"id": "7", "clients": ["b"]}}
    after = {"0": {"id": "9", "clients": ["a"]}, "1": {"id": "7", "clients": ["b"]}}
    events = [
        event(1, nodes={"0": 1.0}, hosts=before, time=100.0),
        event(2, nodes={"0": 1.0, "1": None}, hosts=after, time=110.0),
    ]
    newcomer, old = details(read(write_run(tmp_path / "run", "\n".join(events))))["nodes"]
    assert (newcomer["last_seen"], newcomer["missed"]) == (2, 0)
    assert (old["last_seen"], old["time"], old["missed"]) == (1, 100.0, 1)


@pytest.mark.parametrize("hosts", [{"0": 3}, {"0": {}}, {"0": {"clients": 3}}, {}])
def test_odd_words_about_nodes_break_nothing(tmp_path: Path, hosts: object) -> None:
    told = event(1, nodes={"0": "x", "5": 1.0}, hosts=hosts, time="late")
    details(read(write_run(tmp_path / "run", told)))


def test_a_run_that_is_silent_for_long_has_stopped(runs: Path) -> None:
    old = time.time() - 10_000
    for name in ("config.toml", "events.jsonl"):
        os.utime(runs / "one" / name, (old, old))
    assert overview({"one": read(runs / "one")})[0]["state"] == "stopped"


def test_much_is_thinned_out_and_the_last_round_stays(tmp_path: Path) -> None:
    ids = [f"{n:04d}" for n in range(1000)]
    lines = [event(n, clients=ids[n % 2 :: 2]) for n in range(1, 1001)]
    told = details(read(write_run(tmp_path / "run", "\n".join(lines) + "\n", rounds=1000)))
    assert len(told["curve"]["round"]) <= MOST_POINTS
    assert told["curve"]["round"][-1] == told["cost"]["round"][-1] == 1000
    part = told["participation"]
    assert (part["width"], part["height"]) == (MOST_CELLS, MOST_CELLS)
    assert len(json.dumps(told)) < 1_000_000


def test_participation_is_what_happened(runs: Path) -> None:
    import base64

    part = details(read(runs / "one"))["participation"]
    cells = np.frombuffer(base64.b64decode(part["cells"]), np.uint8).reshape(2, 2)
    assert cells.tolist() == [[200, 200], [255, 200]]


def test_prometheus_can_ask(visit: Visit, runs: Path) -> None:
    lines = visit(runs).get("/metrics").text.splitlines()
    assert 'bouquet_round{run="one"} 2' in lines
    assert 'bouquet_personal_accuracy{run="deep/two"} 0.6' in lines


# Logs that grow, or break


def test_a_log_is_read_on_from_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = Log(path)
    log.update()
    path.write_text(event(1) + "\n" + event(2)[:10])
    log.update()
    assert list(log.events) == [1]
    with open(path, "a") as file:
        file.write(event(2)[10:] + "\nbroken\n" + event(3) + "\n")
    log.update()
    assert list(log.events) == [1, 2, 3]


def test_a_log_that_was_replaced_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text("".join(event(n) + "\n" for n in (1, 2, 3)))
    log = Log(path)
    log.update()
    (tmp_path / "new").write_text(event(1) + "\n")
    os.replace(tmp_path / "new", path)
    log.update()
    assert list(log.events) == [1]


def test_a_watch_sees_what_changes_and_what_is_new(runs: Path) -> None:
    watch = Watch(runs)
    before = watch.stamps()
    assert watch.stamps() == before
    with open(runs / "one" / "events.jsonl", "a") as file:
        file.write(event(3) + "\n")
    write_run(runs / "three")
    after = watch.stamps()
    assert {name for name in after if after[name] != before.get(name)} == {"one", "three"}
    assert watch.runs()["one"].done == 3


# Bad input


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"nowhere is no folder\.$"):
        make_app(tmp_path / "nowhere")


def test_empty_and_foreign_folders_hold_no_runs(visit: Visit, tmp_path: Path) -> None:
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "events.jsonl").write_text("x")
    page = visit(tmp_path)
    assert page.get("/api/runs").json() == []
    assert page.get("/").status == 200


def test_a_folder_that_calls_itself_a_run_and_is_none_breaks_nothing(
    visit: Visit, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.toml").write_bytes(b"\xff not toml [")
    (run / "events.jsonl").write_bytes(b'{"round": 1, "failures": [3, {}]}\n\x00\xff\n')
    (run / "clients.csv").write_text("a,b\n1\n")
    (run / "summary.json").write_text("[]")
    page = visit(tmp_path)
    assert page.get("/api/runs").json()[0]["scheme"] == "?"
    assert page.get("/api/run", {"name": "run"}).status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/api/run?name=..",
        "/api/run?name=../secret.txt",
        "/api/run?name=one/../one",
        "/api/run?name=/etc",
        "/api/client?run=..&client=a",
        "/../secret.txt",
        "/..%2fsecret.txt",
        "/%2e%2e/secret.txt",
        "/one/config.toml",
        "/dashboard.py",
        "/docs",
        "/openapi.json",
    ],
)
def test_no_address_leads_out_of_what_is_served(visit: Visit, runs: Path, path: str) -> None:
    answer = visit(runs).get(path)
    assert answer.status == 404
    assert "secret" not in answer.text


def test_links_out_of_the_folder_are_not_followed(visit: Visit, runs: Path, tmp_path: Path) -> None:
    outside = write_run(tmp_path / "outside", event(1) + "\n")
    (runs / "link").symlink_to(outside)
    (runs / "one" / "events.jsonl").unlink()
    (runs / "one" / "events.jsonl").symlink_to(outside / "events.jsonl")
    lines = {line["name"]: line["round"] for line in visit(runs).get("/api/runs").json()}
    assert lines == {"one": 0, "deep/two": 1}


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_changed(visit: Visit, runs: Path, method: str) -> None:
    assert visit(runs).get("/api/runs", method=method).status == 405


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""])
def test_another_host_name_is_refused(visit: Visit, runs: Path, host: str) -> None:
    answer = visit(runs).get("/api/runs", host=host)
    assert answer.status == 421


@pytest.mark.parametrize("host", ["127.0.0.1:80", "localhost:8000", "[::1]:80", "localhost"])
def test_this_machines_names_are_answered(visit: Visit, runs: Path, host: str) -> None:
    assert visit(runs).get("/api/runs", host=host).status == 200


def test_with_a_token_only_those_who_show_it_are_answered(visit: Visit, runs: Path) -> None:
    page = visit(runs, "sesame")
    for path in (
        "/",
        "/api/runs",
        "/app.js",
        "/metrics",
        "/?token=wrong",
        "/api/runs?token=sesame",
    ):
        assert page.get(path).status == 401, path
    assert page.get("/api/runs", authorization="Bearer sesame").status == 200
    entered = page.get("/?token=sesame")
    assert (entered.status, entered.headers["location"]) == (303, "/")
    cookie = entered.headers["set-cookie"]
    assert "httponly" in cookie.lower()
    assert "samesite=strict" in cookie.lower()
    assert page.get("/api/runs", cookie=cookie.partition(";")[0]).status == 200
    assert page.get("/api/runs", cookie="bouquet-token=wrong").status == 401


def test_pages_may_not_ask_other_hosts(visit: Visit, runs: Path) -> None:
    page = visit(runs)
    for path in ("/", "/app.js", "/api/runs", "/nothing"):
        assert page.get(path).headers.items() >= {
            (name.lower(), value) for name, value in HEADERS.items()
        }


@pytest.mark.parametrize("file", sorted(FILES))
def test_the_page_itself_names_no_other_host(file: str) -> None:
    text = FILES[file].read_text()
    assert "//" not in text.replace("// ", "")


def test_a_port_that_is_taken_is_refused(runs: Path) -> None:
    import socket

    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(BadInput, match=r"--host 127\.0\.0\.1 --port \d+: .*in use"),
    ):
        serve(runs, "127.0.0.1", taken.getsockname()[1], "", print)


def test_the_command_serves_until_ctrl_c(runs: Path) -> None:
    words = [sys.executable, "-m", "bouquet", "dashboard", str(runs)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        port = int(address.removeprefix("http://127.0.0.1:").removesuffix("/"))
        assert Visitor(port).get("/api/runs").status == 200
        server.send_signal(signal.SIGINT)
        assert server.wait(30) == 0


def test_on_another_address_a_token_is_drawn(runs: Path) -> None:
    words = [sys.executable, "-m", "bouquet", "dashboard", str(runs), "--host", "0.0.0.0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        place, _, token = server.stdout.readline().strip().partition("/?token=")
        visitor = Visitor(int(place.rpartition(":")[2]))
        assert len(token) >= 32
        assert visitor.get("/api/runs").status == 401
        assert visitor.get("/api/runs", authorization=f"Bearer {token}").status == 200
        server.send_signal(signal.SIGINT)
        assert server.wait(30) == 0
