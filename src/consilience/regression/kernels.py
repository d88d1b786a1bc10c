"""A generalised linear model from sums of sites: steps, covariances, tests, and how sites differ.

A site's design has a column of ones first, then the columns of the study, centred and scaled by
numbers that all sites know. A *piece* is what a site tells of its rows at some coefficients: loss,
score and curvature. All that follows is computed from pieces, and is what the pooled rows would
give. The loss is minus the log likelihood at dispersion 1, up to terms in y alone; gamma and
Poisson have the log link, as has the negative binomial, whose variance is ``mean + alpha mean^2``;
binomial has the logit.

Sources: McCullagh and Nelder, Generalized Linear Models (1989), sections 2.5 and 4.4; Cameron and
Trivedi, Regression Analysis of Count Data (2013), section 3.3, for alpha; White (1980)
and MacKinnon and White (1985) for HC0 and HC1; Liang and Zeger (1986) for clusters; Cochran (1954)
for Q, Higgins and Thompson (2002) for I2. The estimate of a site is one scoring step from the
pooled fit: the site's own fit where the loss is a parabola, and as good as it in large sites that
do not differ much (Le Cam's one-step estimate: van der Vaart 1998, section 5.7).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg.blas import dsyrk
from scipy.special import digamma, expit, gammaln, polygamma

from consilience.arrays import FloatArray, IntArray
from consilience.numerics.families import Family, family

FAMILIES = ("gaussian", "binomial", "poisson", "gamma", "negative-binomial", "cox")
NEGATIVE = "negative-binomial"
COX = "cox"
DISPERSIONS = ("likelihood", "moments")
"""How alpha is estimated: by its likelihood, or so that Pearson's sum is its degrees of freedom."""
DISPERSED = ("gaussian", "gamma")
"""Families whose dispersion is estimated."""
CURVED = ("gamma", NEGATIVE)
"""Families whose curvature differs from its expectation."""
_BLOCK = 1024
"""Rows that are looked at together: their columns stay in a processor's cache."""
_DEPENDENT = 1e-10
"""Of a squared length of 1: what a column may have left beside the others."""
_MOST_STEPS = 50
_MANY_TABLES = 128 * math.log(2)
"""Logarithm of tables of counts that four sums of doubles do not tell from one another."""


def family_of(name: str, alpha: float = 1.0) -> Family:
    """Loss of a family, by the name that statisticians give it; alpha of the negative binomial.

    Of a Cox regression that of events in small intervals, whose means are ratios of hazards.
    """
    if name == NEGATIVE:
        return Family(name, alpha)
    return family({"gaussian": "normal", COX: "poisson"}.get(name, name))


# --------------------------------------------------------------------------- at a site


@dataclass(frozen=True, eq=False)
class Piece:
    """What a site tells of its rows at some coefficients.

    Attributes
    ----------
    n : float
        Rows; of a Cox regression events.
    theta : (q,) array
        The coefficients, that of the column of ones first; a Cox regression has none.
    loss, least, constant : float
        Sum of losses; of the least losses at each y; of terms of the log likelihood in y alone.
        The last two tell how many rows have each value of a count: NaN where those are few.
    pearson : float
        Sum of squared residuals over the variance function, where the dispersion is estimated.
    score : (q,) array
        First derivative of the loss.
    curvature : (q, q) array
        Second derivative.
    expected : (q, q) array or None
        Its expectation, where it differs.
    squares : (q, q) array or None
        Sum of squared scores of rows.
    shape : (q + 2,) array or None
        Where alpha is estimated: what is to be 0 for it, its derivative in alpha, and that of the
        score. NaN where the first two would tell how many rows have some count.
    """

    n: float
    theta: FloatArray
    loss: float
    least: float
    constant: float
    pearson: float
    score: FloatArray
    curvature: FloatArray
    expected: FloatArray | None = None
    squares: FloatArray | None = None
    shape: FloatArray | None = None

    def at(self, theta: FloatArray) -> Piece:
        """The same piece at other coefficients, by its parabola."""
        step = theta - self.theta
        turned = self.curvature @ step
        loss = self.loss + float(self.score @ step + step @ turned / 2)
        return dataclasses.replace(self, theta=theta, loss=loss, score=self.score + turned)

    @property
    def information(self) -> FloatArray:
        """Expected second derivative."""
        return self.curvature if self.expected is None else self.expected


