"""Sparse quadratic discriminants: the textbook, the ends of the path, tables that are bad."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import (
    GridSearchCV,
    KFold,
    LeaveOneGroupOut,
    StratifiedKFold,
    cross_val_score,
)
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures
from sklearn.utils.estimator_checks import parametrize_with_checks

from consilience import SparseQDA
from consilience.discriminant.estimators import sparse_qda_fit
from consilience.discriminant.estimators.sparse_qda import fitted_sparse_qda
from consilience.discriminant.estimators.sparse_qda_fit import (
    QDASettings,
    follow,
    prepare_rows,
)
from consilience.exceptions import DataError, ParameterError
from tests.discriminant.estimators.sparse_qda_data import (
    blocks_table,
    moments_by_class,
    pooled_scale,
    prepared_moments,
    scores,
)
from tests.reference.joint_precision import gap, proximal_gradient


@parametrize_with_checks([SparseQDA(n_alphas=4, cv=3)])
def test_scikit_learn_checks(estimator: Any, check: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)


@pytest.fixture(scope="module")
def table() -> tuple[np.ndarray, np.ndarray]:
    return blocks_table([120, 120], 6, seed=0)


@pytest.fixture(scope="module")
def fitted(table: Any) -> SparseQDA:
    return SparseQDA(n_alphas=8).fit(*table)


# ------------------------------------------------------------------ the criterion


@pytest.mark.parametrize(
    ("sizes", "p", "standardize"),
    [
        ([40, 40], 5, True),
        ([40, 40], 5, False),
        ([200, 12, 60], 6, True),  # unbalanced
        ([5, 6], 8, True),  # fewer rows than features
        ([20] * 20, 3, False),  # twenty classes
    ],
)
@pytest.mark.parametrize("share", [0.7, 0.2])
def test_textbook(sizes: list[int], p: int, standardize: bool, share: float) -> None:
    """The textbook's certificate on dense matrices, its own minimum, scores by hand.

    The textbook's dual point is off by the error of the matrices, not by its square, so it
    certifies less than the fit's own gap. Near its minimum the criterion rises by ``n_k |D|^2 / (2
    largest eigenvalue^2)`` over a step D of class k: the gaps of both bound how far they can be
    apart. First-order steps are only followed where they take seconds.
    """
    x, y = blocks_table(sizes, p, seed=len(sizes) + p)
    x *= np.geomspace(0.5, 3.0, p)
    n, means, covariances = moments_by_class(x, y)
    scale = pooled_scale(n, covariances) if standardize else np.ones(p)
    scaled = covariances / np.outer(scale, scale)
    norms = np.sqrt(((n[:, None, None] * scaled) ** 2).sum(axis=0))
    np.fill_diagonal(norms, 0.0)
    lam = share * norms.max()
    fit = SparseQDA(standardize=standardize, alpha=lam / n.sum(), tol=1e-12).fit(x, y)
    found = fit.precision_.dense()
    assert fit.gap_ <= 1e-12
    assert gap(scaled, n, lam, found) <= 1e-6 * p * n.sum()
    assert 0 < fit.precision_.n_links < p * (p - 1) / 2 + (share < 0.5)
    if len(sizes) == 2:
        expected = proximal_gradient(scaled, n, lam, tol=1e-10)
        left = gap(scaled, n, lam, expected)
        assert left <= 1e-8 * p * n.sum()
        both = np.sqrt(left) + np.sqrt(1e-12 * p * n.sum())
        far = both * np.sqrt(2 / n.min()) * np.linalg.eigvalsh(expected).max()
        assert np.linalg.norm(found - expected, axis=(1, 2)).max() <= far
    by_hand = scores(x / scale, means / scale, found, n / n.sum())
    log_odds = fit.predict_log_proba(x)
    np.testing.assert_allclose(
        log_odds - log_odds[:, :1], by_hand - by_hand[:, :1], rtol=1e-9, atol=1e-9
    )


def test_no_penalty_is_quadratic_discriminant_analysis(table: Any) -> None:
    x, y = table
    n, means, covariances = moments_by_class(x, y)
    expected = scores(x, means, np.linalg.inv(covariances), n / n.sum())
    for standardize in (True, False):
        fit = SparseQDA(alpha=0.0, standardize=standardize).fit(x, y)
        np.testing.assert_allclose(
            fit.decision_function(x), expected[:, 1] - expected[:, 0], rtol=1e-9, atol=1e-9
        )
        assert fit.relative_penalty_ == 1.0
        assert fit.relative_to_ == 0.0


def test_large_penalty_is_naive_bayes(table: Any) -> None:
    x, y = table
    bayes = GaussianNB(var_smoothing=0.0).fit(x, y)
    for standardize in (True, False):
        fit = SparseQDA(alpha=10.0, standardize=standardize).fit(x, y)
        np.testing.assert_allclose(fit.predict_proba(x), bayes.predict_proba(x), rtol=1e-10)
        assert fit.relative_penalty_ == 0.0
        assert fit.blocks_ == ()
        assert len(fit.interactions_) == 0
        assert fit.interactions_.to_frame().empty


def test_equal_scatter_gives_linear_boundaries(table: Any) -> None:
    """With the same covariance matrix in both classes the discriminant is that of LDA."""
    x = table[0][:120] * [1.0, 2.0, 0.1, 5.0, 1.0, 3.0]
    both, y = np.concatenate([x, x + np.arange(6.0)]), np.repeat([0, 1], 120)
    fit = SparseQDA(alpha=0.02).fit(both, y)
    a, b = both[3], both[7]
    middle = fit.decision_function(np.stack([a, b, 0.5 * (a + b)]))
    assert middle[2] == pytest.approx(0.5 * (middle[0] + middle[1]), abs=1e-9)


def test_units_do_not_matter_when_standardised(table: Any, fitted: SparseQDA) -> None:
    x, y = table
    scale = np.array([1e-6, 1.0, 1e5, 3.0, 10.0, 1e-2])
    other = SparseQDA(n_alphas=8).fit(x * scale + 7.0, y)
    assert other.alpha_ == pytest.approx(fitted.alpha_, rel=1e-6)
    np.testing.assert_allclose(
        other.predict_proba(x * scale + 7.0), fitted.predict_proba(x), atol=1e-5
    )
    raw = SparseQDA(alpha=fitted.alpha_, standardize=False).fit(x * scale + 7.0, y)
    assert raw.precision_.n_links != fitted.precision_.n_links


def test_means_far_from_zero(table: Any, fitted: SparseQDA) -> None:
    x, y = table
    other = SparseQDA(n_alphas=8).fit(x + 1e7, y)
    np.testing.assert_allclose(other.predict_proba(x + 1e7), fitted.predict_proba(x), atol=1e-5)
    assert len(other.left_out_) == 0


# ------------------------------------------------------------------ attributes


def test_attributes(table: Any, fitted: SparseQDA) -> None:
    x, y = table
    path = fitted.path_
    assert fitted.classes_.tolist() == [0, 1]
    assert fitted.priors_.tolist() == [0.5, 0.5]
    np.testing.assert_allclose(fitted.means_[1], x[y == 1].mean(axis=0))
    assert fitted.lam_ == pytest.approx(240 * fitted.alpha_)
    assert fitted.precision_.lam == pytest.approx(fitted.lam_)
    assert len(path) == 8
    assert path.alphas[-1] == pytest.approx(0.001 * path.alphas[0])
    assert path.n_links[0] == 0 and path.n_links[-1] == 15
    assert (np.diff(path.penalty_norms) > 0).all()
    assert path.largest_block[0] == 1 and path.largest_block[-1] == 6
    assert path.gaps.max() <= 1e-8
    assert path.cv_wrong.shape == (5, 8) and path.cv_rows.tolist() == [48] * 5
    at = path.alphas.tolist().index(fitted.alpha_)
    assert path.cv_error[at] == path.cv_error.min()
    assert fitted.relative_penalty_ == path.relative_penalties[at]
    frame = path.to_frame()
    np.testing.assert_allclose(frame["cv_se"], path.cv_errors.std(axis=0, ddof=1) / np.sqrt(5))
    assert 0 < fitted.relative_penalty_ < 1 and fitted.relative_to_ == 0.0
    assert fitted.gap_ <= 1e-8 and fitted.n_iter_ >= 1


def test_relative_penalty_without_the_full_fit() -> None:
    x, y = blocks_table([6, 30], 8, seed=1)
    fit = SparseQDA(cv=2, n_alphas=4).fit(x, y)
    assert fit.path_.alphas[-1] == pytest.approx(0.01 * fit.path_.alphas[0])
    assert fit.relative_to_ == fit.path_.alphas[-1] > 0
    assert fit.path_.relative_penalties[-1] == 1.0
    fixed = SparseQDA(alpha=fit.path_.alphas[1]).fit(x, y)
    assert fixed.relative_to_ == fixed.alpha_ and fixed.relative_penalty_ == 1.0
    assert np.isnan(fixed.path_.cv_error).all() and np.isnan(fixed.path_.cv_se).all()


def test_interactions(table: Any) -> None:
    """The three features that go together come first, with partial correlations by class."""
    x, y = table
    names = [f"f{j}" for j in range(6)]
    fit = SparseQDA(alpha=0.1).fit(pd.DataFrame(x, columns=names), np.array(["u", "v"])[y])
    found = fit.interactions_
    assert set(zip(found.feature_1[:2], found.feature_2[:2])) == {("f0", "f1"), ("f0", "f2")}
    assert (np.diff(found.strength) <= 0).all()
    assert len(found) == fit.precision_.n_links == fit.path_.n_links[0]
    dense = fit.precision_.dense()
    for pair, strength, entries, partial in zip(
        found.pairs, found.strength, found.precision, found.partial_correlation
    ):
        i, j = pair
        assert i < j
        np.testing.assert_array_equal(entries, dense[:, i, j])
        assert strength == pytest.approx(np.linalg.norm(entries))
        sizes = np.sqrt(dense[:, i, i] * dense[:, j, j])
        np.testing.assert_allclose(partial, -entries / sizes)
    assert found.partial_correlation[0, 1] > 0.1
    frame = found.to_frame()
    assert frame.columns.tolist() == [
        "feature_1",
        "feature_2",
        "strength",
        "precision_u",
        "precision_v",
        "partial_correlation_u",
        "partial_correlation_v",
    ]
    assert len(frame) == len(found)


# ------------------------------------------------------------------ the choice of the penalty


def test_ties(table: Any) -> None:
    """Among penalties with the fewest errors the rule decides, and only there."""
    x, y = table
    fits = {
        ties: SparseQDA(ties=ties, n_alphas=12, smallest=1e-4).fit(x, y)
        for ties in ("sparsest", "middle", "densest")
    }
    wrong = fits["middle"].path_.cv_wrong.sum(axis=0)
    best = np.flatnonzero(wrong == wrong.min())
    assert len(best) >= 3
    grid = fits["middle"].path_.alphas
    assert fits["sparsest"].alpha_ == grid[best[0]]
    assert fits["densest"].alpha_ == grid[best[-1]]
    assert fits["middle"].alpha_ == grid[best[(len(best) - 1) // 2]]


@pytest.mark.parametrize(
    "wrong, ties, most",
    [
        ([9, 4, 0, 0, 0, 0], "sparsest", 5),  # no smaller penalty can have fewer errors
        ([9, 4, 0, 0, 0, 0], "densest", None),  # but as few
        ([9, 4, 0, 0], "sparsest", None),
        ([90, 40, 20, 60, 70, 80, 10], "sparsest", 6),  # clearly worse, three times in a row
        ([90, 40, 20, 60, 30, 70, 80, 10], "sparsest", None),
        ([90, 40, 20, 45, 46, 47], "sparsest", None),  # 27 more of 67 are 3.3 standard errors
        ([90, 40, 20, 30, 0, 0, 0, 0], "sparsest", 7),
        ([], "sparsest", None),
    ],
)
def test_penalties_that_cannot_win(wrong: list[int], ties: str, most: int | None) -> None:
    """Two folds: one with all errors but one path longer, one without any."""
    folds = [np.array([*wrong, 0]), np.zeros(len(wrong), dtype=np.int64)]
    answers = [sparse_qda_fit.FoldAnswer(counts, 100) for counts in folds]
    assert sparse_qda_fit.can_win(answers, ties) == most


@pytest.mark.parametrize("separable", [True, False])
def test_where_no_smaller_penalty_can_win_the_path_ends(
    separable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The choice is that of the whole grid, and the same with each fold by itself."""
    rng = np.random.default_rng(4)
    y = np.repeat([0, 1], 200)
    x = rng.standard_normal((400, 12))
    x[y == 1, 1] = 3 * x[y == 1, 0] + 0.1 * rng.standard_normal(200)
    x[y == 1] += 2.5 * separable
    settings: dict[str, Any] = {"n_alphas": 12, "smallest": 1e-6, "tol": 1e-10}
    fit = SparseQDA(**settings).fit(x, y)
    monkeypatch.setattr(sparse_qda_fit, "TOGETHER", 0)
    apart = SparseQDA(**settings).fit(x, y)
    for name in ("alphas", "cv_wrong", "gaps", "penalty_norms"):
        np.testing.assert_array_equal(getattr(apart.path_, name), getattr(fit.path_, name))
    assert apart.remarks_ == fit.remarks_
    n = len(fit.path_)
    assert (n < 12) == separable
    assert any("no penalty was tried" in remark for remark in fit.remarks_) == separable
    if separable:
        grid = np.geomspace(fit.path_.alphas[0], 1e-6 * fit.path_.alphas[0], 12)
        whole = SparseQDA(alphas=grid, tol=1e-10).fit(x, y)
        assert whole.alpha_ == pytest.approx(fit.alpha_, rel=1e-12)
        np.testing.assert_array_equal(whole.path_.cv_wrong[:, :n], fit.path_.cv_wrong)


