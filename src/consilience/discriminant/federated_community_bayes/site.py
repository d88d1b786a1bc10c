"""What a site does: rank its columns, fit its rows, judge what comes back on rows it held out."""

from __future__ import annotations

import numpy as np

from consilience.arrays import FloatArray, IntArray
from consilience.discriminant.federated_community_bayes.curvature import row_factors
from consilience.discriminant.federated_community_bayes.judging import judged_models
from consilience.discriminant.federated_community_bayes.keeping import predictor_of
from consilience.discriminant.federated_community_bayes.messages import (
    MAX_CANDIDATES,
    MAX_ROUNDS,
    Conclude,
    Fit,
    Fitted,
    Judge,
    Judged,
    Offer,
    Offered,
    Rank,
    Ranks,
    Settings,
    Slope,
    Slopes,
    n_numbers,
    n_parameters,
    packed,
)
from consilience.discriminant.federated_community_bayes.ranks import class_ranks, thin_pairs
from consilience.discriminant.federated_community_bayes.rows import (
    CHOOSING,
    TEST,
    TRAINING,
    Rows,
    by_part,
)
from consilience.discriminant.kernels import multinomial
from consilience.exceptions import DataError, DisclosureError, ProtocolError
from consilience.protocol.method import SiteContext, SiteData, State, step
from consilience.wire.disclosure import (
    Limits,
    Released,
    bundle,
    cell_counts,
    count,
    fit_fault,
    local_fit,
    slopes,
    together,
)

NUMBERS_PER_CELL = 0.5
"""Numbers of fits that a site tells at most for each cell (row and column) of its training rows."""


def _tally(message: Slope, data: SiteData, limits: Limits) -> dict[str, tuple[int, int]]:
    """Rounds are counted over a run, those whose replies were lost included."""
    return {"rounds": (1, MAX_ROUNDS)} if limits.min_records > 1 else {}


# --------------------------------------------------------------------------- offer and ranks


@step("offer", once=True)
def offer(message: Offer, data: SiteData, state: State, site: SiteContext) -> tuple[Offered, State]:
    """Say how many rows of each class take part."""
    s = Settings.from_json(message.settings)
    rows = by_part(data, s, site)
    training = np.where(rows.part == TRAINING, rows.codes, -1)
    reply = Offered(
        training=cell_counts(training, len(s.levels)),
        choosing=count(int((rows.part == CHOOSING).sum())),
        test=count(int((rows.part == TEST).sum())),
    )
    return reply, {"settings": message.settings, "seed": rows.seed, "thin": rows.thin}


def _goes_on(text: str, data: SiteData, state: State, site: SiteContext) -> tuple[Settings, Rows]:
    if text != state.get("settings"):
        raise ProtocolError("a run goes on with the settings of its offer")
    s = Settings.from_json(text)
    return s, by_part(data, s, site, state)


@step("ranks", once=True)
def ranks(message: Rank, data: SiteData, state: State, site: SiteContext) -> tuple[Ranks, State]:
    """Tell rank correlations within each class."""
    s, rows = _goes_on(message.settings, data, state, site)
    x, codes = rows.of(TRAINING)
    tables = [class_ranks(x[codes == k], site.limits, data.coded) for k in range(len(s.levels))]
    return Ranks(tables=bundle(tables)), state


# --------------------------------------------------------------------------- fits


@step("fit", once=True)
def fit(message: Fit, data: SiteData, state: State, site: SiteContext) -> tuple[Fitted, State]:
    """Fit every community to the site's own rows, and tell coefficients and curvature."""
    s, rows = _goes_on(message.settings, data, state, site)
    x, codes = rows.of(TRAINING)
    communities = _communities(message.communities.value, x.shape[1])
    present, local = np.unique(codes, return_inverse=True)
    thin = thin_pairs(x, site.limits, data.coded)
    found = [_nothing() for _ in communities]
    left = NUMBERS_PER_CELL * x.size if site.limits.min_records > 1 else np.inf
    for c, columns in enumerate(communities):
        numbers = n_numbers(len(columns), len(present))
        if len(present) < 2 or numbers > left or thin[np.ix_(columns, columns)].any():
            continue
        made = _fitted(x[:, columns], local.ravel(), len(present), s.ridge, site.limits)
        if made is not None:
            found[c], left = made, left - numbers
    return Fitted(fits=together(found, "fit")), state


def _communities(given: tuple[IntArray, ...], p: int) -> tuple[IntArray, ...]:
    """Sets of columns, each once; no more than a tree of the columns has."""
    sets = [tuple(np.asarray(columns).tolist()) for columns in given]
    sound = all(c and c[0] >= 0 and c[-1] < p and list(c) == sorted(set(c)) for c in sets)
    if not sound or len(set(sets)) < len(sets) or len(sets) > max(2 * p - 1, 1):
        raise ProtocolError("communities are sets of columns, each once, as a tree has them")
    return tuple(np.array(c, dtype=np.int64) for c in sets)


