"""Simulated treatment paths: chains with the chances they say, followed for as long as said."""

from __future__ import annotations

import numpy as np
import pytest

from consilience.datasets import simulate_treatments as treatments
from consilience.exceptions import ParameterError


def test_chances_sum_to_one() -> None:
    for chances in (treatments.INITIAL, treatments.TRANSITION, treatments.SHARES):
        np.testing.assert_allclose(chances.sum(axis=-1), 1.0)


def test_steps_are_those_of_the_paths() -> None:
    tables = treatments.simulate_treatments(1, n_patients=500, missing=0.0)
    code = {name: i for i, name in enumerate(treatments.STATES)}
    counts = np.zeros((3, 4, 4))
    for table in tables.values():
        wide = table.filter(like="month").map(lambda s: code.get(s, -1)).to_numpy()
        kind = table["path"].map(list(treatments.PATHS).index).to_numpy()
        before, after = wide[:, :-1], wide[:, 1:]
        rows, at = np.nonzero(after >= 0)
        np.add.at(counts, (kind[rows], before[rows, at], after[rows, at]), 1)
    n = counts.sum(axis=2, keepdims=True)
    error = np.sqrt(treatments.TRANSITION * (1 - treatments.TRANSITION) / n.clip(1))
    off = np.abs(np.divide(counts, n.clip(1)) - treatments.TRANSITION)
    # 48 cells, at most 4 standard errors: exceeded once in 300 such tests.
    assert (off <= 4 * error)[(n > 0).repeat(4, axis=2)].all()


def test_paths_have_their_shares_and_risks() -> None:
    tables = treatments.simulate_treatments(2, n_patients=4000)
    assert tuple(tables) == treatments.HOSPITALS
    for table, shares in zip(tables.values(), treatments.SHARES, strict=True):
        found = table["path"].value_counts(normalize=True)[list(treatments.PATHS)].to_numpy()
        # 4 standard errors of a share of 4,000 are .032 at most.
        np.testing.assert_allclose(found, shares, atol=0.032)
        risk = table.groupby("path")["admitted"].mean()[list(treatments.PATHS)].to_numpy()
        np.testing.assert_allclose(risk, treatments.RISK, atol=0.09)


def test_patients_are_followed_for_unequal_times_with_gaps() -> None:
    months = treatments.simulate_treatments(0)["aspen"].filter(like="month")
    last = months.notna().to_numpy()[:, ::-1].argmax(axis=1)
    assert months.shape == (240, 16) and len(set(last.tolist())) > 5
    assert 0.02 < months.iloc[:, :8].isna().to_numpy().mean() < 0.08
    assert not treatments.simulate_treatments(0)["birch"].equals(
        treatments.simulate_treatments(1)["birch"]
    )
    assert treatments.simulate_treatments(1)["birch"].equals(
        treatments.simulate_treatments(1)["birch"]
    )


@pytest.mark.parametrize(
    "setting", [{"n_patients": 0}, {"lengths": (0, 3)}, {"lengths": (5, 3)}, {"missing": 1.0}]
)
def test_numbers_out_of_range_are_refused(setting: dict[str, object]) -> None:
    with pytest.raises(ParameterError):
        treatments.simulate_treatments(**setting)  # type: ignore[arg-type]
