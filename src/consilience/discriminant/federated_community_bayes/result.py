"""Result of community Bayes over sites."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.protocol.result import Result

if TYPE_CHECKING:
    import pandas as pd

    from consilience.discriminant.estimators.community_bayes_predictor import (
        CommunityBayesPredictor,
    )


@dataclass(frozen=True, eq=False)
class FederatedCommunityBayesResult(Result):
    """Communities of features, their classifiers, and what they are worth.

    Arrays go by site in the order of `sites` (B), by class in that of `levels` (m), by community
    (L), by candidate number of communities (a) and by judged rule (j). NaN: told by no site.

    Attributes
    ----------
    levels : tuple of str
        Levels with training rows.
    feature_names : tuple of str
    target_name : str
    sites : tuple of str
    n_by_site : (B, m) int array
        Training rows.
    n_by_class : (m,) int array
    n_fitted, n_choosing, n_held : (B,) int arrays
        Training, choosing and test rows of each site.
    priors : (m,) array
    how : {"one-shot", "exact"}
    rounds_run : int
        Rounds of sums, of the exact fit.
    C : float
    linkage : str
    tree : (p - 1, 4) array
        As scipy has it.
    similarity : (p, p) array
    ranks_told : (B', K) bool array
        Sites (those that answered) by declared level: whether they told rank correlations.
    candidates : (a,) int array
        Numbers of communities that were compared.
    candidate_loss, candidate_gain, candidate_gain_se : (a,) arrays
        Mean log loss on choosing rows, and by how much it is below that of the first candidate.
    cv_errors : (a,) array
        Of the `cv_rows` choosing rows of sites that tell it, those predicted wrongly.
    cv_rows : int
    chosen : int
        Place of the candidate that is kept.
    fixed : bool
        Whether the number was given.
    communities : tuple of L int arrays
        Columns.
    coefficients : tuple of L (1 or m, q) arrays
        One row for two classes: log odds of the second. In the units of the prepared columns.
    intercepts : tuple of L (1 or m,) arrays
    community_rows : (L,) array
        Training rows behind each community's fit.
    judged : tuple of str
        Rules that test rows judge: "communities", "one community" (the base without communities,
        where it has a fit), "class frequencies".
    errors : (j,) array
        Test rows predicted wrongly, of `error_rows`; protected sites round theirs to about
        `min_records` rows.
    error_rows : int
    log_loss, log_loss_se, log_loss_gain, log_loss_gain_se : (j,) arrays
        Mean log loss on test rows, and how much worse each rule is than the first; NaN for the
        first.
    site_errors, site_log_loss : (B, j) arrays
        Shares of wrong predictions, mean log losses.
    scaling : (3, p) array or empty
        Fill values, centres and scales of the preparation.
    remarks : tuple of str
    """

    levels: tuple[str, ...]
    feature_names: tuple[str, ...]
    target_name: str
    sites: tuple[str, ...]
    n_by_site: IntArray
    n_by_class: IntArray
    n_fitted: IntArray
    n_choosing: IntArray
    n_held: IntArray
    priors: FloatArray
    how: str
    rounds_run: int
    C: float
    linkage: str
    tree: FloatArray
    similarity: FloatArray
    ranks_told: NDArray[np.bool_]
    candidates: IntArray
    candidate_loss: FloatArray
    candidate_gain: FloatArray
    candidate_gain_se: FloatArray
    cv_errors: FloatArray
    cv_rows: int
    chosen: int
    fixed: bool
    communities: tuple[IntArray, ...]
    coefficients: tuple[FloatArray, ...]
    intercepts: tuple[FloatArray, ...]
    community_rows: FloatArray
    judged: tuple[str, ...]
    errors: FloatArray
    error_rows: int
    log_loss: FloatArray
    log_loss_se: FloatArray
    log_loss_gain: FloatArray
    log_loss_gain_se: FloatArray
    site_errors: FloatArray
    site_log_loss: FloatArray
    scaling: FloatArray
    remarks: tuple[str, ...] = ()

    @property
    def n_communities(self) -> int:
        """Number of communities that is kept."""
        return len(self.communities)

    @property
    def error_rates(self) -> FloatArray:
        """Share of test rows that each rule predicts wrongly."""
        return np.asarray(
            self.errors / self.error_rows if self.error_rows else self.errors * np.nan
        )

    def community_names(self) -> tuple[tuple[str, ...], ...]:
        """Names of the features of each community."""
        return tuple(tuple(self.feature_names[j] for j in c) for c in self.communities)

    def to_estimator(self) -> CommunityBayesPredictor:
        """Return the classifier, for rows in the columns' own units."""
        from consilience.discriminant.federated_community_bayes.keeping import predictor_of

        return predictor_of(
            self.communities,
            list(zip(self.coefficients, self.intercepts, strict=True)),
            self.priors,
            classes=self.levels,
            feature_names=self.feature_names,
            scaling=self.scaling if self.scaling.size else None,
        )

    def summary(self) -> str:
        """Return a few plain sentences that answer the study's question."""
        n, p = self.n_communities, len(self.feature_names)
        rows, sites = int(self.n_fitted.sum()), len(self.sites)
        was = "was given" if self.fixed else f"was chosen on {int(self.n_choosing.sum())} rows"
        parts = "one community" if n == 1 else f"{n} communities"
        sentences = [
            f"{p} features fall into {parts} (the number {was}); {rows} training rows of {sites} "
            f"{'sites' if sites != 1 else 'site'} tell {len(self.levels)} classes of "
            f"{self.target_name} apart.",
            self._judged_sentence(),
            "The fit is that of the pooled training rows."
            if self.how == "exact"
            else "The fit joins one fit of each site by their curvature, near that of pooled rows.",
        ]
        return " ".join((*sentences, *self.remarks))

    def _judged_sentence(self) -> str:
        held = int(self.n_held.sum())
        if not held or not np.isfinite(self.log_loss[0]):
            return "No test rows tell what it is worth."
        said = []
        for i, rule in enumerate(self.judged):
            wrong = self.error_rates[i]
            share = "" if np.isnan(wrong) else f", {wrong:.1%} wrong"
            said.append(f"{rule} {self.log_loss[i]:.3f}{share}")
        return f"Mean log loss on {held} test rows: {'; '.join(said)}."

    def to_frame(self) -> pd.DataFrame:
        """Return one line for each community, feature and class: the coefficient."""
        import pandas as pd

        lines = []
        for number, columns in enumerate(self.communities):
            coefficients = self.coefficients[number]
            classes = self.levels[1:] if len(coefficients) == 1 else self.levels
            for k, level in enumerate(classes):
                for place, j in enumerate(columns):
                    lines.append(
                        {
                            "community": number + 1,
                            "feature": self.feature_names[j],
                            "class": level,
                            "coefficient": coefficients[k, place],
                        }
                    )
        return pd.DataFrame(lines)
