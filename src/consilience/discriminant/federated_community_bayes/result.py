"""Result of community Bayes over sites."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.discriminant.classes import CommunitiesResult, SitesResult
from consilience.discriminant.estimators.predictors import CommunityBayesPredictor
from consilience.discriminant.federated_community_bayes import pooling
from consilience.discriminant.federated_community_bayes.messages import Judged

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False, kw_only=True)
class FederatedCommunityBayesResult(SitesResult, CommunitiesResult):
    """Communities of features, their classifiers, and what they are worth.

    Levels are those with training rows. The rules that test rows judge are "communities", "one
    community" (the base without communities, where it has a fit) and "class frequencies"; protected
    sites round numbers of wrong rows to about `min_records` rows.

    Attributes
    ----------
    n_fitted, n_choosing, n_held : (B,) int arrays
        Training, choosing and test rows of each site.
    how : {"one-shot", "exact"}
    rounds_run : int
        Rounds of sums, of the exact fit.
    linkage : str
    similarity : (p, p) array
    ranks_told : (B', K) bool array
        Sites (those that answered) by declared level: whether they told rank correlations.
    candidate_loss, candidate_gain, candidate_gain_se : (a,) arrays
        Mean log loss on choosing rows, and by how much it is below that of the first candidate.
    cv_rows : int
        Choosing rows of sites that tell numbers of wrong ones.
    coefficients : tuple of L (1 or m, q) arrays
        One row for two classes: log odds of the second. In the units of the prepared columns.
    intercepts : tuple of L (1 or m,) arrays
    community_rows : (L,) array
        Training rows behind each community's fit.
    error_rows : int
        Test rows of the sites that tell `errors`.
    site_log_loss : (B, j) array
    """

    n_fitted: IntArray
    n_choosing: IntArray
    n_held: IntArray
    how: str
    rounds_run: int
    linkage: str
    similarity: FloatArray
    ranks_told: NDArray[np.bool_]
    candidate_loss: FloatArray
    candidate_gain: FloatArray
    candidate_gain_se: FloatArray
    cv_rows: int
    coefficients: tuple[FloatArray, ...]
    intercepts: tuple[FloatArray, ...]
    community_rows: FloatArray
    error_rows: int
    site_log_loss: FloatArray

    @property
    def n_communities(self) -> int:
        """Number of communities that is kept."""
        return len(self.communities)

    @property
    def error_rates(self) -> FloatArray:
        """Share of test rows that each rule predicts wrongly."""
        return np.asarray(self.errors / (self.error_rows or np.nan))

    def community_names(self) -> tuple[tuple[str, ...], ...]:
        """Names of the features of each community."""
        return self.communities_names

    def to_estimator(self) -> CommunityBayesPredictor:
        """Return the classifier, for rows in the columns' own units."""
        return CommunityBayesPredictor(
            communities=self.communities,
            rows=list(zip(self.coefficients, self.intercepts, strict=True)),
            priors=self.priors,
            classes=np.array(self.levels),
            feature_names=self.feature_names,
            scaling=self.scaling if self.scaling.size else None,
        )

    def summary(self) -> str:
        """Return a few plain sentences that answer the study's question."""
        n, held, sites = self.n_communities, int(self.n_held.sum()), len(self.sites)
        was = "was given" if self.fixed else f"was chosen on {int(self.n_choosing.sum())} rows"
        parts = "one community" if n == 1 else f"{n} communities"
        judged = "No test rows tell what it is worth."
        if held and np.isfinite(self.log_loss[0]):
            rules = zip(self.judged, self.log_loss, self.error_rates, strict=True)
            said = (
                f"{rule} {loss:.3f}" + ("" if np.isnan(wrong) else f", {wrong:.1%} wrong")
                for rule, loss, wrong in rules
            )
            judged = f"Mean log loss on {held} test rows: {'; '.join(said)}."
        sentences = [
            f"{len(self.feature_names)} features fall into {parts} (the number {was}); "
            f"{int(self.n_fitted.sum())} training rows of {sites} "
            f"{'sites' if sites != 1 else 'site'} tell {len(self.levels)} classes of "
            f"{self.target_name} apart.",
            judged,
            "The fit is that of the pooled training rows."
            if self.how == "exact"
            else "The fit joins one fit of each site by their curvature, near that of pooled rows.",
        ]
        return " ".join((*sentences, *self.remarks))

    def to_frame(self) -> pd.DataFrame:
        """Return one line for each community, feature and class: the coefficient."""
        import pandas as pd

        lines = [
            (number, self.feature_names[j], level, slopes[k, place])
            for number, (columns, slopes) in enumerate(
                zip(self.communities, self.coefficients, strict=True), 1
            )
            for k, level in enumerate(self.levels[1:] if len(slopes) == 1 else self.levels)
            for place, j in enumerate(columns)
        ]
        return pd.DataFrame(lines, columns=["community", "feature", "class", "coefficient"])


# --------------------------------------------------------------------------- making it


def figures_of_test_rows(
    survey: pooling.Survey, concluded: Mapping[str, Judged], n: int
) -> dict[str, Any]:
    """Figures on test rows: by site, and over the sites, each over those that tell it.

    Parameters
    ----------
    survey : Survey
    concluded : mapping of str to Judged
    n : int
        Rules.
    """
    told = {site: reply for site, reply in concluded.items() if survey.test[site]}
    loss, wrong = np.full((2, len(survey.sites), n), np.nan)
    for b, site in enumerate(survey.sites):
        if site in told:
            first, *gains = told[site].losses.value
            loss[b] = [first, *(first - g for g in gains)]
            wrong[b] = told[site].wrong.value
    held = np.array([survey.test[site] if site in told else 0 for site in survey.sites])
    known = np.isfinite(wrong).all(axis=1) & (held > 0)
    weight = np.where(np.isfinite(loss), held[:, None], 0.0)
    total = weight.sum(axis=0)
    summed = (weight * np.nan_to_num(loss)).sum(axis=0)
    figures, error = pooling.pooled_figures(told, survey.test, n)
    rest = np.arange(n) > 0
    return {
        "n_held": held,
        "errors": (wrong[known] * held[known, None]).sum(axis=0)
        if known.any()
        else loss[0] * np.nan,
        "error_rows": int(held[known].sum()),
        "log_loss": np.where(total > 0, summed / np.where(total > 0, total, 1.0), np.nan),
        "log_loss_se": np.where(rest, np.nan, error),
        "log_loss_gain": np.where(rest, -figures, np.nan),
        "log_loss_gain_se": np.where(rest, error, np.nan),
        "site_errors": wrong,
        "site_log_loss": loss,
    }


def remarks_of(
    survey: pooling.Survey,
    pooled: pooling.PooledRanks,
    tree: pooling.Tree,
    numbers: Sequence[int],
    made: Mapping[int, pooling.Candidate],
    choice: pooling.Choice,
) -> tuple[str, ...]:
    """What the reader should know of the way to the result."""
    levels, classes, found = survey.settings.levels, survey.classes, []
    absent = [level for k, level in enumerate(levels) if k not in classes]
    if absent:
        found.append(f"No site has enough rows of {', '.join(absent)}: never predicted.")
    silent = [levels[k] for k in classes if not pooled.told[:, k].any()]
    if silent and pooled.told.any():
        found.append(
            f"Ranks within {', '.join(silent)} were told by no site (fewer training rows than "
            "twice the columns): the communities rest on the other classes."
        )
    if pooled.gaps.any() and pooled.told.any():
        found.append(
            "Some pairs of columns have a small group of rows in common at every site, or differ "
            "in few rows: they count as uncorrelated."
        )
    dropped = [n for n in tree.nodes if n not in numbers and n != 1]
    if dropped:
        some = ", ".join(str(n) for n in dropped)
        found.append(
            f"Not every community of {some} communities has a fit that may leave enough sites."
        )
    if 1 not in made:
        found.append(
            "One community of all columns has no fit that may leave enough sites, so nothing tells "
            "what communities gain."
        )
    if len(numbers) > 1 and np.isnan(choice.gain).all():
        found.append(
            "No site may tell how candidates do on its choosing rows (fewer than twice the "
            "coefficients of all columns), so the fewest communities are kept: raise choosing, or "
            "give n_communities."
        )
    few = made[numbers[choice.index]].rows < survey.total
    if few.any():
        n_few = int(few.sum())
        found.append(
            f"The fits of {n_few} of {len(few)} communities rest on some of the sites only; the "
            "others withheld theirs."
        )
    return tuple(found)
