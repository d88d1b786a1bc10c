"""Robust covariances against explicit sums, statsmodels and refits without a cluster."""

from __future__ import annotations

import numpy as np
import pytest

from consilience.assisted.kernels.glm import fit
from consilience.assisted.kernels.sandwich import quantile, sandwich
from consilience.exceptions import DataError
from consilience.numerics.families import family
from tests.assisted.assisted import FAMILIES, draw_response
from tests.reference import pooled_glm


def drawn(name: str, n: int = 120) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Columns with heavy tails, a response, and clusters of eight with something in common."""
    rng = np.random.default_rng(7)
    x, of = rng.standard_t(3, size=(n, 4)), rng.permutation(np.arange(n) // 8)
    eta = x @ [0.2, 0.1, -0.1, 0.05] + 0.3 * rng.normal(size=n // 8)[of]
    return x, draw_response(name, eta, rng), of


@pytest.mark.parametrize("errors", ["hc1", "hc3"])
@pytest.mark.parametrize("clustered", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_covariances_are_the_textbook_s(name: str, clustered: bool, errors: str) -> None:
    x, y, of = drawn(name)
    cluster = of if clustered else None
    weights = np.random.default_rng(1).choice([0.0, 0.5, 2.0], size=len(y))
    weights[of == 3] = 0.0  # a cluster that takes no part
    # a column twice: there is no inverse, and variances of predictors are what they were
    x = np.column_stack([x, x[:, 0]])
    eta = fit(x, y, family(name), weights=weights, tol=1e-13).eta
    design = np.column_stack([np.ones(len(y)), x])
    found = sandwich(design, y, eta, family(name), weights, errors, cluster)
    wanted = pooled_glm.fit(
        [x], y, name, used=weights > 0, weights=weights, errors=errors, cluster=cluster
    )
    assert found.rank == 5
    np.testing.assert_allclose(
        design @ found.covariance @ design.T,
        design @ wanted.covariance @ design.T,
        rtol=1e-6,
        atol=1e-9 * np.abs(wanted.covariance).max(),
    )


@pytest.mark.parametrize("name", ["normal", "binomial", "poisson"])
def test_covariances_of_statsmodels(name: str) -> None:
    """Its ``cov_type="HC3"`` of a GLM is HC0 without a word: its leverages give what is meant."""
    import statsmodels.api as sm

    x, y, of = drawn(name)
    design, model = sm.add_constant(x), family(name)
    eta = fit(x, y, model, tol=1e-13).eta
    hc3 = sandwich(design, y, eta, model, errors="hc3").covariance
    clustered = sandwich(design, y, eta, model, cluster=of).covariance
    groups = {"cov_type": "cluster", "cov_kwds": {"groups": of}}
    if name == "normal":
        ols = sm.OLS(y, design)
        by_groups, robust = ols.fit(**groups).cov_params(), ols.fit(cov_type="HC3").cov_params()
    else:
        link = sm.families.Binomial() if name == "binomial" else sm.families.Poisson()
        glm = sm.GLM(y, design, family=link)
        by_groups = glm.fit(tol=1e-14, maxiter=100, **groups).cov_params()
        fitted = glm.fit(tol=1e-14, maxiter=100)
        h = fitted.get_influence().hat_matrix_diag
        bread, s = np.linalg.inv(fitted.model.information(fitted.params)), y - fitted.mu
        squares = (s / (1 - h)) ** 2
        robust = bread @ (design.T @ (squares[:, None] * design)) @ bread
    np.testing.assert_allclose(clustered, by_groups, rtol=1e-8, atol=1e-14)
    np.testing.assert_allclose(hc3, robust, rtol=1e-8, atol=1e-14)


def test_hc3_of_clusters_is_the_jackknife_of_least_squares() -> None:
    x, y, of = drawn("normal")
    design = np.column_stack([np.ones(len(y)), x])
    whole = np.linalg.lstsq(design, y, rcond=None)[0]
    moved = [np.linalg.lstsq(design[of != g], y[of != g], rcond=None)[0] - whole for g in range(15)]
    found = sandwich(design, y, design @ whole, family("normal"), None, "hc3", of)
    np.testing.assert_allclose(found.covariance, 14 / 15 * np.transpose(moved) @ moved, rtol=1e-9)
    assert found.n_clusters == 15


def test_a_cluster_that_alone_tells_a_coefficient_has_an_error() -> None:
    x, y, of = drawn("normal")
    x[:, 3] = of == 2
    design = np.column_stack([np.ones(len(y)), x])
    eta = fit(x, y, family("normal"), tol=1e-13).eta
    found = sandwich(design, y, eta, family("normal"), None, "hc3", of)
    assert np.isfinite(found.covariance).all()


def test_limits_with_clusters_are_wider_and_one_cluster_is_refused() -> None:
    assert quantile(0.95) == pytest.approx(1.959964, rel=1e-6)
    assert quantile(0.95, 11) == pytest.approx(2.228139, rel=1e-6)
    x, y, of = drawn("normal")
    with pytest.raises(DataError, match="one cluster: errors need at least two"):
        sandwich(x, y, 0 * y, family("normal"), cluster=0 * of)
