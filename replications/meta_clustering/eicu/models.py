"""Own models, one common model, and intercepts of sites: cross-validated errors on pooled rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from consilience.numerics.random import stream
from examples.eicu.make_tables import first_stays

FloatArray = NDArray[np.float64]
FEATURES = ("age", "male", "aps", "ventilated")
FOLDS = 10
ROUNDS = 15
"""Of the alternating fit of coefficients, intercepts and their variance."""


def lines(folder: Path, sites: tuple[str, ...]) -> list[tuple[str, tuple[str, ...], pd.DataFrame]]:
    """Response and unit, features and rows of each line.

    Parameters
    ----------
    folder : Path
        The demo release.
    sites : tuple of str
        Sites of the study.
    """
    stays = first_stays(folder).dropna()
    stays = stays[stays["site"].isin(sites)].assign(male=lambda t: (t["sex"] == "male") * 1.0)
    patient = pd.read_csv(
        folder / "patient.csv.gz", usecols=["patientunitstayid", "hospitalid"]
    ).set_index("patientunitstayid")
    result = pd.read_csv(
        folder / "apachepatientresult.csv.gz", usecols=["patientunitstayid", "actualhospitallos"]
    ).drop_duplicates("patientunitstayid")
    days = result.set_index("patientunitstayid")["actualhospitallos"]
    by_hospital = stays.assign(site=patient["hospitalid"].loc[stays["stay"]].to_numpy().astype(str))
    in_hospital = stays.assign(log_days=np.log(days.loc[stays["stay"]].to_numpy()))
    return [
        ("days in the unit, by site", FEATURES, stays),
        ("days in the unit, by site", (*FEATURES, "surgical"), stays),
        ("days in the unit, by hospital", FEATURES, by_hospital),
        ("days in hospital, by site", FEATURES, in_hospital),
    ]


def compared(rows: pd.DataFrame, features: tuple[str, ...], seed: int) -> dict[str, float]:
    """Mean squared errors of one split into folds, within sites."""
    x = rows[list(features)].to_numpy(dtype=float)
    y = rows["log_days"].to_numpy()
    names, site = np.unique(rows["site"].to_numpy(), return_inverse=True)
    rng = stream(seed, "eicu", "models")
    fold = np.empty(len(y), dtype=int)
    for k in range(len(names)):
        members = rng.permutation(np.flatnonzero(site == k))
        fold[members] = (np.arange(len(members)) + rng.integers(FOLDS)) % FOLDS
    alone = np.bincount(site).min() >= 20  # else a site has no model of its own
    predicted = {name: np.full(len(y), np.nan) for name in ("constant", "common", "common_forest")}
    predicted |= {name: np.full(len(y), np.nan) for name in ("own", "own_ridge", "own_forest")}
    predicted |= {name: np.full(len(y), np.nan) for name in ("intercept", "shrunken_intercept")}
    spread = []
    for f in range(FOLDS):
        train, test = fold != f, fold == f
        predicted["constant"][test] = y[train].mean()
        common = LinearRegression().fit(x[train], y[train])
        predicted["common"][test] = common.predict(x[test])
        forest = RandomForestRegressor(50, min_samples_leaf=10, random_state=seed)
        predicted["common_forest"][test] = forest.fit(x[train], y[train]).predict(x[test])
        slopes, shifts, variance = mixed(x[train], y[train], site[train], len(names))
        predicted["shrunken_intercept"][test] = slopes.predict(x[test]) + shifts[site[test]]
        spread.append(np.sqrt(variance))
        if not alone:
            continue
        residual = y[train] - common.predict(x[train])
        means = np.bincount(site[train], residual) / np.bincount(site[train])
        predicted["intercept"][test] = common.predict(x[test]) + means[site[test]]
        for k in range(len(names)):
            mine, scored = train & (site == k), test & (site == k)
            for name, model in (
                ("own", LinearRegression()),
                ("own_ridge", make_pipeline(StandardScaler(), Ridge(10.0))),
                ("own_forest", RandomForestRegressor(50, min_samples_leaf=10, random_state=seed)),
            ):
                predicted[name][scored] = model.fit(x[mine], y[mine]).predict(x[scored])
    errors = {name: float(np.square(y - p).mean()) for name, p in predicted.items()}
    return {
        **errors,
        "own_minus_common": errors["own"] - errors["common"],
        "common_minus_shrunken": errors["common"] - errors["shrunken_intercept"],
        "intercept_sd": float(np.mean(spread)),
    }


def mixed(
    x: FloatArray, y: FloatArray, site: NDArray[np.int64], n_sites: int
) -> tuple[LinearRegression, FloatArray, float]:
    """Common slopes and a random intercept of each site.

    Coefficients and intercepts alternate; the variances are updated as in the EM algorithm.
    """
    between, within = 0.02, float(y.var())
    count = np.bincount(site, minlength=n_sites).astype(float)
    shifts = np.zeros(n_sites)
    for _ in range(ROUNDS):
        slopes = LinearRegression().fit(x, y - shifts[site])
        residual = y - slopes.predict(x)
        spread = 1.0 / (1.0 / between + count / within)
        shifts = spread * np.bincount(site, residual, minlength=n_sites) / within
        between = max(float((np.square(shifts) + spread).mean()), 1e-6)
        within = float(np.square(residual - shifts[site]).mean() + spread[site].mean())
    return slopes, shifts, between
