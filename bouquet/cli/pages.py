"""Commands that make pages of runs: a report, a dashboard."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    folders: Annotated[
        list[Path], typer.Argument(help="Runs, or folders of runs.", metavar="DIR...")
    ],
    out: Annotated[
        Path, typer.Option(help="The page; figures and tables go beside it.", metavar="FILE.html")
    ] = Path("report.html"),
    paper: Annotated[
        Path | None,
        typer.Option(
            help="A folder for figures as PDF and tables as LaTeX, sized for a paper.",
            metavar="DIR",
        ),
    ] = None,
) -> None:
    """Compare runs on one page that opens from disk: figures, tables, who is helped or hurt.

    [bold]Examples[/bold]

      bouquet report runs/20260101-120000-apfl-digits

      bouquet report runs/seed0 runs/seed1 runs/seed2 --out paper.html

      bouquet report runs --paper paper/results
    """
    from bouquet.cli.display import out as console
    from bouquet.report.page import write_report

    for path in write_report(folders, out, paper):
        console.print(str(path), highlight=False, soft_wrap=True)


def dashboard(
    folder: Annotated[
        Path, typer.Argument(help="A run, or a folder of runs.", metavar="[DIR]")
    ] = Path("runs"),
    host: Annotated[
        str, typer.Option(help="Where to listen; any but this machine needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one.", min=0, max=65535)] = 0,
    token: Annotated[
        str, typer.Option(help="What visitors must show; drawn where it is needed.")
    ] = "",
) -> None:
    """Watch runs in a browser, as they go on or afterwards; Ctrl-C ends it.

    [bold]Examples[/bold]

      bouquet dashboard

      bouquet dashboard runs/20260101-120000-apfl-digits --port 8000

      bouquet dashboard runs --host 0.0.0.0 --port 8000
    """
    from bouquet.cli.display import out
    from bouquet.watch.dashboard import serve

    serve(folder, host, port, token, lambda address: out.print(address, soft_wrap=True))
