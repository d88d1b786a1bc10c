"""What crosses in a study that chooses by held-out entries of one table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from consilience.exceptions import ProtocolError
from consilience.wire.disclosure import Released
from consilience.wire.message import Disclosure, message, sends


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

    settings: str = sends(Disclosure.PUBLIC, kind="str", audience="site", doc="parameters, as JSON")
    names: tuple[str, ...] = sends(
        Disclosure.PUBLIC,
        (3,),
        kind="str",
        audience="site",
        doc="what rows, columns and values of the matrix are called",
    )


@message("one-table/searched", version=1)
class Searched:
    """What may be told of the search and of the fit."""

    n_rows: Released = sends(Disclosure.AGGREGATE, kind="int", doc="rows of the matrix")
    n_columns: Released = sends(Disclosure.MODEL, kind="int", doc="columns of the matrix")
    n_observed: Released = sends(
        Disclosure.AGGREGATE, kind="int", doc="cells with a value, or all if few are missing"
    )
    errors: Released = sends(
        Disclosure.AGGREGATE,
        ("f", "a"),
        gaps=True,
        doc="sums of squared errors of held-out entries, by fold and candidate",
    )
    entries: Released = sends(
        Disclosure.AGGREGATE, ("f",), gaps=True, doc="held-out entries by fold"
    )
    se: Released = sends(
        Disclosure.MODEL, ("a",), gaps=True, doc="standard errors of the errors per entry"
    )
    final: Released = sends(
        Disclosure.AGGREGATE,
        ("m",),
        gaps=True,
        doc="sums of squared errors of entries that took no part, by rule",
    )
    final_entries: Released = sends(
        Disclosure.AGGREGATE, kind="int", doc="entries that took no part"
    )
    sizes: Released = sends(Disclosure.AGGREGATE, ("k",), gaps=True, doc="rows by class")
    centres: Released = sends(Disclosure.MODEL, ("k", "p"), gaps=True, doc="means of the classes")
    figures: Released = sends(
        Disclosure.MODEL, "a dict of arrays", kind="any", gaps=True, doc="figures of the fits"
    )
