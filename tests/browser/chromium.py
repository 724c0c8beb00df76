"""A real browser without a window, driven over its DevTools protocol."""

import base64
import itertools
import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

PATIENCE = 30.0  # seconds; the machine may have other things to do


def program() -> str | None:
    """Where the browser is, if it is installed."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


@dataclass
class Page:
    """A page, and what it did: messages on its console, and what it asked for."""

    socket: ClientConnection
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    loaded: int = 0
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask the browser for something."""
        number = next(self._numbers)
        self.socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            answer = self._hear(PATIENCE)
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return dict(answer["result"])

    def _hear(self, patience: float) -> dict[str, Any]:
        said = json.loads(self.socket.recv(timeout=patience))
        told = said.get("params", {})
        match said.get("method"):
            case "Runtime.exceptionThrown":
                self.errors.append(str(told["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if told["type"] in ("error", "warning"):
                self.errors.append(str(told["args"]))
            case "Log.entryAdded" if told["entry"]["level"] == "error":
                self.errors.append(str(told["entry"]))
            case "Network.requestWillBeSent":
                self.requests.append(told["request"]["url"])
            case "Page.loadEventFired":
                self.loaded += 1
        return dict(said)

    def open(self, address: str) -> None:
        """Go to an address and wait until it is loaded."""
        before = self.loaded
        self.call("Page.navigate", url=address)
        while self.loaded == before:
            self._hear(PATIENCE)

    def run(self, script: str) -> Any:
        """What a piece of JavaScript gives."""
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, condition: str, seconds: float = PATIENCE) -> None:
        """Wait until a piece of JavaScript is true."""
        end = time.monotonic() + seconds
        while not self.run(f"Boolean({condition})"):
            assert time.monotonic() < end, f"in vain for {condition}"
            time.sleep(0.05)

    def spent(self) -> float:
        """Seconds of a processor that the page has used since it was opened, whoever else did."""
        self.call("Performance.enable", timeDomain="threadTicks")
        told = {one["name"]: one["value"] for one in self.call("Performance.getMetrics")["metrics"]}
        return float(told["TaskDuration"])

    def press(self, key: str) -> None:
        """Press a key and let it go."""
        codes = {"Enter": 13, "Tab": 9, "Escape": 27}
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=codes[key],
                **(text if kind == "keyDown" else {}),
            )

    def size(self, width: int, height: int, *, phone: bool = False) -> None:
        """Be a screen of a size."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )

    def scheme(self, name: str) -> None:
        """Prefer ``light`` or ``dark``."""
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """Save a picture of the page as PNG."""
        taken = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(taken["data"]))


@contextmanager
def browser() -> Iterator[Page]:
    """Start a browser with an empty page, and end it."""
    found = program()
    assert found is not None, "chromium is not installed"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        options += ["--no-first-run", "--disable-background-networking", "--hide-scrollbars"]
        options += ["--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen(
            [found, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            with connect(_address(Path(profile)), max_size=None) as socket:
                page = Page(socket)
                for domain in ("Page", "Runtime", "Log", "Network"):
                    page.call(f"{domain}.enable")
                yield page
        finally:
            process.terminate()
            process.wait(PATIENCE)


def _address(profile: Path) -> str:
    """Where the browser's first page listens."""
    told, end = profile / "DevToolsActivePort", time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if told.exists() and told.read_text().count("\n"):
            port = told.read_text().splitlines()[0]
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json") as answer:
                pages = [one for one in json.load(answer) if one["type"] == "page"]
            if pages:
                return str(pages[0]["webSocketDebuggerUrl"])
        time.sleep(0.05)
    raise AssertionError("the browser does not start")
