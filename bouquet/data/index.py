"""One file from the Python package index, without pip's building it.

``pip download`` of a source archive runs the ``setup.py`` in it, only to learn its name.
Here pip says which index it is set to, and the file is taken from there: the standard
page of a project (PEP 503, PEP 691) links every file.
"""

import html
import json
import os
import re
import ssl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.error import URLError
from urllib.parse import unquote, urldefrag, urljoin, urlsplit
from urllib.request import Request, urlopen

_PAGES = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"


def download(project: str, file: str, path: Path, progress: Callable[[int], None]) -> None:
    """Save a file of a project; ``ConnectionError`` says why it did not come."""
    try:
        page = f"{index_url().rstrip('/')}/{normalized(project)}/"
        with _open(page, _PAGES) as answer:
            links = links_of(answer.read().decode(), answer.headers.get_content_type(), page)
        if file not in links:
            raise ConnectionError(f"the index does not list {file}")
        done = 0
        with _open(links[file], "*/*") as answer, open(path, "wb") as target:
            while piece := answer.read(1 << 16):
                target.write(piece)
                done += len(piece)
                progress(done)
    except (URLError, TimeoutError, ssl.SSLError) as error:
        raise ConnectionError(str(getattr(error, "reason", error))) from error


def index_url() -> str:
    """The index pip is set to, by its own account."""
    listed = _pip("config", "list")
    set_by_user = re.search(r"^[^=]*\.index-url='([^']+)'$", listed, re.MULTILINE)
    if set_by_user:
        return set_by_user[1]
    built_in = re.search(r"Package Index \(default (\S+)\)", _pip("download", "--help"))
    if built_in is None:
        raise ConnectionError("pip does not say which index it uses")
    return built_in[1]


def links_of(page: str, kind: str, address: str) -> dict[str, str]:
    """File names on a project's page, and where the files are."""
    if kind.endswith("+json"):
        links = [entry["url"] for entry in json.loads(page)["files"]]
    else:
        links = [html.unescape(link) for link in re.findall(r'href="([^"]+)"', page)]
    whole = [urldefrag(urljoin(address, link)).url for link in links]
    return {unquote(urlsplit(link).path).rpartition("/")[2]: link for link in whole}


def normalized(project: str) -> str:
    """A project's name as the index spells it."""
    return re.sub(r"[-_.]+", "-", project).lower()


def _open(address: str, accept: str):  # type: ignore[no-untyped-def]  # urlopen's own is Any
    # Where pip trusts a certificate of its own, so do we.
    bundle = os.environ.get("PIP_CERT") or os.environ.get("REQUESTS_CA_BUNDLE")
    trust = ssl.create_default_context(cafile=bundle)
    return urlopen(Request(address, headers={"Accept": accept}), timeout=30, context=trust)


def _pip(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pip", *words],
        capture_output=True,
        text=True,
        env=os.environ | {"COLUMNS": "1000"},  # no address is broken over two lines
        check=False,
    )
    return done.stdout