@dataclass(frozen=True, eq=False)
class Design:
    """Ones, and columns about a centre in units of a scale: read by blocks of rows, never copied.

    Attributes
    ----------
    x : (n, p) array
    centre, scale : (p,) arrays
    """

    x: FloatArray
    centre: FloatArray
    scale: FloatArray

    @property
    def shape(self) -> tuple[int, int]:
        """Rows, and columns with that of ones."""
        return len(self.x), self.x.shape[1] + 1

    @property
    def units(self) -> FloatArray:
        """Scale of each column with that of ones, (q,)."""
        return np.concatenate([[1.0], self.scale])

    def blocks(self) -> Iterator[tuple[slice, FloatArray]]:
        """Some rows after the other (m, p), without ones, about the centre but unscaled.

        A block is overwritten by the next one.
        """
        n, p = self.x.shape
        kept = np.empty((min(n, _BLOCK), p))
        centre = np.tile(self.centre, (len(kept), 1))  # much quicker than one line for all rows
        for start in range(0, n, _BLOCK):
            some = self.x[start : start + _BLOCK]
            block = np.subtract(some, centre[: len(some)], out=kept[: len(some)])
            yield slice(start, start + len(some)), block

    def times(self, theta: FloatArray) -> FloatArray:
        """Linear predictor of each row, (n,)."""
        per_unit, found = theta[1:] / self.scale, np.empty(len(self.x))
        for part, block in self.blocks():
            found[part] = theta[0] + block @ per_unit
        return found


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a site.

    Attributes
    ----------
    design : Design
    y : (n,) array
    offset : (n,) array or None
        Part of the linear predictor with the coefficient 1.
    weight : (n,) array or None
    frequency : bool
        Whether a row stands for as many as its weight says. Else weights are of its precision: its
        variance is one over its weight of the others'.
    time : (n,) array or None
        Of a Cox regression: how long each was watched.
    """

    design: Design
    y: FloatArray
    offset: FloatArray | None = None
    weight: FloatArray | None = None
    frequency: bool = False
    time: FloatArray | None = None

    @property
    def n(self) -> float:
        """Rows, or what they stand for."""
        alike = self.weight is None or not self.frequency
        return float(len(self.y) if alike else self.weight.sum())  # type: ignore[union-attr]

    def eta(self, theta: FloatArray) -> FloatArray:
        """Linear predictor, (n,)."""
        own = self.design.times(theta)
        return own if self.offset is None else own + self.offset

    def some(self, part: slice) -> Rows:
        """A few of them, for what is asked of each alone: the design is not theirs."""
        offset, weight = (None if one is None else one[part] for one in (self.offset, self.weight))
        return Rows(self.design, self.y[part], offset, weight, self.frequency)

    def weighted(self, values: FloatArray) -> FloatArray:
        """What rows add to a sum, (n,)."""
        return values if self.weight is None else self.weight * values

    def squared(self, scores: FloatArray) -> FloatArray:
        """What rows add to the sum of squared scores, (n,): of n rows alike n times the square."""
        if self.weight is None:
            return scores**2
        return self.weight * scores**2 if self.frequency else (self.weight * scores) ** 2


@dataclass(frozen=True, eq=False)
class Terms:
    """What each row adds to the sums of a piece, (n,) each, times its columns where there are any.

    Attributes
    ----------
    score, curvature, expected, squares
        Of the sums of these names; `summed` has zeros in place of squares that are not asked for.
    pearson : (n,) array
        Zeros where the dispersion is not estimated.
    shape : (3, n) array or None
        See `shape_of`.
    """

    score: FloatArray
    curvature: FloatArray
    expected: FloatArray
    squares: FloatArray
    pearson: FloatArray
    shape: FloatArray | None = None


def terms_of(
    name: str, rows: Rows, eta: FloatArray, alpha: float = 1.0, estimate: str = ""
) -> Terms:
    """What each row adds at its linear predictor (n,)."""
    return _terms(name, rows, eta, family_of(name, alpha), alpha, estimate)[1]


def _terms(
    name: str, rows: Rows, eta: FloatArray, loss: Family, alpha: float, estimate: str
) -> tuple[FloatArray, Terms]:
    """Losses of rows, and what each adds."""
    y = rows.y
    if name == "binomial":
        # All three of two exponentials; the larger of both is at least a half.
        up, down = expit(eta), expit(-eta)
        lost = np.maximum(eta, 0) - np.log(np.maximum(up, down)) - y * eta
        score, expected = up - y, up * down
    else:
        lost, score, expected = loss.loss(y, eta), loss.score(y, eta), loss.expected_weight(eta)
    same = name not in CURVED
    weight = expected if same else loss.weight(y, eta)
    told = rows.weighted(expected)
    return lost, Terms(
        score=rows.weighted(score),
        curvature=told if same else rows.weighted(weight),
        expected=told,
        squares=rows.squared(score),
        # Of the others the dispersion is 1, and nobody asks.
        pearson=rows.weighted(score**2 / expected) if name in DISPERSED else np.zeros(len(y)),
        shape=shape_of(rows, eta, alpha, estimate) if estimate else None,
    )


def piece_of(name: str, rows: Rows, theta: FloatArray, **how: Any) -> Piece:
    """Sums over a site's rows at some coefficients, as `summed` says."""
    return summed(name, rows, theta, **how)[0]


