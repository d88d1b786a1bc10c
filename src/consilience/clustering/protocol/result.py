"""Result of ensemble clustering: aggregates only; labels and predictor are at the sites."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from consilience.arrays import FloatArray
from consilience.clustering.kernels.cell_suppression import HIDDEN
from consilience.clustering.protocol.messages import MAX_CLUSTERS
from consilience.numerics.held_out_entries import EntryCurve
from consilience.protocol.next_study import Asked, Led, NextStudy, partner, regression
from consilience.protocol.one_table import counted
from consilience.protocol.result import Frame, Result, lines, of_rows

if TYPE_CHECKING:
    import pandas as pd


LEVEL = 0.05
"""Of the test against one cloud."""


def _no_numbers() -> NDArray[np.int64]:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class EnsembleClusteringResult(Result):
    """Classes that the sites share.

    Attributes
    ----------
    feature_names : tuple of str
        The p prepared columns.
    n_clusters : int
        K.
    chosen_by : str
        "given", "vote", "bic", "eigenvalues", "cv", or "matching": the sites' votes differ, and
        the classes of their models, matched across sites, are more than most of them voted for.
    votes : dict of str to int
        Each site's vote by BIC (0: abstained); empty where no vote was held.
    vote_scores : dict of str to (max_clusters,) array
        BIC of each site for 1, 2, ... classes.
    vote_share : float
        Share of the votes for the winner; NaN where no vote was held.
    n_clusters_by_eigenvalues : int
        What the spectrum of the ensemble distance suggests.
    eigenvalues : array
        Leading eigenvalues of the ensemble distance.
    n_records : int
        Rows counted, over all sites.
    class_sizes : (K,) int array
    class_sizes_by_site : dict of str to (K,) int array
        From pattern counts in which rare tuples were merged into the nearest frequent one.
    class_means : (K, p) array
        In the units of the columns; NaN where no site had enough rows in the class.
    class_means_scaled : (K, p) array
        In the scaled units in which the classes were found.
    target : str
        Name of the target column, or "".
    target_means : (K,) array
        NaN where the target has declared levels.
    target_means_by_site : dict of str to (K,) array
    target_levels : tuple of L str
        Declared levels of the target; empty, as what follows, where it is a number.
    target_shares : (K, L) array
        Shares of the levels among the rows of each class whose outcome is known.
    target_shares_by_site : dict of str to (K, L) array
    target_kinds_by_site : dict of str to (K, L) int array
        What each cell of these shows, as in `site_kinds`.
    model_names : tuple of str
        The M local models, "site" or "site/2".
    weights : (M,) array
        Weights in the ensemble distance; their squares sum to 1.
    agreement : (M, M) array
        Agreement of the models (cosines, or correlations with ``weighting="centred"``).
    n_patterns : int
        Distinct label tuples.
    counted : dict of str to str
        How each site counted: "exact", "merged", "coarsened" or "none".
    stability_figures : dict
        ``n_clusters``, ``pairs`` and the adjusted Rand index of runs on disjoint halves: ``mean``,
        ``low``, ``high``, of sites that label their own rows alone (``alone_mean``) and of one
        site's model on all rows (``ported_mean``, mean over the models); ``by_site``. How clearly
        classes of one half divide the other, in standard deviations: above one cloud with the same
        margins and correlations (``apart``; ``apart_by_site``) and above columns that have nothing
        in common (``related``). ``between`` is the share of rows between classes, and
        ``cloud_between`` that of one cloud. ``strength`` is the prediction strength of the classes
        of halves (see `consilience.numerics.two_way_tables.prediction_strength`),
        ``fewer_strength`` that with one class fewer, for three or more. Empty where it was not
        asked for. The halves are secret draws of the sites, so these figures differ a little from
        run to run.
    class_support : dict of str to (K,) int array
        By site that sent a model: 1 for the final classes that this model had before the models of
        other sites told it of more; empty where no model lacked a class.
    models, features, centres, owners
        What a later run needs to label other rows: arrays of the models, T (q, r), centres (K, r).
    cv_candidates : (A,) int array
        Numbers of classes that held-out entries judged; this and what follows is empty, or -1,
        where none were.
    cv_fold_errors : (F, A) array
        Sums of squared errors of held-out entries over the sites, by fold, or by several folds
        together where sites may not tell of each.
    cv_fold_entries : (F,) int array
        Entries behind each fold.
    cv_curve_se : (A,) array
        Standard errors of the errors per entry.
    cv_site_errors : dict of str to (A,) array
        Sums by site over its folds.
    cv_site_entries : dict of str to int
    cv_minimiser, cv_one_standard_error, cv_chosen : int
        Places in `cv_candidates`: of the smallest error, of the smallest number within one standard
        error of it, and of what was used.
    cv_at_edge : bool
        Whether the error still falls at the largest number, so that it chooses nothing.
    cv_rule : str
    model : str
        "markov-mixture" or "latent-class"; "" for models of numbers, and what follows is then
        empty.
    states : tuple of S str
    n_times : int
        Columns of the sequence.
    category_levels : dict of str to tuple of str
        Levels of each column, for latent classes; `class_means` are their chances.
    class_initial : (K, S) array
        Chances of the first state, over all sites; NaN where no site had enough sequences.
    class_transition : (K, S, S) array
        Chances of the next state (last axis) given the present one.
    site_chances : dict of str to (K, C) array
        At each site: first states, then steps row by row; or levels column by column. NaN where
        the site had too few records. Cells that few records were in are with others of their row.
    site_local_chances : dict of str to (K, C) array
        The same in the classes that the site finds alone, matched to the final ones.
    site_kinds : dict of str to (K, C) int array
        What each cell of `site_chances` shows: 0 nothing, 1 its own share, 2 an equal part of the
        share of cells that few records are in, 3 a guess that depends on no record, since few or
        none are in the cell, 4 its own share with theirs.
    site_numbers : dict of str to (K, R) array
        What each row of `site_chances` rests on, coarsely: sequences, steps; or rows.
    start_spread : dict of str to (m,) array
        How far below the best of them, in log likelihood, the starts ended that a site followed
        to their end: 0, or below 0 with two digits. Where they differ the likelihood has several
        peaks.
    differences : dict
        Frobenius differences between sites by ``parts`` ("initial" and "transition", or "levels")
        and ``pairs`` of sites, see ``clustering.kernels.site_differences``; empty for one site.
    """

    often = ("n_clusters", "n_records", "feature_names", "evidence", "p_value")

    feature_names: tuple[str, ...]
    n_clusters: int
    chosen_by: str
    votes: dict[str, int]
    vote_scores: dict[str, FloatArray]
    vote_share: float
    n_clusters_by_eigenvalues: int
    eigenvalues: FloatArray
    n_records: int
    class_sizes: NDArray[np.int64]
    class_sizes_by_site: dict[str, NDArray[np.int64]]
    class_means: FloatArray
    class_means_scaled: FloatArray
    target: str
    target_means: FloatArray
    target_means_by_site: dict[str, FloatArray]
    model_names: tuple[str, ...]
    owners: tuple[str, ...]
    weights: FloatArray
    agreement: FloatArray
    n_patterns: int
    counted: dict[str, str]
    stability_figures: dict[str, Any] = field(metadata={"stored": "stability"})
    models: tuple[dict[str, Any], ...]
    features: FloatArray
    centres: FloatArray
    cv_candidates: NDArray[np.int64] = field(default_factory=_no_numbers)
    cv_fold_errors: FloatArray = field(default_factory=lambda: np.empty((0, 0)))
    cv_fold_entries: NDArray[np.int64] = field(default_factory=_no_numbers)
    cv_curve_se: FloatArray = field(default_factory=lambda: np.empty(0))
    cv_site_errors: dict[str, FloatArray] = field(default_factory=dict)
    cv_site_entries: dict[str, int] = field(default_factory=dict)
    cv_minimiser: int = -1
    cv_one_standard_error: int = -1
    cv_chosen: int = -1
    cv_at_edge: bool = False
    cv_rule: str = ""
    target_levels: tuple[str, ...] = ()
    target_shares: FloatArray = field(default_factory=lambda: np.empty((0, 0)))
    target_shares_by_site: dict[str, FloatArray] = field(default_factory=dict)
    target_kinds_by_site: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    model: str = ""
    states: tuple[str, ...] = ()
    n_times: int = 0
    category_levels: dict[str, tuple[str, ...]] = field(default_factory=dict)
    class_initial: FloatArray = field(default_factory=lambda: np.empty((0, 0)))
    class_transition: FloatArray = field(default_factory=lambda: np.empty((0, 0, 0)))
    site_chances: dict[str, FloatArray] = field(default_factory=dict)
    site_local_chances: dict[str, FloatArray] = field(default_factory=dict)
    site_kinds: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    site_numbers: dict[str, FloatArray] = field(default_factory=dict)
    start_spread: dict[str, FloatArray] = field(default_factory=dict)
    differences: dict[str, Any] = field(default_factory=dict)
    class_support: dict[str, NDArray[np.int64]] = field(default_factory=dict)

    def cv_curve(self) -> EntryCurve | None:
        """Return the curve of errors per held-out entry; None where none were held out."""
        if not len(self.cv_candidates):
            return None
        return curve_of(self.cv_fold_errors, self.cv_fold_entries, self.cv_curve_se)

    def summary(self) -> str:
        """Answer in a few sentences: classes, sizes, and whether they are classes."""
        shares = ", ".join(
            f"class {k} {size} ({size / max(self.n_records, 1):.0%})"
            for k, size in enumerate(self.class_sizes)
        )
        made = "One class only" if self.n_clusters == 1 else f"{self.n_clusters} classes"
        text = f"{made} in {self.n_records} rows: {shares}."
        return " ".join([text, self.choice_sentence(), self.stability_sentence()]).strip()

    def choice_sentence(self) -> str:
        """How the number of classes came about, and how far that can be trusted."""
        if self.chosen_by == "given":
            return "The number of classes was given."
        cast = {site: vote for site, vote in self.votes.items() if vote > 0}
        votes = ", ".join(f"{site} {vote}" for site, vote in cast.items())
        spectrum = f"the spectrum suggests {self.n_clusters_by_eigenvalues}."
        beside = f"Beside it: votes by BIC are {votes or 'none'}, {spectrum}"
        if self.chosen_by == "matching":
            return (
                f"Sites prefer different numbers of classes by BIC ({votes}). Matched across "
                f"sites, the classes of their models are {self.n_clusters}: each site may hold "
                f"some of them only. Beside it: {spectrum}"
            )
        if self.chosen_by == "bic":
            return f"The number of classes has the smallest sum of the sites' BIC. {beside}"
        if self.chosen_by == "cv" and self.cv_at_edge:
            return (
                "Held-out entries choose no number of classes: their error still falls at "
                f"{self.cv_candidates[-1]}, the largest that was tried. Raise max_clusters. "
                f"{beside}"
            )
        if self.chosen_by == "cv":
            sparing = int(self.cv_candidates[self.cv_one_standard_error])
            near = f" Within one standard error of the smallest error are {sparing} already."
            return (
                "The number of classes was chosen by the error of held-out entries."
                f"{near if sparing != self.n_clusters else ''} {beside}"
            )
        trust = ""
        if len(set(cast.values())) > 1:
            trust = (
                f" The votes by BIC disagree ({votes}) and should not be trusted: the spectrum of "
                f"the ensemble distance suggests {self.n_clusters_by_eigenvalues}; try other "
                "numbers, and see which are more than a division of one cloud."
            )
        rule = "the sites' vote" if self.chosen_by == "vote" else "the spectrum of the distance"
        return f"The number of classes was chosen by {rule}.{trust}"

    def next_studies(self, asked: Asked) -> Led:
        """Another number of classes where halves ask for one; a regression of what is no class."""
        more = int(self.cv_candidates[-1]) * 2 if self.chosen_by == "cv" and self.cv_at_edge else 0
        if more:
            yield NextStudy(
                method=asked.method,
                why="Held-out entries choose no number of classes: their error still falls at the "
                "largest that was tried.",
                parameters={"max_clusters": min(more, MAX_CLUSTERS)},
            )
        elif self.fewer_are_surer:
            fewer = int(self.stability_figures["n_clusters"]) - 1
            yield NextStudy(
                method=asked.method,
                why=f"Half of the rows tell {fewer} classes more surely than {fewer + 1}.",
                parameters={"n_clusters": fewer},
                label=f"{fewer}-classes",
            )
        if self.evidence in ("gradient", "nothing"):
            yield from regression(
                asked,
                f"{self.evidence_sentence()} A regression, if none was fitted yet, describes rows "
                "without dividing them.",
            )
        elif self.evidence == "classes":
            yield (
                "People of later tables get these classes by a study that follows this run: "
                "[follows] with its id, and the same parameters."
            )
        elif not self.stability_figures:
            yield "Whether these are classes was not examined: ask for stability_pairs."
        else:
            yield f"Whether these are classes cannot be said: {self.unknown_because}."
        yield partner(asked)

    def few_sites(self) -> dict[int, tuple[str, ...]]:
        """Classes that the own models of fewer than half of the sites have, with these sites."""
        found = {}
        for k in range(self.n_clusters):
            sites = tuple(sorted(site for site, has in self.class_support.items() if has[k]))
            if 2 * len(sites) < len(self.class_support):
                found[k] = sites
        return found

    def support_sentence(self) -> str:
        """Classes that few sites' models have of themselves."""
        said = [
            f"class {k} ({', '.join(sites) if sites else 'no site'})"
            for k, sites in self.few_sites().items()
        ]
        if not said:
            return ""
        return (
            "Fewer than half of the sites had found by themselves, before their models got the "
            f"classes of other sites: {'; '.join(said)}."
        )

    @property
    def evidence(self) -> str:
        """Whether these are classes: "classes", "gradient", "nothing" or "unknown".

        "classes" if those of one half divide the other half more clearly than one cloud of rows
        with the same margins and correlations would be divided, at the level .05; "gradient" if
        they do not and the columns are related; "unknown" if no site had enough rows to say, or
        nobody was asked.
        """
        p, related = self.p_value("apart"), self.p_value("related")
        if p <= LEVEL:
            return "classes"
        if np.isnan(p) or np.isnan(related):
            return "unknown"
        return "gradient" if related <= LEVEL else "nothing"

    def p_value(self, comparison: str) -> float:
        """One-sided p-value of "apart" or "related", see `stability_figures`; NaN if untold."""
        return float(norm.sf(self.stability_figures.get(comparison, np.nan)))

    @property
    def without_classes(self) -> str:
        """What the rows are compared with, in words: what they would be without classes."""
        return "one Markov chain" if self.model == "markov-mixture" else "one cloud"

    @property
    def unknown_because(self) -> str:
        """Why nothing can be said of classes, in words."""
        if "apart" not in self.stability_figures:
            return "the version that made this result did not compare them with one cloud"
        if not self.model and len(self.feature_names) == 1:
            return "one column has nothing in common with others"
        return (
            "no site has enough rows, for this number of columns, in two classes of half its rows"
        )

    def stability_sentence(self) -> str:
        """Whether these are classes, and whether they are found again."""
        s = self.stability_figures
        if not s:
            one = self.n_clusters == 1
            return "" if one else "Whether these are classes was not examined."
        other = s["n_clusters"] != self.n_clusters
        asked = f"Divided into {s['n_clusters']} classes: " if other else ""
        return f"{asked}{self.evidence_sentence()} {self.agreement_sentence()}"

    def agreement_sentence(self) -> str:
        """How well runs on disjoint halves agree."""
        s = self.stability_figures
        # Two decimals, without a minus sign before zero.
        two = {
            name: f"{round(value, 2) + 0.0:.2f}"
            for name, value in s.items()
            if isinstance(value, float)
        }
        asked = "" if s["n_clusters"] == self.n_clusters else f" with {s['n_clusters']} classes"
        pairs = counted(int(s["pairs"]), "pair")
        said = (
            f"Runs on disjoint halves of the rows{asked} agree by {two['mean']} (adjusted Rand "
            f"index, {two['low']} to {two['high']} over {pairs})."
        )
        if not np.isnan(s["alone_mean"]):
            said += f" Sites that label their own rows alone agree by {two['alone_mean']}."
        if not np.isnan(s["ported_mean"]):
            said += f" One site's model on all rows agrees by {two['ported_mean']}."
        return said + self.strength_sentence()

    def strength_sentence(self) -> str:
        """Whether as many classes are found again as surely as one fewer."""
        s = self.stability_figures
        strength, fewer = s.get("strength", np.nan), s.get("fewer_strength", np.nan)
        if np.isnan(strength) or np.isnan(fewer):
            return ""
        k = s["n_clusters"]
        said = (
            f" Of pairs of rows in one class of a half, {strength:.0%} are together in the other "
            f"half's classes too, in the least certain class; with {k - 1} classes {fewer:.0%}"
        )
        surer = f": of half of the rows, {k - 1} are told more surely than {k}."
        return said + (surer if self.fewer_are_surer else ".")

    @property
    def fewer_are_surer(self) -> bool:
        """Whether there is more than one class, and one fewer is clearly found again more surely.

        Classes of a prediction strength of .8 are sure enough, see the source of
        `consilience.numerics.two_way_tables.prediction_strength`; figures of sites are coarse.
        """
        s = self.stability_figures
        strength, fewer = s.get("strength", np.nan), s.get("fewer_strength", np.nan)
        return self.evidence == "classes" and strength < 0.8 and fewer >= strength + 0.05

    def evidence_sentence(self) -> str:
        """What the comparison with one cloud says."""
        p = self.p_value("apart")
        shown = "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"
        if self.model == "markov-mixture":
            related, same = "States depend on those before", ""
            like = "the sequences look like those of one Markov chain"
            cloud = "sequences of one Markov chain"
        else:
            related, same = "The columns are related", " with the same correlations"
            like, cloud = "the rows look like one cloud", f"one cloud of rows{same}"
        if self.evidence == "unknown":
            return f"Whether these are classes cannot be said: {self.unknown_because}."
        if self.evidence == "nothing":
            return (
                f"Nothing speaks for classes: {like} ({shown}), and the classes do not even show "
                "that the columns are related."
            )
        if self.evidence == "gradient":
            return f"{related}, but {like}{same} ({shown}): the classes divide a gradient."
        said = (
            "The classes found on half of the rows also divide the other half, more clearly than "
            f"{cloud} would be divided ({shown})."
        )
        between, expected = (self.stability_figures[name] for name in ("between", "cloud_between"))
        if between < expected:  # both are coarse, and equal ones say nothing
            said += (
                f" {between:.0%} of the rows lie between classes; in one cloud it would be "
                f"{expected:.0%}."
            )
        return said

    def state_distribution(self) -> FloatArray:
        """Shares of the states by time in each class, (K, n_times, S).

        They follow from `class_initial` and `class_transition`; what sites saw by time is not told.
        """
        if not self.class_initial.size:
            return np.empty((0, self.n_times, 0))
        shares = [self.class_initial]
        for _ in range(self.n_times - 1):
            shares.append((shares[-1][:, None, :] @ self.class_transition)[:, 0, :])
        return np.stack(shares, axis=1)

    def target_shares_at(self, site: str) -> FloatArray:
        """Shares of the target's levels at a site, (K, L); NaN where few rows have the level."""
        shares, kinds = self.target_shares_by_site[site], self.target_kinds_by_site[site]
        return np.asarray(np.where(kinds == HIDDEN, np.nan, shares), dtype=np.float64)

    @property
    def _names(self) -> list[str]:
        return [f"class {k}" for k in range(self.n_clusters)]

    @Frame
    def classes(self) -> pd.DataFrame:
        """Every class: size, share, means of the columns, and the target.

        Of a target with declared levels these are shares of the levels; a level that few rows of a
        class have is empty at a site. What was withheld is NaN.
        """
        frame = lines(dict(zip(self.feature_names, self.class_means.T, strict=True)))
        frame.insert(0, "share", self.class_sizes / max(self.n_records, 1))
        frame.insert(0, "size", self.class_sizes)
        sites = self.target_means_by_site if self.model else ()
        if self.target_levels:
            told = {"": self.target_shares}
            told |= {f" at {site}": self.target_shares_at(site) for site in sites}
            for where, shares in told.items():
                for level, share in zip(self.target_levels, shares.T, strict=True):
                    frame[f"share {self.target}={level}{where}"] = share
        elif self.target:
            frame[f"mean {self.target}"] = self.target_means
            for site in sites:
                frame[f"mean {self.target} at {site}"] = self.target_means_by_site[site]
        frame.index = lines({}, **{"class": self._names}).index
        return frame

    @Frame
    def sizes(self) -> pd.DataFrame:
        """Rows of each class over all sites, and at every site."""
        counts = {"all sites": self.class_sizes, **dict(sorted(self.class_sizes_by_site.items()))}
        by_class = np.array(list(counts.values())).T
        return lines(dict(zip(self._names, by_class, strict=True)), site=counts)

    @Frame
    def targets(self) -> pd.DataFrame:
        """Mean of the target in each class, over all sites and at every site."""
        if not self.target or self.target_levels:
            return lines({})
        means = {"all sites": self.target_means, **dict(sorted(self.target_means_by_site.items()))}
        return lines(means, **{"class": self._names})

    @Frame
    def stability(self) -> pd.DataFrame:
        """Every measure of whether these are classes that would be found again.

        "agreement" of runs on disjoint halves (adjusted Rand index; "low" and "high" over the
        pairs of halves), of sites alone and of one site's model; "above ..." in standard
        deviations, with one-sided p-values; shares of rows between classes; prediction strengths.
        """
        s = self.stability_figures
        if not s:
            return lines({})
        measures = {
            "agreement": "mean",
            "agreement of sites alone": "alone_mean",
            "agreement of one site's model": "ported_mean",
            f"above {self.without_classes}": "apart",
            "above unrelated columns": "related",
            "share between classes": "between",
            f"share between classes in {self.without_classes}": "cloud_between",
            "prediction strength": "strength",
            "prediction strength with one class fewer": "fewer_strength",
        }
        told = {said: key for said, key in measures.items() if key in s}
        tested = {key: self.p_value(key) for key in ("apart", "related")}
        return lines(
            {
                "value": [s[key] for key in told.values()],
                "low": [s["low"] if key == "mean" else np.nan for key in told.values()],
                "high": [s["high"] if key == "mean" else np.nan for key in told.values()],
                "p_value": [tested.get(key, np.nan) for key in told.values()],
            },
            measure=told,
        )

    @Frame
    def stability_by_site(self) -> pd.DataFrame:
        """Agreement of halves at every site, and how far its classes exceed one cloud."""
        s = self.stability_figures
        sites = sorted(s.get("by_site", ()))
        apart = s.get("apart_by_site", {})
        told = {"agreement": [s["by_site"][site] for site in sites]}
        return lines(told | {"apart": [apart.get(site, np.nan) for site in sites]}, site=sites)

    @Frame
    def criteria(self) -> pd.DataFrame:
        """BIC of every site for each number of classes, with the site's vote (0: none)."""
        rows = [
            (site, self.votes[site], number, float(score))
            for site in sorted(self.votes)
            for number, score in enumerate(self.vote_scores[site], 1)
        ]
        return of_rows(rows, "site", "vote", "n_clusters", "bic")

    @Frame
    def local_models(self) -> pd.DataFrame:
        """Every local model with its weight in the ensemble distance."""
        return lines({"site": self.owners, "weight": self.weights}, model=self.model_names)

    @Frame
    def transitions(self) -> pd.DataFrame:
        """Chance of every state after each one, by class; the first state comes after ""."""
        if not self.class_initial.size:
            return lines({})
        chances = np.concatenate([self.class_initial[:, None, :], self.class_transition], axis=1)
        k, before, after = np.indices(chances.shape).reshape(3, -1)
        states = np.array(["", *self.states], dtype=object)
        told = {"class": np.array(self._names)[k], "from": states[before], "to": states[1:][after]}
        return lines(told | {"chance": chances.ravel()})

    @Frame
    def held_out(self) -> pd.DataFrame:
        """Error of held-out entries for each number of classes that they judged."""
        curve = self.cv_curve()
        return lines({}) if curve is None else curve.to_frame()


def curve_of(errors: FloatArray, entries: NDArray[Any], se: FloatArray) -> EntryCurve:
    """Curve of the error per held-out entry.

    Parameters
    ----------
    errors : (G, A) array
        Sums of squared errors.
    entries : (G,) array
    se : (A,) array
    """
    numbers = np.arange(1, errors.shape[1] + 1)
    # One class is where the problem itself begins; the largest number is where the question ends.
    return EntryCurve.of_sums("n_clusters", numbers, errors, entries, natural=(True, False), se=se)
