"""Regression in latent classes of entities, for agents, entities and events, as an estimator."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import (
    _check_sample_weight,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from consilience.arrays import FloatArray, IntArray
from consilience.exceptions import DataError, ParameterError
from consilience.latent_regression.estimators.latent_class_fit import (
    ClassFit,
    Settings,
    fit_classes,
    resolved_sigma2,
)
from consilience.latent_regression.estimators.latent_class_predictor import (
    LatentClassPredictor,
    Units,
    units_of,
)
from consilience.latent_regression.kernels.degrees import own_of, view_of
from consilience.latent_regression.kernels.evidence import Evidence, Rows, evidence_of
from consilience.latent_regression.kernels.latent_class import Blocks, agent_key, blocks_of
from consilience.numerics.ids import as_ids, pair_codes
from consilience.numerics.parallel import one_thread
from consilience.numerics.random import seed_of, stream
from consilience.numerics.row_units import numbers_of

AGREED = 0.9
"""Adjusted Rand index between chains below which they disagree: chains that mix have .97 and more,
also where classes overlap."""
UNMEASURED = "whether there are kinds is not measured: too few entities have two events or more"
SETTLED = {"log_marginal": 1.3, "sigma": 1.3, "prediction": 1.2}
"""R-hat above which chains have not settled; sorted shares of classes are told, and not judged."""
MOST_COPIES = 10_000_000
"""Entities that whole weights of rows may stand for: each is drawn by itself."""


@dataclass(frozen=True, eq=False)
class Events:
    """Rows by agent and entity.

    Attributes
    ----------
    rows : (N,) array of int
        Row of the caller's table of each event.
    weight : (N,) array
    agents : (A,) array of ids, sorted
    agent : (N,) array of int
        Place of each event's agent.
    entity : (N,) array of int
        Number of each event's entity, ascending.
    first : (E,) array of int
        First event of each entity.
    names : (E,) array of ids
        Of the entities; numbers of rows where every row is an entity.
    by_row : bool
        Whether every row is an entity.
    """

    rows: IntArray
    weight: FloatArray
    agents: NDArray[Any]
    agent: IntArray
    entity: IntArray
    first: IntArray
    names: NDArray[Any]
    by_row: bool

    @property
    def owners(self) -> IntArray:
        """Place of each entity's agent, (E,)."""
        return self.agent[self.first]


def events_of(x: FloatArray, y: FloatArray, weight: FloatArray, entity: Any, agent: Any) -> Events:
    """Sort rows by agent, entity and values, so that the order of a table does not matter.

    Where every row is an entity, rows without weight are left out, and whole weights are numbers of
    entities, as if the row were there so often; other weights are parts of one entity's event.

    Parameters
    ----------
    x : (n, p) array
    y : (n,) array
    weight : (n,) array
    entity, agent : (n,) arrays of ids, optional

    Raises
    ------
    DataError
        Ids that cannot be used, no row with a weight, or weights that stand for too many entities.
    """
    n = len(x)
    owners = np.zeros(n, dtype=np.int64) if agent is None else as_ids(agent, n, "agent")
    if entity is None:
        order = np.lexsort((*x.T[::-1], y, owners))
        order = order[weight[order] > 0]
        size = weight[order]
        if (size == np.floor(size)).all():
            if size.sum() > max(n, MOST_COPIES):
                raise DataError(
                    f"sample_weight stands for more than {MOST_COPIES:,} entities of one event: "
                    "give entity, or divide all weights by one number"
                )
            order = np.repeat(order, size.astype(np.int64))
            size = np.ones(len(order))
        members: NDArray[Any] = np.arange(len(order))
    else:
        known = as_ids(entity, n, "entity")
        # y alone leaves ties, and the order of a sum is seen in its last digit
        order = np.lexsort((weight, *x.T[::-1], y, known, owners))
        size, members = weight[order], known[order]
    if not (size > 0).any():
        raise DataError("no row has a positive weight: nothing can be fitted")
    agents, places = np.unique(owners[order], return_inverse=True)
    codes, first = pair_codes(places.astype(np.int64), members)
    names = order[first] if entity is None else members[first]
    return Events(order, size, agents, places.astype(np.int64), codes, first, names, entity is None)


