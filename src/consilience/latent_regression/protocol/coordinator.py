"""What the coordinator knows while the rounds go on: smoothed sums, what classes share, a trace.

What the sites bring at first (sizes and moments) sets the units of the fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.latent_regression.kernels.latent_class import Classes, Totals, classes_of, tree_sum
from consilience.latent_regression.kernels.marginal_likelihood import (
    coefficient_moments,
    draw_delta2,
    draw_psi,
    draw_sigma2,
    draw_weights,
    expected_entropies,
    log_marginal,
    merge_down,
    start_sigma2,
)
from consilience.latent_regression.kernels.sampling import (
    JUMPING,
    next_rate,
    smoothed,
)
from consilience.latent_regression.protocol.events import WITHHELD
from consilience.latent_regression.protocol.messages import (
    MARKS,
    Offered,
    Round,
    Settings,
    Sums,
    full_products,
    unpacked,
)
from consilience.wire.disclosure import relayed
from consilience.wire.message import Disclosure

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
    events, entities, agents : dict of str to float
        Of the sites that tell them; events are sums of weights.
    centre, scale : (p + 1,) arrays
        Of features and response: means and standard deviations, or roots of mean squares where
        there is no intercept.
    sigma2 : float
        Residual variance of one regression for all, in these units.
    ridge : (F,) array
        That regression.
    constant : (p + 1,) bool array
        Features and response that do not vary.
    shared : (p,) bool array
        Features that follow from others of them.
    """

    sites: tuple[str, ...]
    events: dict[str, float]
    entities: dict[str, float]
    agents: dict[str, float]
    centre: FloatArray
    scale: FloatArray
    sigma2: float
    ridge: FloatArray
    constant: NDArray[np.bool_]
    shared: NDArray[np.bool_]

    @property
    def told(self) -> dict[str, dict[str, float]]:
        """What a site's other replies are judged by, where it told how much it has."""
        return {s: {"events": n, "entities": self.entities[s]} for s, n in self.events.items()}


def survey_of(offered: Mapping[str, Offered], settings: Settings, n_features: int) -> Survey | None:
    """Add up what the sites bring; None where no site tells anything."""
    p = n_features + 2
    told = {}
    for site, reply in sorted(offered.items()):
        row = np.asarray(reply.sums.value)[0]
        if np.isfinite(row).all():
            told[site] = row
    if not told:
        return None
    total = full_products(tree_sum(list(told.values()))[None, :], p)[0]
    centre, scale, constant = _units(total, settings.fit_intercept)
    sigma2, ridge = _one_class(total, centre, scale, settings.fit_intercept)
    return Survey(
        sites=tuple(sorted(offered)),
        events={site: float(row[0]) for site, row in told.items()},
        entities={site: float(row[-2]) for site, row in told.items()},
        agents={site: float(row[-1]) for site, row in told.items()},
        centre=centre,
        scale=scale,
        sigma2=sigma2,
        ridge=ridge,
        constant=constant,
        shared=_dependent(total, centre, scale, constant),
    )


def _units(
    total: FloatArray, fit_intercept: bool
) -> tuple[FloatArray, FloatArray, NDArray[np.bool_]]:
    """Centres and scales of features and response, and which of them do not vary."""
    n = total[0, 0]
    squares = np.diagonal(total)[1:] / n
    centre = total[0, 1:] / n if fit_intercept else np.zeros(len(squares))
    spread = np.maximum(squares - centre**2, 0.0)
    # What rounding leaves of a constant column is no scale.
    constant = ~(spread > _CONSTANT * squares)
    return centre, np.sqrt(np.where(constant, 1.0, spread)), constant


def _scaled(total: FloatArray, centre: FloatArray, scale: FloatArray) -> FloatArray:
    """The sums of products in the units of a fit."""
    p = len(total)
    change = np.zeros((p, p))
    change[0, 0] = 1.0
    # (1, x, y) C has the centred and scaled columns, so its products are C'TC
    change[0, 1:] = -centre / scale
    change[np.arange(1, p), np.arange(1, p)] = 1.0 / scale
    return np.asarray(change.T @ total @ change)


