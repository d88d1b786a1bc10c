"""Messages of ensemble clustering. Nested fields go by ensemble, then by model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from consilience.clustering.estimators import local_models
from consilience.clustering.kernels.cell_suppression import WITHHELD
from consilience.parameters import LEFT_OUT, allows, number, one_of, whole
from consilience.protocol.phases.entry_errors import MOST_ENTRIES, are_errors
from consilience.wire.disclosure import Released
from consilience.wire.message import Aggregate, Model, Public, message, part, states

CODED = ("markov-mixture", "latent-class")
"""Models of coded rows."""
MODELS = ("kmeans", "gaussian-mixture", *CODED)
COVARIANCES = ("diag", "full", "spherical", "tied")
AGREEMENTS = ("agreement", "alone_agreement", "ported_agreement", "strength", "fewer_strength")
MAX_PAIRS = 100
MAX_RESAMPLES = 20
MAX_FOLDS = 20
MAX_JUDGED = 30
"""Each view of the rows tells a little more of them, whoever asks and why."""
MAX_CLUSTERS = 100
MAX_STARTS = 10_000
"""What a site computes has an end."""
_LARGEST = 1e50  # of a parameter: distances of classes, and products of these, are numbers


@dataclass(frozen=True)
class Settings:
    """What a site needs to know to fit, and which views of its rows to take."""

    model: str = allows(one_of(*MODELS))
    covariance_type: str = allows(one_of(*COVARIANCES))
    n_clusters: int = allows(whole(1))
    max_clusters: int = allows(whole(2, MAX_CLUSTERS))
    n_init: int = allows(whole(1, MAX_STARTS))
    n_resamples: int = allows(whole(1, MAX_RESAMPLES))
    trim: float | None = allows(number(above=0) | LEFT_OUT)
    pairs: int = allows(whole(0, MAX_PAIRS))

    @property
    def views(self) -> int:
        """Ensembles: of all rows, and for each pair of either half."""
        return 1 + 2 * self.pairs


# Fields that several messages have: cells of tables by class, and figures by pair of halves.


def _chances(shape: str, words: str) -> Any:
    """Chances or shares in [0, 1], or no table at all."""
    return Aggregate(shape, words, gaps=True, empty=True, low=0.0, high=1.0)


def _kinds(shape: str, words: str) -> Any:
    """What is shown in each cell, one of the kinds of ``kernels.cell_suppression``."""
    return Aggregate(shape, words, kind="int", empty=True, low=0, high=4)


def _numbers(shape: str, words: str) -> Any:
    """What rows of a table rest on."""
    return Aggregate(shape, words, empty=True, low=0.0, high=2.0**50)


def _agreements(of: str) -> Any:
    """A figure for each pair of halves."""
    return Aggregate("", f"by pair: {of}, rounded", many=True, gaps=True, low=-1.0, high=1.0)


def _figure(of: str, low: float, high: float) -> Any:
    """One rounded figure; NaN where the site says nothing."""
    return Aggregate("", f"{of}, rounded", gaps=True, low=low, high=high)


@message("ensemble-clustering/vote-request", version=2)
class VoteRequest:
    """Choose the number of classes that your rows prefer."""

    settings: Settings = states(Settings, to="site")

    def lengths(self) -> dict[str, int]:
        """Candidates: 1, 2, ... classes."""
        return {"c": self.settings.max_clusters}


@message("ensemble-clustering/judge-request", version=1)
class JudgeRequest:
    """Judge numbers of classes by entries of your rows that you hold out."""

    n_folds: int = Public("", "folds of entries", kind="int", to="site")
    max_clusters: int = Public("", "largest number of classes", kind="int", to="site")
    n_init: int = Public("", "starts of k-means", kind="int", to="site")

    def lengths(self) -> dict[str, int]:
        """Candidates: 1, 2, ... classes."""
        return {"c": self.max_clusters}


@message("ensemble-clustering/judged", version=1)
class Judged:
    """How well k-means with 1, 2, ... classes predicts held-out entries; which, nobody knows."""

    errors: Released = Aggregate(
        "f c",
        "sums of squared errors of held-out entries, by fold and number of classes",
        gaps=True,
        low=0,
    )
    entries: Released = Aggregate(
        "f", "held-out entries by fold", gaps=True, low=1, high=MOST_ENTRIES
    )
    se: Released = Model("c", "standard errors of the errors per entry", gaps=True, low=0)

    def check(self, request: JudgeRequest, known: Mapping[str, Any]) -> str | None:
        """Nothing, or errors that held-out entries have, of no more folds than were asked for."""
        errors, entries = self.errors.value, self.entries.value
        if not len(errors):
            return None
        fine = len(errors) <= request.n_folds and are_errors(errors, entries, self.se.value)
        return None if fine else "errors that no held-out entries have"


@message("ensemble-clustering/fit-request", version=2)
class FitRequest:
    """Fit your own models."""

    settings: Settings = states(Settings, to="site")


@message("ensemble-clustering/local-models", version=1)
class LocalModels:
    """A site's models, for the main ensemble and for each half of each pair."""

    models: Released = Model(
        "*by ensemble, by model: arrays of class parameters",
        "local clustering models; a site without two large enough classes sends none",
        to="all",
    )

    def check(self, request: FitRequest, known: Mapping[str, Any]) -> str | None:
        """For each ensemble some models of the kind and the columns of the study."""
        s = request.settings
        ensembles = self.models.value
        fine = isinstance(ensembles, tuple) and len(ensembles) == s.views
        for models in ensembles if fine else ():
            fine &= isinstance(models, tuple) and len(models) <= s.n_resamples
            fine = fine and all(_is_model(arrays, s, known) for arrays in models)
        return None if fine else "other models than were asked for"


