"""Commands about the conformance vectors: which there are, and comparing iterates with them."""

from pathlib import Path
from typing import Annotated

import typer

from bouquet.core.errors import BadInput

conformance_app = typer.Typer(
    no_args_is_help=True, help="Does a library compute what the papers say? Vectors to check it by."
)


@conformance_app.command("list")
def conformance_list() -> None:
    """The vectors there are, and where they are.

    [bold]Example[/bold]

      bouquet conformance list
    """
    from bouquet.cli import listing
    from bouquet.conformance import check

    for path in check.vectors():
        told = check.read_vector(path)
        variant = f", {told['variant']}" if told["variant"] else ""
        facts = f"{told['title']}{variant}; {told['problem']}, {len(told['rounds'])} rounds"
        listing.entry(path.stem, facts)
    print(f"\nThey are in {check.FOLDER}.")


@conformance_app.command("check")
def conformance_check(
    file: Annotated[str, typer.Argument(help="A name of the list, or a file of vectors.")],
    output: Annotated[
        Path | None,
        typer.Argument(
            help="JSON with the iterates of any library; without, our own scheme's are compared.",
            metavar="[OUTPUT]",
        ),
    ] = None,
) -> None:
    """Compare iterates with what the paper prescribes; exit code 1 where they deviate.

    [bold]Examples[/bold]

      bouquet conformance check apfl-mlp-sampled

      bouquet conformance check apfl-mlp-sampled mine.json
    """
    from bouquet.conformance import check

    try:
        vector = check.read_vector(check.find(file))
        if output is None:
            from bouquet.conforming import output as ours

            verdicts = check.compare(vector, ours(vector))
        else:
            verdicts = check.compare(vector, check.read(output))
    except check.CannotCompare as error:
        raise BadInput(str(error)) from None
    print(check.table(verdicts))
    if not check.agrees(verdicts):
        raise typer.Exit(1)
