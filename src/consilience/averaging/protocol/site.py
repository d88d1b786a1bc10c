"""What a site does: fit, refit towards the average, judge averages on rows that it holds out.

Every fit is made twice where rows are held out: on all rows, and on the others only. The two differ
by the held-out rows, so what the gate asks of a fit's rows it asks of these too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.averaging.estimators.proximal_fit import Learner
from consilience.averaging.protocol.messages import (
    MAX_ROUNDS,
    Accepted,
    Conclude,
    Concluded,
    Fit,
    Fitted,
    Judge,
    Judged,
    Offer,
    Settings,
    Use,
    Used,
)
from consilience.exceptions import DataError, DisclosureError, ParameterError, ProtocolError
from consilience.learners.candidates import build, record_losses
from consilience.learners.collaborative_predictor import CollaborativePredictor
from consilience.learners.foreign_models import predict_all, whatever_the_rows_are, within_reach
from consilience.numerics.own_rows import own_rows_offered, row_digests
from consilience.numerics.random import stream
from consilience.parameters import plain
from consilience.protocol.method import SiteContext, SiteData, State, step
from consilience.protocol.phases import holdout
from consilience.protocol.phases.holdout import held_out
from consilience.wire import disclosure, estimators
from consilience.wire.codec import digest, pack, unpack
from consilience.wire.disclosure import Limits, Released, aggregate, count, weighted_means
from consilience.wire.estimators.archive import packages_of

JUDGED_PER_ROW = 20
"""Averages that a site judges at most for each of its held-out rows (but 200 always)."""
MOST_FITS = 2 * (MAX_ROUNDS + 1)
"""Fits of a run for each penalty, those of replies that were lost included."""
MOST_REFERENCES = 20
"""Times that a site takes reference rows in a run: once, unless its replies are lost."""
TOO_MANY = "more questions on the same rows than a site answers"
_ROUNDING = 1e-9
_CONSTANT = ("skops", "sklearn.dummy")
_UNCOUNTED = ("HistGradientBoosting", "Stacking")


# --------------------------------------------------------------------------- rows


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a site that take part, and which of them are held out.

    Attributes
    ----------
    s : Settings
    limits : Limits
    x : (n, p) array
    y : (n,) array
    weight : (n,) array or None
    kept, held : int arrays
        Rows that are fitted when some are held out, and those.
    seed : int
    thin : int array
        Columns that were made constant.
    few : int array
        Columns in which few of the held-out rows, or of the others, differ: constant in the fits
        that do not see the held-out rows, so that two fits do not differ by these few.
    """

    s: Settings
    limits: Limits
    x: FloatArray
    y: FloatArray
    weight: FloatArray | None
    kept: IntArray
    held: IntArray
    seed: int
    thin: IntArray
    few: IntArray

    def of(self, trajectory: int) -> tuple[FloatArray, FloatArray, FloatArray | None]:
        """Rows of a trajectory: all (0), or all but the held-out ones (1)."""
        if trajectory == 0 or not len(self.held):
            return self.x, self.y, self.weight
        weight = None if self.weight is None else self.weight[self.kept]
        return holdout.made_constant(self.x, self.few)[self.kept], self.y[self.kept], weight

    def evidence(self, trajectory: int) -> int:
        """Rows on which a released fit rests: those of the two fits' difference where fewer."""
        if not len(self.held):
            return len(self.x)
        return min(len(self.kept), len(self.held)) if trajectory == 0 else len(self.kept)

    @property
    def held_weight(self) -> FloatArray | None:
        """Weights of the held-out rows."""
        return None if self.weight is None else self.weight[self.held]

    def means(self, values: FloatArray, *, differences: bool = True) -> tuple[Released, Released]:
        """Means of held-out losses or of their differences, with squared errors.

        They are rounded up or down by secret numbers that follow from the rows and the question,
        which is a column. A difference that few rows make is told as none: that it was withheld
        would tell of them.
        """
        weight, limits = self.held_weight, self.limits
        h = None if weight is None else weight.reshape(-1, *(1,) * (values.ndim - 1))
        if limits.min_records <= 1:
            found = weighted_means(values, h, limits=limits)
            return found.mean, found.variance
        chance = np.empty((2, *values.shape[1:]))
        for i in np.ndindex(values.shape[1:]):
            # To single precision, so that another order of the same sums is the same question.
            asked = np.ascontiguousarray(values[(slice(None), *i)], dtype=np.float32)
            chance[(slice(None), *i)] = stream(
                self.seed, "rounding", digest(asked.tobytes())
            ).random(2)
        found = weighted_means(values, h, limits=limits, chance=chance)
        few = np.isnan(found.mean.value) & np.isfinite(values).all(axis=0)
        if differences and few.any():
            found = weighted_means(np.where(few, 0.0, values), h, limits=limits, chance=chance)
        return found.mean, found.variance