def test_where_errors_rise_clearly_the_path_ends_with_the_choice_of_the_whole_grid() -> None:
    rng = np.random.default_rng(0)
    y = np.repeat(range(6), 60)
    x = rng.standard_normal((360, 25))
    x[np.arange(360), y] += 2.0  # nothing is linked: what a denser fit finds is noise
    fit = SparseQDA().fit(x, y)
    first, n = fit.path_.alphas[0], len(fit.path_)
    assert any("rose clearly above the fewest" in remark for remark in fit.remarks_) and n < 20
    whole = SparseQDA(alphas=np.geomspace(first, 0.001 * first, 20)).fit(x, y)
    assert whole.alpha_ == pytest.approx(fit.alpha_, rel=1e-12)
    wrong = whole.path_.cv_wrong.sum(axis=0)
    assert (wrong[n:] > wrong.min()).all()


def test_a_path_that_ends_early_says_nothing_of_the_largest_block() -> None:
    rng = np.random.default_rng(4)
    y = np.repeat([0, 1], 200)
    x = rng.standard_normal((400, 12))
    x[y == 1] += 2.5
    fit = SparseQDA(n_alphas=12, max_block=4).fit(x, y)
    assert any("no held-out row was wrong" in remark for remark in fit.remarks_)
    assert not any("max_block" in remark for remark in fit.remarks_)


