"""Messages of ensemble clustering. Nested fields go by ensemble, then by model."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from consilience.exceptions import DisclosureError
from consilience.wire.disclosure import Released
from consilience.wire.message import Disclosure, message, sends

MAX_PAIRS = 100
MAX_RESAMPLES = 20
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
        Disclosure.AGGREGATE, ("k",), gaps=True, doc="class means of the target, where there is one"
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