def remarks_of(
    found: ClassFit, x: FloatArray, y: FloatArray, blocks: Blocks, *, shared_ids: bool
) -> Iterator[tuple[str, bool]]:
    """Sentences about a fit, none with a value of the data, and whether they are warnings.

    Parameters
    ----------
    found : ClassFit
    x : (n, p) array
        Rows that were used.
    y : (n,) array
    blocks : Blocks
    shared_ids : bool
        Whether an entity id belongs to several agents.
    """
    yield from convergence_of(found)
    if found.asked != "auto" and found.n_classes < int(found.asked):
        yield (
            f"only {found.n_classes} of {found.asked} classes hold entities: "
            "ask for fewer, or read the fit as one of fewer classes",
            True,
        )
    if found.jumped:
        yield (
            "labels jumped to and fro between classes, so the learning rate was lowered: "
            "start with a lower learning_rate",
            True,
        )
    if np.min(found.sigma2) < 2.0 * resolved_sigma2(found.delta2, blocks.products):
        yield (
            "with so many events, or such weights, noise as small as this is lost in rounding: "
            "sigma_ is an upper bound; divide sample_weight, if given, by one number",
            float(blocks.n.sum()) > len(blocks.y),
        )
    if (y == y[0]).all():
        yield "y is constant: there is nothing that classes could differ by", False
    # Without an intercept a constant column takes its place.
    intercept = blocks.n_features > x.shape[1]
    constant = int((x == x[0]).all(axis=0).sum()) if intercept else 0
    if constant:
        yield (
            f"columns of X are constant ({constant}): the prior decides what they share with the "
            "intercept",
            False,
        )
    sums = blocks.products.sum(axis=0)
    rank = np.linalg.matrix_rank(sums, tol=1e-9 * float(np.trace(sums)), hermitian=True)
    if len(x) < blocks.n_features:
        yield (
            f"there are fewer events than the {blocks.n_features} coefficients of a class: "
            "the prior decides",
            False,
        )
    elif rank < blocks.n_features - constant:
        yield "columns of X depend on one another: the prior shares out their coefficients", False
    if shared_ids:
        yield "some entity ids belong to several agents: each pair is an entity of its own", False
    if blocks.n_agents == 1 and found.n_classes > 1:
        yield "there is one agent only: agents' shares of the classes are not compared", False


def convergence_of(found: ClassFit) -> Iterator[tuple[str, bool]]:
    """Whether chains agree, as in `remarks_of`; nothing where all find one class."""
    n_chains, n_likely = len(found.likely), int(found.likely.sum())
    among = found.agreement[np.ix_(found.likely, found.likely)]
    if found.n_classes == 1 and among.min() == 1:
        return
    far = [name for name, ratio in found.rhat.items() if name in SETTLED and ratio > SETTLED[name]]
    if n_chains == 1:
        yield (
            "one chain cannot tell whether another start finds the same classes: raise n_restarts",
            False,
        )
    elif among.min() < AGREED:
        yield (
            f"chains disagree: of {n_chains} starts {n_likely} end in classes about as likely, and "
            f"their partitions agree to {among.min():.2f} only (adjusted Rand index; 1: the same). "
            "These classes are one answer of several: do not read an entity's class as a fact",
            True,
        )
    elif n_likely == 1:
        yield (
            f"only one of {n_chains} starts found these classes, the others ended in less likely "
            "ones: raise n_restarts, there may be better ones",
            True,
        )
    elif far:
        yield (
            f"chains have not settled on {', '.join(far)} (R-hat {found.rhat[far[0]]:.2f}, "
            "1: settled): raise n_settle and n_average",
            True,
        )


def _has_entities(estimator: Any) -> bool:
    """Whether the estimator was fitted to entities."""
    if not getattr(estimator, "_has_entities", False):
        raise AttributeError("predict_proba is for a regressor that was fitted with entity=")
    return True


