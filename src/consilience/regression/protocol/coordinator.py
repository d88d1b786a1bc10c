"""What the coordinator makes of moments and sums: the columns in use, the model, the result."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from consilience.arrays import BoolArray, FloatArray, IntArray
from consilience.exceptions import QuorumError, StudyError, listed
from consilience.numerics.block_moments import pooled, square_of
from consilience.protocol.method import CoordinatorContext
from consilience.protocol.phases.moments import point
from consilience.regression import kernels, performance
from consilience.regression.kernels import Piece, Pool
from consilience.regression.protocol import messages
from consilience.regression.protocol.messages import Moments, Sums
from consilience.regression.protocol.result import PooledRegressionResult
from consilience.wire.disclosure import relayed
from consilience.wire.message import Disclosure

if TYPE_CHECKING:
    from consilience.regression.protocol import PooledRegression

_LEAST_ALPHA = 1e-5
FEW_CLUSTERS = 20
"""Fewer clusters than that make their errors too small (Cameron, Gelbach and Miller 2008)."""
NOT_TOLD = (
    "Deviance, log likelihood and AIC are not told: at some site fewer rows than may be counted "
    "have one value of the response, and sums over it would tell how many (tests need neither)."
)
NOT_TOLD_OF_WEIGHTS = (
    "Log likelihood and AIC are not told: at some site fewer rows than may be counted have one "
    "value of the weight, and the sum of its logarithms would tell how many (tests need neither)."
)
NOT_TOLD_OF_ORDER = (
    "Log likelihood and AIC are not told: some site has so few rows or events that its likelihood "
    "without columns would tell in which order events and others followed (tests do not need it)."
)
NO_LIKELIHOOD = (
    "Log likelihood and AIC are not known: by weights of precision each row has a shape of its own."
)


@dataclass(frozen=True, eq=False)
class Survey:
    """Sites and columns of a fit, and what the moments say of them.

    Attributes
    ----------
    sites : tuple of str
        In name order.
    settings : Settings
    rows : (S,) array
    n : (S,) array
        Rows, or what they stand for by weights of frequency.
    events : (S,) array
        Of these the ones with an event, of a response of 0 and 1.
    means : (S, m + 1) array
        Of the columns in use, and of the response (of a gaussian one without its offset).
    products : (S, m + 1, m + 1) array
    names : tuple of str
        Columns in use.
    columns : (m,) int array
        Their places.
    centre, scale : (m,) arrays
        Pooled means and standard deviations.
    alpha : float
        Of the negative binomial: given, or where to begin.
    null : Pool
        Pieces at the model of constants alone; with weights, or an offset beside a curved loss,
        where to begin.
    withheld : dict of str to tuple of str
    left_out : tuple of str
    members : tuple of str
        Who is asked: `sites`, or with masked sums all sites, which are then one.
    """

    settings: messages.Settings
    sites: tuple[str, ...]
    rows: FloatArray
    n: FloatArray
    events: FloatArray
    means: FloatArray
    products: FloatArray
    names: tuple[str, ...]
    columns: IntArray
    centre: FloatArray
    scale: FloatArray
    alpha: float
    starts: FloatArray
    null: Pool
    withheld: Mapping[str, tuple[str, ...]]
    left_out: tuple[str, ...]
    members: tuple[str, ...]

    @property
    def masked(self) -> bool:
        """Whether nothing is known of single sites."""
        return self.members != self.sites

    def null_at(self, alpha: float) -> Pool:
        """Pieces at the model of constants alone, at another alpha."""
        if self.settings.family == kernels.COX:  # no moments tell them: where to begin
            m = len(self.names)
            still = Piece(0.0, np.zeros(m), 0.0, 0.0, 0.0, 0.0, np.zeros(m), np.eye(m))
            return dataclasses.replace(self.null, pieces=(still,) * len(self.sites))
        pieces = tuple(
            kernels.piece_from_moments(
                self.settings.family,
                self.rows[b],
                self.means[b],
                self.products[b],
                self.centre,
                self.scale,
                float(self.starts[b]),
                alpha,
            )
            for b in range(len(self.sites))
        )
        return dataclasses.replace(self.null, pieces=pieces)

    def start(self) -> FloatArray:
        """Coefficients near the fit, from moments alone: as if all columns were normal.

        Then one step from the model of constants has slopes of the right direction, with the log
        link of the right size, and with the logit too small by the mean weight over that of a
        constant risk (Brillinger, in *A Festschrift for Erich L. Lehmann* 1983, section 2).
        """
        pool, n, y = self.null, self.rows / self.rows.sum(), self.means[:, -1]
        theta, first = pool.theta + pool.step(), pool.theta[: pool.n_constants]
        away, within = self._apart(theta)
        z, share = np.polynomial.hermite_e.hermegauss(31)
        points = away[:, None] + np.sqrt(within)[:, None] * z
        chance = n[:, None] * share / share.sum()
        if not pool.own:
            points, chance, n, y = points.reshape(1, -1), chance.reshape(1, -1), np.ones(1), n @ y
        logit = self.settings.family == "binomial"
        law = kernels.family_of("binomial" if logit else "poisson")
        constants, size, bare = first.copy(), 1.0, float(n @ law.expected_weight(first))
        for _ in range(25):
            eta = constants[:, None] + size * points
            mean, weight = (
                (of(eta) * chance).sum(axis=1) for of in (law.mean, law.expected_weight)
            )
            # Columns that are not normal may not lead far away.
            constants -= np.clip((mean - n * y) / weight, -1.0, 1.0)
            constants = np.clip(constants, first - 1, first + 1)
            size = min(bare / float(weight.sum()), 3.0) if logit else 1.0
        return np.concatenate([constants, size * theta[pool.n_constants :]])

    def _apart(self, theta: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Mean and variance at each site of the linear predictor less its constant."""
        slopes = theta[self.null.n_constants :] / self.scale
        inside = np.einsum("bij,i,j->b", self.products[:, :-1, :-1], slopes, slopes)
        return (self.means[:, :-1] - self.centre) @ slopes, inside / self.rows

    def frame(self) -> dict[str, Any]:
        """Columns and units as they travel with each question."""
        kind = Disclosure.AGGREGATE
        return {
            "columns": relayed(self.columns, kind),
            "centre": point(self.centre, self.names),
            "scale": relayed(self.scale, kind),
        }

    def coefficients(self, theta: FloatArray) -> dict[str, Any]:
        """Coefficients of the model as they travel: the constant of each site, and slopes."""
        pool, kind = self.null, Disclosure.MODEL
        constants = np.zeros(len(self.sites))
        if not pool.bare:
            constants = np.array([theta[pool.places(b)[0]] for b in range(len(self.sites))])
        slopes = np.array(theta[pool.n_constants :])
        constants = np.broadcast_to(constants, len(self.members)).copy()
        return {"constants": relayed(constants, kind), "slopes": relayed(slopes, kind)}

    def cuts(self, pool: Pool) -> FloatArray:
        """Linear predictors between bands of predicted risk, from moments; none of Cox."""
        if pool.bare:
            return np.zeros(0)
        of_site = [pool.theta[pool.places(b)[0]] for b in range(len(self.sites))]
        away, within = self._apart(pool.theta)
        means = np.array(of_site) + away
        mean = float(self.rows @ means / self.rows.sum())
        variance = self.rows @ (within + (means - mean) ** 2) / self.rows.sum()
        return performance.cuts_of(mean, max(float(np.sqrt(variance)), 1e-6))

    def counted(self, b: int) -> float:
        """Rows of a site, of a Cox regression its events, as pieces have them."""
        return float((self.events if self.settings.family == kernels.COX else self.n)[b])

    def with_expected(self, b: int, piece: Piece) -> Piece:
        """A piece with its expected curvature, where that is not the observed one."""
        if self.settings.family != "gamma" or piece.expected is not None:
            return piece
        return dataclasses.replace(piece, expected=self.null.pieces[b].curvature)

    def heard(self, b: int, theta: FloatArray, reply: Sums) -> Piece:
        """The piece that a site tells."""
        figures = dict(zip(messages.FIGURES, reply.figures.value.tolist(), strict=True))
        squares = reply.squares.value if reply.squares.value.size else None
        expected = reply.expected.value if reply.expected.value.size else None
        piece = Piece(
            n=self.counted(b),
            theta=theta,
            score=reply.score.value,
            curvature=reply.curvature.value,
            squares=squares,
            expected=expected,
            shape=reply.shape.value if self.settings.estimate else None,
            **figures,
        )
        return self.with_expected(b, piece)