def summed(
    name: str,
    rows: Rows,
    theta: FloatArray,
    *,
    squares: bool = False,
    alpha: float = 1.0,
    estimate: str = "",
) -> tuple[Piece, Terms]:
    """Sums over a site's rows at some coefficients, and what each row adds, in one pass over them.

    Parameters
    ----------
    name : str
        One of `FAMILIES`.
    rows : Rows
    theta : (q,) array
    squares : bool
        Whether squared scores are summed, too.
    alpha : float
        Of the negative binomial.
    estimate : str
        One of `DISPERSIONS` where alpha is to be estimated.
    """
    loss, design, theta = family_of(name, alpha), rows.design, np.asarray(theta, dtype=float)
    n, q = design.shape
    # Without weights the moments tell the expected curvature of gamma.
    known = name not in CURVED or (name == "gamma" and rows.weight is None)
    of = {"curvature": True, "expected": not known, "squares": squares}
    # Sums of products of columns; those with ones are lines.
    products = {key: np.zeros((q - 1, q - 1), order="F") for key, asked in of.items() if asked}
    lines = {key: np.zeros(q) for key in ("score", "turn", *products)}
    # Of each row only what is asked for, or differs from something else, is written down.
    asked = {"expected": name in CURVED, "squares": squares, "pearson": name in DISPERSED}
    names = ["score", "curvature", *(key for key, wanted in asked.items() if wanted)]
    each, shapes = np.empty((len(names), n)), np.empty((3, n if estimate else 0))
    lost, per_unit = 0.0, theta[1:] / design.scale
    *others, last = products
    room = np.empty((min(n, _BLOCK) if others else 0, q - 1))
    for part, block in design.blocks():
        some, eta = rows.some(part), theta[0] + block @ per_unit
        eta = eta if some.offset is None else eta + some.offset
        losses, terms = _terms(name, some, eta, loss, alpha, estimate)
        for place, key in enumerate(names):
            each[place, part] = getattr(terms, key)
        lost += float(some.weighted(losses).sum())
        adds = {"score": terms.score} | {key: getattr(terms, key) for key in products}
        if terms.shape is not None:
            shapes[:, part] = terms.shape
            adds["turn"] = terms.shape[2]
        for key, added in adds.items():
            lines[key][0] += added.sum()
            lines[key][1:] += added @ block
        for key, total in products.items():
            out = block if key == last else room[: len(block)]
            rooted = np.multiply(block, np.sqrt(adds[key])[:, None], out=out)
            products[key] = dsyrk(1.0, rooted.T, beta=1.0, c=total, overwrite_c=1)
    lines = {key: line / design.units for key, line in lines.items()}
    told = {}
    for key, a in products.items():
        whole = np.empty((q, q))
        whole[0] = whole[:, 0] = lines[key]
        whole[1:, 1:] = (np.triu(a) + np.triu(a, 1).T) / np.outer(design.scale, design.scale)
        told[key] = whole
    found = {"squares": np.zeros(n), "pearson": np.zeros(n)} | dict(zip(names, each, strict=True))
    found = {"expected": found["curvature"]} | found
    terms = Terms(**found, shape=shapes if estimate else None)
    shape = None
    if estimate:
        shape = np.concatenate([[shapes[0].sum(), shapes[1].sum()], lines["turn"]])
    piece = Piece(
        n=rows.n,
        theta=theta,
        loss=lost,
        least=float(rows.weighted(loss.least(rows.y)).sum()),
        constant=constant_of(name, rows, alpha),
        pearson=float(terms.pearson.sum()),
        score=lines["score"],
        curvature=told["curvature"],
        expected=told.get("expected"),
        squares=told.get("squares"),
        shape=shape,
    )
    return piece, terms


