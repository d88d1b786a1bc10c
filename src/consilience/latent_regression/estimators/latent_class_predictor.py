"""Latent classes as a predictor: for known entities, new entities and new agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.exceptions import DataError
from consilience.latent_regression.kernels.degrees import (
    NO_DEGREES,
    Degrees,
    Own,
    own_of,
    tail_variances,
    view_of,
)
from consilience.latent_regression.kernels.latent_class import (
    Blocks,
    Classes,
    block_log_likelihood,
    blocks_of,
)
from consilience.latent_regression.kernels.marginal_likelihood import Noise
from consilience.latent_regression.kernels.prediction import (
    class_predictions,
    mixture_interval,
    posterior_weights,
    unseen_weights,
)
from consilience.numerics.ids import as_ids, ids_from_arrays, ids_to_arrays, pair_codes, places
from consilience.numerics.row_units import numbers_of, read_rows
from consilience.parameters import check, number, whole


@dataclass(frozen=True, eq=False)
class Units:
    """Centres and scales of columns and target.

    Attributes
    ----------
    centre, scale : (p,) arrays
        Of the columns.
    target_centre, target_scale : float
    intercept : bool
        Whether a column of ones comes first in the design, F = p + 1 then.
    """

    centre: FloatArray
    scale: FloatArray
    target_centre: float
    target_scale: float
    intercept: bool

    @classmethod
    def of(
        cls,
        centre: FloatArray,
        scale: FloatArray,
        intercept: bool,
        prepared: FloatArray | None = None,
    ) -> Units:
        """Units of features and target, which comes last.

        Parameters
        ----------
        centre, scale : (p + 1,) arrays
        intercept : bool
        prepared : (3, p) array, optional
            Fill values, centres and scales of the preparation of the columns before.
        """
        of_columns, each = centre[:-1], scale[:-1]
        if prepared is not None:
            of_columns, each = prepared[1] + of_columns * prepared[2], each * prepared[2]
        return cls(of_columns, each, float(centre[-1]), float(scale[-1]), intercept)

    @property
    def n_columns(self) -> int:
        """Columns of the design: F."""
        return len(self.centre) + int(self.intercept)

    def design(self, x: FloatArray) -> FloatArray:
        """Rows as the classes see them, (n, F)."""
        rows = (np.asarray(x, dtype=np.float64) - self.centre) / self.scale
        if not self.intercept:
            return np.ascontiguousarray(rows)
        return np.column_stack([np.ones(len(rows)), rows])

    def target(self, y: FloatArray) -> FloatArray:
        """Outcomes as the classes see them, (n,)."""
        scaled: FloatArray = np.asarray(y, dtype=np.float64) - self.target_centre
        return scaled / self.target_scale

    def outcome(self, values: FloatArray) -> FloatArray:
        """Outcomes in the units of the table."""
        return np.asarray(values * self.target_scale + self.target_centre)

    def raw(
        self, mean: FloatArray, covariance: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Coefficients in the units of the table.

        Parameters
        ----------
        mean : (K, F) array
        covariance : (K, F, F) array

        Returns
        -------
        coefficients : (K, p) array
        intercepts : (K,) array
        covariance : (K, p + 1, p + 1) array
            The intercept first.
        """
        p, extra = len(self.centre), int(self.intercept)
        matrix = np.zeros((p + 1, p + extra))
        if self.intercept:
            matrix[0, 0] = self.target_scale
        slopes = self.target_scale / self.scale
        matrix[np.arange(1, p + 1), np.arange(extra, p + extra)] = slopes
        # intercept of the table: less what the centres of the columns stand for
        matrix[0, extra:] = -slopes * self.centre
        values = mean @ matrix.T
        with np.errstate(over="ignore"):  # of units that are too large for a variance
            spread = matrix @ covariance @ matrix.T
        return values[:, 1:], values[:, 0] + self.target_centre, spread