def survey_of(
    ctx: CoordinatorContext,
    method: PooledRegression,
    settings: messages.Settings,
    told: Mapping[str, Moments],
) -> Survey:
    """Sites and columns that take part.

    Raises
    ------
    QuorumError
        A site withholds a column and the study says to stop; or too little is left.
    StudyError
        Columns are constant, or depend on one another.
    """
    sites = tuple(sorted(told))
    has = np.stack([~np.isnan(told[name].means.value) for name in sites])
    names = tuple(name for name in ctx.feature_names if name != settings.time)
    p = len(names)
    withheld = {
        name: tuple(names[j] for j in np.flatnonzero(~has[b, :p]))
        for b, name in enumerate(sites)
        if not has[b, :p].all()
    }
    used, columns = _giving_way(method, sites, has[:, :p], withheld)
    # Masked sums are of one site, which stands for as many as the quorum asks for.
    if used.sum() < ctx.quorum and ctx.masks is None:
        raise QuorumError(
            f"{int(used.sum())} sites tell all columns and the study needs {ctx.quorum}: take "
            "columns in which more rows differ, or lower the quorum"
        )
    if columns.sum() < 1:
        raise QuorumError("no column is told by every site: take columns in which more rows differ")
    kept = np.append(columns, np.ones(1 + settings.beside, dtype=bool))
    m = int(columns.sum())
    # Of the columns in use and the response; a gaussian one goes on without its offset.
    turn = np.eye(int(kept.sum()), m + 1)
    if settings.offset:
        turn[m + 1, m] = -1.0 if method.family == "gaussian" else 0.0
    n, events, rows, means, products, offsets = [], [], [], [], [], []
    for b in np.flatnonzero(used):
        reply = told[sites[b]]
        at, mean = kept[has[b]], reply.means.value[kept]
        rows.append(float(reply.n.value))
        counted = settings.weighted and settings.weights == "frequency"
        n.append(float(np.rint(rows[-1] * mean[-1])) if counted else rows[-1])
        offsets.append(mean[m + 1] if settings.offset and method.family != "gaussian" else 0.0)
        means.append(mean @ turn)
        square = square_of(reply.products.value, int(has[b].sum()))[np.ix_(at, at)]
        products.append(turn.T @ square @ turn)
        # products are about the means; the weight is the last column
        seen = square[m, -1] + n[-1] * mean[m] if counted else rows[-1] * mean[m]
        events.append(float(np.rint(seen)))
    return _prepared(
        method,
        settings,
        tuple(sites[b] for b in np.flatnonzero(used)),
        (
            np.array(rows),
            np.array(n),
            np.array(events),
            np.stack(means),
            np.stack(products),
            np.array(offsets),
        ),
        tuple(name for name, one in zip(names, columns, strict=True) if one),
        np.flatnonzero(columns).astype(np.int64),
        withheld,
        tuple(sites[b] for b in np.flatnonzero(~used)),
    )


