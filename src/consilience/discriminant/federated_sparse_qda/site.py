"""What a site does: tell moments of its classes, say which columns are linked, judge models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.discriminant.estimators.predictors import SparseQDAPredictor
from consilience.discriminant.federated_sparse_qda import messages
from consilience.discriminant.federated_sparse_qda.messages import Settings
from consilience.discriminant.kernels.joint_precision import RowMoments, components
from consilience.exceptions import ConsilienceError, DisclosureError, ProtocolError
from consilience.numerics.random import stream
from consilience.parameters import plain
from consilience.protocol.method import SiteContext, SiteData, State, Step, asked_at_most, step
from consilience.protocol.phases import holdout
from consilience.wire import disclosure
from consilience.wire.disclosure import Limits, Released, replaced
from consilience.wire.moment_facts import coded_within, unsafe_columns


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows that take part.

    Attributes
    ----------
    x : (n, p) array
    codes : (n,) int array
        Class of each row, -1 in classes of too few rows.
    cells : (n,) int array
        The same, -1 also for rows that are held out.
    held : (h,) int array
        Rows that are held out.
    seed : int
        From which they follow where no record is protected.
    """

    x: FloatArray
    codes: IntArray
    cells: IntArray
    held: IntArray
    seed: int

    @property
    def kept(self) -> IntArray:
        """Rows of the moments."""
        return np.flatnonzero(self.cells >= 0)


def by_class(data: SiteData, s: Settings, site: SiteContext, state: State | None = None) -> Rows:
    """Sort rows into classes and hold some of every class out.

    Parameters
    ----------
    state : dict, optional
        What the offer found: streams are other ones in each step, and the same rows are held out in
        all.

    Raises
    ------
    DataError
        No classes, or others than the study's.
    ProtocolError
        Other settings than in the offer.
    """
    if state is not None and plain(s) != state.get("settings"):
        raise ProtocolError("a question goes on with the settings of the offer")
    codes = holdout.class_codes(data, s.levels)
    holdout.require_numbers(data)
    codes = np.where(holdout.with_common_levels(codes, len(s.levels), site.limits), codes, -1)
    seed = holdout.drawing_seed(data, site, "sparse qda") if state is None else int(state["seed"])
    # The same order in every step, whatever the step draws else.
    order = stream(seed, "held out").permutation(len(codes))
    (held,) = holdout.held_out(data, codes, [s.holdout], site.limits, order=order, spare=2)
    cells = codes.copy()
    cells[held] = -1
    return Rows(data.features, codes, cells, held, seed)


TOO_MANY = "more questions on the same rows than a site answers"
_MOST = 1e30


# --------------------------------------------------------------------------- offer


@step("offer", once=True)
def offer(
    message: messages.Offer, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.Offered, State]:
    """Tell rows, means and spreads by class."""
    s, limits, k = message.settings, site.limits, len(message.settings.levels)
    rows = by_class(data, s, site)
    means, spreads = spreads_of(rows.x, rows.cells, k, data, limits)
    reply = messages.Offered(
        protected=limits.min_records > 1,
        judges=_judges(site),
        counts=disclosure.cell_counts(rows.cells, k),
        held=disclosure.cell_counts(rows.codes[rows.held], k),
        means=means,
        spreads=spreads,
    )
    withheld = np.isnan(means.value)
    return reply, {"settings": plain(s), "seed": rows.seed, "withheld": withheld}


def spreads_of(
    x: FloatArray, cells: IntArray, n_cells: int, data: SiteData, limits: Limits
) -> tuple[Released, Released]:
    """Means and mean squared deviations by cell; of a cell and column both or neither."""
    centred, unsafe = np.array(x), np.zeros((n_cells, x.shape[1]), dtype=bool)
    for c in range(n_cells):
        members = np.flatnonzero(cells == c)
        if len(members):
            centred[members] -= x[members].mean(axis=0)
            unsafe[c] = unsafe_columns(x[members], limits=limits, coded=data.coded)
    means, spreads = (
        disclosure.aggregate(part, cells=cells, n_cells=n_cells, entities=data.entity, mean=True)
        for part in (x, centred**2)
    )
    for released in (means, spreads):
        unsafe |= np.isnan(released.withhold_unsafe(limits).value)
    return means.withhold(unsafe), spreads.withhold(unsafe)


# --------------------------------------------------------------------------- links


