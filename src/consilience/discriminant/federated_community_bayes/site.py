"""What a site does: rank its columns, fit its rows, judge what comes back on rows it held out.

Every judged model is a question of somebody else's choice about the rows. Where records are
protected, a steep model, whose loss would count the rows beyond a plane, is judged as if it were
flatter; losses are bounded; no row's gain counts as larger than that of `min_records` rows; and a
mean is rounded to no less than what any row could do to it, at a place that only the site knows,
the same for models that say the same of all rows. So of two models that differ behind a plane
beyond all rows but one nothing is told, however many such pairs are asked about.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.discriminant.estimators.predictors import CommunityBayesPredictor
from consilience.discriminant.federated_community_bayes import messages
from consilience.discriminant.federated_community_bayes.messages import Judged, Settings
from consilience.discriminant.kernels import multinomial
from consilience.discriminant.kernels.communities import unit_ranks
from consilience.exceptions import DataError, DisclosureError, ProtocolError
from consilience.numerics.random import stream
from consilience.parameters import plain
from consilience.protocol.method import SiteContext, SiteData, State, Step, asked_at_most, step
from consilience.protocol.phases import holdout
from consilience.protocol.phases.secure_sums import KEYS
from consilience.wire import disclosure
from consilience.wire.disclosure import Limits, Released
from consilience.wire.moment_facts import Coded, moment_facts

LEFT_OUT, TRAINING, CHOOSING, TEST = -1, 0, 1, 2


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows with their class and their part.

    Attributes
    ----------
    x : (n, p) array
    codes : (n,) int array
        Position of each row's level.
    part : (n,) int array
        Training, choosing, test, or left out because the class has too few rows.
    seed : int
    thin : int array
        Columns that were made constant, since few training rows differ in them.
    """

    x: FloatArray
    codes: IntArray
    part: IntArray
    seed: int
    thin: IntArray

    def of(self, part: int) -> tuple[FloatArray, IntArray]:
        """Features and classes of a part."""
        chosen = self.part == part
        return self.x[chosen], self.codes[chosen]


def by_part(data: SiteData, s: Settings, site: SiteContext, state: State | None = None) -> Rows:
    """Sort the rows into parts.

    A class whose training rows would be too few takes no part. A part that would hold too few rows
    is not held out at all, since figures of it could not leave.

    Parameters
    ----------
    state : dict, optional
        What the offer found: the seed of the draws and the thin columns.

    Raises
    ------
    DataError
        No response, levels that are not the declared ones, or missing values.
    ProtocolError
        Other settings than in the offer.
    """
    if state is not None and plain(s) != state.get("settings"):
        raise ProtocolError("a run goes on with the settings of its offer")
    codes = holdout.class_codes(data, s.levels)
    holdout.require_numbers(data)
    seed = (
        holdout.drawing_seed(data, site, "community bayes") if state is None else int(state["seed"])
    )
    order = stream(seed, "parts", f"{s.choosing:g}", f"{s.holdout:g}").permutation(len(codes))
    cells = np.where(holdout.with_common_levels(codes, len(s.levels), site.limits), codes, -1)
    shares = [s.choosing, s.holdout]
    masked = KEYS in site.keys
    choosing, test = holdout.held_out(
        data, cells, shares, site.limits, order=order, spare=1, masked=masked
    )
    # Rows of a class that is too small take no part at all.
    part = np.where(cells >= 0, TRAINING, LEFT_OUT)
    part[choosing], part[test] = CHOOSING, TEST
    if state is None:
        # Units of others must not decide what may leave.
        thin = holdout.without_thin(data.in_own_units()[0][part == TRAINING], site.limits)[1]
    else:
        thin = np.asarray(state["thin"], dtype=np.int64)
    return Rows(holdout.made_constant(data.features, thin), codes, part, seed, thin)


# --------------------------------------------------------------------------- ranks


