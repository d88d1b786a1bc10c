"""What crosses in a study that chooses by held-out entries of one table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from consilience.completion.kernels.cluster_criteria import NAMES
from consilience.exceptions import ProtocolError
from consilience.protocol.phases.entry_errors import MOST_ENTRIES, are_errors
from consilience.wire.disclosure import Released
from consilience.wire.message import Aggregate, Model, Public, message, part

_MOST_ROWS = 1 << 40
_LARGEST = 1e250  # of sums of squared errors, where entries of a table are 1e100 at most
_PLACES = ("chosen", "minimiser", "one_standard_error")
CHOICE = "choice of "
"""Before the name of a criterion: how many classes it chooses."""


def settings_text(parameters: Mapping[str, Any]) -> str:
    """Parameters of a method as the text that crosses."""
    return json.dumps(dict(parameters), sort_keys=True, default=list)


def settings_read(text: str) -> dict[str, Any]:
    """Read what :func:`settings_text` wrote.

    Raises
    ------
    ProtocolError
        It is something else.
    """
    try:
        return dict(json.loads(text))
    except (ValueError, TypeError, RecursionError):
        sentence = "the settings of a search cannot be read"
        raise ProtocolError(sentence, public=sentence) from None


@message("one-table/search", version=1)
class Search:
    """Choose by held-out entries, fit, keep."""

    settings: str = Public("", "parameters, as JSON", kind="str", to="site")
    names: tuple[str, ...] = Public(
        "3", "what rows, columns and values of the matrix are called", kind="str", to="site"
    )


@message("one-table/searched", version=1)
class Searched:
    """What may be told of the search and of the fit."""

    n_rows: Released = Aggregate("", "rows of the matrix", kind="int", low=1, high=_MOST_ROWS)
    n_columns: Released = Model("", "columns of the matrix", kind="int", low=1, high=_MOST_ROWS)
    n_observed: Released = Aggregate(
        "", "cells with a value, or all if few are missing", kind="int", low=0
    )
    errors: Released = Aggregate(
        "f a",
        "sums of squared errors of held-out entries, by fold and candidate",
        gaps=True,
        low=0,
        high=_LARGEST,
    )
    entries: Released = Aggregate(
        "f", "held-out entries by fold", gaps=True, low=1, high=MOST_ENTRIES
    )
    se: Released = Model(
        "a", "standard errors of the errors per entry", gaps=True, low=0, high=_LARGEST
    )
    final: Released = Aggregate(
        "m",
        "sums of squared errors of entries that took no part, by rule",
        gaps=True,
        low=0,
        high=_LARGEST,
    )
    final_entries: Released = Aggregate("", "entries that took no part", kind="int", low=0)
    sizes: Released = Aggregate("k", "rows by class", gaps=True, low=0)
    centres: Released = Model("k p", "means of the classes", gaps=True, empty=True)
    figures: Released = Model(
        "*a dict of arrays",
        "figures of the fits",
        kind="any",
        gaps=True,
        others=True,
        parts={
            **dict.fromkeys(_PLACES, part(kind="int", low=-1, optional=True)),
            "at_edge": part(kind="int", low=0, high=1, optional=True),
            "natural": part((2,), kind="int", low=0, high=1, optional=True),
            "candidates": part(("a",), low=0, optional=True),
            "n_clusters": part(kind="int", low=1, optional=True),
            "rank": part(kind="int", low=0, optional=True),
            "alpha": part(low=0, optional=True),
            "capped": part(kind="int", low=0, high=1, optional=True),
            "singular_values": part(("v",), low=0, optional=True),
            "final_se": part(("m",), gaps=True, low=0, optional=True),
            "final_gain_se": part(("m",), gaps=True, low=0, optional=True),
            **{CHOICE + name: part(kind="int", low=0, optional=True) for name in NAMES},
            # Also the duality gap of a matrix, which is one number.
            **{name: part("by candidate", gaps=True, optional=True) for name in NAMES},
        },
    )

    def check(self, request: Search, known: Mapping[str, Any]) -> str | None:
        """Errors are those of held-out entries; what goes together has one length."""
        settings, figures = settings_read(request.settings), self.figures.value
        n_cells = self.n_rows.value * self.n_columns.value
        # The columns of triplets are the site's own.
        columns = known["p"] in (0, self.n_columns.value)
        if not columns or max(self.n_observed.value, self.final_entries.value) > n_cells:
            return "other cells than the study's table can have"
        errors, se = self.errors.value, self.se.value
        told = are_errors(errors, self.entries.value, se)
        if len(errors) > settings["n_splits"] or (len(errors) and not told):
            return "errors that no held-out entries have"
        if (len(self.final.value) > 0) != (self.final_entries.value > 0):
            return "entries that took no part, without errors"
        if len(self.sizes.value) != len(self.centres.value):
            return "sizes and means of other classes"
        if any(figures.get(name, -1) >= len(se) for name in _PLACES):
            return "a choice that is none of the candidates"
        of_classes = "n_clusters" in settings
        shape = se.shape if of_classes else ()
        fine = all(np.shape(figures.get(name, np.empty(shape))) == shape for name in NAMES)
        return None if fine else "figures of other candidates"
