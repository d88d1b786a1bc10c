"""Result of community Bayes over sites."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.discriminant.estimators.predictors import CommunityBayesPredictor
from consilience.discriminant.federated_community_bayes.messages import Conclude, Judged, Settings
from consilience.discriminant.federated_community_bayes.pooling import (
    Combined,
    PooledRanks,
    Survey,
    Tree,
    contrast_of,
    joint_model,
    pooled_figures,
    towards_priors,
)
from consilience.discriminant.kernels import multinomial
from consilience.exceptions import QuorumError
from consilience.protocol.method import CoordinatorContext
from consilience.protocol.result import Result
from consilience.wire.disclosure import relayed
from consilience.wire.message import Disclosure

if TYPE_CHECKING:
    import pandas as pd

    from consilience.discriminant.federated_community_bayes import FederatedCommunityBayes

# --------------------------------------------------------------------------- the result


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
        return CommunityBayesPredictor.of_rows(
            self.communities,
            list(zip(self.coefficients, self.intercepts, strict=True)),
            self.priors,
            classes=np.array(self.levels),
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


# --------------------------------------------------------------------------- making it


JUDGED = ("communities", "one community", "class frequencies")


@dataclass(frozen=True, eq=False)
class Chosen:
    """Candidates, what choosing rows say of them, and which one is kept.

    Attributes
    ----------
    candidates : (a,) int array
        Numbers of communities of which every community has a fit.
    communities : tuple of tuples of int arrays
        By candidate.
    phis : tuple of tuples of arrays
        Coefficients by candidate and community, with the intercepts of common class frequencies.
    rows : tuple of (L,) arrays
        Training rows behind each community's fit.
    models : (a, m - 1, p + 1) array
    base : (m - 1, p + 1) array or None
        The model of one community, if it has a fit.
    loss, gain, gain_se : (a,) arrays
        Mean log loss on choosing rows, by how much it is below that of the first candidate, and the
        standard error of this; NaN where nobody told.
    wrong : dict of str to (a,) array
        Shares of wrong predictions, of those sites that tell them.
    index : int
    """

    candidates: IntArray
    communities: tuple[tuple[IntArray, ...], ...]
    phis: tuple[tuple[FloatArray, ...], ...]
    rows: tuple[FloatArray, ...]
    models: FloatArray
    base: FloatArray | None
    loss: FloatArray
    gain: FloatArray
    gain_se: FloatArray
    wrong: dict[str, FloatArray]
    index: int = 0

    @classmethod
    def of(
        cls,
        cuts: Mapping[int, Sequence[tuple[int, IntArray]]],
        fitted: Sequence[Combined],
        survey: Survey,
        p: int,
        wanted: Sequence[int],
    ) -> Chosen:
        """Put candidates together.

        Raises
        ------
        QuorumError
            None of those that were wanted has all its fits.
        """
        listed = [n for n in wanted if n in cuts]
        if not listed:
            raise QuorumError(
                "some community has no fit that may leave a site: ask for more communities, lower "
                "C, or let larger sites take part"
            )
        communities, phis, rows = {}, {}, {}
        for n, parts in cuts.items():
            communities[n] = tuple(columns for _, columns in parts)
            phis[n] = tuple(towards_priors(fitted[c], survey.priors) for c, _ in parts)
            rows[n] = np.array([fitted[c].rows.sum() for c, _ in parts])
        joint = {n: joint_model(communities[n], phis[n], survey.priors, p) for n in cuts}
        nothing = np.full(len(listed), np.nan)
        return cls(
            candidates=np.array(listed, dtype=np.int64),
            communities=tuple(communities[n] for n in listed),
            phis=tuple(phis[n] for n in listed),
            rows=tuple(rows[n] for n in listed),
            models=np.stack([joint[n] for n in listed]),
            base=joint.get(1),
            loss=nothing,
            gain=nothing,
            gain_se=nothing,
            wrong={},
        )

    def best(
        self, figures: FloatArray, errors: FloatArray, wrong: Mapping[str, Sequence[float]]
    ) -> Chosen:
        """Take the candidate with the lowest log loss on choosing rows; the first where none tells.

        Parameters
        ----------
        figures, errors : (a,) arrays
            Log loss of the first, gains of the others; standard errors.
        wrong : mapping of str to sequence of float
        """
        gain, gain_se = figures.copy(), errors.copy()
        gain[0], gain_se[0] = (0.0, 0.0) if np.isfinite(figures).any() else (np.nan, np.nan)
        return dataclasses.replace(
            self,
            loss=figures[0] - gain,
            gain=gain,
            gain_se=gain_se,
            wrong={site: np.array([float(v) for v in told]) for site, told in wrong.items()},
            index=int(np.nanargmax(gain)) if np.isfinite(gain).any() else 0,
        )


def conclude_message(s: Settings, survey: Survey, chosen: Chosen) -> Conclude:
    """What all sites keep and judge at the end."""
    i = chosen.index
    models = [chosen.models[i]]
    if chosen.base is not None:
        models.append(chosen.base)
    nothing = np.zeros_like(models[0])
    nothing[:, 0] = contrast_of(np.log(survey.priors))
    return Conclude(
        settings=s.to_json(),
        classes=relayed(survey.classes, Disclosure.AGGREGATE),
        priors=relayed(survey.priors, Disclosure.AGGREGATE),
        communities=relayed(chosen.communities[i], Disclosure.AGGREGATE),
        coefficients=relayed(chosen.phis[i], Disclosure.MODEL),
        models=relayed(np.stack([*models, nothing]), Disclosure.MODEL),
    )


def build_result(
    method: FederatedCommunityBayes,
    ctx: CoordinatorContext,
    survey: Survey,
    pooled: PooledRanks,
    tree: Tree,
    chosen: Chosen,
    concluded: Mapping[str, Judged],
    how: str,
    rounds: int,
) -> FederatedCommunityBayesResult:
    """Put the result together."""
    i, sites = chosen.index, survey.sites
    rows = [multinomial.as_rows(phi) for phi in chosen.phis[i]]
    judged = JUDGED if chosen.base is not None else (JUDGED[0], JUDGED[2])
    counts = np.stack([survey.counts[site] for site in sites])
    # Sites without choosing rows, and protected ones, tell no wrong predictions.
    telling = [site for site, told in sorted(chosen.wrong.items()) if np.isfinite(told).all()]
    telling = [site for site in telling if survey.choosing[site]]
    wrong = sum(
        (survey.choosing[site] * chosen.wrong[site] for site in telling),
        start=np.zeros(len(chosen.candidates))
        if telling
        else np.full(len(chosen.candidates), np.nan),
    )
    return FederatedCommunityBayesResult(
        levels=tuple(survey.settings.levels[k] for k in survey.classes),
        feature_names=ctx.feature_names,
        target_name=str(ctx.columns.target),
        sites=sites,
        n_by_site=counts[:, survey.classes],
        n_by_class=survey.by_class[survey.classes],
        n_fitted=counts.sum(axis=1),
        n_choosing=np.array([survey.choosing[site] for site in sites]),
        priors=survey.priors,
        how=how,
        rounds_run=rounds,
        C=float(method.C),
        linkage=method.linkage,
        tree=tree.merges,
        similarity=tree.similarity,
        ranks_told=pooled.told,
        candidates=chosen.candidates,
        candidate_loss=chosen.loss,
        candidate_gain=chosen.gain,
        candidate_gain_se=chosen.gain_se,
        chosen=i,
        fixed=method.n_communities != "auto",
        communities=chosen.communities[i],
        coefficients=tuple(coefficients for coefficients, _ in rows),
        intercepts=tuple(intercepts for _, intercepts in rows),
        community_rows=chosen.rows[i],
        judged=judged,
        cv_errors=np.asarray(wrong),
        cv_rows=sum(survey.choosing[site] for site in telling),
        **_test_figures(survey, concluded, len(judged)),
        scaling=np.zeros((0, 0)) if ctx.scaling is None else np.asarray(ctx.scaling),
        remarks=_remarks(ctx, survey, pooled, tree, chosen),
    )


def _test_figures(survey: Survey, concluded: Mapping[str, Judged], n: int) -> dict[str, Any]:
    """Figures on test rows: by site, and over the sites."""
    sites = survey.sites
    told = {site: (r.losses.value, r.errors.value) for site, r in concluded.items()}
    told = {site: figures for site, figures in told.items() if survey.test[site]}
    figures, errors = pooled_figures(told, survey.test, n)
    loss, wrong = np.full((len(sites), n), np.nan), np.full((len(sites), n), np.nan)
    for b, site in enumerate(sites):
        if site in told:
            first, *gains = told[site][0]
            loss[b] = [first, *(first - g for g in gains)]
            wrong[b] = concluded[site].wrong.value
    held = np.array([survey.test[site] if site in told else 0 for site in sites])
    known = np.isfinite(wrong).all(axis=1) & (held > 0)
    counts = (wrong[known] * held[known, None]).sum(axis=0) if known.any() else np.full(n, np.nan)
    # Each over the sites that tell it.
    weight = np.where(np.isfinite(loss), held[:, None], 0.0)
    total = weight.sum(axis=0)
    summed = (weight * np.nan_to_num(loss)).sum(axis=0)
    mean = np.where(total > 0, summed / np.where(total > 0, total, 1.0), np.nan)
    gain, gain_se = -figures, errors.copy()
    gain[0] = gain_se[0] = np.nan
    return {
        "n_held": held,
        "errors": counts,
        "error_rows": int(held[known].sum()),
        "log_loss": mean,
        "log_loss_se": np.array([errors[0], *np.full(n - 1, np.nan)]),
        "log_loss_gain": gain,
        "log_loss_gain_se": gain_se,
        "site_errors": wrong,
        "site_log_loss": loss,
    }


def _remarks(
    ctx: CoordinatorContext, survey: Survey, pooled: PooledRanks, tree: Tree, chosen: Chosen
) -> tuple[str, ...]:
    """What the reader should know of the way to the result."""
    found = []
    levels, classes = survey.settings.levels, survey.classes
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
    dropped = [n for n in tree.nodes if n not in chosen.candidates and n != 1]
    if dropped:
        some = ", ".join(str(n) for n in dropped)
        found.append(
            f"Not every community of {some} communities has a fit that may leave enough sites."
        )
    if chosen.base is None:
        found.append(
            "One community of all columns has no fit that may leave enough sites, so nothing tells "
            "what communities gain."
        )
    if len(chosen.candidates) > 1 and np.isnan(chosen.gain).all():
        found.append(
            "No site may tell how candidates do on its choosing rows (fewer than twice the "
            "coefficients of all columns), so the fewest communities are kept: raise choosing, or "
            "give n_communities."
        )
    few = chosen.rows[chosen.index] < survey.total
    if few.any():
        n_few = int(few.sum())
        found.append(
            f"The fits of {n_few} of {len(few)} communities rest on some of the sites only; the "
            "others withheld theirs."
        )
    return tuple(found)
