"""Phase `vote`: one vote a site, plurality, ties to the smaller.

==============================  ==================================================
coordinator                     site
==============================  ==================================================
<the method's step>         ->  chooses by its own rows
                            <-  Ballot: choice, scores (c)            MODEL
==============================  ==================================================

The question and how a site finds its choice belong to the method; its step replies with `Ballot`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.protocol.method import Ask, CoordinatorContext, Replies
from consilience.wire.disclosure import Limits, Released, model
from consilience.wire.message import Model, message


@message("vote/ballot", version=1)
class Ballot:
    """A site's choice among whole numbers, with the scores behind it (NaN: not fitted).

    The choice 0 is an abstention: too few rows to say anything that may leave.
    """

    choice: Released = Model("", "the number this site prefers", kind="int", low=0)
    scores: Released = Model("c", "score of each candidate, smaller is better", gaps=True)

    def check(self, request: object, known: Mapping[str, Any]) -> str | None:
        """The choice is one of the numbers that were scored."""
        fine = self.choice.value <= len(self.scores.value)
        return None if fine else "a vote for none of the candidates"


def ballot(choice: int, scores: NDArray[np.float64], n_records: int, limits: Limits) -> Ballot:
    """Fill a ballot at a site; `scores` rest on all of its `n_records` rows."""
    if n_records < limits.min_records:
        choice, scores, n_records = 0, np.full(len(scores), np.nan), 0
    return Ballot(
        choice=model(int(choice), kind="summary", n_records=n_records),
        scores=model(np.round(scores, 3), kind="summary", n_records=n_records),
    )


@dataclass(frozen=True, eq=False)
class VoteCount:
    """Outcome of a vote.

    Attributes
    ----------
    winner : int
    votes : dict of str to int
        0 for sites that abstained.
    scores : dict of str to array
    share : float
        Share of the sites that voted for the winner.
    """

    winner: int
    votes: dict[str, int]
    scores: dict[str, NDArray[np.float64]]
    share: float


def tally(votes: dict[str, int]) -> tuple[int, float]:
    """Plurality winner, ties to the smaller, and its share of the votes cast (1, 0 if none)."""
    cast = [choice for choice in votes.values() if choice > 0]
    if not cast:
        return 1, 0.0
    numbers, counts = np.unique(cast, return_counts=True)
    best = int(np.argmax(counts))
    return int(numbers[best]), float(counts[best] / counts.sum())


def vote(ctx: CoordinatorContext, ask: Ask) -> Generator[Ask, Replies, VoteCount]:
    """Hold a vote with the method's own question."""
    replies = ctx.require((yield ask))
    votes = {site: int(reply.choice.value) for site, reply in replies.items()}
    winner, share = tally(votes)
    return VoteCount(winner, votes, {s: r.scores.value for s, r in replies.items()}, share)


STEPS = ()
