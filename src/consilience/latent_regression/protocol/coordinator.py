"""What the coordinator knows while the rounds go on: smoothed sums, what classes share, a trace.

What the sites bring at first (sizes and moments) sets the units of the fit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.latent_regression.kernels import marginal_likelihood as model
from consilience.latent_regression.kernels import sampling
from consilience.latent_regression.kernels.latent_class import Classes, Totals, classes_of, tree_sum
from consilience.latent_regression.kernels.marginal_likelihood import merge_down
from consilience.latent_regression.protocol.events import WITHHELD
from consilience.latent_regression.protocol.messages import (
    MARKS,
    Conclude,
    Curved,
    Offered,
    Round,
    Settings,
    Sums,
    full_products,
    unpacked,
)
from consilience.protocol.method import CoordinatorContext
from consilience.wire.disclosure import relayed
from consilience.wire.message import Disclosure

if TYPE_CHECKING:
    from consilience.latent_regression.protocol import LatentClassRegression

_CONSTANT = 1e-12
_DEPENDENT = 1e-10
"""Variance of a combination of standardised features that is none."""
_PART = 1e-3


@dataclass(frozen=True, eq=False)
class Survey:
    """Sizes by site and moments over sites.

    Attributes
    ----------
    sites : tuple of str
        Those that answered, in name order.
    sizes : dict of str to tuple of float
        Events (sums of weights), entities and agents of the sites that tell them.
    centre, scale : (p + 1,) arrays
        Of features and response: means and standard deviations, or roots of mean squares where
        there is no intercept.
    sigma2 : float
        Residual variance of one regression for all, in these units.
    ridge, covariance : (F,) and (F, F) arrays
        That regression: mean and covariance of its coefficients, whose prior variance is `sigma2`.
    constant : (p + 1,) bool array
        Features and response that do not vary.
    shared : (p,) bool array
        Features that follow from others of them.
    """

    sites: tuple[str, ...]
    sizes: dict[str, tuple[float, float, float]]
    centre: FloatArray
    scale: FloatArray
    sigma2: float
    ridge: FloatArray
    covariance: FloatArray
    constant: NDArray[np.bool_]
    shared: NDArray[np.bool_]

    @property
    def told(self) -> dict[str, dict[str, float]]:
        """What a site's other replies are judged by, where it told how much it has."""
        return {s: {"events": n, "entities": e} for s, (n, e, _) in self.sizes.items()}


def survey_of(offered: Mapping[str, Offered], settings: Settings, n_features: int) -> Survey | None:
    """Add up what the sites bring; None where no site tells anything."""
    rows = {site: np.asarray(reply.sums.value)[0] for site, reply in sorted(offered.items())}
    told = {site: row for site, row in rows.items() if np.isfinite(row).all()}
    if not told:
        return None
    p = n_features + 2
    total = full_products(tree_sum(list(told.values()))[None, :], p)[0]
    n = total[0, 0]
    squares = np.diagonal(total)[1:] / n
    centre = total[0, 1:] / n if settings.fit_intercept else np.zeros(len(squares))
    spread = np.maximum(squares - centre**2, 0.0)
    # What rounding leaves of a constant column is no scale.
    constant = ~(spread > _CONSTANT * squares)
    scale = np.sqrt(np.where(constant, 1.0, spread))
    # (1, x, y) C has the centred and scaled columns, so its products are C'TC
    change = np.diag(np.concatenate([[1.0], 1.0 / scale]))
    change[0, 1:] = -centre / scale
    scaled = change.T @ total @ change

    shared = np.zeros(n_features, dtype=bool)
    varies = np.flatnonzero(~constant[:-1])
    if len(varies):
        among = (scaled[1:-1, 1:-1] / n)[np.ix_(varies, varies)]
        values, vectors = np.linalg.eigh(among)
        # combinations of columns that are constant
        none = np.abs(vectors[:, values < _DEPENDENT])
        shared[varies] = (none > _PART).any(axis=1)

    first = 0 if settings.fit_intercept else 1
    products, cross = scaled[first:-1, first:-1], scaled[first:-1, -1]
    sigma2 = model.start_sigma2(products, cross, max(float(scaled[-1, -1]), 0.0), n)
    # penalty sigma2 / delta2 = 1
    inverse = np.linalg.inv(products + np.eye(len(products)))
    return Survey(
        sites=tuple(sorted(offered)),
        sizes={site: (float(row[0]), float(row[-2]), float(row[-1])) for site, row in told.items()},
        centre=centre,
        scale=scale,
        sigma2=sigma2,
        ridge=np.linalg.solve(products + np.eye(len(products)), cross),
        covariance=sigma2 * (inverse + inverse.T) / 2,
        constant=constant,
        shared=shared,
    )


