"""Simulated wards: each patient has one kind, and the kinds have the slopes they say."""

from __future__ import annotations

import numpy as np
import pytest

from consilience.datasets import simulate_wards as wards
from consilience.exceptions import ParameterError


def test_every_patient_has_one_kind_and_one_ward() -> None:
    tables = wards.simulate_wards(3)
    assert tuple(tables) == wards.HOSPITALS
    seen: set[str] = set()
    for table in tables.values():
        assert table["ward"].nunique() == 12
        assert (table.groupby("patient")["kind"].nunique() == 1).all()
        assert (table.groupby("patient")["ward"].nunique() == 1).all()
        assert (table[list(wards.FEATURES)] > 0).all().all()
        patients = set(table["patient"])
        assert not patients & seen, "a patient is at one hospital"
        seen |= patients


def test_slopes_are_those_of_the_kinds() -> None:
    tables = wards.simulate_wards(5, n_wards=40)
    rows = [table for table in tables.values()]
    for k, kind in enumerate(wards.KINDS):
        x = np.vstack([t.loc[t["kind"] == kind, list(wards.FEATURES)].to_numpy() for t in rows])
        y = np.concatenate([t.loc[t["kind"] == kind, wards.TARGET].to_numpy() for t in rows])
        design = np.column_stack([np.ones(len(y)), x - wards.CENTRES])
        found, rest, *_ = np.linalg.lstsq(design, y, rcond=None)
        sigma = np.sqrt(rest[0] / (len(y) - 4))
        error = sigma * np.sqrt(np.diag(np.linalg.inv(design.T @ design)))
        wanted = np.concatenate([[wards.AT_CENTRE[k]], wards.SLOPES[k]])
        # 16 coefficients: 4 standard errors are left once in a thousand such tests.
        assert (np.abs(found - wanted) < 4 * error).all()
        assert sigma == pytest.approx(5.0, rel=4 / np.sqrt(2 * len(y)))


def test_same_seed_same_tables() -> None:
    first, again, other = (wards.simulate_wards(seed)["elm"] for seed in (1, 1, 2))
    assert first.equals(again)
    assert not first.equals(other)
    with pytest.raises(ParameterError, match="n_wards"):
        wards.simulate_wards(n_wards=0)
