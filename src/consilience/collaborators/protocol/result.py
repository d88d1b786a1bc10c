"""Result of meta clustering: who belongs together, and the evidence for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.collaborators.kernels import (
    ENOUGH_POWER,
    LONE_THRESHOLD,
    evidence_of,
    way_of_predicting,
)
from consilience.collaborators.protocol import decisions
from consilience.collaborators.protocol.decisions import Decision, Partners, Seen
from consilience.collaborators.protocol.site import FOLDS
from consilience.exceptions import ParameterError
from consilience.learners.candidates import label
from consilience.learners.collaborative_predictor import CollaborativePredictor
from consilience.protocol.method import CoordinatorContext
from consilience.protocol.next_study import Asked, Led, regression
from consilience.protocol.one_table import counted
from consilience.protocol.result import Frame, Result, lines

if TYPE_CHECKING:
    import pandas as pd

    from consilience.collaborators.protocol import MetaClustering


@dataclass(frozen=True, eq=False)
class MetaClusteringResult(Result):
    """Groups of sites with the same relationship between predictors and response.

    Matrices are (L, L) over `sites`; in those that are not symmetric entry (i, j) is the model of
    site i on the rows of site j. L counts the sites that could be compared.

    Attributes
    ----------
    sites : tuple of str
        The L sites.
    labels : (L,) int array
        Group of each site; groups are numbered by size, the largest first.
    left_out : dict of str to str
        Sites without a group, each with the reason.
    n_clusters : int
        K.
    status : str
        "groups", "no-groups", "too-few-rows", "no-signal" or "one-site".
    chosen_by : str
        How K came about: "rule", "cv" or "given".
    rule, exchange, loss : str
    margin : float
        Equivalence margin tau, in shares of the response variance.
    feature_names : tuple of str
    target : str
    levels : tuple of str
        Declared levels of the response; empty in regression.
    n_records : (L,) int array
    candidates : tuple of str
        The C candidate methods.
    chosen : tuple of str
        Candidate that each site chose.
    candidate_losses : (L, C) array
        Mean loss on the half that did not train; NaN where a candidate was not tried.
    refused_candidates : dict of str to str
        Candidates that a site left out, and why.
    target_variance : (L,) array
        Mean loss of the best constant prediction (in regression: variance of the response).
    own_loss, own_loss_error : (L,) arrays
        Cross-fitted mean loss of a site's own method, and its standard error.
    excess, excess_variance, effective : (L, L) arrays
        D, Q and the effective number of rows.
    difference, standard_error, z : (L, L) arrays
        w, its standard error and the test statistic; NaN where a pair cannot be compared.
    power : (L, L) array
        Chance that a pair would have been told apart if each one's model were of no use at all to
        the other.
    detectable : (L, L) array
        Excess loss, in shares of the response variance, that a pair would show with 80% power.
    merges : dict
        ``ids`` (L - 1, 2) in the numbering of scipy's linkage, ``heights`` and ``thresholds``.
    dissimilarity : (L, L) array
        v of the source; empty unless ``rule="spectral"``.
    eigenvalues : array
        Of the normalised similarity; empty unless ``rule="spectral"``.
    cv_losses : array
        Held-out loss of 1, 2, ... groups; empty unless ``n_clusters="cv"``.
    together : (L, L) array
        Share of resamples in which two sites fell into one group; NaN where never compared.
    stability_runs : int
    gain : dict of str to (L,) array
        Mean losses on rows that took no part in the grouping: ``own``, ``group``, ``all`` and
        ``shifted`` (all sites' average with a shrunken intercept of the site), ``constant`` (the
        site's mean), and differences ``own_minus_group``, ``own_minus_all``, ``group_minus_all``,
        ``all_minus_shifted``, ``constant_minus_all``, ``constant_minus_group`` with standard errors
        (``..._error``). Empty where it was not asked for.
    shift_spread : float
        Standard deviation of the sites' intercepts around the average of all models.
    explained_error : (L,) array
        Standard error of `explained`, by the paired losses.
    gain_folds : int
        Folds of the gain: its models saw all rows but one fold.
    upper : (L, L) array
        95% bound of what the column's site loses with the row's model, in shares of its response
        variance; NaN where not comparable.
    tolerance : float
        Largest such bound that joins two sites; NaN where groups came about in another way.
    means, inverse, trace, standardize, models
        What a later run needs: means of each site (L, p), S*^{-1}, tr(S*^{-1} S), and the models.
    """

    often = ("sites", "labels", "groups", "n_clusters", "status", "left_out", "to_estimator")

    sites: tuple[str, ...]
    labels: IntArray
    left_out: dict[str, str]
    n_clusters: int
    status: str
    chosen_by: str
    rule: str
    exchange: str
    loss: str
    margin: float
    feature_names: tuple[str, ...]
    target: str
    levels: tuple[str, ...]
    n_records: IntArray
    candidates: tuple[str, ...]
    chosen: tuple[str, ...]
    candidate_losses: FloatArray
    refused_candidates: dict[str, str]
    target_variance: FloatArray
    own_loss: FloatArray
    own_loss_error: FloatArray
    excess: FloatArray
    excess_variance: FloatArray
    effective: FloatArray
    difference: FloatArray
    standard_error: FloatArray
    z: FloatArray
    power: FloatArray
    detectable: FloatArray
    merges: dict[str, Any]
    dissimilarity: FloatArray
    eigenvalues: FloatArray
    cv_losses: FloatArray
    together: FloatArray
    stability_runs: int
    gain: dict[str, FloatArray]
    shift_spread: float
    means: FloatArray
    inverse: FloatArray
    trace: float
    standardize: bool
    models: tuple[dict[str, Any], ...]
    explained_error: FloatArray = field(default_factory=lambda: np.empty(0))
    gain_folds: int = 0
    upper: FloatArray = field(default_factory=lambda: np.empty((0, 0)))
    tolerance: float = float("nan")

    # ------------------------------------------------------------------ reading

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """Sites of each group."""
        return tuple(
            tuple(s for s, k in zip(self.sites, self.labels, strict=True) if k == g)
            for g in range(self.n_clusters)
        )

    @property
    def explained(self) -> FloatArray:
        """Share of the response variance that each site's own method explains, cross-fitted."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(1 - self.own_loss / self.target_variance)

    @property
    def comparable(self) -> NDArray[np.bool_]:
        """Pairs that could be compared, (L, L)."""
        return np.isfinite(self.z)

    @property
    def nobody_comparable(self) -> bool:
        """Whether there are pairs of sites, and none of them could be compared."""
        above = np.triu_indices(len(self.sites), 1)
        tested = self.rule == "pairwise" and len(above[0]) > 0
        return bool(tested and not self.comparable[above].any())

    @property
    def not_told_apart(self) -> dict[str, tuple[str, ...]]:
        """Sites of other groups that a site is neither like nor different from, by site.

        Only where groups came about by the rule: their tests are not above the threshold of two
        single sites, or could not be made, and no evidence joins them.
        """
        if np.isnan(self.tolerance) or self.upper.shape != self.z.shape:
            return {}
        with np.errstate(invalid="ignore"):
            different = self.z > LONE_THRESHOLD
        alike = evidence_of(self.upper, self.tolerance)
        open_ = ~different & ~alike & (self.labels[:, None] != self.labels[None, :])
        return {
            site: tuple(self.sites[j] for j in np.flatnonzero(open_[i]))
            for i, site in enumerate(self.sites)
            if open_[i].any()
        }

    @property
    def undecided(self) -> tuple[str, ...]:
        """Sites alone in their group for want of evidence, not because they differ.

        Some site of a group of two or more is neither like it nor different from it, or half of all
        other sites are not.
        """
        alone = np.bincount(self.labels)[self.labels] == 1
        company = {s for s, lone in zip(self.sites, alone, strict=True) if not lone}
        named = self.not_told_apart
        half = max(1, (len(self.sites) - 1) / 2)
        return tuple(
            s
            for s, lone in zip(self.sites, alone, strict=True)
            if lone and (company & set(named.get(s, ())) or len(named.get(s, ())) >= half)
        )

    @property
    def uses(self) -> tuple[str, ...]:
        """What each site's predictor is: "group", or "own" or "constant" where the group loses.

        A site decides by the held-out losses that it told; where it told none it uses the group.
        """
        if "constant_minus_group" not in self.gain:
            return ("group",) * len(self.sites)
        alone = np.bincount(self.labels)[self.labels] == 1
        return tuple(str(way) for way in way_of_predicting(self.gain, alone))

    @property
    def losing(self) -> tuple[str, ...]:
        """Sites in company for which their group's predictor is clearly worse than one alone."""
        company = np.bincount(self.labels)[self.labels] > 1
        ways = zip(self.sites, self.uses, company, strict=True)
        return tuple(site for site, way, together in ways if together and way != "group")

    def undecided_sentence(self) -> str:
        """Which sites stand alone for want of evidence."""
        if not self.undecided or self.nobody_comparable or self.status == "one-site":
            return ""
        alone = len(self.undecided) > 1
        return (
            f"{listed_sites(self.undecided)} {'stand' if alone else 'stands'} alone for want of "
            "evidence: not told apart from "
            + (
                "others, nor shown to be like them."
                if alone
                else f"{listed_sites(self.not_told_apart[self.undecided[0]])}, "
                "nor shown to be like them."
            )
        )

    def next_studies(self, asked: Asked) -> Led:
        """One regression for each group, or over all sites where no groups are told apart."""
        if self.status == "one-site":
            yield self.answer()
            return
        reasons = {
            "no-groups": f"{self.answer()} So one regression over all rows says what it is.",
            "too-few-rows": f"{self.answer()} One regression over all rows, with its test whether "
            "sites differ, is what these rows can bear.",
            "no-signal": f"{self.answer()} A weak relationship may show in all rows together.",
        }
        if self.status != "groups":
            yield from regression(asked, reasons[self.status], sites=self.sites)
            return
        for g, members in enumerate(self.groups):
            if set(members) & set(self.undecided):
                yield (
                    f"{listed_sites(members)} is alone for want of evidence: nothing says whom it "
                    "could be fitted with."
                )
                continue
            named = f"Group {g} ({listed_sites(members)})"
            if len(members) > 1:
                why = (
                    f"{named}: models of its sites serve one another. One regression over their "
                    "rows says what they share, and tests whether they still differ."
                )
            else:
                why = f"{named} is told apart from the others: its own regression says how."
            if loses := [site for site in members if site in self.losing]:
                why += f" On held-out rows {listed_sites(loses)} did better without the group."
            yield from regression(
                asked,
                why,
                sites=members,
                label=f"group-{g}",
                follows=True,
            )

    def losing_sentence(self) -> str:
        """For which sites collaborating loses, and what they use."""
        if not self.losing or self.status == "one-site":
            return ""
        use = dict(zip(self.sites, self.uses, strict=True))
        own = [s for s in self.losing if use[s] == "own"]
        constant = [s for s in self.losing if use[s] == "constant"]
        said = [
            f"{listed_sites(sites)} {'use' if len(sites) > 1 else 'uses'} {what}"
            for sites, what in (
                (own, "their own models" if len(own) > 1 else "its own model"),
                (constant, "a constant"),
            )
            if sites
        ]
        n = len(self.losing)
        return (
            f"For {n} {'sites' if n > 1 else 'site'} collaborating loses on held-out rows: "
            f"{' and '.join(said)}."
        )

    def summary(self) -> str:
        """Answer in a few sentences."""
        said = [self.answer(), self.undecided_sentence(), self.losing_sentence()]
        said.append(self.power_sentence())
        said += [self.stability_sentence(), self.gain_sentence()]
        if self.left_out:
            reasons = "; ".join(f"{site}: {why}" for site, why in self.left_out.items())
            said.append(f"Not placed: {reasons}.")
        return " ".join(s for s in said if s)

    def answer(self) -> str:
        """Answer in one sentence."""
        n = len(self.sites)
        if self.status == "one-site":
            return f"Only {self.sites[0]} could be used: there is no site to compare it with."
        if self.status == "no-signal":
            return (
                f"No signal: over the {n} sites, no model predicts "
                f"{self.target or 'the response'} better than a constant, so there is nothing to "
                "compare."
            )
        if self.status == "too-few-rows" and self.nobody_comparable:
            return (
                f"No two of the {n} sites can be compared: too few of their rows lie where their "
                "predictors overlap, or one row dominates the losses."
            )
        if self.status == "too-few-rows":
            return (
                f"Too few rows: the {n} sites were not separated, but most pairs would not have "
                "been separated even if their models were of no use to each other."
            )
        if self.status == "no-groups":
            return (
                f"No evidence of groups: the {n} sites are compatible with one relationship "
                f"between predictors and {self.target or 'the response'}."
            )
        listed = "; ".join(
            f"group {g}: {', '.join(members)}" for g, members in enumerate(self.groups)
        )
        how = {"given": " (as many as were asked for)", "cv": " (chosen by held-out loss)"}
        if self.undecided:
            how["rule"] = f" ({len(self.undecided)} of them a single site for want of evidence)"
        return (
            f"{n} sites fall into {self.n_clusters} groups{how.get(self.chosen_by, '')}: {listed}."
        )

    def power_sentence(self) -> str:
        """What could have been detected."""
        above = np.triu(np.ones_like(self.z, dtype=bool), 1)
        pairs = int(above.sum())
        if self.rule != "pairwise" or not pairs or self.status in ("one-site", "no-signal"):
            return ""
        unknown = int((above & ~self.comparable).sum())
        text = f"{unknown} of {pairs} pairs of sites could not be compared. " if unknown else ""
        usable = above & self.comparable & np.isfinite(self.detectable)
        if self.n_clusters == 1 and usable.any():
            strong = int((usable & (self.power >= ENOUGH_POWER)).sum())
            middle = float(np.median(self.detectable[usable]))
            text += (
                f"{strong} of {pairs} pairs would have been separated with a power of at least "
                f"80% if each site's model were of no use to the other; in the median pair an "
                f"excess loss of {middle:.2f} of the response variance could be detected."
            )
        return text.strip()

    def stability_sentence(self) -> str:
        """How often resamples put sites together and apart as here."""
        pairs = np.triu(np.isfinite(self.together), 1)
        if not self.stability_runs or not pairs.any():
            return ""
        # pairs within and between the groups
        same = (self.labels[:, None] == self.labels[None, :]) & pairs
        other = pairs & ~same
        parts = []
        if same.any():
            parts.append(f"sites of one group fall together in {self.together[same].mean():.0%}")
        if other.any():
            parts.append(f"sites of different groups in {self.together[other].mean():.0%}")
        resamples = counted(self.stability_runs, "resample")
        return f"Over {resamples} of 80% of the rows, {' and '.join(parts)}."

    def gain_sentence(self) -> str:
        """What working together gains, on rows that took no part in the grouping."""
        if not self.gain or self.status == "one-site" or self.nobody_comparable:
            return ""
        parts = []
        against = "group_minus_all" if self.n_clusters > 1 else ""
        for key, better, worse in (
            ("own_minus_group", "the group's model", "the site's own model"),
            (against, "the model of all sites", "the group's model"),
            (
                "all_minus_shifted",
                "a shrunken intercept of the site",
                "the model of all sites alone",
            ),
        ):
            if not key or key not in self.gain:
                continue
            mean, error = self.overall_gain(key)
            if np.isnan(mean):
                continue
            low, high = mean - 1.96 * error, mean + 1.96 * error
            # by a 95% interval
            verdict = "gains" if low > 0 else ("loses" if high < 0 else "makes no clear difference")
            if key == "all_minus_shifted" and self.n_clusters > 1 and low <= 0:
                continue
            parts.append(
                f"{better} against {worse} {verdict} ({mean:+.1%} of the response variance, 95% "
                f"interval {low:+.1%} to {high:+.1%})"
            )
        saw = (
            f" (with models of {1 - 1 / self.gain_folds:.0%} of the rows)"
            if self.gain_folds
            else ""
        )
        return f"On held-out rows{saw}, {'; '.join(parts)}." if parts else ""

    def overall_gain(self, key: str) -> tuple[float, float]:
        """Difference of losses over all sites and its standard error.

        Parameters
        ----------
        key : str
            One of the differences in `gain`.

        Returns
        -------
        mean, error : float
            Mean over rows, in shares of the mean response variance of these rows.
        """
        value, error = self.gain[key], self.gain[f"{key}_error"]
        known = np.isfinite(value) & np.isfinite(error)
        n = self.n_records[known].astype(float)
        unit = float((n * self.target_variance[known]).sum())
        if not known.any() or unit <= 0:
            return float("nan"), float("nan")
        return (
            float((n * value[known]).sum() / unit),
            float(np.sqrt((n**2 * error[known] ** 2).sum()) / unit),
        )

    @Frame
    def site_groups(self) -> pd.DataFrame:
        """Every site: group, rows, method, share of the response's variance explained, gain."""
        told = {"group": self.labels, "rows": self.n_records, "method": list(self.chosen)}
        gains = ("own_minus_group", "own_minus_group_error")
        told |= {"explained": self.explained} | {k: self.gain[k] for k in gains if k in self.gain}
        return lines(told, site=self.sites)

    @Frame
    def pairs(self) -> pd.DataFrame:
        """Every pair of sites: the test whether one's model serves the other, and its power."""
        i, j = np.triu_indices(len(self.sites), 1)
        names = np.array(self.sites, dtype=object)
        told: dict[str, Any] = {"site": names[i], "other": names[j]}
        for name in ("difference", "standard_error", "z", "power", "detectable", "together"):
            values = getattr(self, name)
            told[name] = values[i, j] if values.shape == (len(names),) * 2 else np.nan
        return lines(told)

    @Frame
    def held_out(self) -> pd.DataFrame:
        """Every site's losses on rows that took no part in the grouping, by model."""
        return lines(dict(sorted(self.gain.items())), site=self.sites if self.gain else ())

    @Frame
    def methods(self) -> pd.DataFrame:
        """Loss of every candidate method at every site."""
        by_name = dict(zip(self.candidates, self.candidate_losses.T, strict=True))
        return lines(by_name, site=self.sites)

    def to_estimator(self, group: int = 0) -> CollaborativePredictor:
        """Average of the models of a group, weighted by their rows.

        It expects columns as the models saw them: scaled by ``run.scaling`` where the preparation
        scaled by pooled moments. With ``standardize=True`` every model has its own site's units,
        and only the predictors that sites keep know them.

        Raises
        ------
        ParameterError
            No such group, or the models did not travel.
        """
        members = np.flatnonzero(self.labels == group)
        if not len(members) or not self.models:
            raise ParameterError.of("group", "a group of sites that exchanged models", group)
        return CollaborativePredictor(
            [travelling(self.models[i]) for i in members],
            self.n_records[members],
            feature_names=self.feature_names,
            levels=self.levels,
        )


_NAMED = 8  # sites in one sentence


def listed_sites(sites: Sequence[str]) -> str:
    """Names in a sentence; of many the first."""
    if len(sites) > _NAMED:
        return f"{', '.join(sites[:_NAMED])} and {len(sites) - _NAMED} more"
    return " and ".join(filter(None, (", ".join(sites[:-1]), sites[-1])))


def plain(model: dict[str, Any]) -> dict[str, Any]:
    """A model as results can keep it: bytes as an array."""
    return {
        key: np.frombuffer(value, dtype=np.uint8) if isinstance(value, bytes) else value
        for key, value in model.items()
    }


def travelling(model: dict[str, Any]) -> dict[str, Any]:
    """A model as it travels: the bytes of an estimator as bytes."""
    if model.get("form") == "skops":
        return {**model, "data": np.asarray(model["data"], dtype=np.uint8).tobytes()}
    return dict(model)


# ------------------------------------------------------------------------------- how it comes about


def build_result(
    method: MetaClustering,
    ctx: CoordinatorContext,
    partners: Partners,
    groupings: Sequence[Decision],
    seen: Seen,
    *,
    cv_losses: FloatArray | None = None,
    gain: dict[str, FloatArray] | None = None,
    shift_spread: float = float("nan"),
) -> MetaClusteringResult:
    """Put the result together.

    Parameters
    ----------
    method, ctx
        Parameters and context of the run.
    partners, groupings, seen
        Sites that were placed, their groups by view, and what was seen of them in the main one.
    cv_losses, gain, shift_spread
        As the fields of the result.
    """
    s, main = partners.settings, groupings[0]
    together = [g.labels for g in groupings[1 + s.gain_folds :]]
    n_clusters = int(main.labels.max()) + 1
    replies = [partners.replies[x] for x in partners.sites]
    # what could have been seen, whatever was found
    strength, least = decisions.detection(main.tests, partners.variance, partners.own)
    useful = np.array([float(r.useful.value[0]) for r in replies])
    error = np.sqrt([float(r.useful_error.value[0]) for r in replies])
    ways = [(useful, error)]
    if gain:
        ways.append((gain["constant_minus_all"], gain["constant_minus_all_error"]))
    by_rule = method.rule == "pairwise" and method.n_clusters == "auto"
    # groups that only lack evidence for each other are no finding
    apart = not by_rule or decisions.are_told_apart(main.tests.z, main.labels)
    status = decisions.status_of(
        n_clusters if apart else 1,
        strength,
        ways,
        partners.sizes,
        rule=method.rule,
        given=not isinstance(method.n_clusters, str),
        comparable=main.tests.comparable,
    )
    tested = np.triu(np.isfinite(main.tests.z), 1)
    if method.rule == "pairwise" and status == "groups" and not tested.any():
        status = "too-few-rows"  # nobody could be compared with anybody: every site stands alone
    sent = method.exchange == "models"
    # Protected sites hold out thirds, however many folds were asked for.
    thirds = any(preset != "simulation" for preset in ctx.presets.values())
    return MetaClusteringResult(
        sites=partners.sites,
        labels=main.labels,
        left_out=partners.left_out,
        n_clusters=n_clusters,
        chosen_by={"auto": "rule", "cv": "cv"}.get(str(method.n_clusters), "given"),
        rule=method.rule,
        exchange=method.exchange,
        loss=s.loss,
        margin=method.margin,
        feature_names=ctx.feature_names,
        target=ctx.columns.target or "",
        levels=s.levels,
        n_records=partners.sizes,
        candidates=tuple(label(c) for c in s.candidates),
        refused_candidates=partners.refused,
        target_variance=partners.variance,
        own_loss=partners.own,
        excess=seen.excess,
        excess_variance=seen.variance,
        effective=seen.effective,
        difference=main.tests.difference,
        standard_error=main.tests.standard_error,
        z=main.tests.z,
        merges=main.merges,
        dissimilarity=main.dissimilarity,
        eigenvalues=main.eigenvalues,
        cv_losses=np.empty(0) if cv_losses is None else cv_losses,
        together=decisions.togetherness(together, len(replies)),
        stability_runs=len(together),
        gain=gain or {},
        gain_folds=(FOLDS if thirds else s.gain_folds) if gain else 0,
        shift_spread=shift_spread,
        means=partners.means,
        inverse=partners.pooled.inverse,
        trace=float(partners.pooled.trace),
        standardize=method.standardize,
        models=tuple(plain(own[0]) for own in partners.models) if sent else (),
        status=status,
        power=strength,
        detectable=least,
        chosen=tuple(label(s.candidates[int(r.chosen.value[0])]) for r in replies),
        candidate_losses=np.stack([np.asarray(r.losses.value) for r in replies]),
        own_loss_error=np.sqrt([float(r.own_error.value[0]) for r in replies]),
        explained_error=error / partners.variance,
        upper=main.tests.upper,
        tolerance=method.tolerance if by_rule else float("nan"),
    )
