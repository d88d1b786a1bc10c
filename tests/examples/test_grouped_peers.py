"""The mixed model and the ridge regressions that latent classes are compared with."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from examples.grouped_peers import MixedModel, entity_ridge, fit_mixed, folds_of, pooled_ridge

N_GROUPS, N_LEVELS = 12, 7


def draw(seed: int, n: int = 150) -> tuple[np.ndarray, ...]:
    """x, y, z, group and level of rows with effects of both factors; group 3 has no rows."""
    rng = np.random.default_rng(seed)
    group = rng.integers(N_GROUPS, size=n)
    group[group == 3] = 4
    level = rng.integers(N_LEVELS, size=n)
    x = np.column_stack([np.ones(n), rng.normal(size=n)])
    effects = rng.normal(size=(N_GROUPS, 2)) * [0.8, 0.5]
    y = x @ [1.0, 2.0] + (x * effects[group]).sum(axis=1)
    y += 0.6 * rng.normal(size=N_LEVELS)[level] + rng.normal(size=n)
    return x, y, x, group, level


def dense(
    model: MixedModel, x: np.ndarray, z: np.ndarray, group: np.ndarray, level: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Covariances of the rows, of the groups' effects with them, and of the levels' with them."""
    wide = np.zeros((len(x), N_GROUPS, z.shape[1]))
    wide[np.arange(len(x)), group] = z
    of_groups = np.einsum("ngq,qr->grn", wide, model.covariance)
    rows = np.einsum("ngq,gqm->nm", wide, of_groups) + model.error_variance * np.eye(len(x))
    of_levels = np.zeros((N_LEVELS, len(x)))
    if level is not None:
        indicator = np.eye(N_LEVELS)[level]
        of_levels = model.crossed_variance * indicator.T
        rows += model.crossed_variance * indicator @ indicator.T
    return rows, of_groups, of_levels


@pytest.mark.parametrize("crossed", [False, True])
@pytest.mark.parametrize("slopes", [False, True])
def test_against_the_covariance_of_all_rows(crossed: bool, slopes: bool) -> None:
    """Deviance, coefficients and effects by their definitions, with the full covariance."""
    x, y, z, group, level = draw(1)
    z = z if slopes else z[:, :1]
    known = level if crossed else None
    model = fit_mixed(x, y, z, group, known, n_groups=N_GROUPS, n_levels=N_LEVELS)
    rows, of_groups, of_levels = dense(model, x, z, group, known)
    inverse = np.linalg.inv(rows)
    square = x.T @ inverse @ x
    beta = np.linalg.solve(square, x.T @ inverse @ y)
    left = inverse @ (y - x @ beta)
    np.testing.assert_allclose(model.beta, beta, rtol=1e-9)
    np.testing.assert_allclose(model.effects, of_groups @ left, atol=1e-9)
    if crossed:
        np.testing.assert_allclose(model.crossed, of_levels @ left, atol=1e-9)
    deviance = np.linalg.slogdet(rows)[1] + np.linalg.slogdet(square)[1]
    deviance += (y - x @ beta) @ left + (len(y) - x.shape[1]) * np.log(2 * np.pi)
    assert model.deviance == pytest.approx(deviance, rel=1e-10)
    fitted = model.predict(x, z, group, known)
    expected = x @ beta + rows @ left - model.error_variance * left
    np.testing.assert_allclose(fitted, expected, atol=1e-9)
    assert (model.effects[3] == 0).all()


def test_parts_that_share_no_group_are_solved_apart() -> None:
    """Levels 0 to 2 occur in groups 0 to 5 only, the others elsewhere: the same as in one piece."""
    x, y, z, group, level = draw(2)
    level = np.where(group < 6, level % 3, 3 + level % 4)
    model = fit_mixed(x, y, z[:, :1], group, level, n_groups=N_GROUPS, n_levels=N_LEVELS)
    rows, _, of_levels = dense(model, x, z[:, :1], group, level)
    left = np.linalg.solve(rows, y - x @ model.beta)
    np.testing.assert_allclose(model.crossed, of_levels @ left, atol=1e-9)


def test_against_statsmodels() -> None:
    from statsmodels.regression.mixed_linear_model import MixedLM

    x, y, z, group, _ = draw(3, 400)
    model = fit_mixed(x, y, z, group, n_groups=N_GROUPS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other = MixedLM(y, x, groups=group, exog_re=z).fit(reml=True)
    assert model.deviance == pytest.approx(-2 * other.llf, abs=1e-4)
    np.testing.assert_allclose(model.beta, other.fe_params, rtol=1e-3)
    np.testing.assert_allclose(model.covariance, other.cov_re, rtol=0.02, atol=1e-3)


def test_every_entity_keeps_rows_to_learn_from() -> None:
    rng = np.random.default_rng(0)
    entity = np.repeat(np.arange(40), rng.integers(1, 9, size=40))
    rng.shuffle(entity)
    fold = folds_of(entity, rng)
    alone = np.bincount(entity)[entity] == 1
    assert ((fold == -1) == alone).all()
    for k in range(5):
        assert set(entity[fold != k]) == set(range(40))
        dealt = np.bincount(entity[fold == k], minlength=40)
        assert (dealt <= np.ceil(np.bincount(entity) / 5)).all()


def test_ridge_regressions() -> None:
    """With hardly a penalty both are least squares; entities are told apart by their own only."""
    x, y, _, group, _ = draw(4, 600)
    column = x[:, 1:]
    coef = np.linalg.lstsq(x, y, rcond=None)[0]
    np.testing.assert_allclose(pooled_ridge(column, y, column, 1e-9), x @ coef, atol=1e-8)
    own = entity_ridge(column, y, group, column, group, np.random.default_rng(0))
    assert np.mean((y - own) ** 2) < np.mean((y - x @ coef) ** 2)
    flat = entity_ridge(column, np.ones(600), group, column, group, np.random.default_rng(0))
    np.testing.assert_allclose(flat, 1.0, atol=1e-12)
