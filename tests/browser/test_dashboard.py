"""The dashboard in a real browser."""

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlparse

import numpy as np
import pytest

from tests.browser.chromium import Page, browser, program
from tests.serving import serving
from tests.unit.test_report import event, write_run

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(program() is None, reason="chromium is not installed"),
]

READY = "document.body.dataset.ready === 'yes'"
ROWS = "[...document.querySelectorAll('#clients tbody tr')]"
NAMES = f"{ROWS}.map((row) => row.cells[0].textContent)"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Page]:
    with browser() as page:
        yield page


@pytest.fixture
def page(chromium: Page) -> Iterator[Page]:
    """The browser, large and light; no test may leave an error on its console."""
    chromium.errors.clear()
    chromium.requests.clear()
    chromium.size(1280, 900)
    chromium.scheme("light")
    yield chromium
    assert chromium.errors == []
    assert {urlparse(one).hostname for one in chromium.requests} <= {"127.0.0.1", None}
    chromium.open("about:blank")


OWN = ("alpha", "personal_norm", "drift")


def many(path: Path, clients: int, rounds: int, own: tuple[str, ...] = OWN) -> Path:
    """A finished run of many clients and rounds, some of which fail, with all its history."""
    rng = np.random.default_rng(0)
    ids = [f"{n:04d}" for n in range(clients)]
    lines = []
    hosts = {str(n): {"id": str(100 + n), "clients": ids[n::2]} for n in range(2)}
    for number in range(1, rounds + 1):
        chosen = [one for one, there in zip(ids, rng.random(clients) < 0.7, strict=True) if there]
        failed = [{"client": ids[number % clients], "reason": "no reply in time"}]
        more: dict[str, object] = {"nodes": {"0": 1.5, "1": None if number > 1 else 2.5}}
        more |= {"time": 1e9 + number, "hosts": hosts if number == 1 else {}}
        failures = failed if number % 5 == 0 else []
        lines.append(event(number, clients=chosen, failures=failures, **more))
    write_run(path, "\n".join(lines) + "\n", rounds=rounds)
    names = [f"{whose}_{what}" for whose in ("shared", "personal") for what in ("accuracy", "loss")]
    with open(path / "history.jsonl", "w") as file:
        for number in range(1, rounds + 1):
            columns = {name: rng.random(clients).round(6).tolist() for name in (*names, *own)}
            told = {"version": 1, "round": number, "clients": ids, **columns}
            file.write(json.dumps(told, separators=(",", ":")) + "\n")
    table = ["client,node,train_examples,test_examples,shared_accuracy,personal_accuracy,alpha"]
    for place, one in enumerate(ids):
        change = 0.1 if place % 3 else -0.1
        table.append(f"{one},0,{10 + place * 7 % 90},20,0.5,{0.5 + change},{rng.random()}")
    (path / "clients.csv").write_text("\n".join(table) + "\n")
    (path / "summary.json").write_text(json.dumps({"helped": 1}))
    return path


def visit(page: Page, port: int) -> None:
    page.open(f"http://127.0.0.1:{port}/")
    page.wait(READY)


