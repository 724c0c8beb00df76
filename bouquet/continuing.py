"""Where a run begins and how one that stopped goes on: settings and folders brought together."""

from collections.abc import Mapping
from pathlib import Path

from bouquet.core.errors import BadInput
from bouquet.settings import Settings, parse
from bouquet.storage.runfolder import RunFolder, unused


def settings_of(folder: RunFolder) -> Settings:
    """The settings a run was started with."""
    return parse(folder.read_keys())


def new_folder(settings: Settings) -> RunFolder:
    """Choose the folder of a new run: the user's, or a new one under ``runs/``.

    Nothing is written yet: a run that is refused leaves nothing behind.
    """
    if not settings.run.out:
        folder = RunFolder(unused(f"{settings.scheme.name}-{settings.data.called}"))
    else:
        folder = RunFolder(Path(settings.run.out))
        folder.check_writable()
        if (folder.path / "config.toml").exists():
            raise BadInput(
                f"out: {folder.path} already holds a run; choose another folder, "
                f"or go on with --resume {folder.path}."
            )
    folder.check_writable()
    return folder


def resumed(folder: RunFolder, changes: Mapping[str, object]) -> Settings:
    """The settings to go on with: the run's own, with ``rounds`` raised where asked.

    It may go on on another device, for the machine may be another.

    Parameters
    ----------
    folder : RunFolder
        Of the run to resume.
    changes : mapping
        Keys the user gave. Any but ``rounds`` and ``device`` must be as the run had it.
    """
    if not (folder.path / "config.toml").exists():
        raise BadInput(f"--resume: {folder.path} holds no run (there is no config.toml in it).")
    if not folder.checkpoint.exists() and not folder.previous_checkpoint.exists():
        raise BadInput(f"--resume: {folder.path} holds no checkpoint; start the run again.")
    before = settings_of(folder)
    after = parse(before.flat() | dict(changes)).pinned()
    old, new = before.flat(), after.flat()
    for name in [*changes, *new]:  # what the user said comes first, what follows from it later
        value = new[name]
        if name not in ("rounds", "device") and value != old[name]:
            raise BadInput(
                f"--resume: {name} is {old[name]!r} in {folder.path} and cannot become {value!r}; "
                "only rounds may be raised."
            )
    folder.read_name()
    saved = folder.read_checkpoint()
    folder.check_events(saved.round)
    stages, done = after.stages, saved.round
    trains = stages[saved.stage - 1].scheme if saved.stage <= len(stages) else "nothing"
    if saved.scheme != trains:
        raise BadInput(f"{folder.checkpoint} is of scheme {saved.scheme!r}, not {trains!r}.")
    if after.run.rounds < done:
        raise BadInput(
            f"--resume: rounds must be at least {done}, the rounds already done, "
            f"not {after.run.rounds}."
        )
    return after


def disks_of(settings: Settings, folder: RunFolder) -> Path:
    """Where the nodes of a deployment on this machine keep what is personal."""
    return Path(settings.run.state_dir or folder.path / "devices")
