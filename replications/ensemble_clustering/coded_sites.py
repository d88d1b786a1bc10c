"""Sites whose rows are sequences or categories: the whole computation on arrays, and its figures.

It calls, in the same order and with the same rules, the functions that the sites and the
coordinator call; the tests compare both.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from consilience.clustering.estimators.local_models import (
    CodedModel,
    coded_bic,
    drawn_rows,
    entries_of,
    fit_coded_model,
    models_each,
)
from consilience.clustering.kernels.ensemble import (
    Weighting,
    assign,
    build_ensemble,
    merge_tables,
    pattern_features,
    summarise_by_turns,
)
from consilience.numerics.observed_kmeans import weighted_kmeans
from consilience.numerics.random import stream
from consilience.numerics.two_way_tables import adjusted_rand_index

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

MIN_RECORDS, MAX_SHARE = 10, 0.5
N_INIT = 20

SCORES = ("oracle", "shared_oracle", "ensemble", "spectral", "local", "ported", "pooled")
GAPS = ("gap_ensemble", "gap_local", "gap_pooled", "gap_truth")
NEAR = 0.02
WEIGHTINGS: tuple[Weighting, ...] = ("centred", "spectral")


@dataclass(frozen=True)
class CodedSites:
    """Rows of several sites with the truth behind them.

    ``codes`` are states by time or levels by column, -1 missing; ``oracle`` is the most probable
    class of each row under the true parameters and shares of its site, ``shared_oracle`` under the
    true class parameters and the shares over all sites, since no final class knows of sites.
    """

    kind: str
    sizes: tuple[int, ...]
    codes: tuple[IntArray, ...]
    truth: tuple[IntArray, ...] = ()
    oracle: tuple[IntArray, ...] = ()
    shared_oracle: tuple[IntArray, ...] = ()

    @property
    def everything(self) -> IntArray:
        return np.concatenate(self.codes)

    def split(self, values: IntArray) -> tuple[IntArray, ...]:
        return tuple(np.split(values, np.cumsum([len(rows) for rows in self.codes])[:-1]))


# ------------------------------------------------------------------------------------- clustering


def fitted(
    codes: IntArray,
    sites: CodedSites,
    k: int,
    rng: np.random.Generator,
    *,
    min_records: int = MIN_RECORDS,
    multiplicity: IntArray | None = None,
) -> CodedModel | None:
    """One model, by the rules of a site."""
    return fit_coded_model(
        codes,
        sites.sizes,
        model=sites.kind,
        n_clusters=k,
        rng=rng,
        n_init=N_INIT,
        min_records=min_records,
        max_share=MAX_SHARE if min_records > 1 else 1.0,
        multiplicity=multiplicity,
    ).model


def local_models(sites: CodedSites, k: int, *, seed: int) -> list[CodedModel | None]:
    """What each site finds alone, from all its rows; nobody sees it, so no rule binds it."""
    return [
        fitted(rows, sites, k, stream(seed, "alone", m), min_records=1)
        for m, rows in enumerate(sites.codes)
    ]


def resampled_models(
    sites: CodedSites, k: int, *, seed: int, min_records: int = MIN_RECORDS
) -> tuple[list[CodedModel], list[int]]:
    """Models of each site, as many as by default, each on a part of its rows; and their sites."""
    found: list[CodedModel] = []
    owners: list[int] = []
    for m, rows in enumerate(sites.codes):
        for r in range(models_each(len(sites.codes))):
            model = fitted(
                rows,
                sites,
                k,
                stream(seed, "fit", m, r),
                min_records=min_records,
                multiplicity=drawn_rows(len(rows), stream(seed, "resample", m, r)),
            )
            if model is not None:
                found.append(model)
                owners.append(m)
    return found, owners


def final_classes(
    sites: CodedSites,
    models: Sequence[CodedModel],
    owners: Sequence[Hashable],
    k: int,
    *,
    seed: int,
    min_records: int = MIN_RECORDS,
    weighting: Weighting = "centred",
) -> tuple[IntArray, ...]:
    """Label, count, weigh, cluster, and label every row from its true tuple."""
    beta = [model.class_parameters for model in models]
    n_classes = [model.n_classes for model in models]
    labels = [np.stack([m.label(rows) for m in models], axis=1) for rows in sites.codes]
    table = merge_tables([summarise_by_turns(z, beta, owners, min_records).table for z in labels])
    ensemble = build_ensemble(table, beta, weighting=weighting)
    points = pattern_features(ensemble.features, table)
    final = weighted_kmeans(points, table.counts, k, rng=stream(seed, "final"))
    return tuple(assign(z, n_classes, ensemble.features, final.centres) for z in labels)


def called_alike(
    labels: Sequence[IntArray], reference: Sequence[IntArray], k: int
) -> tuple[IntArray, ...]:
    """Each site's own classes under the names of the classes that hold most of their rows."""
    named = []
    for mine, theirs in zip(labels, reference, strict=True):
        joint = np.zeros((int(mine.max(initial=0)) + 1, k), dtype=np.int64)
        np.add.at(joint, (mine, theirs), 1)
        rows, columns = linear_sum_assignment(joint, maximize=True)
        name = np.zeros(len(joint), dtype=np.int64)
        name[rows] = columns
        named.append(name[mine])
    return tuple(named)


