"""A web page about runs that follows them as they go on.

It only reads, it only answers those who may ask, and it needs no other host: a page on
another site that makes its visitor's browser ask this server is refused by the Host header,
or has no token.
"""

import asyncio
import json
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import uvicorn
from fastapi import FastAPI, HTTPException, Query, Request
from fastapi.responses import (
    FileResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)

from bouquet.core.errors import BadInput
from bouquet.core.measure import LOSS
from bouquet.storage.runs import Run
from bouquet.watch.live import Watch
from bouquet.watch.views import client_details, curves, details, history_details, overview

WEB = Path(__file__).parent / "web"
KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
FILES = {file.name: file for file in WEB.iterdir() if file.suffix in KINDS}
HERE = frozenset({"127.0.0.1", "localhost", "::1"})
COOKIE = "bouquet-token"
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
POLL = 0.5  # seconds between looks at the folder
SILENCE = 15.0  # seconds after which a comment shows that the line still stands


def make_app(folder: Path, token: str = "", poll: float = POLL, awaited: bool = False) -> FastAPI:
    """The page's server.

    Parameters
    ----------
    folder : Path
        Of a run, or of many.
    token : str
        What visitors must show; without one, only this machine's names are answered.
    poll : float
        Seconds between looks at the folder.
    awaited : bool
        Whether the folder may be made later.
    """
    watch = Watch(folder, awaited)
    # FastAPI's own pages of documentation would ask another host for scripts.
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    @app.middleware("http")
    async def guard(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        refused = _refusal(request, token)
        response = refused if refused is not None else await answer(request)
        response.headers.update(HEADERS)
        return response

    @app.get("/api/runs")
    def runs() -> JSONResponse:
        return JSONResponse(overview(watch.runs()))

    @app.get("/api/run")
    def run(name: str) -> JSONResponse:
        return JSONResponse(details(_known(watch, name)))

    @app.get("/api/curves")
    def many_curves(name: Annotated[list[str], Query()]) -> JSONResponse:
        runs = watch.runs()  # one that was asked for may be gone a moment ago
        return JSONResponse(curves({one: runs[one] for one in name if one in runs}))

    @app.get("/api/history")
    def clients_history(name: str) -> JSONResponse:
        known = _known(watch, name)
        return JSONResponse(history_details(known, watch.history(known)))

    @app.get("/api/client")
    def client(run: str, client: str) -> JSONResponse:
        known = _known(watch, run)
        shown = client_details(known, client, watch.history(known))
        if shown is None:
            raise HTTPException(404, "There is no such client.")
        return JSONResponse(shown)

    @app.get("/api/stream")
    def stream() -> StreamingResponse:
        return StreamingResponse(_news(watch, poll), media_type="text/event-stream")

    @app.get("/metrics")
    def metrics() -> PlainTextResponse:
        return PlainTextResponse(_metrics(watch.runs()), media_type="text/plain; version=0.0.4")

    @app.get("/")
    @app.get("/{name}")
    def file(name: str = "index.html") -> Response:
        if name not in FILES:
            raise HTTPException(404, "There is no such page.")
        return FileResponse(FILES[name], media_type=KINDS[FILES[name].suffix])

    return app


def _refusal(request: Request, token: str) -> Response | None:
    """Why a visitor gets nothing, or what lets it in."""
    if request.method not in ("GET", "HEAD"):
        return PlainTextResponse("This server only reads.\n", 405)
    if not token:
        if _host_name(request.headers.get("host", "")) in HERE:
            return None
        return PlainTextResponse("This host name is not served.\n", 421)
    shown = request.query_params.get("token", "")
    if shown and request.url.path == "/" and _same(shown, token):
        # Out of the address bar and the history, into a cookie scripts cannot read.
        response = RedirectResponse("/", 303)
        response.set_cookie(COOKIE, token, httponly=True, samesite="strict")
        return response
    bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
    if _same(bearer, token) or _same(request.cookies.get(COOKIE, ""), token):
        return None
    return PlainTextResponse("Open the address with the token that was printed.\n", 401)


def _same(shown: str, token: str) -> bool:
    return secrets.compare_digest(shown.encode(), token.encode())


def _host_name(header: str) -> str:
    """The Host header without its port."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.rpartition(":")[0] if ":" in header else header


def _known(watch: Watch, name: str) -> Run:
    runs = watch.runs()
    if name not in runs:
        raise HTTPException(404, "There is no such run.")
    return runs[name]


async def _news(watch: Watch, poll: float) -> AsyncIterator[str]:
    """The overview whenever something has changed, with the names of the runs that did."""
    before: dict[str, object] | None = None
    silent = 0.0
    while True:
        now = await asyncio.to_thread(watch.stamps)
        if now != before:
            changed = [name for name in now if before is None or before.get(name) != now[name]]
            lines = await asyncio.to_thread(lambda: overview(watch.runs()))
            yield f"data: {json.dumps({'changed': changed, 'runs': lines})}\n\n"
            before, silent = now, 0.0
        elif silent > SILENCE:
            yield ": still here\n\n"
            silent = 0.0
        await asyncio.sleep(poll)
        silent += poll


def _metrics(runs: dict[str, Run]) -> str:
    """The runs' last numbers in Prometheus' format."""
    lines = []
    for line in overview(runs):
        label = json.dumps(line["name"])
        numbers: dict[str, Any] = {
            "round": line["round"],
            "rounds": line["rounds"],
            "running": int(line["state"] == "running"),
        }
        what = line["measure"]
        if what != LOSS.name:
            numbers |= {k: line[k] for k in (f"shared_{what}", f"personal_{what}")}
        for name, value in numbers.items():
            if value is not None:
                lines.append(f"bouquet_{name.replace('-', '_')}{{run={label}}} {value}")
    return "\n".join(sorted(lines)) + "\n"


def serve(folder: Path, host: str, port: int, token: str, say: Callable[[str], None]) -> None:
    """Serve the page until Ctrl-C.

    Parameters
    ----------
    folder : Path
        Of a run, or of many.
    host, port : str, int
        Where to listen; port 0 takes a free one.
    token : str
        What visitors must show; drawn anew where the host is not this machine alone.
    say : callable
        Told the address to open.
    """
    token = token or ("" if host in HERE else secrets.token_urlsafe(24))
    app = make_app(folder, token)
    listening = listen(host, port)
    address = f"[{host}]" if ":" in host else host
    question = f"?token={token}" if token else ""
    say(f"http://{address}:{listening.getsockname()[1]}/{question}")
    with listening, suppress(KeyboardInterrupt):  # the way to end it, not an accident
        make_server(app).run(sockets=[listening])


def make_server(app: FastAPI) -> uvicorn.Server:
    """What answers for the app, quietly, and ends without waiting for visitors."""
    return uvicorn.Server(
        uvicorn.Config(
            app, log_level="warning", timeout_graceful_shutdown=1, lifespan="off", ws="none"
        )
    )


def listen(host: str, port: int) -> socket.socket:
    """A socket for visitors, or a sentence that says why not."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise BadInput(f"--host {host} --port {port}: {error}.") from error
