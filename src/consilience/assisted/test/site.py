"""Messages and steps of the assistance test: a partner draws its sketch, the initiator tests it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from consilience.arrays import FloatArray
from consilience.assisted import phases
from consilience.assisted.kernels import assistance
from consilience.assisted.kernels.mechanisms import Kept, Laplace, opendp
from consilience.assisted.phases import OwnColumns, Ranked
from consilience.exceptions import DataError, DisclosureError, ParameterError, StudyError
from consilience.numerics.families import NAMES, Penalty, family
from consilience.numerics.random import stream
from consilience.parameters import LEFT_OUT, allows, number, one_of, whole
from consilience.protocol.method import SiteContext, SiteData, State, step
from consilience.wire.disclosure import Released, addressed, model, projection
from consilience.wire.message import Model, Noised, PerRecord, Public, message, part, states

MAX_DIRECTIONS = 15
"""The exact price of a sketch is a maximum over two to this power of signs."""
KINDS = ("score", "wald", "wald-hc3", "lr")
"""Tests of a sketch."""
MIN_ROWS = 4
"""Rows for each column of the null model, below which only the fit of earlier partners is in it."""
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

    family: str = allows(one_of(*NAMES))
    power: float = allows(number())
    n_directions: int = allows(whole(1, MAX_DIRECTIONS))
    n_draws: int = allows(whole(1, MAX_DIRECTIONS))
    epsilon: float | None = allows(number(above=0, high=1e6) | LEFT_OUT)
    geometry: Literal["box", "ball"] = allows(one_of("box", "ball"))
    bound: float = allows(number(above=0))
    subsample: int | None = allows(whole(20) | LEFT_OUT)
    alpha: float = allows(number(0))
    l1_ratio: float = allows(number(0, 1))

    def __post_init__(self) -> None:
        """Check what no field shows alone; raise `ParameterError`."""
        if self.n_columns > MAX_DIRECTIONS:
            raise ParameterError(
                f"n_directions times n_draws is {self.n_columns}: at most {MAX_DIRECTIONS} columns "
                "have a price that can be computed exactly"
            )

    @property
    def n_columns(self) -> int:
        """Columns of all sketches together."""
        return self.n_directions * self.n_draws


@message("assistance-test/sketch-request", version=2)
class SketchRequest:
    """Draw directions and send the columns seen along them."""

    settings: Settings = states(Settings)
    recipient: str = Public("", "the initiator", kind="str", to="all")


@message("assistance-test/sketched", version=1)
class Sketched(Ranked):
    """A partner's columns along random directions that only it knows, without noise."""

    z: Released = PerRecord("n t", "columns along random directions", to="initiator")
    rank: int = Public("", "linearly independent columns", kind="int", low=1)
    known: int = Public("", "directions known after this", kind="int", low=0)


@message("assistance-test/noisy-sketched", version=1)
class NoisySketched(Sketched):
    """The same with noise of a stated price."""

    z: Released = Noised("n t", "the same with Laplace noise", to="initiator")
    scale: float = Public("", "scale of the noise", kind="float", low=0.0)
    loose: float = Public(
        "", "what the looser published bound calls the price", kind="float", low=0.0
    )


@message("assistance-test/test-request", version=2)
class TestRequest:
    """Test whether a partner's sketch explains the response beyond one's own columns."""

    settings: Settings = states(Settings)
    z: Released = PerRecord(
        "n t", "the partner's sketch", to="initiator", origin="assistance-test/sketched"
    )

    def lengths(self) -> dict[str, int]:
        """Sketches that are tested."""
        return {"draws": self.settings.n_draws}


@message("assistance-test/noisy-test-request", version=2)
class NoisyTestRequest(TestRequest):
    """The same for a sketch with noise."""

    z: Released = Noised(
        "n t", "the partner's sketch", to="initiator", origin="assistance-test/noisy-sketched"
    )
    scale: float = Public("", "scale of the noise", kind="float", to="all")


_TEST = part(
    "statistic, df, p by draw",
    parts={
        "statistic": part(("draws",), gaps=True),
        "df": part(("draws",), low=0, high=MAX_DIRECTIONS),
        "p": part(("draws",), gaps=True, low=0, high=1),
    },
)


@message("assistance-test/tested", version=4)
class Tested:
    """Statistics of the tests."""

    tests: Released = Model(
        "*by kind: statistic, df, p by draw", "test statistics", parts=dict.fromkeys(KINDS, _TEST)
    )
    facts: Released = Model(
        "*records, minority, reliability, clusters",
        "rows, rows of the rarer class per parameter, share of a sketch not noise, clusters",
        parts={
            "records": part(kind="int", low=1, high=_MOST_ROWS),
            "minority": part(gaps=True, low=0),
            "reliability": part(low=0, high=1),
            "clusters": part(kind="int", low=0, high=_MOST_ROWS),
        },
    )
    given: int = Public(
        "", "columns of the null model by which earlier partners' are known", kind="int", low=0
    )
    offset: bool = Public("", "whether the linear predictor has an offset", kind="bool")
    warnings: tuple[str, ...] = Public("w", "what to mind, in words", kind="str")