def _nothing() -> Released:
    empty = np.zeros((0, 1))
    return local_fit(np.zeros(0), rows=empty, weights=empty, n_parameters=0)


def _fitted(
    x: FloatArray, codes: IntArray, m: int, ridge: float, limits: Limits
) -> Released | None:
    """A fit that may leave, or None."""
    size = n_parameters(x.shape[1], m)
    if limits.min_records > 1 and len(x) < max(limits.min_records, 2 * size):
        return None
    try:
        phi = multinomial.fit(x, codes, m, ridge)
    except DataError:
        return None
    q, design = multinomial.contrasts(m), multinomial.design_of(x)
    each = multinomial.row_weights(np.exp(multinomial.log_probabilities(design, phi, q)), q)
    upper = np.triu_indices(m - 1)
    if limits.min_records > 1 and limits.max_share < 1:
        factors = row_factors(design, each[:, upper[0], upper[1]], limits.max_share)
        each = each * factors[:, None, None]
    weights = np.column_stack([np.trace(each, axis1=1, axis2=2), each[:, upper[0], upper[1]]])
    value = packed(phi, curvature=multinomial.weighted_products(design, each))
    made = local_fit(value, rows=design, weights=weights, n_parameters=size)
    safe = made.evidence is not None and fit_fault(made.evidence, limits) is None
    return made if safe and np.isfinite(made.value).all() else None


# --------------------------------------------------------------------------- Newton rounds


@step("slopes", tally=_tally)
def slopes_(
    message: Slope, data: SiteData, state: State, site: SiteContext
) -> tuple[Slopes, State]:
    """Tell loss, gradient and curvature at coefficients that the coordinator chose."""
    _, rows = _goes_on(message.settings, data, state, site)
    if not site.per_record:
        sentence = (
            "this site tells no sums at coefficients that a coordinator chose (its steward grants "
            'them by per_record): set fit to "one-shot"'
        )
        raise DisclosureError(sentence, public=sentence)
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
        value = packed(np.array([found.loss]), found.gradient, curvature=found.curvature)
        parts.append(slopes(value, n_records=len(x)))
    return Slopes(sums=together(parts, "slopes")), state


def _classes(classes: IntArray, codes: IntArray) -> IntArray:
    """Levels that have rows somewhere: those of this site among them."""
    found = np.asarray(classes, dtype=np.int64)
    if len(found) < 2 or (np.diff(found) <= 0).any() or not np.isin(codes, found).all():
        raise ProtocolError("the classes that take part are not those that have rows")
    return found


# --------------------------------------------------------------------------- judging


@step("judge", once=True)
def judge(message: Judge, data: SiteData, state: State, site: SiteContext) -> tuple[Judged, State]:
    """Judge numbers of communities on the choosing rows."""
    _, rows = _goes_on(message.settings, data, state, site)
    if len(message.models.value) > MAX_CANDIDATES:
        sentence = "more numbers of communities than a site judges"
        raise DisclosureError(sentence, public=sentence)
    classes = _classes(message.classes.value, rows.of(TRAINING)[1])
    reply = judged_models(
        rows,
        CHOOSING,
        message.models.value,
        classes,
        site.limits,
        # Whether a row lies beyond a line is a question about that row; a mean log loss is not.
        counts=site.per_record,
        consent=site.per_record,
    )
    return reply, state


@step("conclude", once=True)
def conclude(
    message: Conclude, data: SiteData, state: State, site: SiteContext
) -> tuple[Judged, State]:
    """Judge the classifier on the test rows, and keep it."""
    s, rows = _goes_on(message.settings, data, state, site)
    classes = _classes(message.classes.value, rows.of(TRAINING)[1])
    if len(message.models.value) > 3:
        raise ProtocolError("three models are judged at the end")
    reply = judged_models(
        rows,
        TEST,
        message.models.value,
        classes,
        site.limits,
        counts=True,
        consent=site.per_record,
    )
    predictor = predictor_of(
        _communities(message.communities.value, rows.x.shape[1]),
        [multinomial.as_rows(np.asarray(phi)) for phi in message.coefficients.value],
        np.asarray(message.priors.value),
        classes=np.array(s.levels)[classes].tolist(),
        feature_names=data.feature_names,
        scaling=data.scaling,
    )
    site.output("predictor", predictor)
    chances = predictor.predict_proba(_as_read(data))
    best = chances.argmax(axis=1)
    table = {
        "row": data.rows,
        "part": np.array(["left out", "training", "choosing", "test"])[rows.part + 1],
        "predicted": np.array(s.levels)[classes][best],
        "probability": chances[np.arange(len(best)), best],
    }
    site.table("predictions", table if data.id is None else {"id": data.id, **table})
    return reply, {"settings": message.settings}


def _as_read(data: SiteData) -> FloatArray:
    """Features in the columns' own units."""
    if data.scaling is None:
        return data.features
    _, centre, scale = data.scaling
    return np.asarray(data.features * scale + centre)