def fitted_and_held(
    data: SiteData, s: Settings, site: SiteContext, state: State | None = None
) -> Rows:
    """Take the rows that count, and hold some of them out; once for all rounds of a run.

    Parameters
    ----------
    state : dict, optional
        What the offer found: the seed of the draws and the thin columns.

    Raises
    ------
    DataError
        No response, levels that are not the declared ones, or rows that cannot be used.
    """
    if state is None:
        return _split(data, s, site, None)
    drawn = (np.asarray(state[name]).tobytes() for name in ("thin", "few"))
    asked = (s, site.limits, int(state["seed"]), *drawn)
    if data not in _ROWS or _ROWS[data][0] != asked:
        _ROWS[data] = asked, _split(data, s, site, state)
    return _ROWS[data][1]


_ROWS: WeakKeyDictionary[SiteData, tuple[Any, Rows]] = WeakKeyDictionary()


def _split(data: SiteData, s: Settings, site: SiteContext, state: State | None) -> Rows:
    y, used = _used(data, s, site.limits)
    at = np.flatnonzero(used)
    if not len(at):
        raise DataError("no row of the site can take part")
    x, weight = data.features, data.weight
    if not used.all():
        x, y = x[at], y[at]
        weight = None if weight is None else weight[at]
    if state is None:
        seed = holdout.drawing_seed(data, site, "reference averaging")
        x, thin = holdout.without_thin(x, site.limits)
    else:
        # What the offer found: the same rows and columns in all rounds.
        seed, thin = int(state["seed"]), np.asarray(state["thin"])
        x = holdout.made_constant(x, thin)
    held = np.searchsorted(at, held_rows(data, s, site.limits, seed))
    kept = np.setdiff1d(np.arange(len(y)), held)
    if state is None:
        parts = (x[part] for part in (kept, held) if len(held))
        found = [holdout.without_thin(part, site.limits)[1] for part in parts]
        few = np.unique(np.concatenate([np.empty(0, dtype=np.int64), *found]))
    else:
        few = np.asarray(state["few"])
    # For all rounds: an estimator that scales in place gets copies of its own.
    x, y = x.view(), y.view()
    x.flags.writeable = y.flags.writeable = False
    return Rows(s, site.limits, x, y, weight, kept, held, seed, thin, few)


def held_rows(data: SiteData, s: Settings, limits: Limits, seed: int = 0) -> IntArray:
    """Positions of the rows that are held out; none where either part would be too small."""
    y, used = _used(data, s, limits)
    at = np.flatnonzero(used)
    cells = np.where(used, y if s.levels else 0, -1).astype(np.int64)
    # Where no record is protected this order decides; else the table's own deal.
    order = at[stream(seed, "held out").permutation(len(at))]
    (held,) = held_out(data, cells, [s.holdout], limits, order=order)
    least = limits.min_records
    if least > 1:
        # As many rows as the rule for linear models asks of the parameters of a fit.
        p = data.features.shape[1]
        least = max(least, 2 * (p + 1) * (len(s.levels) if len(s.levels) > 2 else 1))
    return held if min(len(held), len(at) - len(held)) >= least else held[:0]