def test_folds_by_hand(table: Any) -> None:
    x, y = table
    alphas = [0.3, 0.05, 0.01]
    folds = list(StratifiedKFold(3, shuffle=True, random_state=0).split(x, y))
    fit = SparseQDA(alphas=alphas, cv=folds).fit(x, y)
    for row, (train, test) in zip(fit.path_.cv_wrong, folds):
        by_hand = [
            int((SparseQDA(alpha=a).fit(x[train], y[train]).predict(x[test]) != y[test]).sum())
            for a in alphas
        ]
        assert row.tolist() == by_hand
    assert fit.alpha_ in alphas


def test_alphas_in_any_order(table: Any) -> None:
    one = SparseQDA(alphas=[0.01, 0.3, 0.3, 0.0], cv=2).fit(*table)
    assert one.path_.alphas.tolist() == [0.3, 0.01, 0.0]
    single = SparseQDA(alphas=[0.05]).fit(*table)
    assert single.alpha_ == 0.05 and len(single.path_.cv_rows) == 0


def test_groups_go_to_the_splitter(table: Any) -> None:
    x, y = table
    groups = np.arange(240) % 4
    fit = SparseQDA(cv=LeaveOneGroupOut(), n_alphas=3).fit(x, y, groups=groups)
    assert fit.path_.cv_rows.tolist() == [60] * 4
    with pytest.raises(ValueError, match="groups"):
        SparseQDA(cv=LeaveOneGroupOut(), n_alphas=3).fit(x, y)