@message("ensemble-clustering/all-models", version=2)
class AllModels:
    """Everybody's models: label your rows with each of them."""

    settings: Settings = states(Settings, to="site")
    models: Released = Model(
        "*by ensemble, by model: arrays of class parameters", "local models of all sites", to="all"
    )
    owners: tuple[Any, ...] = Public(
        "*by ensemble, by model: site", "whose model each one is", to="all"
    )


@message("ensemble-clustering/pattern-counts", version=1)
class PatternCounts:
    """How many rows have each tuple of labels; never a label of a row."""

    counts: Released = Aggregate(
        "*by ensemble: keys (P, M) and counts (P)",
        "rows by label tuple, tuples below min_records merged",
        many=True,
        parts={
            "keys": part(("P", "M"), kind="int", low=0),
            "counts": part(("P",), kind="int", low=0),
        },
    )
    how: str = Public(
        "",
        "what the site's rule did about rare tuples",
        kind="str",
        choices=("exact", "merged", "coarsened", "none"),
    )

    def check(self, request: AllModels, known: Mapping[str, Any]) -> str | None:
        """By ensemble, numbers of rows for labels that its models have."""
        sizes = [
            [local_models.local_model_from_arrays(arrays).n_classes for arrays in models]
            for models in request.models.value
        ]
        fine = len(self.counts.value) == len(sizes)
        for item, n_classes in zip(self.counts.value, sizes, strict=fine):
            keys = item["keys"]
            fine &= keys.shape[1] == len(n_classes) and bool((keys < np.asarray(n_classes)).all())
        return None if fine else "counts that do not fit the models"