def units_of(
    x: FloatArray, y: FloatArray, weight: FloatArray, *, standardize: bool, intercept: bool
) -> Units:
    """Units of a table.

    Parameters
    ----------
    x : (n, p) array
    y : (n,) array
        Finite where the weight is not 0.
    weight : (n,) array
    standardize : bool
        Whether columns are centred (where there is an intercept) and scaled one by one; otherwise
        all are divided by one number. The target is scaled in any case, and centred where there is
        an intercept.
    intercept : bool
    """
    used = weight > 0
    share = weight[used] / weight[used].sum()
    if standardize:
        centre, scale = _moments(x[used], share, intercept)
    else:
        # One scale for all keeps their relative sizes, and sums in range.
        centre, each = _moments(x[used], share, False)
        scale = np.full(x.shape[1], each.max(initial=0.0) or 1.0)
    middle, spread = _moments(y[used, None], share, intercept)
    return Units(centre, scale, float(middle[0]), float(spread[0]), intercept)


def _moments(values: FloatArray, share: FloatArray, centred: bool) -> tuple[FloatArray, FloatArray]:
    """Mean and standard deviation of columns, whatever their size; 1 where they are constant."""
    largest = np.abs(values).max(axis=0, initial=0.0)
    largest = np.where(largest > 0, largest, 1.0)
    parts = values / largest
    mean = share @ parts if centred else np.zeros(values.shape[1])
    away = parts - mean
    spread = np.sqrt(share @ (away * away))
    # A constant column leaves only what rounding makes of it.
    spread = np.where(spread > 1e-13, spread, 1.0)
    return mean * largest, spread * largest


Ids = ArrayLike | None
_FLAT = ("sigma2", "beta", "target_centre", "target_scale", "intercept")
_PARTS = ("mean", "covariance", "base", "agent_counts", "entity_agents", "probabilities")
_TAIL_STEPS = 10  # of weights of observed events


