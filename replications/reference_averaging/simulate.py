"""Simulated rows that are split over machines or sites: designs for reference averaging.

Source of the named designs: Ya Le's Stanford thesis, chapter 1 (with T. Hastie and E. Dobriban),
*A General Algorithm for Distributed Learning*, simulations and the ratings example.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray
from consilience.exceptions import ParameterError

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

Response = Literal["linear", "logistic"]

SIGNAL_TO_NOISE = 0.5
"""Variance of the linear predictor over that of the noise added to it."""


@dataclass(frozen=True, eq=False)
class SplitRows:
    """Rows of one population in several tables of the same columns.

    Attributes
    ----------
    tables : tuple of B pairs ((n_b, p) array, (n_b,) array)
        Columns and response of each site.
    coef : (p,) array
        True coefficients; the intercept is 0.
    noise : float
        Variance of what is added to the linear predictor.
    """

    tables: tuple[tuple[FloatArray, FloatArray], ...]
    coef: FloatArray
    noise: float

    @property
    def sizes(self) -> FloatArray:
        """Rows of each site: (B,)."""
        return np.array([len(y) for _, y in self.tables], dtype=float)

    @property
    def pooled(self) -> tuple[FloatArray, FloatArray]:
        """All rows, site after site."""
        return (
            np.concatenate([x for x, _ in self.tables]),
            np.concatenate([y for _, y in self.tables]),
        )

    def r2(self, coef: FloatArray, intercept: float = 0.0) -> float:
        """Share of a fresh response's variance that a linear fit explains, exactly.

        Only for independent standard normal columns with a linear response, where the error of a
        prediction is ``|coef - b0|^2 + intercept^2 + noise``.
        """
        lost = float(((np.asarray(coef) - self.coef) ** 2).sum() + intercept**2)
        signal = float((self.coef**2).sum())
        return 1.0 - (lost + self.noise) / (signal + self.noise)


# --------------------------------------------------------------------------- the source's designs


def simulate_split_rows(
    n_rows: int,
    n_columns: int,
    n_sites: int,
    *,
    rng: np.random.Generator,
    response: Response = "linear",
) -> SplitRows:
    """Simulate the source's design: independent normal columns, a sparse weak signal, equal sites.

    ``n_columns / 5`` coefficients are ``sqrt(2 log(p) / n)`` with n rows a site, about the least
    size that one site alone can tell from 0; the others are 0. The noise has twice the variance of
    the linear predictor and is added to it: to the response, or to the log-odds.

    Parameters
    ----------
    n_rows : int
        N, divided evenly (the source: 100,000).
    n_columns : int
        p, at least 5 (the source: 180 for logistic regression, 600 for the lasso).
    n_sites : int
        B (the source: 10, 25 and 50).
    rng : numpy.random.Generator
    response : {"linear", "logistic"}
        A number, or 0 and 1.

    Returns
    -------
    SplitRows

    Raises
    ------
    ParameterError
        A setting is out of its range.
    """
    if response not in get_args(Response):
        raise ParameterError.of("response", f"one of {get_args(Response)}", response)
    if n_columns < 5:
        raise ParameterError.of("n_columns", "at least 5", n_columns)
    if n_sites < 1:
        raise ParameterError.of("n_sites", "at least 1", n_sites)
    size = n_rows // n_sites
    if size < 1 or size * n_sites != n_rows:
        raise ParameterError.of("n_rows", "a positive multiple of n_sites", n_rows)
    coef = np.zeros(n_columns)
    coef[: n_columns // 5] = np.sqrt(2.0 * np.log(n_columns) / size)
    noise = float((coef**2).sum()) / SIGNAL_TO_NOISE
    tables = []
    for _ in range(n_sites):
        x = rng.standard_normal((size, n_columns))
        eta = x @ coef + np.sqrt(noise) * rng.standard_normal(size)
        y = eta if response == "linear" else _flip(eta, rng)
        tables.append((x, y))
    return SplitRows(tuple(tables), coef, noise)


def _flip(eta: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Draw 0 or 1 with log-odds eta."""
    return np.asarray(rng.uniform(size=eta.shape) * (1.0 + np.exp(-eta)) < 1.0, dtype=float)


# --------------------------------------------------------------------------- sites that differ


