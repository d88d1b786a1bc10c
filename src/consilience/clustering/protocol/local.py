"""What a site looks at and fits: views of its rows, and its own models on each.

Rows are numbers (k-means, Gaussian mixtures) or codes: states of a sequence by time, or the level
of each categorical column, -1 where it is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.clustering.estimators.cluster_models import ModelKind, bic, fit_cluster_model
from consilience.clustering.estimators.coded_models import (
    LocalModel,
    coded_bic,
    drawn_rows,
    fit_coded_model,
    local_model_from_arrays,
)
from consilience.clustering.kernels.label_patterns import SiteSummary, summarise_site
from consilience.clustering.kernels.label_prefixes import summarise_by_turns
from consilience.clustering.kernels.mixture_starts import same_peak
from consilience.clustering.kernels.told_tables import Sums
from consilience.clustering.phases.bootstrap_pairs import halves, permuted
from consilience.clustering.protocol.messages import CODED, Settings
from consilience.exceptions import DataError
from consilience.numerics.random import stream
from consilience.protocol.method import SiteContext, SiteData
from consilience.wire.disclosure import Released, chances, model

RESAMPLE_SHARE = 0.8


@dataclass(frozen=True)
class View:
    """All rows as one ensemble sees them, and the part its models are fitted on."""

    rows: NDArray[Any]
    part: IntArray


@dataclass(frozen=True, eq=False)
class Table:
    """The rows of a site as models of one kind see them.

    Attributes
    ----------
    rows : (n, p) array
        Numbers, or codes.
    sizes : tuple of int
        Of codes: how many states there are, or levels in each column; empty for numbers.
    """

    rows: NDArray[Any]
    sizes: tuple[int, ...] = ()


def table_of(data: SiteData, kind: str) -> Table:
    """Rows of a site for one kind of model.

    Raises
    ------
    DataError
        The study names no columns of that kind.
    """
    if kind == "markov-mixture":
        if data.sequence is None:
            sentence = "model 'markov-mixture' needs sequence columns: name them in [data] sequence"
            raise DataError(sentence, public=sentence)
        return Table(data.sequence, (len(data.levels[data.sequence_names[0]]),))
    if kind == "latent-class":
        return _categories(data)
    return Table(data.features)


def _categories(data: SiteData) -> Table:
    """Levels of each column, from its 0/1 columns."""
    blocks = category_blocks(data.feature_names, data.levels)
    sizes = tuple(len(levels) for levels in blocks.values())
    codes = np.full((data.n_rows, len(sizes)), -1, dtype=np.int64)
    for j, (end, size) in enumerate(zip(accumulate(sizes), sizes, strict=True)):
        block = data.features[:, end - size : end]
        seen = ~np.isnan(block).any(axis=1)
        codes[seen, j] = block[seen].argmax(axis=1)
    return Table(codes, sizes)


def category_blocks(names: Sequence[str], levels: Any) -> dict[str, tuple[str, ...]]:
    """Categorical columns whose levels these prepared columns are, in their order.

    Raises
    ------
    DataError
        A prepared column is not the level of one.
    """
    found: dict[str, tuple[str, ...]] = {}
    place = 0
    while place < len(names):
        for column, known in levels.items():
            block = tuple(f"{column}={level}" for level in known)
            if tuple(names[place : place + len(block)]) == block:
                found[column] = tuple(known)
                place += len(block)
                break
        else:
            sentence = (
                "model 'latent-class' needs features with declared levels and [preparation] "
                "categorical = 'onehot'"
            )
            raise DataError(sentence, public=sentence)
    return found


def views(rows: NDArray[Any], pairs: int, seed: int) -> list[View]:
    """Main view, then for each pair: half, other half, permuted half, permuted other half."""
    everything = np.arange(len(rows), dtype=np.int64)
    found = [View(rows, everything)]
    for pair in range(pairs):
        rng = stream(seed, "pair", pair)
        first, second = halves(rng, len(rows))
        shuffled = permuted(rng, rows) if rows.dtype.kind == "f" else permuted_codes(rng, rows)
        found += [View(rows, first), View(rows, second)]
        found += [View(shuffled, first), View(shuffled, second)]
    return found


def permuted_codes(rng: np.random.Generator, codes: IntArray) -> IntArray:
    """Permute what was seen in each column; what was not stays where it is.

    Lengths and gaps of sequences are no trait of a class, and would become gaps elsewhere.
    """
    shuffled = codes.copy()
    for j in range(codes.shape[1]):
        seen = np.flatnonzero(codes[:, j] >= 0)
        shuffled[seen, j] = codes[rng.permutation(seen), j]
    return shuffled


# --------------------------------------------------------------------------- own models


@dataclass(frozen=True, eq=False)
class OwnModel:
    """A model of the site, the class of each row that it was fitted on, and what it is made of."""

    model: LocalModel
    labels: IntArray
    sums: Sums | None = None


def fit_view(
    table: Table, view: View, s: Settings, site: SiteContext, secret: np.random.Generator
) -> list[OwnModel]:
    """Models of one view."""
    rows = view.rows[view.part]
    fitted = []
    for _ in range(s.n_resamples):
        one = (
            _coded(rows, table.sizes, s, site, secret)
            if s.model in CODED
            else _numeric(rows, s, site, secret)
        )
        if one is not None:
            fitted.append(one)
    return fitted


def _numeric(
    rows: NDArray[Any], s: Settings, site: SiteContext, secret: np.random.Generator
) -> OwnModel | None:
    chosen = rows
    if s.n_resamples > 1:
        size = max(1, round(RESAMPLE_SHARE * len(rows)))
        chosen = rows[np.sort(secret.integers(len(rows), size=size))] if len(rows) else rows
    result = fit_cluster_model(
        chosen,
        model=_kind(s),
        n_clusters=s.n_clusters,
        rng=site.rng,
        n_init=s.n_init,
        min_records=site.limits.min_records,
        covariance_type=s.covariance_type,  # type: ignore[arg-type]
    )
    return None if result.model is None else OwnModel(result.model, result.labels)


def _coded(
    rows: NDArray[Any],
    sizes: tuple[int, ...],
    s: Settings,
    site: SiteContext,
    secret: np.random.Generator,
) -> OwnModel | None:
    """Fit on a secret part of the rows, also where it is the only one: tables by class follow."""
    result = fit_coded_model(
        rows,
        sizes,
        model=s.model,
        n_clusters=s.n_clusters,
        rng=site.rng,
        n_init=s.n_init,
        min_records=site.limits.min_records,
        max_share=site.limits.max_share,
        multiplicity=drawn_rows(len(rows), secret),
    )
    return None if result.model is None else OwnModel(result.model, result.labels, result.sums)


def released_models(fitted: Sequence[OwnModel], kind: str) -> Released:
    """Release the models of one view, with what they rest on as evidence."""
    arrays = tuple(one.model.to_arrays() for one in fitted)
    cells = [one.labels for one in fitted]
    offsets = np.cumsum([0, *(int(c.max(initial=-1)) + 1 for c in cells)])
    shifted = [np.where(c >= 0, c + o, -1) for c, o in zip(cells, offsets, strict=False)]
    joined = np.concatenate(shifted) if shifted else np.empty(0, dtype=np.int64)
    if kind in CODED:
        return chances(arrays, cells=joined, sums=joined_sums([one.sums for one in fitted]))
    return model(arrays, kind="centroids", n_records=len(joined), cells=joined)


def joined_sums(parts: Sequence[Sums | None]) -> Sums:
    """Sums of several models side by side."""
    given = [part for part in parts if part is not None]
    starts = np.cumsum([0, *(int(part.group.max(initial=-1)) + 1 for part in given)])
    empty = np.empty(0, dtype=np.int64)
    return Sums(
        np.concatenate([empty, *(part.record for part in given)]),
        np.concatenate([empty, *(p.group + o for p, o in zip(given, starts, strict=False))]),
        np.concatenate([np.empty(0), *(part.weight for part in given)]),
        np.concatenate([np.empty(0), *(part.amount for part in given)]),
    )


def told_spread(log_likelihoods: FloatArray) -> FloatArray:
    """How far below the best the others are, (m,): 0 for the best, others below 0.

    To two significant digits; ends on the same peak are 0. The log likelihood itself stays: to
    somebody who knows all rows but one, it would tell how probable the last one is, and with one
    class it is a function of counts alone.
    """
    if not len(log_likelihoods):
        return np.empty(0)
    best = float(log_likelihoods.max())
    below = best - log_likelihoods
    lower = below > same_peak(best)
    size = 10.0 ** np.floor(np.log10(np.where(lower, below, 1.0)))
    return np.where(lower, -np.round(np.round(below / size, 1) * size, 6), 0.0)


# --------------------------------------------------------------------------- votes


def score(table: Table, k: int, s: Settings, site: SiteContext) -> float:
    """BIC of k classes; NaN where they may not be scored or cannot be fitted."""
    if s.model in CODED:
        return coded_bic(
            table.rows,
            table.sizes,
            k,
            model=s.model,
            rng=site.rng,
            n_init=s.n_init,
            min_records=site.limits.min_records,
            max_share=site.limits.max_share,
        )
    if not _votable(table.rows, k, s, site):
        return float("nan")
    found = bic(
        table.rows,
        k,
        model=_kind(s),
        rng=site.rng,
        n_init=s.n_init,
        covariance_type=s.covariance_type,  # type: ignore[arg-type]
    )
    return found if np.isfinite(found) else float("nan")


def _votable(rows: NDArray[Any], k: int, s: Settings, site: SiteContext) -> bool:
    """Whether k classes may be scored: each large enough, and no row dominates the spread."""
    if k == 1:
        squares = ((rows - rows.mean(axis=0)) ** 2).sum(axis=1) if len(rows) else np.ones(1)
        return bool(squares.max() <= site.limits.max_share * squares.sum())
    fitted = fit_cluster_model(
        rows,
        model=_kind(s),
        n_clusters=k,
        rng=site.rng,
        n_init=s.n_init,
        min_records=site.limits.min_records,
        covariance_type=s.covariance_type,  # type: ignore[arg-type]
    ).model
    return fitted is not None and fitted.n_classes == k


# --------------------------------------------------------------------------- labels


def models_of(arrays: Sequence[Sequence[dict[str, Any]]]) -> list[tuple[LocalModel, ...]]:
    """Models by ensemble."""
    return [tuple(local_model_from_arrays(item) for item in ensemble) for ensemble in arrays]


def labels_of(models: Sequence[LocalModel], rows: NDArray[Any]) -> IntArray:
    """Class of every row under every model, (n, M)."""
    columns = [m.label(rows) for m in models]
    return np.stack(columns, axis=1) if columns else np.empty((len(rows), 0), dtype=np.int64)


def counted(
    labels: IntArray,
    models: Sequence[LocalModel],
    owners: Sequence[str],
    s: Settings,
    min_records: int,
) -> SiteSummary:
    """Counts of label tuples that may leave, and the cell in which each row is counted."""
    parameters = [m.class_parameters for m in models]
    if s.model in CODED:
        return summarise_by_turns(labels, parameters, owners, min_records)
    return summarise_site(labels, parameters, min_records)


def _kind(s: Settings) -> ModelKind:
    return cast(ModelKind, s.model.replace("-", "_"))