def test_answers_do_not_depend_on_workers(table: Any, fitted: SparseQDA) -> None:
    with joblib.parallel_config("threading"):
        two = SparseQDA(n_alphas=8, n_jobs=2).fit(*table)
    assert two.alpha_ == fitted.alpha_
    np.testing.assert_array_equal(two.precision_.dense(), fitted.precision_.dense())
    np.testing.assert_array_equal(two.path_.cv_wrong, fitted.path_.cv_wrong)


def test_priors(table: Any) -> None:
    x, y = table
    even = SparseQDA(alpha=0.1).fit(x, y)
    odd = SparseQDA(alpha=0.1, priors=[0.9, 0.1]).fit(x, y)
    np.testing.assert_allclose(
        odd.decision_function(x) - even.decision_function(x), np.log(0.1 / 0.9)
    )
    folds = SparseQDA(alphas=[0.3, 0.1], priors=[1 - 1e-12, 1e-12]).fit(x, y).path_
    plain = SparseQDA(alphas=[0.3, 0.1]).fit(x, y).path_
    assert folds.cv_wrong.sum() > plain.cv_wrong.sum()  # folds use them, too


# ------------------------------------------------------------------ tables that are bad


def test_class_with_one_row(table: Any) -> None:
    x, y = table
    with pytest.raises(DataError, match="class 'rare' of y has one row"):
        SparseQDA().fit(x, np.where(np.arange(240) == 5, "rare", y.astype(str)))
    with pytest.raises(DataError, match="one class only"):
        SparseQDA().fit(x, np.zeros(240))


