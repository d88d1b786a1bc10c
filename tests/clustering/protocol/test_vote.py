from __future__ import annotations

import numpy as np
import pytest

from consilience.clustering.protocol.coordinator import VoteCount
from consilience.clustering.protocol.site import ballot
from consilience.wire.disclosure import Limits


def tally(votes: dict[str, int]) -> tuple[int, float]:
    ballots = {site: ballot(vote, np.zeros(9), 50, Limits()) for site, vote in votes.items()}
    count = VoteCount.of(ballots)
    assert count.votes == votes
    return count.winner, count.share


@pytest.mark.parametrize(
    ("votes", "winner", "share"),
    [
        ({"a": 3}, 3, 1.0),
        ({"a": 3, "b": 2, "c": 3}, 3, 2 / 3),
        ({"a": 4, "b": 2}, 2, 0.5),
        ({"a": 5, "b": 5, "c": 3, "d": 3, "e": 9}, 3, 0.4),
        ({"a": 0, "b": 4}, 4, 1.0),
        ({"a": 0, "b": 0}, 1, 0.0),
        ({}, 1, 0.0),
    ],
)
def test_plurality_with_ties_to_the_smaller(
    votes: dict[str, int], winner: int, share: float
) -> None:
    found, found_share = tally(votes)
    assert (found, found_share) == (winner, pytest.approx(share))


def test_the_order_of_votes_does_not_matter() -> None:
    votes = {"a": 2, "b": 5, "c": 5, "d": 2}
    assert tally(votes) == tally(dict(reversed(votes.items())))


@pytest.mark.parametrize(("n", "choice"), [(9, 0), (10, 3)])
def test_a_small_site_abstains(n: int, choice: int) -> None:
    made = ballot(3, np.array([2.0, 1.0]), n, Limits())
    assert made.choice.value == choice
    assert np.isnan(made.scores.value).all() == (choice == 0)


def test_scores_are_rounded() -> None:
    made = ballot(1, np.array([1.23456789]), 50, Limits())
    assert made.scores.value[0] == 1.235
