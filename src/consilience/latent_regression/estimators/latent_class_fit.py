"""Fit latent classes to blocks of events: restarts, mergers, the best of several answers.

A run is a chain of sweeps: labels are drawn, then what classes share; mergers; averages at the end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import BoolArray, FloatArray, IntArray
from consilience.exceptions import DataError, ParameterError
from consilience.latent_regression.kernels import marginal_likelihood as model
from consilience.latent_regression.kernels import sampling
from consilience.latent_regression.kernels.degrees import (
    Degrees,
    draw_degrees,
    mean_degrees,
    view_of,
)
from consilience.latent_regression.kernels.evidence import Sweep
from consilience.latent_regression.kernels.latent_class import (
    Blocks,
    Classes,
    Totals,
    agent_key,
    block_log_likelihood,
    classes_of,
    totals_of,
)
from consilience.latent_regression.kernels.prediction import posterior_weights
from consilience.numerics.parallel import one_thread, ordered_map
from consilience.numerics.random import stream
from consilience.numerics.two_way_tables import adjusted_rand_index, scale_reduction
from consilience.parameters import (
    FLAG,
    LEFT_OUT,
    allows,
    check,
    just,
    number,
    one_of,
    rules_of,
    whole,
)

SMALLEST_SIGMA2 = 1e-10
"""Where y is explained without a rest; y has variance 1."""
_RESIDUE = 0.5  # a class with less than half an expected entity is empty
_JUDGED = 10  # sweeps that are judged on events they leave out
_COMPARED = 500  # entities whose predictions are compared between chains
RESOLVED = 1e-13
"""Noise per prior and events below which rounding hides the prior of columns that depend on one
another."""


class Chain:
    """State of a run, without labels at first; `sweep` moves it on.

    Parameters
    ----------
    blocks : Blocks
    settings : Settings
    keys : (A,) array of uint64
        Of the agents' streams.
    rng : numpy.random.Generator
        For what classes share.
    first_round : int
        Of the first sweep; draws of different rounds are independent.
    n_start : int
        Classes, empty ones at first.
    noise : float
        The variance of the noise in the first sweep, where it is not fixed: share of what one
        regression for all leaves. Entities are labelled one after the other, and the less noise is
        granted, the sooner one that does not fit opens a class of its own; as random classes of
        all entities are alike, they may take very long to part.

    Attributes
    ----------
    blocks : Blocks
        As degrees make them, see `View`.
    degrees : Degrees
        What entities have of their own.
    sigma2 : float or (K,) array
        Variance of the noise; with noise by class that of each, around `noise_scale`.
    labels : (E,) array of int
    totals : Totals
        In the parallel schedule smoothed over rounds.
    base : (K,) array
    own : (E, K) array, optional
        Parallel schedule: weight of each entity in the totals.
    log_labels : float
        Log probability of the labels, given base and beta.
    """

    def __init__(
        self,
        blocks: Blocks,
        settings: Settings,
        keys: NDArray[np.uint64],
        rng: np.random.Generator,
        *,
        first_round: int,
        n_start: int,
        noise: float = 0.1,
    ) -> None:
        self.blocks, self.settings, self.keys, self.rng = blocks, settings, keys, rng
        self.round = first_round
        self.labels: IntArray = np.full(len(blocks.n), -1, dtype=np.int64)
        self.totals = Totals.zeros(n_start, blocks.n_features)
        self.base = np.full(n_start, 1.0 / n_start)
        pooled = model.start_sigma2(blocks.products, blocks.cross, blocks.squares, blocks.n)
        if settings.schedule == "sequential":
            # see `noise` above: less of it parts the classes sooner
            pooled *= noise
        sigma2 = pooled if settings.sigma == "draw" else float(settings.sigma) ** 2
        sigma2 = max(sigma2, SMALLEST_SIGMA2)
        self.noise_scale = sigma2 if settings.noise_by_class else None
        self.sigma2: model.Noise = np.full(n_start, sigma2) if settings.noise_by_class else sigma2
        self.delta2 = 1.0 if settings.delta == "draw" else float(settings.delta) ** 2
        self.beta = 4.0 if settings.beta == "grid" else float(settings.beta)
        self.own: FloatArray | None = None
        self.rate, self.jumped, self.log_labels = settings.learning_rate, False, 0.0
        self.plain, self.bonus = blocks, 0.0
        self.degrees = settings.degrees(blocks)
        self.look()
        self.excesses: list[float] = []
        self.path: list[tuple[int, float]] = []
        self.trace: defaultdict[str, list[float]] = defaultdict(list)

    @property
    def n_classes(self) -> int:
        """Classes at present, empty ones included."""
        return len(self.base)

    @property
    def alpha(self) -> float:
        """Concentration of the common shares."""
        given = self.settings.alpha
        return float(self.n_classes) if given is None else given

    def look(self) -> None:
        """See the events as the degrees make them."""
        self.view = view_of(self.plain, self.degrees)
        self.blocks = self.view.white
        self.bonus -= 0.5 * float(self.view.log_det.sum())

    # ------------------------------------------------------------------ sweeps

    def sweep(self) -> None:
        """Draw all labels once, then what the classes share."""
        if self.settings.schedule == "parallel":
            moved = self._all_at_once()
        else:
            self.labels, _, moved = sampling.sweep(
                self.blocks,
                self.labels,
                self.totals,
                self.sigma2,
                self.delta2,
                self.base,
                self.beta,
                self.keys,
                self.round,
                shortcut_alpha=self.alpha if self.settings.concentration == "shortcut" else None,
            )
            # What was taken out and put in leaves rounding errors behind: add up anew.
            self.totals = totals_of(self.blocks, self.labels, self.n_classes)
        self._draw_shared()
        self.round += 1
        if self.noise_scale is None:
            each = model.log_marginal(self.totals, self.sigma2, self.delta2)
        else:  # integrated out: with more classes drawn noise fits better
            each = model.log_marginal_noise(self.totals, self.noise_scale, self.delta2)[0]
        self.trace["log_marginal"].append(float(each.sum() + self.log_labels) + self.bonus)
        noise = np.broadcast_to(self.sigma2, self.n_classes)
        mean = noise[0] if self.noise_scale is None else np.average(noise, weights=self.totals.n)
        self.trace["sigma"].append(float(np.sqrt(mean)))
        self.trace["moved"].append(moved / max(len(self.labels), 1))
        self.trace["n_classes"].append(float(len(np.unique(self.labels))))
        self.trace["learning_rate"].append(self.rate)

    def _all_at_once(self) -> int:
        classes = self.classes()
        first = self.own is None
        own = np.zeros((len(self.labels), self.n_classes)) if self.own is None else self.own
        exact = self.settings.concentration == "exact"
        self.labels, probabilities, moved = sampling.draw_labels(
            self.blocks,
            classes,
            np.full_like(self.labels, -1) if first else self.labels,
            own,
            self.base,
            self.beta,
            self.keys,
            self.round,
            shortcut_counts=None if exact else self.totals.counts,
            # section 3.2: psi drawn, or the shortcut from the counts
            alpha=None if exact else self.alpha,
        )
        new = totals_of(self.blocks, self.labels, self.n_classes)
        # the first sums count alone
        rate = 1.0 if first else self.rate
        self.totals = sampling.smoothed(None if first else self.totals, new, rate)
        self.own = sampling.own_weights(own, self.labels, 1.0 - rate, rate)
        if not first:
            far = sampling.excess(
                float(moved), sampling.expected_moves(probabilities), len(self.labels)
            )
            self.excesses.append(far)
            noise = self.trace["sigma"][-len(self.excesses) :]
            lowered, jumps = sampling.next_rate(self.excesses, self.rate, noise)
            if jumps:
                self.jumped, self.rate = True, lowered
                self.excesses.clear()
        return moved

    def classes(self) -> Classes:
        """The classes given the totals."""
        return classes_of(self.totals, self.sigma2, self.delta2)

    def agent_counts(self) -> IntArray:
        """Entities by agent and class, (A, K)."""
        counts = np.zeros((self.blocks.n_agents, self.n_classes), dtype=np.int64)
        np.add.at(counts, (self.blocks.agent, self.labels), 1)
        return counts

    # ------------------------------------------------------------------ what classes share

    def _draw_shared(self) -> None:
        settings = self.settings
        drawn = model.draw_weights(self.classes(), self.rng)
        used = self.totals.n > 0
        if settings.delta == "draw" and used.any():
            self.delta2 = model.draw_delta2(drawn[used], self.rng)
        # below it rounding hides the prior
        least = max(SMALLEST_SIGMA2, resolved_sigma2(self.delta2, self.totals.products))
        if self.noise_scale is not None:
            found, self.noise_scale = model.draw_class_noise(
                self.totals, drawn, self.noise_scale, self.rng
            )
            self.sigma2 = np.maximum(found, least)
        elif settings.sigma == "draw":
            self.sigma2 = max(model.draw_sigma2(self.totals, drawn, self.rng), least)
        if not self.degrees.none:
            self.degrees, self.bonus = draw_degrees(
                self.degrees,
                self.plain,
                self.view,
                drawn[self.labels],
                np.broadcast_to(self.sigma2, self.n_classes)[self.labels],
                self.rng,
            )
            self.look()
            self.totals = totals_of(self.blocks, self.labels, self.n_classes)
        counts = self.agent_counts()
        if settings.concentration == "exact":
            tables = sampling.table_counts(counts, self.beta, self.base, self.keys, self.round)
            self.base = model.draw_psi(np.asarray(tables).sum(axis=0), self.alpha, self.rng)
        else:
            sizes = counts.sum(axis=0) + self.alpha / self.n_classes
            self.base = np.asarray(sizes / sizes.sum(), dtype=np.float64)
        grid = model.BETAS if settings.beta == "grid" else np.array([self.beta])
        logs = model.concentration_log_likelihood(counts, self.base, grid)
        ends = np.exp(logs - logs.max()).cumsum()
        at = int(np.searchsorted(ends, self.rng.random() * ends[-1], side="right"))
        at = min(at, len(grid) - 1)
        self.beta, self.log_labels = float(grid[at]), float(logs[at])

    # ------------------------------------------------------------------ mergers

    def merge(self, n_classes: int | None) -> bool:
        """Merge classes down to a number, or while the gain is positive; False if none were."""
        before = self.n_classes
        # Smoothed totals would split an entity that is a class of its own, and moves between the
        # empty ones, into parts that look like the rest of a class that was left.
        now = totals_of(self.blocks, self.labels, before)
        mapping, path = model.merge_down(
            now,
            self.sigma2,
            self.delta2,
            n_classes=n_classes,
            alpha=self.alpha,
            entropies=model.label_entropies(self._probabilities()),
            noise_scale=self.noise_scale,
        )
        k = int(mapping.max()) + 1
        self.path.extend(path)
        self.labels = mapping[self.labels]
        self.totals = now.merged(mapping, k)
        if self.noise_scale is not None:
            self.sigma2 = model.log_marginal_noise(self.totals, self.noise_scale, self.delta2)[1]
        self.base = np.asarray(
            np.bincount(mapping, weights=self.base, minlength=k), dtype=np.float64
        )
        if self.own is not None:
            self.own = sampling.own_weights(None, self.labels, 0.0, 1.0, n_classes=k)
            self.excesses.clear()
        return k < before

    # ------------------------------------------------------------------ averages

    def average(self, n_sweeps: int) -> tuple[Averages, float]:
        """Go on for some sweeps and average over them, classes matched by the labels they hold.

        Classes come by falling size, those without entities left out. The number is the log
        marginal likelihood of events and labels, plus the entropy of the labels: a bound for that
        of the events, which does not prefer few classes where classes overlap. It is charged for
        what the shares of more classes may fit by chance, as in the BIC.
        """
        kept: list[Classes] = []
        probabilities = np.zeros((len(self.labels), self.n_classes))
        sizes = np.zeros((n_sweeps, self.n_classes))
        noise = np.zeros((n_sweeps, self.n_classes))
        sums = np.zeros(2)
        base = np.zeros(self.n_classes)
        entropy = 0.0
        # the mean row of each of some entities with events, spread evenly over all of them
        known, b = np.flatnonzero(self.plain.n > 0), self.plain
        at = known[:: -(-len(known) // _COMPARED)]
        sums_of_rows = [b.x[b.start[e] : b.start[e + 1]].sum(axis=0) for e in at]
        middle = np.array(sums_of_rows) / b.n[at, None]
        sweeps: list[Sweep] = []
        drawn: dict[str, list[FloatArray]] = {"class_shares": [], "prediction": []}
        for s in range(n_sweeps):
            self.sweep()
            now, classes, shares = self._probabilities(), self.classes(), self.base
            noise[s] = self.sigma2
            shared = self.base, self.beta, self.sigma2, self.delta2
            sweeps.append(Sweep(self.labels, *shared, self.degrees))
            drawn["class_shares"].append(np.sort(now[self.blocks.n > 0].mean(axis=0))[::-1])
            drawn["prediction"].append((now[at] * (middle @ classes.mean.T)).sum(axis=1))
            # of the labels: with it the mean log probability bounds that of the events
            entropy -= float(np.sum(now * np.log(np.where(now > 0, now, 1.0))))
            if s:  # classes may change places where entities are few, or classes too many
                order = model.align_classes(now, probabilities, self.blocks.n)
                now, classes, shares = now[:, order], classes.take(order), shares[order]
                noise[s] = noise[s, order]
            probabilities += now
            sizes[s] = self.blocks.n @ now
            kept.append(classes)
            base += shares
            # beta on its grid is averaged as a logarithm
            sums += (self.delta2, np.log(self.beta))
        mean, covariance = model.coefficient_moments(kept, sizes)
        delta2, log_beta = (sums / n_sweeps).tolist()
        probabilities, base = probabilities / n_sweeps, base / n_sweeps

        with_events = self.blocks.n > 0
        entities = probabilities[with_events].sum(axis=0)
        used = np.argsort(-entities, kind="stable")
        used = used[: max(int((entities >= _RESIDUE).sum()), 1)]
        probabilities = probabilities[:, used]
        all_used = probabilities.sum(axis=1, keepdims=True)
        flat = np.full_like(probabilities, 1.0 / len(used))
        sigma2: model.Noise = float(noise[:, 0].mean())
        if self.noise_scale is not None:  # a class that stood empty says what the prior says
            sigma2 = np.average(noise[:, used], axis=0, weights=sizes[:, used])
        found = Averages(
            np.divide(probabilities, all_used, out=flat, where=all_used > 0),
            mean[used],
            covariance[used],
            base[used] / base[used].sum(),
            sigma2,
            delta2,
            float(np.exp(log_beta)),
            {name: np.asarray(values) for name, values in self.trace.items()},
            tuple(self.path),
            self.jumped,
            {name: np.array(values) for name, values in drawn.items()},
            tuple(sweeps[:: -(-n_sweeps // _JUDGED)]),
            mean_degrees([each.degrees for each in sweeps]),
        )
        marginal = float(np.mean(self.trace["log_marginal"][-n_sweeps:])) + entropy / n_sweeps
        charge = 0.5 * (len(used) - 1) * float(np.log(np.count_nonzero(with_events)))
        return found, marginal - charge

    def _probabilities(self) -> FloatArray:
        """Of each entity's label given those of all others, (E, K)."""
        own = self.own
        if own is None:
            own = np.zeros((len(self.labels), self.n_classes))
            own[np.arange(len(own)), self.labels] = 1.0
        fit = block_log_likelihood(self.blocks, self.classes(), own=own)
        others = self.agent_counts()[self.blocks.agent].astype(np.float64)
        others[np.arange(len(others)), self.labels] -= 1.0
        return posterior_weights(np.log(others + self.beta * self.base), fit)