def _giving_way(
    method: PooledRegression,
    sites: Sequence[str],
    has: BoolArray,
    withheld: Mapping[str, tuple[str, ...]],
) -> tuple[BoolArray, BoolArray]:
    """Which sites and which columns take part."""
    used, columns = np.ones(len(sites), dtype=bool), np.ones(has.shape[1], dtype=bool)
    if not withheld:
        return used, columns
    if method.when_withheld == "stop":
        said = "; ".join(f"{name} withholds {', '.join(them)}" for name, them in withheld.items())
        raise QuorumError(
            f"some columns may not be told everywhere: {said}. A count behind them, or behind "
            "their products with others or with the weight, is too small, one row dominates, or "
            "the columns are too many for the rows. Leave these columns or sites out, or set "
            'when_withheld to "without-column" or "without-site"'
        )
    if method.when_withheld == "without-column":
        return used, np.asarray(has.all(axis=0))
    return np.asarray(has.all(axis=1)), columns


def _prepared(
    method: PooledRegression,
    settings: messages.Settings,
    sites: tuple[str, ...],
    moments: tuple[FloatArray, ...],
    names: tuple[str, ...],
    columns: IntArray,
    withheld: Mapping[str, tuple[str, ...]],
    left_out: tuple[str, ...],
    units: tuple[FloatArray, FloatArray] | None = None,
) -> Survey:
    """Units of the columns and the null model; refuses columns that tell no coefficient."""
    rows, n, events, means, products, offsets = moments
    _, mean, squares = pooled(list(rows), list(means), list(products))
    total = float(n.sum())
    bare = method.family == kernels.COX
    within = products.sum(axis=0) if method.site_effects or bare else squares
    k = len(names) + (len(sites) if method.site_effects else 1 - bare)
    if total <= k:
        raise QuorumError(f"{total:.0f} rows are too few for {k} coefficients: take fewer columns")
    _check_columns(names, within[:-1, :-1], squares, mean, method)
    centre, scale = units or (mean[:-1], np.sqrt(np.diag(squares)[:-1] / rows.sum()))
    y = mean[-1]
    starts = means[:, -1] if method.site_effects else np.full(len(sites), y)
    if not method.site_effects:
        offsets = np.full(len(sites), rows @ offsets / rows.sum())
    if method.family != "gaussian":
        _check_response(method, sites, means[:, -1], float(y))
    begin = np.zeros(len(sites))
    if not bare:
        begin = [kernels.start_of(method.family, float(one)) for one in starts] - offsets
    alpha = method.alpha or 1.0
    if settings.estimate:
        # variance of the response about its mean, but for what a Poisson one has
        spread = squares[-1, -1] / rows.sum() - mean[-1]
        alpha = float(np.clip(spread / mean[-1] ** 2, 0.1, 10.0))
    penalty = method.ridge / scale**2
    survey = Survey(
        settings=settings,
        sites=sites,
        rows=rows,
        n=n,
        events=events,
        means=means,
        products=products,
        names=names,
        columns=columns,
        centre=centre,
        scale=scale,
        alpha=alpha,
        starts=begin,
        null=Pool((), method.site_effects, penalty, bare),
        withheld=withheld,
        left_out=left_out,
        members=sites,
    )
    return dataclasses.replace(survey, null=survey.null_at(alpha))