def shape_of(rows: Rows, eta: FloatArray, alpha: float, estimate: str) -> FloatArray:
    """What rows add to what is to be 0 for alpha, to its derivative, and to that of the score.

    Three lines, (3, n); the last one is times the design. By likelihood minus the derivative of the
    log likelihood in alpha; by moments Pearson's sum, from which the coordinator takes the degrees
    of freedom.
    """
    y, mu = rows.y, np.exp(np.minimum(eta, 500.0))
    over, gap = 1 / (1 + alpha * mu), y - mu
    if estimate == "likelihood":
        r = 1 / alpha
        far, bend = _digamma_apart(y, r)
        far = far - np.log1p(alpha * mu)
        first = r**2 * far - gap * over * r
        second = -2 * r**3 * far - r**4 * bend
        second += gap * (1 + 2 * alpha * mu) * (over * r) ** 2 - r**2 * mu * over
    else:
        first, second = gap**2 * over / mu, -((gap * over) ** 2)
    # of (mu - y) / (1 + alpha mu)
    turn = gap * mu * over**2
    return np.stack([rows.weighted(each) for each in (first, second, turn)])


def _digamma_apart(y: FloatArray, r: float) -> tuple[FloatArray, FloatArray]:
    """``digamma(y + r) - digamma(r)`` and the same of trigamma, also where r is large.

    There both are small differences of numbers that are not: of their series (Abramowitz and Stegun
    6.3.18, 6.4.12) terms are subtracted one by one.
    """
    if r < 1000:  # above it the series leaves out less than doubles do
        return digamma(y + r) - digamma(r), polygamma(1, y + r) - polygamma(1, r)
    first, square = -y / (r * (y + r)), -y * (y + 2 * r) / (r * (y + r)) ** 2
    cube, fourth = (y + r) ** -3 - r**-3, (y + r) ** -4 - r**-4
    apart = np.log1p(y / r) - first / 2 - square / 12 + fourth / 120
    return apart, first + square / 2 + cube / 6 - ((y + r) ** -5 - r**-5) / 30


def constant_of(name: str, rows: Rows, alpha: float = 1.0) -> float:
    """Terms of the log likelihood without a coefficient, with the sign of a loss.

    log y! of counts, with those of alpha; log y of gamma; for weights of precision half of minus
    log w of gaussian, and NaN of gamma: each row has a shape of its own.
    """
    if rows.weight is not None and not rows.frequency and name in DISPERSED:
        return float(-np.log(rows.weight).sum() / 2) if name == "gaussian" else math.nan
    if name in ("poisson", NEGATIVE):
        found = gammaln(rows.y + 1)
        if name == NEGATIVE:
            r = 1 / alpha
            found = found + gammaln(r) - gammaln(rows.y + r) - rows.y * math.log(alpha)
        return float(rows.weighted(found).sum())
    return float(rows.weighted(np.log(rows.y)).sum()) if name == "gamma" else 0.0


def rare_counts(told: FloatArray, least: int) -> bool:
    """Whether sums of logarithms of values tell of one that fewer rows than `least` have it.

    Of whole numbers they do, and of others that repeat unless so many tables of counts are possible
    that a sum of doubles, beside mean and variance, does not single one out.
    """
    times = np.unique(told, return_counts=True)[1]
    if least <= 1 or times.min() >= least:
        return False
    n, k = len(told), len(times)
    tables = gammaln(n + k) - gammaln(k) - gammaln(n + 1)
    return bool((told == np.floor(told)).all() or (k < n and tables < _MANY_TABLES))


def fit_alone(name: str, rows: Rows, alpha: float = 1.0) -> Piece | None:
    """A site's own fit by Newton steps, halved where the loss rises; None where there is none."""
    mean = float(rows.y.mean())
    theta = np.zeros(rows.design.shape[1])
    if not 0 < mean < (1 if name == "binomial" else math.inf) and name != "gaussian":
        return None
    theta[0] = start_of(name, mean)
    found = piece_of(name, rows, theta, alpha=alpha)
    for _ in range(_MOST_STEPS):
        try:
            step = -np.linalg.solve(found.curvature, found.score)
        except np.linalg.LinAlgError:
            return None
        size = float(np.abs(step).max())
        while True:
            tried = piece_of(name, rows, theta + step, alpha=alpha)
            if tried.loss <= found.loss + 1e-12 * abs(found.loss) or size < 1e-12:
                break
            step, size = step / 2, size / 2
        theta, found = theta + step, tried
        if size < 1e-9:
            rank = dependent_columns(found.curvature)
            return None if rank else piece_of(name, rows, theta, alpha=alpha)
    return None  # it runs away: some columns separate the rows


def start_of(name: str, mean: float) -> float:
    """Linear predictor of a mean."""
    if name == "binomial":
        return math.log(mean / (1 - mean))
    return mean if name == "gaussian" else math.log(mean)