def curve_of(
    told: Mapping[str, Curved], settings: Settings, n_features: int
) -> tuple[FloatArray, float] | None:
    """One regression with squares of the features, and its residual variance, from what sites tell.

    Its penalty is that of one regression without them; None where no site tells.
    """
    rows = [np.asarray(reply.sums.value)[0] for _, reply in sorted(told.items())]
    rows = [row for row in rows if np.isfinite(row).all()]
    if not rows:
        return None
    total = full_products(tree_sum(rows)[None, :], 2 * n_features + 2)[0]
    first = 0 if settings.fit_intercept else 1
    products, cross = total[first:-1, first:-1], total[first:-1, -1]
    variance = model.start_sigma2(products, cross, max(float(total[-1, -1]), 0.0), total[0, 0])
    return np.linalg.solve(products + np.eye(len(products)), cross), variance


# ------------------------------------------------------------------------------------------- rounds


SMALLEST_SIGMA2 = 1e-10
"""Where the response is explained without a rest; it has variance 1."""
BETAS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
LEAST_ENTITIES = 0.5
"""Entities, on average over the last rounds, of what is a class in the end."""
TRACE = 1e-3
"""Entities that stand for a class that was left, when classes are merged."""
LEAST_ROUNDS = 6
LOOKED_BACK = 5
SETTLED = 0.99
"""Ratio of the noise to that so many rounds before, above which it has stopped falling."""
_AT_ONCE = 64
_FIRM = 1e-3
"""Of the variance that one class leaves, for estimates of classes that hardly shrink."""


def default_rate(participation: float) -> float:
    """Learning rate by the share of the sites that reports: .5 for all, .2 for few."""
    return float(np.clip(0.2 + 0.4 * (participation - 0.25), 0.2, 0.5))


@dataclass
class Standing:
    """What the totals hold of a site.

    Attributes
    ----------
    used : int
        Round of its reply that they hold.
    decay, weight : float
        What is left of what was before that reply, and the weight of the reply itself.
    mapping : (k,) int array
        Classes that have been merged since.
    sums : (k, d) array
        The reply.
    status : (k,) int array
        What it says of each class.
    """

    used: int
    decay: float
    weight: float
    mapping: IntArray
    sums: FloatArray
    status: IntArray

    @property
    def now(self) -> FloatArray:
        """The reply by the classes of now."""
        return _moved(self.sums, self.mapping)


class Kept(NamedTuple):
    """A round over which is averaged: classes, smoothed sums (k, d), psi (k,), sigma2."""

    classes: Classes
    totals: FloatArray
    base: FloatArray
    sigma2: float


class Ending(NamedTuple):
    """The classes in the end.

    Attributes
    ----------
    mapping : (k,) int array
        Final class of each cell, by size; -1: it is none.
    mean, covariance : arrays (K, F), (K, F, F)
        Of their coefficients.
    base : (K,) array
        Shares of the classes, averaged over the last rounds.
    sigma2, delta2 : float
        Variances of the noise, averaged too, and of the coefficients.
    """

    mapping: IntArray
    mean: FloatArray
    covariance: FloatArray
    base: FloatArray
    sigma2: float
    delta2: float

    def summed(self, values: FloatArray) -> FloatArray:
        """Numbers of the cells (.., k) by class, (.., K)."""
        is_class = self.mapping >= 0
        return np.asarray(values[..., is_class] @ np.eye(len(self.mean))[self.mapping[is_class]])

    def message(self, rounds: Rounds) -> Conclude:
        """Tell the sites."""
        survey = rounds.survey
        # Without squares it is one regression once more, and the same figures are asked of all.
        flat = np.concatenate([survey.ridge, np.zeros(rounds.n_features)]), survey.sigma2
        curve, curve_variance = rounds.curve or flat
        return Conclude(
            settings=rounds.settings,
            mean=relayed(self.mean, Disclosure.MODEL),
            covariance=relayed(self.covariance, Disclosure.MODEL),
            ridge=relayed(survey.ridge, Disclosure.MODEL),
            ridge_variance=relayed(survey.sigma2, Disclosure.AGGREGATE),
            curve=relayed(curve, Disclosure.MODEL),
            curve_variance=relayed(curve_variance, Disclosure.AGGREGATE),
            base=relayed(self.base, Disclosure.AGGREGATE),
            sigma2=relayed(self.sigma2, Disclosure.AGGREGATE),
            delta2=relayed(self.delta2, Disclosure.AGGREGATE),
            beta=rounds.beta,
            mapping=self.mapping,
        )


