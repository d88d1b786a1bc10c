"""Predictors that sites keep of tables with gaps: classes of rows, completed rows."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from consilience.completion.estimators.low_rank import HardImpute, ProbabilisticPCA, fitted_model
from consilience.completion.estimators.observed_kmeans import ObservedKMeans
from consilience.completion.estimators.predictors import (
    ClassPredictor,
    CompletionPredictor,
    GapRows,
)
from consilience.exceptions import DataError, ParameterError
from consilience.numerics.entries import Entries

NAMES = np.array(["a", "b", "c", "d"])
UNITS = np.array([[10.0, 20.0, 30.0, 40.0], [2.0, 1.0, 4.0, 0.5]])


def rows(n: int = 40, seed: int = 0) -> np.ndarray:
    """Rows of two kinds in the units of a fit, with gaps."""
    rng = np.random.default_rng(seed)
    x = np.outer(np.where(np.arange(n) % 2, 3.0, -3.0), [1.0, -1.0, 2.0, 1.0])
    x += rng.normal(size=x.shape)
    x[rng.random(x.shape) < 0.15] = np.nan
    return x


def test_rows_are_read_in_the_units_of_the_fit() -> None:
    x = rows()
    table = GapRows(NAMES, UNITS)
    read = table.read(x * UNITS[1] + UNITS[0])
    np.testing.assert_allclose(read.dense(), x)
    np.testing.assert_allclose(table.in_units(x), x * UNITS[1] + UNITS[0])
    named = pd.DataFrame(x * UNITS[1] + UNITS[0], columns=NAMES)
    np.testing.assert_array_equal(table.read(named).values, read.values)
    again = GapRows.from_arrays(table.to_arrays())
    assert again.names.tolist() == NAMES.tolist()
    np.testing.assert_array_equal(again.units, UNITS)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (pd.DataFrame(np.zeros((2, 4)), columns=list("abdc")), "the columns must be a, b, c, d"),
        (np.zeros((2, 3)), "must have 4 columns"),
        (np.zeros(4), "must have 4 columns"),
        ([["x", "y", "z", "w"]], "must hold numbers"),
        ([[np.inf, 0, 0, 0]], "must hold numbers"),
    ],
)
def test_tables_that_cannot_be_read_are_sentences(given: object, said: str) -> None:
    with pytest.raises(DataError, match=said):
        GapRows(NAMES, UNITS).read(given)


def test_classes_are_those_of_the_estimator() -> None:
    x = rows()
    fitted = ObservedKMeans(2, random_state=0).fit(x)
    entries = Entries.of(x)
    means = np.bincount(entries.columns, weights=entries.values) / entries.column_counts
    kept = ClassPredictor(fitted.cluster_centers_, means, GapRows(NAMES, UNITS))
    told = x * UNITS[1] + UNITS[0]
    again = ClassPredictor.from_arrays(kept.to_arrays())
    for one in (kept, again):
        np.testing.assert_array_equal(one.predict(told), fitted.labels_)
        np.testing.assert_allclose(one.transform(told), fitted.transform(x))
    np.testing.assert_allclose(kept.cluster_centers_, fitted.cluster_centers_ * UNITS[1] + UNITS[0])
    # A row without a value goes where the means of the columns are.
    empty = kept.predict(np.full((1, 4), np.nan))
    assert empty[0] == ((fitted.cluster_centers_ - means) ** 2).sum(axis=1).argmin()


@pytest.mark.parametrize("model", ["hard", "optspace", "soft-unshrunk", "ppca", "soft"])
def test_rows_are_completed_as_by_the_estimator(model: str) -> None:
    x = rows()
    entries = Entries.of(x)
    fit = fitted_model(model, 5.0 if model == "soft" else 1, entries, center="columns")
    names = np.array([f"row {i}" for i in range(len(x))])
    kept = CompletionPredictor(fit.factors, GapRows(NAMES, UNITS), names)
    told = x * UNITS[1] + UNITS[0]
    if model == "hard":
        wanted = HardImpute(1, center="columns").fit(entries)
        np.testing.assert_allclose(kept.transform(told), wanted.transform(x))
    if model == "ppca":
        # Conditional means are a ridge regression on the directions.
        wanted = ProbabilisticPCA(1).fit(entries)
        np.testing.assert_allclose(kept.transform(told), wanted.transform(x))
        np.testing.assert_allclose(
            kept.reconstruct(told), wanted.reconstruct(x) * UNITS[1] + UNITS[0]
        )
    filled = kept.complete(told)
    np.testing.assert_array_equal(filled[~np.isnan(x)], told[~np.isnan(x)])
    assert np.isfinite(filled).all()
    cells = kept.predict_entries(["row 7", "row 0"], ["b", "d"])
    own = fit.factors.at(np.array([7, 0]), np.array([1, 3]))
    np.testing.assert_allclose(cells, own * UNITS[1][[1, 3]] + UNITS[0][[1, 3]])


def test_a_rank_of_zero_and_unknown_names() -> None:
    x = rows()
    fit = fitted_model("ppca", 0, Entries.of(x), center="none")
    kept = CompletionPredictor(fit.factors, GapRows(NAMES, UNITS), np.arange(40).astype(str))
    means = np.nanmean(x, axis=0) * UNITS[1] + UNITS[0]
    np.testing.assert_allclose(kept.reconstruct(np.full((2, 4), np.nan)), [means, means])
    assert kept.transform(x).shape == (40, 0)
    np.testing.assert_allclose(kept.predict_entries([3], ["a"]), means[:1])  # numbers will do
    with pytest.raises(DataError, match="1 of the columns that are asked for are not known"):
        kept.predict_entries(["3"], ["z"])
    with pytest.raises(DataError, match="two lists of one length"):
        kept.predict_entries(["3", "4"], ["a"])
    with pytest.raises(ParameterError, match="model must be"):
        fitted_model("svd", 1, Entries.of(x), center="none")


def test_arrays_of_something_else_are_a_sentence() -> None:
    x = rows()
    fit = fitted_model("hard", 1, Entries.of(x), center="columns")
    kept = CompletionPredictor(fit.factors, GapRows(NAMES, UNITS), np.arange(40).astype(str))
    arrays = kept.to_arrays()
    for broken in ({}, {**arrays, "scores": arrays["scores"][:3]}, {**arrays, "centre_kind": 9}):
        with pytest.raises(DataError, match="do not hold a predictor"):
            CompletionPredictor.from_arrays(broken)
    with pytest.raises(DataError, match="do not hold a predictor"):
        ClassPredictor.from_arrays({})
    with pytest.raises(DataError, match="do not hold a predictor"):
        GapRows(NAMES, UNITS[:, :2])


@pytest.mark.parametrize("name", ["centres", "means"])
def test_arrays_of_something_else_are_no_classes(name: str) -> None:
    fitted = ObservedKMeans(n_clusters=2, n_init=1, random_state=0).fit(rows())
    table = GapRows(NAMES, np.stack([np.zeros(4), np.ones(4)]))
    kept = ClassPredictor(fitted.cluster_centers_, np.zeros(4), table).to_arrays()
    ClassPredictor.from_arrays(kept)
    with pytest.raises(DataError, match="do not hold a predictor"):
        ClassPredictor.from_arrays({k: v for k, v in kept.items() if k != name})
