"""What several commands take: their options, and the keys that these add up to."""

import tomllib
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bouquet.cli import completion
from bouquet.core.errors import BadInput

if TYPE_CHECKING:
    from bouquet.core.config import Key


class Engine(StrEnum):
    """What runs a simulation."""

    inline = "inline"
    ray = "ray"


EngineOption = Annotated[
    Engine, typer.Option(help="inline: this process, a thread a core; ray: a process a core.")
]
ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="TOML file of keys.", metavar="FILE.toml")
]
KeysOption = Annotated[
    list[str] | None,
    typer.Option(
        "-c",
        metavar="KEY=VALUE",
        help="Set a key (bouquet keys lists them); may be given many times.",
        autocompletion=completion.keys,
    ),
]
QuietOption = Annotated[
    bool, typer.Option("--quiet", help="No progress, and of the result the folder alone.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="The result as JSON instead of a table.")]
DashboardOption = Annotated[
    bool,
    typer.Option(
        "--dashboard",
        help="Serve a page about the run on this machine while it lasts; the page ends with the "
        "command, and bouquet dashboard shows it afterwards.",
    ),
]
TensorboardOption = Annotated[
    bool,
    typer.Option(
        "--tensorboard", help="Write TensorBoard files to tensorboard/ in the run's folder."
    ),
]
OutOption = Annotated[Path | None, typer.Option(help="The run's folder.", metavar="DIR")]
ResumeOption = Annotated[
    Path | None, typer.Option(help="Go on with the run in this folder.", metavar="DIR")
]


def key_values(
    config: Path | None,
    keys: list[str] | None,
    out: Path | None = None,
    resume: Path | None = None,
) -> dict[str, object]:
    """Keys of a file, then of ``-c``, then of options."""
    from bouquet.core.config import refuse_unknown
    from bouquet.settings import all_keys, plain_name, schemes_of
    from bouquet.storage.runfolder import read_toml

    if resume is not None and out is not None:
        raise BadInput("--resume goes on in the run's own folder; it does not go with --out.")
    values = {} if config is None else read_toml(config)
    pairs = {}
    for pair in keys or []:
        name, equals, text = pair.partition("=")
        if not equals:
            raise BadInput(f"-c takes KEY=VALUE, not {pair!r}.")
        pairs[name.strip()] = text.strip()
    known = {one.name: one for one in all_keys(schemes_of(values | pairs))}
    refuse_unknown(map(plain_name, [*values, *pairs]), known)
    for name, text in pairs.items():
        values[name] = _value(text, known[plain_name(name)])
    if out is not None:
        values["out"] = str(out)
    return values


def _value(text: str, key: "Key") -> object:
    """A value as TOML would read it; text needs no quotes."""
    if key.kind is str and not text.startswith(('"', "'")):
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