class LatentClassPredictor:
    """Predict events from classes of regressions, by what is known of their entity.

    An entity of the fit is predicted by the average over its label's posterior, a new entity of a
    known agent by the agent's shares of the classes, a new entity of a new agent by the common
    shares; events of new entities whose outcome is known update their entity's shares.

    Parameters
    ----------
    mean : (K, F) array
        Means of the classes' coefficients, in the units of `units`.
    covariance : (K, F, F) array
    sigma2 : float or (K,) array
        Variance of the noise in the units of `units`, of all classes or of each.
    beta : float
        Concentration of agents' shares.
    base : (K,) array
        psi: shares of the classes over agents.
    units : Units
    agents : (A,) array of ids, sorted
    agent_counts : (A, K) array
        Entities by agent and class.
    entities : (E,) array of ids
    entity_agents : (E,) array of int
        Place of each entity's agent.
    probabilities : (E, K) array
        Posterior of each entity's label.
    feature_names : sequence of str, optional
    degrees : Degrees
        What entities have of their own, and the tails of the noise.
    own : Own, optional
        Own coefficients of the entities, with `degrees`.

    Attributes
    ----------
    n_features_in_ : int
    n_classes_ : int
    feature_names_in_ : (p,) array of str
        Only if names were given.

    Raises
    ------
    DataError
        The parts do not fit together.

    Notes
    -----
    Source: arXiv 2206.10783, section 3, with the predictive variance
    ``sigma^2 + x' D^-1 x`` (the printed equation 4 divides by sigma^2). Departures: the label's
    posterior in place of one drawn label, and whole mixtures in place of one class's normal.
    """

    def __init__(
        self,
        mean: ArrayLike,
        covariance: ArrayLike,
        *,
        sigma2: Noise,
        base: ArrayLike,
        beta: float,
        units: Units,
        agents: NDArray[Any],
        agent_counts: ArrayLike,
        entities: NDArray[Any],
        entity_agents: ArrayLike,
        probabilities: ArrayLike,
        feature_names: Sequence[str] | None = None,
        degrees: Degrees = NO_DEGREES,
        own: Own | None = None,
    ) -> None:
        self.mean = np.asarray(mean, dtype=np.float64)
        self.covariance = np.asarray(covariance, dtype=np.float64)
        self.sigma2 = sigma2 if isinstance(sigma2, np.ndarray) else float(sigma2)
        self.base = np.asarray(base, dtype=np.float64)
        self.beta = float(beta)
        self.units = units
        self.agents = np.asarray(agents)
        self.agent_counts = np.asarray(agent_counts, dtype=np.float64)
        self.entities = np.asarray(entities)
        self.entity_agents = np.asarray(entity_agents, dtype=np.int64)
        self.probabilities = np.asarray(probabilities, dtype=np.float64)
        f, e = self.mean.shape[-1], len(self.entities)
        self.degrees, q = degrees, len(degrees.columns)
        none = Own(np.zeros((e, q)), np.zeros((e, q, f)), np.zeros((e, q, q)))
        self.own = none if own is None else own
        self._check()
        self.n_classes_ = len(self.mean)
        self._noise = np.broadcast_to(self.sigma2, self.n_classes_)
        self.n_features_in_ = len(units.centre)
        if feature_names is not None:
            if len(feature_names) != self.n_features_in_:
                raise DataError("a predictor needs one name for each of its columns")
            self.feature_names_in_ = np.array([str(name) for name in feature_names])
        # pairs of agent and entity, sorted
        self._names, inner = np.unique(self.entities, return_inverse=True)
        pairs = self.entity_agents * max(len(self._names), 1) + inner
        self._order = np.argsort(pairs, kind="stable")
        self._pairs = pairs[self._order]
        if (np.diff(self._pairs) == 0).any() or (self.agents[1:] <= self.agents[:-1]).any():
            raise DataError("a predictor needs sorted agents, each entity of an agent once")

    def _check(self) -> None:
        k, f = self.mean.shape if self.mean.ndim == 2 else (0, 0)
        a, e = len(self.agents), len(self.entities)
        shapes = (
            (self.covariance, (k, f, f)),
            (self.base, (k,)),
            (self.agent_counts, (a, k)),
            (self.entity_agents, (e,)),
            (self.probabilities, (e, k)),
            (np.broadcast_to(self.sigma2, np.shape(self.sigma2) or (k,)), (k,)),
            (self.units.scale, self.units.centre.shape),
        )
        fits = k > 0 and f == self.units.n_columns
        fits &= all(value.shape == shape for value, shape in shapes)
        noise = np.append(self.sigma2, self.beta)
        fits &= bool((noise > 0).all() and np.isfinite(noise).all())
        fits = fits and all(np.isfinite(getattr(self, name)).all() for name in _PARTS)
        fits = fits and [len(part) for part in self.own] == [e] * 3
        fits = fits and (not e or 0 <= self.entity_agents.min() <= self.entity_agents.max() < a)
        if not fits or (self.base < 0).any() or not (self.units.scale > 0).all():
            raise DataError("the parts of a predictor do not fit together")

    # -------------------------------------------------------------- predictions

    def predict(
        self, X: ArrayLike, *, entity: Ids = None, agent: Ids = None, observed: Ids = None
    ) -> FloatArray:
        """Expected outcome of each row.

        Parameters
        ----------
        X : (n, p) array or data frame
        entity, agent : (n,) arrays of ids, optional
            Without `entity` every row is an entity that is not known. Without `agent` the rows are
            of the one agent of the fit, or of unknown agents where there were several.
        observed : (n,) array, optional
            Outcomes where they are known, NaN elsewhere: they tell the class of entities that were
            not in the fit. Entities of the fit keep their posterior.

        Returns
        -------
        (n,) array

        Raises
        ------
        DataError
            Columns, ids or values that cannot be used.
        """
        weights, means, _ = self._mixture(self._rows(X), entity, agent, observed)
        return self.units.outcome((weights * means).sum(axis=1))

    def predict_interval(
        self,
        X: ArrayLike,
        *,
        level: float = 0.9,
        entity: Ids = None,
        agent: Ids = None,
        observed: Ids = None,
    ) -> FloatArray:
        """Central interval for the outcome of each row.

        Parameters
        ----------
        X, entity, agent, observed
            As in `predict`.
        level : float
            In (0, 1).

        Returns
        -------
        (n, 2) array
            Quantiles of the mixture of the classes' predictive distributions.

        Raises
        ------
        ParameterError
            A level outside its range.
        DataError
            As `predict`.
        """
        check({"level": number(above=0, below=1)}, locals())
        weights, means, variances = self._mixture(self._rows(X), entity, agent, observed)
        tails = tail_variances(self.degrees.df)
        if len(tails) > 1:
            noise = np.outer(tails - 1.0, self._noise).ravel()
            weights, means, variances = (
                np.tile(part, len(tails)) for part in (weights / len(tails), means, variances)
            )
            variances = variances + noise
        lower, upper = mixture_interval(weights, means, variances, level)
        return self.units.outcome(np.column_stack([lower, upper]))

    def predict_proba(
        self, X: ArrayLike, observed: Ids = None, *, entity: Ids = None, agent: Ids = None
    ) -> FloatArray:
        """Probability of each class for each row's entity, (n, K); parameters as in `predict`."""
        return self._known(self._rows(X), entity, agent, observed)[0]

    def sample(
        self,
        X: ArrayLike,
        n_samples: int = 1,
        *,
        rng: np.random.Generator,
        entity: Ids = None,
        agent: Ids = None,
        observed: Ids = None,
    ) -> FloatArray:
        """Draw outcomes from their joint predictive distribution.

        In each sample the coefficients of the classes are drawn once, and the rows of an entity
        share its class.

        Parameters
        ----------
        X, entity, agent, observed
            As in `predict`.
        n_samples : int
            S.
        rng : numpy.random.Generator

        Returns
        -------
        (S, n) array
        """
        check({"n_samples": whole(1)}, locals())
        x = self._rows(X)
        known, group = self._groups(len(x), entity, agent)
        weights, own = self._known(x, entity, agent, observed)
        first, code = pair_codes(known, group)[::-1]
        # one label for all rows of an entity
        ends = weights[first].cumsum(axis=1)
        ends /= ends[:, -1:]
        roots = np.linalg.cholesky(_covered(self.covariance))
        design, j, df = self.units.design(x), self.degrees.columns, self.degrees.df
        own_roots = np.linalg.cholesky(own.spread[first])
        drawn = np.empty((n_samples, len(x)))
        for s in range(n_samples):
            label = (rng.random((len(first), 1)) >= ends[:, :-1]).sum(axis=1)[code]
            noise = rng.standard_normal(self.mean.shape)
            coefficients = self.mean + np.einsum("kfg,kg->kf", roots, noise)
            values = np.einsum("nf,nf->n", design, coefficients[label])
            if len(j):  # given the class's coefficients, one draw for all rows of an entity
                mean = own.mean - np.einsum("njf,nf->nj", own.felt, coefficients[label])
                away = (own_roots @ rng.standard_normal((len(first), len(j), 1)))[code, :, 0]
                away *= np.sqrt(self._noise[label])[:, None]
                values += (design[:, j] * (mean + away)).sum(axis=1)
            noise = np.sqrt(self._noise[label]) * rng.standard_normal(len(x))
            if np.isfinite(df):
                noise /= np.sqrt(rng.chisquare(df, len(x)) / df)
            drawn[s] = values + noise
        return self.units.outcome(drawn)

    # -------------------------------------------------------------- what it rests on

    def _classes(self) -> Classes:
        """The classes with the covariance of their coefficients in the place of 1/D."""
        covariance = _covered(self.covariance)
        # No direction of a class is less precise than the inverse of the largest trace.
        delta2 = float(np.trace(covariance, axis1=1, axis2=2).max())
        return Classes.of(self.mean, covariance, self.sigma2, delta2)

    def _places(self, n: int, entity: Ids, agent: Ids) -> tuple[IntArray, IntArray]:
        """Place of each row's agent and of its entity, -1 where they are not known."""
        nobody = np.full(n, -1, dtype=np.int64)
        if agent is not None:
            agents = places(self.agents, as_ids(agent, n, "agent"), "agent")
        elif len(self.agents) == 1:
            agents = np.zeros(n, dtype=np.int64)
        elif entity is not None and len(self.agents) > 1:
            raise DataError("entities are known by agent and entity: give agent too")
        else:
            agents = nobody
        if entity is None:
            return agents, nobody
        inner = places(self._names, as_ids(entity, n, "entity"), "entity")
        # agent and entity as one number, -1 where either is unknown
        pairs = np.where((agents < 0) | (inner < 0), -1, agents * len(self._names) + inner)
        at = places(self._pairs, pairs, "entity")
        return agents, np.where(at < 0, -1, self._order[at]) if len(self._order) else nobody

    def _groups(self, n: int, entity: Ids, agent: Ids) -> tuple[IntArray, NDArray[Any]]:
        """What two rows of one entity have in common: agent and entity."""
        if entity is None:
            return np.zeros(n, dtype=np.int64), np.arange(n)
        owner = np.zeros(n, dtype=np.int64)
        if agent is not None:
            owner = np.unique(as_ids(agent, n, "agent"), return_inverse=True)[1].astype(np.int64)
        return owner, as_ids(entity, n, "entity")

    def _mixture(
        self, x: FloatArray, entity: Ids, agent: Ids, observed: Ids
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Weights, means and variances of the normals of each row, (n, K) each."""
        weights, own = self._known(x, entity, agent, observed)
        return weights, *self._class_predictions(self.units.design(x), own)

    def _class_predictions(self, design: FloatArray, own: Own) -> tuple[FloatArray, FloatArray]:
        """Mean and variance of each row under each class, with what its entity has of its own."""
        z = design[:, self.degrees.columns]
        if not z.shape[1]:
            return class_predictions(design, self._classes())
        # x'w + z'b with b | w ~ N(u - A w, sigma2 C) is (x - A'z)'w + z'u
        means, variances = class_predictions(
            design - np.einsum("nj,njf->nf", z, own.felt), self._classes()
        )
        more = np.outer(np.einsum("nj,njk,nk->n", z, own.spread, z), self._noise)
        return means + (z * own.mean).sum(axis=1)[:, None], variances + more

    def _known(
        self, x: FloatArray, entity: Ids, agent: Ids, observed: Ids
    ) -> tuple[FloatArray, Own]:
        """Weights of the classes, and own coefficients, of each row's entity."""
        agents, entities = self._places(len(x), entity, agent)
        counts = np.vstack([self.agent_counts, np.zeros(self.n_classes_)])
        weights = np.asarray(unseen_weights(counts, self.base, self.beta))[agents]
        seen = entities >= 0
        # entities of the fit have their posterior, others the shares of their agent
        weights[seen] = self.probabilities[entities[seen]]
        n, (q, f) = len(x), (len(self.degrees.columns), self.mean.shape[1])
        spread = np.repeat(self.degrees.ratio[None], n, axis=0)
        own = Own(np.zeros((n, q)), np.zeros((n, q, f)), spread)
        for into, known in zip(own, self.own.take(entities[seen]), strict=True):
            into[seen] = known
        if observed is None:
            return weights, own
        y = numbers_of("observed", observed)
        if y.shape != (len(x),) or np.isinf(y).any():
            raise DataError("observed must hold a number or NaN for each row of X")
        rows = np.flatnonzero(~seen)
        if np.isnan(y[rows]).all():
            return weights, own
        # the classes of new entities are weighed by the likelihood of their observed events
        owner, member = self._groups(len(x), entity, agent)
        codes, first = pair_codes(owner[rows], member[rows])
        design, target = self.units.design(x[rows]), self.units.target(y[rows])
        blocks = blocks_of(design, target, codes, np.zeros(len(rows), dtype=np.int64))
        with np.errstate(divide="ignore"):
            prior = np.log(weights[rows])[first]
        # blocks number entities by appearance, codes by name
        at = blocks.entity[first]
        updated, found = self._learn(blocks, prior[np.argsort(at)])
        weights[rows] = updated[at][codes]
        for into, new in zip(own, found.take(at[codes]), strict=True):
            into[rows] = new
        return weights, own

    def _learn(self, blocks: Blocks, prior: FloatArray) -> tuple[FloatArray, Own]:
        """Weights of the classes and own coefficients of new entities, by their events.

        Under t noise what an event weighs is found in steps: by its expected squared residual under
        the present weights.
        """
        given, classes = self.degrees, self._classes()
        if np.isfinite(given.df):
            given = replace(given, precision=np.ones(len(blocks.y)))
        owner = np.repeat(np.arange(blocks.n_entities), np.diff(blocks.start))
        for step in range(_TAIL_STEPS):
            view = view_of(blocks, given)
            weights = posterior_weights(prior, block_log_likelihood(view.white, classes))
            own = own_of(view.scaled, given)
            if given.precision is None or step == _TAIL_STEPS - 1:
                break
            means, variances = self._class_predictions(blocks.x, own.take(owner))
            squares = (blocks.y[:, None] - means) ** 2 + variances - self._noise
            expected = (weights[owner] * squares / self._noise).sum(axis=1)
            precision = (given.df + blocks.weight) / (given.df + expected)
            given = replace(given, precision=precision)
        return weights, own

    def _rows(self, X: ArrayLike) -> FloatArray:
        named = getattr(self, "feature_names_in_", None)
        rows = read_rows(X, self.n_features_in_, None if named is None else named.tolist())
        if not np.isfinite(rows).all():
            raise DataError("the table has missing or infinite values: fill or drop these rows")
        return rows

    # -------------------------------------------------------------- keeping

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Numeric arrays that hold the whole predictor, texts as UTF-8 bytes."""
        units, parts = self.units, {name: getattr(self, name) for name in _PARTS}
        scales = (units.target_centre, units.target_scale, float(units.intercept))
        one = float(np.mean(self.sigma2))
        arrays: dict[str, NDArray[Any]] = {
            **{name: parts.pop(name) for name in ("mean", "covariance", "base")},
            "flat": np.array((one, self.beta, *scales)),
            "centre": units.centre,
            "scale": units.scale,
            **parts,
            **ids_to_arrays("agents", self.agents),
            **ids_to_arrays("entities", self.entities),
        }
        if not self.degrees.none:
            arrays["columns"], arrays["ratio"] = self.degrees.columns, self.degrees.ratio
            arrays["df"] = np.array(self.degrees.df)
            arrays |= {f"own_{name}": part for name, part in self.own._asdict().items()}
        if isinstance(self.sigma2, np.ndarray):
            arrays["noise"] = self.sigma2
        if hasattr(self, "feature_names_in_"):
            arrays.update(ids_to_arrays("features", self.feature_names_in_))
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> LatentClassPredictor:
        """Rebuild a predictor from `to_arrays` of it.

        Raises
        ------
        DataError
            The arrays are not those of a predictor.
        """
        named = "features_text" in arrays
        try:
            flat = dict(zip(_FLAT, np.asarray(arrays["flat"], dtype=float).tolist(), strict=True))
            centre, scale = (np.asarray(arrays[x], dtype=np.float64) for x in ("centre", "scale"))
            target = flat["target_centre"], flat["target_scale"]
            units = Units(centre, scale, *target, bool(flat["intercept"]))
            parts = {name: arrays[name] for name in _PARTS}
            noise = np.asarray(arrays["noise"], dtype=np.float64) if "noise" in arrays else None
            degrees, own = NO_DEGREES, None
            if "columns" in arrays:
                columns = np.asarray(arrays["columns"], dtype=np.int64)
                rest = np.ones(len(columns)), None, float(arrays["df"])
                degrees = Degrees(columns, np.asarray(arrays["ratio"]), *rest)
                own = Own(*(np.asarray(arrays[f"own_{n}"]) for n in Own._fields))
        except (KeyError, ValueError, TypeError):
            raise DataError("these arrays do not hold a predictor") from None
        return cls(
            **parts,
            sigma2=flat["sigma2"] if noise is None else noise,
            beta=flat["beta"],
            units=units,
            agents=ids_from_arrays("agents", arrays),
            entities=ids_from_arrays("entities", arrays),
            feature_names=ids_from_arrays("features", arrays).tolist() if named else None,
            degrees=degrees,
            own=own,
        )


def _covered(covariance: FloatArray) -> FloatArray:
    """The covariance with a diagonal that keeps it positive definite where rounding would not."""
    f = covariance.shape[1]
    size = np.trace(covariance, axis1=1, axis2=2) / f
    return np.asarray(covariance + (1e-12 * size + 1e-300)[:, None, None] * np.eye(f))
