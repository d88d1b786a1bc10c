"""What crosses in a study of one table: a question, and what may be told of the fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from consilience.discriminant.classes import levels_of
from consilience.parameters import Allowed, allows
from consilience.wire.disclosure import Released
from consilience.wire.message import Aggregate, Model, Public, message, part, states

SCORES = ("log_loss", "brier")
"""What a held-out row is judged by, besides right or wrong."""
STAYS_FEW = "a class has rows of too few entities"
STAYS = "its smallest class has fewer than twice as many rows as the model has parameters"
"""Why what a model tells stays at the site."""
_SCORED = f"m {len(SCORES)}"
_MOST_ROWS = 1 << 40
# What a model is told with: of community Bayes, and of sparse discriminant analysis.
_MODELS = (
    frozenset(("communities", "tree")),
    frozenset(("pairs", "strength", "precision", "partial", "blocks")),
)


@dataclass(frozen=True)
class Settings:
    """What is fitted to what.

    Attributes
    ----------
    parameters : dict
        Of the method.
    levels : tuple of str
        Declared levels of the target.
    """

    parameters: Mapping[str, Any] = allows(
        Allowed(lambda v: isinstance(v, dict), "values of parameters by name")
    )
    levels: tuple[str, ...] = allows(levels_of())


@message("one-table/fit", version=2)
class Fit:
    """Fit, judge, keep."""

    settings: Settings = states(Settings, to="site", doc="parameters and levels")

    def lengths(self) -> dict[str, int]:
        """Classes, and cells of a table of them."""
        k = len(self.settings.levels)
        return {"K": k, "c": k * k}


@message("one-table/fitted", version=1)
class Fitted:
    """What may be told of the fit."""

    n: Released = Aggregate("", "rows that take part", kind="int", low=0, high=_MOST_ROWS)
    n_held: Released = Aggregate("", "rows held out", kind="int", low=0)
    n_by_class: Released = Aggregate("K", "rows by class", gaps=True, low=0)
    errors: Released = Aggregate("m", "held-out rows that a rule gets wrong", gaps=True, low=0)
    confusion: Released = Aggregate(
        "c", "held-out rows by class and predicted class", gaps=True, low=0
    )
    scores: Released = Aggregate(_SCORED, "mean scores of held-out rows by rule", gaps=True, low=0)
    score_errors: Released = Aggregate(_SCORED, "their squared standard errors", gaps=True, low=0)
    gains: Released = Aggregate(
        _SCORED, "how much worse than the first rule each scores", gaps=True
    )
    gain_errors: Released = Aggregate(_SCORED, "their squared standard errors", gaps=True, low=0)
    evidence: Released = Aggregate("l", "mean evidence of parts for the right class", gaps=True)
    evidence_errors: Released = Aggregate("l", "its squared standard error", gaps=True, low=0)
    cv_errors: Released = Aggregate(
        "a", "rows wrong in cross-validation by candidate", gaps=True, low=0
    )
    figures: Released = Model(
        "*a dict of arrays",
        "figures of the fits",
        kind="any",
        gaps=True,
        others=True,
        parts={
            "chosen": part(kind="int", low=0, optional=True),
            "candidates": part(("g",), kind="any", low=0, optional=True),
            "cv_se": part(("a",), gaps=True, low=0, optional=True),
            "cv_log_loss": part(("a",), gaps=True, low=0, optional=True),
            "C": part(low=0, optional=True),
            "n_separable": part(kind="int", low=0, optional=True),
            "gap": part(optional=True),
            "n_links": part(("g",), kind="int", low=0, optional=True),
            "largest_block": part(("g",), kind="int", low=0, optional=True),
        },
    )
    model: Released = Model(
        "*a dict of arrays",
        "what the model tells",
        kind="any",
        gaps=True,
        others=True,
        parts={
            "communities": part(("q",), kind="int", low=0, many=True, optional=True),
            "tree": part(("t", 4), low=0, optional=True),
            "pairs": part(("r", 2), kind="int", low=0, optional=True),
            "strength": part(("r",), low=0, optional=True),
            "precision": part(("r", "K"), gaps=True, optional=True),
            "partial": part(("r", "K"), gaps=True, optional=True),
            "blocks": part(("q",), kind="int", low=0, many=True, optional=True),
        },
    )
    judged: tuple[str, ...] = Public("m", "names of the rules", kind="str")
    stays: str = Public(
        "", "what stays at the site, and why", kind="str", choices=("", STAYS, STAYS_FEW)
    )

    def check(self, request: Fit, known: Mapping[str, Any]) -> str | None:
        """A choice is among candidates, a model is whole and of the columns of the study."""
        figures, told = self.figures.value, self.model.value
        if self.n_held.value > self.n.value:
            return "more held-out rows than rows"
        n_candidates = len(figures.get("candidates", ()))
        n_judged = len(self.cv_errors.value)
        if n_candidates and (
            figures.get("chosen", 0) >= n_candidates or n_judged not in (0, n_candidates)
        ):
            return "a choice that is none of the candidates"
        # Each kind of model is told with all of its parts, or not at all.
        whole = [parts <= set(told) for parts in _MODELS if parts & set(told)]
        if (told and self.stays) or not all(whole):
            return "parts of a model"
        # A site knows its columns by their places in the study.
        columns = [*told.get("communities", ()), *told.get("blocks", ()), told.get("pairs", [])]
        within = all((np.asarray(of) < known["p"]).all() for of in columns)
        return None if within else "columns that the study does not have"