@step("links", tally=asked_at_most("questions for links", messages.MAX_LINKS))
def links(
    message: messages.Links, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.Linked, State]:
    """Say which columns are linked, if every component could leave as moments."""
    s, rows = message.settings, by_class(data, message.settings, site, state)
    columns, cells = _asked(message, rows, state)
    scale = np.asarray(message.scale.value, dtype=float)
    if scale.shape != (len(columns),) or not ((scale >= 1 / _MOST) & (scale <= _MOST)).all():
        raise ProtocolError("links need one scale for each column that takes part")
    if not message.threshold >= 0:
        raise ProtocolError("the threshold of links is not negative")
    members = np.flatnonzero(cells >= 0)
    labels = np.zeros(len(columns), dtype=np.int64)
    if len(members):
        there, codes = np.unique(cells[members], return_inverse=True)
        part = rows.x[np.ix_(members, columns)] / scale
        moments = RowMoments.of(part, codes.ravel(), len(there))
        labels = messages.component_labels(components(moments, message.threshold))
    largest = int(np.bincount(labels[labels > 0]).max(initial=0))
    counts = np.bincount(cells[members])
    # As the gate of moments has it: twice as many rows as columns.
    fits = largest == 0 or bool((2 * largest <= counts[counts > 0]).all())
    fits |= site.limits.min_records <= 1
    if not fits:
        labels, cells = np.zeros_like(labels), np.full(len(cells), -1)
    told = disclosure.linked(labels, cells=cells, n_cells=len(s.levels))
    return messages.Linked(fits=fits, labels=told), state


def _asked(
    message: messages.Links | messages.Moments, rows: Rows, state: State
) -> tuple[IntArray, IntArray]:
    """Columns that are asked about, and the class of each row that counts.

    Raises
    ------
    ProtocolError
        The question is about what the site withheld.
    """
    withheld = np.asarray(state["withheld"])
    features, classes = np.asarray(message.features), np.asarray(message.classes)
    if features.shape != withheld.shape[1:] or classes.shape != withheld.shape[:1]:
        raise ProtocolError("a question needs the study's columns and classes")
    there = np.bincount(rows.cells[rows.cells >= 0], minlength=len(classes)) > 0
    counts = classes & there
    if (withheld & counts[:, None] & features[None, :]).any():
        raise ProtocolError("the question is about a class and column that the site withheld")
    # Rows of no class have the cell -1: the last place.
    used = np.append(counts, False)[rows.cells]
    return np.flatnonzero(features), np.where(used, rows.cells, -1)


# --------------------------------------------------------------------------- moments


@step("moments", once=True)
def moments(
    message: messages.Moments, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.Products, State]:
    """Tell sums of products within blocks, by class."""
    s, rows = message.settings, by_class(data, message.settings, site, state)
    columns, cells = _asked(message, rows, state)
    labels = np.asarray(message.labels.value)
    if labels.shape != (len(columns),):
        raise ProtocolError("moments need one block for each column that takes part")
    # Judged in the table's own units: in a study's a column is no copy of another any more.
    own, _, scale = data.in_own_units()
    blocks = messages.blocks_of(labels)
    products = disclosure.class_moments(
        own[:, columns],
        cells=cells,
        n_cells=len(s.levels),
        blocks=blocks,
        limits=site.limits,
        entities=data.entity,
        coded=coded_within(data.coded, columns),
    )
    units = [scale[columns[block]] for block in blocks]
    upper = [np.outer(u, u)[np.triu_indices(len(u))] for u in units]
    told = products.value / np.concatenate([*upper, np.zeros(0)])
    return messages.Products(products=replaced(products, told)), state


# --------------------------------------------------------------------------- judge


def _judges(site: SiteContext) -> bool:
    """Whether the site says how many rows the models of a path get wrong.

    Fifty models that somebody made up tell the class of a person whose columns he knows, however
    the answers are rounded: some model lies where one row makes the difference. That is a value of
    a record, and needs the consent to tell such.
    """
    return site.limits.min_records <= 1 or site.per_record


@step("judge", once=True)
def judge(
    message: messages.Judge, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.Judged, State]:
    """Say how many rows each model gets wrong, rounded."""
    s, rows = message.settings, by_class(data, message.settings, site, state)
    if not _judges(site):
        raise DisclosureError.shared("this site does not say how many of its rows models get wrong")
    judged = rows.held if message.held else rows.kept
    models = message.models.value
    if not isinstance(models, tuple) or len(models) > messages.MAX_ALPHAS:
        raise DisclosureError("more models than a site judges", public=TOO_MANY)
    answers = Answers(rows, judged, data.entity, site.limits)
    rates = [answers.rate(model) for model in models_of(models, s, rows.x.shape[1])]
    # Of held-out rows the end asks again.
    kept = {**state, **answers.to_state()} if message.held else state
    return messages.Judged(rates=disclosure.bundle(rates)), kept


