"""Several schemes and seeds on the same clients: a folder of runs that says what belongs there."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import tomli_w

from bouquet.continuing import resumed
from bouquet.core.errors import BadInput
from bouquet.data import DataConfig
from bouquet.flower.inline import workers
from bouquet.imports import KEYS, absolute, called, is_offered, named_paths
from bouquet.jobs import Plan
from bouquet.storage.atomic import made, write_atomically
from bouquet.storage.runfolder import RunFolder, read_toml, unused
from bouquet.storage.runs import read_summary
from bouquet.strategies.registry import SCHEMES, find

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
    changes : mapping
        The keys that runs which are there already are told.
    """

    folder: Path
    schemes: tuple[str, ...]
    seeds: tuple[int, ...]
    values: Mapping[str, object]
    changes: Mapping[str, object]

    def runs(self) -> dict[Path, dict[str, object]]:
        """Each run's folder, and the keys that are its own."""
        if not self.seeds:
            return {self.folder / find(one).name: {"scheme": one} for one in self.schemes}
        return {
            self.folder / f"{find(one).name}-seed{seed}": {"scheme": one, "seed": seed}
            for one in self.schemes
            for seed in self.seeds
        }

    def plans(self) -> list[Plan]:
        """The runs that are not finished: to go on with, or to start."""
        plans = []
        for folder, own in self.runs().items():
            note = f" seed {own['seed']}" if "seed" in own else ""
            scheme = str(own["scheme"])
            values, changes = (
                {**common_to(scheme, self.schemes, one), **own}
                for one in (self.values, self.changes)
            )
            if not (folder / "config.toml").exists():
                plans.append(Plan(values | {"out": str(folder)}, note=note))
            elif not _finished(folder, changes):
                plans.append(Plan(changes, folder, note))
        return plans

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Write down what belongs here; where it is refused, all is left as it was.

        Objects of this process mean nothing to another one: of those nothing is written.
        """
        path = self.folder / FILE
        before = path.read_bytes() if path.exists() else None
        RunFolder(self.folder).check_writable()
        with made(self.folder):
            parts = [name for _, name in named_paths(self.values)]
            if not any(map(is_offered, (*self.schemes, *parts))):
                told = {"schemes": self.schemes, "seeds": self.seeds, "keys": dict(self.values)}
                write_atomically(path, tomli_w.dumps(told).encode())
            try:
                yield
            except BaseException as error:
                if before is not None and isinstance(error, BadInput):
                    write_atomically(path, before)
                if not any((run / "config.toml").exists() for run in self.runs()):
                    path.unlink(missing_ok=True)
                raise


def common_to(
    scheme: str, schemes: Sequence[str], values: Mapping[str, object]
) -> dict[str, object]:
    """The keys of several schemes' runs that one of them knows.

    Those that others bring from outside are left out.
    """
    outside = {find(one).name for one in schemes if one not in SCHEMES}
    foreign = outside - {find(scheme).name}
    return {n: v for n, v in values.items() if n.partition(".")[0] not in foreign}


def begun(
    schemes: Sequence[str],
    seeds: Sequence[int],
    values: Mapping[str, object],
    resume: Path | None = None,
) -> Comparison:
    """A comparison to start, or to go on with and add to.

    Parameters
    ----------
    schemes : sequence of str
        Names or import paths.
    seeds : sequence of int
        Empty for one run a scheme.
    values : mapping
        Flat keys; ``out`` is the comparison's folder.
    resume : Path, optional
        The folder of the one to go on with.
    """
    names = [find(one).name for one in schemes]
    for name in names:
        if names.count(name) > 1:
            raise BadInput(f"compare takes each scheme once, not {name!r} again.")
    if seeds and "seed" in values:
        raise BadInput("Set seed or --seeds, not both.")
    named = tuple(map(absolute, schemes))
    found = {name: absolute(str(one)) if name in KEYS else one for name, one in values.items()}
    if resume is not None:
        return _resumed(resume, named, tuple(seeds), found)
    return _started(named, tuple(seeds), found)


def _started(
    schemes: tuple[str, ...], seeds: tuple[int, ...], values: Mapping[str, object]
) -> Comparison:
    common = {name: value for name, value in values.items() if name != "out"}
    out = values.get("out")
    data = called(str(common.get("data.name") or DataConfig().name))
    folder = Path(str(out)) if out else unused(f"compare-{data}")
    if (folder / FILE).exists():
        raise BadInput(
            f"out: {folder} already holds a comparison; choose another folder, or go on with it, "
            f"or add to it, with --resume {folder}."
        )
    if not schemes:
        raise BadInput("compare takes schemes: bouquet compare fedavg local apfl.")
    nodes = values.get("nodes") or workers()  # the same, wherever it may go on
    return Comparison(folder, schemes, seeds, common | {"nodes": nodes}, common)


def _resumed(
    folder: Path,
    schemes: tuple[str, ...],
    seeds: tuple[int, ...],
    values: Mapping[str, object],
) -> Comparison:
    if not (folder / FILE).exists():
        raise BadInput(f"--resume: {folder} holds no comparison (there is no {FILE} in it).")
    told = read_toml(folder / FILE)
    before, sown = told.pop("schemes", None), told.pop("seeds", None)
    if not isinstance(before, list) or not isinstance(sown, list):
        raise BadInput(f"--resume: {folder / FILE} does not say which schemes and seeds.")
    if seeds and not sown:
        raise BadInput(f"--resume: {folder} was started without --seeds and cannot have them now.")
    keys = {name.removeprefix("keys."): value for name, value in told.items()} | dict(values)
    return Comparison(
        folder,
        tuple(dict.fromkeys([*before, *schemes])),
        tuple(dict.fromkeys([*sown, *seeds])),
        keys,
        dict(values) | {name: keys[name] for name in ("rounds",) if name in keys},
    )


def _finished(folder: Path, changes: Mapping[str, object]) -> bool:
    """Whether a run ended, and no more rounds are asked for."""
    rounds = resumed(RunFolder(folder), changes).run.rounds
    return read_summary(folder / "summary.json").get("rounds") == rounds


def read_seeds(text: str) -> tuple[int, ...]:
    """Seeds as ``--seeds`` takes them."""
    words = [word.strip() for word in text.split(",")] if text else []
    if not all(word.isdecimal() for word in words) or len(set(words)) != len(words):
        raise BadInput(f"--seeds takes different whole numbers such as 0,1,2, not {text!r}.")
    return tuple(map(int, words))
