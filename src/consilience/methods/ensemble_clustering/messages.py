"""Messages of ensemble clustering. Nested fields go by ensemble, then by model."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from consilience.exceptions import DisclosureError
from consilience.wire.disclosure import Released
from consilience.wire.message import Disclosure, message, sends

CODED = ("markov-mixture", "latent-class")
"""Models of coded rows."""
MAX_PAIRS = 100
MAX_RESAMPLES = 20
MAX_FOLDS = 20
MAX_JUDGED = 30
"""Each view of the rows tells a little more of them, whoever asks and why."""


@dataclass(frozen=True)
class Settings:
    """What a site needs to know to fit, and which views of its rows to take."""

    model: str
    covariance_type: str
    n_clusters: int
    max_clusters: int
    n_init: int
    n_resamples: int
    trim: float | None
    pairs: int

    def to_json(self) -> str:
        """Text form for the wire."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """Read it back, at a site; `DisclosureError` for more views than a site answers for."""
        settings = cls(**json.loads(text))
        if settings.pairs > MAX_PAIRS or settings.n_resamples > MAX_RESAMPLES:
            sentence = "more stability pairs or resampled models than a site answers for"
            raise DisclosureError(sentence, public=sentence)
        return settings


@message("ensemble-clustering/vote-request", version=1)
class VoteRequest:
    """Choose the number of classes that your rows prefer."""

    settings: str = sends(Disclosure.PUBLIC, kind="str", audience="site", doc="settings, as JSON")


@message("ensemble-clustering/judge-request", version=1)
class JudgeRequest:
    """Judge numbers of classes by entries of your rows that you hold out."""

    n_folds: int = sends(Disclosure.PUBLIC, kind="int", audience="site", doc="folds of entries")
    max_clusters: int = sends(
        Disclosure.PUBLIC, kind="int", audience="site", doc="largest number of classes"
    )
    n_init: int = sends(Disclosure.PUBLIC, kind="int", audience="site", doc="starts of k-means")


@message("ensemble-clustering/judged", version=1)
class Judged:
    """How well k-means with 1, 2, ... classes predicts held-out entries; which, nobody knows."""

    errors: Released = sends(
        Disclosure.AGGREGATE,
        ("f", "c"),
        gaps=True,
        doc="sums of squared errors of held-out entries, by fold and number of classes",
    )
    entries: Released = sends(
        Disclosure.AGGREGATE, ("f",), gaps=True, doc="held-out entries by fold"
    )
    se: Released = sends(
        Disclosure.MODEL, ("c",), gaps=True, doc="standard errors of the errors per entry"
    )


@message("ensemble-clustering/fit-request", version=1)
class FitRequest:
    """Fit your own models."""

    settings: str = sends(Disclosure.PUBLIC, kind="str", audience="site", doc="settings, as JSON")


@message("ensemble-clustering/local-models", version=1)
class LocalModels:
    """A site's models, for the main ensemble and for each half of each pair."""

    models: Released = sends(
        Disclosure.MODEL,
        "by ensemble, by model: arrays of class parameters",
        audience="all",
        doc="local clustering models; a site without two large enough classes sends none",
    )


@message("ensemble-clustering/all-models", version=1)
class AllModels:
    """Everybody's models: label your rows with each of them."""

    settings: str = sends(Disclosure.PUBLIC, kind="str", audience="site", doc="settings, as JSON")
    models: Released = sends(
        Disclosure.MODEL,
        "by ensemble, by model: arrays of class parameters",
        audience="all",
        doc="local models of all sites",
    )
    owners: tuple[Any, ...] = sends(
        Disclosure.PUBLIC,
        "by ensemble, by model: site",
        audience="all",
        doc="whose model each one is",
    )


