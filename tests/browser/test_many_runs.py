"""Many runs in the dashboard: found, sorted, grouped, drawn as somebody wishes, and shared."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from bouquet.colours import colour_of
from tests.browser.chromium import Page, program
from tests.browser.test_dashboard import READY, chromium, page
from tests.serving import serving
from tests.unit.test_report import event, write_run

__all__ = ["chromium", "page"]  # fixtures

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(program() is None, reason="chromium is not installed"),
]

TABLE = "[...document.querySelectorAll('#runs tbody tr')]"
NAMES = f"{TABLE}.map((row) => row.cells[1].textContent)"
HEADS = "[...document.querySelectorAll('#runs thead button')].map((one) => one.dataset.sort)"
LEGEND = "[...document.querySelectorAll('#legend > span')].map((one) => one.textContent)"


def measured(path: Path, started: float, personal: list[float], **keys: object) -> None:
    """A run whose shared model is right on a tenth, whose clients' own are as told."""
    lines = []
    for place, value in enumerate(personal, 1):
        numbers = {"shared_accuracy": 0.1, "shared_loss": 2.0}
        numbers |= {"personal_accuracy": value, "personal_loss": 1.0 - value}
        told = {"metrics": numbers, "seconds": 10.0, "time": started + 10 * place}
        lines.append(event(place, clients=["a", "b"], bytes_up=1000, **told))
    write_run(path, "\n".join(lines) + "\n", rounds=len(personal), **keys)
    (path / "summary.json").write_text(json.dumps({"helped": 1}))


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A comparison: two configurations of a scheme with their seeds, and another scheme."""
    folder = tmp_path_factory.mktemp("runs")
    for seed, last in enumerate((0.5, 0.6, 0.7)):
        measured(folder / f"low{seed}", 100 + seed, [0.3, last], seed=seed, **{"apfl.alpha": 0.1})
    for seed, last in enumerate((0.8, 0.9)):
        measured(folder / f"high{seed}", 200 + seed, [0.4, last], seed=seed, **{"apfl.alpha": 0.5})
    measured(folder / "mean", 300, [0.25, 0.25], scheme="fedavg")
    with serving(folder) as visitor:
        yield f"http://127.0.0.1:{visitor.port}/"


def look(page: Page, address: str) -> None:
    page.open("about:blank")  # else another # alone loads nothing
    page.open(address)
    page.wait(READY)
    page.wait("document.getElementById('personal').getAttribute('aria-label').includes(': ')")


def choose(page: Page, control: str, value: str, kind: str = "change") -> None:
    page.run(
        f"(() => {{ const one = document.getElementById('{control}'); one.value = '{value}';"
        f"one.dispatchEvent(new Event('{kind}')); }})()"
    )


def said(page: Page, chart: str = "personal") -> str:
    return str(page.run(f"document.getElementById('{chart}').getAttribute('aria-label')"))


def test_seeds_are_one_row_and_one_line(page: Page, address: str) -> None:
    look(page, address)
    assert page.run(NAMES) == ["mean", "2 seeds", "3 seeds"]  # the newest first
    cells = page.run(f"[...{TABLE}[2].cells].map((one) => one.textContent)")
    assert cells[4:6] == ["0.1", "0 1 2"]  # the key that differs, the seeds
    assert cells[-1] == "0.6 ± 0.1"
    assert page.run(LEGEND) == ["fedavg", "apfl alpha=0.5", "apfl alpha=0.1"]
    assert "apfl alpha=0.1: 0.3 in round 1, 0.6 in round 2" in said(page)
    page.run("document.getElementById('together').click()")
    page.wait(f"{NAMES}.length === 6")
    assert "apfl alpha=0.1, seed 2: 0.3 in round 1, 0.7 in round 2" in said(page)


def test_runs_are_sorted_by_any_column(page: Page, address: str) -> None:
    look(page, address + "#seeds=apart")
    assert page.run(NAMES) == ["mean", "high1", "high0", "low2", "low1", "low0"]
    page.run("document.querySelector('[data-sort=personal]').focus()")
    page.press("Enter")  # as people without a mouse do
    assert page.run(NAMES) == ["high1", "high0", "low2", "low1", "low0", "mean"]
    assert page.run("document.activeElement.dataset.sort") == "personal"
    assert page.run("document.querySelector('#runs [aria-sort=descending]').textContent") == (
        "personal ↓"
    )
    page.press("Enter")
    assert page.run(NAMES)[0] == "mean"
    page.run("document.querySelector('[data-sort=\"apfl.alpha\"]').click()")
    assert page.run(NAMES) == ["low0", "low1", "low2", "high0", "high1", "mean"]


def test_runs_are_found_by_words_and_keys(page: Page, address: str) -> None:
    look(page, address + "#seeds=apart")
    assert "apfl.alpha" in page.run(HEADS)
    choose(page, "q", "alpha=0.1", "input")
    page.wait(f"{NAMES}.join() === 'low2,low1,low0'")
    assert page.run("document.getElementById('listed').textContent") == "3 of 6 runs"
    assert "apfl.alpha" not in page.run(HEADS)  # the same in all that are listed
    page.wait(f"{LEGEND}.join('; ') === 'apfl, seed 2; apfl, seed 1; apfl, seed 0'")
    choose(page, "q", "", "input")
    choose(page, "scheme", "fedavg")
    page.wait(f"{NAMES}.join() === 'mean'")


def test_the_address_gives_the_same_view_again(page: Page, address: str) -> None:
    look(page, address)
    choose(page, "q", "apfl", "input")
    page.run("document.getElementById('together').click()")
    page.run("document.querySelector('[data-sort=personal]').click()")
    page.run("document.querySelector('[data-run=low0]').click()")
    choose(page, "measure", "loss")
    choose(page, "x", "bytes")
    choose(page, "y", "log")
    choose(page, "smooth", "3")
    choose(page, "focus", "low1")
    choose(page, "find", "b", "input")
    page.wait("document.querySelector('#clients [data-client=b]')")  # asked for a moment ago
    page.run("document.querySelector('#clients [data-client=b]').click()")
    page.wait("document.getElementById('client').open")
    shown = (
        "JSON.stringify([...document.querySelectorAll('input, select')].map((one) => one.type ==="
        " 'checkbox' ? one.checked : one.value)) + document.getElementById('client-title')"
        ".textContent + document.getElementById('personal').getAttribute('aria-label')"
    )
    before, there = page.run(shown), page.run("location.href")
    assert before.startswith('["apfl","","",false,')
    assert "after 2000 bytes" in before
    look(page, there)
    page.wait("document.getElementById('client').open")
    page.wait(f"{shown} === {json.dumps(before)}")
    page.press("Escape")
    page.wait("!location.hash.includes('client')")


def test_a_client_that_was_closed_stays_closed_when_an_answer_is_late(
    page: Page, address: str
) -> None:
    look(page, address + "#client=a")
    page.wait("document.getElementById('client').open")
    page.run(
        "(() => { const ask = window.fetch; window.held = [];"
        "window.fetch = (path) => path.startsWith('api/client') ?"
        "new Promise((done) => { window.held.push(() => done(ask(path))); }) : ask(path); })()"
    )
    page.run("location.hash = 'client=a&find=a'")  # asks again, as news do
    page.wait("window.held.length === 1")
    page.press("Escape")
    page.wait("!document.getElementById('client').open")
    late = "new Promise((done) => { window.held[0](); setTimeout(done, 300); })"
    assert page.run(f"{late}.then(() => document.getElementById('client').open)") is False


def test_an_axis_is_chosen_and_both_panels_have_the_same(page: Page, address: str) -> None:
    look(page, address)
    for kind, ends in {"seconds": "0.6 after 20 seconds", "bytes": "0.6 after 2000 bytes"}.items():
        choose(page, "x", kind)
        assert f"personal accuracy over {kind}" in said(page)
        assert ends in said(page)
    strip = (
        "['shared', 'personal'].map((id) => { const c = document.getElementById(id);"
        "return c.getContext('2d').getImageData(0, 0, 44, c.height).data.join(); })"
    )
    linear = page.run(strip)
    assert linear[0] == linear[1]  # the numbers beside the axes
    choose(page, "y", "log")
    log = page.run(strip)
    assert log[0] == log[1] != linear[0]


def test_clients_are_those_of_a_ticked_run(page: Page, address: str) -> None:
    look(page, address + "#seeds=apart&run=low0&run=low1")
    options = "[...document.getElementById('focus').options].map((one) => one.value).join()"
    focus = "document.getElementById('focus').value"
    assert (page.run(options), page.run(focus)) == ("low1,low0", "low1")
    page.run("document.querySelector('[data-run=mean]').click()")
    page.wait(f"{options} === 'mean,low1,low0'")
    page.run("document.querySelector('[data-run=mean]').click()")
    page.run("document.querySelector('[data-run=low1]').click()")
    page.wait(f"{focus} === 'low0'")
    page.run("document.querySelector('[data-run=low0]').click()")
    page.wait("document.getElementById('clients-part').hidden")
    page.run("document.querySelector('#runs thead [type=checkbox]').click()")  # all
    page.wait(f"{LEGEND}.length === 6")


@pytest.mark.parametrize("light", ["light", "dark"])
def test_a_scheme_has_its_colour_whatever_else_is_drawn(
    page: Page, address: str, light: str
) -> None:
    page.scheme(light)
    wanted = colour_of("apfl", dark=light == "dark")
    parts = ", ".join(str(int(wanted[place : place + 2], 16)) for place in (1, 3, 5))
    stroke = "getComputedStyle(document.querySelector('#legend > span:last-child line')).stroke"
    for runs in ("", "#run=high0"):
        look(page, address + runs)
        assert page.run(LEGEND)[-1].startswith("apfl")
        assert page.run(stroke) == f"rgb({parts})"