@dataclass(frozen=True, eq=False)
class Averages:
    """What a run comes to: averages over its last sweeps, of the classes that hold entities.

    Attributes
    ----------
    probabilities : (E, K) array
        Averaged over the last sweeps.
    mean, covariance : (K, F) and (K, F, F) arrays
        Of the coefficients, by the law of total variance over the last sweeps.
    base : (K,) array
        psi.
    sigma2 : float or (K,) array
    delta2, beta : float
    trace : dict of (T,) arrays
        By sweep: ``log_marginal``, ``sigma``, ``moved``, ``n_classes``, ``learning_rate``.
    merge_path : tuple of (int, float)
        Classes after each merger, and its gain.
    jumped : bool
        Whether the learning rate was lowered.
    drawn : dict of (S, .) arrays
        By averaged sweep, whatever the classes are called: ``class_shares`` (of the entities,
        largest first) and ``prediction`` (mean over the events of an entity, of `_COMPARED`
        entities at most).
    sweeps : tuple of Sweep
        `_JUDGED` of the averaged ones at most.
    degrees : Degrees
        Averaged over the last sweeps.
    """

    probabilities: FloatArray
    mean: FloatArray
    covariance: FloatArray
    base: FloatArray
    sigma2: model.Noise
    delta2: float
    beta: float
    trace: dict[str, FloatArray]
    merge_path: tuple[tuple[int, float], ...]
    jumped: bool
    drawn: dict[str, FloatArray]
    sweeps: tuple[Sweep, ...]
    degrees: Degrees

    @property
    def n_classes(self) -> int:
        """Classes that hold entities."""
        return len(self.base)