def _used(data: SiteData, s: Settings, limits: Limits) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Response as numbers (positions of levels, where it has them), and which rows take part."""
    if data.target is None:
        raise DataError("the study names no target column")
    used = np.ones(data.n_rows, dtype=bool) if data.weight is None else data.weight > 0
    if not s.levels:
        return np.asarray(data.target, dtype=float), used
    y = holdout.class_codes(data, s.levels).astype(float)
    used[used] = holdout.with_common_levels(y[used], len(s.levels), limits)
    return y, used


def n_judged(message: Fit | Judge) -> int:
    """Averages that a message has judged: each is one question on the rows, of however many models.

    What is charged to ``max_models_per_row``.
    """
    return len(message.judged)


def _tally(message: Fit | Judge, data: SiteData, limits: Limits) -> dict[str, tuple[int, int]]:
    """What is counted over a run: fits, sets of reference rows, averages that are judged."""
    if limits.min_records <= 1:
        return {}
    s = message.settings
    # Without held-out rows a site judges nothing.
    held = len(held_rows(data, s, limits)) if message.judged else 0
    most = max(200, JUDGED_PER_ROW * held)
    found = {"judged averages": (len(message.judged) if held else 0, most)}
    if isinstance(message, Fit):
        found["fits"] = (len(message.tracks), MOST_FITS * s.n_tracks)
        found["sets of reference rows"] = (int(len(message.reference.value) > 0), MOST_REFERENCES)
    return found


# --------------------------------------------------------------------------- offer


@step("offer", once=True)
def offer(
    message: Offer, data: SiteData, state: State, site: SiteContext
) -> tuple[Accepted, State]:
    """Say what the site brings, and whether the reference rows are its own.

    Learners whose fits would tell of single rows are refused.
    """
    s = message.settings
    made = _built(s.estimator, s.task, site.limits.min_records, 0)
    protected = site.limits.min_records > 1
    if protected:
        last = made.steps[-1][1] if hasattr(made, "steps") else made
        fault = estimators.row_values(last)
        if estimators.is_memorising(estimators.type_name(made)):
            fault = f"a {type(last).__name__} carries training rows"
        if fault is not None:
            raise DisclosureError.shared(f"this site does not fit such an estimator: {fault}")
    rows = fitted_and_held(data, s, site)
    own = False
    if protected and len(message.digests):
        digests = row_digests(data.features, message.salt)
        own = own_rows_offered(
            digests, np.asarray(message.digests), least_own_rows(data, site.limits)
        )
    weights = np.full((len(rows.y), 2), np.nan)  # of all rows, and of those not held out
    for t in range(2):
        _, y, weight = rows.of(t)
        weights[: len(y), t] = 1.0 if weight is None else weight
    # Their sum is trace(X'X): it sets the units of rho.
    squares = (rows.x**2).sum(axis=1) * weights[:, 0]
    reply = Accepted(
        own_rows=bool(own),
        n=count(len(rows.y)),
        held=count(len(rows.held)),
        weight=aggregate(weights),
        square=aggregate(squares[:, None]).withhold_unsafe(site.limits),
    )
    found = {"seed": rows.seed, "thin": rows.thin, "few": rows.few}
    return reply, {**found, "settings": plain(s)}


def least_own_rows(data: SiteData, limits: Limits) -> int:
    """How many own rows make an offer one of own rows: `min_records`, or by a secret some more.

    Were it known, who knows one row fewer would learn of a guess beside them. It is the same in
    all runs and for all columns, since of many numbers one is the smallest.
    """
    (place,) = holdout.uniform(replace(data, rows=np.arange(1)), "least own rows")
    return limits.min_records + int(place * limits.min_records)


@lru_cache(maxsize=512)
def _built(text: str, task: Any, min_records: int, seed: int) -> Any:
    """Unfitted estimator of a text for a site; learners clone it, so that rounds can share it."""
    return build(text, task, min_records=min_records, seed=seed)


@lru_cache(maxsize=512)
def _uncounted(*asked: Any) -> str:
    """Part of an estimator whose leaves do not tell own rows from pseudo-rows; empty if none."""
    made = _built(*asked)
    names = (type(part).__name__ for part in (made, *made.get_params(deep=True).values()))
    return next((name for name in names if name.startswith(_UNCOUNTED)), "")


def _learners(
    data: SiteData, asked: Any, s: Settings, reference: FloatArray, total: float
) -> list[Learner]:
    """One learner a track, without a grid the estimator as it is: the same ones in all rounds."""
    about, rows, learners = _LEARNERS.get(data, (None, reference, []))
    if about != (s, asked, total) or not (rows is reference or np.array_equal(rows, reference)):
        base = Learner(
            _built(*asked),
            task=s.task,
            n_levels=s.n_outputs,
            reference=reference,
            convention=s.convention,
            n_total=total,
            seed=asked[-1],
        )
        learners = [base.with_penalty(penalty) for penalty in s.penalties] or [base]
    _LEARNERS[data] = (s, asked, total), reference, learners
    return learners


_LEARNERS: WeakKeyDictionary[SiteData, tuple[Any, FloatArray, list[Learner]]] = WeakKeyDictionary()


# --------------------------------------------------------------------------- fit


@step("fit", tally=_tally, tries=n_judged)
def fit(message: Fit, data: SiteData, state: State, site: SiteContext) -> tuple[Fitted, State]:
    """Judge the average of the last round, then refit towards it."""
    s = _settings(message.settings, state, message.tracks, message.judged)
    if not 0 <= message.round <= MAX_ROUNDS:
        raise DisclosureError("more rounds than a site answers for", public=TOO_MANY)
    if not message.rho >= 0:
        raise ProtocolError("the weight of pseudo-rows is not negative")
    rows = fitted_and_held(data, s, site, state)
    reference = np.asarray(message.reference.value, dtype=float)
    if not len(reference):
        reference = np.asarray(state.get("reference", np.empty((0, 0))))
    # Another set would be another question to the same rows.
    elif "reference" in state and not np.array_equal(reference, state["reference"]):
        raise ProtocolError("a run has one set of reference rows")
    if reference.shape[1:] != (data.features.shape[1],) or not len(reference):
        raise ProtocolError("a fit needs reference rows of the study's columns")
    target = np.asarray(message.target.value, dtype=float)
    wanted = (s.trajectories, len(message.tracks), len(reference), s.n_outputs)
    if target.size and target.shape != wanted:
        raise ProtocolError("the average is none of these tracks at these reference rows")
    # What the estimator draws is the same in every round: otherwise it would never come to rest.
    draws = rows.seed % (1 << 31)
    asked = (s.estimator, s.task, site.limits.min_records, draws)
    uncounted = _uncounted(*asked)
    if target.size and site.limits.min_records > 1 and uncounted:
        # In their leaves own rows and pseudo-rows would be counted together.
        raise DisclosureError.shared(
            f"this site refits no {uncounted}: its leaves do not tell own rows from others"
        )
    learners = _learners(data, asked, s, reference, float(message.total.value))
    with _told(learners[0].name):
        fits, kept = _refits(learners, message, target, rows, state)
        state = {**state, **kept}
        probe = np.empty(0)
        if s.guard and message.round == 0:
            rng = stream(rows.seed, "probe")
            probe = np.array(learners[0].probe(rows.x, rows.y, weight=rows.weight, rng=rng))
    # After the fits, since the form of one's own says which forms of others can be averaged.
    losses, errors, state = _judged(message, rows, state, message.round - 1)
    reply = Fitted(
        fits=disclosure.bundle(fits),
        probe=disclosure.model(probe, kind="summary", n_records=len(rows.y)),
        losses=losses,
        errors=errors,
    )
    return reply, {**state, "reference": reference}


def _settings(s: Settings, state: State, *asked: Sequence[int]) -> Settings:
    """Settings of the offer, which a later question repeats; it names each penalty once.

    Raises
    ------
    DisclosureError
    """
    if plain(s) != state.get("settings"):
        raise ProtocolError("a fit goes on with the settings of the offer")
    for tracks in asked:
        if len(set(tracks)) < len(tracks) or not set(tracks) <= set(range(s.n_tracks)):
            raise DisclosureError("a penalty twice, or one that is not there", public=TOO_MANY)
    return s


def _refits(
    learners: Sequence[Learner], message: Fit, target: FloatArray, rows: Rows, state: State
) -> tuple[list[Released], State]:
    """Fits of each set of rows for each track, and what is kept of them."""
    s, p = rows.s, rows.x.shape[1]
    classes = range(len(s.levels)) if s.levels else None
    starts, kept, own = (dict(state.get(name, {})) for name in ("starts", "kept", "own"))
    made: list[Released] = []
    for t in range(s.trajectories):
        if t == 1 and not len(rows.held):
            made += made  # nothing is held out: both sets of rows are the same
            break
        x, y, weight = rows.of(t)
        for i, track in enumerate(message.tracks):
            learner, name = learners[track], f"{t}.{track}"
            toward = target[t, i] if target.size else None
            start = starts.get(name)
            fitted = learner.fit(x, y, weight=weight, target=toward, rho=message.rho, start=start)
            next_start = learner.start_of(fitted)
            if next_start is not None:
                starts[name] = dict(next_start)
            leaves = estimators.leaves(fitted, x)
            # As it is kept and as it may leave, with what the gate asks of it.
            facts = {
                "model": estimators.encode(fitted, n_features=p, classes=classes),
                "type": estimators.type_name(fitted),
                "leaves": np.empty(0, dtype=np.int64) if leaves is None else leaves,
                "trees": leaves is not None,
                "n": rows.evidence(t),
            }
            if t == 0:
                earlier = kept.get(str(track), ())
                # Fits of all rows wait here until a round is chosen, packed once for all records.
                packed = {"facts": pack(facts)}
                kept[str(track)] = _with_last(earlier, message.round, packed, s.keep)
            elif message.round == 0:
                # The site's own fit, to be compared with what is kept.
                at_held = learner.predict(fitted, rows.x[rows.held])
                own[str(track)] = record_losses(s.loss, rows.y[rows.held], at_held)
            value: dict[str, Any] = {"at": learner.at_reference(fitted)}
            if s.holdout > 0 and (t == 1 or not len(rows.held)):
                value["model"] = facts["model"]
            made.append(_as_estimator(facts, value))
    return made, {"starts": starts, "kept": kept, "own": own}


@contextmanager
def _told(name: str) -> Iterator[None]:
    """Say what is wrong with a learner, in words without a value of a row.

    What is wrong with its settings is of the study; a solver's own words may show the rows.
    """
    try:
        yield
    except ParameterError as error:
        raise ParameterError.shared(str(error)) from error
    except (DataError, ValueError, ArithmeticError, np.linalg.LinAlgError) as error:
        raise DataError(
            f"{name} cannot be fitted: {error}",
            public=f"{name} cannot be fitted here, or predicts values that are not finite: "
            "check its settings, and scale the columns; the site's own log says which",
        ) from error


def _as_estimator(facts: dict[str, Any], value: Any) -> Released:
    """A model, or its predictions at known points, under the rule for models."""
    return disclosure.estimator(
        value,
        type_name=facts["type"],
        n_records=int(facts["n"]),
        n_parameters=estimators.n_parameters(facts["model"]),
        leaves=np.asarray(facts["leaves"]) if facts["trees"] else None,
    )


def _with_last(
    known: Sequence[dict[str, Any]], round_: int, facts: dict[str, Any], keep: int
) -> tuple[dict[str, Any], ...]:
    """The first entry and the last few."""
    entries = (*known, {"round": round_, **facts})
    return entries if len(entries) <= keep + 1 else (entries[0], *entries[-keep:])


def _facts_of(entry: dict[str, Any]) -> dict[str, Any]:
    """What is kept of a fit."""
    return dict(unpack(entry["facts"], max_bytes=1 << 40))


# --------------------------------------------------------------------------- judge


@step("judge", tally=_tally, tries=n_judged)
def judge(message: Judge, data: SiteData, state: State, site: SiteContext) -> tuple[Judged, State]:
    """Judge the average of a round."""
    s = _settings(message.settings, state, message.judged)
    rows = fitted_and_held(data, s, site, state)
    losses, errors, state = _judged(message, rows, state, message.round)
    return Judged(losses=losses, errors=errors), state


def _judged(
    message: Fit | Judge, rows: Rows, state: State, round_: int
) -> tuple[Released, Released, State]:
    """Held-out losses of averages of models, beside those of the round before and of the first."""
    tracks, own = message.judged, next((e[0] for e in state.get("kept", {}).values()), None)
    if not tracks or not len(rows.held) or own is None:
        return _gaps(len(tracks), 2), _gaps(len(tracks), 2), state
    known = dict(state.get("judged", {}))
    if rows.limits.min_records > 1:
        _check_forms(message.models.value, _facts_of(own)["model"], rows.x.shape[1], rows.s)
    columns = []
    for track, models in zip(tracks, message.models.value, strict=True):
        losses = _loss_of_average(models, message.shares.value, rows)
        earlier = known.get(str(track), ())
        if round_ > 0 and not earlier:  # this site was not there to judge plain averaging
            columns.append(np.full((len(losses), 2), np.nan))
            continue
        # Tracks are compared by round 0 of the first one.
        base = known.get("0", ({"losses": losses},))[0]["losses"]
        before = earlier[-1]["losses"] if earlier else base
        first = earlier[0]["losses"] if earlier else base
        beside = np.stack([_beyond(losses, before), _beyond(losses, first)], axis=1)
        columns.append(_without_few(beside, rows.held_weight, rows.limits))
        known[str(track)] = _with_last(earlier, round_, {"losses": losses}, rows.s.keep)
    told = rows.means(np.stack(columns, axis=1))
    return *told, {**state, "judged": known}


def _check_forms(
    by_track: Sequence[Sequence[Any]], own: dict[str, Any], p: int, s: Settings
) -> None:
    """Refuse models that the study's learner does not make: trees are boxes around rows.

    Of classes the link may be another one, where a site has seen but two of them.

    Raises
    ------
    ProtocolError
    """
    wanted = _form(own, s)
    for one in (one for models in by_track for one in models):
        fault = estimators.check(one, n_features=p, n_outputs=s.n_outputs)
        # of whom one level is left says constants, and cannot tell what the others' models are
        if fault is None and (wanted == _CONSTANT or _form(one, s) in (wanted, _CONSTANT)):
            continue
        sentence = f"a model of the average: {fault or 'not of the form that the learner has'}"
        raise ProtocolError.shared(sentence)


def _form(one: dict[str, Any], s: Settings) -> tuple[Any, ...]:
    if one["form"] == "skops":
        return (one["form"], *packages_of(one["data"]))
    return one["form"], None if s.levels else one["link"]


def _few(n: int, limits: Limits) -> int:
    """Rows that are few among n: those of the policy, at most a third."""
    return min(limits.min_records, n // 3)


def _without_few(differences: FloatArray, weight: FloatArray | None, limits: Limits) -> FloatArray:
    """Differences of losses, cut so that no few rows make them.

    Two averages can be made up such that they differ at one row. So where records are protected a
    row counts by no more than the `_few`-th largest one does: if the averages differ at fewer rows,
    they do not differ at all.
    """
    if limits.min_records <= 1:
        return differences
    h = np.ones((len(differences), 1)) if weight is None else weight[:, None]
    size = np.abs(h * differences)
    place = len(size) - _few(len(size), limits)
    most = np.partition(size, place, axis=0)[place]
    return np.asarray(differences * np.minimum(1.0, most / np.where(size > 0, size, 1.0)))


def _loss_of_average(models: Sequence[Any], shares: FloatArray, rows: Rows) -> FloatArray:
    s, x, y = rows.s, rows.x[rows.held], rows.y[rows.held]
    found = predict_all(models, x, n_features=x.shape[1], n_outputs=s.n_outputs)
    if rows.limits.min_records > 1:
        neutral = np.full((len(y), s.n_outputs), 1 / s.n_outputs if s.levels else y.mean())
        found = whatever_the_rows_are(models, found, neutral, n_features=x.shape[1], n_probes=20)
    # What other sites sent may fail: then it is named, without a value of a row.
    wrong = [i for i, f in enumerate(found) if isinstance(f, str)]
    if wrong or len(found) != len(shares):
        which = f"model {wrong[0] + 1}" if wrong else "some"
        raise ProtocolError.shared(f"of the models of the average {which} cannot be used")
    average = np.asarray(sum(w * np.asarray(f) for w, f in zip(shares, found, strict=True)))
    if rows.limits.min_records > 1 and not s.levels:
        # by the rule of meta clustering
        (average,) = within_reach([average], y, _few(len(y), rows.limits))
    return record_losses(s.loss, y, average)


def _beyond(losses: FloatArray, others: FloatArray) -> FloatArray:
    """Differences of losses; none where they are of the size of rounding, which is no gain."""
    difference = losses - others
    size = np.abs(difference).mean()
    return np.asarray(difference * (size > _ROUNDING * np.abs(others).mean()))


@lru_cache(maxsize=64)
def _gaps(*shape: int) -> Released:
    """An array of which every cell is withheld."""
    return aggregate(np.full((0, *shape), np.nan)).withhold(np.ones(shape, dtype=bool))


# --------------------------------------------------------------------------- conclude and use


@step("conclude", once=True)
def conclude(
    message: Conclude, data: SiteData, state: State, site: SiteContext
) -> tuple[Concluded, State]:
    """Send the fit of all rows that is kept; compare it with one's own and with averaging."""
    rows = fitted_and_held(data, _settings(message.settings, state), site, state)
    fits, judged, own = (
        state.get(name, {}).get(str(message.track)) for name in ("kept", "judged", "own")
    )
    if not fits:
        raise ProtocolError("this site has no fit of that track")
    losses, differences, errors = _gaps(3), _gaps(2), _gaps(2)
    if judged and own is not None and len(rows.held):
        chosen = _latest(judged, message.round)["losses"]
        # Own fit, averaging, what is kept: of the same rows, so differences are paired.
        ways = np.stack([own, judged[0]["losses"], chosen], axis=1)
        losses, _ = rows.means(ways, differences=False)
        beside = _without_few(ways[:, :2] - ways[:, 2:], rows.held_weight, rows.limits)
        differences, errors = rows.means(beside)
    facts = _facts_of(_latest(fits, message.round))
    reply = Concluded(
        model=_as_estimator(facts, facts["model"]),
        losses=losses,
        differences=differences,
        errors=errors,
    )
    return reply, {name: state[name] for name in ("settings", "seed")}


def _latest(entries: Sequence[dict[str, Any]], round_: int) -> dict[str, Any]:
    """Entry of a round, or the last before it: what a site that was missing stands by.

    The first entry and the last few are kept. Where only later ones are left the nearest is taken.
    """
    first, *rest = entries
    before = [entry for entry in rest if entry["round"] <= round_]
    if before:
        return before[-1]
    dropped = len(rest) > 0 and rest[0]["round"] > first["round"] + 1
    return rest[0] if dropped and round_ > first["round"] else first


@step("use", once=True)
def use(message: Use, data: SiteData, state: State, site: SiteContext) -> tuple[Used, State]:
    """Keep the predictor."""
    s = _settings(message.settings, state)
    predictor = CollaborativePredictor(
        message.models.value,
        np.asarray(message.shares.value),
        feature_names=data.feature_names,
        levels=s.levels,
        scaling=data.scaling,
    )
    site.output("predictor", predictor)
    return Used(), {}
