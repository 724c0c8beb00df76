"""Commands that list what there is: schemes, keys, models."""

from typing import Annotated

import typer

from bouquet.cli import catalogue, completion, listing
from bouquet.cli.options import ConfigOption, KeysOption, key_values
from bouquet.core.errors import BadInput


def schemes(
    name: Annotated[
        str | None,
        typer.Argument(help="Show one scheme with its keys.", autocompletion=completion.schemes),
    ] = None,
) -> None:
    """The schemes there are, with their papers and keys.

    [bold]Example[/bold]

      bouquet schemes apfl
    """
    known = catalogue.read()
    if name is None:
        for scheme in known.schemes:
            _say(scheme)
        return
    ours = [scheme for scheme in known.schemes if scheme.name == name]
    scheme, keys = (ours[0], known.keys_under(name)) if ours else _from_outside(name)
    _say(scheme)
    print()
    listing.keys(keys)


def _say(scheme: catalogue.ListedScheme) -> None:
    listing.entry(scheme.name, scheme.title)
    for what, said in scheme.facts.items():
        listing.fact(what, said)


def _from_outside(name: str) -> tuple[catalogue.ListedScheme, list[catalogue.ListedKey]]:
    from bouquet.core.config import keys_of
    from bouquet.strategies.registry import find

    scheme = find(name)
    keys = [catalogue.listed_key(one) for one in keys_of(scheme, scheme.name)]
    return catalogue.listed_scheme(scheme), keys


def keys(
    word: Annotated[
        str,
        typer.Argument(
            help="Only keys with this in their name or meaning.",
            metavar="[WORD]",
            show_default=False,
            autocompletion=completion.key_names,
        ),
    ] = "",
) -> None:
    """Every key there is: its default, what is allowed, what it means.

    [bold]Examples[/bold]

      bouquet keys

      bouquet keys rounds

      bouquet keys apfl.
    """
    listed = catalogue.read().keys
    found = [one for one in listed if word.lower() in f"{one.name} {one.meaning}".lower()]
    if not found:
        raise BadInput(
            f"No key has {word!r} in its name or meaning; `bouquet keys` lists all there are."
        )
    listing.keys(found)


def models(
    name: Annotated[
        str | None, typer.Argument(help="Show one model: its layers, and what splits keep.")
    ] = None,
    shape: Annotated[
        str, typer.Option(help="An example's shape; empty for the model's own.", metavar="1x28x28")
    ] = "",
    classes: Annotated[
        int, typer.Option(help="How many classes; 0 for the model's own.", min=0)
    ] = 0,
    config: ConfigOption = None,
    keys: KeysOption = None,
) -> None:
    """The models there are, and the keys under [bold]model[/bold] and [bold]personal[/bold].

    [bold]Examples[/bold]

      bouquet models

      bouquet models resnet18 --shape 1x28x28 --classes 62

      bouquet models transformer -c model.blocks=2 -c personal.bottleneck=8
    """
    if name is not None:
        _show_model(name, shape, classes, key_values(config, keys))
        return
    known = catalogue.read()
    for model in known.models:
        listing.entry(model.name, model.doc)
    print()
    listing.keys(known.keys_under("model", "personal"))


def _show_model(name: str, shape: str, classes: int, values: dict[str, object]) -> None:
    """A model's layers, and how much of it is personal with each split."""
    from rich.table import Table

    from bouquet.cli.display import out
    from bouquet.models import MODELS
    from bouquet.models.summary import layers, shares
    from bouquet.settings import parse

    settings = parse(values | {"model.name": name})
    known = MODELS.get(name)
    try:
        sizes = tuple(int(size) for size in shape.split("x")) if shape else ()
    except ValueError:
        raise BadInput(f"--shape must be whole numbers such as 1x28x28, not {shape!r}.") from None
    if min(sizes, default=1) < 1:
        raise BadInput(f"--shape must be sizes of at least 1, not {shape!r}.")
    if known is None and ":" in name and not (sizes and classes):
        raise BadInput(f"The model {name!r} is yours: say --shape and --classes.")
    sizes = sizes or (known.shape if known else ())
    classes = classes or (known.classes if known else 0)
    extra = [settings.personal.split] if "personal.split" in values else []
    rows = shares(settings.model, settings.personal, sizes, classes, extra)
    out.print(
        f"[bold]{name}[/bold]  {known.doc if known else 'your own'}\n"
        f"for examples of {' x '.join(map(str, sizes))} and {classes} classes",
        highlight=False,
    )
    table = Table("layer", "what it is", "parameters", header_style="bold")
    for one in layers(settings.model, sizes, classes):
        table.add_row(one.name, one.kind, f"{one.size:,}")
    out.print(table)
    frozen = ["frozen"] if any(row.frozen for row in rows) else []
    heads = ("personal.split", "personal", "shared", *frozen, "share personal")
    table = Table(*heads, header_style="bold")
    for row in rows:
        part = row.personal / max(1, row.personal + row.shared + row.frozen)
        counts = [row.personal, row.shared, *[row.frozen] * len(frozen)]
        table.add_row(row.split, *(f"{count:,}" for count in counts), f"{part:.2%}")
    out.print(table)
