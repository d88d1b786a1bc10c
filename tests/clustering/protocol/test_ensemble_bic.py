"""The number of classes by the sum of the sites' criteria."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from consilience import EnsembleClustering
from consilience.clustering.protocol.coordinator import number_by_bic
from consilience.clustering.protocol.messages import Ballot, Settings, VoteRequest
from consilience.clustering.report.ensemble_clustering import REPORT
from consilience.exceptions import ParameterError
from tests.clustering.protocol.coded import sequences
from tests.clustering.protocol.test_ensemble_clustering import cluster, draw
from tests.clustering.protocol.test_ensemble_coded import run_of
from tests.report.told import check_told, spoken
from tests.wire.replies import refusal

NAN = float("nan")
REQUEST = VoteRequest(settings=Settings("kmeans", "full", 1, 3, 1, 1, None, 0))


@pytest.mark.parametrize(
    ("scores", "number", "gaps", "left_out"),
    [
        ({"a": [9, 5, 6], "b": [9, 8, 6]}, 3, (), ()),  # 18, 13, 12: votes 2 and 3 would give 2
        ({"a": [3, 2, 2], "b": [3, 2, 2]}, 2, (), ()),  # a tie goes to the smaller
        ({"a": [9, 7, 1], "b": [9, 8, NAN]}, 2, ("b",), ()),  # 3 would win, but b is silent on it
        ({"a": [9, 7, 1], "b": [9, NAN, NAN]}, 3, (), ("b",)),  # one score compares nothing
        ({"a": [NAN, 7, 1], "b": [9, NAN, NAN]}, 3, ("a",), ("b",)),
        ({"a": [NAN, 7, 1], "b": [9, 8, NAN], "c": [9, NAN, 4]}, 0, ("a", "b", "c"), ()),
        ({"a": [NAN, NAN, NAN]}, 0, (), ("a",)),
        ({}, 0, (), ()),
    ],
)
def test_sums_over_what_every_site_scored(
    scores: dict[str, Any], number: int, gaps: tuple[str, ...], left_out: tuple[str, ...]
) -> None:
    given = {site: np.asarray(values, dtype=float) for site, values in scores.items()}
    assert number_by_bic(given) == (number, gaps, left_out)


@pytest.mark.parametrize(
    ("vote", "scores"), [(2, [1, 2]), (2, [1, 2, np.inf]), (4, [1, 2, 3]), (-1, [1, 2, 3])]
)
def test_votes_that_cannot_be_are_refused(vote: int, scores: list[float]) -> None:
    def judged(vote: int, scores: Any) -> str:
        return refusal(Ballot, {"choice": vote, "scores": np.asarray(scores, float)}, REQUEST)

    assert judged(0, [NAN] * 3) == judged(3, [1, 2, 3]) == ""
    assert judged(vote, scores).startswith("vote/ballot")


def test_the_sum_chooses_where_the_vote_does_not() -> None:
    """A large site that sees three classes outweighs two small ones in the sum, not in a vote."""
    tables, _ = draw({"a": 400, "b": 60, "c": 60}, k=3, sigma=0.3, seed=2)
    for site in ("b", "c"):  # the small sites have two of the classes
        _, truth = draw({"a": 400, "b": 60, "c": 60}, k=3, sigma=0.3, seed=2)
        tables[site] = tables[site][truth[site] < 2].reset_index(drop=True)
    voted = cluster(tables, n_clusters="vote", stability_pairs=0, max_clusters=3).result
    run = cluster(tables, n_clusters="bic", stability_pairs=0, max_clusters=3)
    summed = run.result
    assert voted.n_clusters == 2
    assert (summed.n_clusters, summed.chosen_by) == (3, "bic")
    assert "smallest sum of the sites' BIC" in summed.summary()
    total = np.sum(list(summed.vote_scores.values()), axis=0)
    assert int(np.nanargmin(total)) + 1 == 3
    check_told(REPORT(), run, limits=3)
    (block,) = (b for b in REPORT().evidence(run) if b.title == "How many classes?")
    assert "chosen by the sum" in spoken(block)
    assert block.folded[0].rows[-1][0] == "sum"


def test_a_site_that_left_gaps_is_named() -> None:
    """Forty-five rows do not make six classes of ten."""
    tables, _ = draw({"a": 300, "b": 45}, k=4, sigma=0.2, seed=1)
    run = cluster(tables, n_clusters="bic", stability_pairs=0)
    known = np.isfinite(run.result.vote_scores["b"])
    assert 1 < known.sum() < 6
    assert known[run.result.n_clusters - 1]
    assert any("Sites without a BIC of every number: b" in note for note in run.notes)


def test_a_site_that_can_score_one_number_decides_nothing() -> None:
    """Nineteen rows make one class of ten: the others' four classes stand."""
    tables, _ = draw({"a": 300, "b": 19}, k=4, sigma=0.2, seed=1)
    run = cluster(tables, n_clusters="bic", stability_pairs=0)
    assert np.isfinite(run.result.vote_scores["b"]).sum() == 1
    assert run.result.n_clusters == 4
    assert any("left out of the sum of criteria: b" in note for note in run.notes)


def test_sequences_are_summed_too() -> None:
    tables, _ = sequences((150, 160))
    result = run_of(tables, "markov-mixture", n_clusters="bic").result
    total = np.sum(list(result.vote_scores.values()), axis=0)
    assert result.n_clusters == int(np.nanargmin(total)) + 1


def test_what_is_allowed_names_it() -> None:
    with pytest.raises(ParameterError, match="'bic'"):
        EnsembleClustering(n_clusters="aic").validate()
