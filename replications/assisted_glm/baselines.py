"""First-order training across parties, for comparison: FedSGD and FedBCD, tuned fairly.

Source: Liu, Zhang, Kang, Li, Chen, Hong and Yang, *FedBCD: A Communication-Efficient Collaborative
Learning Framework for Distributed Features*, IEEE Transactions on Signal Processing 70 (2022),
Algorithm 1 (parallel). In a round both parties exchange their parts of the linear predictor of a
batch; each then takes Q gradient steps on its own coefficients with the other's part held fixed
(and, with a proximal weight, a pull towards where the round began). FedSGD is Q = 1. Steps are
``eta0 / sqrt(k + 1)`` in round k.

What is done in the baselines' favour: they start from a's own fit instead of zero; every step size
of the grid is tried and chosen on validation data of the same size as the training data; the grid
grows until the choice lies inside it; and they are also run on columns that each party has
standardised, which steepest descent likes and the source does not do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

STEPS = tuple(np.logspace(-3, 2, 20).tolist())
"""First grid of eta0; it grows by another half of its length where the choice is at an end."""
LOCAL_STEPS = (5, 10, 25)
PROXIMAL = (0.0, 0.1)
BATCHES = (None, 32)
LOOK = 5
"""Rounds between looks at the training loss of every setting."""
LARGEST_ETA = 30.0
"""Linear predictors beyond this count as diverged."""


# --------------------------------------------------------------------------- families


def score(y: FloatArray, eta: FloatArray, family: str) -> FloatArray:
    """Derivative of the loss; `y` broadcasts against `eta`."""
    if family == "binomial":
        return 1.0 / (1.0 + np.exp(-eta)) - y
    return (np.exp(eta) if family == "poisson" else eta) - y


def loss(y: FloatArray, eta: FloatArray, family: str) -> FloatArray:
    """Mean loss over the records (axis 0), up to a constant in `y`."""
    if family == "binomial":
        each = np.logaddexp(0.0, eta) - y * eta
    elif family == "poisson":
        each = np.exp(eta) - y * eta
    else:
        each = 0.5 * np.square(y - eta)
    return np.asarray(each.mean(axis=0))


def auc(y: FloatArray, eta: FloatArray) -> float:
    """Share of pairs of a record with 1 and one with 0 that `eta` puts in order."""
    from scipy.stats import rankdata

    ones = y > 0.5
    n_ones, n_zeros = int(ones.sum()), int((~ones).sum())
    if min(n_ones, n_zeros) == 0:
        return float("nan")
    return float((rankdata(eta)[ones].sum() - n_ones * (n_ones + 1) / 2) / (n_ones * n_zeros))


# --------------------------------------------------------------------------- descent


@dataclass(frozen=True)
class Parties:
    """Columns of both parties; a's first one is the intercept's."""

    x_a: FloatArray
    x_b: FloatArray
    y: FloatArray
    family: str


@dataclass(frozen=True)
class Path:
    """Coefficients after every round, for m settings at once.

    Attributes
    ----------
    a, b : (rounds + 1, p, m) arrays
        Round 0 is the start.
    numbers : (rounds + 1,) array
        Numbers that have crossed between the parties, responses included.
    """

    a: FloatArray
    b: FloatArray
    numbers: NDArray[np.int64]

    def eta(self, parties: Parties, rounds: slice | int = slice(None)) -> FloatArray:
        """Linear predictors at some rounds: (..., n, m)."""
        return parties.x_a @ self.a[rounds] + parties.x_b @ self.b[rounds]


def descend(
    parties: Parties,
    start: FloatArray,
    steps: FloatArray,
    proximal: FloatArray,
    *,
    local_steps: int,
    batch: int | None,
    rounds: int,
    rng: np.random.Generator,
) -> Path:
    """Run m settings of FedBCD side by side, all on the same batches.

    Parameters
    ----------
    parties : Parties
    start : (p_a,) array
        a's coefficients at the start; b's are 0.
    steps, proximal : (m,) arrays
        eta0 and mu.
    local_steps : int
        Q.
    batch : int or None
        Records of a batch; None for all.
    rounds : int
    rng : numpy.random.Generator
        Order of the records.
    """
    n = len(parties.y)
    a = np.repeat(start[:, None], len(steps), axis=1)
    b = np.zeros((parties.x_b.shape[1], len(steps)))
    all_a, all_b = [a], [b]
    size = n if batch is None else batch
    queue = np.empty(0, dtype=np.int64)
    for k in range(rounds):
        if batch is None:
            x_a, x_b, y = parties.x_a, parties.x_b, parties.y[:, None]
        else:
            if len(queue) < batch:
                queue = rng.permutation(n)
            chosen, queue = queue[:batch], queue[batch:]
            x_a, x_b, y = parties.x_a[chosen], parties.x_b[chosen], parties.y[chosen, None]
        rate = steps / np.sqrt(k + 1.0)
        part_a, part_b = x_a @ a, x_b @ b
        a = _local(x_a, y, a, part_b, rate, proximal, local_steps, parties.family)
        b = _local(x_b, y, b, part_a, rate, proximal, local_steps, parties.family)
        all_a.append(a)
        all_b.append(b)
    # two parts of the predictor a round; a response when its record is first used
    numbers = 2 * size * np.arange(rounds + 1) + np.minimum(n, size * np.arange(rounds + 1))
    return Path(np.stack(all_a), np.stack(all_b), numbers)


def _local(
    x: FloatArray,
    y: FloatArray,
    beta: FloatArray,
    offset: FloatArray,
    rate: FloatArray,
    proximal: FloatArray,
    local_steps: int,
    family: str,
) -> FloatArray:
    now = beta
    for _ in range(local_steps):
        eta = np.clip(x @ now + offset, -LARGEST_ETA, LARGEST_ETA)
        gradient = x.T @ score(y, eta, family) / len(x)
        now = now - rate * (gradient + proximal * (now - beta))
    # a diverged setting stays finite, so that it cannot spoil the others' arithmetic
    return np.clip(np.nan_to_num(now, nan=1e6), -1e6, 1e6)


# --------------------------------------------------------------------------- tuning


@dataclass(frozen=True)
class Tuned:
    """The setting that predicts validation data best after the last round.

    Attributes
    ----------
    name : str
        "FedSGD" or "FedBCD".
    a, b : (rounds + 1, p) arrays
    numbers : (rounds + 1,) array
    step, local_steps, proximal, batch
        What was chosen.
    inside : bool
        The step lies inside its grid.
    best_loss : float
        Smallest training loss of any setting of this name after any fifth round: a choice that
        needs the answer.
    """

    name: str
    a: FloatArray
    b: FloatArray
    numbers: NDArray[np.int64]
    step: float
    local_steps: int
    proximal: float
    batch: int | None
    inside: bool
    best_loss: float

    def eta(self, parties: Parties, round_: int) -> FloatArray:
        return parties.x_a @ self.a[round_] + parties.x_b @ self.b[round_]


def tune(
    name: str,
    train: Parties,
    validation: Parties,
    start: FloatArray,
    *,
    rounds: int,
    rng: np.random.Generator,
    growths: int = 4,
) -> Tuned:
    """Choose step, local steps, proximal weight and batch of one baseline on validation data."""
    found: Tuned | None = None
    least, best = np.inf, np.inf
    for batch in BATCHES:
        for local_steps in (1,) if name == "FedSGD" else LOCAL_STEPS:
            weights = (0.0,) if name == "FedSGD" else PROXIMAL
            grid = np.asarray(STEPS)
            fresh, left = grid, growths
            finals = np.empty((0, len(weights)))
            while True:
                steps, proximal = (g.ravel() for g in np.meshgrid(fresh, weights, indexing="ij"))
                path = descend(
                    train,
                    start,
                    steps,
                    proximal,
                    local_steps=local_steps,
                    batch=batch,
                    rounds=rounds,
                    rng=rng,
                )
                final = _losses(path, validation, -1)
                looks = range(rounds, 0, -LOOK)
                best = min(best, *(float(_losses(path, train, k).min()) for k in looks))
                i = int(final.argmin())
                if final[i] < least:
                    least = float(final[i])
                    found = Tuned(
                        name,
                        path.a[:, :, i],
                        path.b[:, :, i],
                        path.numbers,
                        float(steps[i]),
                        local_steps,
                        float(proximal[i]),
                        batch,
                        True,
                        best,
                    )
                table = final.reshape(len(fresh), len(weights))
                # an extension lies wholly below or above what is there
                below = fresh[0] < grid[0]
                finals = np.vstack([table, finals] if below else [finals, table])
                grid = np.union1d(grid, fresh)
                place = int(finals.min(axis=1).argmin())
                if 0 < place < len(grid) - 1 or left == 0:
                    break
                left -= 1
                ratio = grid[1] / grid[0]
                powers = ratio ** np.arange(1, len(STEPS) // 2 + 1)
                fresh = grid[-1] * powers if place else grid[0] / powers[::-1]
            if found is not None and found.batch == batch and found.local_steps == local_steps:
                inside = bool(grid[0] < found.step < grid[-1])
                found = Tuned(**{**vars(found), "inside": inside})
    if found is None:
        raise ValueError("every setting diverged")
    return Tuned(**{**vars(found), "best_loss": best})


def _losses(path: Path, parties: Parties, round_: int) -> FloatArray:
    """Mean loss after a round, for each setting; infinite where it diverged."""
    eta = path.eta(parties, round_)
    wild = ~np.isfinite(eta).all(axis=0) | (np.abs(eta).max(axis=0) >= LARGEST_ETA)
    value = loss(parties.y[:, None], np.clip(eta, -LARGEST_ETA, LARGEST_ETA), parties.family)
    return np.where(wild, np.inf, value)


def standardised(train: FloatArray, other: FloatArray) -> FloatArray:
    """Columns of `other` in units of the training columns; what a party can do on its own."""
    centre, scale = train.mean(axis=0), train.std(axis=0)
    result: FloatArray = (other - centre) / np.where(scale > 0, scale, 1.0)
    return result
