"""HardImpute, OptSpace and ProbabilisticPCA as scikit-learn users meet them."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from consilience.completion.estimators.low_rank import HardImpute, OptSpace, ProbabilisticPCA
from consilience.completion.kernels.hard_impute import hard_path
from consilience.completion.kernels.ppca import from_moments
from consilience.exceptions import DataError, ParameterError
from consilience.numerics.entries import Entries
from tests.numerics.low_rank_data import gappy

every = pytest.mark.parametrize("kind", [HardImpute, OptSpace, ProbabilisticPCA])
centred = pytest.mark.parametrize("kind", [HardImpute, OptSpace])


@parametrize_with_checks([HardImpute(), OptSpace(), ProbabilisticPCA()])
def test_scikit_learn_checks(estimator: Any, check: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)


# ------------------------------------------------------------------ what all share


@every
def test_fills_what_is_missing(kind: Any) -> None:
    full, x = gappy(60, 20, 3, noise=0.1)
    fit = kind(3).fit(x)
    seen = ~np.isnan(x)
    filled = fit.complete()
    np.testing.assert_array_equal(filled[seen], x[seen])
    # Noise .1 and scores from 16 entries: 19% above the noise, and as much again for components.
    assert np.sqrt(((filled - full)[~seen] ** 2).mean()) < 0.15
    i, j = np.nonzero(~seen)
    np.testing.assert_allclose(fit.predict_entries(i, j), filled[i, j], atol=1e-12)
    np.testing.assert_allclose(fit.reconstruct()[i, j], filled[i, j], atol=1e-12)


@every
def test_transform_of_own_rows_is_the_fit(kind: Any) -> None:
    _, x = gappy(40, 15, 3)
    fit = kind(3, tol=1e-7, max_iter=5000)
    scores = fit.fit_transform(x)
    np.testing.assert_allclose(fit.transform(x), scores, atol=1e-4)
    np.testing.assert_allclose(fit.inverse_transform(scores), fit.reconstruct(), atol=1e-10)
    np.testing.assert_allclose(fit.reconstruct(x[:5]), fit.reconstruct()[:5], atol=1e-4)
    np.testing.assert_allclose(fit.transform(x[7:9]), fit.transform(x)[7:9], atol=1e-10)


@every
def test_sparse_frames_and_entries_are_the_same_matrix(kind: Any) -> None:
    _, x = gappy(40, 8, 2)
    dense = kind(2).fit(x)
    seen = np.nonzero(~np.isnan(x))
    stored = sparse.coo_array((x[seen], seen), shape=x.shape)
    for same in (stored, stored.tocsr(), stored.tocsc(), Entries.of(x)):
        found = kind(2).fit(same)
        np.testing.assert_allclose(found.reconstruct(), dense.reconstruct(), atol=1e-10)
    names = [f"c{j}" for j in range(8)]
    frame = pd.DataFrame(x, columns=names, index=np.arange(100, 140))
    fit = kind(2).set_output(transform="pandas").fit(frame)
    scores = fit.transform(frame)
    assert list(scores.index) == list(frame.index)
    assert list(scores.columns) == [f"{kind.__name__.lower()}{k}" for k in range(2)]
    assert fit.feature_names_in_.tolist() == names


@every
def test_complete_matrix(kind: Any) -> None:
    x, _ = gappy(30, 10, 3)
    options = {} if kind is ProbabilisticPCA else {"center": "columns"}
    fit = kind(3, **options).fit(x)
    pca = PCA(3).fit(x)
    np.testing.assert_allclose(fit.components_, pca.components_, atol=1e-10)
    np.testing.assert_allclose(fit.singular_values_, pca.singular_values_, rtol=1e-10)
    np.testing.assert_allclose(fit.mean_, pca.mean_, atol=1e-12)
    scores = fit.transform(x)
    if kind is ProbabilisticPCA:  # shrunken towards 0
        shares = 1 - fit.noise_variance_ / fit.explained_variance_
        np.testing.assert_allclose(scores, pca.transform(x) * shares, atol=1e-10)
    else:
        np.testing.assert_allclose(scores, pca.transform(x), atol=1e-10)
    assert fit.converged_


@every
def test_rows_with_nothing_observed(kind: Any) -> None:
    _, x = gappy(30, 10, 2)
    x[3] = np.nan
    options = {} if kind is ProbabilisticPCA else {"center": "columns"}
    fit = kind(2, **options).fit(x)
    np.testing.assert_allclose(fit.reconstruct()[3], fit.mean_, atol=1e-10)
    blank = fit.transform(np.full((2, 10), np.nan))
    np.testing.assert_allclose(blank, 0.0)
    np.testing.assert_allclose(fit.reconstruct(np.full((1, 10), np.nan))[0], fit.mean_)


@every
def test_refusals(kind: Any) -> None:
    x, _ = gappy(6, 4, 1)
    for rank in (5, -1, 1.5):
        with pytest.raises(ParameterError, match="rank must be a whole number from 0 to 4"):
            kind(rank).fit(x)
    with pytest.raises(ParameterError, match="tol must be"):
        kind(1, tol=-1.0).fit(np.where(x > 1, np.nan, x))
    with pytest.raises(DataError, match="no entry of the matrix is observed"):
        kind(1).fit(np.full((3, 3), np.nan))
    twice = sparse.coo_array(([1.0, 2.0, 3.0], ([0, 0, 1], [0, 0, 1])), shape=(3, 3))
    with pytest.raises(DataError, match="repeat the place of another one"):
        kind(1).fit(twice)
    with pytest.raises(NotFittedError):
        kind(1).reconstruct()


@every
def test_unsettled_fits_warn(kind: Any) -> None:
    _, x = gappy(40, 12, 3, noise=1.0)
    with pytest.warns(ConvergenceWarning, match="raise max_iter or tol"):
        fit = kind(4, max_iter=2, tol=1e-12).fit(x)
    assert not fit.converged_


@every
def test_ranks_of_the_ends(kind: Any) -> None:
    _, x = gappy(12, 5, 2)
    none = kind(0).fit(x)
    assert none.transform(x).shape == (12, 0)
    np.testing.assert_allclose(none.reconstruct(), np.tile(none.mean_, (12, 1)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        full = kind(5).fit(x)
    assert np.isfinite(full.complete()).all()


@every
def test_clones_and_pipelines(kind: Any) -> None:
    _, gaps = gappy(30, 10, 2)
    fit = kind(2).fit(gaps)
    np.testing.assert_allclose(clone(fit).fit(gaps).reconstruct(), fit.reconstruct())
    scores = make_pipeline(StandardScaler(), kind(2)).fit_transform(gaps)
    assert scores.shape == (30, 2)


# ------------------------------------------------------------------ of one kind


@centred
@pytest.mark.parametrize("center", ["none", "columns", "rows-and-columns"])
def test_centres(kind: Any, center: str) -> None:
    """What the centre takes off may be added without a change of anything else."""
    _, x = gappy(50, 20, 2, noise=0.1)
    rows, columns = np.linspace(-3, 3, 50)[:, None], np.linspace(10, 20, 20)
    off = {"none": 0.0, "columns": columns, "rows-and-columns": rows + columns}[center]
    plain, moved = (kind(2, center=center, tol=1e-7).fit(table) for table in (x, x + off))
    np.testing.assert_allclose(moved.reconstruct(), plain.reconstruct() + off, atol=1e-4)
    np.testing.assert_allclose(moved.components_, plain.components_, atol=1e-4)
    with pytest.raises(ParameterError, match="center must be"):
        kind(2, center="rows").fit(x)


def test_a_fit_is_that_of_a_search() -> None:
    _, x = gappy(40, 25, 4)
    *_, wanted = hard_path(Entries.of(x), range(5))
    found = HardImpute(4).fit(x)
    np.testing.assert_array_equal(found.reconstruct(), wanted.dense())
    *_, warm = hard_path(Entries.of(x), range(5), warm=True)
    by_path = HardImpute(4, start="path").fit(x)
    np.testing.assert_array_equal(by_path.reconstruct(), warm.dense())
    assert by_path.objective_ == pytest.approx(found.objective_, rel=0.01)
    with pytest.raises(ParameterError, match="start must be"):
        HardImpute(1, start="random").fit(x)
    with pytest.raises(ParameterError, match="solver must be"):
        HardImpute(1, solver="fast").fit(x)


def test_density_of_rows() -> None:
    x, gaps = gappy(60, 8, 2)
    fit = ProbabilisticPCA(2).fit(gaps)
    assert fit.score_samples(gaps).sum() == pytest.approx(fit.log_likelihood_)
    assert fit.score(gaps) == pytest.approx(fit.log_likelihood_ / 60)
    np.testing.assert_allclose(fit.get_precision() @ fit.get_covariance(), np.eye(8), atol=1e-10)
    complete = ProbabilisticPCA(2).fit(x)
    total = np.trace(np.cov(x.T, bias=True))
    assert complete.explained_variance_ratio_.sum() == pytest.approx(
        complete.explained_variance_.sum() / total
    )
    np.testing.assert_allclose(complete.score_samples(x), complete.model_.log_likelihood(x))


def test_from_moments() -> None:
    x, gaps = gappy(60, 8, 2)
    fit = ProbabilisticPCA(2).fit(x)
    names = [f"c{j}" for j in range(8)]
    made = ProbabilisticPCA.from_moments(
        x.mean(axis=0), np.cov(x.T, bias=True), 60, 2, feature_names=names
    )
    np.testing.assert_allclose(made.get_covariance(), fit.get_covariance(), atol=1e-10)
    np.testing.assert_allclose(made.singular_values_, fit.singular_values_)
    frame = pd.DataFrame(gaps, columns=names)
    np.testing.assert_allclose(made.transform(frame), fit.transform(gaps), atol=1e-10)
    np.testing.assert_allclose(made.complete(frame), fit.complete(gaps), atol=1e-10)
    assert made.get_feature_names_out().tolist() == ["probabilisticpca0", "probabilisticpca1"]
    assert np.isnan(made.log_likelihood_)
    with pytest.raises(DataError, match="not fitted to rows of its own"):
        made.reconstruct()
    with pytest.raises(DataError, match="3 names for 8 columns"):
        ProbabilisticPCA.from_model(fit.model_, 60, feature_names=names[:3])
    again = ProbabilisticPCA.from_model(
        from_moments(x.mean(axis=0), np.cov(x.T, bias=True), 60, 2), 60
    )
    np.testing.assert_allclose(again.components_, fit.components_, atol=1e-10)


def test_many_rows_go_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    from consilience.completion.estimators import low_rank

    _, x = gappy(50, 8, 2)
    fit = ProbabilisticPCA(2).fit(x)
    whole = fit.transform(x), fit.score_samples(x)
    monkeypatch.setattr(low_rank, "_CELLS", 50)
    np.testing.assert_allclose(fit.transform(x), whole[0], atol=1e-12)
    np.testing.assert_allclose(fit.score_samples(x), whole[1])