# --------------------------------------------------------------------------- from moments


def piece_from_moments(
    name: str,
    n: float,
    mean: FloatArray,
    products: FloatArray,
    centre: FloatArray,
    scale: FloatArray,
    at: float,
    alpha: float = 1.0,
) -> Piece:
    """A piece from moments of columns and response, at coefficients of 0 but for the first.

    Exact for gaussian, whose loss is a parabola; for the others score and expected curvature are
    exact there, since all rows have one weight.

    Parameters
    ----------
    name : str
    n : float
    mean : (m + 1,) array
        Means of the columns, and of the response.
    products : (m + 1, m + 1) array
        Sums of products of deviations from these means.
    centre, scale : (m,) arrays
    at : float
        First coefficient: a linear predictor that all rows have.
    alpha : float
        Of the negative binomial.
    """
    away = (mean[:-1] - centre) / scale
    cross = np.zeros((len(away) + 1,) * 2)
    cross[0, 0], cross[0, 1:], cross[1:, 0] = n, n * away, n * away
    cross[1:, 1:] = products[:-1, :-1] / np.outer(scale, scale) + n * np.outer(away, away)
    losses, eta, y = family_of(name, alpha), np.array([at]), mean[-1:]
    mu, weight = (float(of(eta)[0]) for of in (losses.mean, losses.expected_weight))
    # The score of a row is a multiple of mean - y, and its expected square is the weight.
    over = float((losses.score(y, eta) - losses.score(y + 1, eta))[0])
    gap = np.concatenate([[0.0], products[:-1, -1] / scale])
    score = over * ((mu - mean[-1]) * cross[0] - gap)
    squares = products[-1, -1] + n * (mean[-1] - mu) ** 2
    # A loss is a line in y, but for the square of gaussian.
    loss = squares / 2 if name == "gaussian" else n * losses.loss(y, eta)[0]
    theta = np.concatenate([[at], np.zeros(len(away))])
    pearson = float(squares * over**2 / weight)
    return Piece(float(n), theta, float(loss), 0.0, 0.0, pearson, score, weight * cross)


def dependent_columns(gram: FloatArray) -> list[int]:
    """Columns that the columns before them give, by elimination in their order.

    Parameters
    ----------
    gram : (m, m) array
        Sums of products of the columns.
    """
    lengths = np.sqrt(np.maximum(np.diag(gram), 0.0))
    left = gram / np.outer(*(np.where(lengths > 0, lengths, 1.0),) * 2)
    found = []
    for j in range(len(gram)):
        if left[j, j] <= _DEPENDENT:
            found.append(j)
            continue
        left = left - np.outer(left[:, j], left[j]) / left[j, j]
    return found


# --------------------------------------------------------------------------- over sites