def _dependent(
    total: FloatArray,
    centre: FloatArray,
    scale: FloatArray,
    constant: NDArray[np.bool_],
) -> NDArray[np.bool_]:
    """Which features are a combination of others, as far as sums of products tell."""
    products = _scaled(total, centre, scale)[1:-1, 1:-1] / total[0, 0]
    found = np.zeros(len(products), dtype=bool)
    varies = np.flatnonzero(~constant[:-1])
    if len(varies):
        values, vectors = np.linalg.eigh(products[np.ix_(varies, varies)])
        # combinations of columns that are constant
        none = np.abs(vectors[:, values < _DEPENDENT])
        found[varies] = (none > _PART).any(axis=1)
    return found


def _one_class(
    total: FloatArray, centre: FloatArray, scale: FloatArray, fit_intercept: bool
) -> tuple[float, FloatArray]:
    """Residual variance and coefficients of one ridge regression for all, in the units of a fit."""
    moved = _scaled(total, centre, scale)
    first = 0 if fit_intercept else 1
    products, cross = moved[first:-1, first:-1], moved[first:-1, -1]
    square = max(float(moved[-1, -1]), 0.0)
    sigma2 = float(
        start_sigma2(products[None], cross[None], np.array([square]), np.array([total[0, 0]]))
    )
    # penalty sigma2 / delta2 = 1
    ridge = np.linalg.solve(products + np.eye(len(products)), cross)
    return sigma2, np.asarray(ridge, dtype=np.float64)


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


