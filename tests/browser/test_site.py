"""The documentation as a site: built without a warning, of this checkout alone."""

import functools
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from bouquet.cli import catalogue
from tests.browser.chromium import browser, program
from tests.pages import DOCS, ROOT, pages

NOT_CHOSEN = {"tune", "centralized"}  # a pipeline's stage, and no federation


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where it is built, with warnings as errors."""
    folder = tmp_path_factory.mktemp("site")
    words = ["build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", *words],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


def words_of(page: Path) -> str:
    return re.sub(r"<[^>]*>", "", page.read_text("utf-8"))


def test_it_has_every_page_key_command_and_decision(site: Path) -> None:
    for page in pages():
        assert (site / page).with_suffix(".html").exists()
    keys, commands = words_of(site / "keys.html"), words_of(site / "commands.html")
    for one in catalogue.read().keys:
        assert one.name in keys
    for name in ("simulate", "data describe", "superlink register", "node predict", "audit"):
        assert f"bouquet {name}" in commands
    assert "A scheme is its frozen keys" in words_of(site / "adr" / "index.html")
    assert "takes the mean of what comes back" in words_of(site / "reference.html")
    assert (site / "reproduce/results/apfl-figure4/figure.png").exists()


def test_every_scheme_is_on_the_page_about_choosing() -> None:
    text = (DOCS / "choosing.md").read_text("utf-8").partition("## What it costs")[2]
    schemes = {one.name for one in catalogue.read().schemes} - NOT_CHOSEN
    assert not {name for name in schemes if f"`{name}`" not in text}


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    """Where it is served."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.browser
@pytest.mark.skipif(program() is None, reason="chromium is not installed")
def test_pages_fit_a_phone_and_ask_no_other_host(site: Path, address: str) -> None:
    with browser() as page:
        page.size(390, 844, phone=True)
        for file in sorted(site.glob("*.html")):
            page.open(address + file.name)
            assert page.run("document.documentElement.scrollWidth") == 390, file.name
        assert not page.errors
        asked = {one for one in page.requests if not one.startswith(("data:", "blob:"))}
        assert all(one.startswith(address) for one in asked)
