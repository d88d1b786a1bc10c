"""Textbook judgement of sums of products beside usual values: every value, every record."""

from __future__ import annotations

import itertools

import numpy as np

MIN_RECORDS, MIN_ENTITIES = 10, 3


def forms_of(x: np.ndarray, i: int, j: int) -> np.ndarray:
    return np.round([x[:, i], x[:, j], x[:, i] + x[:, j], x[:, i] - x[:, j]], 9)


def shared(form: np.ndarray) -> np.ndarray:
    values, counts = np.unique(form, return_counts=True)
    return values[counts > 1]


def off_some(x: np.ndarray, entities: np.ndarray, chosen: np.ndarray) -> bool:
    """The textbook: every value of every form that two records share, every record looked at."""
    usual = {
        (i, j): [shared(form) for form in forms_of(x, i, j)]
        for i, j in itertools.combinations_with_replacement(range(x.shape[1]), 2)
    }
    x, entities = x[chosen], entities[chosen]

    def few(chosen: np.ndarray) -> bool:
        n = int(chosen.sum())
        many = n >= MIN_RECORDS and len(set(entities[chosen])) >= MIN_ENTITIES
        return n > 0 and not many

    p = x.shape[1]
    for i, j in itertools.combinations_with_replacement(range(p), 2):
        forms = zip(forms_of(x, i, j), usual[i, j], strict=True)
        for (u, at), (v, of) in itertools.product(forms, repeat=2):
            if any(few((u != a) & (v != b)) for a, b in itertools.product(at, of)):
                return True
    two = [j for j in range(p) if len(np.unique(x[:, j])) == 2]
    marks = {j: x[:, j] == x[:, j].max() for j in two}
    for a, b, c in itertools.combinations(two, 3):
        for s, t in itertools.product((False, True), repeat=2):
            if few(((marks[b] ^ s) == marks[a]) & ((marks[c] ^ t) == marks[a])):
                return True
    left = []
    for size in range(1, len(two) + 1):
        for some in itertools.combinations(two, size):
            for turned in itertools.product((False, True), repeat=size):
                levels = sum((marks[j] ^ t).astype(int) for j, t in zip(some, turned, strict=True))
                if (levels < 2).all():
                    left.append(levels == 0)
    if any(few(one & other) for one, other in itertools.combinations_with_replacement(left, 2)):
        return True
    return any(few(one & (x[:, j] != b)) for one in left for j in range(p) for b in usual[j, j][0])