@dataclass
class Standing:
    """What the totals hold of a site.

    Attributes
    ----------
    used : int
        Round of its reply that they hold; -1 for none.
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


@dataclass
class Shared:
    """What all classes share; either drawn in every round or fixed.

    Attributes
    ----------
    sigma2, delta2 : float
    base : (k,) array
        psi.
    alpha : float or None
        None: as many as classes.
    beta : float
    draws_sigma, draws_delta : bool
    """

    sigma2: float
    delta2: float
    base: FloatArray
    alpha: float | None
    beta: float
    draws_sigma: bool
    draws_delta: bool


class Kept(NamedTuple):
    """A round over which is averaged: classes, smoothed sums (k, d), psi (k,), sigma2."""

    classes: Classes
    totals: FloatArray
    base: FloatArray
    sigma2: float


@dataclass
class Rounds:
    """State of the exchange at the coordinator.

    Attributes
    ----------
    settings : Settings
    sites : tuple of str
    n_features : int
    events : dict of str to float
        Sum of weights at each site, as far as it is known.
    shared : Shared
    rate : float
    adapts : bool
        Whether the rate is lowered where labels jump.
    jumping : float
        Share of labels that jumps, at least.
    cache : bool
        Add up everybody's last sums, not only those of the round.
    rng : numpy.random.Generator
    totals : (k, d) array
        Smoothed sums, packed.
    """

    settings: Settings
    sites: tuple[str, ...]
    n_features: int
    events: dict[str, float]
    shared: Shared
    rate: float
    adapts: bool
    jumping: float
    cache: bool
    rng: np.random.Generator
    totals: FloatArray = field(default_factory=lambda: np.empty((0, 0)))
    standing: dict[str, Standing] = field(default_factory=dict)
    round: int = 0
    merged: bool = False
    slowed: bool = False
    path: list[tuple[int, float]] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)
    moving: list[float] = field(default_factory=list)
    trace: dict[str, list[Any]] = field(
        default_factory=lambda: {
            name: []
            for name in ("sigma", "moved", "log_marginal", "classes", "rate", "status", "reported")
        }
    )

    # ------------------------------------------------------------------ sizes

    @property
    def k(self) -> int:
        """Cells of all sums, empty ones included."""
        return self.settings.n_cells

    @property
    def alpha(self) -> float:
        """Concentration of the shares of the classes."""
        used = max(int((self.sums.counts > 1e-9).sum()), 1)
        return float(used) if self.shared.alpha is None else self.shared.alpha

    @property
    def sums(self) -> Totals:
        """The smoothed totals."""
        return self.unpack(self.totals)

    @property
    def classes(self) -> Classes:
        """Posterior of the classes' coefficients at present."""
        return classes_of(self.sums, self.shared.sigma2, self.shared.delta2)

    def unpack(self, packed: FloatArray) -> Totals:
        """Totals of packed sums."""
        return unpacked(packed, self.n_features, self.settings.fit_intercept)

    # ------------------------------------------------------------------ asking

    def ask(self, to: Sequence[str], *, keep: bool, betas: Sequence[float] = ()) -> dict[str, Any]:
        """Messages of the next round by site."""
        self.round += 1
        nobody = np.zeros(self.k, dtype=np.int64)
        nowhere = Standing(-1, 0.0, 0.0, np.arange(self.k), np.empty((0, 0)), nobody)
        common: dict[str, Any] = {
            "settings": self.settings.to_json(),
            "round": self.round,
            "totals": relayed(self.totals, Disclosure.AGGREGATE),
            "base": relayed(self.shared.base, Disclosure.AGGREGATE),
            "sigma2": relayed(self.shared.sigma2, Disclosure.AGGREGATE),
            "delta2": relayed(self.shared.delta2, Disclosure.AGGREGATE),
            "alpha": self.alpha,
            "beta": float(self.shared.beta),
            "keep": keep,
            "betas": tuple(float(b) for b in betas),
        }
        messages = {}
        for site in to:
            st = self.standing.get(site, nowhere)
            messages[site] = Round(
                used=st.used, decay=st.decay, weight=st.weight, mapping=st.mapping, **common
            )
        return messages

    # ------------------------------------------------------------------ hearing

    def begin(self, replies: Mapping[str, Sums]) -> None:
        """First classes: everybody's own ones, merged, or those of chance, added up."""
        sums = _told(replies)
        mapping = {site: np.arange(self.k) for site in sums}
        if self.settings.start == "local":
            self._own_noise(list(sums.values()))
            mapping = self._aligned(sums)
        for site in sorted(sums):
            status = np.asarray(replies[site].status)
            self.standing[site] = Standing(0, 0.0, 1.0, mapping[site], sums[site], status)
        scale = self._scale(sums)
        self.totals = tree_sum([_moved(sums[x], mapping[x]) for x in sorted(sums)]) * scale
        for standing in self.standing.values():
            standing.weight = scale
        counts = self.sums.counts
        self.shared.base = (counts + self.alpha / self.k) / (counts.sum() + self.alpha)
        self._note(replies, float("nan"))

    def _own_noise(self, sums: list[FloatArray]) -> None:
        """What the sites' own classes leave: with the noise of one class all would look alike."""
        if not self.shared.draws_sigma:
            return
        totals = self.unpack(np.concatenate(sums))
        totals = totals.take(np.flatnonzero(totals.counts > 0))
        mean = classes_of(totals, self.shared.sigma2 * _FIRM, self.shared.delta2).mean
        fitted = np.einsum("kfg,kg->kf", totals.products, mean) - 2.0 * totals.cross
        rest = np.maximum(totals.squares + np.einsum("kf,kf->k", mean, fitted), 0.0).sum()
        free = float(totals.n.sum()) - mean.size
        if free > 0:
            # residual variance of the sites' own classes
            found = max(float(rest) / free, SMALLEST_SIGMA2)
            self.shared.sigma2 = min(self.shared.sigma2, found)

    def _aligned(self, sums: dict[str, FloatArray]) -> dict[str, IntArray]:
        """Class of each class of each site: merged while it costs the least likelihood."""
        mapping = {site: np.zeros(self.k, dtype=np.int64) for site in sums}
        heap: FloatArray = np.empty((0, next(iter(sums.values())).shape[1]))
        owners: list[list[tuple[str, int]]] = []
        names = sorted(sums)
        for place, site in enumerate(names):
            for cell in np.flatnonzero(sums[site][:, -MARKS] > 0).tolist():
                heap = np.concatenate([heap, sums[site][[cell]]])
                owners.append([(site, cell)])
            last = place == len(names) - 1
            if len(heap) > self.k and (last or len(heap) > _AT_ONCE):
                heap, owners = self._merged_heap(heap, owners)
        for new, members in enumerate(owners):
            for site, cell in members:
                mapping[site][cell] = new
        return mapping

    def _merged_heap(
        self, heap: FloatArray, owners: list[list[tuple[str, int]]]
    ) -> tuple[FloatArray, list[list[tuple[str, int]]]]:
        variances = self.shared.sigma2, self.shared.delta2
        k = self.k
        found, _ = merge_down(self.unpack(heap), *variances, n_classes=k, alpha=float(k))
        n = int(found.max()) + 1
        joined: list[list[tuple[str, int]]] = [[] for _ in range(n)]
        for old, new in enumerate(found.tolist()):
            joined[new] += owners[old]
        return _moved(heap, found)[:n], joined

    def _scale(self, who: Mapping[str, Any]) -> float:
        """By how much the sums of some stand for those of all who have begun."""
        known = [site for site in self.standing if site in self.events]
        told = sum(self.events[site] for site in known if site in who)
        everyone = sum(self.events[site] for site in known)
        return everyone / told if told > 0 else len(self.standing) / max(len(who), 1)

    def hear(self, replies: Mapping[str, Sums], *, keep: bool) -> None:
        """Take in the sums of a round, and draw what the classes share.

        Parameters
        ----------
        replies : mapping of str to Sums
        keep : bool
            Average the classes from here on.
        """
        sums = _told(replies)
        if sums:
            self._update(sums, replies)
        self._draw()
        self._note(replies, _moved_beyond_chance(replies))
        # What protected sites tell holds moves by chance, which are many before classes are merged.
        judges = self.adapts and (self.merged or self.jumping == JUMPING)
        if np.isfinite(self.trace["moved"][-1]) and judges:
            self.moving.append(self.trace["moved"][-1])
            noise = self.trace["sigma"][-len(self.moving) :]
            rate, jumped = next_rate(self.moving, self.rate, noise, least=self.jumping)
            if rate != self.rate:
                self.rate, self.moving = rate, []
            self.slowed = self.slowed or jumped
        if keep:
            now = (self.totals, self.shared.base, self.shared.sigma2)
            self.kept.append(Kept(self.classes, *now))

    def _update(self, sums: dict[str, FloatArray], replies: Mapping[str, Sums]) -> None:
        """Smooth the totals, and keep account of what they hold of each site."""
        rate = self.rate
        for site, own in sums.items():
            # Their labels are in the classes of now: merging was part of the question.
            status = np.asarray(replies[site].status)
            self.standing[site] = Standing(self.round, 1.0, 0.0, np.arange(self.k), own, status)
        current = dict(sorted(sums.items()))
        if self.cache:
            standing = sorted(self.standing.items())
            current = {site: _moved(st.sums, st.mapping) for site, st in standing}
        scale = self._scale(current)
        new = tree_sum(list(current.values())) * scale
        self.totals = smoothed(self.totals, new, rate)
        for site, st in self.standing.items():
            # algorithm 3: what was in the totals fades by the learning rate
            st.decay *= 1.0 - rate
            st.weight *= 1.0 - rate
            if site in current:
                st.weight += rate * scale

    def _draw(self) -> None:
        """Draw the variances and shares given the sums."""
        sums, shared = self.sums, self.shared
        classes = self.classes
        drawn = draw_weights(classes, self.rng)
        used = sums.n > 1e-9
        if shared.draws_sigma:
            # noise and prior are drawn with the same coefficients
            sigma2 = draw_sigma2(sums, classes, self.rng, weights=drawn)
            shared.sigma2 = max(sigma2, SMALLEST_SIGMA2)
        if shared.draws_delta and used.any():
            shared.delta2 = draw_delta2(drawn[used], self.rng)
        tables, live = self.totals[:, -1], np.ones_like(used)
        if self.merged and used.any():  # a class that was merged away has no share
            live = used
        base = np.zeros(self.k)
        base[live] = draw_psi(tables[live], self.alpha, self.rng)
        shared.base = np.maximum(base, 1e-300) if self.merged else base

    def set_beta(self, replies: Mapping[str, Sums], betas: Sequence[float]) -> None:
        """Take the value of beta under which the agents' labels are likeliest."""
        total = np.zeros(len(betas))
        for reply in replies.values():
            fits = np.array([float(v) for v in reply.fit.value])
            if not np.isfinite(fits).all():
                continue
            total += fits * float(np.nansum(np.asarray(reply.sums.value)[:, -MARKS]))
        if total.any():
            self.shared.beta = float(betas[int(np.argmax(total))])

    def settled(self, n_rounds: int) -> bool:
        """Whether the noise has stopped falling, after some rounds at least."""
        sigma = self.trace["sigma"]
        return n_rounds >= LEAST_ROUNDS and sigma[-1] > SETTLED * sigma[-1 - LOOKED_BACK]

    # ------------------------------------------------------------------ merging

    def _last_sums(self) -> FloatArray:
        """Sums of the last replies; smoothed ones would show what is left of a class as a class.

        A class that only those have who withheld it in their last reply is known by the smoothed
        sums alone. Of a class that was left only a trace is kept, so that what the smoothed sums
        still hold of it goes where it fits, and not where rounding leads.
        """
        standing = [st for _, st in sorted(self.standing.items())]
        found = tree_sum([_moved(st.sums, st.mapping) for st in standing])
        for st in standing:
            hidden = np.unique(st.mapping[st.status == WITHHELD])
            hidden = hidden[found[hidden, -MARKS] < LEAST_ENTITIES]
            found[hidden] = self.totals[hidden]
        left = np.flatnonzero((found[:, -MARKS] == 0) & (self.totals[:, -MARKS] > 0))
        found[left] = self.totals[left] * (TRACE / self.totals[left, -MARKS])[:, None]
        return found

    def merge(self, n_classes: int | None) -> None:
        """Merge classes down to so many, or while the marginal likelihood rises."""
        now = self.unpack(self._last_sums())
        mapping, path = merge_down(
            now,
            self.shared.sigma2,
            self.shared.delta2,
            n_classes=n_classes,
            alpha=self.alpha if self.shared.alpha is not None else float(self.k),
            # What the labels' own entropies are is the sites' knowledge; this much is to be
            # expected of such classes.
            entropies=expected_entropies(now, self.shared.sigma2, self.shared.delta2),
        )
        mapping = np.asarray(mapping)
        # Classes without events are nobody's: they may go anywhere.
        mapping = np.where(mapping < 0, self.k - 1, mapping)
        self.path += [(int(n), float(gain)) for n, gain in path]
        self.totals = _moved(self.totals, mapping)
        self.shared.base = np.maximum(_moved(self.shared.base[:, None], mapping)[:, 0], 1e-300)
        for st in self.standing.values():
            st.mapping = mapping[st.mapping]
        self.merged = True
        self.moving = []

    # ------------------------------------------------------------------ the end

    def ending(self) -> tuple[IntArray, FloatArray, FloatArray]:
        """Cells that are classes in the end, by size, and their coefficients.

        Returns
        -------
        cells : (K,) int array
        mean : (K, F) array
        covariance : (K, F, F) array
        """
        if self.kept:
            self.totals = np.asarray(np.mean([each.totals for each in self.kept], axis=0))
        counts = self.sums.counts
        # smoothed classes with less than half an entity are what was left behind
        cells = np.flatnonzero(counts >= LEAST_ENTITIES)
        cells = cells[np.argsort(-counts[cells], kind="stable")]
        if not len(cells):
            cells = np.array([0])
        events = np.array([self.unpack(each.totals).n for each in self.kept])
        kept = [each.classes for each in self.kept] or [self.classes]
        mean, covariance = coefficient_moments(kept, events if self.kept else None)
        return cells, mean[cells], covariance[cells]

    def _note(self, replies: Mapping[str, Sums], moved: float) -> None:
        sums, trace = self.sums, self.trace
        marginal = log_marginal(sums, self.shared.sigma2, self.shared.delta2)
        trace["sigma"].append(float(np.sqrt(self.shared.sigma2)))
        trace["moved"].append(moved)
        trace["log_marginal"].append(float(marginal.sum()))
        trace["classes"].append(int((sums.counts >= LEAST_ENTITIES).sum()))
        trace["rate"].append(self.rate)
        trace["status"].append(
            {site: np.bincount(np.asarray(r.status), minlength=4) for site, r in replies.items()}
        )
        trace["reported"].append(tuple(sorted(replies)))


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


def _moved_beyond_chance(replies: Mapping[str, Sums]) -> float:
    """Share of all labels that moved beyond chance; NaN where no site tells."""
    told = [
        (float(reply.moved.value), float(np.asarray(reply.sums.value)[:, -MARKS].sum()))
        for reply in replies.values()
    ]
    known = np.array([pair for pair in told if np.isfinite(pair).all()]).reshape(-1, 2)
    if not known[:, 1].sum() > 0:
        return float("nan")
    return max(float(np.average(known[:, 0], weights=known[:, 1])), 0.0)