def matched_models(models: Sequence[CodedModel], k: int) -> list[IntArray]:
    """Names of the classes of each site's own model: those of the first site's nearest to them."""
    first = models[0].class_parameters
    names = []
    for model in models:
        gaps = ((first[:, None] - model.class_parameters[None]) ** 2).sum(axis=2)
        rows, columns = linear_sum_assignment(gaps)
        name = np.zeros(model.n_classes, dtype=np.int64)
        name[columns] = rows
        names.append(name)
    return names


# ---------------------------------------------------------------------------------------- figures


def tables_by_class(
    sites: CodedSites, labels: Sequence[IntArray], k: int
) -> tuple[FloatArray, IntArray]:
    """Chances (M, K, C) of the rows of each class at each site, and the row of each cell.

    NaN in rows that fewer than `MIN_RECORDS` records add to.
    """
    chances = []
    for codes, own in zip(sites.codes, labels, strict=True):
        entries = entries_of(codes, sites.kind, sites.sizes)
        size, n_rows = len(entries.row_of_cell), int(entries.row_of_cell.max()) + 1
        label, row = own[entries.record], entries.row_of_cell[entries.cell]
        place = label * size + entries.cell
        counts = np.bincount(place, entries.amount, minlength=k * size).reshape(k, size)
        totals = np.stack([np.bincount(entries.row_of_cell, c, n_rows) for c in counts])
        seen = np.unique((entries.record * k + label) * n_rows + row) % (k * n_rows)
        records = np.bincount(seen, minlength=k * n_rows).reshape(k, n_rows)
        with np.errstate(invalid="ignore", divide="ignore"):
            shares = counts / totals[:, entries.row_of_cell]
        known = records[:, entries.row_of_cell] >= MIN_RECORDS
        chances.append(np.where(known, shares, np.nan))
    return np.stack(chances), entries.row_of_cell


def gaps(
    sites: CodedSites, shared: Sequence[IntArray], alone: Sequence[IntArray], k: int
) -> tuple[float, float]:
    """Frobenius difference of the tables of a class between two sites: shared classes, and alone.

    Mean over classes and pairs of sites, over the rows that all four tables know: the steps that
    leave a state, or the levels of a column.
    """
    (ours, rows), (own, _) = (tables_by_class(sites, labels, k) for labels in (shared, alone))
    if sites.kind == "markov-mixture":
        ours, own = ours[:, :, rows > 0], own[:, :, rows > 0]
    found = []
    for a, b in combinations(range(len(ours)), 2):
        squares = np.stack([(ours[a] - ours[b]) ** 2, (own[a] - own[b]) ** 2])
        both = ~np.isnan(squares).any(axis=0)
        sums = np.sqrt(np.where(both, squares, 0.0).sum(axis=2))
        found.append(sums[:, both.any(axis=1)])
    joined = np.concatenate(found, axis=1)
    if not joined.size:
        return float("nan"), float("nan")
    return float(joined[0].mean()), float(joined[1].mean())