class Answers:
    """Shares of rows that models get wrong, as they are told.

    The number of wrong rows is a count, which a site would not tell where it is small, and two of
    them could differ by one row. So a share is rounded to several rows, and one that rests on a set
    of wrong rows which differs in fewer than `min_records` rows (or `min_entities`) from an earlier
    one repeats what was told of that.

    Parameters
    ----------
    rows : Rows
    judged : (n,) int array
        Rows that are judged.
    entities : array or None
        Of all rows.
    limits : Limits
    state : dict
        `to_state` of an earlier step on the same rows, to go on from.
    """

    def __init__(
        self,
        rows: Rows,
        judged: IntArray,
        entities: NDArray[Any] | None,
        limits: Limits,
        state: State | None = None,
    ) -> None:
        self.x, self.y, self._limits = rows.x[judged], rows.codes[judged], limits
        self._entities = None if entities is None else entities[judged]
        known = state or {}
        self._wrong = list(np.asarray(known.get("wrong", np.empty((0, len(judged)), dtype=bool))))
        self._told = [float(share) for share in np.asarray(known.get("told", np.empty(0)))]

    def rate(self, model: SparseQDAPredictor) -> Released:
        """What is told of the rows that a model gets wrong."""
        # A score that is no number, under a made-up model, is no class: the row is wrong.
        scores = model.scores(self.x)
        wrong = np.isnan(scores).any(axis=1) | (scores.argmax(axis=1) != self.y)
        least, n = self._limits.min_records, len(self.y)
        if n < max(least, 1):
            return disclosure.rounded(np.nan, n_records=0, step=1.0)
        # Half of `min_records`, or a fifth of the share's error: so a share says neither whether
        # any row is wrong nor whether one more is.
        step_ = max(least / 2, np.sqrt(n) / 10) if least > 1 else 1.0
        share = float(np.mean(wrong))
        if least > 1:
            near = [i for i, other in enumerate(self._wrong) if not self._apart(wrong, other)]
            if near:
                share = self._told[near[0]]
            else:
                self._wrong.append(wrong)
                self._told.append(share)
        return disclosure.rounded(share, n_records=n, step=float(step_) / n)

    def _apart(self, first: NDArray[np.bool_], second: NDArray[np.bool_]) -> bool:
        moved = first != second
        if moved.sum() < self._limits.min_records:
            return False
        entities = self._entities
        return entities is None or len(np.unique(entities[moved])) >= self._limits.min_entities

    def to_state(self) -> State:
        """What a later step of the run needs to repeat answers."""
        wrong = np.array(self._wrong, dtype=bool).reshape(len(self._wrong), len(self.y))
        return {"wrong": wrong, "told": np.array(self._told, dtype=float)}


def models_of(models: Any, s: Settings, n_features: int) -> Iterator[SparseQDAPredictor]:
    """Models that came, whose classes and columns are the study's.

    Raises
    ------
    ProtocolError
        One is none: said without a word of the site's rows.
    """
    for arrays in models:
        try:
            model = SparseQDAPredictor.from_arrays(arrays)
        except (ConsilienceError, ArithmeticError, LookupError, TypeError, ValueError):
            raise ProtocolError("a model cannot be used", public="a model cannot be used") from None
        if tuple(str(c) for c in model.classes_) != s.levels:
            raise ProtocolError("a model has other classes", public="a model has other classes")
        if model.n_features_in_ != n_features:
            raise ProtocolError("a model has other columns than the study")
        yield model


# --------------------------------------------------------------------------- conclude


@step("conclude", once=True)
def conclude(
    message: messages.Conclude, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.Concluded, State]:
    """Keep the model, and judge it on rows that were held out.

    Log losses of the two models and of their difference are not told where records are protected:
    under a made-up model a single row may be all of a loss. It would be withheld, which says that
    there is such a row.
    """
    s, rows = message.settings, by_class(data, message.settings, site, state)
    models, limits = message.models.value, site.limits
    if not isinstance(models, tuple) or len(models) != 2:
        raise ProtocolError("the end takes the model and the one without links")
    made = tuple(models_of(models, s, rows.x.shape[1]))
    keep_model(made[0], data, site)
    answers = Answers(rows, rows.held, data.entity, limits, state)
    rates = disclosure.bundle([answers.rate(model) for model in made])
    x, at = answers.x, (np.arange(len(answers.y)), answers.y)
    if not len(x) or limits.min_records > 1:
        nothing = disclosure.aggregate(np.full((0, 3), np.nan))
        losses = errors = nothing.withhold(np.ones(3, dtype=bool))
    else:
        first, second = (-model.predict_log_proba(x)[at] for model in made)
        both = np.stack([first, second, second - first], axis=1)
        found = disclosure.weighted_means(both, limits=limits)
        losses, errors = found.mean, found.variance
    return messages.Concluded(rates=rates, losses=losses, errors=errors), {}


def keep_model(model: SparseQDAPredictor, data: SiteData, site: SiteContext) -> None:
    """Keep a model, for tables in the site's own units."""
    if data.scaling is not None:
        model = model.with_names(getattr(model, "feature_names_in_", None), data.scaling)
    site.output("predictor", model)


STEPS: tuple[Step, ...] = (offer, links, moments, judge, conclude)
