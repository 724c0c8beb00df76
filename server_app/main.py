"""The ServerApp."""

import threading
from collections.abc import Callable
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from server_app.loop import Event, run
from server_app.runfolder import RunFolder, new_folder
from strategies.settings import Settings, parse


def make_app(
    settings: Settings,
    folder: RunFolder,
    *,
    engine: str,
    resume: bool,
    observe: Callable[[Event], None],
    stop: threading.Event,
    finish: Callable[[dict[str, Any]], None],
) -> ServerApp:
    """A ServerApp for one run of ours; see :func:`server_app.loop.run`.

    ``finish`` is given the summary: a ServerApp has no other way to return anything.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        finish(
            run(grid, settings, folder, engine=engine, resume=resume, observe=observe, stop=stop)
        )

    return app


app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run as ``flwr run`` asks, with the keys of its run config."""
    settings = parse(context.run_config)
    run(grid, settings, new_folder(settings), engine="flwr")