def test_small_classes_in_folds() -> None:
    """Two rows of a class: no fold can learn it, so they are errors at every penalty."""
    x, y = blocks_table([60, 60, 2], 4, seed=2)
    with pytest.warns(UserWarning, match="fewer than two rows of a class"):
        fit = SparseQDA(n_alphas=4, cv=3).fit(x, y)
    assert fit.path_.cv_rows.sum() == 122
    assert fit.path_.cv_wrong.sum(axis=0).min() >= 2
    assert set(fit.predict(x)) <= {0, 1, 2}


def test_grouped_folds_without_a_class() -> None:
    """Sorted rows in plain folds: whole classes are missing, and the rest is still learned."""
    x, y = blocks_table([30, 30, 30], 3, seed=3)
    with pytest.warns(UserWarning, match="fewer than two rows of a class"):
        fit = SparseQDA(n_alphas=3, cv=KFold(3)).fit(x, y)
    assert (fit.path_.cv_wrong == 30).all()


def test_constant_columns(table: Any) -> None:
    x, y = table
    wide = np.column_stack([np.full(240, 1e9 + 0.1), x, np.zeros(240)])
    with pytest.warns(UserWarning, match="constant and take no part: x0, x7"):
        fit = SparseQDA(alpha=0.1).fit(wide, y)
    plain = SparseQDA(alpha=0.1).fit(x, y)
    assert fit.left_out_.tolist() == [0, 7]
    np.testing.assert_allclose(fit.predict_proba(wide), plain.predict_proba(x), rtol=1e-12)
    np.testing.assert_array_equal(fit.interactions_.pairs, plain.interactions_.pairs + 1)
    assert [block.tolist() for block in fit.blocks_] == [
        (block + 1).tolist() for block in plain.blocks_
    ]
    assert np.isnan(fit.scale_[[0, 7]]).all()
    with pytest.raises(DataError, match="every column is constant"):
        SparseQDA().fit(np.ones((10, 2)), np.arange(10) % 2)


def test_constant_within_a_class(table: Any) -> None:
    """The others' spread stands in, so that no class is certain of what it has not seen."""
    x, y = table[0].copy(), table[1]
    x[y == 0, 4] = 2.5
    with pytest.warns(UserWarning, match=r"constant within a class.*: x4"):
        fit = SparseQDA(alpha=0.05).fit(x, y)
    assert fit.floored_.tolist() == [[0, 4]]
    assert fit.path_.gaps.max() <= 1e-8
    with pytest.warns(UserWarning, match="constant within a class"):
        alone = SparseQDA(alpha=10.0).fit(x, y)
    own = x[y == 1, 4]
    steps = fit.means_[0] + np.outer([0.0, 1.0], np.eye(6)[4])
    half = -0.5 * (steps[:, 4] - own.mean()) ** 2 / own.var()
    rise = half[1] - half[0] + 0.5 / (0.5 * own.var())
    np.testing.assert_allclose(np.diff(alone.decision_function(steps)), rise, rtol=1e-9)


def test_constant_within_every_class(table: Any) -> None:
    x, y = table[0].copy(), table[1]
    x[:, 2] = np.where(y == 0, -1.0, 3.0)
    with pytest.warns(UserWarning, match="constant within a class"):
        fit = SparseQDA(alpha=0.05).fit(x, y)
    assert sorted(map(tuple, fit.floored_)) == [(0, 2), (1, 2)]
    assert fit.scale_[2] == pytest.approx(2.0)  # its total spread
    assert fit.score(x, y) > SparseQDA(alpha=0.05).fit(table[0], y).score(table[0], y)