def class_ranks(x: FloatArray, limits: Limits, coded: Sequence[Coded] = ()) -> Released:
    """Release Spearman's correlations of the rows of a class; an empty matrix if rows < 2p.

    Parameters
    ----------
    x : (n, p) array
    limits : Limits
    coded : sequence of Coded
        What of the columns are levels of one category.

    Notes
    -----
    NaN where the moments of two columns could not leave: of columns of two values their correlation
    would tell the size of small groups.
    """
    n, p = x.shape
    if n < max(2 * p, limits.min_records, 2):
        return disclosure.cross_products(np.empty((0, 0)), limits=limits)
    released = disclosure.cross_products(unit_ranks(x)[0], limits=limits, coded=coded)
    if limits.min_records <= 1:
        return released
    released = released.withhold_unsafe(limits)
    hidden = moment_facts(x, limits=limits, coded=coded).unsafe
    return released.withhold(hidden | np.isnan(released.value))


def thin_pairs(x: FloatArray, limits: Limits, coded: Sequence[Coded] = ()) -> NDArray[np.bool_]:
    """Pairs of columns of two values each of which some combination is in few rows or none, (p, p).

    Levels of one category are no such pair: that no row has both is known.
    """
    p = x.shape[1]
    found = np.zeros((p, p), dtype=bool)
    if limits.min_records <= 1 or not len(x):
        return found
    low, high = x.min(axis=0), x.max(axis=0)
    two = np.flatnonzero(((x == low) | (x == high)).all(axis=0) & (low < high))
    # The four combinations of two columns of two values.
    up = (x[:, two] == high[two]).astype(float)
    for first in (up, 1.0 - up):
        for second in (up, 1.0 - up):
            few = np.rint(first.T @ second) < limits.min_records
            found[np.ix_(two, two)] |= few
    for group in coded:
        found[np.ix_(group.columns, group.columns)] = False
    alone = np.zeros(p, dtype=bool)
    alone[two] = np.minimum(up.sum(axis=0), len(x) - up.sum(axis=0)) < limits.min_records
    found[np.arange(p), np.arange(p)] = alone
    return found


# --------------------------------------------------------------------------- curvature


_MOST_PASSES = 100
_MARGIN = 1e-6


def row_factors(rows: FloatArray, weights: FloatArray, max_share: float) -> FloatArray:
    """Factors of the rows' weights with which none has more than a share of any cell.

    Sites are joined by any curvatures that weigh them: less weight of a row changes how much the
    site's fit counts in some direction, and not the fit.

    Parameters
    ----------
    rows : (n, q) array
    weights : (n, k) array
        Cells are ``sum_i w_ik x_ij x_il``.
    max_share : float
        Below 1.

    Returns
    -------
    (n,) array
        In [0, 1].
    """
    factors = np.ones(len(rows))
    # A share of all is this share of the others.
    ratio = max_share / (1.0 - max_share) * (1.0 - _MARGIN)
    for _ in range(_MOST_PASSES):
        limits = np.ones(len(rows))
        for w in np.abs(weights).T:
            scaled = np.abs(rows) * np.sqrt(w * factors)[:, None]
            for j in range(rows.shape[1]):
                terms = scaled[:, j:] * scaled[:, [j]]
                place = terms.argmax(axis=0)
                peak = terms[place, np.arange(terms.shape[1])]
                rest = terms.sum(axis=0) - peak
                over = peak > ratio * rest
                np.minimum.at(limits, place[over], ratio * rest[over] / peak[over])
        if (limits >= 1.0).all():
            return factors
        factors = factors * limits
    return factors


# --------------------------------------------------------------------------- judging


STEEPEST = 10.0
"""Root mean square of the contrasts of a model over the site's rows."""
LARGEST_COEFFICIENT = 1e100
"""Of judged models: squares of scores are numbers in all units that a site takes."""
LARGEST_LOSS = float(np.log(100.0))
"""Where records are protected, a class counts as no less likely than 1 in 100."""
LARGEST_GAIN = 1.0
"""Where records are protected, no choosing row is more for or against a candidate than this."""


