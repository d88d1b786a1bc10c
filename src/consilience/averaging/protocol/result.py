"""Result of reference averaging: the models whose average is kept, and the evidence for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray
from consilience.numerics.reference_average import pooled_gain
from consilience.protocol.next_study import Asked, Led, NextStudy, regression
from consilience.protocol.result import Frame, Result, lines

if TYPE_CHECKING:
    import pandas as pd

    from consilience.learners.collaborative_predictor import CollaborativePredictor


@dataclass(frozen=True, eq=False)
class ReferenceAveragingResult(Result):
    """Models of the sites whose average stands for the fit of all rows.

    Arrays go by site in the order of `sites` (B of them), by round 0 to K, and by track: the g
    penalties of the grid, or the one estimator.

    Attributes
    ----------
    feature_names : tuple of str
    target_name : str
    levels : tuple of str
        Declared levels of the response; empty in regression.
    task : {"regression", "classification"}
    loss : str
        What the held-out rows are judged by: "squared", "brier" or "log".
    estimator : str
    convention : str
        How the learner weighs loss against penalty.
    linear : bool
    least_squares : bool
        Whether sums of squares and products of columns and response hold all that the learner needs
        of the rows: they would give the fit of all rows exactly, in one round.
    schedule : {"adaptive", "fixed", "asynchronous"}
    rho, exponent, rho_scale : float
        Round k has the weight ``rho_scale * rho * k**exponent`` (without the power where it is
        fixed).
    penalty_name : str
    penalties : (g,) array
        Empty without a grid.
    sites : tuple of str
    sizes : (B,) array
        Rows that took part.
    held : (B,) array
        Of these, rows that were held out while the rounds were measured.
    reference_kind : {"moments", "normal", "rows"}
    n_reference, reference_rank, reference_needed_rank : int
    reference_condition : float
    probes : (B, 2) array
        Change of a site's predictions under a refit with themselves, and under a refit with its
        rows in another order; NaN where it was not asked.
    separable : bool
        Whether the rounds can work: the learner keeps its own predictions.
    rhos : (K + 1,) array
        Weight of the pseudo-rows in each round; 0 at first.
    contributed : (K + 1, B) bool array
    movement : (g, K + 1) array
        Change of the average at the reference rows, relative to its size.
    influence : (g, K + 1, B) array
        How far a site pulls at the average: its share times the distance of its fit from it.
    base_loss : (g,) array
        Held-out loss of averaging.
    gains, gain_errors : (g, K + 1) arrays
        Held-out loss of each round minus that of averaging (below 0 is better), and the standard
        error of this difference; NaN where a round was not measured.
    local_losses : (B, 3) array
        A site's held-out loss of its own fit, of averaging, and of what is kept.
    local_differences, local_errors : (B, 2) arrays
        Own fit and averaging minus what is kept, with standard errors.
    chosen_track, chosen_round : int
    kept : bool
        Whether a refit is kept; otherwise the result is averaging.
    reason : {"gain", "no-gain", "not-separable", "not-measured"}
    owners : tuple of str
        Sites whose models are in the average.
    shares : (M,) array
    models : tuple
        Their models, as they travel.
    slopes : (q, p) array
        Of the average of linear predictors; empty where the learner is not linear.
    intercepts : (q,) array
    scaling : (3, p) array
        Fill values, centres and scales of the features; empty where nothing was done to them.
    remarks : tuple of str
    """

    often = ("sites", "kept", "reason", "n_rounds", "chosen_round", "to_estimator")

    feature_names: tuple[str, ...]
    target_name: str
    levels: tuple[str, ...]
    task: str
    loss: str
    estimator: str
    convention: str
    linear: bool
    least_squares: bool
    schedule: str
    rho: float
    exponent: float
    rho_scale: float
    penalty_name: str
    penalties: FloatArray
    sites: tuple[str, ...]
    sizes: FloatArray
    held: FloatArray
    reference_kind: str
    n_reference: int
    reference_rank: int
    reference_needed_rank: int
    reference_condition: float
    probes: FloatArray
    separable: bool
    rhos: FloatArray
    contributed: NDArray[np.bool_]
    movement: FloatArray
    influence: FloatArray
    base_loss: FloatArray
    gains: FloatArray
    gain_errors: FloatArray
    local_losses: FloatArray
    local_differences: FloatArray
    local_errors: FloatArray
    chosen_track: int
    chosen_round: int
    kept: bool
    reason: str
    owners: tuple[str, ...]
    shares: FloatArray
    models: tuple[Any, ...]
    slopes: FloatArray = field(metadata={"stored": "coefficients"})
    intercepts: FloatArray
    scaling: FloatArray
    remarks: tuple[str, ...]

    @property
    def n_rounds(self) -> int:
        """Refits that were made."""
        return len(self.rhos) - 1

    def to_estimator(self) -> CollaborativePredictor:
        """Return the average of the models as a predictor of new rows, in their own units."""
        from consilience.learners.collaborative_predictor import CollaborativePredictor

        return CollaborativePredictor(
            self.models,
            self.shares,
            feature_names=self.feature_names,
            levels=self.levels,
            scaling=self.scaling if self.scaling.size else None,
        )

    def summary(self) -> str:
        """Return a few plain sentences that answer the study's question."""
        n, sites, k = int(self.sizes.sum()), len(self.owners), self.chosen_round
        gain = self.gains[self.chosen_track, k] if self.gains.size else np.nan
        if self.reason == "gain":
            outcome = f"The average after round {k} of {self.n_rounds} is kept."
        elif self.reason == "not-separable":
            outcome = (
                "Averaging is returned: the learner does not keep its own predictions when it is "
                "refitted with them, so that rounds would lead away from the fit of all rows "
                "(forests, boosting and single trees are such learners; others do so under a wrong "
                "convention, or with a solver that stops early: give a smaller tol)."
            )
        elif self.reason == "no-gain":
            outcome = (
                f"Averaging is returned: none of {self.n_rounds} rounds was better than it on rows "
                "that were held out, by more than a standard error."
            )
        elif k == 0:
            outcome = "Averaging is returned: no round was asked for."
        else:
            outcome = (
                f"The average after round {k} is kept; no rows were held out, so nothing measures "
                "whether it is better than averaging."
            )
        sentences = [outcome, f"It averages the models of {sites} sites with {n} rows."]
        if self.kept and np.isfinite(gain):
            base = self.base_loss[self.chosen_track]
            error = self.gain_errors[self.chosen_track, k]
            sentences.append(
                f"On rows that were held out its {self.loss} loss is {base + gain:.4g}, that of "
                f"averaging {base:.4g} (difference {gain:.3g}, standard error {error:.2g})."
            )
        away, error = self._own_fits_minus_kept()
        if away + 2 * error < 0:
            sentences.append(
                f"At their own rows the sites' own fits lose less, by {-away:.3g} (standard error "
                f"{error:.2g}): sites hold other kinds of rows, or other relationships."
            )
        if self.penalties.size:
            chosen = float(self.penalties[self.chosen_track])
            sentences.append(
                f"Of {len(self.penalties)} values of {self.penalty_name}, {chosen:.4g} is best."
            )
        if self.least_squares:
            sentences.append(
                "The learner is linear with squared loss: sums of squares and products of the "
                "columns would give the fit of all rows exactly, in one round."
            )
        return " ".join((*sentences, *self.remarks))

    def _own_fits_minus_kept(self) -> tuple[float, float]:
        """Own fits minus what is kept, over all held-out rows: below 0 they lose less."""
        errors = self.local_errors[:, 0] ** 2
        away, error = pooled_gain(self.local_differences[:, 0], errors, self.held)
        return float(away), float(error)

    def next_studies(self, asked: Asked) -> Led:
        """Whom, where own fits do better; the exact fit, where sums give it."""
        away, error = self._own_fits_minus_kept()
        if away + 2 * error < 0:
            yield NextStudy(
                method="meta-clustering",
                why="At their own rows the sites' own fits lose less: sites hold other kinds of "
                "rows, or other relationships. Which of them share one?",
            )
        if self.least_squares:
            why = (
                "The learner is linear with squared loss: sums of squares and products give the "
                "fit of all rows exactly, in one round, with standard errors and a test whether "
                "sites differ."
            )
            yield from regression(asked, why)
        elif self.linear and len(self.levels) == 2:
            why = "The learner is linear: the same regression has standard errors and tests."
            yield from regression(asked, why)

    @Frame
    def rounds(self) -> pd.DataFrame:
        """Every round of each penalty: movement, and held-out loss against averaging."""
        shape = (len(self.gains), len(self.rhos))
        track, k = np.indices(shape).reshape(2, -1)
        # A run that measured nothing has gains of round 0 only.
        measured = np.full((2, *shape), np.nan)
        measured[:, :, : self.gains.shape[1]] = self.gains, self.gain_errors
        gain, error = measured[:, track, k]
        return lines(
            {
                "penalty": self.penalties[track] if self.penalties.size else np.nan,
                "round": k,
                "rho": self.rhos[k],
                "sites": self.contributed.sum(axis=1)[k],
                "movement": self.movement[track, k],
                "gain": gain,
                "gain_error": error,
                "kept": (track == self.chosen_track) & (k == self.chosen_round),
            }
        )

    @Frame
    def coefficients(self) -> pd.DataFrame:
        """Every coefficient of the average of linear predictors; a column for each outcome."""
        if not self.slopes.size:
            return lines({})
        names = self.levels if len(self.slopes) == len(self.levels) else self.levels[1:]
        heads = names if len(self.slopes) > 1 else ("estimate",)
        values = np.column_stack([self.intercepts, self.slopes])
        told = dict(zip(heads, values, strict=True))
        return lines(told, column=("(intercept)", *self.feature_names))

    @Frame
    def held_out(self) -> pd.DataFrame:
        """Every site's held-out losses: of its own fit, of averaging, and of what is kept."""
        fits = ("own", "averaging", "kept")
        told = {"rows": self.sizes, "held_out_rows": self.held}
        told |= {f"loss_{fit}": loss for fit, loss in zip(fits, self.local_losses.T, strict=True)}
        for j, fit in enumerate(fits[:2]):
            told[f"{fit}_minus_kept"] = self.local_differences[:, j]
            told[f"{fit}_minus_kept_error"] = self.local_errors[:, j]
        return lines(told, site=self.sites)
