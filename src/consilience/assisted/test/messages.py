"""Messages of the assistance test."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from consilience.exceptions import DisclosureError
from consilience.wire.disclosure import Released
from consilience.wire.message import Model, Noised, PerRecord, Public, message, part

MAX_DIRECTIONS = 15
"""The exact price of a sketch is a maximum over two to this power of signs."""
KINDS = ("score", "wald", "wald-hc3", "lr")
"""Tests of a sketch."""
_MOST_ROWS = 1 << 40


@dataclass(frozen=True)
class Settings:
    """What the sites need to know.

    Attributes
    ----------
    family : str
    power : float
        Of the variance function, for Tweedie.
    n_directions, n_draws : int
        Columns of a sketch, and how many sketches a partner draws at once.
    epsilon : float or None
        Price of all sketches of a partner together; None sends them without noise.
    geometry : str
        "box" or "ball".
    bound : float
        Radius of the ball.
    subsample : int or None
        Rows that take part, drawn from the public stream.
    alpha, l1_ratio : float
        Penalty of the fits.
    """

    family: str
    power: float
    n_directions: int
    n_draws: int
    epsilon: float | None
    geometry: str
    bound: float
    subsample: int | None
    alpha: float
    l1_ratio: float

    @property
    def n_columns(self) -> int:
        """Columns of all sketches together."""
        return self.n_directions * self.n_draws

    def to_json(self) -> str:
        """Text form for the wire."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """Read it back, at a site.

        Raises
        ------
        DisclosureError
            Values that no coordinator of this package sends: a site does not rely on its checks.
        """
        s = cls(**json.loads(text))
        fine = type(s.n_directions) is int and type(s.n_draws) is int
        fine = fine and s.n_directions >= 1 and s.n_draws >= 1 and s.n_columns <= MAX_DIRECTIONS
        fine = fine and s.geometry in ("box", "ball")
        if not fine:
            sentence = "settings of the assistance test that a site does not answer"
            raise DisclosureError(sentence, public=sentence)
        return s


@message("assistance-test/sketch-request", version=1)
class SketchRequest:
    """Draw directions and send the columns seen along them."""

    settings: str = Public("", "settings, as JSON", kind="str", to="all")
    recipient: str = Public("", "the initiator", kind="str", to="all")


@message("assistance-test/sketched", version=1)
class Sketched:
    """A partner's columns along random directions that only it knows, without noise."""

    z: Released = PerRecord("n t", "columns along random directions", to="initiator")
    rank: int = Public("", "linearly independent columns", kind="int", low=1)
    known: int = Public("", "directions known after this", kind="int", low=0)

    def check(self, request: SketchRequest, known: Mapping[str, Any]) -> str | None:
        """No more directions are known than there are."""
        return _ranks(self)


@message("assistance-test/noisy-sketched", version=1)
class NoisySketched:
    """The same with noise of a stated price."""

    z: Released = Noised("n t", "the same with Laplace noise", to="initiator")
    rank: int = Public("", "linearly independent columns", kind="int", low=1)
    known: int = Public("", "directions known after this", kind="int", low=0)
    scale: float = Public("", "scale of the noise", kind="float", low=0.0)
    loose: float = Public(
        "", "what the looser published bound calls the price", kind="float", low=0.0
    )

    def check(self, request: SketchRequest, known: Mapping[str, Any]) -> str | None:
        """No more directions are known than there are."""
        return _ranks(self)


def _ranks(reply: Sketched | NoisySketched) -> str | None:
    return None if reply.known <= reply.rank else "more directions than there are columns"


@message("assistance-test/test-request", version=1)
class TestRequest:
    """Test whether a partner's sketch explains the response beyond one's own columns."""

    settings: str = Public("", "settings, as JSON", kind="str", to="all")
    z: Released = PerRecord(
        "n t", "the partner's sketch", to="initiator", origin="assistance-test/sketched"
    )

    def lengths(self) -> dict[str, int]:
        """Sketches that are tested."""
        return {"draws": Settings.from_json(self.settings).n_draws}


@message("assistance-test/noisy-test-request", version=1)
class NoisyTestRequest:
    """The same for a sketch with noise."""

    settings: str = Public("", "settings, as JSON", kind="str", to="all")
    z: Released = Noised(
        "n t", "the partner's sketch", to="initiator", origin="assistance-test/noisy-sketched"
    )
    scale: float = Public("", "scale of the noise", kind="float", to="all")

    def lengths(self) -> dict[str, int]:
        """Sketches that are tested."""
        return {"draws": Settings.from_json(self.settings).n_draws}


_TEST = part(
    "statistic, df, p by draw",
    parts={
        "statistic": part(("draws",), gaps=True),
        "df": part(("draws",), low=0, high=MAX_DIRECTIONS),
        "p": part(("draws",), gaps=True, low=0, high=1),
    },
)


@message("assistance-test/tested", version=1)
class Tested:
    """Statistics of the tests."""

    tests: Released = Model(
        "*by kind: statistic, df, p by draw", "test statistics", parts=dict.fromkeys(KINDS, _TEST)
    )
    facts: Released = Model(
        "*records, minority, reliability",
        "rows, rows of the rarer class per parameter, share of a sketch that is not noise",
        parts={
            "records": part(kind="int", low=1, high=_MOST_ROWS),
            "minority": part(gaps=True, low=0),
            "reliability": part(low=0, high=1),
        },
    )
    given: bool = Public("", "whether earlier partners' part was in the null model", kind="bool")
    warnings: tuple[str, ...] = Public("w", "what to mind, in words", kind="str")
