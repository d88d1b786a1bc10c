"""What crosses in a study of one table: a question, and what may be told of the fit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from consilience.exceptions import ProtocolError
from consilience.wire.disclosure import Released
from consilience.wire.message import Disclosure, message, sends

SCORES = ("log_loss", "brier")
"""What a held-out row is judged by, besides right or wrong."""


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

    parameters: Mapping[str, Any]
    levels: tuple[str, ...]

    def to_json(self) -> str:
        """Text that crosses."""
        return json.dumps(asdict(self), sort_keys=True, default=list)

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """Read what :meth:`to_json` wrote.

        Raises
        ------
        ProtocolError
            It is something else.
        """
        try:
            read = json.loads(text)
            return cls(dict(read["parameters"]), tuple(str(level) for level in read["levels"]))
        except (ValueError, TypeError, KeyError, RecursionError):
            sentence = "the settings of a fit cannot be read"
            raise ProtocolError(sentence, public=sentence) from None


@message("one-table/fit", version=1)
class Fit:
    """Fit, judge, keep."""

    settings: str = sends(
        Disclosure.PUBLIC, kind="str", audience="site", doc="parameters and levels, as JSON"
    )


@message("one-table/fitted", version=1)
class Fitted:
    """What may be told of the fit."""

    n: Released = sends(Disclosure.AGGREGATE, kind="int", doc="rows that take part")
    n_held: Released = sends(Disclosure.AGGREGATE, kind="int", doc="rows held out")
    n_by_class: Released = sends(Disclosure.AGGREGATE, ("K",), gaps=True, doc="rows by class")
    errors: Released = sends(
        Disclosure.AGGREGATE, ("m",), gaps=True, doc="held-out rows that a rule gets wrong"
    )
    confusion: Released = sends(
        Disclosure.AGGREGATE, ("c",), gaps=True, doc="held-out rows by class and predicted class"
    )
    scores: Released = sends(
        Disclosure.AGGREGATE, ("m", "s"), gaps=True, doc="mean scores of held-out rows by rule"
    )
    score_errors: Released = sends(
        Disclosure.AGGREGATE, ("m", "s"), gaps=True, doc="their squared standard errors"
    )
    gains: Released = sends(
        Disclosure.AGGREGATE,
        ("m", "s"),
        gaps=True,
        doc="how much worse than the first rule each scores",
    )
    gain_errors: Released = sends(
        Disclosure.AGGREGATE, ("m", "s"), gaps=True, doc="their squared standard errors"
    )
    evidence: Released = sends(
        Disclosure.AGGREGATE, ("l",), gaps=True, doc="mean evidence of parts for the right class"
    )
    evidence_errors: Released = sends(
        Disclosure.AGGREGATE, ("l",), gaps=True, doc="its squared standard error"
    )
    cv_errors: Released = sends(
        Disclosure.AGGREGATE, ("a",), gaps=True, doc="rows wrong in cross-validation by candidate"
    )
    figures: Released = sends(
        Disclosure.MODEL, "a dict of arrays", kind="any", gaps=True, doc="figures of the fits"
    )
    model: Released = sends(
        Disclosure.MODEL, "a dict of arrays", kind="any", gaps=True, doc="what the model tells"
    )
    judged: tuple[str, ...] = sends(Disclosure.PUBLIC, ("m",), kind="str", doc="names of the rules")
    stays: str = sends(Disclosure.PUBLIC, kind="str", doc="what stays at the site, and why")
