"""Steps of the assistance test: a partner draws its sketch, the initiator tests it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import Literal

import numpy as np

from consilience.arrays import FloatArray
from consilience.assisted.kernels import assistance
from consilience.assisted.kernels.glm import Penalty, family
from consilience.assisted.phases.own_columns import OwnColumns
from consilience.assisted.phases.own_order import own_order, whole_groups
from consilience.assisted.phases.response import response_of
from consilience.assisted.phases.sticky import Kept
from consilience.assisted.test.messages import (
    KINDS,
    NoisySketched,
    NoisyTestRequest,
    Settings,
    Sketched,
    SketchRequest,
    Tested,
    TestRequest,
)
from consilience.exceptions import DataError, DisclosureError, StudyError
from consilience.numerics.random import stream
from consilience.protocol.method import SiteContext, SiteData, State, step
from consilience.wire.disclosure import addressed, model, projection

# --------------------------------------------------------------------------- the partner


def _drawn_for(settings: Settings, data: SiteData, *, noisy: bool) -> str:
    """Names what is drawn once for the data, whoever asks and however the rows are scaled."""
    asked = {k: v for k, v in asdict(settings).items() if k in _DRAWN_BY}
    scaling = np.zeros((3, len(data.feature_names))) if data.scaling is None else data.scaling
    limits = [] if data.bounds is None else data.bounds * scaling[2] + scaling[1]
    facts = [
        data.content_hash,
        list(data.feature_names),
        asked if noisy else settings.n_columns,
        np.round(limits, 9).tolist() if noisy else [],
    ]
    return "sketch " + hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


_DRAWN_BY = ("n_directions", "n_draws", "epsilon", "geometry", "bound")


def _plain_name(message: SketchRequest, data: SiteData) -> str:
    return _drawn_for(Settings.from_json(message.settings), data, noisy=False)


def _noisy_name(message: SketchRequest, data: SiteData) -> str:
    return _drawn_for(Settings.from_json(message.settings), data, noisy=True)


def _price(message: SketchRequest) -> float:
    from consilience.assisted.kernels.mechanisms import require_opendp

    require_opendp()
    epsilon = Settings.from_json(message.settings).epsilon
    return float("nan") if epsilon is None else float(epsilon)


@step("sketch", once=True, keeps=_plain_name)
def sketch(
    message: SketchRequest, data: SiteData, state: State, site: SiteContext
) -> tuple[Sketched, State]:
    """Send the own columns along directions that nobody else knows; the same ones every time."""
    s = Settings.from_json(message.settings)
    own = OwnColumns.of(data)
    _require_columns(own)
    kept = site.kept
    if kept is None:
        # Directions act on columns of unit spread: none of them is hidden by its unit.
        kept = {"directions": _directions(s, own, site) / _spread(own.x)[:, None]}
        site.keep(kept)
    directions = np.asarray(kept["directions"])
    known, rank, allowed = site.revealed(own.factor, own.names, directions)
    _require_room(allowed)
    z = projection(own.ready, directions, names=own.names)
    return Sketched(z=addressed(z, message.recipient), rank=rank, known=known), state


@step("sketch_noised", once=True, price=_price, keeps=_noisy_name)
def sketch_noised(
    message: SketchRequest, data: SiteData, state: State, site: SiteContext
) -> tuple[NoisySketched, State]:
    """Send the same with noise; a row once drawn is never drawn again for the same price."""
    from consilience.assisted.kernels.mechanisms import Laplace

    s = Settings.from_json(message.settings)
    own = OwnColumns.of(data)
    _require_columns(own)
    x = _bounded(data, s, site)
    earlier = site.kept
    if earlier is None:
        directions = _directions(s, own, site)
        rows, drawn = np.empty(0, dtype=np.int64), np.empty((0, s.n_columns))
    else:
        directions = np.asarray(earlier["directions"])
        rows, drawn = np.asarray(earlier["rows"]), np.asarray(earlier["z"])
    epsilon = float(s.epsilon or 0.0)
    shape: Literal["box", "ball"] = "ball" if s.geometry == "ball" else "box"
    scale = assistance.noise_scale(directions, epsilon, geometry=shape, bound=s.bound)
    noise = Kept(Laplace(scale * epsilon, epsilon), data.rows, rows, drawn)
    # The unit box is in units of its own: what it reveals is counted in those of the table.
    widths = _widths(data)
    known, rank, allowed = site.revealed(own.factor, own.names, directions / widths[:, None])
    _require_room(allowed)
    z = projection(x, directions, names=own.names, mechanism=noise, units=widths)
    site.keep({"directions": directions, "rows": noise.all_rows, "z": noise.all_drawn})
    reply = NoisySketched(
        z=addressed(z, message.recipient),
        rank=rank,
        known=known,
        scale=float(scale),
        loose=float(assistance.loose_epsilon(directions, scale, geometry=shape, bound=s.bound)),
    )
    return reply, state


def _directions(s: Settings, own: OwnColumns, site: SiteContext) -> FloatArray:
    draws = [
        assistance.draw_directions(len(own.names), s.n_directions, site.secret_rng)
        for _ in range(s.n_draws)
    ]
    return np.concatenate(draws, axis=1)


def _spread(x: FloatArray) -> FloatArray:
    spread = x.std(axis=0)
    return np.where(spread > 0, spread, 1.0)


def _require_columns(own: OwnColumns) -> None:
    if not np.any(own.factor):
        sentence = "the partner's columns are constant over the matched rows: they cannot help"
        raise DataError(sentence, public=sentence)


def _require_room(allowed: bool) -> None:
    if not allowed:
        sentence = (
            "the sketch would reveal more directions of the columns than the policy allows: ask "
            "for fewer directions, or let the steward raise max_revealed_rank"
        )
        raise DisclosureError(sentence, public=sentence)


def _widths(data: SiteData) -> FloatArray:
    """Width of each column's public limits, in the table's units."""
    limits = np.asarray(data.bounds)
    scale = np.ones(limits.shape[1]) if data.scaling is None else data.scaling[2]
    return np.asarray((limits[1] - limits[0]) * scale)


def _bounded(data: SiteData, s: Settings, site: SiteContext) -> FloatArray:
    """Columns in the unit box of their public limits, or cut to a ball."""
    if data.bounds is None or np.isnan(data.bounds).any():
        names = [
            name
            for j, name in enumerate(data.feature_names)
            if data.bounds is None or np.isnan(data.bounds[:, j]).any()
        ]
        public = "a column has no public limits, without which noise has no price"
        raise StudyError(
            f"{public}: give bounds of {', '.join(names)} in [columns] of the site file",
            public=public,
        )
    if data.scaling is not None and data.scaling[0].any():
        # A mean of the rows would move with any of them: one row then counts for all filled ones.
        sentence = (
            "missing cells were filled with means of the rows, which has no price: fill them "
            "beforehand, or leave such rows out"
        )
        raise StudyError(sentence, public=sentence)
    x, cut = assistance.to_box(data.features, data.bounds[0], data.bounds[1])
    if s.geometry == "ball":
        x, beyond = assistance.clip_to_ball(2 * x - 1, s.bound)
        cut += beyond
    if cut:
        site.note(f"{cut} cells or rows lay beyond the public limits and were cut to them.")
    return x


# --------------------------------------------------------------------------- the initiator


@step("test", once="z")
def test(
    message: TestRequest, data: SiteData, state: State, site: SiteContext
) -> tuple[Tested, State]:
    """Test a sketch without noise."""
    return _tested(message.settings, message.z.value, 0.0, data, site), state


@step("test_noised", once="z")
def test_noised(
    message: NoisyTestRequest, data: SiteData, state: State, site: SiteContext
) -> tuple[Tested, State]:
    """Test a sketch with noise."""
    return _tested(message.settings, message.z.value, message.scale, data, site), state


def _tested(
    settings: str, z: FloatArray, scale: float, data: SiteData, site: SiteContext
) -> Tested:
    s = Settings.from_json(settings)
    fam = family(s.family, power=s.power)
    response = response_of(data, fam)
    if z.shape != (data.n_rows, s.n_columns):
        sentence = "the sketch has other rows or columns than were asked for"
        raise DataError(sentence, public=sentence)
    given = _given(data, site)
    rows = np.flatnonzero(response.known)
    if s.subsample is not None and s.subsample < len(rows):
        if site.limits.min_records == 1:
            drawn = rows[stream(0, "subsample", data.n_rows).permutation(len(rows))]
        else:
            drawn = own_order(data, rows, "subsample")
        rows = np.sort(drawn[: whole_groups(s.subsample, len(rows), site.limits.min_records)])
    found = [
        assistance.sketch_test(
            data.features[rows],
            z[rows, d * s.n_directions : (d + 1) * s.n_directions],
            response.y[rows],
            fam,
            weights=None if data.weight is None else data.weight[rows],
            penalty=Penalty(s.alpha, s.l1_ratio) if s.alpha else None,
            null_eta=None if given is None else given[rows],
        )
        for d in range(s.n_draws)
    ]
    tests = {
        kind: {
            "statistic": np.array([getattr(f, _PLACE[kind]) for f in found]),
            "df": np.array([f.df for f in found], dtype=float),
            "p": np.array([getattr(f, f"p_{_PLACE[kind]}") for f in found]),
        }
        for kind in KINDS
    }
    reliable = [
        assistance.reliability(_residual_variance(data.features[rows], z[rows, j]), scale)
        for j in range(z.shape[1])
    ]
    # To whole numbers: a count of one class, told for many sets of rows, would be the response.
    facts = {
        "records": len(rows),
        "minority": float(np.floor(found[0].minority_per_parameter)),
        "reliability": float(np.mean(reliable)),
    }
    return Tested(
        tests=model(tests, kind="figures", n_records=len(rows)),
        facts=model(facts, kind="figures", n_records=len(rows)),
        given=given is not None,
        warnings=tuple(dict.fromkeys(w for f in found for w in f.warnings)),
    )


_PLACE = {"score": "score", "wald": "wald", "wald-hc3": "wald_hc3", "lr": "lr"}


def _residual_variance(x: FloatArray, z: FloatArray) -> float:
    """Variance of a column of a sketch beyond one's own columns."""
    design = np.column_stack([np.ones(len(x)), x])
    rest = z - design @ np.linalg.lstsq(design, z, rcond=None)[0]
    return float(rest @ rest / max(len(x) - design.shape[1], 1))


def _given(data: SiteData, site: SiteContext) -> FloatArray | None:
    """What the partners of the run that this one follows contribute, row by row."""
    if site.followed is None:
        return None
    left = site.followed
    if left.content_hash != data.content_hash or "partners_part" not in left.values:
        sentence = "the run that this one follows was on another table of the initiator"
        raise DataError(sentence, public=sentence)
    place = {int(row): i for i, row in enumerate(left.rows)}
    try:
        index = [place[int(row)] for row in data.rows]
    except KeyError:
        sentence = "the run that this one follows did not have all of these rows"
        raise DataError(sentence, public=sentence) from None
    return np.asarray(left.values["partners_part"][index])


STEPS = (sketch, sketch_noised, test, test_noised)