# --------------------------------------------------------------------------- the partner


_DRAWN_BY = ("n_directions", "n_draws", "epsilon", "geometry", "bound")


def _drawn_for(message: SketchRequest, data: SiteData, *, noisy: bool) -> str:
    """Names what is drawn once for the data, whoever asks and however the rows are scaled."""
    asked = {name: getattr(message.settings, name) for name in _DRAWN_BY}
    scaling = np.zeros((3, len(data.feature_names))) if data.scaling is None else data.scaling
    limits = [] if data.bounds is None else data.bounds * scaling[2] + scaling[1]
    facts = [
        data.content_hash,
        list(data.feature_names),
        asked if noisy else message.settings.n_columns,
        np.round(limits, 9).tolist() if noisy else [],
    ]
    return "sketch " + hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _price(message: SketchRequest) -> float:
    opendp()
    epsilon = message.settings.epsilon
    return float("nan") if epsilon is None else float(epsilon)


@step("sketch", once=True, keeps=partial(_drawn_for, noisy=False))
def sketch(
    message: SketchRequest, data: SiteData, state: State, site: SiteContext
) -> tuple[Sketched, State]:
    """Send the own columns along directions that nobody else knows; the same ones every time."""
    s = message.settings
    own = OwnColumns.of(data)
    own.require_variation()
    kept = site.kept
    if kept is None:
        # Directions act on columns of unit spread: none of them is hidden by its unit.
        spread = own.x.std(axis=0)
        unit = np.where(spread > 0, spread, 1.0)
        kept = {"directions": _directions(s, own, site) / unit[:, None]}
        site.keep(kept)
    directions = np.asarray(kept["directions"])
    known, rank, allowed = site.revealed(own.factor, own.names, directions)
    _require_room(allowed)
    z = projection(own.ready, directions, names=own.names)
    return Sketched(z=addressed(z, message.recipient), rank=rank, known=known), state


@step("sketch_noised", once=True, price=_price, keeps=partial(_drawn_for, noisy=True))
def sketch_noised(
    message: SketchRequest, data: SiteData, state: State, site: SiteContext
) -> tuple[NoisySketched, State]:
    """Send the same with noise; a row once drawn is never drawn again for the same price."""
    s = message.settings
    own = OwnColumns.of(data)
    own.require_variation()
    none = np.full((2, len(data.feature_names)), np.nan)
    bounds = none if data.bounds is None else np.asarray(data.bounds)
    names = [
        n for n, known in zip(data.feature_names, bounds.T, strict=True) if np.isnan(known).any()
    ]
    if names:
        public = "a column has no public limits, without which noise has no price"
        raise StudyError(
            f"{public}: give bounds of {', '.join(names)} in [columns] of the site file",
            public=public,
        )
    if data.scaling is not None and data.scaling[0].any():
        # A mean of the rows would move with any of them: one row then counts for all filled ones.
        raise StudyError.shared(
            "missing cells were filled with means of the rows, which has no price: fill them "
            "beforehand, or leave such rows out",
        )
    x, cut = assistance.to_box(data.features, bounds[0], bounds[1])
    if s.geometry == "ball":
        # the ball is about the middle of the box, in half widths
        x, beyond = assistance.clip_to_ball(2 * x - 1, s.bound)
        cut += beyond
    if cut:
        site.note(f"{cut} cells or rows lay beyond the public limits and were cut to them.")
    # directions that somebody could choose would be a question
    earlier = site.kept or {
        "directions": _directions(s, own, site),
        "rows": np.empty(0, dtype=np.int64),
        "z": np.empty((0, s.n_columns)),
    }
    directions, rows, drawn = (np.asarray(earlier[name]) for name in ("directions", "rows", "z"))
    epsilon = float(s.epsilon or 0.0)
    scale = assistance.noise_scale(directions, epsilon, geometry=s.geometry, bound=s.bound)
    # sensitivity = scale epsilon, the exact one of the directions drawn
    noise = Kept(Laplace(scale * epsilon, epsilon), data.rows, rows, drawn)
    # The unit box is in units of its own: what it reveals is counted in those of the table.
    widths = np.asarray((bounds[1] - bounds[0]) * own.scale)
    known, rank, allowed = site.revealed(own.factor, own.names, directions / widths[:, None])
    _require_room(allowed)
    z = projection(x, directions, names=own.names, mechanism=noise, units=widths)
    site.keep({"directions": directions, "rows": noise.all_rows, "z": noise.all_drawn})
    reply = NoisySketched(
        z=addressed(z, message.recipient),
        rank=rank,
        known=known,
        scale=float(scale),
        loose=float(
            assistance.loose_epsilon(directions, scale, geometry=s.geometry, bound=s.bound)
        ),
    )
    return reply, state


