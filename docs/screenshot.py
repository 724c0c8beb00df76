"""Takes the README's picture of the dashboard: ``python docs/screenshot.py`` from the root.

It trains a few runs with three seeds each, opens them in chromium and saves what that shows.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.browser.chromium import browser  # noqa: E402
from tests.serving import serving  # noqa: E402

KEYS = {  # as in `make run`
    "data.clients": 20,
    "data.classes-per-client": 4,
    "data.test-fraction": 0.8,
    "rounds": 20,
    "eval-every": 1,
}


def main() -> None:
    """Train, look, save."""
    with tempfile.TemporaryDirectory() as folder:
        options = [word for name, value in KEYS.items() for word in ("-c", f"{name}={value}")]
        words = ["fedavg", "local", "apfl", "ditto", "--seeds", "0,1,2", *options, "--out", folder]
        subprocess.run([sys.executable, "-m", "bouquet", "compare", *words], check=True, cwd=ROOT)
        with serving(Path(folder)) as visitor, browser() as page:
            page.size(1200, 1000)
            page.scheme("light")
            page.open(f"http://127.0.0.1:{visitor.port}/#of=apfl-seed0")
            page.wait("document.querySelectorAll('#spreads canvas').length > 0")
            time.sleep(1)  # the last of the runs is drawn
            part = "document.getElementById('clients-part').getBoundingClientRect().bottom"
            page.size(1200, round(page.run(part)) + 16)  # all but nodes and costs
            time.sleep(1)
            page.picture(ROOT / "docs" / "dashboard.png", whole=False)


if __name__ == "__main__":
    main()
