"""Files that know when they were damaged.

A sealed file is a safetensors file whose metadata say what it is and carry a
checksum over themselves and every tensor. Reading one runs no code.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from safetensors import safe_open
from safetensors.torch import save

from bouquet.core.errors import BadInput
from bouquet.core.trees import Tree, digest, sha256

# Which examples a client's two models get right; written by nodes, read by reports.
OUTCOMES = "bouquet-outcomes-1"


class BadFile(BadInput):
    """A file that cannot be used; it is left as it is."""


class Damaged(BadFile):
    """A file whose content is not what was written."""


def seal(kind: str, header: Mapping[str, str], tensors: Tree) -> bytes:
    """The content of a sealed file of a kind, such as ``bouquet-checkpoint-1``."""
    words = {"format": kind, **header}
    whole = _apart(tensors)
    return bytes(save(whole, metadata=words | {"checksum": _checksum(words, whole)}))


def _apart(tensors: Tree) -> Tree:
    """Tensors that share no memory, as safetensors wants them; copied only where they do."""
    apart: Tree = {}
    seen: set[int] = set()
    for name, value in tensors.items():
        whole = value.contiguous()
        memory = whole.untyped_storage()
        if memory.nbytes() != whole.nbytes or memory.data_ptr() in seen:
            whole = whole.clone()
        seen.add(whole.untyped_storage().data_ptr())
        apart[name] = whole
    return apart


def unseal(path: Path, kind: str) -> tuple[dict[str, str], Tree]:
    """Header and tensors of a sealed file, or a sentence that names it and says why not."""
    words, tensors = _open(path, kind, contents=True)
    checksum = words.pop("checksum", "")
    try:
        whole = checksum == _checksum(words, tensors)
    except TypeError:  # tensors of a type that nothing here writes
        whole = False
    if not whole:
        raise Damaged(f"{path} is damaged (its checksum is wrong); it was left as it is.")
    return words, tensors


def check_kind(path: Path, kind: str) -> None:
    """Refuse what is not a whole file of a kind, without reading all of it."""
    _open(path, kind, contents=False)


def file_name(word: str) -> str:
    """A word, such as a client's id, as the name of a file: never a path, never ambiguous."""
    name = quote(word, safe="").replace(".", "%2E")
    return name if len(name) <= 200 else f"{name[:130]}-{digest([word.encode()])}"


def _open(path: Path, kind: str, contents: bool) -> tuple[dict[str, str], Tree]:
    try:
        with safe_open(path, framework="pt") as file:
            words = dict(file.metadata() or {})
            names = list(file.keys()) if contents else []
            tensors = {name: file.get_tensor(name) for name in names}
    except Exception as error:  # whatever safetensors and torch make of damaged bytes
        raise Damaged(f"{path} is damaged ({error}); it was left as it is.") from error
    if words.get("format") != kind:
        found = words.get("format", "an unknown format")
        raise BadFile(f"{path} is {found}, not {kind}; it was left as it is.")
    return words, tensors


def _checksum(words: Mapping[str, str], tensors: Tree) -> str:
    header = json.dumps(dict(words), sort_keys=True).encode()
    return digest([header, sha256(tensors).encode()])