@message("ensemble-clustering/pattern-counts", version=1)
class PatternCounts:
    """How many rows have each tuple of labels; never a label of a row."""

    counts: Released = sends(
        Disclosure.AGGREGATE,
        "by ensemble: keys (P, M) and counts (P)",
        doc="rows by label tuple, tuples below min_records merged",
    )
    how: str = sends(
        Disclosure.PUBLIC,
        kind="str",
        doc="what the site's rule did about rare tuples: exact, merged, coarsened or none",
    )


@message("ensemble-clustering/map", version=1)
class Map:
    """From label tuples to final classes: features of the labels and centres, by ensemble."""

    features: Released = sends(
        Disclosure.MODEL, "by ensemble: T (q, r)", audience="all", doc="features of each label"
    )
    centres: Released = sends(
        Disclosure.MODEL, "by ensemble: (K, r)", audience="all", doc="centres of the final classes"
    )


@message("ensemble-clustering/profile", version=1)
class Profile:
    """What the final classes look like at a site; NaN for classes without enough rows here."""

    means: Released = sends(Disclosure.MODEL, ("k", "p"), gaps=True, doc="class means")
    target_means: Released = sends(
        Disclosure.AGGREGATE,
        ("k",),
        gaps=True,
        doc="class means of the target, where it is a number",
    )
    target_shares: Released = sends(
        Disclosure.AGGREGATE,
        ("t", "l"),
        gaps=True,
        doc="shares of the target's declared levels by class, rare ones together",
    )
    target_kinds: Released = sends(
        Disclosure.AGGREGATE,
        ("t", "l"),
        kind="int",
        doc="what is shown in each of these cells, see numerics.told_tables",
    )
    agreement: Released = sends(
        Disclosure.AGGREGATE,
        "by pair",
        gaps=True,
        doc="adjusted Rand index of two halves, rounded",
    )
    null_agreement: Released = sends(
        Disclosure.AGGREGATE,
        "by pair",
        gaps=True,
        doc="the same with columns permuted, rounded",
    )
    alone_agreement: Released = sends(
        Disclosure.AGGREGATE,
        "by pair",
        gaps=True,
        doc="the same by the site's own model alone, rounded",
    )
    ported_agreement: Released = sends(
        Disclosure.AGGREGATE,
        "by pair",
        gaps=True,
        doc="the same by one site's model alone, mean over all sites' models, rounded",
    )


@message("ensemble-clustering/compare-request", version=1)
class CompareRequest:
    """Say what the final classes look like at your site: chances of states and steps, or levels."""

    settings: str = sends(Disclosure.PUBLIC, kind="str", audience="site", doc="settings, as JSON")
    local: bool = sends(
        Disclosure.PUBLIC,
        kind="bool",
        audience="site",
        doc="whether to tell the same of classes that you find alone",
    )


@message("ensemble-clustering/compared", version=1)
class Compared:
    """Chances within the final classes; NaN for rows of the table that too few records are in."""

    chances: Released = sends(
        Disclosure.AGGREGATE, ("k", "c"), gaps=True, doc="chances within the final classes"
    )
    kinds: Released = sends(
        Disclosure.AGGREGATE,
        ("k", "c"),
        kind="int",
        doc="what is shown in each cell, see numerics.told_tables",
    )
    numbers: Released = sends(
        Disclosure.AGGREGATE, ("k", "r"), doc="what each row of chances rests on, coarsely"
    )
    local_chances: Released = sends(
        Disclosure.AGGREGATE,
        ("j", "c"),
        gaps=True,
        doc="the same by classes that the site finds alone, matched to the final ones, over a "
        "secret part of its rows",
    )
    local_kinds: Released = sends(
        Disclosure.AGGREGATE, ("j", "c"), kind="int", doc="the same of these"
    )
    local_numbers: Released = sends(Disclosure.AGGREGATE, ("j", "r"), doc="the same of these")
    start_spread: Released = sends(
        Disclosure.MODEL,
        ("m",),
        doc="how far below the best of them, in log likelihood, the starts that the site followed "
        "ended, two digits",
    )