@dataclass(frozen=True, eq=False)
class Pool:
    """Pieces of all sites as one problem.

    Attributes
    ----------
    pieces : tuple of Piece
        By site.
    own : bool
        Whether each site has a constant of its own.
    penalty : (m,) array
        Half of it times the squared slopes is added to the loss.
    bare : bool
        Whether there is no constant at all.
    """

    pieces: tuple[Piece, ...]
    own: bool
    penalty: FloatArray
    bare: bool = False

    @property
    def n_constants(self) -> int:
        """Constants of the model."""
        return 0 if self.bare else len(self.pieces) if self.own else 1

    @property
    def size(self) -> int:
        """Coefficients of the model."""
        return self.n_constants + len(self.penalty)

    @property
    def n(self) -> float:
        """Rows."""
        return sum(piece.n for piece in self.pieces)

    def places(self, site: int) -> IntArray:
        """Where the coefficients of a site are among those of the model."""
        first = [] if self.bare else [site if self.own else 0]
        return np.concatenate([first, np.arange(self.n_constants, self.size)]).astype(np.int64)

    def at(self, theta: FloatArray) -> Pool:
        """All pieces at other coefficients of the model, by their parabolas."""
        moved = tuple(p.at(theta[self.places(b)]) for b, p in enumerate(self.pieces))
        return dataclasses.replace(self, pieces=moved)

    def without_slopes(self) -> Pool:
        """Own fits of a Cox regression without columns, where its loss is 0."""
        moved = self.at(np.zeros(self.size))
        pieces = tuple(dataclasses.replace(piece, loss=0.0) for piece in moved.pieces)
        return dataclasses.replace(moved, pieces=pieces)

    def total(self, matrices: Sequence[FloatArray]) -> FloatArray:
        """Sum of matrices by site in the places of the model's coefficients."""
        if not self.own:
            return np.asarray(np.sum(matrices, axis=0))
        found = np.zeros((self.size, self.size))
        for b, matrix in enumerate(matrices):
            found[np.ix_(self.places(b), self.places(b))] += matrix
        return found

    def observed(self) -> Pool:
        """The same with observed curvatures alone."""
        pieces = tuple(dataclasses.replace(piece, expected=None) for piece in self.pieces)
        return dataclasses.replace(self, pieces=pieces)

    @property
    def theta(self) -> FloatArray:
        """Coefficients of the model at which the pieces are."""
        found = np.zeros(self.size)
        for b, piece in enumerate(self.pieces):
            found[self.places(b)] = piece.theta
        return found

    @property
    def scores(self) -> FloatArray:
        """Score of each site in the model's coefficients, (S, size)."""
        if not self.own:
            return np.stack([piece.score for piece in self.pieces])
        found = np.zeros((len(self.pieces), self.size))
        for b, piece in enumerate(self.pieces):
            found[b, self.places(b)] = piece.score
        return found

    @property
    def ridge(self) -> FloatArray:
        """The penalty of each coefficient; none of constants."""
        return np.concatenate([np.zeros(self.n_constants), self.penalty])

    @property
    def curvature(self) -> FloatArray:
        """Curvature of the penalised loss."""
        return self.total([p.curvature for p in self.pieces]) + np.diag(self.ridge)

    @property
    def information(self) -> FloatArray:
        """Expected curvature of the loss."""
        return self.total([p.information for p in self.pieces])

    @property
    def objective(self) -> float:
        """Loss with the penalty."""
        return sum(p.loss for p in self.pieces) + float(self.ridge @ self.theta**2) / 2

    def step(self, *, slopes: bool = True) -> FloatArray:
        """Newton's step to the least penalised loss, of all coefficients or of constants alone."""
        slope = self.scores.sum(axis=0) + self.ridge * self.theta
        moved = self.size if slopes else self.n_constants
        found = np.zeros(self.size)
        found[:moved] = -np.linalg.solve(self.curvature[:moved, :moved], slope[:moved])
        return found

    @property
    def shape(self) -> tuple[float, float, FloatArray]:
        """What is to be 0 for alpha, its derivative, and that of the score of the model."""
        told = [p.shape for p in self.pieces if p.shape is not None]
        turn = np.zeros(self.size)
        for b, one in enumerate(told):
            turn[self.places(b)] += one[2:]
        return float(sum(one[0] for one in told)), float(sum(one[1] for one in told)), turn

    def pearson(self, name: str) -> float:
        """Squared residuals over the variance function.

        A gaussian piece that was moved by its parabola has them in the loss.
        """
        return sum(2 * p.loss if name == "gaussian" else p.pearson for p in self.pieces)


@dataclass(frozen=True, eq=False)
class Fit:
    """A fit at its optimum, in the coordinates of the design.

    Attributes
    ----------
    theta : (k,) array
    covariance : (k, k) array
    scale : float
        Dispersion.
    df : float
        Degrees of freedom of intervals; infinite where they are normal.
    deviance, log_likelihood, aic : float
        NaN where a site does not tell what they need of the response alone.
    """

    theta: FloatArray
    covariance: FloatArray
    scale: float
    df: float
    deviance: float
    log_likelihood: float
    aic: float
    alpha_error: float = math.nan


ERRORS = ("model", "HC0", "HC1", "cluster")