def test_duplicate_columns(table: Any) -> None:
    x, y = table
    twice = np.column_stack([x, x[:, :2]])
    fit = SparseQDA(n_alphas=5).fit(twice, y)
    assert fit.path_.gaps.max() <= 1e-8
    assert fit.relative_to_ > 0  # without a penalty there is no fit
    assert np.isfinite(fit.predict_log_proba(twice)).all()
    with pytest.raises(DataError, match="alpha = 0"):
        SparseQDA(alpha=0.0).fit(twice, y)
    with pytest.raises(DataError, match="alpha = 0"):
        SparseQDA(alpha=0.0).fit(x[y + np.arange(240) % 40 < 2], y[y + np.arange(240) % 40 < 2])


def test_no_correlation_at_all() -> None:
    square = np.array([[-1.0, -1.0], [-1.0, 1.0], [1.0, -1.0], [1.0, 1.0]])
    fit = SparseQDA().fit(np.concatenate([square, 3 * square + 1]), np.repeat([0, 1], 4))
    assert fit.alpha_ < 1e-15 and fit.precision_.n_links == 0
    one = SparseQDA().fit(np.arange(8.0)[:, None], np.arange(8) % 2)
    assert one.predict(np.zeros((1, 1))).shape == (1,)


def test_missing_values_and_sparse_tables(table: Any, fitted: SparseQDA) -> None:
    x, y = table[0].copy(), table[1]
    x[3, 2] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        SparseQDA().fit(x, y)
    with pytest.raises(ValueError, match="NaN"):
        fitted.predict(x)
    with pytest.raises(TypeError, match="dense data is required"):
        SparseQDA().fit(sparse.csr_array(table[0]), y)


def test_blocks_that_are_too_large(table: Any) -> None:
    x, y = table
    with pytest.raises(ParameterError, match=r"6 of 6 features at alpha .* max_block = 3"):
        SparseQDA(alpha=0.01, max_block=3).fit(x, y)
    with pytest.warns(UserWarning, match="more than max_block = 3 features"):
        fit = SparseQDA(max_block=3, n_alphas=10).fit(x, y)
    assert 1 < len(fit.path_) <= 10
    assert fit.path_.largest_block.max() == 3
    assert fit.path_.alphas[-1] > 0.01 * fit.path_.alphas[0]
    with pytest.warns(UserWarning, match="more than max_block = 3 features"):
        given = SparseQDA(alphas=[0.5, 0.3, 0.01], max_block=3).fit(x, y)
    assert given.path_.alphas.tolist() == [0.5, 0.3]
    with pytest.raises(ParameterError, match="at every penalty of the grid"):
        SparseQDA(alphas=[0.01, 0.005], max_block=3).fit(x, y)


def test_folds_of_noise_that_link_too_many() -> None:
    """Half the rows of noise link more than all do: the penalty without links is kept."""
    x = np.random.default_rng(8).normal(size=(60, 1000))
    with pytest.warns(UserWarning, match="more than max_block = 100 features"):
        fit = SparseQDA(max_block=100, n_alphas=8, cv=2).fit(x, np.arange(60) % 2)
    assert len(fit.path_) == 1 and fit.precision_.n_links == 0
    assert fit.path_.cv_wrong.shape == (0, 1)  # nothing was judged
    assert fit.alpha_ == fit.path_.alphas[0] > 0


def test_no_penalty_where_only_a_fold_is_too_small() -> None:
    """Seven rows a class for six features: five or six of them have no inverse."""
    x, y = blocks_table([7, 7], 6, seed=9)
    with pytest.warns(UserWarning, match="alpha = 0 was not tried") as told:
        fit = SparseQDA(alphas=[0.5, 0.1, 0.0]).fit(x, y)
    assert not any("max_block" in str(one.message) for one in told)
    assert fit.path_.alphas.tolist() == [0.5, 0.1]
    assert fit.path_.cv_wrong.shape == (5, 2) and fit.alpha_ in (0.5, 0.1)
    assert fit.relative_to_ == 0.0  # the whole table has that fit
    with pytest.raises(DataError, match="alpha = 0"):
        SparseQDA(alphas=[0.5, 0.1, 0.0]).fit(np.column_stack([x, x[:, 0]]), y)
    with pytest.warns(UserWarning) as cut:  # of both reasons the first to come counts
        small = SparseQDA(alphas=[5.0, 0.1, 0.0], max_block=3).fit(x, y)
    assert small.path_.largest_block.max() <= 3
    assert [("max_block" in str(one.message)) for one in cut] == [True]