def judged_models(
    rows: Rows, part: int, message: messages.Judge | messages.Conclude, site: SiteContext
) -> Judged:
    """Judge models on one part of the rows.

    Whether a row lies beyond a line is a question about that row, which a mean log loss is not: so
    shares of wrong predictions are told of test rows, or where values of single records may leave.
    Otherwise nothing is told of fewer rows than twice the coefficients of a model: with more of
    them somebody who knows the columns of a person finds a model that is large there alone, and
    asks for the class.

    Parameters
    ----------
    rows : Rows
    part : int
    message : Judge or Conclude
        With models (a, m - 1, p + 1), the contrasts of the classes, intercepts first.
    site : SiteContext

    Returns
    -------
    Judged
        Mean log loss of the first model, and by how much that of each other one is lower.
    """
    limits, (models, y) = site.limits, asked_of(rows, part, message)
    n_models, protected = len(models), limits.min_records > 1
    untold = [UNTOLD] * n_models
    if not may_judge(len(y), rows.x.shape[1], models.shape[1] + 1, site):
        nothing = disclosure.aggregate(np.full((0, n_models), np.nan))
        gaps = nothing.withhold(np.ones(n_models, dtype=bool))
        return Judged(losses=gaps, errors=gaps, wrong=disclosure.bundle(untold))
    values, wrong, said = figures_of(rows, part, models, y, least=limits.min_records)
    least, shifts = None, np.zeros(n_models)
    if protected:
        least, shifts = steps_of(n_models, len(y), part), shifts_of(said, rows.seed, part)
        values = values + least * shifts
    means = disclosure.weighted_means(
        values, limits=limits, entities=np.arange(len(y)), least=least
    )
    if part == TEST or site.per_record:  # to within `min_records` rows
        step = min(1.0, max(limits.min_records, 1) / len(y))
        moved = np.array(wrong) + step * shifts
        untold = [disclosure.rounded(float(v), n_records=len(y), step=step) for v in moved]
    return Judged(losses=means.mean, errors=means.variance, wrong=disclosure.bundle(untold))


UNTOLD = disclosure.rounded(float("nan"), n_records=0, step=1.0)


def asked_of(
    rows: Rows, part: int, message: messages.Judge | messages.Conclude
) -> tuple[FloatArray, IntArray]:
    """Models that are to be judged, and the class of each row of a part."""
    classes, models = _classes(message.classes.value, rows.of(TRAINING)[1]), message.models.value
    fits = len(models) and models.shape[1:] == (len(classes) - 1, rows.x.shape[1] + 1)
    # Beyond, whether scores are numbers would say how large a site's rows are.
    if not fits or not (np.abs(models) <= LARGEST_COEFFICIENT).all():
        raise ProtocolError("judged models are none of the study's columns and classes")
    return models, np.searchsorted(classes, rows.codes[rows.part == part])


def may_judge(n: int, p: int, m: int, site: SiteContext) -> bool:
    """Whether n rows may judge models of p columns and m classes."""
    few = n < 2 * messages.n_parameters(p, m)
    return n > 0 and not (few and site.limits.min_records > 1 and not site.per_record)


