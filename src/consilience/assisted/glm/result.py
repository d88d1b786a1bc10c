"""Result of an assisted GLM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from consilience.protocol.result import Result

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class AssistedGLMResult(Result):
    """A GLM on the columns of several parties, as the coordinator knows it.

    The partners' coefficients, and predictions for single rows, stay at the sites
    (``run.site(name).to_frame("coefficients")``, ``run.site(initiator).values("prediction")``).

    Attributes
    ----------
    initiator : str
    partners : tuple of str
    family : str
    response : {"share", "masked"}
    flip : float
        Probability with which the masked response was flipped; 0 otherwise.
    n_records, n_holdout, n_new : int
        Rows of the training, held out, and without a response; -1 for a few.
    acceleration : str
    stopped : str
        "converged", "rounds", "rank" (a policy lets no further direction be known) or
        "nothing new".
    rounds : int
    rounds_table : dict
        By contribution: ``round``, ``partner``, ``deviance``, ``change`` (NaN within a round) and
        ``numbers_sent`` so far, both ways.
    revealed : dict of site to (int, int)
        Directions known of the site's columns, and how many there are.
    deviance : dict
        ``null``, ``alone``, ``joint``, on the training rows.
    holdout : dict
        Mean deviance of a held-out row: ``null``, ``alone``, ``joint``; ``alone_minus_joint`` with
        its standard ``error``.
    pseudo_r2, auc : dict
        ``alone``, ``joint``.
    coefficients : dict
        Of the initiator: ``name``, ``estimate``, ``error``, ``z``, ``p``, ``status``, ``factor``.
        Shared coefficients have no estimate: only their sum over the parties is known.
    alone : dict
        ``estimate``, ``error`` of the initiator's own model.
    calibration : dict
        By model: ``predicted``, ``observed`` by part of the held-out rows; withheld parts are NaN.
    intervals : dict
        ``kind``, ``level``, ``certified`` (predicted rows with limits), ``n_new``, ``mean_width``.
    remaining : float
        Deviance that one more local fit of the partners could still gain.
    penalty : dict
    complete : bool
        Whether all directions are known, so that the fit is the pooled one on all rows.
    followed : str
        Run whose model predicted new people here; empty for a fit.
    """

    initiator: str
    partners: tuple[str, ...]
    family: str
    response: str
    flip: float
    n_records: int
    n_holdout: int
    n_new: int
    acceleration: str
    stopped: str
    rounds: int
    rounds_table: dict[str, Any]
    revealed: dict[str, tuple[int, int]]
    deviance: dict[str, float]
    holdout: dict[str, float]
    pseudo_r2: dict[str, float]
    auc: dict[str, float]
    coefficients: dict[str, Any]
    alone: dict[str, Any]
    calibration: dict[str, Any]
    intervals: dict[str, Any]
    remaining: float
    penalty: dict[str, float]
    complete: bool = False
    followed: str = ""
    masking: str = "link"

    def summary(self) -> str:
        """Return a few sentences: what the partners add, and how far the fit got."""
        with_ = " and ".join(self.partners)
        if self.followed:
            return (
                f"{self.n_new} people were predicted with the columns of {with_} and the model of "
                f"run {self.followed}; the predictions are at {self.initiator}."
            )
        return " ".join((self._gain(with_), self._course(), self._inference()))

    def _gain(self, with_: str) -> str:
        gain, error = self.holdout["alone_minus_joint"], self.holdout["error"]
        fit = (
            f"deviance {self.deviance['alone']:.4g} alone and {self.deviance['joint']:.4g} with "
            f"{with_}, on {self.n_records} training rows"
        )
        if not np.isfinite(gain):
            return f"The joint model of {self.initiator}: {fit} (nothing was held out)."
        # A partner that brings nothing leaves differences that are rounding.
        tells = abs(gain) > max(1.96 * error, 1e-9 * abs(self.holdout["alone"]))
        verdict = (
            ("predicts better than" if tells and gain > 0 else "predicts worse than")
            if tells
            else "shows no clear difference to"
        )
        return (
            f"On {self.n_holdout} held-out rows the joint model {verdict} the model of "
            f"{self.initiator} alone: mean deviance {self.holdout['joint']:.4f} against "
            f"{self.holdout['alone']:.4f} (difference {gain:.4f}, standard error {error:.4f}); "
            f"{fit}."
        )

    def _course(self) -> str:
        how = {
            "converged": "the training converged",
            "nothing new": "the training ended when nothing new could come",
            "rounds": "the training stopped at the limit of rounds, before it converged",
            "rank": "a policy ended the training before it converged",
        }[self.stopped]
        known = ", ".join(f"{k} of {r} directions of {s}" for s, (k, r) in self.revealed.items())
        left = ""
        if self.complete and self.stopped in ("rank", "rounds") and not self.penalty.get("alpha"):
            left = " All directions were known by then, which completed the joint fit."
        elif self.stopped in ("rank", "rounds") and np.isfinite(self.remaining):
            left = f" At least {self.remaining:.3g} of deviance was left."
        noun = "round" if self.rounds == 1 else "rounds"
        return f"After {self.rounds} {noun} {how}; revealed: {known}.{left}"

    def _inference(self) -> str:
        if self.penalty.get("alpha"):
            return "Penalised coefficients have no intervals."
        if self.intervals["kind"] != "joint":
            return 'Coefficients have standard errors by interval = "joint" only.'
        if self.complete:
            shared = int(np.sum(np.asarray(self.coefficients["status"]) == "shared"))
            more = (
                f"; {shared} cannot be told from those of other columns and have none"
                if shared
                else ""
            )
            whose = " and ".join(self.partners)
            known = f"All directions of {whose} are known"
            return f"{known}, so coefficients have standard errors{more}."
        status = list(self.coefficients["status"])
        told = sum(word in ("identified", "bounded") for word in status)
        if told:
            wider = sum(word == "bounded" for word in status)
            return (
                f"{told} of {len(status)} coefficients have standard errors, {wider} of them "
                "widened by a bound for the directions that stay hidden."
            )
        return (
            "Not all directions are known, so coefficients have no standard errors: more may be "
            'granted by max_revealed_rank, for instance "full".'
        )

    def to_frame(self) -> pd.DataFrame:
        """Return the initiator's coefficients, its own model beside the joint one."""
        import pandas as pd

        # A result that was read back has its keys in the order of the alphabet.
        order = ("name", "estimate", "error", "z", "p", "status", "factor")
        frame = pd.DataFrame({k: list(self.coefficients[k]) for k in order})
        frame["alone"] = list(self.alone.get("estimate", ()))
        frame["alone_error"] = list(self.alone.get("error", ()))
        return frame
