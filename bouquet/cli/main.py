"""The command line: its commands, and how it ends.

Exit codes: 0 for success, 1 for a run that failed, 2 for wrong input.
"""

import os
import sys
from typing import Annotated, NoReturn

import click
import typer

from bouquet.cli import conformance, data, edge, lists, pages, reproduce, runs
from bouquet.core.errors import BadInput, FetchFailed, RunFailed

# Torch, Ray and Flower take seconds to import, so commands import what they need
# themselves: `bouquet --help` answers at once.

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Federated learning where every client ends up with a model of its own.",
)
for command in (
    runs.simulate,
    runs.compare,
    runs.sweep,
    reproduce.reproduce,
    pages.report,
    pages.dashboard,
    runs.deploy,
    lists.schemes,
    lists.keys,
    lists.models,
    edge.export,
    edge.audit,
):
    app.command()(command)
app.add_typer(data.data_app, name="data")
app.add_typer(conformance.conformance_app, name="conformance")
app.add_typer(edge.superlink_app, name="superlink")
app.add_typer(edge.node_app, name="node")


def _say_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"bouquet {version('bouquet')}")
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_say_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Federated learning where every client ends up with a model of its own."""


def main() -> None:
    """Run the command line: one clear sentence for wrong input, never a traceback."""
    for name in ("FLWR_TELEMETRY_ENABLED", "RAY_USAGE_STATS_ENABLED"):
        os.environ.setdefault(name, "0")
    try:
        code = typer.main.get_command(app).main(prog_name="bouquet", standalone_mode=False)
        if code == 130:  # what typer makes of Ctrl-C
            _stop(1, "interrupted.")
        sys.exit(code)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(2)
    except click.ClickException as error:
        _stop(2, f"{error.format_message()} See bouquet --help.")
    except runs.Interrupted as error:
        _stop(1, str(error))
    except Exception as error:
        _explain(error)
        raise


def _explain(error: Exception) -> None:
    """End with a sentence where there is one for the error."""
    if isinstance(error, BadInput):
        _stop(2, str(error))
    if isinstance(error, FetchFailed):
        _stop(1, str(error))
    if isinstance(error, (RunFailed, OSError)):  # a full disk, say
        _stop(1, f"the run failed: {error}")


def _stop(code: int, sentence: str) -> NoReturn:
    print(f"bouquet: {sentence}", file=sys.stderr)
    sys.exit(code)
