"""A coordinator that runs honest studies with other shares of held-out rows, and takes differences.

Which rows a protected site holds out is no study's choice, so two runs rest on the same rows or on
rows that differ by many.
"""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import Ridge

from consilience import Columns, Federation
from consilience.methods.base import Ask
from consilience.methods.one_table.sparse_qda import SparseQDAStudy
from consilience.methods.reference_averaging.messages import Accepted
from tests.methods.test_reference_averaging import spread_rows
from tests.security.test_reference_attacks import asking, fit, hostile, offering, settings, table_of

SHARES = tuple(i / 100 for i in range(20, 31))


# --------------------------------------------------------------------------- differences of fits


def _sum_of_responses(table: pd.DataFrame, share: float, policy: str) -> tuple[int, float]:
    """Rows that are not held out, and the sum of their responses.

    A ridge of next to no slope is the mean response: an average of p + 1 that linear fits tell.
    """
    s = settings(Ridge(alpha=1e13), holdout=share)
    told: Accepted = hostile(table, lambda: offering(s), policy=policy)
    assert told.held.value > 0
    n = int(told.n.value) - int(told.held.value)
    answer = hostile(table, asking(s, Ask("fit", fit(s, spread_rows(9, 3)))), policy=policy)
    return n, n * float(np.mean(answer.fits.value[1]["at"]))


def _told_responses(policy: str) -> int:
    """Responses of single rows that runs with neighbouring shares tell."""
    table = table_of(100)
    sums = dict(_sum_of_responses(table, share, policy) for share in SHARES)
    steps = [abs(sums[n] - sums[n - 1]) for n in sums if n - 1 in sums]
    y = np.abs(table["y"].to_numpy())
    return sum(bool(np.abs(y - step).min() < 1e-7) for step in steps)


@pytest.mark.parametrize("policy", ["strict", "consortium"])
def test_shares_one_after_the_other_tell_no_response(policy: str) -> None:
    """Differences of two runs were the response of one row, eight times in ten.

    *Control*: where no record is protected they are.
    """
    assert _told_responses(policy) == 0
    assert _told_responses("simulation") >= 8


# ------------------------------------------------------------------- differences of covariances


def _scatter(table: pd.DataFrame, share: float) -> tuple[int, np.ndarray]:
    """Rows of the first class in the fit, and their sum of products about the mean, as told.

    Partial correlations beside entries of the precision matrix give its diagonal.
    """
    features = tuple(c for c in table.columns if c.startswith("x"))
    columns = Columns(features=features, target="y", levels={"y": ("a", "b")})
    federation = Federation.local({"s": table}, columns=columns, policy="strict")
    run = SparseQDAStudy(alpha=0.0, standardize=False, holdout=share).run(federation, seed=1)
    result, p = run.result, len(features)
    entry, partial = np.zeros((2, p, p))
    for (i, j), e, r in zip(
        result.pairs, result.precision[:, 0], result.partial[:, 0], strict=True
    ):
        entry[i, j] = entry[j, i] = e
        partial[i, j] = partial[j, i] = r
    square = (entry / np.where(partial == 0, 1.0, partial)) ** 2
    for i in range(p):
        j, k = (c for c in range(p) if c != i)
        entry[i, i] = np.sqrt(square[i, j] * square[i, k] / square[j, k])
    # How many rows are fitted an attacker counts in the errors that are told, or guesses.
    fitted = run.site("s").values("held_out") == 0
    n = int((fitted & (table["y"] == "a")).sum())
    return n, n * np.linalg.inv(entry)


def test_no_difference_of_two_covariances_is_a_row() -> None:
    """It had rank one: the row less its class mean, as it is, up to its sign."""
    rng = np.random.default_rng(5)
    table = pd.DataFrame(rng.normal(size=(200, 3)), columns=["x0", "x1", "x2"])
    table["x1"] += 0.6 * table["x0"]
    table["x2"] += 0.6 * table["x1"]
    table["y"] = np.where(np.arange(200) % 2, "a", "b")
    of_class = table[table["y"] == "a"][["x0", "x1", "x2"]].to_numpy()
    told = [_scatter(table, share) for share in (0.2, 0.21, 0.22, 0.23)]
    found = 0
    for (n, first), (m, second) in itertools.pairwise(told):
        values, vectors = np.linalg.eigh(first - second)
        if n == m + 1 and abs(values[1]) < 1e-6 * values[2]:
            # The mean without the row is told too; here that of the class is near enough.
            off = of_class - of_class.mean(axis=0)
            near = np.abs(off @ vectors[:, 2]) / np.linalg.norm(off, axis=1)
            found += int(near.max() > 0.99)
    assert told[0][0] < len(of_class) and found == 0