def test_slow_convergence_is_told(table: Any) -> None:
    x, y = blocks_table([10, 10], 12, seed=5)
    with pytest.warns(ConvergenceWarning, match="relative duality gap"):
        fit = SparseQDA(alpha=0.02, max_iter=1, tol=1e-13).fit(x, y)
    assert fit.gap_ > 1e-13
    assert any("gap" in remark for remark in fit.remarks_)


@pytest.mark.parametrize(
    ("setting", "match"),
    [
        ({"alpha": -1.0}, "alpha"),
        ({"alpha": "auto"}, "alpha"),
        ({"alpha": None}, "alpha"),
        ({"n_alphas": 1}, "n_alphas"),
        ({"smallest": 1.0}, "smallest"),
        ({"alphas": [-1.0, 2.0]}, "alphas"),
        ({"alphas": []}, "alphas"),
        ({"alphas": "some"}, "alphas"),
        ({"ties": "first"}, "ties"),
        ({"priors": [0.5, 0.6]}, "priors"),
        ({"priors": [1.0, 0.0]}, "priors"),
        ({"priors": ["a", "b"]}, "priors"),
        ({"max_block": 1}, "max_block"),
        ({"tol": 0.0}, "tol"),
        ({"max_iter": 0}, "max_iter"),
        ({"cv": 1}, "cv"),
    ],
)
def test_settings_out_of_range(table: Any, setting: dict[str, Any], match: str) -> None:
    with pytest.raises(ParameterError, match=match):
        SparseQDA(**setting).fit(*table)


# ------------------------------------------------------------------ as scikit-learn uses it


def test_names_clone_pickle(table: Any, fitted: SparseQDA) -> None:
    x, y = table
    frame = pd.DataFrame(x, columns=[f"f{j}" for j in range(6)])
    named = SparseQDA(alpha=0.1).fit(frame, np.array(["a", "b"])[y])
    assert named.feature_names_in_.tolist() == frame.columns.tolist()
    assert named.predictor_.predict(frame).tolist() == named.predict(frame).tolist()
    with pytest.raises(ValueError, match="feature names"):
        named.predict(frame[frame.columns[::-1]])
    assert clone(fitted).get_params() == fitted.get_params()
    with pytest.raises(NotFittedError):
        clone(fitted).predict(x)
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.decision_function(x), fitted.decision_function(x))


def test_in_pipelines_and_searches(table: Any) -> None:
    x, y = table
    pipe = make_pipeline(PolynomialFeatures(2, include_bias=False), SparseQDA())
    search = GridSearchCV(pipe, {"sparseqda__alpha": [0.01, 0.1, 1.0]}, cv=3).fit(x[:, :3], y)
    assert search.best_params_["sparseqda__alpha"] in (0.01, 0.1, 1.0)
    assert cross_val_score(SparseQDA(n_alphas=4), x, y, cv=3).mean() > 0.5


def test_probabilities(table: Any) -> None:
    x, y = blocks_table([40, 40, 40], 4, seed=6)
    fit = SparseQDA(alpha=0.05).fit(x, y)
    probabilities = fit.predict_proba(x)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0)
    np.testing.assert_array_equal(fit.classes_[probabilities.argmax(axis=1)], fit.predict(x))
    scored = fit.decision_function(x)
    assert scored.shape == (120, 3)
    np.testing.assert_array_equal(fit.classes_[scored.argmax(axis=1)], fit.predict(x))
    two = SparseQDA(alpha=0.05).fit(*table)
    np.testing.assert_array_equal(
        two.decision_function(table[0]) > 0, two.predict(table[0]) == two.classes_[1]
    )
    far = fit.predict_log_proba(1e6 + x[:5])
    assert np.isfinite(far).all()


def test_estimator_of_a_fit_made_elsewhere(table: Any) -> None:
    """Moments alone give the estimator that the rows give."""
    x, y = table
    rows = SparseQDA(alpha=0.05).fit(x, y)
    settings = QDASettings(alpha=0.05)
    prepared = prepared_moments(*moments_by_class(x, y))
    found = follow(prepared, np.array([0.05]), [], settings)
    made = fitted_sparse_qda(found, [0, 1], [0.5, 0.5], [f"x{j}" for j in range(6)], alpha=0.05)
    np.testing.assert_allclose(
        made.predict_log_proba(pd.DataFrame(x, columns=made.feature_names_in_)),
        rows.predict_log_proba(x),
        atol=1e-8,
    )
    assert made.get_params() == rows.get_params()
    assert made.alpha_ == rows.alpha_ and made.lam_ == rows.lam_
    np.testing.assert_array_equal(made.interactions_.pairs, rows.interactions_.pairs)