def _check_columns(
    names: tuple[str, ...],
    within: FloatArray,
    squares: FloatArray,
    mean: FloatArray,
    method: PooledRegression,
) -> None:
    """Refuse columns that do not vary, or that others give."""
    spread = np.sqrt(np.maximum(np.diag(squares)[:-1], 0.0))
    size = np.maximum(np.abs(mean[:-1]), spread)
    still = np.sqrt(np.maximum(np.diag(within), 0.0)) <= 1e-10 * np.maximum(size, 1e-300)
    constant = [name for name, one in zip(names, still, strict=True) if one]
    if constant:
        where = " within sites, beside a constant of each" if method.site_effects else ""
        where = " within sites, each with a hazard of its own" if method.family == "cox" else where
        raise StudyError(f"{listed(constant)} does not vary{where}: leave it out")
    if np.diag(squares)[-1] <= 0 and method.family != kernels.COX:
        raise StudyError("the response has one value in all rows: there is nothing to explain")
    lost = kernels.dependent_columns(within)
    if lost and not method.ridge:
        them = listed([names[j] for j in lost])
        raise StudyError(
            f"{them} follows from the columns before it: leave it out, or add a ridge (of a "
            "category leave one level out: [preparation] categorical = 'treatment')"
        )


def _check_response(
    method: PooledRegression, sites: tuple[str, ...], means: FloatArray, pooled_mean: float
) -> None:
    """Refuse a response that has no finite constant."""
    top = {"binomial": 1.0, kernels.COX: 2.0}.get(method.family, np.inf)
    where = dict(zip(sites, means, strict=True)) if method.site_effects else {"all": pooled_mean}
    alone = [name for name, mean in where.items() if not 0 < mean < top]
    if alone:
        place = "all rows" if not method.site_effects else listed(alone)
        raise StudyError(
            f"the response has one value only in {place}, so a constant of it has no estimate: "
            + ("leave these sites out" if method.site_effects else "there is nothing to explain")
        )