class Rounds:
    """State of the exchange at the coordinator.

    Attributes
    ----------
    sigma2, delta2, beta : float
        Variances of noise and coefficients, and the concentration of agents' shares: either drawn
        or fixed.
    base : (k,) array
        psi.
    rate : float
        Learning rate at present.
    jumping : float
        Share of labels that jumps, at least.
    totals : (k, d) array
        Smoothed sums, packed.
    merged_at : int
        Round after which classes were merged.
    curve : tuple of (q,) array and float, or None
        One regression with squares of the features, and its residual variance.
    curve_sites : tuple of str
        On which it rests.
    """

    def __init__(
        self,
        method: LatentClassRegression,
        ctx: CoordinatorContext,
        settings: Settings,
        survey: Survey,
    ) -> None:
        self.method, self.settings, self.survey, self.rng = method, settings, survey, ctx.rng
        self.n_features = len(ctx.feature_names)
        self.known: Mapping[str, float] = {}  # of all sites, where their sums are masked
        noise, spread, beta, rate = (
            None if isinstance(value, str) else float(value)
            for value in (method.noise, method.prior_scale, method.beta, method.learning_rate)
        )
        self.sigma2 = survey.sigma2 if noise is None else (noise / float(survey.scale[-1])) ** 2
        self.delta2 = 1.0 if spread is None else spread**2
        self.beta = 4.0 if beta is None else beta
        self.rate = default_rate(method.participation) if rate is None else rate
        self.base = np.full(self.k, 1.0 / self.k)
        # Sites that protect records do not tell how many labels move by chance.
        telling = set(ctx.presets.values()) <= {"simulation"}
        self.jumping = sampling.JUMPING if telling else sampling.JUMPING_BY_ALL
        self.totals: FloatArray = np.empty((0, 0))
        self.standing: dict[str, Standing] = {}
        self.round = self.merged_at = 0
        self.curve: tuple[FloatArray, float] | None = None
        self.curve_sites: tuple[str, ...] = ()
        self.merged = self.slowed = False
        self.path: list[tuple[int, float]] = []
        self.kept: list[Kept] = []
        self.moving: list[float] = []
        self.trace: defaultdict[str, list[Any]] = defaultdict(list)

    # ------------------------------------------------------------------ sizes

    @property
    def k(self) -> int:
        """Cells of all sums, empty ones included."""
        return self.settings.n_cells

    @property
    def alpha(self) -> float:
        """Concentration of the shares of the classes."""
        used = max(int((self.sums.counts > 1e-9).sum()), 1)
        return float(used) if self.method.alpha is None else self.method.alpha

    @property
    def sums(self) -> Totals:
        """The smoothed totals."""
        return self.unpack(self.totals)

    @property
    def classes(self) -> Classes:
        """Posterior of the classes' coefficients at present."""
        return classes_of(self.sums, self.sigma2, self.delta2)

    def unpack(self, packed: FloatArray) -> Totals:
        """Totals of packed sums."""
        return unpacked(packed, self.n_features, self.settings.fit_intercept)

    # ------------------------------------------------------------------ asking

    def ask(self, *, keep: bool, betas: Sequence[float] = ()) -> dict[str, Round]:
        """Messages of the next round, to the sites that are drawn for it."""
        to = sorted(self.standing)  # those that have begun
        asked = max(1, int(np.ceil(self.method.participation * len(to) - 1e-9)))
        if asked < len(to):
            to = [to[i] for i in np.sort(self.rng.permutation(len(to))[:asked])]
        self.round += 1
        message = partial(
            Round,
            settings=self.settings,
            round=self.round,
            totals=relayed(self.totals, Disclosure.AGGREGATE),
            base=relayed(self.base, Disclosure.AGGREGATE),
            sigma2=relayed(self.sigma2, Disclosure.AGGREGATE),
            delta2=relayed(self.delta2, Disclosure.AGGREGATE),
            alpha=self.alpha,
            beta=self.beta,
            keep=keep,
            betas=tuple(betas),
        )
        standing = [(site, self.standing[site]) for site in to]
        return {
            site: message(used=st.used, decay=st.decay, weight=st.weight, mapping=st.mapping)
            for site, st in standing
        }

    # ------------------------------------------------------------------ hearing

    def begin(self, replies: Mapping[str, Sums]) -> None:
        """First classes: everybody's own ones, merged, or those of chance, added up."""
        sums = _told(replies)
        mapping = {site: np.arange(self.k) for site in sums}
        if self.settings.start == "local":
            if self.method.noise == "draw":
                # What the sites' own classes leave: with the noise of one class all look alike.
                totals = self.unpack(np.concatenate(list(sums.values())))
                totals = totals.take(np.flatnonzero(totals.counts > 0))
                mean = classes_of(totals, self.sigma2 * _FIRM, self.delta2).mean
                free = float(totals.n.sum()) - mean.size
                if free > 0:
                    # residual variance of the sites' own classes
                    found = float(model.residuals(totals, mean).sum()) / free
                    self.sigma2 = min(self.sigma2, max(found, SMALLEST_SIGMA2))
            mapping = self._aligned(sums)
        for site in sorted(sums):
            status = np.asarray(replies[site].status)
            self.standing[site] = Standing(0, 0.0, 1.0, mapping[site], sums[site], status)
        self.totals = tree_sum([st.now for st in self.standing.values()])
        counts = self.sums.counts
        self.base = (counts + self.alpha / self.k) / (counts.sum() + self.alpha)
        self._note(replies, float("nan"))

    def _aligned(self, sums: dict[str, FloatArray]) -> dict[str, IntArray]:
        """Class of each class of each site: merged while it costs the least likelihood."""
        sites, k = sorted(sums), self.k
        heap: FloatArray = np.empty((0, sums[sites[0]].shape[1]))
        place: dict[str, IntArray] = {}
        for site in sites:
            cells = np.flatnonzero(sums[site][:, -MARKS] > 0)
            place[site] = np.full(k, -1)
            place[site][cells] = len(heap) + np.arange(len(cells))
            heap = np.concatenate([heap, sums[site][cells]])
            if len(heap) > k and (site == sites[-1] or len(heap) > _AT_ONCE):
                found, _ = merge_down(
                    self.unpack(heap), self.sigma2, self.delta2, n_classes=k, alpha=float(k)
                )
                place = {s: np.where(at < 0, -1, found[at]) for s, at in place.items()}
                heap = _moved(heap, found)[: int(found.max()) + 1]
        return {site: np.maximum(at, 0) for site, at in place.items()}

    def hear(self, replies: Mapping[str, Sums], *, keep: bool) -> None:
        """Take in the sums of a round, and draw what the classes share.

        Parameters
        ----------
        replies : mapping of str to Sums
        keep : bool
            Average the classes from here on.
        """
        sums = _told(replies)
        for site, own in sums.items():
            # Their labels are in the classes of now: merging was part of the question.
            status = np.asarray(replies[site].status)
            self.standing[site] = Standing(self.round, 1.0, 0.0, np.arange(self.k), own, status)
        if sums:
            self._smooth(sums)
        self._draw()
        # share of all labels that moved beyond chance; NaN where no site tells
        shares = np.array([float(reply.moved.value) for reply in replies.values()])
        labels = np.array([r.sums.value[:, -MARKS].sum() for r in replies.values()])
        known = np.isfinite(shares) & np.isfinite(labels)
        moved = float("nan")
        if labels[known].sum() > 0:
            moved = max(float(np.average(shares[known], weights=labels[known])), 0.0)
        self._note(replies, moved)
        # What protected sites tell holds moves by chance, which are many before classes are merged.
        judges = self.method.adapt_rate and (self.merged or self.jumping == sampling.JUMPING)
        if np.isfinite(self.trace["moved"][-1]) and judges:
            self.moving.append(self.trace["moved"][-1])
            noise = self.trace["sigma"][-len(self.moving) :]
            rate, jumped = sampling.next_rate(self.moving, self.rate, noise, least=self.jumping)
            if rate != self.rate:
                self.rate, self.moving = rate, []
            self.slowed = self.slowed or jumped
        if keep:
            self.kept.append(Kept(self.classes, self.totals, self.base, self.sigma2))

    def _smooth(self, sums: dict[str, FloatArray]) -> None:
        """Smooth the totals, and keep account of what they hold of each site."""
        current = dict(sorted(sums.items()))
        if self.method.server_cache:
            current = {site: st.now for site, st in sorted(self.standing.items())}
        # by how much the sums of some stand for those of all who have begun
        sizes = {
            site: self.survey.sizes[site][0] for site in self.standing if site in self.survey.sizes
        }
        told = sum(n for site, n in sizes.items() if site in current)
        everyone = sum(sizes.values())
        scale = everyone / told if told > 0 else len(self.standing) / max(len(current), 1)
        new = tree_sum(list(current.values())) * scale
        self.totals = sampling.smoothed(self.totals, new, self.rate)
        for site, st in self.standing.items():
            # algorithm 3: what was in the totals fades by the learning rate
            st.decay *= 1.0 - self.rate
            st.weight *= 1.0 - self.rate
            if site in current:
                st.weight += self.rate * scale

    def _draw(self) -> None:
        """Draw the variances and shares given the sums."""
        sums, drawn = self.sums, model.draw_weights(self.classes, self.rng)
        used = sums.n > 1e-9
        if self.method.noise == "draw":
            # noise and prior are drawn with the same coefficients
            sigma2 = model.draw_sigma2(sums, drawn, self.rng)
            self.sigma2 = max(sigma2, SMALLEST_SIGMA2)
        if self.method.prior_scale == "draw" and used.any():
            self.delta2 = model.draw_delta2(drawn[used], self.rng)
        tables, live = self.totals[:, -1], np.ones_like(used)
        if self.merged and used.any():  # a class that was merged away has no share
            live = used
        base = np.zeros(self.k)
        base[live] = model.draw_psi(tables[live], self.alpha, self.rng)
        self.base = np.maximum(base, 1e-300) if self.merged else base

    def set_beta(self, replies: Mapping[str, Sums], betas: Sequence[float]) -> None:
        """Take the value of beta under which the agents' labels are likeliest."""
        total = np.zeros(len(betas))
        for reply in replies.values():
            fits = np.array([float(v) for v in reply.fit.value])
            if not np.isfinite(fits).all():
                continue
            total += fits * float(np.nansum(np.asarray(reply.sums.value)[:, -MARKS]))
        if total.any():
            self.beta = float(betas[int(np.argmax(total))])

    def set_curve(self, told: Mapping[str, Curved]) -> None:
        """Fit one regression with squares to what the sites tell."""
        self.curve = curve_of(told, self.settings, self.n_features)
        finite = [s for s, reply in told.items() if np.isfinite(reply.sums.value).all()]
        self.curve_sites = tuple(sorted(finite))

    def settled(self, n_rounds: int) -> bool:
        """Whether the noise has stopped falling, after some rounds at least."""
        sigma = self.trace["sigma"]
        return n_rounds >= LEAST_ROUNDS and sigma[-1] > SETTLED * sigma[-1 - LOOKED_BACK]

    # ------------------------------------------------------------------ merging

    def merge(self, n_classes: int | None) -> None:
        """Merge classes down to so many, or while the marginal likelihood rises.

        By the sums of the last replies: smoothed ones would show what is left of a class as a
        class. A class that only those have who withheld it in their last reply is known by the
        smoothed sums alone. Of a class that was left only a trace is kept, so that what the
        smoothed sums still hold of it goes where it fits, and not where rounding leads.
        """
        standing = [st for _, st in sorted(self.standing.items())]
        found = tree_sum([st.now for st in standing])
        for st in standing:
            hidden = np.unique(st.mapping[st.status == WITHHELD])
            hidden = hidden[found[hidden, -MARKS] < LEAST_ENTITIES]
            found[hidden] = self.totals[hidden]
        left = np.flatnonzero((found[:, -MARKS] == 0) & (self.totals[:, -MARKS] > 0))
        found[left] = self.totals[left] * (TRACE / self.totals[left, -MARKS])[:, None]
        now = self.unpack(found)
        mapping, path = merge_down(
            now,
            self.sigma2,
            self.delta2,
            n_classes=n_classes,
            alpha=float(self.k) if self.method.alpha is None else self.method.alpha,
            # What the labels' own entropies are is the sites' knowledge; this much is to be
            # expected of such classes.
            entropies=model.expected_entropies(now, self.sigma2, self.delta2),
        )
        self.path += path
        self.totals = _moved(self.totals, mapping)
        self.base = np.maximum(_moved(self.base, mapping), 1e-300)
        for st in self.standing.values():
            st.mapping = mapping[st.mapping]
        self.merged = True
        self.moving = []

    # ------------------------------------------------------------------ the end

    def ending(self) -> Ending:
        """The classes as they are in the end."""
        kept = self.kept or [Kept(self.classes, self.totals, self.base, self.sigma2)]
        if self.kept:
            self.totals = np.asarray(np.mean([each.totals for each in kept], axis=0))
        counts = self.sums.counts
        # smoothed classes with less than half an entity are what was left behind
        cells = np.flatnonzero(counts >= LEAST_ENTITIES)
        cells = cells[np.argsort(-counts[cells], kind="stable")]
        if not len(cells):
            cells = np.array([0])
        events = np.array([self.unpack(each.totals).n for each in self.kept])
        mean, covariance = model.coefficient_moments(
            [each.classes for each in kept], events if self.kept else None
        )
        base = np.mean([each.base for each in kept], axis=0)[cells]
        sigma2 = float(np.mean([each.sigma2 for each in kept]))
        mapping = np.full(self.k, -1, dtype=np.int64)
        mapping[cells] = np.arange(len(cells))
        base = base / base.sum()
        return Ending(mapping, mean[cells], covariance[cells], base, sigma2, self.delta2)

    def one_class(self, ending: Ending) -> Ending:
        """One regression in the place of these classes: that which they were judged beside."""
        one, sigma2 = self.survey, self.survey.sigma2
        mapping = np.minimum(ending.mapping, 0)
        return Ending(mapping, one.ridge[None], one.covariance[None], np.ones(1), sigma2, sigma2)

    def _note(self, replies: Mapping[str, Sums], moved: float) -> None:
        sums, trace = self.sums, self.trace
        marginal = model.log_marginal(sums, self.sigma2, self.delta2)
        trace["sigma"].append(float(np.sqrt(self.sigma2)))
        trace["moved"].append(moved)
        trace["log_marginal"].append(float(marginal.sum()))
        trace["classes"].append(int((sums.counts >= LEAST_ENTITIES).sum()))
        trace["rate"].append(self.rate)
        # the sites that reported, with their numbers of classes of each status
        trace["status"].append(
            {site: np.bincount(np.asarray(r.status), minlength=4) for site, r in replies.items()}
        )


def _told(replies: Mapping[str, Sums]) -> dict[str, FloatArray]:
    """Sums by site, with nothing where a class is withheld."""
    found = {}
    for site, reply in replies.items():
        sums = np.asarray(reply.sums.value)
        found[site] = np.where(np.isnan(sums).any(axis=1)[:, None], 0.0, sums)
    return found


def _moved(sums: FloatArray, mapping: IntArray) -> FloatArray:
    """Sums after some classes became one."""
    found = np.zeros_like(sums)
    np.add.at(found, mapping, sums)
    return found
