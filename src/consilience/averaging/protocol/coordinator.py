"""What the coordinator does: draw reference rows, lead the rounds, make the result.

Reference rows are drawn from pooled moments, from N(0, I), or given by a person.

A *trajectory* is a set of rows on which everybody fits: all rows (0), and, where some are held out,
all but these (1). A *track* is one penalty of the grid. A site's last predictions stay in the
average until new ones come.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from consilience.arrays import FloatArray
from consilience.averaging.estimators.conventions import convention_of, innermost
from consilience.averaging.estimators.proximal_fit import separable
from consilience.averaging.protocol import messages
from consilience.averaging.protocol.messages import MAX_ROUNDS, Fit, Settings
from consilience.averaging.protocol.result import ReferenceAveragingResult
from consilience.exceptions import QuorumError, StudyError
from consilience.learners.candidates import build, label
from consilience.numerics.own_rows import row_digests
from consilience.numerics.reference_average import (
    Choice,
    ReferenceFacts,
    averaged,
    choose,
    improving,
    influences,
    moved,
    movement,
    normal_reference,
    pool_moments,
    pooled_gain,
    reference_facts,
    rho_of,
    scale_of,
)
from consilience.protocol.method import Ask, CoordinatorContext, Replies
from consilience.protocol.phases.site_moments import site_moments
from consilience.wire.disclosure import relayed
from consilience.wire.message import Disclosure

if TYPE_CHECKING:
    from consilience.averaging.protocol import ReferenceAveraging

Answers = Generator[Ask, Replies, Any]

ROWS_PER_COLUMN = 20
MOST_DRAWN = 4_000_000
"""Numbers in the reference rows that are drawn by default: fewer rows of many columns."""
MOST_NUMBERS = 30_000_000
"""Numbers in any reference rows: they go to every site."""
LEAST_SQUARES = frozenset(("LinearRegression", "Ridge", "Lasso", "ElasticNet", "LassoLars", "Lars"))


def reference_of(
    method: ReferenceAveraging, ctx: CoordinatorContext
) -> Generator[Ask, Replies, tuple[FloatArray, ReferenceFacts]]:
    """Draw or take the reference rows, on the scale on which the sites fit, and judge them.

    Raises
    ------
    StudyError
        Rows that are not those of the study's columns, or more numbers than can be sent around.
    """
    p = len(ctx.feature_names)
    # Twenty rows a column, unless there would be more numbers than sites want to read.
    m = method.n_reference or max(2 * p, min(ROWS_PER_COLUMN * p, MOST_DRAWN // p))
    if isinstance(method.reference, str) and m * p > MOST_NUMBERS:
        raise StudyError(
            f"{m} reference rows of {p} columns are too much to send to every site: set "
            f"n_reference to {p} to {MOST_NUMBERS // p}, or choose among the columns"
        )
    moments = None
    if method.reference == "moments":
        mean, covariance = yield from _pooled_moments(ctx)
        rows = normal_reference(mean, covariance, m, ctx.rng)
        # E aa' = S + mean mean': the directions in which the data vary
        moments = covariance + np.outer(mean, mean)
    elif method.reference == "normal":
        rows = ctx.rng.standard_normal((m, p))
    else:
        rows = np.asarray(method.reference, dtype=float)
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
    facts = reference_facts(rows, moments)
    for remark in facts.remarks():
        ctx.note(remark)
    return rows, facts


def _pooled_moments(
    ctx: CoordinatorContext,
) -> Generator[Ask, Replies, tuple[FloatArray, FloatArray]]:
    """Pooled means and covariances of the sites that tell theirs."""
    found = yield from site_moments(ctx)
    sites = sorted(site for site, n in found.n.items() if n > 0)
    silent = [site for site in sites if site not in found.products]
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
        [found.n[site] for site in sites],
        [found.means[site] for site in sites],
        [found.products.get(site) for site in sites],
    )
    flat = np.array(ctx.feature_names)[np.diagonal(covariance) <= 0]
    if len(flat):
        ctx.note(
            f"No site told how {', '.join(flat)} vary (too few records in a cell, or constant): "
            "these columns are constant in the reference rows."
        )
    return mean, covariance


class Rounds:
    """The exchange at the coordinator: what it asks, what it knows, and what it makes of that.

    Attributes
    ----------
    sites : tuple of str
        Sites that accepted, in name order.
    reference : (m, p) array
    accepted : dict of site to Accepted
    weights : dict of site to (T,) array
        Sum of weights of the rows of each trajectory.
    scale : float
        Units of rho.
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
    increments : dict of round to two (g, 2) arrays
        What each judged round gained on the one before and on the first, and the errors.
    """

    def __init__(
        self, method: ReferenceAveraging, ctx: CoordinatorContext, settings: Settings
    ) -> None:
        self.method, self.ctx, self.settings = method, ctx, settings
        self.predictions: dict[str, FloatArray] = {}
        self.models: dict[str, list[Any]] = {}
        self.probes: dict[str, FloatArray] = {}
        self.counts: Counter[str] = Counter()
        self.active = tuple(range(settings.n_tracks))
        self.averages = self._noted = np.empty(0)
        self.rhos: list[float] = []
        self.contributed: list[tuple[str, ...]] = []
        self.movements: list[FloatArray] = []
        self.influence: list[FloatArray] = []
        self.increments: dict[int, tuple[FloatArray, FloatArray]] = {}

    @property
    def last(self) -> int:
        """Last round."""
        return len(self.rhos) - 1

    @property
    def judged(self) -> bool:
        """Whether some site measures what the rounds are worth."""
        return any(reply.held.value for reply in self.accepted.values())

    @property
    def unstable(self) -> bool:
        """Whether the guard found a learner that does not keep its own predictions.

        So it is where sites with at least half of the rows of all that were probed say so.
        """
        # Weighted by rows: one small site does not stop the others.
        told = {site: self.weights[site][0] for site in self.probes}
        against = sum(w for site, w in told.items() if not separable(*self.probes[site]))
        return self.method.guard and bool(told) and bool(against >= 0.5 * sum(told.values()))

    # ------------------------------------------------------------------ asking

    def offer(self) -> Answers:
        """Draw the reference and ask what the sites bring; nothing else travels before that."""
        self.reference, self.facts = yield from reference_of(self.method, self.ctx)
        salt = str(int(self.ctx.rng.integers(2**62)))
        drawn = isinstance(self.method.reference, str)
        # Rows that were drawn are nobody's: only given ones may be those of a site.
        digests = row_digests(self.reference[:0] if drawn else self.reference, salt)
        message = messages.Offer(settings=self.settings, salt=salt, digests=digests)
        self.accepted: dict[str, messages.Accepted]
        self.accepted = self.ctx.require((yield Ask("offer", message)))
        self.sites = tuple(sorted(self.accepted))
        accused = [site for site, reply in self.accepted.items() if reply.own_rows]
        if accused:
            raise StudyError(
                f"the reference rows are rows of the table of site {', '.join(accused)}, and would "
                'go to all sites: give public rows, or set reference to "moments"'
            )
        self.weights = {
            site: np.asarray(reply.weight.value, dtype=float)[: self.settings.trajectories]
            for site, reply in self.accepted.items()
        }
        if len(self.settings.penalties) > 1 and not self.judged:
            raise QuorumError(
                "no site has enough rows to hold some out, so penalties cannot be compared: give "
                "one penalty, or let sites with more rows take part"
            )
        # A site may withhold its sum: the others stand for it.
        squares = np.array([self.accepted[site].square.value[0] for site in self.sites])
        sizes = np.array([self.weights[site][0] for site in self.sites])
        told = np.isfinite(squares)
        # trace(X'X) / N over the sites that tell theirs
        own = float(squares[told].sum() / max(sizes[told].sum(), 1e-300))
        self.scale = scale_of(own, self.reference)
        self._rho = partial(
            rho_of,
            schedule=self.method.schedule,
            rho=self.method.rho,
            exponent=self.method.exponent,
            scale=self.scale,
        )

    def synchronous(self) -> Answers:
        """Rounds in which all sites are waited for; who is missing keeps its last predictions."""
        for k in range(self.method.max_rounds + 1):
            rho = self._rho(k) if k else 0.0
            tracks = self.active
            answers = yield from self._fits(k, rho)
            # Losses that come with fits of round k are of the average of round k - 1.
            judging = {site: r for site, r in answers.items() if len(r.losses.value)}
            if judging:
                self._pool(k - 1, judging, tracks)
            self._close(rho, tuple(answers))
            if k == 0 and self.unstable:
                return
            if judging:
                # Rounds are compared by increments, whose rounding is finer than the gain's.
                _, gains, _ = self._gains()
                judged = sorted(self.increments)
                patience = self.method.patience
                self.active = tuple(t for t in tracks if improving(gains[t, judged], patience))
            if not self.active:
                return
        yield from self._judge(self.last, self.models)

    def asynchronous(self) -> Answers:
        """Each reply moves the average, and its site goes on at once."""
        answers = yield from self._fits(0, 0.0)
        self._close(0.0, tuple(answers))
        # Models of round 0, of which later replies change the lists.
        first = {site: list(models) for site, models in self.models.items()}
        if self.unstable:
            return
        yield from self._turns()
        yield from self._judge(0, first)
        if self.last:
            yield from self._judge(self.last, self.models)

    def _turns(self) -> Answers:
        """As many refits as so many rounds have, by whoever is ready: nobody ends early."""
        n = len(self.sites)
        left, turns = self.method.max_rounds * n, 0
        lost: set[str] = set()
        waiting: set[str] = set()
        present: list[str] = []
        to = self.sites if left else ()
        while to or waiting:
            asked: dict[str, Fit] = {}
            for site in to:
                self.counts[site] += 1
                rho = self._rho(1 + turns / n)
                asked |= self._questions(self.counts[site], rho, (site,), judge=False)
            waiting.update(to)
            left -= len(to)
            known = {site: {"reference": len(self.reference)} for site in to}
            replies = yield Ask("fit", asked, to=tuple(to), wait="any", known=known)
            waiting.difference_update(replies)
            for site, reply in replies.present.items():
                before = self.predictions.get(site)
                self._hear(site, reply, self.active)
                if before is None:  # its first ones: everybody's share changes
                    self._average()
                    continue
                # fbar + w_b (new - old), at once
                for t in range(self.settings.trajectories):
                    total = sum(self.weights[name][t] for name in self.predictions)
                    share, new = float(self.weights[site][t] / total), self.predictions[site][t]
                    self.averages[t] = moved(self.averages[t], new, before[t], share)
            lost = (lost | set(replies.missing)) - set(replies.present)
            enough = n - len(lost) >= self.ctx.quorum
            self.ctx.require(replies, at_least=0 if enough else self.ctx.quorum)
            # A missed turn goes to whoever is ready. Its site is asked again once another one has
            # answered; meanwhile its last predictions stand.
            left += len(replies.missing)
            turns += len(replies.present)
            present += replies.present
            idle = [s for s in self.sites if s not in waiting and self.counts[s] < MAX_ROUNDS]
            to = tuple(site for site in idle if site not in lost or replies.present)[:left]
            if turns >= (self.last + 1) * n:
                self._close(self._rho(self.last + 1), present, again=False)
                present = []

    def _fits(self, k: int, rho: float) -> Answers:
        """Ask all sites for a round, and take in what comes."""
        tracks = self.active
        asked = self._questions(k, rho, self.sites)
        # Sites that have the reference rows are not told them again.
        known = {site: {"reference": len(self.reference)} for site in self.sites}
        answers = self.ctx.require((yield Ask("fit", asked, to=self.sites, known=known)))
        for site, reply in answers.items():
            self._hear(site, reply, tracks)
        return answers

    def _questions(
        self, round_: int, rho: float, to: Sequence[str], *, judge: bool = True
    ) -> dict[str, Fit]:
        """Messages of a round by site; the reference goes to those who never answered a fit."""
        # In round 0 everybody fits its own rows alone.
        target = self.averages[:, list(self.active)] if round_ else np.empty((0, 0, 0, 0))
        total = float(sum(self.weights[site][0] for site in self.sites))
        made = {
            new: Fit(
                settings=self.settings,
                round=round_,
                rho=rho,
                tracks=self.active,
                total=relayed(total, Disclosure.AGGREGATE),
                reference=relayed(
                    self.reference if new else self.reference[:0], Disclosure.AGGREGATE
                ),
                target=relayed(target, Disclosure.MODEL),
                **self._portfolio(self.models if judge and round_ else {}),
            )
            # One message for all that have the reference rows, and one for all others.
            for new in {site not in self.predictions for site in to}
        }
        return {site: made[site not in self.predictions] for site in to}

    def _portfolio(self, models: Mapping[str, list[Any]]) -> dict[str, Any]:
        """Models whose average is judged, and their weights; nothing where nobody can judge."""
        owners = tuple(sorted(models)) if self.judged and self.active else ()
        # n_b / N, of the rows that are not held out: their fits are judged.
        shares = np.array([self.weights[site][1] for site in owners])
        tracks = self.active if owners else ()
        by_track = tuple(tuple(models[site][t] for site in owners) for t in tracks)
        return {
            "owners": owners,
            "shares": relayed(shares / shares.sum(), Disclosure.AGGREGATE),
            "judged": tracks,
            "models": relayed(by_track, Disclosure.MODEL),
        }

    def _judge(self, round_: int, models: Mapping[str, list[Any]]) -> Answers:
        """Have the average of a round judged without a refit."""
        portfolio = self._portfolio(models)
        if portfolio["owners"]:
            message = messages.Judge(settings=self.settings, round=round_, **portfolio)
            replies = self.ctx.require((yield Ask("judge", message, to=self.sites)))
            self._pool(round_, replies, self.active)

    # ------------------------------------------------------------------ hearing

    def _hear(self, site: str, reply: messages.Fitted, tracks: Sequence[int]) -> None:
        """Take in one site's fits."""
        s = self.settings
        shape = (s.trajectories, s.n_tracks, len(self.reference), s.n_outputs)
        found = np.array(self.predictions.get(site, np.zeros(shape)))
        models = list(self.models.get(site, [None] * s.n_tracks))
        for i, fit in enumerate(reply.fits.value):
            # Fits come by trajectory, then by track.
            t, place = divmod(i, len(tracks))
            found[t, tracks[place]] = fit["at"]
            models[tracks[place]] = fit.get("model", models[tracks[place]])
        self.predictions[site] = found
        if s.holdout > 0:
            self.models[site] = models
        if len(reply.probe.value):
            self.probes[site] = np.asarray(reply.probe.value, dtype=float)

    def _average(self) -> None:
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

    def _close(self, rho: float, contributed: Sequence[str], *, again: bool = True) -> None:
        """Note what a round did: who answered, how far the average moved, who pulls at it.

        Parameters
        ----------
        again : bool
            Average anew; under the asynchronous schedule the average has moved already.
        """
        if again:
            self._average()
        before = self._noted if self._noted.size else np.zeros_like(self.averages)
        self._noted = self.averages.copy()
        tracks = range(self.settings.n_tracks)
        self.rhos.append(rho)
        self.contributed.append(tuple(contributed))
        self.movements.append(
            np.array([movement(self.averages[0, t], before[0, t]) for t in tracks])
        )
        pulls = np.full((len(tracks), len(self.sites)), np.nan)
        sites = sorted(self.predictions)
        places = [self.sites.index(site) for site in sites]
        for t in tracks:
            own = [self.predictions[site][0, t] for site in sites]
            shares = [self.weights[site][0] for site in sites]
            # share times distance from the average, relative to its size
            pulls[t, places] = influences(own, shares, self.averages[0, t])
        self.influence.append(pulls)

    def _pool(self, round_: int, replies: Mapping[str, Any], tracks: Sequence[int]) -> None:
        """Pool the sites' held-out losses of one round."""
        sites = sorted(replies)
        # Tracks that were not judged have none.
        gain, error = np.full((2, self.settings.n_tracks, 2), np.nan)
        gain[list(tracks)], error[list(tracks)] = pooled_gain(
            np.stack([replies[site].losses.value for site in sites]),
            np.stack([replies[site].errors.value for site in sites]),
            self._held_weights(sites),
        )
        self.increments[round_] = (gain, error)

    def _held_weights(self, sites: Sequence[str]) -> list[float]:
        """Sums of the weights of the sites' held-out rows."""
        return [float(self.weights[site][0] - self.weights[site][-1]) for site in sites]

    # ------------------------------------------------------------------ deciding

    def _gains(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Held-out loss of averaging by track, and by round what it gained with its error.

        Returns
        -------
        base : (g,) array
            Relative to the first track.
        gains, errors : (g, K + 1) arrays
        """
        n = self.settings.n_tracks
        gains, errors = np.full((2, n, self.last + 1), np.nan)
        gains[:, 0] = errors[:, 0] = 0.0
        if 0 not in self.increments:
            return np.full(n, np.nan), gains, errors
        path = np.zeros(n)
        for k in sorted(self.increments)[1:]:
            gain, error = self.increments[k]
            # The gain of a round is the sum of the steps up to it: these are rounded by their own,
            # smaller errors.
            path = path + np.nan_to_num(gain[:, 0])
            told = np.isfinite(gain[:, 1])
            gains[told, k], errors[told, k] = path[told], error[told, 1]
        return self.increments[0][0][:, 0], gains, errors

    def choice(self) -> Choice:
        """Which track and round to keep."""
        if self.unstable:
            return Choice(0, 0, False, "not-separable")
        base, gains, errors = self._gains()
        if not self.method.guard or not self.judged or np.isnan(base).all():
            return Choice(0, self.last, self.last > 0, "not-measured")
        return choose(base, gains, errors)

    def conclude(self, chosen: Choice) -> Generator[Ask, Replies, ReferenceAveragingResult]:
        """Ask every site that has one for its fit of all rows, and put the result together.

        Raises
        ------
        QuorumError
            No site's model is left.
        """
        method, s, sites = self.method, self.settings, self.sites
        # Sites count their own refits; asynchronous ones have made different numbers of them.
        last = max((chosen.round, *self.counts.values())) if chosen.round else 0
        message = messages.Conclude(settings=s, track=chosen.track, round=last)
        asked = tuple(sorted(self.predictions))
        concluded = self.ctx.require((yield Ask("conclude", message, to=asked)))
        if not concluded:
            raise QuorumError("no site sent its model at the end")
        owners = tuple(sorted(concluded))
        models = tuple(concluded[site].model.value for site in owners)
        # fbar = sum_b n_b / N f_b, over the sites whose models came
        shares = np.array([self.weights[site][0] for site in owners])
        shares = shares / shares.sum()

        def by_site(name: str, width: int) -> FloatArray:
            """Figures of all sites; NaN for those that are missing at the end."""
            told = {site: getattr(reply, name).value for site, reply in concluded.items()}
            return np.stack([told.get(site, np.full(width, np.nan)) for site in sites])

        losses = by_site("losses", 3)
        base, gains, errors = self._gains()
        averaging, _ = pooled_gain(losses[:, 1], np.zeros(len(sites)), self._held_weights(sites))
        # Linear predictors of one form average to a linear predictor.
        forms = {(m.get("form"), m.get("link"), np.shape(m.get("coef"))) for m in models}
        linear = len(forms) == 1 and models[0].get("form") == "linear"
        made = build(s.estimator, s.task, min_records=1, seed=0)
        convention = convention_of(made, s.convention)
        return ReferenceAveragingResult(
            feature_names=self.ctx.feature_names,
            target_name=str(self.ctx.columns.target),
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
            rho_scale=self.scale,
            penalty_name=convention.penalty,
            penalties=np.array(s.penalties, dtype=float),
            separable=chosen.reason != "not-separable",
            # In the rounds losses are told relative to the first track, at the end as such.
            base_loss=averaging + base - base[chosen.track],
            gains=gains,
            gain_errors=errors,
            local_losses=losses,
            local_differences=by_site("differences", 2),
            local_errors=np.sqrt(by_site("errors", 2)),
            chosen_track=chosen.track,
            chosen_round=chosen.round,
            kept=chosen.kept,
            reason=chosen.reason,
            owners=owners,
            shares=shares,
            models=models,
            slopes=_mean(models, "coef", shares) if linear else np.empty((0, 0)),
            intercepts=_mean(models, "intercept", shares) if linear else np.empty(0),
            scaling=np.empty((0, 0)) if self.ctx.scaling is None else np.asarray(self.ctx.scaling),
            remarks=self._remarks(owners),
            reference_kind=method.reference if isinstance(method.reference, str) else "rows",
            n_reference=self.facts.n_rows,
            reference_rank=self.facts.rank,
            reference_needed_rank=self.facts.needed_rank,
            reference_condition=self.facts.condition,
            sites=sites,
            sizes=np.array([float(self.accepted[site].n.value) for site in sites]),
            held=np.array([float(self.accepted[site].held.value) for site in sites]),
            probes=np.stack([self.probes.get(site, np.full(2, np.nan)) for site in sites]),
            rhos=np.array(self.rhos),
            contributed=np.array([[site in who for site in sites] for who in self.contributed]),
            movement=np.stack(self.movements, axis=1),
            influence=np.stack(self.influence, axis=1),
        )

    def _remarks(self, owners: Sequence[str]) -> tuple[str, ...]:
        found = self.facts.remarks()
        missing = [site for site in self.sites if site not in owners]
        if missing:
            found.append(
                f"The average holds no model of {', '.join(missing)}: none came at the end."
            )
        without = [site for site in self.sites if not self.accepted[site].held.value]
        if self.settings.holdout > 0 and without:
            rest = (
                "the rounds are measured at the other sites"
                if self.judged
                else "nothing is measured"
            )
            found.append(f"Too few rows to hold some out at {', '.join(without)}: {rest}.")
        return tuple(found)


def _mean(models: Sequence[Mapping[str, Any]], name: str, shares: FloatArray) -> FloatArray:
    """Average of coefficients: that of the linear predictors."""
    return np.asarray(sum(w * m[name] for w, m in zip(shares, models, strict=True)))