def simulate_unlike_sites(
    n_sites: int,
    n_columns: int,
    *,
    rng: np.random.Generator,
    sizes: tuple[int, int] = (30, 300),
    shift: float = 1.0,
    collinearity: float = 0.0,
    heterogeneity: float = 0.5,
    noise: float = 1.0,
) -> SplitRows:
    """Simulate sites of unequal size whose columns and coefficients differ.

    Every site has columns of its own means and scales, mixed in its own way, and coefficients of
    its own around the common ones.

    Parameters
    ----------
    n_sites, n_columns : int
        B and p.
    rng : numpy.random.Generator
    sizes : (int, int)
        Least and greatest number of rows, uniform between them.
    shift : float
        Standard deviation of a column's mean over sites; scales are log-normal with half of it.
    collinearity : float
        In [0, 1): share of a column's variance that is one common factor of the site.
    heterogeneity : float
        Standard deviation of a site's coefficients around the common ones, which are N(0, 1).
    noise : float
        Variance of the response around its mean.

    Returns
    -------
    SplitRows

    Raises
    ------
    ParameterError
        A setting is out of its range.
    """
    if n_sites < 1:
        raise ParameterError.of("n_sites", "at least 1", n_sites)
    if n_columns < 1:
        raise ParameterError.of("n_columns", "at least 1", n_columns)
    if not 1 <= sizes[0] <= sizes[1]:
        raise ParameterError.of("sizes", "an ascending pair of positive integers", sizes)
    if not 0 <= collinearity < 1:
        raise ParameterError.of("collinearity", "in [0, 1)", collinearity)
    spreads = {"shift": shift, "heterogeneity": heterogeneity, "noise": noise}
    for name, value in spreads.items():
        if not value >= 0:
            raise ParameterError.of(name, "0 or more", value)
    coef = rng.standard_normal(n_columns)
    tables = []
    for _ in range(n_sites):
        size = int(rng.integers(sizes[0], sizes[1] + 1))
        factor = rng.standard_normal((size, 1))
        own = rng.standard_normal((size, n_columns))
        mixed = np.sqrt(collinearity) * factor + np.sqrt(1.0 - collinearity) * own
        scales = np.exp(0.5 * shift * rng.standard_normal(n_columns))
        x = shift * rng.standard_normal(n_columns) + scales * mixed
        beta = coef + heterogeneity * rng.standard_normal(n_columns)
        tables.append((x, x @ beta + np.sqrt(noise) * rng.standard_normal(size)))
    return SplitRows(tuple(tables), coef, noise)


def simulate_curved_rows(
    n_rows: int, n_columns: int, *, rng: np.random.Generator, noise: float = 1.0
) -> tuple[FloatArray, FloatArray]:
    """Simulate a response that trees follow better than lines do.

    ``y = 10 sin(pi x1 x2) + 20 (x3 - 1/2)^2 + 10 x4 + 5 x5 + e`` with uniform columns on (0, 1),
    of which those beyond the fifth have no effect. Source: Friedman, *Multivariate Adaptive
    Regression Splines*, Annals of Statistics 19 (1991), section 4.3.

    Returns
    -------
    x : (n_rows, n_columns) array
    y : (n_rows,) array

    Raises
    ------
    ParameterError
        Fewer than 5 columns.
    """
    if n_columns < 5:
        raise ParameterError.of("n_columns", "at least 5", n_columns)
    x = rng.uniform(size=(n_rows, n_columns))
    mean = 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2
    mean += 10 * x[:, 3] + 5 * x[:, 4]
    return x, mean + np.sqrt(noise) * rng.standard_normal(n_rows)


# --------------------------------------------------------------------------- word counts


@dataclass(frozen=True, eq=False)
class SimulatedTexts:
    """Documents as rows of a sparse matrix, with a rating of each.

    Attributes
    ----------
    x : CSR matrix (n, p)
        Words of a document, each ``log(1 + count) * log(n / documents with it)``, rows of length 1.
    y : (n,) array
        Rating.
    coef : (p,) array
        Effect of each word.
    noise : float
        Variance of a rating around its mean.
    """

    x: csr_matrix
    y: FloatArray
    coef: FloatArray
    noise: float


