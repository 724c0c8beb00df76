"""Several schemes and seeds on the same clients: a folder of runs that says what belongs there."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import tomli_w

from bouquet.core.errors import BadInput
from bouquet.imports import KEYS, absolute
from bouquet.storage.files import write_atomically
from bouquet.storage.runfolder import RunFolder, read_toml
from bouquet.strategies.registry import find

FILE = "compare.toml"


@dataclass(frozen=True)
class Comparison:
    """What belongs in the folder.

    Parameters
    ----------
    folder : Path
        Where the runs' folders are.
    schemes : tuple of str
        In order.
    seeds : tuple of int
        Each scheme runs with each of them; empty for one run a scheme with the key ``seed``.
    values : mapping
        The keys that all runs have in common.
    """

    folder: Path
    schemes: tuple[str, ...]
    seeds: tuple[int, ...]
    values: Mapping[str, object]

    def runs(self) -> dict[Path, dict[str, object]]:
        """Each run's folder, and the keys that are its own."""
        if not self.seeds:
            return {self.folder / find(one).name: {"scheme": one} for one in self.schemes}
        return {
            self.folder / f"{find(one).name}-seed{seed}": {"scheme": one, "seed": seed}
            for one in self.schemes
            for seed in self.seeds
        }

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Write down what belongs here; where it is refused, all is left as it was."""
        path = self.folder / FILE
        before = path.read_bytes() if path.exists() else None
        made = [one for one in (self.folder, *self.folder.parents) if not one.exists()]
        RunFolder(self.folder).check_writable()
        self.folder.mkdir(parents=True, exist_ok=True)
        told = {"schemes": self.schemes, "seeds": self.seeds, "keys": dict(self.values)}
        write_atomically(path, tomli_w.dumps(told).encode())
        try:
            yield
        except BaseException as error:
            if before is not None and isinstance(error, BadInput):
                write_atomically(path, before)
            if not any(one.is_dir() for one in self.folder.iterdir()):
                path.unlink()
                for one in made:
                    with suppress(OSError):  # somebody else's is in it by now
                        one.rmdir()
            raise


def started(
    folder: Path, schemes: Sequence[str], seeds: Sequence[int], values: Mapping[str, object]
) -> Comparison:
    """A new comparison."""
    if (folder / FILE).exists():
        raise BadInput(
            f"out: {folder} already holds a comparison; choose another folder, or go on with it, "
            f"or add to it, with --resume {folder}."
        )
    if not schemes:
        raise BadInput("compare takes schemes: bouquet compare fedavg local apfl.")
    found = {name: absolute(str(one)) if name in KEYS else one for name, one in values.items()}
    return Comparison(folder, tuple(map(absolute, schemes)), tuple(seeds), found)


def resumed(
    folder: Path, schemes: Sequence[str], seeds: Sequence[int], values: Mapping[str, object]
) -> Comparison:
    """A comparison to go on with, and what is added to it."""
    if not (folder / FILE).exists():
        raise BadInput(f"--resume: {folder} holds no comparison (there is no {FILE} in it).")
    told = read_toml(folder / FILE)
    before, sown = told.pop("schemes", None), told.pop("seeds", None)
    if not isinstance(before, list) or not isinstance(sown, list):
        raise BadInput(f"--resume: {folder / FILE} does not say which schemes and seeds.")
    if seeds and not sown:
        raise BadInput(f"--resume: {folder} was started without --seeds and cannot have them now.")
    keys = {name.removeprefix("keys."): value for name, value in told.items()}
    return Comparison(
        folder,
        tuple(dict.fromkeys([*before, *map(absolute, schemes)])),
        tuple(dict.fromkeys([*sown, *seeds])),
        keys | dict(values),
    )


def read_seeds(text: str) -> tuple[int, ...]:
    """Seeds as ``--seeds`` takes them."""
    words = [word.strip() for word in text.split(",")] if text else []
    if not all(word.isdecimal() for word in words) or len(set(words)) != len(words):
        raise BadInput(f"--seeds takes different whole numbers such as 0,1,2, not {text!r}.")
    return tuple(map(int, words))
