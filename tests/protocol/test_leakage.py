"""A method's statement on leakage names every field that the coordinator reads.

`SAID` holds, for each method, words of its statement and the fields of replies that they stand for.
A field that joins a message fails here until the statement says it, and so does a statement that
loses its words. It does not see whether the words are well chosen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import pytest

from consilience.protocol import BUILT_IN
from consilience.protocol.method import Method, get_method
from consilience.wire.message import Disclosure, message_type

UNTOLD = "(no field of this method)"
"""Fields of a message that several methods share and this one leaves empty."""

_MOMENTS = "within.n within.means within.spreads within.products"
_CURVE = {
    "how many rows, columns and cells": "searched.n_rows searched.n_columns searched.n_observed",
    "numbers and squared errors of held-out cells": "searched.errors searched.entries",
    "with standard errors": "searched.se searched.figures.final_se searched.figures.final_gain_se",
}
_PLACES = ("chosen", "minimiser", "one_standard_error", "at_edge", "natural", "candidates")
_FIGURES = " ".join(f"searched.figures.{name}" for name in _PLACES)
_CRITERIA = ("calinski-harabasz", "silhouette", "krzanowski-lai", "hartigan", "jump", "gap")
_CLASSES = "searched.figures.choice*"
_CURVES = " ".join(f"searched.figures.{name}" for name in _CRITERIA)
_FACTORS = " ".join(f"searched.figures.{name}" for name in ("rank", "alpha"))
_RULES = {
    "rows by class and rows held out": "fitted.n fitted.n_by_class fitted.n_held",
    "how many held-out rows each rule gets wrong": "fitted.errors",
    "which classes are mistaken for which": "fitted.confusion",
    "mean scores of held-out rows": "fitted.scores",
    "by how much rules differ": "fitted.gains",
    "with standard errors": "fitted.score_errors fitted.gain_errors fitted.evidence_errors "
    "fitted.figures.cv_se",
    "in cross-validation by": "fitted.cv_errors",
}
_LINKS = "fitted.model.pairs fitted.model.blocks"
_JUDGED = "held-out rows with standard errors"

SAID: Mapping[str, Mapping[str, str]] = {
    "mean-and-sd": {
        "number of rows": "sums.n",
        "column means": "sums.totals",
        "how many can tell each column": "possible.*",
        "standard deviations": "deviations.squares",
    },
    "contingency-table": {
        "the table of each site that tells one": "table.counts",
        "how many sites tell one": "possible.tables",
        "of all these sites together": "parts.counts",
        "the sum of their chi-square statistics": "parts.within",
    },
    "describe": {
        "the number of rows": "sums.n",
        "of each column of numbers rows with a value, mean and standard deviation": "sums.known "
        "sums.means sums.spreads",
        "the rows in bins": "bins.counts",
        "the rows of its levels": "sums.levels",
        "the tables that the study names": "sums.tables",
        "of its curves the rows in bins of time, by group, with an event and without": "bins.ended",
        "With masked sums the coordinator knows this of all": "sum-totals.* square-totals.* "
        "bin-totals.*",
        "how many sites could tell each figure": "possible.* bins-possible.*",
    },
    "federated-pca": {
        "numbers of rows, means and cross-products": "told.*",
        "With masked sums the coordinator knows the moments of all": "group-totals.*",
        "how many sites could tell each column and so many groups": "possible.*",
    },
    "federated-sparse-qda": {
        "numbers of rows, used and held out": "offered.counts offered.held",
        "column means and spreads": "offered.means offered.spreads",
        "which columns are linked": "linked.labels",
        "cross-products within blocks": "products.products",
        "shares of held-out rows that two models get wrong": "concluded.rates",
        "say it of 50 models more": "judged.rates",
        "log losses of the two models": "concluded.losses concluded.errors",
        "numbers of rows, sums and cross-products by class of up to 4 groups": "class-totals.*",
        "sites could tell each column, each class and so many groups": "possible.*",
    },
    "federated-community-bayes": {
        "training rows by class and numbers of choosing and test rows": "offered.*",
        "rank correlations": "ranks.tables",
        "coefficients and curvature of its own fit": "fitted.fits",
        "loss, gradient and curvature": "slopes.sums",
        "log losses with standard errors": "judged.losses judged.errors",
        "shares of wrong predictions": "judged.wrong",
        "training rows by class, rank correlations weighed by rows": "rank-totals.*",
        "curvatures and slopes of each community": "fit-totals.sums slope-totals.sums",
        "log losses, their squares and wrong predictions of a few models": "figure-totals.*",
        "how many sites could tell each of them": "possible.* fits-possible.* figures-possible.*",
    },
    "latent-class-regression": {
        "sums of squares and products of features and response": "offered.sums sums.sums",
        "sums of products with squares of the features": "curved.sums",
        "share of labels that moved": "sums.moved",
        "how well a few values of beta fit": "sums.fit",
        "mean errors, log scores and intervals": "concluded.*",
        "With masked sums the coordinator knows this of all": "class-totals.* losses.*",
        "how many could hold events out": "possible.*",
    },
    "meta-clustering": {
        "models, number of rows and column means": "selected.n selected.models",
        "spreads and cross-products": _MOMENTS,
        "which candidates it chose": "selected.chosen",
        "predictions on drawn points": "selected.predictions",
        "of its candidates": "selected.losses selected.own selected.own_error",
        "of a constant": "selected.variance selected.useful selected.useful_error",
        "of all models": "losses.excess losses.variance losses.effective losses.raw",
        "of groups of them": "cut-losses.* gains.*",
        "mean residuals": "losses.shift losses.shift_error",
        "cross-products with the response": "pool-moments.products",
        "the rows themselves": "pool-rows.rows",
    },
    "ensemble-clustering": {
        "squared errors and numbers of held-out entries": "judged.errors judged.entries",
        "with standard errors": "judged.se",
        "its choice and the criteria": "ballot.*",
        "local class parameters": "local-models.models",
        "frequent label tuple": "pattern-counts.*",
        "means of columns and target": "profile.means profile.target_means",
        "shares of its levels": "profile.target_shares profile.target_kinds",
        "rounded agreements": "profile.agreement profile.alone_agreement profile.ported_agreement "
        "profile.strength profile.fewer_strength",
        "how clearly classes of half": "profile.apart profile.related "
        "profile.between profile.cloud_between",
        "chances by class": "compared.chances compared.kinds",
        "classes that the site finds alone": "compared.local_chances compared.local_kinds",
        "how many rows they rest on": "compared.numbers compared.local_numbers",
        "how far below the best": "compared.start_spread",
    },
    "reference-averaging": {
        "number of rows, used and held out": "accepted.n accepted.held",
        "sums of weights and of squares": "accepted.weight accepted.square",
        "predictions at the reference rows and its models": "fitted.fits.at fitted.fits.model "
        "concluded.model",
        "how two refits change the predictions": "fitted.probe",
        _JUDGED: "fitted.losses fitted.errors judged.* concluded.losses concluded.differences "
        "concluded.errors",
        "means, spreads and cross-products": _MOMENTS,
    },
    "sparse-qda": {
        **_RULES,
        "errors in cross-validation by penalty": "fitted.cv_errors",
        "the penalties": "fitted.figures.candidates fitted.figures.chosen",
        "how many pairs are linked and how large": "fitted.figures.n_links "
        "fitted.figures.largest_block",
        "how exact the fit is": "fitted.figures.gap",
        "which pairs are linked and how strongly": f"{_LINKS} fitted.model.strength",
        "precisions and partial correlations": "fitted.model.precision fitted.model.partial",
        UNTOLD: "fitted.evidence fitted.figures.cv_log_loss fitted.figures.C "
        "fitted.figures.n_separable fitted.model.communities fitted.model.tree",
    },
    "community-bayes": {
        **_RULES,
        "mean evidence of each community": "fitted.evidence",
        "errors and log losses in cross-validation": "fitted.figures.cv_log_loss",
        "by number of communities": "fitted.figures.candidates fitted.figures.chosen",
        "the penalty": "fitted.figures.C",
        "can be told apart without error": "fitted.figures.n_separable",
        "which features belong together": "fitted.model.communities",
        "heights of the tree": "fitted.model.tree",
        UNTOLD: "fitted.figures.gap fitted.figures.n_links fitted.figures.largest_block "
        f"{_LINKS} fitted.model.strength fitted.model.precision fitted.model.partial",
    },
    "cluster-count": {
        **_CURVE,
        "number of classes": f"{_FIGURES} searched.figures.n_clusters",
        "sizes and means of classes": "searched.sizes searched.centres",
        "how many classes other criteria choose": _CLASSES,
        "the values of these criteria": _CURVES,
        UNTOLD: f"searched.final searched.final_entries {_FACTORS} searched.figures.capped "
        "searched.figures.center searched.figures.singular_values",
    },
    "matrix-completion": {
        **_CURVE,
        "of a last part": "searched.final searched.final_entries",
        "the candidates, the chosen rank or penalty": f"{_FIGURES} {_FACTORS}",
        "how exact the fit is": "searched.figures.gap searched.figures.capped",
        "the singular values": "searched.figures.singular_values",
        "whether the values look like ratings": "searched.figures.center",
        UNTOLD: f"searched.sizes searched.centres searched.figures.n_clusters {_CLASSES} {_CURVES}",
    },
    "pooled-regression": {
        "numbers of rows, means and cross-products": "moments.*",
        "rows, column sums, products": "totals.n totals.totals products.products",
        "loss, score and curvature": "sums.figures sums.score sums.curvature",
        "expected curvature": "sums.expected",
        "an equation of alpha with its derivatives": "sums.shape",
        "squared scores": "sums.squares",
        "rows with and without an event in bands of predicted risk": "judged.counts",
        "expected numbers": "judged.expected",
        "intercept and slope of a recalibration": "judged.calibration",
        "scores and curvatures in which late events count more": "judged.drift",
        "coefficients and curvature of each site's own fit": "own-fit.fit",
    },
    "assistance-test": {
        "test statistics with degrees of freedom and p-values": "tested.tests.*",
        "the number of rows and of their clusters": "tested.facts.records tested.facts.clusters",
        "rows of the rarer class": "tested.facts.minority",
        "which share of a sketch is not noise": "tested.facts.reliability",
    },
    "assisted-glm": {
        "how deviances fall": "turned.course.* contributed.gain.*",
        "coefficients with standard errors": "concluded.coefficients.*",
        "how well the models fit and predict": "concluded.fit.*",
        "calibration where groups are large enough": "concluded.calibration",
        "numbers of rows, of their clusters and of intervals": "concluded.intervals.* "
        "concluded.records.* predicted.records.*",
    },
}


def read_by_coordinator(method: type[Method]) -> Iterator[str]:
    """Fields of replies that say something of rows and that the coordinator may read."""
    for step in method.steps:
        kind = message_type(step.reply)
        name = kind.name.partition("/")[2]
        for field, spec in kind.fields.items():
            if spec.disclosure is not Disclosure.PUBLIC and not spec.for_role:
                yield from (f"{name}.{field}.{part}" for part in spec.parts)
                if not spec.parts:
                    yield f"{name}.{field}"


def stands_for(name: str, field: str) -> bool:
    return field.startswith(name[:-1]) if name.endswith("*") else field == name


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_statements_name_what_is_told(name: str) -> None:
    method = get_method(name)
    said, fields = SAID[name], set(read_by_coordinator(method))
    for words in said:
        assert words == UNTOLD or words in method.leakage, f"{name} does not say {words!r}"
    named = Counter(one for names in said.values() for one in names.split())
    unsaid = {f for f in fields if not any(stands_for(one, f) for one in named)}
    assert not unsaid, f"{name}: what of {sorted(unsaid)} does the statement say?"
    gone = {one for one in named if not any(stands_for(one, f) for f in fields)}
    assert not gone, f"{name} sends no {sorted(gone)}"