@dataclass(eq=False, repr=False)
class LatentClassRegressor(RegressorMixin, BaseEstimator):
    """Linear regression whose coefficients are those of the latent class of an event's entity.

    Parameters
    ----------
    n_classes : int or "auto"
        K. With ``"auto"`` many classes are merged while the marginal likelihood rises. Where there
        is no evidence of kinds on events that they left out, and they are not a standard error
        ahead of one regression there, K is 1.
    n_start : int, optional
        Classes to begin with: by default ``2 K``, or 18 with ``"auto"``; no fewer than K and no
        more than there are entities.
    fit_intercept : bool
    standardize : bool
        Scale the columns (and centre them, with an intercept), so that one prior fits all
        coefficients. The target is scaled (and centred, with an intercept) in any case.
    sigma : float or "draw"
        Standard deviation of the noise, in the units of y; what is below 1e-5 of the standard
        deviation of y counts as that much.
    delta : float or "draw"
        Prior standard deviation of the coefficients, where y has standard deviation 1 (and the
        columns, if they are standardised).
    alpha : float, optional
        Concentration of the common shares of the classes; by default the number of classes.
    beta : float or "grid"
        Concentration of agents' shares around the common ones.
    concentration : {"exact", "shortcut"}
        Draw the common shares from table counts, or take them from all entities at once, as the
        source does; agents of unequal size make the shortcut favour large ones.
    schedule : {"sequential", "parallel"}
        One entity after the other, or all agents at once with the totals of earlier rounds: the
        schedule of a federation.
    learning_rate : float
        Weight of a round's totals in the parallel schedule.
    n_sweeps : int
        Sweeps before classes are merged.
    n_settle, n_average : int
        Sweeps after the merge, and sweeps over which the answer is averaged.
    n_restarts : int
        Chains from different starts; the one with the largest of `log_marginals_` is kept, the
        others tell whether its classes are the only answer.
    n_jobs : int, optional
        Restarts at a time, as in joblib. The answer does not depend on it.
    random_state : int, RandomState or None
    random_effects : {"none", "intercept", "slopes"}
        What an entity has of its own beside the coefficients of its class: an intercept, or all
        coefficients, ``b ~ N(0, sigma^2 G)`` with one G for all classes. With one class this is a
        mixed model. Needs `entity`.
    noise : {"normal", "t"}
        t noise has heavy tails; its degrees of freedom are drawn. An outlier then weighs little,
        and needs no class.
    noise_by_class : bool
        Whether each class has noise of its own size. Own coefficients are then larger in classes
        with more noise, ``b ~ N(0, sigma_k^2 G)``.

    Attributes
    ----------
    coef_ : (K, p) array
        Coefficients by class, classes by falling size, in the units of the table.
    intercept_ : (K,) array
    coef_covariance_ : (K, p + 1, p + 1) array
        Of intercept and coefficients, given the number of classes, by the law of total variance
        over the last sweeps, and the mean square of what the same entities' coefficients are in the
        other `likely_chains_`. Intervals from it hold their level (of 90% .89 to .90 was measured),
        but for classes that hardly differ, where they are a little short (.87).
    class_sizes_ : (K,) array
        Expected number of entities.
    class_shares_ : (K,) array
        Common shares of the classes over agents.
    n_classes_ : int
        Fewer than asked for where classes stayed empty.
    sigma_ : float or (K,) array
        Standard deviation of the noise (the scale of t noise) in the units of y; with
        `noise_by_class` of each class.
    delta_, alpha_, beta_ : float
        The prior, where y has standard deviation 1.
    random_covariance_ : (p + 1, p + 1) array or None
        Of own intercept and coefficients of an entity, in the units of the table; 0 for those that
        entities do not have. With `noise_by_class` of each class, (K, p + 1, p + 1).
    random_effects_ : (E, p + 1) array or None
        Posterior means of own intercept and coefficients, entities as in ``entities_``.
    noise_df_ : float
        Degrees of freedom of the noise, geometric mean over the last sweeps; infinite where it is
        normal.
    labels_ : (E,) array of int
        Most probable class of each entity, entities by agent and id (or of each row of X).
    label_probabilities_ : (E, K) array
    entities_ : dict of (E,) arrays
        ``agent``, ``entity``, ``events`` (with an outcome), ``label`` and ``probability`` of it.
    trace_ : dict of (T,) arrays
        By sweep of the restart that is kept: ``log_marginal`` (of events and labels), ``sigma``,
        ``moved`` (share of the labels), ``n_classes``, ``learning_rate``.
    log_marginals_ : (R,) array
        Bound of the log marginal likelihood of the events in each restart, less a charge for the
        shares of more classes; the largest is kept.
    merge_path_ : tuple of (int, float)
        Classes after each merger, and its gain in log probability.
    agreement_ : (R, R) array
        Adjusted Rand index between the labels of any two restarts. Below .9 the first of
        `remarks_` says that there are several answers.
    likely_chains_ : (R,) array of bool
        Restarts about as likely as the best: ``log_marginals_`` at most 10 lower, beside two
        standard deviations over its last sweeps. The others got stuck.
    rhat_ : dict of float
        Potential scale reduction between the halves of all restarts over their last sweeps, of what
        does not hang on the classes' names: ``log_marginal``, ``sigma``, ``class_shares`` (by size)
        and ``prediction`` (mean outcome of entities). NaN of one restart, or of fewer than four
        sweeps.
    n_iter_ : int
        Sweeps of the restart that is kept.
    evidence_ : Evidence or None
        Kinds or degrees: classes, one regression and a mixed model on events that each left out,
        entity by entity (``verdict``, ``sentence``, ``log_score``, ``error``, differences with
        their errors). Under ``"auto"`` of the classes that the mergers left. None where fewer than
        five entities have two events. With a given K it is computed when it is first asked for.
    remarks_ : tuple of str
        What was noticed: first whether chains disagree.
    predictor_ : LatentClassPredictor
    n_features_in_ : int
    feature_names_in_ : (p,) array of str
        Where X has names.

    Notes
    -----
    Rows are sorted by agent and entity before the fit (and by their values where there are no
    entities): the answer does not depend on their order. An entity id at two agents is two
    entities. An outcome that is NaN is not used, and its row is predicted all the same.

    References
    ----------
    Yang, Carette, Jimbo, Maruyama, *Federated Latent Class Regression for Hierarchical Data*,
    arXiv 2206.10783, algorithm 2. Departures: blocks of events by their sums, several restarts,
    more classes at first which are merged, drawn hyperparameters, averaged labels.

    Examples
    --------
    >>> import numpy as np
    >>> from consilience import LatentClassRegressor
    >>> rng = np.random.default_rng(0)
    >>> entity = np.repeat(np.arange(40), 5)
    >>> x = rng.normal(size=(200, 1))
    >>> y = np.where(entity % 2 == 0, 2.0, -2.0) * x[:, 0] + 0.1 * rng.normal(size=200)
    >>> fit = LatentClassRegressor(n_classes=2, random_state=0).fit(x, y, entity=entity)
    >>> np.sort(fit.coef_.round(1).ravel()).tolist()
    [-2.0, 2.0]
    """

    n_classes: int | str = 4
    _: KW_ONLY
    n_start: int | None = None
    fit_intercept: bool = True
    standardize: bool = True
    sigma: float | str = "draw"
    delta: float | str = "draw"
    alpha: float | None = None
    beta: float | str = "grid"
    concentration: str = "exact"
    schedule: str = "sequential"
    learning_rate: float = 0.5
    n_sweeps: int = 40
    n_settle: int = 20
    n_average: int = 20
    n_restarts: int = 4
    n_jobs: int | None = None
    random_state: Any = None
    random_effects: str = "none"
    noise: str = "normal"
    noise_by_class: bool = False

    # ------------------------------------------------------------------ fit

    def fit(
        self, X: Any, y: Any, *, entity: Any = None, agent: Any = None, sample_weight: Any = None
    ) -> LatentClassRegressor:
        """Find the classes.

        Parameters
        ----------
        X : (n, p) array or data frame
            Finite numbers.
        y : (n,) array
            Outcomes; NaN where there is none.
        entity : (n,) array of ids, optional
            Every row is an entity by default.
        agent : (n,) array of ids, optional
            All rows are of one agent by default.
        sample_weight : (n,) array, optional
            How many events a row stands for, 0 or more. Without `entity` a whole number is a number
            of entities of one event each.

        Returns
        -------
        self

        Raises
        ------
        ParameterError
            A setting is out of its range, or there are more classes than entities.
        DataError
            The table cannot be used.

        Warns
        -----
        ConvergenceWarning
            Chains disagree, classes stayed empty, labels jumped to and fro, or weights hide the
            noise.
        """
        settings = Settings(**{f.name: getattr(self, f.name) for f in fields(Settings)})
        if y is None:  # the words that scikit-learn's checks look for
            raise DataError(
                "this LatentClassRegressor estimator requires y to be passed, "
                "but the target y is None"
            )
        if settings.random_effects != "none" and (entity is None or not self.fit_intercept):
            rule = '"none" without entity or without an intercept'
            raise ParameterError.of("random_effects", rule, settings.random_effects)
        X = validate_data(self, X, dtype=np.float64, ensure_min_samples=2)
        y = _outcomes(y, len(X))
        weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        events = events_of(X, y, weight, entity, agent)
        x, outcome = X[events.rows], y[events.rows]
        used = np.where(np.isnan(outcome), 0.0, events.weight)
        if not (used > 0).any():
            raise DataError("y has no number in a row of positive weight: nothing can be fitted")
        with one_thread():  # sums over threads would depend on how many there are
            units = units_of(
                x,
                outcome,
                used,
                standardize=bool(self.standardize),
                intercept=bool(self.fit_intercept),
            )
            design, target = units.design(x), units.target(outcome)
            blocks = blocks_of(design, target, events.entity, events.agent, events.weight)
            seed = seed_of(self.random_state)
            keys = np.array([agent_key(seed, name) for name in events.agents.tolist()], np.uint64)
            # the settings in the units of the blocks
            if settings.sigma != "draw":
                settings = replace(settings, sigma=float(settings.sigma) / units.target_scale)
            if settings.delta != "draw" and not self.standardize:
                settings = replace(settings, delta=float(settings.delta) * float(units.scale[0]))
            found = fit_classes(blocks, settings, seed, keys=keys, n_jobs=self.n_jobs)
            fit = partial(fit_classes, blocks, seed=seed, keys=keys, n_jobs=self.n_jobs)
            one = None
            if settings.has_degrees and found.n_classes > 1:
                one = fit(replace(settings, n_classes=1, n_start=1))
            self._evidence: Evidence | partial[Evidence | None] | None = partial(
                evidence_of,
                Rows(design, target, events.entity, events.agent, events.weight),
                blocks,
                found.sweeps,
                found.n_classes,
                stream(seed, "halves"),
                one=() if one is None else one.sweeps,
                intercept=bool(self.fit_intercept),
                unit=units.target_scale,
            )
            if settings.n_classes == "auto" and (found.agreement.min() < 1 or found.n_classes > 1):
                evidence = self.evidence_
                if evidence is not None and evidence.one_is_enough:
                    found = one or fit(replace(settings, n_classes=1, n_start=1))
            self._take(found, blocks, units, events, agent is not None)
            self._take_entities(found, events, blocks.n, X, agent)
        shared = not events.by_row and len(np.unique(events.names)) < len(events.names)
        table = x[used > 0], outcome[used > 0]
        remarks = list(remarks_of(found, *table, blocks, shared_ids=shared))
        self.remarks_ = tuple(sentence for sentence, _ in remarks)
        for sentence, urgent in remarks:
            if urgent:
                warnings.warn(sentence, ConvergenceWarning, stacklevel=2)
        return self

    @property
    def evidence_(self) -> Evidence | None:
        """Kinds or degrees, see the class; computed when it is first asked for."""
        check_is_fitted(self)
        if isinstance(self._evidence, partial):
            with one_thread():
                self._evidence = self._evidence()
        return self._evidence

    def __getstate__(self) -> Any:
        """Keep the evidence, and not the rows that it is computed from."""
        if "_evidence" in vars(self):
            _ = self.evidence_
        return super().__getstate__()

    def _take(
        self, found: ClassFit, blocks: Blocks, units: Units, events: Events, agents_given: bool
    ) -> None:
        """Keep the answer."""
        self._has_entities, self._has_agents = not events.by_row, agents_given
        known = np.arange(0 if events.by_row else blocks.n_entities)
        degrees, f = found.degrees, blocks.n_features
        own = own_of(view_of(blocks, degrees).scaled, degrees)
        self.noise_df_ = degrees.df
        self.random_covariance_ = self.random_effects_ = None
        if len(degrees.columns):
            effects = np.zeros((blocks.n_entities, f))
            felt = np.einsum("ejf,ef->ej", own.felt, found.probabilities @ found.mean)
            effects[:, degrees.columns] = own.mean - felt
            covariance = np.multiply.outer(found.sigma2, degrees.spread(f))
            slopes, intercepts, self.random_covariance_ = units.raw(effects, covariance)
            self.random_effects_ = np.column_stack([intercepts - units.target_centre, slopes])
        self.predictor_ = LatentClassPredictor(
            found.mean,
            found.covariance,
            sigma2=found.sigma2,
            base=found.base,
            beta=found.beta,
            units=units,
            agents=events.agents,
            agent_counts=found.agent_counts,
            entities=events.names[known],
            entity_agents=events.owners[known],
            probabilities=found.probabilities[known],
            feature_names=getattr(self, "feature_names_in_", None),
            degrees=degrees,
            own=own.take(known),
        )
        self.coef_, self.intercept_, self.coef_covariance_ = units.raw(found.mean, found.covariance)
        self.n_classes_ = found.n_classes
        self.class_sizes_ = found.probabilities.sum(axis=0)
        self.class_shares_ = found.base
        sigma: Any = np.sqrt(found.sigma2) * units.target_scale
        self.sigma_ = sigma if self.noise_by_class else float(sigma)
        self.delta_ = float(np.sqrt(found.delta2))
        if not self.standardize:
            self.delta_ /= float(units.scale[0])
        self.alpha_, self.beta_ = found.alpha, found.beta
        self.trace_ = {**found.trace, "sigma": found.trace["sigma"] * units.target_scale}
        self.log_marginals_ = found.log_marginals
        self.agreement_ = found.agreement
        self.likely_chains_, self.rhat_ = found.likely, found.rhat
        self.merge_path_ = found.merge_path
        self.n_iter_ = len(found.trace["moved"])

    def _take_entities(
        self, found: ClassFit, events: Events, sizes: FloatArray, x: FloatArray, agent: Any
    ) -> None:
        """Keep what is known of each entity; of each row in the table's order without entities."""
        owners: NDArray[Any] = events.agents[events.owners]
        names, posterior = events.names, found.probabilities
        if events.by_row:
            # Copies of a row may have drawn different labels; rows without weight drew none.
            posterior = self.predictor_.predict_proba(x, agent=agent)
            copies = np.bincount(names, minlength=len(x))
            sums = np.zeros_like(posterior)
            np.add.at(sums, names, found.probabilities)
            posterior[copies > 0] = sums[copies > 0] / copies[copies > 0, None]
            sizes = np.bincount(names, weights=sizes, minlength=len(x)).astype(np.float64)
            owners = np.zeros(len(x), dtype=np.int64) if agent is None else np.asarray(agent)
            names = np.arange(len(x))
        self.label_probabilities_ = posterior
        self.labels_ = posterior.argmax(axis=1).astype(np.int64)
        self.entities_ = {
            "agent": owners,
            "entity": names,
            "events": sizes,
            "label": self.labels_,
            "probability": posterior.max(axis=1),
        }

    # ------------------------------------------------------------------ answers

    def summary(self) -> str:
        """Return a few plain sentences: kinds or degrees first, then what was noticed."""
        check_is_fitted(self)
        verdict = UNMEASURED if self.evidence_ is None else self.evidence_.sentence
        shares = ", ".join(f"{share:.0%}" for share in self.class_sizes_ / self.class_sizes_.sum())
        held = f"{self.n_classes_} classes hold {shares} of the entities"
        said = (verdict, *self.remarks_, held if self.n_classes_ > 1 else "one class is fitted")
        return " ".join(f"{sentence[0].upper()}{sentence[1:]}." for sentence in said)

    def predict(
        self, X: Any, *, entity: Any = None, agent: Any = None, observed: Any = None
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
        """
        x = self._rows(X, agent)
        return self.predictor_.predict(x, entity=entity, agent=agent, observed=observed)

    def predict_interval(
        self,
        X: Any,
        *,
        level: float = 0.9,
        entity: Any = None,
        agent: Any = None,
        observed: Any = None,
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
        """
        return self.predictor_.predict_interval(
            self._rows(X, agent), level=level, entity=entity, agent=agent, observed=observed
        )

    @available_if(_has_entities)
    def predict_proba(
        self, X: Any, y: Any = None, *, entity: Any = None, agent: Any = None
    ) -> FloatArray:
        """Probability of each class for each row's entity; only after a fit with `entity`.

        scikit-learn grants a regressor no such method, so one that was fitted to rows alone, as a
        common regressor is, has none: see ``label_probabilities_``.

        Parameters
        ----------
        X, entity, agent
            As in `predict`.
        y : (n,) array, optional
            Outcomes where they are known, as `observed` in `predict`.

        Returns
        -------
        (n, K) array
        """
        return self.predictor_.predict_proba(self._rows(X, agent), y, entity=entity, agent=agent)

    def sample(
        self,
        X: Any,
        n_samples: int = 1,
        *,
        entity: Any = None,
        agent: Any = None,
        observed: Any = None,
        random_state: Any = None,
    ) -> FloatArray:
        """Draw outcomes from their joint predictive distribution.

        Parameters
        ----------
        X, entity, agent, observed
            As in `predict`.
        n_samples : int
            S.
        random_state : int, RandomState or None

        Returns
        -------
        (S, n) array
            The rows of an entity share its class within a sample.
        """
        return self.predictor_.sample(
            self._rows(X, agent),
            n_samples,
            rng=np.random.default_rng(seed_of(random_state)),
            entity=entity,
            agent=agent,
            observed=observed,
        )

    def score(
        self, X: Any, y: Any, sample_weight: Any = None, *, entity: Any = None, agent: Any = None
    ) -> float:
        """Share of the variance that is explained, R squared; rows without an outcome are left out.

        Parameters
        ----------
        X, entity, agent
            As in `predict`.
        y : (n,) array
        sample_weight : (n,) array, optional
        """
        from sklearn.metrics import r2_score

        predicted = self.predict(X, entity=entity, agent=agent)
        y = _outcomes(y, len(predicted))
        there = ~np.isnan(y)
        weight = None if sample_weight is None else np.asarray(sample_weight, dtype=float)[there]
        return float(r2_score(y[there], predicted[there], sample_weight=weight))

    def _rows(self, X: Any, agent: Any) -> FloatArray:
        check_is_fitted(self)
        if agent is not None and not self._has_agents:
            raise DataError("this regressor was fitted without agent: predict without it, too")
        return np.asarray(validate_data(self, X, reset=False, dtype=np.float64))


def _outcomes(y: Any, n_rows: int) -> FloatArray:
    """The target as numbers, NaN allowed."""
    outcomes = numbers_of("y", column_or_1d(y, warn=True))
    if len(outcomes) != n_rows:
        raise DataError(f"y must hold one outcome for each of the {n_rows} rows of X")
    if np.isinf(outcomes).any():
        raise DataError("y has infinite values: drop or correct these rows")
    return outcomes
