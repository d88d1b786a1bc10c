"""Small slices of the replications of latent class regression: the same code on a few data sets.

The tables themselves, with their Monte Carlo errors, are in
``replications/latent_class_regression``. Bounds here are wide enough for one data set and still
fail where labels, the prior or the intervals are wrong.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from replications.latent_class_regression.accuracy.run import one as accuracy
from replications.latent_class_regression.concentration.run import LINES as CONCENTRATIONS
from replications.latent_class_regression.concentration.run import one as concentration
from replications.latent_class_regression.coverage.run import one as coverage
from replications.latent_class_regression.disclosure.run import one as disclosure
from replications.latent_class_regression.low_noise.run import one as low_noise
from replications.latent_class_regression.n_classes.run import one as n_classes
from replications.latent_class_regression.participation.run import one as participation
from tests.stored_figures import check_stored_figures

pytestmark = pytest.mark.replication
TABLES = Path(__file__).parents[3] / "replications" / "latent_class_regression"
SEED = 1000


@pytest.mark.parametrize(
    "table", sorted(path.parent.name for path in TABLES.glob("*/expected.csv"))
)
def test_stored_figures_are_those_expected(table: str) -> None:
    check_stored_figures(TABLES / table)


def test_error_is_near_that_of_the_true_labels() -> None:
    found = accuracy(4, 20, 4, 1.0, SEED)
    # a wrong label in fifty costs about a tenth; one model for all costs more than the noise
    assert found["central"] < 1.05
    assert found["federated"] < 1.05
    assert found["ridge"] > 2.0


def test_low_noise() -> None:
    assert low_noise("central", SEED)["error"] < 1.05
    assert low_noise("federated", SEED)["error"] < 1.05


def test_one_agent_in_seven_reports() -> None:
    found = participation("15 %, gamma 0.2", SEED)
    # 20 of 128 in each of 80 rounds, after a beginning with all
    assert found["reported"] == pytest.approx((80 * 20 + 128) / (81 * 128))
    assert found["error"] < 1.1


def test_intervals_cover_and_a_single_label_does_not() -> None:
    found = coverage("K 4, sigma 1, N* 4, N** 5", SEED)
    for kind, (covered, _) in found.items():
        if kind.endswith("single label"):
            assert covered < 0.8, kind
        else:
            # 500 to 640 entities: standard error about .01
            assert covered == pytest.approx(0.9, abs=0.04), kind


@pytest.mark.parametrize("line", ["equal", "one class"])
def test_number_of_classes(line: str) -> None:
    found = n_classes(line, SEED)
    assert found["right"] == 1.0
    assert found["sigma"] == pytest.approx(1.0, abs=0.05)  # 10,000 events: standard error .7%


def test_entity_counts_favour_large_agents() -> None:
    line = "unequal agents"
    assert line in CONCENTRATIONS
    found = concentration(line, SEED)
    assert found["shortcut towards_entities"] > 0.7
    assert found["exact towards_entities"] < 0.5
    assert found["exact distance"] < found["left out distance"]


def test_price_of_the_rules_for_class_sums() -> None:
    free = disclosure(64, "local", "simulation", SEED)
    ruled = disclosure(64, "local", "strict", SEED)
    assert free["withheld"] <= ruled["withheld"]
    assert ruled["released"] < free["released"]
    assert ruled["error"] == pytest.approx(free["error"], abs=0.03)