def conclude(
    name: str, pool: Pool, errors: str, estimate: str = "", *, own_fits: bool = False
) -> Fit:
    """Covariance, dispersion and likelihood at the optimum.

    Parameters
    ----------
    name : str
        Family.
    pool : Pool
        Pieces at the optimum.
    errors : str
        One of `ERRORS`. "model": inverse information times the dispersion. "HC0", "HC1": the
        sandwich of rows' scores, the second times n / (n - k). "cluster": that of sites' scores,
        times G / (G - 1) (n - 1) / (n - k) for G sites.
    estimate : str
        How alpha was estimated. By likelihood errors of the model are of the observed curvature of
        coefficients and alpha together; all others, and beside a ridge, take alpha as known.
    own_fits : bool
        Whether residuals are about the own fit of each site, which has as many coefficients.

    Of a Cox regression n counts events, and there is no deviance.
    """
    n, k, g = pool.n, pool.size, len(pool.pieces)
    left = n - k
    about = n - sum(len(p.theta) for p in pool.pieces) if own_fits else left
    scale = pool.pearson(name) / about if name in DISPERSED else 1.0
    bread = np.linalg.inv(pool.curvature)
    df = left if name == "gaussian" else math.inf
    if errors == "model":
        covariance = scale * np.linalg.inv(pool.information)
        if estimate == "likelihood":
            _, bend, turn = pool.shape
            # of the inverse of both the part of the coefficients
            covariance = bread + np.outer(bread @ turn, bread @ turn) / (bend - turn @ bread @ turn)
        if pool.penalty.any():  # of an estimate that is shrunk
            covariance = scale * bread @ pool.information @ bread
    elif errors == "cluster":
        # Beside a ridge scores do not add up to 0: each site bears the pull on its rows.
        share = np.array([p.n for p in pool.pieces]) / n
        u = pool.scores - np.outer(share, pool.scores.sum(axis=0))
        covariance = bread @ (u.T @ u) @ bread * (g / (g - 1) * (n - 1) / left)
        df = float(g - 1)
    else:
        meat = pool.total([p.squares for p in pool.pieces if p.squares is not None])
        covariance = bread @ meat @ bread * (n / left if errors == "HC1" else 1.0)
    loss, least, constant = (
        sum(getattr(p, what) for p in pool.pieces) for what in ("loss", "least", "constant")
    )
    likelihood = log_likelihood(name, n, loss, constant, scale)
    alpha_error = math.nan
    if estimate == "likelihood":
        _, bend, turn = pool.shape
        left_over = bend - turn @ bread @ turn
        alpha_error = 1 / math.sqrt(left_over) if left_over > 0 else math.nan
    return Fit(
        theta=pool.theta,
        covariance=(covariance + covariance.T) / 2,
        scale=scale,
        df=df,
        deviance=math.nan if name == COX else 2 * (loss - least),
        log_likelihood=likelihood,
        aic=-2 * likelihood + 2 * (k + bool(estimate)),
        alpha_error=alpha_error,
    )


def log_likelihood(name: str, n: float, loss: float, constant: float, scale: float) -> float:
    """Log likelihood from the sum of losses, with the terms that hold no coefficient.

    Gaussian at its own variance, gamma at shape 1 / `scale`.
    """
    if name == "gaussian":
        return -n / 2 * (math.log(2 * math.pi * 2 * loss / n) + 1) - constant
    if name == "gamma":
        # sum of a log(a y / mu) - a y / mu - log Gamma(a) - log y with a = 1 / scale
        a = 1 / scale
        return n * (a * math.log(a) - float(gammaln(a))) - a * loss + (a - 1) * constant
    return -loss - constant


def slope_tests(name: str, null: Pool, full: Pool, fit: Fit) -> dict[str, tuple[float, int, float]]:
    """Wald, score and likelihood-ratio tests that all slopes are 0.

    Parameters
    ----------
    name : str
    null, full : Pool
        At the model of constants alone, and at the optimum, without a penalty.
    fit : Fit

    Returns
    -------
    dict of str to (statistic, df, p)
        Against chi-square.
    """
    m, constants = len(full.penalty), full.n_constants
    slopes = np.s_[constants:]
    theta, v = fit.theta[slopes], fit.covariance[slopes, slopes]
    # Errors by few clusters have not the rank to test all slopes at once.
    known = np.linalg.matrix_rank(v) == m
    wald = float(theta @ np.linalg.solve(v, theta)) if known else math.nan
    scale0 = null.pearson(name) / (null.n - constants) if name in DISPERSED else 1.0
    u = null.scores.sum(axis=0)
    score = float(u @ np.linalg.solve(null.information, u)) / scale0
    losses = [sum(p.loss for p in pool.pieces) for pool in (null, full)]
    if name == "gaussian":
        ratio = full.n * math.log(losses[0] / losses[1])
    else:
        ratio = 2 * (losses[0] - losses[1]) / fit.scale
    found = {"Wald": wald, "score": score, "likelihood ratio": ratio}
    return {what: (value, m, chi2_tail(value, m)) for what, value in found.items()}


def chi2_tail(statistic: float, df: float) -> float:
    """Chance of a larger value of a chi-square variable; NaN of an unknown one."""
    from scipy.stats import chi2  # scipy.stats takes long to load

    return float(chi2.sf(statistic, df)) if df > 0 else math.nan


# --------------------------------------------------------------------------- how sites differ