def without_sites(method: PooledRegression, survey: Survey, names: Sequence[str]) -> Survey:
    """The same without some sites, in the units in which the others have told their fits.

    Raises
    ------
    QuorumError
        No site is left.
    """
    kept = [b for b, name in enumerate(survey.sites) if name not in names]
    if not kept:
        raise QuorumError(
            "no site has a fit of its own that may leave: take fewer columns, or let sites with "
            "more rows take part"
        )
    return _prepared(
        method,
        survey.settings,
        tuple(survey.sites[b] for b in kept),
        (
            survey.rows[kept],
            survey.n[kept],
            survey.events[kept],
            survey.means[kept],
            survey.products[kept],
            np.zeros(len(kept)),
        ),
        survey.names,
        survey.columns,
        survey.withheld,
        tuple(sorted({*survey.left_out, *names})),
        (survey.centre, survey.scale),
    )


# --------------------------------------------------------------------------- the fit


@dataclass(frozen=True, eq=False)
class Fitted:
    """The model of constants, the fit, rounds of questions, alpha (0: none), and what is judged."""

    null: Pool
    pool: Pool
    rounds: int
    alpha: float
    judged: Mapping[str, messages.Judged]


def step_of_alpha(
    survey: Survey, pool: Pool, step: FloatArray, alpha: float
) -> tuple[FloatArray, float]:
    """Newton's step of coefficients and alpha together, from that of coefficients alone.

    By moments the equation of alpha is solved at the coefficients of before, which hardly depend on
    it. Alpha grows or falls by a factor of 4 at most.

    Raises
    ------
    QuorumError
        A site does not tell what the likelihood needs, or counts vary no more than Poisson ones.
    """
    value, slope, turn = pool.shape
    if np.isnan(value):
        gap = [
            name
            for name, piece in zip(survey.sites, pool.pieces, strict=True)
            if piece.shape is None or np.isnan(piece.shape[0])
        ]
        where = "some site" if survey.masked else listed(gap)
        raise QuorumError(
            f"the likelihood of alpha may not be told at {where}: fewer rows than may be "
            'counted have some number, and it would tell how many. Set dispersion to "moments", or '
            "give alpha"
        )
    drag = np.linalg.solve(pool.curvature, turn)
    if survey.settings.estimate == "moments":
        value -= pool.n - pool.size
    else:
        value, slope = value + float(turn @ step), slope - float(turn @ drag)
    # Where the loss bends the other way its slope says no more than the direction.
    falls = survey.settings.estimate == "moments"
    bends = slope < 0 if falls else slope > 0
    other = alpha - value / slope if bends else alpha * (4.0 if (value < 0) ^ falls else 0.25)
    other = float(np.clip(other, alpha / 4, 4 * alpha))
    if other < _LEAST_ALPHA:
        raise QuorumError(
            "the counts vary no more than Poisson ones, so alpha has no estimate above 0: set "
            "family to 'poisson', with robust errors where they vary less"
        )
    return step - drag * (other - alpha), other


# --------------------------------------------------------------------------- the result


