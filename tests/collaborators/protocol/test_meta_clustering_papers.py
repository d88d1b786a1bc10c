"""Small slices of the replications of meta clustering: the same code on a few data sets.

The tables themselves, with their Monte Carlo errors, are in ``replications/meta_clustering``. With
so few data sets a slice can only show that nothing broke: every cell here has a share of 1.00 in
the tables, so one failure in a slice is a finding.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from replications.meta_clustering.fairness.run import one as fairness
from replications.meta_clustering.few_sites.run import one as few_sites
from replications.meta_clustering.simulation1.run import one as simulation1
from replications.meta_clustering.simulation2.run import one as simulation2
from tests.rotation import one_in

pytestmark = pytest.mark.replication


@one_in(3, range(3), "seed")
def test_fairness(seed: int) -> None:
    """No group where the hidden variable does nothing; most of its harm undone where it rules."""
    assert fairness(0.01, "auto", seed)["clusters"] == 1
    strong = fairness(3.0, 3, seed)
    assert strong["clusters"] == 3
    assert strong["oracle"] < strong["sec"] < 0.6 * strong["fairness"]


@pytest.mark.parametrize(("n_features", "snr"), [(5, 32), (10, 64), (20, 128)])
def test_two_groups_of_linear_learners(n_features: int, snr: int) -> None:
    assert np.mean([simulation1(n_features, snr, "pairwise", s)["exact"] for s in range(3)]) == 1


def test_wide_learners_with_three_methods() -> None:
    found = simulation2(3, 0)
    assert found["exact"] == 1
    assert found["angle_together"] < found["angle_alone"]


DESIGNS = [
    (design, n_sites)
    for design in ("homogeneous", "two-groups", "one-odd", "unique")
    for n_sites in (2, 3, 5)
    if (design, n_sites) != ("one-odd", 2)  # two sites with one odd are two groups
]


@pytest.mark.parametrize(("design", "n_sites"), DESIGNS)
def test_few_sites(design: str, n_sites: int) -> None:
    found = [few_sites("linear", design, n_sites, "pairwise", s)["exact"] for s in (0, 1)]
    assert np.mean(found) == 1


@pytest.mark.parametrize("tampered", [0, 1, 25, 49])
def test_sign_flips_on_the_grid(data_dir: Callable[[str], Path], tampered: int) -> None:
    folder = data_dir("grid_stability")
    from replications.meta_clustering.attack.run import one as attack

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONSILIENCE_DATA", str(folder.parent))
        found = attack(("linear",), "sign", 0.0, tampered, 0)
    assert found["exact"] == 1
    assert abs(found["above_oracle"]) < 0.01
