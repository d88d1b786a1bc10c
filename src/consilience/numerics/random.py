"""Named random streams: the same seed and key give the same draws, whatever ran before."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from consilience.exceptions import ParameterError
from consilience.parameters import is_whole


def stream(seed: int, *key: str | int) -> np.random.Generator:
    """Return the generator of one key under one seed.

    The key's parts are length-prefixed and typed before they are hashed, so ``("a", "bc")``,
    ``("ab", "c")``, ``(1,)`` and ``("1",)`` are different streams.

    Parameters
    ----------
    seed : int
        Public seed of the run; any integer.
    *key : str or int
        For instance the site, the round and the step.

    Returns
    -------
    numpy.random.Generator
        PCG64 over ``SeedSequence`` of the SHA-256 of seed and key.

    Raises
    ------
    ParameterError
        If the seed is no integer, or a part of the key is neither a string nor an integer.
    """
    if not is_whole(seed):
        raise ParameterError.of("seed", "an integer", seed)
    digest = hashlib.sha256()
    for part in (int(seed), *key):
        if isinstance(part, str):
            kind, body = b"s", part.encode("utf-8")
        elif is_whole(part):
            kind, body = b"i", str(int(part)).encode("ascii")
        else:
            raise ParameterError.of("key", "made of strings and integers", part)
        digest.update(kind + len(body).to_bytes(8, "little") + body)
    words = np.frombuffer(digest.digest(), dtype="<u4")
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(words.tolist())))


def seed_of(random_state: Any) -> int:
    """Return a seed drawn from what scikit-learn takes as `random_state`.

    Parameters
    ----------
    random_state : int, RandomState or None

    Returns
    -------
    int
        From 0 to 2^31 - 2.

    Raises
    ------
    ParameterError
        It is none of these.
    """
    from sklearn.utils import check_random_state

    try:
        return int(check_random_state(random_state).randint(2**31 - 1))
    except ValueError:
        allowed = "None, a whole number from 0 to 4294967295 or a RandomState"
        raise ParameterError.of("random_state", allowed, random_state) from None