def test_the_page_follows_a_run_as_it_goes_on(page: Page, tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs" / "live", event(1, clients=["a"]) + "\n", rounds=3)
    with serving(tmp_path / "runs") as visitor:
        visit(page, visitor.port)
        rounds = "document.querySelector('#runs tbody tr')?.textContent ?? ''"
        page.wait(f"({rounds}).includes('1 of 3')")
        page.wait(f"({rounds}).includes('running')")
        with open(run / "events.jsonl", "a") as file:
            file.write(event(2, clients=["a", "b"]) + "\n" + event(3)[:15])
        page.wait(f"({rounds}).includes('2 of 3')", 5)
        page.wait(f"{NAMES}.join() === 'a,b'", 5)
        write_run(tmp_path / "runs" / "other", event(1) + "\n")
        page.wait("document.querySelectorAll('#runs tbody tr').length === 2", 5)


def test_clients_are_sorted_filtered_and_opened(page: Page, tmp_path: Path) -> None:
    many(tmp_path / "run", 30, 10)
    with serving(tmp_path) as visitor:
        visit(page, visitor.port)
        assert page.run(NAMES)[:2] == ["0000", "0001"]
        page.run("document.querySelector('[data-column=change]').click()")
        changes = page.run(f"{ROWS}.map((row) => row.cells[4].textContent)")
        assert (changes[0], changes[-1]) == ("+0.1", "-0.1")
        assert page.run(
            "document.querySelector('#clients [aria-sort=descending]').textContent"
        ) == ("difference ↓")
        page.run(
            "document.getElementById('only').value = 'hurt';"
            "document.getElementById('only').dispatchEvent(new Event('change'))"
        )
        assert page.run(f"{ROWS}.length") == 10
        page.run(
            "document.getElementById('find').value = '003';"
            "document.getElementById('find').dispatchEvent(new Event('input'))"
        )
        assert page.run(NAMES) == ["0003"]
        page.run("document.querySelector('[data-client]').focus()")
        page.press("Enter")  # as people without a mouse do
        page.wait("document.getElementById('client').open")
        assert page.run("document.getElementById('client-title').textContent") == "Client 0003"
        page.press("Escape")
        page.wait("!document.getElementById('client').open")


def test_another_metric_takes_the_place_of_accuracy(page: Page, tmp_path: Path) -> None:
    numbers = {
        "shared_error": 0.5,
        "shared_loss": 1.0,
        "personal_error": 0.25,
        "personal_loss": 2.0,
    }
    metric = {"name": "error", "lower_is_better": True}
    run = write_run(
        tmp_path / "run", event(1, clients=["a"], metrics=numbers, metric=metric) + "\n"
    )
    columns = {name: [value] for name, value in numbers.items()}
    (run / "history.jsonl").write_text(json.dumps({"round": 1, "clients": ["a"], **columns}) + "\n")
    with serving(tmp_path) as visitor:
        visit(page, visitor.port)
        chosen = "[...document.getElementById('measure').options].map((one) => one.value).join()"
        page.wait(f"{chosen} === 'error,loss'")
        shown = "document.getElementById('personal').getAttribute('aria-label')"
        assert page.run(shown).startswith("personal error (lower is better) over rounds")
        heads = "[...document.querySelectorAll('#clients th button')].map((one) => one.textContent)"
        page.wait(f"{heads}.includes('difference')")
        assert page.run(heads)[:4] == ["client ↑", "shared", "personal", "difference"]
        assert page.run(f"{ROWS}[0].cells[3].textContent") == "+0.25"
        title = "document.getElementById('scatter-title').textContent"
        assert page.run(title).startswith("Decrease in error")


def test_a_client_shows_its_own_history(page: Page, tmp_path: Path) -> None:
    run = many(tmp_path / "run", 3, 4)
    line = {"clients": ["0001", "0002"], "shared_accuracy": [0.25, 0.5], "alpha": [0.125, 0.5]}
    line |= {"personal_accuracy": [0.375, 0.5]}
    history = [json.dumps(line | {"round": 1}), json.dumps(line | {"round": 3})[:50]]
    last = {"clients": ["0001"], "shared_accuracy": [0.75], "personal_accuracy": [0.875]}
    history.append(json.dumps(last | {"alpha": [0.625], "round": 4}))
    (run / "history.jsonl").write_text("\n".join(history) + "\n")
    with serving(tmp_path) as visitor:
        visit(page, visitor.port)
        page.run("document.querySelector('[data-client=\"0001\"]').click()")
        page.wait("document.getElementById('client').open")
        charts = "document.querySelectorAll('#client-course canvas')"
        page.wait(f"{charts}.length === 2")
        said = page.run(f"[...{charts}].map((one) => one.getAttribute('aria-label'))")
        assert said[0] == (
            "Its accuracy over the rounds. shared: 0.25 in round 1, 0.75 in round 4; "
            "personal: 0.375 in round 1, 0.875 in round 4."
        )
        assert said[1].endswith("α: 0.125 in round 1, 0.625 in round 4.")
        assert page.run(f"{charts}[0].getBoundingClientRect().width") > 100
        page.press("Escape")
        page.run("document.querySelector('[data-client=\"0000\"]').click()")
        page.wait("document.getElementById('client').open")
        page.wait(f"{charts}.length === 0")  # it was never evaluated


def test_an_open_client_follows_the_run(page: Page, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", event(1, clients=["a"]) + "\n", rounds=3)
    line = {"round": 1, "clients": ["a"], "shared_accuracy": [0.25], "personal_accuracy": [0.5]}
    (run / "history.jsonl").write_text(json.dumps(line) + "\n")
    with serving(tmp_path) as visitor:
        visit(page, visitor.port)
        shared = f"{ROWS}[0].cells[1].textContent"
        page.wait(f"{shared} === '0.25'")  # long before the run's table is there
        page.run("document.querySelector('[data-client=a]').click()")
        page.wait("document.getElementById('client').open")
        with open(run / "history.jsonl", "a") as file:
            file.write(json.dumps(line | {"round": 2, "shared_accuracy": [0.75]}) + "\n")
        with open(run / "events.jsonl", "a") as file:
            file.write(event(2, clients=["a"]) + "\n")
        said = "document.querySelector('#client-course canvas').getAttribute('aria-label')"
        page.wait(f"{said}.includes('0.75 in round 2')", 5)
        assert page.run(shared) == "0.75"


def test_what_is_personal_is_shown_where_a_run_has_it(page: Page, tmp_path: Path) -> None:
    many(tmp_path / "apfl", 20, 5)
    many(tmp_path / "plsgd", 20, 5, own=("personal_norm", "drift"))
    many(tmp_path / "fedavg", 20, 5, own=())
    drawn = "[...document.querySelectorAll('#spreads figure')].map((one) => one.dataset.name)"
    with serving(tmp_path) as visitor:
        visit(page, visitor.port)
        for run, names in {"apfl": OWN, "plsgd": OWN[1:], "fedavg": (), "apfl ": OWN}.items():
            page.run(
                f"document.getElementById('focus').value = '{run.strip()}';"
                "document.getElementById('focus').dispatchEvent(new Event('change'))"
            )
            hidden = "document.getElementById('personal-part').hidden"
            page.wait(f"{drawn}.join() === '{','.join(names)}'")
            assert page.run(hidden) == (not names)
        said = page.run("document.querySelector('#spreads canvas').getAttribute('aria-label')")
        assert said.startswith("α, the share of the own model. median: ")
        colours = page.run(
            "(() => { const c = document.querySelector('#spreads canvas');"
            "const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
            "return new Set(new Uint32Array(d.buffer)).size; })()"
        )
        assert colours > 3  # a line and its two bands, not an empty frame


def test_nodes_are_shown_with_their_last_contact(page: Page, tmp_path: Path) -> None:
    many(tmp_path / "run", 30, 5)
    write_run(tmp_path / "old", event(1) + "\n")
    with serving(tmp_path) as visitor:
        visit(page, visitor.port)
        page.run(
            "document.getElementById('focus').value = 'run';"
            "document.getElementById('focus').dispatchEvent(new Event('change'))"
        )
        rows = "[...document.querySelectorAll('#nodes tbody tr')]"
        page.wait(f"{rows}.length === 2")
        cells = page.run(f"{rows}.map((row) => [...row.cells].map((one) => one.textContent))")
        assert [(one[0], one[1], one[3], one[6]) for one in cells] == [
            ("0", "15", "5", "0"),
            ("1", "15", "1", "4"),  # heard of in round 1, then four times in vain
        ]
        assert cells[0][2] == "0000, 0002, 0004, 0006, 0008, 0010, 0012, 0014, …"
        assert "2001" in cells[0][4]  # the year of 1e9 seconds
        page.run(
            "document.getElementById('focus').value = 'old';"
            "document.getElementById('focus').dispatchEvent(new Event('change'))"
        )
        page.wait("document.getElementById('nodes-part').hidden")


def test_the_page_can_be_used_from_the_keyboard(page: Page, tmp_path: Path) -> None:
    many(tmp_path / "run", 5, 3)
    with serving(tmp_path) as visitor:
        visit(page, visitor.port)
        page.run("document.getElementById('only').focus()")
        page.press("Tab")  # the table, to scroll it
        page.press("Tab")
        focus = "document.activeElement"
        assert page.run(f"{focus}.dataset.column") == "client"
        assert page.run(f"getComputedStyle({focus}).outlineStyle") == "solid"
        page.press("Enter")
        assert page.run(
            "document.querySelector('#clients [aria-sort=descending]').textContent"
        ) == ("client ↓")
        assert page.run(f"{focus}.dataset.column") == "client"  # it is still there
        page.press("Enter")
        assert page.run(NAMES)[0] == "0000"


def test_the_table_of_clients_fits_a_desktop(page: Page, tmp_path: Path) -> None:
    many(tmp_path / "run", 30, 10)
    table = (tmp_path / "run" / "clients.csv").read_text().splitlines()
    rows = [f"{row},12.345678,1.2345678" for row in table[1:]]
    text = "\n".join([f"{table[0]},personal_norm,drift", *rows]) + "\n"
    (tmp_path / "run" / "clients.csv").write_text(text)
    with serving(tmp_path) as visitor:
        visit(page, visitor.port)
        region = "document.getElementById('clients').parentElement"
        assert page.run(f"{region}.scrollWidth <= {region}.clientWidth")


def test_runs_are_overlaid_and_told_to_screen_readers(page: Page, tmp_path: Path) -> None:
    for name in ("apfl", "fedavg"):
        write_run(tmp_path / name, event(1) + "\n" + event(2) + "\n", scheme=name)
    with serving(tmp_path) as visitor:
        visit(page, visitor.port)
        said = "document.getElementById('personal').getAttribute('aria-label')"
        page.wait(f"{said}.includes('apfl: 0.6 in round 1')")
        assert "fedavg: 0.6 in round 1" in page.run(said)
        page.run("document.querySelector('[data-run=apfl]').click()")
        page.wait(f"!{said}.includes('apfl')")
        unnamed = (
            "[...document.querySelectorAll('canvas[role=img]')]"
            ".filter((one) => one.offsetParent && !one.getAttribute('aria-label')).length"
        )
        assert page.run(unnamed) == 0
        assert page.run(
            "[...document.querySelectorAll('main input, main select')]"
            ".every((one) => one.labels.length || one.getAttribute('aria-label'))"
        )


def test_a_thousand_clients_and_rounds_are_there_in_two_seconds(page: Page, tmp_path: Path) -> None:
    """Of the page's own work: what others do on this machine does not count."""
    many(tmp_path / "run", 1000, 1000)
    with serving(tmp_path) as visitor:
        before = page.spent()
        visit(page, visitor.port)
        page.wait(f"{ROWS}.length === 500")
        assert page.spent() - before < 2
        # The history has been read: this process serves it, and must be free to look at its clock.
        spread = "document.querySelector('#spreads canvas')?.getAttribute('aria-label') ?? ''"
        page.wait(f"({spread}).includes('in round 1000')")
        before = page.spent()
        page.run("document.querySelector('[data-column=alpha]').click()")
        assert page.spent() - before < 1
        painted = (
            "(() => { const c = document.getElementById('participation');"
            "const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
            "return new Set(d).size; })()"
        )
        assert page.run(painted) > 10
        before = page.spent()
        page.run("document.querySelector('[data-client]').click()")
        page.wait("document.querySelectorAll('#client-course canvas').length > 1")
        assert page.spent() - before < 1
        told = visitor.get("/api/history", {"name": "run"}).text
        assert len(told) < 1_000_000  # of 70 million that the file has


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_needs_no_scrolling_sideways(page: Page, tmp_path: Path, scheme: str) -> None:
    many(tmp_path / "run", 30, 10)
    page.size(390, 844, phone=True)
    page.scheme(scheme)
    with serving(tmp_path) as visitor:
        visit(page, visitor.port)
        assert page.run("document.documentElement.scrollWidth") <= 390
        background = page.run("getComputedStyle(document.body).backgroundColor")
        assert background == {"light": "rgb(246, 247, 249)", "dark": "rgb(16, 20, 24)"}[scheme]


def test_hostile_names_are_text(page: Page, tmp_path: Path) -> None:
    run = many(tmp_path / "run", 3, 2)
    table = (run / "clients.csv").read_text()
    (run / "clients.csv").write_text(table.replace("0001,", '"<img src=x onerror=alert(1)>",'))
    with serving(tmp_path) as visitor:
        visit(page, visitor.port)
        assert "<img src=x onerror=alert(1)>" in page.run(NAMES)
        assert page.run("document.images.length") == 0


def test_an_empty_folder_says_so(page: Page, tmp_path: Path) -> None:
    with serving(tmp_path) as visitor:
        visit(page, visitor.port)
        assert page.run("!document.getElementById('none').hidden")


def test_a_token_opens_the_page_once_and_stays_out_of_the_address(
    page: Page, tmp_path: Path
) -> None:
    write_run(tmp_path / "run", event(1) + "\n")
    with serving(tmp_path, "sesame") as visitor:
        page.open(f"http://127.0.0.1:{visitor.port}/?token=sesame")
        page.wait(READY)
        assert page.run("location.search") == ""
        page.wait("document.querySelectorAll('#runs tbody tr').length === 1")