def figures_of(
    rows: Rows, part: int, models: FloatArray, y: IntArray, *, least: int
) -> tuple[FloatArray, list[float], list[IntArray]]:
    """Log losses of the rows of a part, before anything is rounded.

    Parameters
    ----------
    rows : Rows
    part : int
    models : (a, m - 1, p + 1) array
    y : (n,) int array
        Class of each row of the part.
    least : int
        Where it is more than 1, models are flattened and losses bounded, and a gain counts as no
        larger than that of `least` rows is.

    Returns
    -------
    values : (n, a) array
        Loss under the first model, and by how much it is lower under each other one.
    wrong : list of a float
        Shares of wrong predictions.
    said : list of (n,) int arrays
        Class that each model gives each row.
    """
    protected = least > 1
    used = rows.part != LEFT_OUT
    held = (rows.part == part)[used]
    design, q = multinomial.design_of(rows.x[used]), multinomial.contrasts(models.shape[1] + 1)
    losses, wrong, said = [], [], []
    for phi in models:
        eta = design @ phi.T
        # How steep: over all rows, so that no one row decides.
        size = float(np.sqrt((eta**2).sum(axis=1).mean()))
        if protected and size > STEEPEST:
            eta = eta * (STEEPEST / size)
        scores = eta[held] @ q.T
        scores = scores - scores.max(axis=1, keepdims=True)
        loss = -multinomial.log_softmax(scores)[np.arange(len(y)), y]
        losses.append(np.minimum(loss, LARGEST_LOSS) if protected else loss)
        said.append(scores.argmax(axis=1).astype(np.int64))
        wrong.append(float(np.mean(said[-1] != y)))
    gains = [losses[0] - other for other in losses[1:]]
    if protected and part == CHOOSING:
        gains = [np.clip(gain, -LARGEST_GAIN, LARGEST_GAIN) for gain in gains]
    if protected:
        gains = [_no_larger_than_others(gain, least) for gain in gains]
    return np.column_stack([losses[0], *gains]), wrong, said


def _no_larger_than_others(gain: FloatArray, least: int) -> FloatArray:
    """Gains cut at the size that `least` rows reach: one that few rows have alone counts as 0."""
    sizes = np.sort(np.abs(gain))[::-1]
    bound = sizes[least - 1] if len(sizes) >= least else 0.0
    return np.clip(gain, -bound, bound)


def shifts_of(said: list[IntArray], seed: int, part: int) -> FloatArray:
    """Places of the rounding, (a,) in [-.5, .5): nobody else's knowledge, the same if asked again.

    So roundings of several sites even out, and nobody can put a mean between two of its steps.
    Models that give all rows of the part the same classes have the same place: answers to many that
    are nearly alike would otherwise average the rounding away.
    """
    names = [hashlib.sha256(classes.tobytes()).hexdigest() for classes in said]
    found = [stream(seed, "told", part, names[0], name).random() for name in names]
    return np.array(found) - 0.5


def steps_of(n_models: int, n_rows: int, part: int) -> FloatArray:
    """Steps of rounding where records are protected: no less than what any row could do, (a,)."""
    # The smallest of 1, 2, 5 times a power of ten that is at least this (a hair less).
    x = reach_of(n_models, part) / n_rows
    power, lead = 10.0 ** np.floor(np.log10(x)), np.array([1.0, 2.0, 5.0, 10.0])
    return np.asarray(lead[np.searchsorted(lead, x / power * (1 - 1e-9))] * power * (1 - 1e-9))


def reach_of(n_models: int, part: int) -> FloatArray:
    """What any row could do to the sums of figures, (a,)."""
    reach = np.full(n_models, LARGEST_LOSS)
    if part == CHOOSING:
        reach[1:] = 2.0 * LARGEST_GAIN
    return reach


NUMBERS_PER_CELL = 0.5
"""Numbers of fits that a site tells at most for each cell (row and column) of its training rows."""


# --------------------------------------------------------------------------- offer and ranks


@step("offer", once=True)
def offer(
    message: messages.Offer, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.Offered, State]:
    """Say how many rows of each class take part."""
    s, rows = message.settings, by_part(data, message.settings, site)
    training = np.where(rows.part == TRAINING, rows.codes, -1)
    reply = messages.Offered(
        training=disclosure.cell_counts(training, len(s.levels)),
        choosing=disclosure.count(int((rows.part == CHOOSING).sum())),
        test=disclosure.count(int((rows.part == TEST).sum())),
    )
    return reply, {"settings": plain(s), "seed": rows.seed, "thin": rows.thin}