def test_moments_of_rows_and_of_matrices_agree(table: Any) -> None:
    """What several sites add up gives the same units and tiles as the rows."""
    x, y = table[0].copy(), table[1]
    x[y == 0, 4] = 2.5
    rows = prepare_rows(x, y, 2)
    sums = prepared_moments(*moments_by_class(x, y))
    np.testing.assert_allclose(sums.units.scale, rows.units.scale)
    np.testing.assert_allclose(sums.units.floor, rows.units.floor)
    np.testing.assert_allclose(sums.moments.diagonal, rows.moments.diagonal, atol=1e-14)
    some = np.array([1, 4, 5])
    np.testing.assert_allclose(sums.moments.block(some), rows.moments.block(some), atol=1e-13)
    tile = (slice(0, 3), slice(3, 6))
    np.testing.assert_allclose(sums.moments.norms(*tile), rows.moments.norms(*tile), atol=1e-12)
    diagonal = rows.moments.block(some)[:, [0, 1, 2], [0, 1, 2]]
    np.testing.assert_allclose(diagonal, rows.moments.diagonal[:, some])


def mixtures(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Three classes of rows with factors of their own, whose errors change along the path."""
    rng = np.random.default_rng(seed)
    p, shared = 12 + 8 * (seed % 3), None
    rows = []
    for _ in range(3):
        own = rng.normal(size=(3, p))
        shared = own if shared is None else shared
        mean = 0.3 * rng.normal(size=p)
        rows.append(mean + rng.normal(size=(40, 3)) @ (shared + own) + rng.normal(size=(40, p)))
    return np.concatenate(rows), np.repeat([0, 1, 2], 40)


def test_folds_at_their_tolerance_choose_as_exact_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice is the same in every table, and of 1,200 labels in folds hardly any moves."""
    tables = [mixtures(seed) for seed in range(5)]
    found = [SparseQDA(n_alphas=10).fit(x, y) for x, y in tables]
    monkeypatch.setattr(sparse_qda_fit, "FOLD_TOL", (1e-9, 1e-9))
    exact = [SparseQDA(n_alphas=10, tol=1e-9).fit(x, y) for x, y in tables]
    assert [fit.alpha_ for fit in found] == [fit.alpha_ for fit in exact]
    moved = [
        np.abs(a.path_.cv_wrong - b.path_.cv_wrong).sum() for a, b in zip(found, exact, strict=True)
    ]
    assert sum(moved) <= 5 * 10 * 120 / 2000
    assert all(fit.gap_ <= 1e-8 and fit.path_.gaps.max() <= 1e-8 for fit in found)
    places = [fit.path_.alphas.tolist().index(fit.alpha_) for fit in found]
    assert min(places) > 0 and len(set(places)) > 1


def test_the_time_of_a_fit_is_foreseen_from_its_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cubes of the largest blocks, as screening has them, times steps; folds side by side."""
    x, y = mixtures(2)  # 28 columns
    prepared = sparse_qda_fit.prepare_rows(x, y, 3)
    settings = sparse_qda_fit.QDASettings()
    alphas = sparse_qda_fit.grid_of(prepared, settings)
    fit = SparseQDA().fit(x, y)
    monkeypatch.setattr(sparse_qda_fit, "eigen_seconds", lambda q: 1e-9 * q**3)
    cubes = float((fit.path_.largest_block.astype(float) ** 3).sum())
    one = 1e-9 * sparse_qda_fit.STEP * 3 * cubes

    def foreseen(n_folds: int = 5, **changed: Any) -> float:
        settings = sparse_qda_fit.QDASettings(**changed)
        return sparse_qda_fit.expected_seconds(prepared, alphas, n_folds, settings)

    folds, final = sparse_qda_fit.FOLD_STEPS, sparse_qda_fit.FINAL_STEPS
    assert foreseen() == pytest.approx(one * (5 * folds + final))
    assert foreseen(n_jobs=5) == pytest.approx(one * (folds + final))
    assert foreseen(0) == pytest.approx(one * final)
    assert foreseen(max_block=10) == 0.0  # what is left is too small to take long
    assert fit.path_.largest_block.max() == 28
