"""Result of components over sites."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from consilience.arrays import FloatArray, IntArray
from consilience.completion.estimators.low_rank import ProbabilisticPCA
from consilience.completion.estimators.predictors import ComponentsPredictor, GapRows
from consilience.completion.kernels.ppca import PPCAModel
from consilience.numerics.held_out_entries import EntryCurve
from consilience.protocol.next_study import Asked, Led, subtypes
from consilience.protocol.one_table import counted
from consilience.protocol.phases.secure_sums import ALL
from consilience.protocol.result import Frame, Result, lines

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False, kw_only=True)
class FederatedPCAResult(Result):
    """Probabilistic principal components of the rows of all sites.

    Attributes
    ----------
    feature_names : tuple of str
        The m columns that take part.
    withheld : tuple of str
        Columns of the study that do not.
    sites : tuple of str
        S sites whose rows are in the model; with masked sums "all sites", which are then one.
    n_by_site : (S,) array of int
    groups_by_site : (S,) array of int
        Groups of which a site told moments.
    rank : int
        Components of the model.
    fixed : bool
        Whether the rank was given.
    rule : {"minimum", "one-standard-error", "given"}
    parameter : str
        "rank".
    candidates : (A,) array of int
        Ranks that were judged; empty where there is one group only.
    fold_errors : (F, A) array
        Sums of squared errors of entries that are predicted from the rest of their row, under the
        components of the other folds.
    fold_entries : (F,) array of int
        Entries of each fold.
    site_errors : (S, A) array
    site_entries : (S,) array of int
        The same by site.
    minimiser, one_standard_error, chosen : int
        Places among the candidates; -1 where there are none (or the rank given is not among them).
    natural : bool
        Whether no rank is above the last candidate.
    at_edge : bool
        Whether the smallest error lies at the last candidate and higher ranks were not tried.
    mean : (m,) array
    components : (k, m) array
        Orthonormal, on the scale of the preparation; the largest entry of each is positive.
    explained_variance : (k,) array
        Variance of the rows along them, divided by their number.
    explained_variance_ratio : (k,) array
    noise_variance : float
        Of an entry, beside the components.
    variances : (m,) array
        Eigenvalues of the covariance matrix of the pooled rows.
    site_explained : (S,) array
        Share of the squared distance of a site's rows from the pooled mean that lies along the
        components.
    missing_kept : bool
        Whether rows may have had missing cells.
    scaling : (3, m) array
        Fill values, centres and scales of the preparation; empty where nothing was done.
    remarks : tuple of str
    """

    often = ("rank", "sites", "n", "curve", "to_estimator", "mean", "noise_variance")

    feature_names: tuple[str, ...]
    withheld: tuple[str, ...]
    sites: tuple[str, ...]
    n_by_site: IntArray
    groups_by_site: IntArray
    rank: int
    fixed: bool
    rule: str
    parameter: str
    candidates: IntArray
    fold_errors: FloatArray
    fold_entries: IntArray
    site_errors: FloatArray
    site_entries: IntArray
    minimiser: int
    one_standard_error: int
    chosen: int
    natural: bool
    at_edge: bool
    mean: FloatArray
    components: FloatArray
    explained_variance: FloatArray
    explained_variance_ratio: FloatArray
    noise_variance: float
    variances: FloatArray
    site_explained: FloatArray
    missing_kept: bool
    scaling: FloatArray
    remarks: tuple[str, ...]

    @property
    def n(self) -> int:
        """Rows of all sites."""
        return int(self.n_by_site.sum())

    @property
    def where(self) -> str:
        """How many sites the rows are of."""
        return ALL if self.masked else counted(len(self.sites), "site")

    @property
    def masked(self) -> bool:
        """Whether sums were masked: all sites are then one, `sites` its name."""
        return self.sites == (ALL,)

    def curve(self) -> EntryCurve | None:
        """Errors of all ranks with their standard errors; None where nothing was left out."""
        if not len(self.candidates):
            return None
        return EntryCurve.of_sums(
            self.parameter,
            self.candidates,
            self.fold_errors,
            self.fold_entries,
            natural=(True, self.natural),
        )

    def _model(self) -> PPCAModel:
        variances = np.maximum(self.explained_variance - self.noise_variance, 0.0)
        return PPCAModel(self.mean, self.components.T, variances, self.noise_variance)

    def predictor(self) -> ComponentsPredictor:
        """Return what the sites keep: it takes rows in their own units."""
        units = self.scaling[1:] if self.scaling.size else None
        return ComponentsPredictor(self._model(), GapRows(np.array(self.feature_names), units))

    def to_estimator(self) -> ProbabilisticPCA:
        """Return a fitted `ProbabilisticPCA`, for rows in the columns' own units.

        It prepares them; of five rows or more it refuses those that are prepared already or in
        other units.
        """
        return ProbabilisticPCA.from_model(
            self._model(),
            self.n,
            feature_names=list(self.feature_names),
            units=self.scaling[1:]
            if self.scaling.size
            else np.tile([[0.0], [1.0]], len(self.mean)),
        )

    def summary(self) -> str:
        """Return a few plain sentences that answer the study's question."""
        share = float(self.explained_variance_ratio.sum())
        many = "component" if self.rank == 1 else "components"
        sentences = [
            f"{len(self.feature_names)} columns of {self.n} rows at {self.where} share "
            f"{self.rank} {many}, {share:.0%} of their variance.",
            self._choice_sentence(),
        ]
        if self.rank and len(self.sites) > 1:
            low, high = int(np.argmin(self.site_explained)), int(np.argmax(self.site_explained))
            sentences.append(
                f"The components carry most at {self.sites[high]} "
                f"({self.site_explained[high]:.0%}) and least at {self.sites[low]} "
                f"({self.site_explained[low]:.0%})."
            )
        return " ".join([s for s in sentences if s] + list(self.remarks))

    def next_studies(self, asked: Asked) -> Led:
        """Classes along the components, if there are any."""
        if not self.rank:
            yield "The columns share no component, so there is nothing in common to divide rows by."
        elif asked.missing == "keep" and self.missing_kept:
            yield "Classes of numbers are found in complete rows, and this run kept empty cells."
        else:
            share = float(self.explained_variance_ratio.sum())
            why = (
                f"Rows vary along {counted(self.rank, 'shared component')}, {share:.0%} of the "
                "variance."
            )
            yield from subtypes(asked, why, None if self.masked else self.sites)

    def _choice_sentence(self) -> str:
        curve = self.curve()
        if curve is None or self.chosen < 0:
            return "The rank was given."
        error, none = curve.mean[self.chosen], curve.mean[0]
        if self.rank:
            how = (
                f"by {self.rank} {'component' if self.rank == 1 else 'components'} of other rows "
                "an entry is predicted from the rest of its row with a mean squared error of "
                f"{error:.3g}, by column means with {none:.3g}"
            )
        else:
            how = f"column means predict an entry with a mean squared error of {none:.3g}"
        if self.fixed:
            return f"The rank was given: {how}."
        which = "has the smallest error"
        if self.rule != "minimum":
            which = "is the smallest within one standard error of the best"
        return f"This rank {which}: {how}."

    @Frame
    def ranks(self) -> pd.DataFrame:
        """Every rank that was judged: error on left-out entries, variance that it carries."""
        curve = self.curve()
        ranks = self.candidates
        error = np.zeros(0) if curve is None else curve.mean
        spread = np.zeros(0) if curve is None else curve.se
        share = np.concatenate([[0.0], np.cumsum(self.variances)]) / self.variances.sum()
        table = {
            "rank": ranks,
            "error": error,
            "standard_error": spread,
            "explained": share[ranks],
            "chosen": np.arange(len(ranks)) == self.chosen,
        }
        for site, line, n in zip(self.sites, self.site_errors, self.site_entries, strict=True):
            table[f"error at {site}"] = line / max(int(n), 1)
        return lines(table)

    @Frame
    def loadings(self) -> pd.DataFrame:
        """Weight of every column in each component."""
        told = {f"component {k}": weights for k, weights in enumerate(self.components, 1)}
        return lines(told, column=self.feature_names if told else ())

    @Frame
    def variance(self) -> pd.DataFrame:
        """Variance along every component, and its share."""
        told = {"variance": self.explained_variance, "share": self.explained_variance_ratio}
        return lines(told, component=range(1, self.rank + 1))

    @Frame
    def site_rows(self) -> pd.DataFrame:
        """Every site: rows, groups of which it told moments, share that the components carry."""
        told = {"rows": self.n_by_site, "groups": self.groups_by_site}
        return lines(told | {"explained": self.site_explained}, site=self.sites)