@step("ranks", once=True)
def ranks(
    message: messages.Rank, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.Ranks, State]:
    """Tell rank correlations within each class."""
    s, rows = message.settings, by_part(data, message.settings, site, state)
    x, codes = rows.of(TRAINING)
    tables = [class_ranks(x[codes == k], site.limits, data.coded) for k in range(len(s.levels))]
    return messages.Ranks(tables=disclosure.bundle(tables)), state


# --------------------------------------------------------------------------- fits


@step("fit", once=True)
def fit(
    message: messages.Fit, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.Fitted, State]:
    """Fit every community to the site's own rows, and tell coefficients and curvature."""
    rows = by_part(data, message.settings, site, state)
    return fits_of(message, rows, np.ones((rows.part == TRAINING).sum()), data, site), state


def fits_of(
    message: messages.Fit, rows: Rows, factors: FloatArray, data: SiteData, site: SiteContext
) -> messages.Fitted:
    """Fits of communities, with curvatures in which rows count by factors."""
    s, (x, codes) = message.settings, rows.of(TRAINING)
    communities = _communities(message.communities.value, x.shape[1])
    present, local = np.unique(codes, return_inverse=True)
    thin = thin_pairs(x, site.limits, data.coded)
    empty = np.zeros((0, 1))
    nothing = disclosure.local_fit(np.zeros(0), rows=empty, weights=empty, n_parameters=0)
    found = [nothing] * len(communities)
    # What may still be told.
    left = NUMBERS_PER_CELL * x.size if site.limits.min_records > 1 else np.inf
    for c, columns in enumerate(communities):
        numbers = messages.n_numbers(len(columns), len(present))
        if len(present) < 2 or numbers > left or thin[np.ix_(columns, columns)].any():
            continue
        made = _fitted(x[:, columns], local.ravel(), len(present), s.ridge, site.limits, factors)
        if made is not None:
            found[c], left = made, left - numbers
    return messages.Fitted(fits=disclosure.together(found, "fit"))


def _communities(given: tuple[IntArray, ...], p: int) -> tuple[IntArray, ...]:
    """Sets of columns, each once; no more than a tree of the columns has."""
    sets = [tuple(np.asarray(columns).tolist()) for columns in given]
    sound = all(c and c[0] >= 0 and c[-1] < p and list(c) == sorted(set(c)) for c in sets)
    if not sound or len(set(sets)) < len(sets) or len(sets) > max(2 * p - 1, 1):
        raise ProtocolError("communities are sets of columns, each once, as a tree has them")
    return tuple(np.array(c, dtype=np.int64) for c in sets)


def _fitted(
    x: FloatArray, codes: IntArray, m: int, ridge: float, limits: Limits, factors: FloatArray
) -> Released | None:
    """A fit that may leave, or None."""
    size = messages.n_parameters(x.shape[1], m)
    if limits.min_records > 1 and len(x) < max(limits.min_records, 2 * size):
        return None
    try:
        phi = multinomial.fit(x, codes, m, ridge)
    except DataError:
        return None
    q, design = multinomial.contrasts(m), multinomial.design_of(x)
    each = multinomial.row_weights(np.exp(multinomial.log_probabilities(design, phi, q)), q)
    each = each * factors[:, None, None]
    upper = np.triu_indices(m - 1)
    if limits.min_records > 1 and limits.max_share < 1:
        # No row makes more than its share of the curvature.
        less = row_factors(design, each[:, upper[0], upper[1]], limits.max_share)
        each = each * less[:, None, None]
    weights = np.column_stack([np.trace(each, axis1=1, axis2=2), each[:, upper[0], upper[1]]])
    value = messages.packed(phi, curvature=multinomial.weighted_products(design, each))
    made = disclosure.local_fit(value, rows=design, weights=weights, n_parameters=size)
    safe = made.evidence is not None and disclosure.fit_fault(made.evidence, limits) is None
    return made if safe and np.isfinite(made.value).all() else None


# --------------------------------------------------------------------------- Newton rounds


