"""The whole computation of ensemble clustering on arrays, without an exchange.

The replications and benchmarks of this folder use it. It calls, in the same order and with the
same rules, the functions that the sites and the coordinator call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from consilience.clustering.estimators.local_models import (
    ClusterModel,
    LocalFit,
    fit_cluster_model,
    outlying_rows,
)
from consilience.clustering.kernels.ensemble import (
    Ensemble,
    PatternTable,
    Weighting,
    assign,
    build_ensemble,
    merge_tables,
    pattern_features,
    summarise_site,
)
from consilience.numerics.observed_kmeans import weighted_kmeans
from consilience.numerics.random import stream

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Clustering:
    """Models, ensemble and final classes of all rows, site by site (-1: trimmed)."""

    fits: tuple[LocalFit, ...]
    models: tuple[ClusterModel, ...]
    labels: tuple[IntArray, ...]
    table: PatternTable
    ensemble: Ensemble
    centres: FloatArray
    classes: tuple[IntArray, ...]


def fit_sites(
    tables: Sequence[FloatArray],
    n_clusters: int,
    *,
    seed: int,
    min_records: int = 1,
    trim: float | None = None,
    n_init: int = 20,
) -> tuple[LocalFit, ...]:
    """One k-means model per site."""
    return tuple(
        fit_cluster_model(
            rows,
            n_clusters=n_clusters,
            rng=stream(seed, "fit", site),
            n_init=n_init,
            min_records=min_records,
            trim=trim,
        )
        for site, rows in enumerate(tables)
    )


def cluster(
    tables: Sequence[FloatArray],
    n_clusters: int,
    *,
    seed: int,
    min_records: int = 1,
    trim: float | None = None,
    weighting: Weighting = "spectral",
    fits: Sequence[LocalFit] | None = None,
    trim_others: float | None = None,
    models: Sequence[ClusterModel] | None = None,
) -> Clustering:
    """Fit, label, count, weigh, cluster, and label every row from its true tuple.

    ``trim`` is the rule by the own class mean, ``trim_others`` the one by the other sites' models.
    With ``models`` given, nothing is fitted.
    """
    if models is not None:
        fits = [LocalFit(None, np.zeros(len(rows), dtype=np.int64), 0) for rows in tables]
    elif fits is None:
        fits = fit_sites(tables, n_clusters, seed=seed, min_records=min_records, trim=trim)
    if models is None:
        models = [fit.model for fit in fits if fit.model is not None]
    beta = [model.class_parameters for model in models]
    n_classes = [model.n_classes for model in models]
    labels = [np.stack([m.label(rows) for m in models], axis=1) for rows in tables]
    kept = [fit.labels >= 0 for fit in fits]
    if trim_others is not None:
        own = np.cumsum([fit.model is not None for fit in fits]) - 1
        kept = [
            inlying
            & ~outlying_rows(
                rows, models, own=int(i) if fit.model is not None else None, trim=trim_others
            )
            for inlying, rows, fit, i in zip(kept, tables, fits, own, strict=True)
        ]
    summaries = [
        summarise_site(z[inlying], beta, min_records)
        for z, inlying in zip(labels, kept, strict=True)
    ]
    table = merge_tables([summary.table for summary in summaries])
    ensemble = build_ensemble(table, beta, weighting=weighting)
    final = weighted_kmeans(
        pattern_features(ensemble.features, table),
        table.counts,
        n_clusters,
        rng=stream(seed, "final"),
    )
    classes = [
        np.where(inlying, assign(z, n_classes, ensemble.features, final.centres), -1)
        for z, inlying in zip(labels, kept, strict=True)
    ]
    return Clustering(
        tuple(fits), tuple(models), tuple(labels), table, ensemble, final.centres, tuple(classes)
    )