def one_data_set(
    sites: CodedSites, k: int, *, seed: int, min_records: int = MIN_RECORDS
) -> dict[str, float]:
    """Adjusted Rand indices and gaps between sites, by who clusters."""
    truth = np.concatenate(sites.truth)

    def score(parts: Sequence[IntArray]) -> float:
        return adjusted_rand_index(np.concatenate(parts), truth)

    models, owners = resampled_models(sites, k, seed=seed, min_records=min_records)
    found, spectral = (
        final_classes(
            sites, models, owners, k, seed=seed, min_records=min_records, weighting=weighting
        )
        for weighting in WEIGHTINGS
    )
    alone = [model for model in local_models(sites, k, seed=seed) if model is not None]
    own = [model.label(rows) for model, rows in zip(alone, sites.codes, strict=True)]
    names = matched_models(alone, k)
    separate = [name[mine] for name, mine in zip(names, own, strict=True)]
    everyone = fitted(sites.everything, sites, k, stream(seed, "pooled"), min_records=1)
    pooled = sites.split(everyone.label(sites.everything))
    between, between_own = gaps(sites, found, separate, k)
    return {
        "oracle": score(sites.oracle),
        "shared_oracle": score(sites.shared_oracle),
        "ensemble": score(found),
        "spectral": score(spectral),
        "local": score(separate),
        "ported": float(np.mean([score([m.label(x) for x in sites.codes]) for m in alone])),
        "pooled": score(pooled),
        "gap_ensemble": between,
        "gap_local": between_own,
        "gap_pooled": gaps(sites, pooled, separate, k)[0],
        "gap_truth": gaps(sites, sites.truth, separate, k)[0],
    }


def vote(sites: CodedSites, *, seed: int, largest: int = 6) -> list[int]:
    """Number of classes that each site's BIC prefers, ties to the smaller."""
    found = []
    for m, rows in enumerate(sites.codes):
        scores = [
            coded_bic(
                rows,
                sites.sizes,
                k,
                model=sites.kind,
                rng=stream(seed, "vote", m, k),
                n_init=N_INIT,
                min_records=MIN_RECORDS,
                max_share=MAX_SHARE,
            )
            for k in range(1, largest + 1)
        ]
        found.append(int(np.nanargmin(scores)) + 1)
    return found


# ------------------------------------------------------------------------------------- summaries


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    known = np.array([v for v in values if not np.isnan(v)])
    if known.size < 2:
        return float("nan"), float("nan")
    return float(known.mean()), float(known.std(ddof=1) / np.sqrt(known.size))


def ratio_and_error(above: Sequence[float], below: Sequence[float]) -> tuple[float, float]:
    """Ratio of two means, and its standard error by the jackknife."""
    a, b = np.asarray(above, dtype=float), np.asarray(below, dtype=float)
    n = len(a)
    without = (a.sum() - a) / (b.sum() - b)
    error = np.sqrt((n - 1) / n * ((without - without.mean()) ** 2).sum())
    return float(a.sum() / b.sum()), float(error)


def cells(figures: dict[str, tuple[float, float]]) -> dict[str, str]:
    """Figures with their standard errors, as columns of a table."""
    row = {}
    for name, (value, error) in figures.items():
        row[name] = "" if np.isnan(value) else f"{value:.4f}"
        row[f"{name}_se"] = "" if np.isnan(error) else f"{error:.4f}"
    return row


def summary(sets: Sequence[dict[str, float]]) -> dict[str, str]:
    """Columns of a table from the figures of `one_data_set`."""
    columns = {name: [s[name] for s in sets] for name in sets[0]}
    figures = {name: mean_and_error(columns[name]) for name in SCORES}
    for rival in ("oracle", "shared_oracle", "local", "ported", "pooled"):
        figures[f"ensemble_minus_{rival}"] = mean_and_error(
            [s["ensemble"] - s[rival] for s in sets]
        )
    figures["near_oracle"] = mean_and_error(
        [float(s["ensemble"] >= s["oracle"] - NEAR) for s in sets]
    )
    figures |= {name: mean_and_error(columns[name]) for name in GAPS}
    for name in ("ensemble", "pooled", "truth"):
        figures[f"{name}_over_local"] = ratio_and_error(
            columns[f"gap_{name}"], columns["gap_local"]
        )
    return cells(figures)