@step("slopes", tally=asked_at_most("rounds", messages.MAX_ROUNDS))
def slopes_(
    message: messages.Slope, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.Slopes, State]:
    """Tell loss, gradient and curvature at coefficients that the coordinator chose."""
    rows = by_part(data, message.settings, site, state)
    if not site.per_record:
        raise DisclosureError.shared(
            "this site tells no sums at coefficients that a coordinator chose (its steward grants "
            'them by per_record): set fit to "one-shot"'
        )
    x, codes = rows.of(TRAINING)
    classes = _classes(message.classes.value, codes)
    m = len(classes)
    local, q = np.searchsorted(classes, codes), multinomial.contrasts(m)
    communities = _communities(message.communities.value, x.shape[1])
    if len(communities) != len(message.coefficients.value):
        raise ProtocolError("there are other coefficients than communities")
    parts = []
    for columns, phi in zip(communities, message.coefficients.value, strict=True):
        if phi.shape != (m - 1, len(columns) + 1):
            raise ProtocolError("coefficients are none of their community")
        found = multinomial.pieces(multinomial.design_of(x[:, columns]), local, phi, q)
        value = messages.packed(np.array([found.loss]), found.gradient, curvature=found.curvature)
        parts.append(disclosure.slopes(value, n_records=len(x)))
    return messages.Slopes(sums=disclosure.together(parts, "slopes")), state


def _classes(classes: IntArray, codes: IntArray) -> IntArray:
    """Levels that have rows somewhere: those of this site among them."""
    found = np.asarray(classes, dtype=np.int64)
    if len(found) < 2 or (np.diff(found) <= 0).any() or not np.isin(codes, found).all():
        raise ProtocolError("the classes that take part are not those that have rows")
    return found


# --------------------------------------------------------------------------- judging


@step("judge", once=True)
def judge(
    message: messages.Judge, data: SiteData, state: State, site: SiteContext
) -> tuple[Judged, State]:
    """Judge numbers of communities on the choosing rows."""
    rows = by_part(data, message.settings, site, state)
    if len(message.models.value) > messages.MAX_CANDIDATES:
        raise DisclosureError.shared("more numbers of communities than a site judges")
    return judged_models(rows, CHOOSING, message, site), state


@step("conclude", once=True)
def conclude(
    message: messages.Conclude, data: SiteData, state: State, site: SiteContext
) -> tuple[Judged, State]:
    """Judge the classifier on the test rows, and keep it."""
    s, rows = message.settings, by_part(data, message.settings, site, state)
    classes = _classes(message.classes.value, rows.of(TRAINING)[1])
    require_three(message)
    reply = judged_models(rows, TEST, message, site)
    keep_model(message, rows, classes, data, site)
    return reply, {"settings": plain(s)}


def require_three(message: messages.Conclude) -> None:
    """Check that no more models are judged than the end has."""
    if len(message.models.value) > 3:
        raise ProtocolError("three models are judged at the end")


def keep_model(
    message: messages.Conclude, rows: Rows, classes: IntArray, data: SiteData, site: SiteContext
) -> None:
    """Keep the classifier, and what it says of the site's rows."""
    levels = np.array(message.settings.levels)[classes]
    predictor = CommunityBayesPredictor(
        communities=_communities(message.communities.value, rows.x.shape[1]),
        rows=[multinomial.as_rows(np.asarray(phi)) for phi in message.coefficients.value],
        priors=np.asarray(message.priors.value),
        classes=levels,
        feature_names=data.feature_names,
    )
    site.output("predictor", predictor.with_names(data.feature_names, data.scaling))
    # In the units of the study: rows in their own are refused where they are far from made-up ones.
    chances = predictor.predict_proba(data.features)
    best = chances.argmax(axis=1)
    table = {
        "row": data.rows,
        "part": np.array(["left out", "training", "choosing", "test"])[rows.part + 1],
        "predicted": levels[best],
        "probability": chances[np.arange(len(best)), best],
    }
    site.table("predictions", table if data.id is None else {"id": data.id, **table})


STEPS: tuple[Step, ...] = (offer, ranks, fit, slopes_, judge, conclude)