def build_result(
    ctx: CoordinatorContext,
    method: PooledRegression,
    survey: Survey,
    fitted: Fitted,
) -> tuple[PooledRegressionResult, dict[str, FloatArray]]:
    """Put the result together, and the model as it travels."""
    null, pool = fitted.null, fitted.pool
    estimate = survey.settings.estimate
    from scipy.stats import t  # scipy.stats takes long to load

    if method.errors == "cluster" and len(survey.sites) < 2:
        raise QuorumError("errors by site need two sites or more: set errors to 'model'")
    own_fits = method.settings.one_shot
    fit = kernels.conclude(method.family, pool, method.errors, estimate, own_fits=own_fits)
    constants = pool.n_constants
    theta, covariance = kernels.in_units(
        fit.theta, fit.covariance, constants, survey.centre, survey.scale
    )
    error = np.sqrt(np.diag(covariance))
    with np.errstate(divide="ignore", invalid="ignore"):
        statistic = theta / error
    half = float(t.ppf((1 + method.level) / 2, fit.df)) * error
    # Own fits are known as they are; else a step with expected curvatures makes Q a score test.
    spread = _scale_within(pool) if method.family == "gaussian" else fit.scale
    robust, one_shot = method.settings.squares, method.settings.one_shot
    apart = kernels.heterogeneity(pool.observed() if one_shot else pool, spread, robust=robust)
    alike = method.family == "gaussian" and not robust
    if not (method.site_effects or one_shot or alike or pool.bare):
        # One step from a constant that sites do not share is no fit of theirs: Q would reject. Nor
        # are scores about that constant a site's own.
        apart = apart.untested()
    if survey.masked:
        apart = apart.unknown()
    null_loss = sum(p.loss for p in null.pieces)
    least = sum(p.least for p in pool.pieces)
    names = (
        tuple(f"constant of {name}" for name in survey.sites)
        if method.site_effects
        else ("constant",)[pool.bare :]
    )
    tests = {} if method.ridge else kernels.slope_tests(method.family, null, pool, fit)
    if own_fits and pool.bare:
        tests.pop("score", None)  # scores without columns are not told
    result = PooledRegressionResult(
        family=method.family,
        errors=method.errors,
        fit="one-shot" if method.settings.one_shot else "exact",
        response=ctx.columns.target or "",
        offset=ctx.columns.offset or "",
        weight=ctx.columns.weight or "",
        weights=method.weights,
        names=(*names, *survey.names),
        n_constants=constants,
        estimate=theta,
        error=error,
        statistic=statistic,
        p_value=2 * t.sf(np.abs(statistic), fit.df),
        low=theta - half,
        high=theta + half,
        covariance=covariance,
        level=method.level,
        df=fit.df,
        scale=fit.scale,
        alpha=fitted.alpha or np.nan,
        alpha_error=fit.alpha_error,
        dispersion=(estimate or "given") if method.family == kernels.NEGATIVE else "",
        loss=sum(p.loss for p in pool.pieces),
        deviance=fit.deviance,
        null_deviance=np.nan if pool.bare else 2 * (null_loss - least),
        log_likelihood=fit.log_likelihood,
        aic=fit.aic,
        tests=tests,
        sites=survey.members,
        n_by_site=survey.n.astype(np.int64),
        events=survey.events.astype(np.int64) if pool.bare else np.zeros(0, dtype=np.int64),
        time=method.time,
        ties=method.ties if pool.bare else "",
        site_estimates=apart.estimates / survey.scale,
        site_errors=apart.errors / survey.scale,
        q=apart.q,
        q_p_values=apart.p_values,
        i2=apart.i2,
        heterogeneity=(apart.statistic, apart.df, apart.p_value),
        **_performance(survey, fitted),
        ridge=method.ridge,
        rounds=fitted.rounds,
        withheld=dict(survey.withheld),
        left_out=survey.left_out,
        remarks=_remarks(method, survey, apart, fit),
    )
    if pool.bare:
        # Hazards are told against a person with the means of all columns.
        turn = np.vstack([-survey.centre, np.eye(len(theta))])
        theta, covariance = turn @ theta, turn @ covariance @ turn.T
    model = {
        "columns": survey.columns,
        "coefficients": theta,
        "covariance": covariance,
        # infinite degrees of freedom as a number that travels
        "df": np.array([min(fit.df, 1e9)]),
        "level": np.array([method.level]),
    }
    return result, model


