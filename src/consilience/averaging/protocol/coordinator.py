"""What the coordinator does: draw reference rows, keep track of the rounds, make the result.

Reference rows are drawn from pooled moments, from N(0, I), or given by a person.

A *trajectory* is a set of rows on which everybody fits: all rows (0), and, where some are held out,
all but these (1). A *track* is one penalty of the grid. A site's last predictions stay in the
average until new ones come.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from consilience.arrays import FloatArray
from consilience.averaging.estimators.conventions import convention_of, innermost
from consilience.averaging.protocol.messages import Accepted, Concluded, Fit, Fitted, Settings
from consilience.averaging.protocol.result import ReferenceAveragingResult
from consilience.exceptions import QuorumError, StudyError
from consilience.learners.candidates import build, label
from consilience.numerics.reference_average import (
    Choice,
    ReferenceFacts,
    averaged,
    improving,
    influences,
    moved,
    movement,
    normal_reference,
    pool_moments,
    pooled_gain,
    reference_facts,
)
from consilience.protocol.method import Ask, CoordinatorContext, Replies
from consilience.protocol.phases.site_moments import site_moments
from consilience.wire.disclosure import relayed
from consilience.wire.message import Disclosure

if TYPE_CHECKING:
    from consilience.averaging.protocol import ReferenceAveraging

# --- Reference rows of a run: drawn from pooled moments, from N(0, I), or given by a person.

ROWS_PER_COLUMN = 20
MOST_DRAWN = 4_000_000
"""Numbers in the reference rows that are drawn by default: fewer rows of many columns."""
MOST_NUMBERS = 30_000_000
"""Numbers in any reference rows: they go to every site."""


@dataclass(frozen=True, eq=False)
class Reference:
    """Reference rows and where they come from.

    Attributes
    ----------
    rows : (m, p) array
        On the scale on which the sites fit.
    kind : {"moments", "normal", "rows"}
    facts : ReferenceFacts
    """

    rows: FloatArray
    kind: str
    facts: ReferenceFacts


def reference_of(
    method: ReferenceAveraging, ctx: CoordinatorContext
) -> Generator[Ask, Replies, Reference]:
    """Draw or take the reference rows; what is wrong with them is noted for the reader.

    Raises
    ------
    StudyError
        Rows that are not those of the study's columns, or more numbers than can be sent around.
    """
    p = len(ctx.feature_names)
    m = method.n_reference
    if m is None:
        m = max(2 * p, min(ROWS_PER_COLUMN * p, MOST_DRAWN // p))
    if isinstance(method.reference, str) and m * p > MOST_NUMBERS:
        raise StudyError(
            f"{m} reference rows of {p} columns are too much to send to every site: set "
            f"n_reference to {p} to {MOST_NUMBERS // p}, or choose among the columns"
        )
    moments = None
    if method.reference == "moments":
        found = yield from site_moments(ctx)
        mean, covariance = _pooled(ctx, found.n, found.means, found.products)
        rows = normal_reference(mean, covariance, m, ctx.rng)
        # E aa' = S + mean mean': the directions in which the data vary
        moments = covariance + np.outer(mean, mean)
        kind = "moments"
    elif method.reference == "normal":
        rows, kind = ctx.rng.standard_normal((m, p)), "normal"
    else:
        rows, kind = _given(method.reference, ctx), "rows"
    facts = reference_facts(rows, moments)
    for remark in facts.remarks():
        ctx.note(remark)
    return Reference(rows, kind, facts)


def _pooled(
    ctx: CoordinatorContext,
    n: dict[str, int],
    means: dict[str, FloatArray],
    products: dict[str, FloatArray],
) -> tuple[FloatArray, FloatArray]:
    """Pooled moments of the sites that tell theirs."""
    sites = sorted(site for site in n if n[site] > 0)
    silent = [site for site in sites if site not in products]
    if len(silent) == len(sites):
        raise StudyError(
            "no site has rows enough to tell its sums of products (twice as many as columns), so "
            "no reference rows can be drawn: give public rows as the reference"
        )
    if silent:
        ctx.note(
            f"The reference rows are drawn from the moments of the other sites: "
            f"{', '.join(silent)} had fewer than twice as many rows as columns."
        )
    mean, covariance = pool_moments(
        [n[site] for site in sites],
        [means[site] for site in sites],
        [products.get(site) for site in sites],
    )
    flat = [
        name for name, v in zip(ctx.feature_names, np.diagonal(covariance), strict=True) if v <= 0
    ]
    if flat:
        ctx.note(
            f"No site told how {', '.join(flat)} vary (too few records in a cell, or constant): "
            "these columns are constant in the reference rows."
        )
    return mean, covariance


def _given(reference: object, ctx: CoordinatorContext) -> FloatArray:
    """Rows that a person gave, on the scale on which the sites fit."""
    rows = np.asarray(reference, dtype=float)
    p = len(ctx.feature_names)
    if rows.shape[1] != p:
        raise StudyError(
            f"the reference rows have {rows.shape[1]} columns and the study has {p} after its "
            f"preparation ({', '.join(ctx.feature_names[:8])}{', ...' if p > 8 else ''}): give "
            "one for each, in this order"
        )
    if ctx.scaling is not None:
        fill, centre, scale = ctx.scaling
        # The operations of the preparation, so that equal rows stay equal to the last bit.
        rows = (np.where(np.isnan(rows), fill, rows) - centre) / scale
    if not np.isfinite(rows).all():
        raise StudyError("the reference rows have missing cells: leave such rows out")
    return np.asarray(rows)


# --- What the coordinator knows while the rounds go on


@dataclass
class Rounds:
    """State of the exchange at the coordinator.

    Attributes
    ----------
    settings : Settings
    sites : tuple of str
        Sites that accepted, in name order.
    reference : (m, p) array
    rows, held : dict of site to int
    weights : dict of site to (T,) array
        Sum of weights of the rows of each trajectory.
    predictions : dict of site to (T, g, m, q) array
        Last ones of the sites that have ever answered.
    models : dict of site to list of model by track
        Last ones that did not see the held-out rows.
    counts : dict of site to int
        Refits that were asked for, under the asynchronous schedule.
    active : tuple of int
        Tracks that go on.
    averages : (T, g, m, q) array
        Of the last predictions; tracks that ended keep their last ones.
    probes : dict of site to (2,) array
    """

    settings: Settings
    sites: tuple[str, ...]
    reference: FloatArray
    rows: dict[str, int]
    held: dict[str, int]
    weights: dict[str, FloatArray]
    predictions: dict[str, FloatArray] = field(default_factory=dict)
    models: dict[str, list[Any]] = field(default_factory=dict)
    probes: dict[str, FloatArray] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    active: tuple[int, ...] = ()
    averages: FloatArray = field(default_factory=lambda: np.empty(0))
    rhos: list[float] = field(default_factory=list)
    contributed: list[tuple[str, ...]] = field(default_factory=list)
    movements: list[FloatArray] = field(default_factory=list)
    influence: list[FloatArray] = field(default_factory=list)
    increments: dict[int, tuple[FloatArray, FloatArray]] = field(default_factory=dict)
    _noted: FloatArray = field(default_factory=lambda: np.empty(0))

    @classmethod
    def begin(
        cls, settings: Settings, reference: FloatArray, accepted: Mapping[str, Accepted]
    ) -> Rounds:
        """Take in what the sites bring."""
        return cls(
            settings,
            tuple(sorted(accepted)),
            reference,
            {site: int(r.n.value) for site, r in accepted.items()},
            {site: int(r.held.value) for site, r in accepted.items()},
            {
                site: np.asarray(r.weight.value, dtype=float)[: settings.trajectories]
                for site, r in accepted.items()
            },
            active=tuple(range(settings.n_tracks)),
        )

    @property
    def total(self) -> float:
        """Sum of weights over all sites."""
        return float(sum(self.weights[site][0] for site in self.sites))

    @property
    def last(self) -> int:
        """Last round."""
        return len(self.rhos) - 1

    @property
    def judged(self) -> bool:
        """Whether some site measures what the rounds are worth."""
        return any(self.held[site] for site in self.sites)

    # ------------------------------------------------------------------ asking

    def ask(
        self, round_: int, rho: float, to: Sequence[str], *, judge: bool = True
    ) -> dict[str, Fit]:
        """Messages of a round by site; the reference goes to those who never answered a fit."""
        made: dict[bool, Fit] = {}
        for new in {site not in self.predictions for site in to}:
            made[new] = self._fit(round_, rho, new, judge)
        return {site: made[site not in self.predictions] for site in to}

    def _fit(self, round_: int, rho: float, new: bool, judge: bool) -> Fit:
        reference = self.reference if new else self.reference[:0]
        target = np.empty((0, 0, 0, 0)) if round_ == 0 else self.averages[:, list(self.active)]
        owners, shares, models = self.portfolio(self.active if judge and round_ else ())
        return Fit(
            settings=self.settings.to_json(),
            round=round_,
            rho=rho,
            tracks=self.active,
            total=relayed(self.total, Disclosure.AGGREGATE),
            reference=relayed(reference, Disclosure.AGGREGATE),
            target=relayed(target, Disclosure.MODEL),
            owners=owners,
            shares=relayed(shares, Disclosure.AGGREGATE),
            judged=self.active if owners else (),
            models=relayed(models, Disclosure.MODEL),
        )

    def known(self, to: Sequence[str]) -> dict[str, dict[str, int]]:
        """Reference rows, of which sites that have them are not told again."""
        return {site: {"reference": len(self.reference)} for site in to}

    def portfolio(
        self, tracks: Sequence[int], of: Mapping[str, list[Any]] | None = None
    ) -> tuple[tuple[str, ...], FloatArray, tuple[tuple[Any, ...], ...]]:
        """Owners, weights and models whose average is judged; nothing where nobody can judge."""
        models = self.models if of is None else of
        if not self.judged or not models or not tracks:
            return (), np.empty(0), ()
        owners = tuple(sorted(models))
        shares = np.array([self.weights[site][1] for site in owners])
        by_track = tuple(tuple(models[site][t] for site in owners) for t in tracks)
        return owners, shares / shares.sum(), by_track

    # ------------------------------------------------------------------ hearing

    def hear(self, site: str, reply: Fitted, tracks: Sequence[int]) -> None:
        """Take in one site's fits."""
        s, m = self.settings, len(self.reference)
        known = self.predictions.get(site)
        found = (
            np.zeros((s.trajectories, s.n_tracks, m, s.n_outputs)) if known is None else known
        ).copy()
        models = list(self.models.get(site, [None] * s.n_tracks))
        for i, fit in enumerate(reply.fits.value):
            t, place = divmod(i, len(tracks))
            found[t, tracks[place]] = fit["at"]
            models[tracks[place]] = fit.get("model", models[tracks[place]])
        self.predictions[site] = found
        if s.holdout > 0:
            self.models[site] = models
        if len(reply.probe.value):
            self.probes[site] = np.asarray(reply.probe.value, dtype=float)

    def average(self) -> None:
        """Average the last predictions of all who ever answered."""
        sites = sorted(self.predictions)
        self.averages = np.stack(
            [
                averaged(
                    [self.predictions[site][t] for site in sites],
                    [self.weights[site][t] for site in sites],
                )
                for t in range(self.settings.trajectories)
            ]
        )

    def move(self, site: str, reply: Fitted) -> None:
        """Take in one site's fits of all tracks, and move the average at once."""
        before = self.predictions.get(site)
        self.hear(site, reply, self.active)
        total = {name: self.weights[name] for name in self.predictions}
        if before is None:  # its first ones: everybody's share changes
            self.average()
            return
        for t in range(self.settings.trajectories):
            share = float(self.weights[site][t] / sum(w[t] for w in total.values()))
            self.averages[t] = moved(self.averages[t], self.predictions[site][t], before[t], share)

    def close_round(self, rho: float, contributed: Sequence[str], *, again: bool = True) -> None:
        """Note what a round did: who answered, how far the average moved, who pulls at it.

        Parameters
        ----------
        again : bool
            Average anew; under the asynchronous schedule the average has moved already.
        """
        before = self._noted if self._noted.size else self.averages
        if again:
            self.average()
        self._noted = self.averages.copy()
        tracks = range(self.settings.n_tracks)
        self.rhos.append(rho)
        self.contributed.append(tuple(contributed))
        self.movements.append(
            np.array([movement(self.averages[0, t], before[0, t]) for t in tracks])
            if before.size
            else np.zeros(len(tracks))
        )
        sites = sorted(self.predictions)
        pulls = np.full((self.settings.n_tracks, len(self.sites)), np.nan)
        places = [self.sites.index(site) for site in sites]
        for t in tracks:
            own = [self.predictions[site][0, t] for site in sites]
            shares = [self.weights[site][0] for site in sites]
            # share times distance from the average, relative to its size
            pulls[t, places] = influences(own, shares, self.averages[0, t])
        self.influence.append(pulls)

    def judge(self, round_: int, replies: Mapping[str, Any], tracks: Sequence[int]) -> None:
        """Pool the sites' held-out losses of one round."""
        n = self.settings.n_tracks
        gain, error = np.full((n, 2), np.nan), np.full((n, 2), np.nan)
        sites = sorted(replies)
        found = [replies[site] for site in sites]
        means = np.stack([r.losses.value for r in found])
        variances = np.stack([r.errors.value for r in found])
        pooled = pooled_gain(means, variances, [self.held_weight(site) for site in sites])
        gain[list(tracks)], error[list(tracks)] = pooled
        self.increments[round_] = (gain, error)

    def held_weight(self, site: str) -> float:
        """Sum of the weights of a site's held-out rows."""
        return float(self.weights[site][0] - self.weights[site][-1])

    # ------------------------------------------------------------------ deciding

    def gains(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Held-out loss of averaging by track, and by round what it gained with its error.

        Returns
        -------
        base : (g,) array
            Relative to the first track.
        gains, errors : (g, K + 1) arrays
        """
        n = self.settings.n_tracks
        gains, errors = np.full((2, n, max(self.last, 0) + 1), np.nan)
        gains[:, 0] = errors[:, 0] = 0.0
        if 0 not in self.increments:
            return np.full(n, np.nan), gains, errors
        path = np.zeros(n)
        for round_ in sorted(self.increments):
            gain, error = self.increments[round_]
            if round_ == 0:
                continue
            # Steps from round to round are rounded by their own, smaller errors.
            # the gain of a round is the sum of the steps up to it
            path = path + np.nan_to_num(gain[:, 0])
            told = np.isfinite(gain[:, 1])
            gains[told, round_], errors[told, round_] = path[told], error[told, 1]
        return self.increments[0][0][:, 0], gains, errors

    def drop_tracks(self, patience: int) -> None:
        """End the tracks that have not gained in the last rounds.

        The rounds are compared by their increments, whose rounding is finer than that of the whole
        gain.
        """
        _, gains, _ = self.gains()
        judged = sorted(self.increments)
        self.active = tuple(t for t in self.active if improving(gains[t, judged], patience))

    def stable(self, is_stable: Any) -> bool:
        """Whether the learner keeps its own predictions at sites with at least half of the rows."""
        if not self.probes:
            return True
        told = {site: self.weights[site][0] for site in self.probes}
        moved_rows = sum(w for site, w in told.items() if not is_stable(*self.probes[site]))
        return bool(moved_rows < 0.5 * sum(told.values()))


# --- From the rounds to the result.

LEAST_SQUARES = frozenset(("LinearRegression", "Ridge", "Lasso", "ElasticNet", "LassoLars", "Lars"))


def build_result(
    method: ReferenceAveraging,
    ctx: CoordinatorContext,
    rounds: Rounds,
    reference: Reference,
    scale: float,
    chosen: Choice,
    concluded: Mapping[str, Concluded],
) -> ReferenceAveragingResult:
    """Put the result together.

    Raises
    ------
    QuorumError
        No site's model is left.
    """
    if not concluded:
        raise QuorumError("no site sent its model at the end")
    s, sites = rounds.settings, rounds.sites
    owners = tuple(sorted(concluded))
    models = tuple(concluded[site].model.value for site in owners)
    shares = np.array([rounds.weights[site][0] for site in owners])
    shares = shares / shares.sum()
    made = build(s.estimator, s.task, min_records=1, seed=0)
    convention = convention_of(made, s.convention)
    losses = _by_site(concluded, sites, "losses", 3)
    differences = _by_site(concluded, sites, "differences", 2)
    base, gains, errors = rounds.gains()
    held = [rounds.held_weight(site) for site in sites]
    averaging, _ = pooled_gain(losses[:, 1], np.zeros(len(sites)), held)
    coefficients, intercepts = _coefficients(models, shares)
    return ReferenceAveragingResult(
        feature_names=ctx.feature_names,
        target_name=str(ctx.columns.target),
        levels=s.levels,
        task=s.task,
        loss=s.loss,
        estimator=label(method.estimator),
        convention=convention.name,
        linear=bool(convention.linear),
        least_squares=type(innermost(made)).__name__ in LEAST_SQUARES,
        schedule=method.schedule,
        rho=float(method.rho),
        exponent=float(method.exponent),
        rho_scale=scale,
        penalty_name=convention.penalty,
        penalties=np.array(s.penalties, dtype=float),
        separable=chosen.reason != "not-separable",
        base_loss=averaging + base - base[chosen.track],
        gains=gains,
        gain_errors=errors,
        local_losses=losses,
        local_differences=differences,
        local_errors=np.sqrt(_by_site(concluded, sites, "errors", 2)),
        chosen_track=chosen.track,
        chosen_round=chosen.round,
        kept=chosen.kept,
        reason=chosen.reason,
        owners=owners,
        shares=shares,
        models=models,
        coefficients=coefficients,
        intercepts=intercepts,
        scaling=np.empty((0, 0)) if ctx.scaling is None else np.asarray(ctx.scaling),
        remarks=_remarks(rounds, reference.facts.remarks(), owners),
        reference_kind=reference.kind,
        n_reference=reference.facts.n_rows,
        reference_rank=reference.facts.rank,
        reference_needed_rank=reference.facts.needed_rank,
        reference_condition=reference.facts.condition,
        sites=sites,
        sizes=np.array([rounds.rows[site] for site in sites], dtype=float),
        held=np.array([rounds.held[site] for site in sites], dtype=float),
        probes=np.stack([rounds.probes.get(site, np.full(2, np.nan)) for site in sites]),
        rhos=np.array(rounds.rhos),
        contributed=np.array([[site in who for site in sites] for who in rounds.contributed]),
        movement=np.stack(rounds.movements, axis=1),
        influence=np.stack(rounds.influence, axis=1),
    )


def _by_site(
    concluded: Mapping[str, Concluded], sites: tuple[str, ...], name: str, width: int
) -> FloatArray:
    """Figures of all sites; NaN for those that are missing at the end."""
    found = np.full((len(sites), width), np.nan)
    for i, site in enumerate(sites):
        if site in concluded:
            found[i] = getattr(concluded[site], name).value
    return found


def _coefficients(models: tuple[Any, ...], shares: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Average of the linear predictors; empty where some model has none."""
    forms = {(m.get("form"), m.get("link"), np.shape(m.get("coef"))) for m in models}
    if len(forms) != 1 or next(iter(forms))[0] != "linear":
        return np.empty((0, 0)), np.empty(0)
    coef = sum(w * m["coef"] for w, m in zip(shares, models, strict=True))
    intercept = sum(w * m["intercept"] for w, m in zip(shares, models, strict=True))
    return np.asarray(coef), np.asarray(intercept)


def _remarks(rounds: Rounds, reference: list[str], owners: tuple[str, ...]) -> tuple[str, ...]:
    found = list(reference)
    missing = [site for site in rounds.sites if site not in owners]
    if missing:
        found.append(f"The average holds no model of {', '.join(missing)}: none came at the end.")
    without = [site for site in rounds.sites if not rounds.held[site]]
    if rounds.settings.holdout > 0 and without:
        rest = (
            "the rounds are measured at the other sites" if rounds.judged else "nothing is measured"
        )
        found.append(f"Too few rows to hold some out at {', '.join(without)}: {rest}.")
    return tuple(found)
