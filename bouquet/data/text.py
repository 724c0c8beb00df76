"""Text: what comes next, by speaker or by author, and film ratings by user."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from bouquet.core.errors import BadInput
from bouquet.data.archives import reading, zip_members
from bouquet.data.cache import fetched
from bouquet.data.examples import owned
from bouquet.data.federated import DataConfig, FederatedData
from bouquet.data.images import directory

# The 80 characters of LEAF's Shakespeare: known beforehand, so that no client need see
# another's text to number its own.
ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
CHARACTERS = 80  # of an example
SPEAKS = 1_000  # characters of a role that counts as a client
WORDS = 20  # of an example
VOCABULARY = 10_000  # words that are known
UNKNOWN, END = 0, 1  # of a word, and of a post


def shakespeare(config: DataConfig, seed: int, dtype: torch.dtype) -> FederatedData:
    """What the characters of 38 plays say, character by character.

    An example is 80 characters of a role and, as its labels, the 80 that come one later.
    Roles with fewer than 1,000 characters are left out; the last examples are held out.
    ``data.path`` may name a directory of plays in the same Markdown.
    """
    place = directory(config) if config.path else fetched(config.name)
    with reading(place):
        if config.path:
            plays = {str(file): file.read_bytes() for file in sorted(place.rglob("*.md"))}
        else:
            plays = zip_members(place, "plays/*/*.md")
        said = roles(plays)
    known = {character: number for number, character in enumerate(ALPHABET)}
    streams = {
        role: [known[character] for character in text if character in known]
        for role, text in sorted(said.items())
        if len(text) >= SPEAKS
    }
    return _next(config, seed, streams, CHARACTERS, len(ALPHABET))


def roles(plays: Mapping[str, bytes]) -> dict[str, str]:
    """What every role says; a role is called ``play-speaker``.

    Parameters
    ----------
    plays : mapping
        By path, Markdown with a line ``**SPEAKER**`` before every speech.
    """
    said: dict[str, list[str]] = {}
    for path, content in plays.items():
        speech: list[str] | None = None
        for line in content.decode("utf-8").splitlines():
            speaker = re.fullmatch(r"\*\*(.+)\*\*\s*", line)
            if speaker:
                speech = said.setdefault(f"{Path(path).stem}-{_slug(speaker[1])}", [])
            elif speech is not None and line.strip() and not line.startswith(("#", "_")):
                speech.append(line.strip().replace("—", "-") + "\n")  # headings, directions: no
    return {role: "".join(lines) for role, lines in said.items()}


def _slug(words: str) -> str:
    return re.sub(r"[^\w]+", "-", words).strip("-")


def stackoverflow(config: DataConfig, seed: int, dtype: torch.dtype) -> FederatedData:
    """Questions and answers by author, word by word: 20 words and the 20 one later.

    ``data.path`` has the official ``stackoverflow.word_count`` and the posts as JSON lines
    ``{"client": .., "tokens": "words between spaces"}`` in ``*.jsonl``. The 10,000 most
    frequent words are known; a post ends with a mark, and examples run on over it.
    """
    folder = directory(config)
    counts = folder / "stackoverflow.word_count"
    with reading(counts):
        frequent = Counter(json.loads(counts.read_text("utf-8"))).most_common(VOCABULARY)
    known = {word: number for number, (word, _) in enumerate(frequent, start=END + 1)}
    streams: dict[str, list[int]] = {}
    for file in sorted(folder.glob("*.jsonl")):
        with reading(file), open(file, encoding="utf-8") as lines:
            for line in lines:
                post = json.loads(line)
                words = [known.get(word, UNKNOWN) for word in post["tokens"].split()]
                streams.setdefault(str(post["client"]), []).extend([*words, END])
    long_enough = {client: stream for client, stream in streams.items() if len(stream) > 2 * WORDS}
    return _next(config, seed, long_enough, WORDS, len(known) + END + 1)


def _next(
    config: DataConfig, seed: int, streams: Mapping[str, Sequence[int]], length: int, classes: int
) -> FederatedData:
    """Examples of what comes next, from every client's stream."""
    if not streams:
        raise BadInput(f"data.path {config.path!r} has no client with enough text.")
    inputs, targets, owners = [], [], []
    for client, stream in streams.items():
        count = (len(stream) - 1) // length
        now = np.asarray(stream[: count * length + 1], dtype=np.int64)
        inputs.append(now[:-1].reshape(count, length))
        targets.append(now[1:].reshape(count, length))
        owners += [client] * count
    x, y = (torch.from_numpy(np.concatenate(parts)) for parts in (inputs, targets))
    return owned(config, seed, x, y, owners, classes, ordered=True)


def movielens(config: DataConfig, seed: int, dtype: torch.dtype) -> FederatedData:
    """MovieLens-100k: how 943 users rate films, 1 to 5, told by the film's kind and year.

    The inputs are a 1 for each of the film's genres and, last, the decades since 1900.
    """
    place = directory(config) if config.path else fetched(config.name)
    with reading(place):
        if config.path:
            tables = {end: (place / f"ml-100k.{end}").read_bytes() for end in ("item", "inter")}
        else:
            found = zip_members(place, "ml-100k/ml-100k.*")
            tables = {name.rpartition(".")[2]: content for name, content in found.items()}
        films = {row[0]: (row[2], row[3].split()) for row in _rows(tables["item"])}
        ratings = sorted(_rows(tables["inter"]), key=lambda row: float(row[3]))
        genres = sorted({genre for _, kinds in films.values() for genre in kinds})
        x = torch.zeros(len(ratings), len(genres) + 1, dtype=dtype)
        for number, (_, film, *_) in enumerate(ratings):
            year, kinds = films[film]
            x[number, [genres.index(genre) for genre in kinds]] = 1
            x[number, -1] = (int(year) - 1900) / 10 if year.isdigit() else 9.0  # a few have none
        y = torch.tensor([int(float(row[2])) - 1 for row in ratings])
        owners = [f"{int(row[0]):03d}" for row in ratings]
    return replace(owned(config, seed, x, y, owners, 5), names=("1", "2", "3", "4", "5"))


def _rows(table: bytes) -> Iterable[list[str]]:
    return [line.split("\t") for line in table.decode("utf-8").splitlines()[1:]]