def _performance(survey: Survey, fitted: Fitted) -> dict[str, Any]:
    """Counts in bands of predicted risk, calibration and areas, by site; empty unless asked for.

    Of a Cox regression the concordance by site and over all pairs within sites, and the test of
    proportional hazards over the sites that tell what it needs.
    """
    if not fitted.judged or fitted.pool.bare:
        gap = np.zeros((0, 0))
        none = dict.fromkeys(("expected", "calibration", "areas", "cuts"), gap)
        pairs = np.zeros((len(survey.sites), 5))
        for b, name in enumerate(survey.sites):
            told = fitted.judged[name].calibration.value if name in fitted.judged else ()
            pairs[b] = told if len(told) else 0.0
        shares = [performance.concordance(one) for one in (*pairs, pairs.sum(axis=0))]
        told = np.array(shares) if fitted.judged else np.zeros((0, 2))
        lines = [one.drift.value for one in fitted.judged.values() if len(one.drift.value)]
        tests = np.zeros((0, 3))
        if lines:
            drift = messages.drift_of(np.sum(lines, axis=0), len(survey.names))
            tests = performance.proportional(*drift)
        return {
            **none,
            "bands": np.zeros((0, 0, 2), dtype=np.int64),
            "concordance": told,
            "proportional": tests,
            "proportional_sites": len(lines),
        }
    cuts = survey.cuts(fitted.pool)
    s, k = len(survey.sites), len(cuts) + 1
    bands = np.zeros((s, k, 2), dtype=np.int64)
    expected, calibration = np.full((s, k), np.nan), np.full((s, 4), np.nan)
    for b, name in enumerate(survey.sites):
        if name not in fitted.judged:
            continue
        reply = fitted.judged[name]
        bands[b] = reply.counts.value.reshape(k, 2)
        expected[b] = reply.expected.value
        if len(reply.calibration.value):
            intercept, slope, first, _, second = reply.calibration.value
            calibration[b] = intercept, slope, np.sqrt(first), np.sqrt(second)
    areas = [*(performance.area(one[None]) for one in bands), performance.area(bands)]
    return {
        "bands": bands,
        "expected": expected,
        "calibration": calibration,
        "areas": np.array(areas),
        "cuts": kernels.family_of("binomial").mean(cuts)[:, None],
    }


def _scale_within(pool: Pool) -> float:
    """Gaussian variance about a constant of each site and common slopes."""
    own = Pool(pool.pieces, True, np.zeros(len(pool.penalty)))
    curvature, score = own.curvature, own.scores.sum(axis=0)
    step, _, rank, _ = np.linalg.lstsq(curvature, -score, rcond=1e-10)
    # The loss is a parabola, and half the squares that are left.
    loss = sum(p.loss for p in pool.pieces) + score @ step + step @ curvature @ step / 2
    return float(2 * loss) / max(pool.n - float(rank), 1.0)


def _remarks(
    method: PooledRegression, survey: Survey, apart: kernels.Heterogeneity, fit: kernels.Fit
) -> tuple[str, ...]:
    """What a reader must know beside the answer."""
    found = []
    for name, columns in survey.withheld.items():
        gone = " and is not in the fit" if name in survey.left_out else ": the fit goes without"
        who = "Some sites withhold" if survey.masked else f"Site {name} withholds"
        found.append(f"{who} {listed(columns)}{gone}.")
    if method.errors == "cluster" and len(survey.sites) < FEW_CLUSTERS:
        found.append(
            f"Errors by site rest on {len(survey.sites)} clusters; with fewer than "
            f"{FEW_CLUSTERS} they tend to be too small."
        )
    silent = [
        # of masked sums no estimates by site are known
        name
        for name, row in zip(survey.sites, apart.estimates, strict=not survey.masked)
        if np.isnan(row).any()
    ]
    if silent:
        found.append(
            f"No estimates of their own: {listed(silent)} (fewer than two rows for each "
            "coefficient, or columns that do not vary there); their rows are in the fit."
        )
    if method.family == kernels.COX:
        found += [NOT_TOLD_OF_ORDER] if np.isnan(fit.log_likelihood) else []
    elif np.isnan(fit.deviance):
        found.append(NOT_TOLD)
    elif np.isnan(fit.log_likelihood):
        found.append(NO_LIKELIHOOD if method.family == "gamma" else NOT_TOLD_OF_WEIGHTS)
    if method.ridge:
        found.append("A ridge pulls coefficients to 0; limits and p-values take no account of it.")
    return tuple(found)
