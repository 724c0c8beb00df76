"""``bouquet reproduce``: the papers' tables and figures, beside the published numbers."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from bouquet.cli.options import QuietOption
from bouquet.cli.runs import Interrupted, quiet_flower


def reproduce(
    recipe: Annotated[
        str | None,
        typer.Argument(help="The experiment; without, they are listed.", metavar="RECIPE"),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A version of it that takes a few minutes.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of its runs, under runs/reproduce if not given; what is finished there is "
            "not run again.",
            metavar="DIR",
        ),
    ] = None,
    results: Annotated[
        Path | None,
        typer.Option(help="Write table and figure here too, one folder a recipe.", metavar="DIR"),
    ] = None,
    seeds: Annotated[
        str, typer.Option(help="Only these seeds instead of the recipe's.", metavar="0,1,2")
    ] = "",
    page: Annotated[
        Path | None,
        typer.Option(help="Write the page of all results in --results.", metavar="FILE"),
    ] = None,
    workers: Annotated[
        int, typer.Option(help="Runs that go side by side; 0 = one a core.", min=0)
    ] = 0,
    quiet: QuietOption = False,
) -> None:
    """Run a paper's experiment again and put it beside the published numbers.

    Keys that the paper tuned are chosen on the clients' validation data, never on
    test data. It goes on where it was stopped, if it is called again.

    [bold]Examples[/bold]

      bouquet reproduce

      bouquet reproduce apfl-table2 --quick

      bouquet reproduce apfl-table2 --results reproduce/results

      bouquet reproduce --page docs/reproductions.md --results reproduce/results
    """
    from bouquet.cli.recipes import show_outcome, show_recipes
    from bouquet.core.errors import BadInput
    from bouquet.reproduction.recipe import committed, find, names

    if page is not None:
        from bouquet.reproduction import page as pages

        if results is None or recipe is not None:
            raise BadInput("--page takes --results, the folder of all results, and no recipe.")
        page.write_text(pages.page(results), encoding="utf-8")
        return
    if recipe is None:
        show_recipes([find(name) for name in names()], committed())
        return
    from bouquet.comparison import read_seeds
    from bouquet.reproduction.figure import draw
    from bouquet.reproduction.running import keep
    from bouquet.reproduction.running import reproduce as run

    chosen = find(recipe, quick=quick)
    if seeds:
        chosen = replace(chosen, seeds=tuple(read_seeds(seeds)))
    place = out or Path("runs") / "reproduce" / f"{chosen.name}{'-quick' * quick}"
    quiet_flower()
    try:
        found = run(chosen, place, workers=workers, quiet=quiet)
    except KeyboardInterrupt:
        again = f"reproduce {recipe}{' --quick' * quick}{f' --seeds {seeds}' * bool(seeds)}"
        raise Interrupted(again, place, begun=place.exists(), option="--out") from None
    for folder in (place, *([results / chosen.name] if results else [])):
        keep(found, folder)
        draw(chosen, found, place, folder)
    show_outcome(chosen, found, place)