def resolved_sigma2(delta2: float, products: FloatArray) -> float:
    """Least variance of the noise at which rounding leaves something of the prior.

    Parameters
    ----------
    delta2 : float
    products : (.., F, F) array
        Sums of events, by class or by entity.
    """
    return RESOLVED * delta2 * float(np.trace(products, axis1=-2, axis2=-1).sum())


# ----------------------------------------------------------------------------------------- restarts


AUTO_START = 18
FAR = 10.0
"""Log marginal likelihood below the best chain, beside its ups and downs, from which a chain has
got stuck."""
RHATS = ("log_marginal", "sigma", "class_shares", "prediction")
NOISE = (0.1, 0.03, 0.3, 1.0)
"""Noise in the first sweep of the restarts in turn, see `Chain`."""
_ROUNDS = 1 << 20  # of one restart; draws of different rounds are independent


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to fit; see `LatentClassRegressor`, whose units are those of the table.

    Attributes
    ----------
    n_classes : int or "auto"
    n_start : int, optional
    n_sweeps, n_settle, n_average, n_restarts : int
    sigma, delta : float or "draw"
        In the units of the blocks.
    alpha : float, optional
    beta : float or "grid"
    concentration : {"exact", "shortcut"}
    schedule : {"sequential", "parallel"}
    learning_rate : float
    random_effects : {"none", "intercept", "slopes"}
        Of the first column of the design, or of all.
    noise : {"normal", "t"}
    noise_by_class : bool

    Raises
    ------
    ParameterError
        A setting is out of its range.
    """

    n_classes: int | str = allows(whole(1) | just("auto"), default=4)
    n_start: int | None = allows(whole(1) | LEFT_OUT, default=None)
    n_sweeps: int = allows(whole(1), default=40)
    n_settle: int = allows(whole(0), default=20)
    n_average: int = allows(whole(1), default=20)
    n_restarts: int = allows(whole(1), default=4)
    sigma: float | str = allows(number(above=0) | just("draw"), default="draw")
    delta: float | str = allows(number(above=0) | just("draw"), default="draw")
    alpha: float | None = allows(number(above=0) | LEFT_OUT, default=None)
    beta: float | str = allows(number(above=0) | just("grid"), default="grid")
    concentration: str = allows(one_of("exact", "shortcut"), default="exact")
    schedule: str = allows(one_of("sequential", "parallel"), default="sequential")
    learning_rate: float = allows(number(above=0, high=1), default=0.5)
    random_effects: str = allows(one_of("none", "intercept", "slopes"), default="none")
    noise: str = allows(one_of("normal", "t"), default="normal")
    noise_by_class: bool = allows(FLAG, default=False)

    def __post_init__(self) -> None:
        check(rules_of(self), vars(self))
        if self.schedule != "sequential" and (self.has_degrees or self.noise_by_class):
            # smoothed sums of earlier rounds rest on other degrees
            rule = '"sequential" with random effects, t noise or noise by class'
            raise ParameterError.of("schedule", rule, self.schedule)
        if self.noise_by_class and self.sigma != "draw":
            raise ParameterError.of("sigma", '"draw" with noise by class', self.sigma)

    @property
    def has_degrees(self) -> bool:
        """Whether classes are more than regressions with normal noise."""
        return self.random_effects != "none" or self.noise != "normal"

    def degrees(self, blocks: Blocks) -> Degrees:
        """What entities have of their own, at first."""
        q = {"none": 0, "intercept": 1}.get(self.random_effects, blocks.n_features)
        return Degrees.start(np.arange(q), len(blocks.y), tails=self.noise == "t")

    def starting_classes(self, n_entities: int) -> int:
        """Classes to begin with.

        Raises
        ------
        ParameterError
            More classes than entities.
        """
        k = 1 if self.n_classes == "auto" else int(self.n_classes)
        if k > n_entities:
            most = f"at most the number of entities with events, {n_entities}"
            raise ParameterError.of("n_classes", most, k)
        wanted = AUTO_START if self.n_classes == "auto" else 2 * k
        return max(k, min(self.n_start or wanted, n_entities))


@dataclass(frozen=True, eq=False)
class ClassFit(Averages):
    """The restart with the largest marginal likelihood; classes by falling size.

    Attributes
    ----------
    labels : (E,) array of int
        Most probable class of each entity, in the order of the blocks.
    totals : Totals
        With these labels.
    classes : Classes
        With these totals.
    alpha : float
    agent_counts : (A, K) array
        Expected entities by agent and class.
    log_marginals : (R,) array
        Of the events in each restart: a bound, averaged over its last sweeps, less
        ``(K - 1)/2 log E`` for the shares.
    agreement : (R, R) array
        Adjusted Rand index between the labels of any two restarts.
    likely : (R,) array of bool
        Chains about as likely as the best one, see `likely_chains`: the coefficients' covariance
        counts how far theirs are from its own.
    rhat : dict of float
        Potential scale reduction over all chains of ``log_marginal``, ``sigma``, ``class_shares``
        and ``prediction``; NaN where there is one chain or fewer than four sweeps.
    asked : int or "auto"
        Classes that were asked for.
    """

    labels: IntArray
    totals: Totals
    classes: Classes
    alpha: float
    agent_counts: FloatArray
    log_marginals: FloatArray
    agreement: FloatArray
    likely: BoolArray
    rhat: dict[str, float]
    asked: int | str


def fit_classes(
    blocks: Blocks,
    settings: Settings,
    seed: int,
    *,
    keys: NDArray[np.uint64] | None = None,
    n_jobs: int | None = None,
) -> ClassFit:
    """Fit latent classes to blocks of events.

    Parameters
    ----------
    blocks : Blocks
        E entities of A agents; y has a variance of about 1.
    settings : Settings
    seed : int
        The same answer for the same seed, whatever `n_jobs` is.
    keys : (A,) array of uint64, optional
        Of the agents' streams (`agent_key`); by default made of the seed and the agents' places.
    n_jobs : int, optional
        Restarts at a time.

    Returns
    -------
    ClassFit

    Raises
    ------
    ParameterError
        More classes than entities with events.
    DataError
        No events.
    """
    with_events = int(np.count_nonzero(blocks.n > 0))
    if with_events == 0:
        raise DataError("there is no event with an outcome: nothing can be fitted")
    n_start = settings.starting_classes(with_events)
    if keys is None:
        names = [agent_key(seed, str(a)) for a in range(blocks.n_agents)]
        keys = np.array(names, dtype=np.uint64)
    one = partial(_restart, blocks=blocks, settings=settings, seed=seed, keys=keys, n_start=n_start)
    runs = ordered_map(one, range(settings.n_restarts), n_jobs=n_jobs, what="restarts")

    labels = [run.probabilities.argmax(axis=1).astype(np.int64) for run, _ in runs]
    agreement = np.eye(len(runs))
    for i in range(len(runs)):
        for j in range(i):
            same = adjusted_rand_index(labels[i][blocks.n > 0], labels[j][blocks.n > 0])
            agreement[i, j] = agreement[j, i] = same
    log_marginals = np.array([marginal for _, marginal in runs])
    best = int(np.argmax(log_marginals))
    run = runs[best][0]
    n_kept = settings.n_average
    likely = likely_chains(log_marginals, run.trace["log_marginal"][-n_kept:])
    others = [runs[r][0] for r in np.flatnonzero(likely) if r != best]
    totals = totals_of(blocks, labels[best], run.n_classes)
    counts = np.zeros((blocks.n_agents, run.n_classes))
    np.add.at(counts, blocks.agent, run.probabilities)
    drawn = [
        r.drawn | {n: r.trace[n][-n_kept:] for n in ("log_marginal", "sigma")} for r, _ in runs
    ]
    covariance = run.covariance + between_chains(run, others, blocks.n)
    return ClassFit(
        **{**vars(run), "covariance": covariance},
        labels=labels[best],
        totals=totals,
        classes=classes_of(totals, run.sigma2, run.delta2),
        alpha=float(run.n_classes) if settings.alpha is None else settings.alpha,
        agent_counts=counts,
        log_marginals=log_marginals,
        agreement=agreement,
        likely=likely,
        rhat={name: scale_reduction([each[name] for each in drawn]) for name in RHATS},
        asked=settings.n_classes,
    )


def likely_chains(log_marginals: FloatArray, trace: FloatArray) -> BoolArray:
    """Whether each chain is about as likely as the best one, (R,).

    Parameters
    ----------
    log_marginals : (R,) array
    trace : (S,) array
        Log marginal likelihood of the best chain by sweep: twice its standard deviation is added
        to `FAR`.
    """
    return log_marginals >= log_marginals.max() - FAR - 2.0 * float(np.std(trace))


def between_chains(run: Averages, others: Sequence[Averages], sizes: FloatArray) -> FloatArray:
    """Mean square of what the same entities' coefficients are elsewhere, (K, F, F).

    A class of `run` is in another chain that which holds most of its events. Any of the chains
    might have been kept, `run` itself among them.

    Parameters
    ----------
    run : Averages
        K classes.
    others : sequence of Averages
        C - 1 chains.
    sizes : (E,) array
        Events.
    """
    total = np.zeros_like(run.covariance)
    weight = sizes[:, None] * run.probabilities
    for other in others:
        away = other.mean[(weight.T @ other.probabilities).argmax(axis=1)] - run.mean
        total += away[:, :, None] * away[:, None, :]
    return total / (len(others) + 1)


@one_thread()
def _restart(
    number: int,
    *,
    blocks: Blocks,
    settings: Settings,
    seed: int,
    keys: NDArray[np.uint64],
    n_start: int,
) -> tuple[Averages, float]:
    """One run from its own start, on one thread wherever it runs."""
    chain = Chain(
        blocks,
        settings,
        keys,
        stream(seed, "latent classes", number),
        first_round=number * _ROUNDS,
        n_start=n_start,
        noise=NOISE[number % len(NOISE)],
    )
    for _ in range(settings.n_sweeps):
        chain.sweep()
    wanted = None if settings.n_classes == "auto" else int(settings.n_classes)
    for _ in range(3):
        merged = chain.n_classes > (wanted or 1) and chain.merge(wanted)
        for _ in range(settings.n_settle):
            chain.sweep()
        if wanted is not None or not merged:
            break
    return chain.average(settings.n_average)
