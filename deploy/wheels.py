"""Whether every dependency has a wheel for 64-bit ARM: ``python deploy/wheels.py``.

Takes what Bouquet needs, and what that needs, in the versions that are installed here, and has pip
find each for such a machine's Linux, allowed nothing but wheels. Nothing is installed.
"""

import json
import subprocess
import sys
import tempfile
import tomllib
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
# Of glibc 2.28 and older: what Debian 12 and Raspberry Pi OS take.
PLATFORMS = [f"manylinux{one}_aarch64" for one in ("_2_28", "_2_27", "_2_26", "_2_17", "2014")]
MACHINE = {"platform_machine": "aarch64", "sys_platform": "linux"}


def needed(requirements: list[str]) -> dict[str, str]:
    """What these come to on such a machine, all the way down, with versions."""
    found: dict[str, str] = {}
    waiting = [(line, "") for line in requirements]  # with the extra it is looked at for
    seen: set[tuple[str, str]] = set()
    while waiting:
        line, extra = waiting.pop()
        one = Requirement(line)
        if one.marker is not None and not one.marker.evaluate(MACHINE | {"extra": extra}):
            continue
        whole = distribution(one.name)
        found[one.name] = Version(whole.version).public  # without +cpu, which is of one index
        for wanted in {"", *one.extras}:
            if (one.name, wanted) not in seen:
                seen.add((one.name, wanted))
                waiting += [(further, wanted) for further in whole.requires or []]
    return found


def wheels(pinned: dict[str, str]) -> list[str]:
    """The wheel that pip takes for each."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        words = ["--dry-run", "--no-deps", "--only-binary=:all:", "--ignore-installed", "--quiet"]
        words += ["--target", folder, "--report", str(report), "--python-version", "3.11"]
        words += [word for platform in PLATFORMS for word in ("--platform", platform)]
        words += [f"{name}=={version}" for name, version in pinned.items()]
        done = subprocess.run(
            [sys.executable, "-m", "pip", "install", *words],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(done.stderr)
        found = json.loads(report.read_text("utf-8"))["install"]
    return sorted(one["download_info"]["url"].rpartition("/")[2] for one in found)


def main() -> None:
    """Print every wheel, and how many are for the machine."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    found = wheels(needed(project["dependencies"]))
    print("\n".join(found))
    built = sum(not wheel.endswith("-any.whl") for wheel in found)
    print(f"{len(found)} distributions have wheels, {built} of them built for 64-bit ARM.")


if __name__ == "__main__":
    main()
