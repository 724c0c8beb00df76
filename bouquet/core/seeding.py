"""Random generators named by what they are for, so that no draw depends on another."""

import hashlib

import numpy as np


def generator(*parts: int | str) -> np.random.Generator:
    """A generator that depends on nothing but the parts.

    Parameters
    ----------
    *parts : int or str
        For example ``generator(seed, "batches", client, round)``. The same parts
        give the same numbers in every process and on every machine.
    """
    words = [
        part
        if isinstance(part, int)
        else int.from_bytes(hashlib.sha256(part.encode()).digest()[:8])
        for part in parts
    ]
    return np.random.default_rng(np.random.SeedSequence(words))
