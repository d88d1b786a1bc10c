"""Local models of coded rows: mixtures of Markov chains, and latent classes of categories.

A coded row holds whole numbers: the states of a sequence by time, or the level of each categorical
column; -1 is missing. Models have the face of `cluster_models`: parameters that label any row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.clustering.estimators.cluster_models import ClusterModel, model_from_arrays
from consilience.clustering.kernels.markov_mixture import (
    MarkovParameters,
    events_of,
    fit_markov_mixture,
)
from consilience.clustering.kernels.mixture_starts import information
from consilience.clustering.kernels.multinomial_mixture import (
    CategoryPatterns,
    MultinomialMixture,
    fit_multinomial_mixture,
)
from consilience.clustering.kernels.sequences import Sequences
from consilience.clustering.kernels.told_tables import Entries, Sums, told_tables
from consilience.exceptions import DataError

Arrays = dict[str, NDArray[Any]]
CodedKind = Literal["markov-mixture", "latent-class"]

PSEUDO_COUNT = 0.1
DRAWN_SHARE = 0.8
"""Share of the rows that a site draws in secret for each of its models."""
MODELS_IN_ALL = 8
"""Models of all sites together, about, unless a study says how many a site fits."""
MOST_EACH = 4


@dataclass(frozen=True, eq=False)
class MarkovModel:
    """Markov chains with proportions; a sequence belongs to the class of highest posterior.

    Attributes
    ----------
    parameters : MarkovParameters
        Of K classes over S states.
    """

    parameters: MarkovParameters

    @property
    def n_classes(self) -> int:
        """K."""
        return self.parameters.n_classes

    @property
    def sizes(self) -> tuple[int, ...]:
        """States."""
        return (self.parameters.n_states,)

    @property
    def class_parameters(self) -> FloatArray:
        """Initial chances beside all transition chances, shape (K, S + S^2)."""
        return self.parameters.class_parameters

    def label(self, codes: NDArray[Any]) -> IntArray:
        """Class of each sequence of codes (n, t); ties go to the first class."""
        return self.parameters.label(Sequences.of(codes, self.parameters.n_states))

    def log_posterior(self, codes: NDArray[Any]) -> tuple[FloatArray, FloatArray]:
        """Log posterior probabilities, (n, K), and log density of each sequence, (n,)."""
        return self.parameters.log_posterior(Sequences.of(codes, self.parameters.n_states))

    def to_arrays(self) -> Arrays:
        """Numeric arrays that hold the whole model."""
        return self.parameters.to_arrays()


@dataclass(frozen=True, eq=False)
class LatentClassModel:
    """Products of multinomials; a row belongs to the class of highest posterior.

    Attributes
    ----------
    mixture : MultinomialMixture
    """

    mixture: MultinomialMixture

    @property
    def n_classes(self) -> int:
        """K."""
        return self.mixture.n_classes

    @property
    def sizes(self) -> tuple[int, ...]:
        """Levels of each column."""
        return self.mixture.n_levels

    @property
    def class_parameters(self) -> FloatArray:
        """Chances of all levels, shape (K, L)."""
        return self.mixture.class_parameters

    def label(self, codes: NDArray[Any]) -> IntArray:
        """Class of each row of codes (n, d); ties go to the first class."""
        return self.mixture.label(codes)

    def log_posterior(self, codes: NDArray[Any]) -> tuple[FloatArray, FloatArray]:
        """Log posterior probabilities, (n, K), and log density of each row, (n,)."""
        return self.mixture.log_posterior(codes)

    def to_arrays(self) -> Arrays:
        """Numeric arrays that hold the whole model."""
        return self.mixture.to_arrays()


CodedModel = MarkovModel | LatentClassModel
LocalModel = ClusterModel | CodedModel


def local_model_from_arrays(arrays: Mapping[str, NDArray[Any]]) -> LocalModel:
    """Rebuild a local model of any kind from `to_arrays` of it, checking every number.

    Raises
    ------
    DataError
        The arrays are not those of a model.
    """
    keys = set(arrays)
    model: CodedModel
    if keys == {"initial", "transition", "proportions"}:
        model = MarkovModel(MarkovParameters.from_arrays(arrays))
    elif keys == {"proportions", "probabilities", "n_levels"}:
        model = LatentClassModel(MultinomialMixture.from_arrays(arrays))
    else:
        return model_from_arrays(arrays)
    if not np.isfinite(model.class_parameters).all() or not model.n_classes:
        raise DataError("a clustering model has a chance out of range")
    return model


def kind_of(model: LocalModel) -> str:
    """Kind of a model, as a study calls it; "" for models of numbers."""
    if isinstance(model, MarkovModel):
        return "markov-mixture"
    return "latent-class" if isinstance(model, LatentClassModel) else ""


# --------------------------------------------------------------------------- what rows hold


def row_of_cell(kind: str, sizes: Sequence[int]) -> IntArray:
    """Row of the table of counts that each cell is in.

    Parameters
    ----------
    kind : {"markov-mixture", "latent-class"}
    sizes : sequence of int
        Number of states S; or levels of each column.

    Returns
    -------
    (C,) int array
        First states and the steps that leave each state, C = S + S^2; or columns.
    """
    if kind == "markov-mixture":
        (s,) = sizes
        return np.repeat(np.arange(s + 1), s)
    return np.repeat(np.arange(len(sizes)), np.asarray(sizes, dtype=np.int64))


def entries_of(codes: NDArray[Any], kind: str, sizes: Sequence[int]) -> Entries:
    """What coded rows add to the cells of the table of counts.

    Steps over gaps add nothing, nor does the first state of a sequence that begins with a gap.
    """
    codes = np.asarray(codes, dtype=np.int64)
    rows = row_of_cell(kind, sizes)
    n, width = codes.shape
    if kind != "markov-mixture":
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
        seen = codes >= 0
        cells = (codes + starts)[seen]
        return Entries(np.nonzero(seen)[0], cells, np.ones(len(cells)), rows)
    (s,) = sizes
    record = np.repeat(np.arange(n), width).reshape(n, width)
    begin = codes[:, :1] >= 0
    step = (codes[:, :-1] >= 0) & (codes[:, 1:] >= 0)
    cell = np.concatenate(
        [codes[:, :1][begin], (s + codes[:, :-1] * s + codes[:, 1:])[step].astype(np.int64)]
    )
    owner = np.concatenate([record[:, :1][begin], record[:, 1:][step]])
    pair, amount = np.unique(owner * len(rows) + cell, return_counts=True)
    return Entries(pair // len(rows), pair % len(rows), amount.astype(np.float64), rows)


def absorbing_rows(kind: str, sizes: Sequence[int]) -> NDArray[np.bool_] | None:
    """Rows whose totals follow from lengths of sequences: the steps that leave each state."""
    if kind != "markov-mixture":
        return None
    return np.arange(sizes[0] + 1) > 0


# --------------------------------------------------------------------------- fits


def models_each(n_sites: int) -> int:
    """Models that each site fits: about `MODELS_IN_ALL` over all sites, from one to four each.

    Two sites need several, since the weights of two models are always equal. More models make more
    label tuples, of which fewer are frequent: five sites of 100 to 300 rows did as well with two
    models each as with four, within the error (``replications/ensemble_clustering/categories``).
    """
    return min(MOST_EACH, max(1, -(-MODELS_IN_ALL // max(n_sites, 1))))


def drawn_rows(n: int, rng: np.random.Generator) -> IntArray:
    """Which of n rows a model is fitted on, (n,) of 0 and 1: `DRAWN_SHARE` of them, each once.

    Drawing as many with replacement would leave 55 % of the rows: at small sites that costs more
    than everything else that protects records.
    """
    drawn = np.zeros(n, dtype=np.int64)
    drawn[rng.permutation(n)[: round(DRAWN_SHARE * n)]] = 1
    return drawn


@dataclass(frozen=True, eq=False)
class CodedFit:
    """What a site gets from fitting its own model.

    Attributes
    ----------
    model : CodedModel or None
        None if fewer than two classes of `min_records` rows could be found.
    labels : (n,) int array
        Class of each row under `model`, 0 if there is none.
    sums : Sums or None
        What the parameters are made of.
    start_spread : (m,) array
        Log likelihoods of the starts that were followed to their end.
    """

    model: CodedModel | None
    labels: IntArray
    sums: Sums | None
    start_spread: FloatArray


def fit_coded_model(
    codes: NDArray[Any],
    sizes: Sequence[int],
    *,
    model: str,
    n_clusters: int,
    rng: np.random.Generator,
    n_init: int = 20,
    min_records: int = 1,
    max_share: float = 1.0,
    multiplicity: NDArray[Any] | None = None,
) -> CodedFit:
    """Fit one site's model, of parameters that rest on enough rows.

    Parameters
    ----------
    codes : (n, t) int array
        States by time, or levels by column; -1 is missing.
    sizes : sequence of int
        Number of states; or levels of each column.
    model : {"markov-mixture", "latent-class"}
    n_clusters : int
        Classes to look for.
    rng : numpy.random.Generator
        Source of the starts.
    n_init : int
        Starts of EM, 15 iterations each; the best four go on.
    min_records : int
        A class of fewer rows makes the site fit one class fewer, until none is left; cells of the
        parameters to which fewer rows add are told together with others (`told_tables`).
    max_share : float
        Largest share of one row in what a cell is made of.
    multiplicity : (n,) int array, optional
        How often each row is drawn.

    Returns
    -------
    CodedFit

    Notes
    -----
    The parameters are those of EM where every cell rests on enough rows and no step is over a gap.
    """
    n = len(codes)
    often = np.ones(n) if multiplicity is None else np.asarray(multiplicity, dtype=np.float64)
    used = often > 0
    seed = int(rng.integers(2**31 - 1))
    part = np.asarray(codes)[used]
    telling = part[(part >= 0).any(axis=1)]
    distinct = len(np.unique(telling, axis=0)) if len(telling) else 0
    for k in range(min(n_clusters, distinct, len(part) // max(min_records, 1)), 1, -1):
        found = _fitted(part, often[used], sizes, model, k, seed, n_init)
        if found is None or found[0].n_classes < k:
            continue
        fitted, spread = found
        told, sums = _told(fitted, part, often[used], sizes, model, min_records, max_share)
        labels = told.label(part)
        if np.bincount(labels, minlength=k).min() < min_records or sums is None:
            continue
        everything = np.full(n, -1, dtype=np.int64)
        everything[used] = labels
        place = np.flatnonzero(used)
        return CodedFit(told, everything, sums._replace(record=place[sums.record]), spread)
    return CodedFit(None, np.zeros(n, dtype=np.int64), None, np.empty(0))


def _fitted(
    codes: NDArray[Any],
    often: FloatArray,
    sizes: Sequence[int],
    kind: str,
    k: int,
    seed: int,
    n_init: int,
) -> tuple[CodedModel, FloatArray] | None:
    """Fit by EM, with the spread of the starts; None where the rows say too little."""
    if kind == "markov-mixture":
        events = events_of(Sequences.of(codes, sizes[0], weights=often))
        if int(events.telling.sum()) < k:
            return None
        chain = fit_markov_mixture(events, k, seed=seed, n_init=n_init, pseudo_count=PSEUDO_COUNT)
        return MarkovModel(chain.best.parameters), chain.start_spread
    data = CategoryPatterns.of(codes, sizes, often)
    if k > data.n_distinct:
        return None
    found = fit_multinomial_mixture(data, k, seed=seed, n_init=n_init, pseudo_count=PSEUDO_COUNT)
    return LatentClassModel(found.best.parameters), found.start_spread


def _told(
    fitted: CodedModel,
    codes: NDArray[Any],
    often: FloatArray,
    sizes: Sequence[int],
    kind: str,
    min_records: int,
    max_share: float,
) -> tuple[CodedModel, Sums | None]:
    """The same model with parameters made of sums that rest on enough rows."""
    shares = np.exp(fitted.log_posterior(codes)[0])
    entries = entries_of(codes, kind, sizes)
    entries = entries._replace(amount=entries.amount * often[entries.record])
    tables = told_tables(
        entries,
        shares,
        min_records=min_records,
        max_share=max_share,
        absorbing=absorbing_rows(kind, sizes),
    )
    if min_records <= 1:
        return fitted, tables.sums
    if shares.sum(axis=0).min() < min_records or not tables.told.any(axis=1).all():
        return fitted, None
    chances = tables.chances(entries.row_of_cell, PSEUDO_COUNT)
    counts = np.bincount(entries.row_of_cell)
    chances = np.where(np.isnan(chances), 1.0 / counts[entries.row_of_cell], chances)
    proportions = often @ shares
    return model_of(kind, sizes, chances, proportions / proportions.sum()), tables.sums


def model_of(
    kind: str, sizes: Sequence[int], chances: FloatArray, proportions: FloatArray
) -> CodedModel:
    """Model of given chances (K, C) in the order of the cells."""
    if kind == "markov-mixture":
        s = sizes[0]
        return MarkovModel(
            MarkovParameters(chances[:, :s], chances[:, s:].reshape(-1, s, s), proportions)
        )
    levels = np.ascontiguousarray(chances)
    return LatentClassModel(MultinomialMixture(proportions, levels, tuple(int(x) for x in sizes)))


def coded_bic(
    codes: NDArray[Any],
    sizes: Sequence[int],
    n_clusters: int,
    *,
    model: str,
    rng: np.random.Generator,
    n_init: int = 20,
    min_records: int = 1,
    max_share: float = 1.0,
) -> float:
    """Bayesian information criterion of a local model; smaller is better.

    Parameters
    ----------
    codes, sizes, model, rng, n_init
        As in `fit_coded_model`.
    n_clusters : int
    min_records : int
        Rows that each class must have.
    max_share : float
        Largest share of one row in the log likelihood.

    Returns
    -------
    float
        NaN where the classes cannot be fitted or one is too small, or where one row makes most of
        the log likelihood.
    """
    seed = int(rng.integers(2**31 - 1))
    ones = np.ones(len(codes))
    if not len(codes):
        return float("nan")
    found = _fitted(codes, ones, sizes, model, n_clusters, seed, n_init)
    if found is None or found[0].n_classes < n_clusters:
        return float("nan")
    fitted = found[0]
    if np.bincount(fitted.label(codes), minlength=n_clusters).min() < min_records:
        return float("nan")
    each = -fitted.log_posterior(codes)[1]
    total = float(each.sum())
    if not np.isfinite(total) or each.max() > max_share * total:
        return float("nan")
    count = _parameters_seen(codes, sizes, n_clusters, model, min_records)
    return information(-total, count, len(codes))[1]


def _parameters_seen(
    codes: NDArray[Any], sizes: Sequence[int], k: int, kind: str, min_records: int
) -> int:
    """Free parameters that at least `min_records` rows tell of.

    Of states that occur, and of steps from states that are left; or of levels. Were those of fewer
    rows counted, a criterion beside its log likelihood would tell whether somebody is in a state.
    """

    def enough(those: NDArray[np.bool_]) -> bool:
        return int(those.any(axis=1).sum()) >= max(min_records, 1)

    rows = np.asarray(codes)
    if kind != "markov-mixture":
        levels = [
            sum(enough(rows[:, [j]] == level) for level in range(size))
            for j, size in enumerate(sizes)
        ]
        return k - 1 + k * sum(max(count - 1, 0) for count in levels)
    later = np.flip(np.logical_or.accumulate(np.flip(rows >= 0, axis=1), axis=1), axis=1)
    followed = np.pad(later[:, 1:], ((0, 0), (0, 1)))
    occur = sum(enough(rows == state) for state in range(sizes[0]))
    left = sum(enough((rows == state) & followed) for state in range(sizes[0]))
    return k - 1 + k * max(occur - 1, 0) * (1 + left)