@dataclass(frozen=True, eq=False)
class Heterogeneity:
    """Estimates by site, and tests that they are of one value.

    Attributes
    ----------
    estimates, errors : (S, m) arrays
        Slopes, with the errors of the model; NaN of a site whose rows do not tell all of them.
    q, p_values, i2 : (m,) arrays
        Cochran's Q of each slope, on one less than the sites with an estimate; share of the
        differences between estimates that chance does not explain.
    n_sites : int
    statistic, df, p_value
        All slopes at once: the same with matrices.
    """

    estimates: FloatArray
    errors: FloatArray
    q: FloatArray
    p_values: FloatArray
    i2: FloatArray
    n_sites: int
    statistic: float
    df: int
    p_value: float

    def untested(self) -> Heterogeneity:
        """The estimates alone."""
        gap = np.full(self.q.shape, np.nan)
        return dataclasses.replace(
            self, q=gap, p_values=gap, i2=gap, statistic=math.nan, df=0, p_value=math.nan
        )

    def unknown(self) -> Heterogeneity:
        """Nothing at all, where nothing is known of single sites."""
        names = ("estimates", "errors", "q", "p_values", "i2")
        cut = {name: getattr(self, name)[:0] for name in names}
        return dataclasses.replace(self.untested(), **cut)


def heterogeneity(pool: Pool, scale: float, *, robust: bool = False) -> Heterogeneity:
    """Compare the slopes of sites, each with a constant of its own.

    ``b_s = theta - I_s^-1 u_s``, with variance ``scale I_s^-1``, or where `robust`, of the squared
    scores S_s, ``I_s^-1 S_s I_s^-1 n / (n - k)``. Over the sites
    ``Q = sum_s (b_s - b)' W_s (b_s - b)`` with ``W_s`` the inverse variance of the slopes and ``b``
    the mean weighted by it (Cochran 1954).

    Parameters
    ----------
    pool : Pool
        Pieces at the optimum.
    scale : float
        Dispersion, about constants by site.
    robust : bool
        Not to rest on the variances of the model, at a fit with constants by site.
    """
    m = len(pool.penalty)
    estimates, errors = (np.full((len(pool.pieces), m), np.nan) for _ in range(2))
    told: list[tuple[FloatArray, FloatArray]] = []
    for b, piece in enumerate(pool.pieces):
        lengths = np.sqrt(np.maximum(np.diag(piece.curvature), 0.0))
        if piece.n < 2 * (m + 1) or not (lengths > 0).all():
            continue
        unit = piece.curvature / np.outer(lengths, lengths)
        if np.linalg.eigvalsh(unit)[0] < 1e-8 or dependent_columns(piece.information):
            continue
        own = np.asarray(piece.theta - np.linalg.solve(piece.information, piece.score))
        inverse = np.linalg.inv(piece.information)
        whole = scale * inverse
        if robust and piece.squares is not None:
            whole = inverse @ piece.squares @ inverse * piece.n / (piece.n - len(own))
        slopes = np.s_[len(own) - m :]
        variance = np.asarray(whole[slopes, slopes])
        estimates[b], errors[b] = own[slopes], np.sqrt(np.diag(variance))
        told.append((own[slopes], variance))
    k = len(told)
    with np.errstate(invalid="ignore"):
        weight = np.nan_to_num(1 / errors**2)
        mean = (weight * np.nan_to_num(estimates)).sum(axis=0) / weight.sum(axis=0)
        q = (weight * np.nan_to_num(estimates - mean) ** 2).sum(axis=0)
        i2 = np.where(q > 0, np.maximum(1 - (k - 1) / np.where(q > 0, q, 1.0), 0.0), 0.0)
    if k < 2:
        gap = np.full(m, np.nan)
        return Heterogeneity(estimates, errors, gap, gap, gap, k, math.nan, 0, math.nan)
    weights = [np.linalg.inv(v) for _, v in told]
    turned = sum(w @ own for (own, _), w in zip(told, weights, strict=True))
    centre = np.linalg.solve(sum(weights), turned)
    gaps = [own - centre for own, _ in told]
    statistic = float(sum(gap @ w @ gap for gap, w in zip(gaps, weights, strict=True)))
    df = (k - 1) * m
    p_values = np.array([chi2_tail(float(one), k - 1) for one in q])
    p_value = chi2_tail(statistic, df)
    return Heterogeneity(estimates, errors, q, p_values, i2, k, statistic, df, p_value)


def in_units(
    theta: FloatArray, covariance: FloatArray, constants: int, centre: FloatArray, scale: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Coefficients and covariance for columns in their own units, from those of the design."""
    turn = np.eye(len(theta))
    turn[constants:, constants:] = np.diag(1 / scale)
    turn[:constants, constants:] = -centre / scale
    return turn @ theta, turn @ covariance @ turn.T
