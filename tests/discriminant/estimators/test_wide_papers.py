"""Small slices of the replications of sparse QDA and community Bayes: the same code, less data.

The tables themselves, with their Monte Carlo errors, are in ``replications/sparse_qda`` and
``replications/community_bayes``. Bounds here are wide enough for a few data sets and still fail
where the penalty, the choice among penalties or the communities are wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from replications.community_bayes.examples.run import one as example
from replications.community_bayes.spam.run import one as spam
from replications.sparse_qda.block.run import one as block
from replications.sparse_qda.digits.run import one as digits
from replications.sparse_qda.vowel.run import fours
from replications.sparse_qda.vowel.run import one as vowels
from tests.stored_figures import check_stored_figures

pytestmark = pytest.mark.replication
ROOT = Path(__file__).parents[3] / "replications"
TABLES = sorted(
    path.parent.relative_to(ROOT).as_posix()
    for paper in ("sparse_qda", "community_bayes")
    for path in (ROOT / paper).glob("*/expected.csv")
)
SEED = 1000
Data = Callable[[str], Path]


def test_every_table_has_bounds() -> None:
    assert len(TABLES) == 6


@pytest.mark.parametrize("table", TABLES)
def test_stored_figures_are_those_expected(table: str) -> None:
    check_stored_figures(ROOT / table)


def test_common_zeros_help_where_they_are_true() -> None:
    """Five data sets: the differences have a standard deviation of about .006 each."""
    sets = [block("p 20", SEED + i) for i in range(5)]
    for rival in ("DRDA", "QDA", "naive Bayes"):
        assert np.mean([figures[rival]["above"] for figures in sets]) > 0.005, rival
    assert np.mean([figures["best possible"]["above"] for figures in sets]) < 0.0
    found = [figures["sparse QDA"] for figures in sets]
    assert np.mean([each["found"] for each in found]) > 0.8
    assert max(each["gap"] for each in found) <= 1e-8


def test_digits(data_dir: Data) -> None:
    data_dir("esl")
    found = digits("folds by class, rows in order", 0)
    wrong = {model: figures["wrong"] for model, figures in found.items()}
    assert wrong["naive Bayes"] == 53
    assert wrong["QDA"] == 21
    assert wrong["DRDA"] == 21
    assert wrong["sparse QDA"] <= 19


def test_vowels_by_speaker_and_at_random(data_dir: Data) -> None:
    data_dir("esl")
    apart = vowels("folds by speaker", 0)
    assert apart["QDA"]["wrong"] == 59
    assert apart["naive Bayes"]["wrong"] == 51
    assert apart["sparse QDA"]["wrong"] <= apart["DRDA"]["wrong"]
    mixed = vowels("folds drawn", SEED)
    # folds with rows of the same speakers promise what new speakers do not keep
    assert mixed["sparse QDA"]["cv_error"] < 0.05
    assert mixed["sparse QDA"]["error"] > apart["sparse QDA"]["error"] + 0.05


def test_only_one_set_of_four_vowels_gives_the_printed_errors(data_dir: Data) -> None:
    data_dir("esl")
    assert fours() == [(6, 7, 9, 10)]


def test_communities_gain_what_a_penalty_gains_too() -> None:
    """Six data sets: the differences have a standard deviation of about .04 each."""
    sets = [example("example 1, 4 blocks", SEED + i) for i in range(6)]

    def over(base: str) -> float:
        return float(np.mean([figures[base, "base alone"]["above"] for figures in sets]))

    assert over("almost no penalty") > 0.02
    assert over("ridge 1") < over("almost no penalty") - 0.01


def test_spam(data_dir: Data) -> None:
    data_dir("esl")
    found = spam("ridge 1", SEED)
    # 500 rows: standard error of an error about .011, of the paired difference less
    assert found["communities"]["error"] < 0.11
    assert abs(found["base alone"]["above"]) < 0.03