@message("ensemble-clustering/map", version=2)
class Map:
    """From label tuples to final classes: features of the labels and centres, by ensemble."""

    features: Released = Model("*by ensemble: T (q, r)", "features of each label", to="all")
    centres: Released = Model("*by ensemble: (K, r)", "centres of the final classes", to="all")
    fewer: Released = Model("*by half: (K - 1, r)", "centres of one class fewer, or none", to="all")

    def same_halves(self) -> bool:
        """Whether there are centres of one class fewer for every half, or for none."""
        fewer, halves = self.fewer.value, self.centres.value[1:]
        return not fewer or [len(x) for x in fewer] == [max(len(y) - 1, 1) for y in halves]

    def lengths(self) -> dict[str, int]:
        """Final classes, and pairs of halves."""
        centres = self.centres.value
        return {"k": len(centres[0]), "pairs": len(centres) // 2}


@message("ensemble-clustering/profile", version=3)
class Profile:
    """What the final classes look like at a site; NaN for classes without enough rows here."""

    means: Released = Model("k p", "class means", gaps=True)
    target_means: Released = Aggregate(
        "k", "class means of the target, where it is a number", gaps=True, empty=True
    )
    target_shares: Released = _chances(
        "k K", "shares of the target's declared levels by class, rare ones together"
    )
    target_kinds: Released = _kinds(
        "k K", "what is shown in each of these cells, see numerics.told_tables"
    )
    agreement: Released = _agreements("adjusted Rand index of two halves")
    alone_agreement: Released = _agreements("the same by the site's own model alone")
    ported_agreement: Released = _agreements(
        "the same by one site's model alone, mean over all sites' models"
    )
    strength: Released = _agreements("prediction strength of the classes of two halves")
    fewer_strength: Released = _agreements("the same with one class fewer")
    apart: Released = _figure(
        "standard deviations by which classes of halves divide other rows above one cloud", -10, 10
    )
    related: Released = _figure("the same above columns that have nothing in common", -10, 10)
    between: Released = _figure("share of rows between classes", 0, 1)
    cloud_between: Released = _figure("the same in draws of one cloud", 0, 1)

    def check(self, request: Map, known: Mapping[str, Any]) -> str | None:
        """Shares of all levels add up, both tables are there or none; an agreement by pair."""
        shares, kinds = self.target_shares.value, self.target_kinds.value
        whole = shares[~np.isnan(shares).any(axis=1)]
        # They are rounded.
        off = np.abs(whole.sum(axis=1) - 1.0) > 0.1 * shares.shape[1]
        if shares.shape != kinds.shape or (whole.size and off.any()):
            return "shares of levels that do not add up"
        fine = all(len(getattr(self, name).value) <= known["pairs"] for name in AGREEMENTS)
        return None if fine else "agreements of other pairs than there are"


@message("ensemble-clustering/compare-request", version=2)
class CompareRequest:
    """Say what the final classes look like at your site: chances of states and steps, or levels."""

    settings: Settings = states(Settings, to="site")
    local: bool = Public(
        "", "whether to tell the same of classes that you find alone", kind="bool", to="site"
    )

    def lengths(self) -> dict[str, int]:
        """Final classes, which are as many as those that a site finds alone."""
        return {"k": self.settings.n_clusters, "j": self.settings.n_clusters}


@message("ensemble-clustering/compared", version=1)
class Compared:
    """Chances within the final classes; NaN for rows of the table that too few records are in."""

    chances: Released = _chances("k c", "chances within the final classes")
    kinds: Released = _kinds("k c", "what is shown in each cell, see numerics.told_tables")
    numbers: Released = _numbers("k r", "what each row of chances rests on, coarsely")
    local_chances: Released = _chances(
        "j c",
        "the same by classes that the site finds alone, matched to the final ones, over a "
        "secret part of its rows",
    )
    local_kinds: Released = _kinds("j c", "the same of these")
    local_numbers: Released = _numbers("j r", "the same of these")
    # The fields above have no default, though their helpers hide it.
    start_spread: Released = Model(  # type: ignore[misc]
        "m",
        "how far below the best of them, in log likelihood, the starts that the site followed "
        "ended, two digits",
    )

    def check(self, request: CompareRequest, known: Mapping[str, Any]) -> str | None:
        """Tables over the states and their steps, or over the columns; what is told is known."""
        if request.settings.model == "markov-mixture":
            width, n_rows = known["S"] * (1 + known["S"]), 1 + known["S"]
        else:
            width, n_rows = known["p"], known["F"]
        for prefix in ("", "local_"):
            told, kinds, numbers = (
                getattr(self, prefix + name).value for name in ("chances", "kinds", "numbers")
            )
            fine = kinds.shape == told.shape and len(numbers) == len(told)
            if told.size:
                fine = fine and told.shape[1] == width and numbers.shape[1] == n_rows
            if not fine or (np.isnan(told) & (kinds != WITHHELD)).any():
                return "chances that do not fit the classes"
        return None


def _is_model(arrays: Any, s: Settings, known: Mapping[str, Any]) -> bool:
    """Whether arrays are those of a model of the study's kind and columns."""
    model = local_models.local_model_from_arrays(arrays)
    found = np.asarray(model.class_parameters)
    coded = local_models.kind_of(model)
    if coded != (s.model if s.model in CODED else ""):
        return False
    if isinstance(model, local_models.ClusterModel):
        kind = getattr(model, "covariance_type", None)
        fine = kind == (s.covariance_type if s.model == "gaussian-mixture" else None)
        fine = fine and model.n_features == known["p"]
    else:
        states = coded == "markov-mixture"
        width = known["S"] * (1 + known["S"]) if states else known["p"]
        fine = found.shape[1] == width
    return fine and len(found) >= 2 and bool((np.abs(found) <= _LARGEST).all())


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