def _directions(s: Settings, own: OwnColumns, site: SiteContext) -> FloatArray:
    draws = [
        assistance.draw_directions(len(own.names), s.n_directions, site.secret_rng)
        for _ in range(s.n_draws)
    ]
    return np.concatenate(draws, axis=1)


def _require_room(allowed: bool) -> None:
    if not allowed:
        raise DisclosureError.shared(
            "the sketch would reveal more directions of the columns than the policy allows: ask "
            "for fewer directions, or let the steward raise max_revealed_rank",
        )


# --------------------------------------------------------------------------- the initiator


@step("test", once="z")
def test(
    message: TestRequest, data: SiteData, state: State, site: SiteContext
) -> tuple[Tested, State]:
    """Test a sketch, with noise or without."""
    s, z = message.settings, message.z.value
    fam = family(s.family, power=s.power)
    y, known = phases.response_of(data, fam)
    if z.shape != (data.n_rows, s.n_columns):
        raise DataError.shared("the sketch has other rows or columns than were asked for")
    given, more = _given(data, site)
    rows, least = np.flatnonzero(known), site.limits.min_records
    if s.subsample is not None and s.subsample < len(rows):
        drawn = phases.digest_order(data, rows, "subsample")
        if least == 1:
            drawn = rows[stream(0, "subsample", data.n_rows).permutation(len(rows))]
        rows = np.sort(drawn[: phases.whole_groups(s.subsample, len(rows), least)])
    clusters = phases.clusters_of(data)
    found = [
        assistance.sketch_test(
            data.features[rows],
            z[rows, d * s.n_directions : (d + 1) * s.n_directions],
            y[rows],
            fam,
            weights=None if data.weight is None else data.weight[rows],
            penalty=Penalty(s.alpha, s.l1_ratio) if s.alpha else None,
            given=given[rows],
            cluster=None if clusters is None else clusters[rows],
            offset=None if data.offset is None else data.offset[rows],
        )
        for d in range(s.n_draws)
    ]
    df = np.array([f.df for f in found], dtype=float)
    tests = {}
    for kind in KINDS:
        name = kind.replace("-", "_")
        statistic = np.array([getattr(f, name) for f in found])
        p = np.array([getattr(f, f"p_{name}") for f in found])
        tests[kind] = {"statistic": statistic, "df": df, "p": p}
    # variance of each column of the sketch beyond the initiator's own columns
    beyond = np.diag(assistance.residual_covariance(data.features[rows], z[rows]))
    scale = float(getattr(message, "scale", 0.0))
    # To whole numbers: a count of one class, told for many sets of rows, would be the response.
    facts = {
        "records": len(rows),
        "minority": float(np.floor(found[0].minority_per_parameter)),
        "reliability": assistance.reliability(beyond, scale),
        "clusters": 0 if clusters is None else len(np.unique(clusters[rows])),
    }
    reply = Tested(
        tests=model(tests, kind="figures", n_records=len(rows)),
        facts=model(facts, kind="figures", n_records=len(rows)),
        given=given.shape[1],
        offset=data.offset is not None,
        warnings=tuple(dict.fromkeys([*more, *(w for f in found for w in f.warnings)])),
    )
    return reply, state


def _given(data: SiteData, site: SiteContext) -> tuple[FloatArray, list[str]]:
    """What is known of the partners of the run that this one follows (n, q), and what to mind.

    Their part of the fit is one combination of what is known, and the best one for the response.
    In the direction of a further partner's columns another one may be better, and it would seem of
    use, or hide that it is: so all of them are columns of the null model.
    """
    left = site.followed
    if left is None:
        return np.empty((data.n_rows, 0)), []
    if left.content_hash != data.content_hash or "partners_part" not in left.values:
        raise DataError.shared(
            "the run that this one follows was on another table of the initiator"
        )
    place = {int(row): i for i, row in enumerate(left.rows)}
    if not {int(row) for row in data.rows} <= place.keys():
        raise DataError.shared("the run that this one follows did not have all of these rows")
    chosen = [place[int(row)] for row in data.rows]
    known = np.asarray(left.predictor.known)
    if known.shape[1] + data.features.shape[1] < data.n_rows // MIN_ROWS:
        return known[chosen], []
    words = "too many directions of the earlier partners are known: the null has their fit alone"
    return np.asarray(left.values["partners_part"])[chosen][:, None], [words]


@step("test_noised", once="z")
def test_noised(
    message: NoisyTestRequest, data: SiteData, state: State, site: SiteContext
) -> tuple[Tested, State]:
    """Test a sketch with noise."""
    reply, state = test.function(message, data, state, site)
    return reply, state


STEPS = (sketch, sketch_noised, test, test_noised)