def simulate_texts(
    n_rows: int,
    n_words: int,
    *,
    rng: np.random.Generator,
    length: float = 60.0,
    n_topics: int = 20,
    share_of_words: float = 0.02,
    noise_ratio: float = 1.0,
) -> SimulatedTexts:
    """Simulate ratings of texts from their words.

    A document has a log-normal number of words; each comes from the common vocabulary, whose
    frequencies fall as one over the rank, or (one in three) from the vocabulary of the document's
    topic. So columns are rare, of very unequal frequency, and correlated within a topic. A share
    of the words carries an effect. The source's ratings (1.6 million texts, 739 thousand words and
    pairs of words) are not public; this design has their shape at any size.

    Parameters
    ----------
    n_rows, n_words : int
        n and p.
    rng : numpy.random.Generator
    length : float
        Median number of words in a document.
    n_topics : int
    share_of_words : float
        In (0, 1]: words with an effect, evenly over the ranks of frequency.
    noise_ratio : float
        Variance of the noise over that of the linear predictor.

    Returns
    -------
    SimulatedTexts

    Raises
    ------
    ParameterError
        A setting is out of its range.
    """
    from scipy import sparse

    counts: dict[str, float] = {"n_rows": n_rows, "n_words": n_words, "n_topics": n_topics}
    for name, value in counts.items():
        if value < 1:
            raise ParameterError.of(name, "at least 1", value)
    if not 0 < share_of_words <= 1:
        raise ParameterError.of("share_of_words", "in (0, 1]", share_of_words)
    if not (length > 0 and noise_ratio >= 0):
        raise ParameterError("length must be positive and noise_ratio 0 or more")
    frequency = 1.0 / (np.arange(n_words) + 10.0)
    lengths = np.maximum(1, np.exp(np.log(length) + 0.5 * rng.standard_normal(n_rows))).astype(int)
    document = np.repeat(np.arange(n_rows), lengths)
    topical = rng.uniform(size=document.size) < 1.0 / 3.0
    topic = rng.integers(n_topics, size=n_rows)[document]
    word = np.empty(document.size, dtype=np.int64)
    word[~topical] = _words(frequency, int((~topical).sum()), rng)
    for place in range(n_topics):
        mine = topical & (topic == place)
        own = frequency * rng.gamma(0.1, 10.0, size=n_words)
        word[mine] = _words(own, int(mine.sum()), rng)
    x = sparse.csr_matrix((np.ones(word.size), (document, word)), shape=(n_rows, n_words))
    x.sum_duplicates()
    weighted = _weighted(x)
    with_effect = rng.uniform(size=n_words) < share_of_words
    coef = np.where(with_effect, rng.standard_normal(n_words), 0.0)
    eta = weighted @ coef
    noise = float(noise_ratio * eta.var())
    y = eta + np.sqrt(noise) * rng.standard_normal(n_rows)
    return SimulatedTexts(weighted, np.asarray(y), coef, noise)


def _words(weights: NDArray[Any], size: int, rng: np.random.Generator) -> NDArray[np.int64]:
    ends = np.cumsum(weights)
    drawn = np.searchsorted(ends, rng.uniform(size=size) * ends[-1], side="right")
    return np.minimum(drawn, len(weights) - 1)


def _weighted(counts: Any) -> Any:
    """Give frequent words less weight, and every document length 1."""
    found = counts.copy()
    documents = np.bincount(found.indices, minlength=found.shape[1])
    rarity = np.log(found.shape[0] / np.maximum(documents, 1))
    found.data = np.log1p(found.data) * rarity[found.indices]
    rows = np.repeat(np.arange(found.shape[0]), np.diff(found.indptr))
    size = np.sqrt(np.bincount(rows, weights=found.data**2, minlength=found.shape[0]))
    found.data /= np.where(size > 0, size, 1.0)[rows]
    return found


# --------------------------------------------------------------------------- rows in parts


def split_evenly(n_rows: int, n_sites: int) -> Sequence[slice]:
    """Return the places of consecutive parts whose sizes differ by at most one row."""
    if not 1 <= n_sites <= n_rows:
        raise ParameterError.of("n_sites", "at least 1 and at most the number of rows", n_sites)
    ends = [round(n_rows * b / n_sites) for b in range(n_sites + 1)]
    return [slice(a, b) for a, b in pairwise(ends)]
