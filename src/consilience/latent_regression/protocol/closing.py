"""The end at a site: who belongs where, a predictor, and what the classes are worth."""

from __future__ import annotations

import math

import numpy as np

from consilience.arrays import FloatArray, IntArray
from consilience.exceptions import DataError, ProtocolError
from consilience.latent_regression.estimators.latent_class_predictor import LatentClassPredictor
from consilience.latent_regression.estimators.latent_class_units import Units
from consilience.latent_regression.kernels.latent_class import Blocks, Classes, block_log_likelihood
from consilience.latent_regression.kernels.latent_class_prediction import (
    class_predictions,
    mixture_interval,
    posterior_weights,
)
from consilience.latent_regression.protocol.messages import (
    N_FIGURES,
    Conclude,
    Concluded,
    Settings,
)
from consilience.latent_regression.protocol.rows import Events
from consilience.protocol.method import SiteContext, SiteData, State
from consilience.wire.disclosure import Limits, WeightedMeans, aggregate, weighted_means
from consilience.wire.rounding import by_entity


def conclude_at_site(
    message: Conclude,
    data: SiteData,
    events: Events,
    s: Settings,
    state: State,
    site: SiteContext,
) -> Concluded:
    """Write the site's outputs and judge its held-out events."""
    classes = _classes(message, events.n_features + int(s.fit_intercept), s.n_cells)
    z = events.scaled(*state["scaling"])
    blocks = events.blocks(z, s)
    known = _posterior(message, events, blocks, classes, s, state, site.limits)
    try:
        figures = _figures(message, events, z, blocks, classes, known, s, state, site.limits)
    except (DataError, np.linalg.LinAlgError):
        if site.limits.min_records <= 1:
            raise
        figures = _no_figures()
    # What stays here may use the held-out events too: they tell more of their entities.
    log_known = np.log(np.maximum(known, np.finfo(float).tiny))
    held = _held_blocks(events, z, s)
    final = known
    if held is not None:
        final = posterior_weights(log_known, _log_likelihood(held, classes, site.limits))
    _write(message, data, events, final, classes, s, state, site)
    return Concluded(figures=figures.mean, variances=figures.variance, effective=figures.effective)


def _classes(message: Conclude, n_design: int, n_cells: int) -> Classes:
    """The classes as a posterior of their coefficients."""
    mean, covariance = np.asarray(message.mean.value), np.asarray(message.covariance.value)
    if mean.shape[1] != n_design:
        raise ProtocolError("the classes have other columns than the study")
    target = np.asarray(message.mapping)
    if target.shape != (n_cells,) or ((target < -1) | (target >= len(mean))).any():
        raise ProtocolError("cells of the rounds become classes that do not exist")
    precision = np.linalg.inv(covariance)
    precision = (precision + np.swapaxes(precision, 1, 2)) / 2
    cholesky = np.linalg.cholesky(precision)
    log_det = 2.0 * np.log(np.diagonal(cholesky, axis1=1, axis2=2)).sum(axis=1)
    return Classes(
        precision=precision,
        mean=mean,
        cholesky=np.asarray(cholesky, dtype=np.float64),
        log_det=log_det,
        sigma2=float(message.sigma2.value),
        delta2=float(message.delta2.value),
        linear=np.einsum("kfg,kg->kf", precision, mean),
    )


def _posterior(
    message: Conclude,
    events: Events,
    blocks: Blocks,
    classes: Classes,
    s: Settings,
    state: State,
    limits: Limits,
) -> FloatArray:
    """Label probabilities of each entity from the events in the sums: averaged over rounds."""
    if int(state.get("n_kept", 0)):
        kept = np.asarray(state["sum"]) / int(state["n_kept"])
        found = np.zeros((events.n_entities, classes.n_classes))
        target = np.asarray(message.mapping)
        for cell in np.flatnonzero(target >= 0):
            found[:, target[cell]] += kept[:, cell]
        total = found.sum(axis=1, keepdims=True)
        if (total > 0).all():
            return np.asarray(found / total)
    log_prior = np.log(np.maximum(message.base.value, np.finfo(float).tiny))
    everyone = np.broadcast_to(log_prior, (events.n_entities, classes.n_classes))
    return posterior_weights(everyone, _log_likelihood(blocks, classes, limits))


def _log_likelihood(blocks: Blocks, classes: Classes, limits: Limits) -> FloatArray:
    """Log-likelihood of each entity's events under each class.

    Under made-up classes one entity may have none. A refusal would say that there is such a one,
    and could be asked for again; so at protected sites the events then tell nothing.
    """
    try:
        return block_log_likelihood(blocks, classes)
    except DataError:
        if limits.min_records <= 1:
            raise
        return np.zeros((blocks.n_entities, classes.n_classes))


def _held_blocks(events: Events, z: FloatArray, s: Settings) -> Blocks | None:
    """Statistics of the held-out events alone."""
    if not events.held.any():
        return None
    from consilience.latent_regression.kernels.latent_class import blocks_of

    root = np.where(events.root > 0, events.root, 1.0)
    rows = z / root[:, None]
    return blocks_of(
        np.ascontiguousarray(events.design(rows, s.fit_intercept)),
        np.where(events.held, rows[:, -1], np.nan),
        events.entity,
        events.agent,
        events.root**2,
    )


def _figures(
    message: Conclude,
    events: Events,
    z: FloatArray,
    blocks: Blocks,
    classes: Classes,
    known: FloatArray,
    s: Settings,
    state: State,
    limits: Limits,
) -> WeightedMeans:
    """Means over held-out events of what classes and simpler models lose."""
    held = np.flatnonzero(events.held & (events.root > 0))
    if not len(held):
        return _no_figures()
    rows = z[held] / events.root[held, None]
    x, y = np.ascontiguousarray(events.design(rows, s.fit_intercept)), rows[:, -1]
    weights = known[events.entity[held]]
    means, variances = class_predictions(x, classes)
    mixed = (weights * means).sum(axis=1)
    low, high = mixture_interval(weights, means, variances, s.level)
    ridge = np.asarray(message.ridge.value)
    by_all = x @ ridge
    by_own = by_all + (x * _own_deviations(blocks, ridge, classes)[events.entity[held]]).sum(1)
    unit = float(state["scaling"][1, -1])
    log_mixture = _log_mixture(y, weights, means, variances)
    variance = float(message.ridge_variance.value)
    log_ridge = -0.5 * (np.log(2 * math.pi * variance) + (y - by_all) ** 2 / variance)
    columns = [
        (y - by_all) ** 2 * unit**2,
        (y - by_own) ** 2 * unit**2,
        (y - mixed) ** 2 * unit**2,
        y**2 * unit**2,
        log_ridge - math.log(unit),
        log_mixture - math.log(unit),
        ((y >= low) & (y <= high)).astype(float),
        (high - low) * unit,
        ((y - by_all) ** 2 - (y - mixed) ** 2) * unit**2,
    ]
    # Made-up classes could single out an entity: means are rounded to what any one does to them,
    # and to what its being in its class makes of a response that is not known.
    values, entities = np.column_stack(columns), events.entity[held]
    h = events.root[held] ** 2
    return weighted_means(
        values,
        h[:, None],
        limits=limits,
        entities=entities,
        least=_least_steps(y, y - by_all, h, weights, means, variances, entities, unit),
    )


def _least_steps(
    y: FloatArray,
    rest: FloatArray,
    h: FloatArray,
    weights: FloatArray,
    means: FloatArray,
    variances: FloatArray,
    entities: IntArray,
    unit: float,
) -> FloatArray:
    """What classes of entities do to figures, per half the spread of what ridge leaves of y.

    The classes' predictions, and slopes of their log densities, are compared with those under the
    average weights of all. Without it a figure in which all but one entity are known would tell
    that entity's response, since what it adds is then known to the rounding of the others.
    """
    spread = 0.5 * math.sqrt(float((h * rest**2).sum() / h.sum()))
    common = np.broadcast_to(weights.mean(axis=0), weights.shape)
    felt = np.column_stack(
        [
            ((weights - common) * means).sum(axis=1),
            _slope(y, weights, means, variances) - _slope(y, common, means, variances),
        ]
    )
    moves = by_entity(h[:, None] * np.abs(felt), entities)
    error, score = moves.max(axis=0) * spread / h.sum()
    steps = np.zeros(N_FIGURES)
    steps[[2, 8]], steps[5] = error * unit**2, score
    return steps


def _slope(
    y: FloatArray, weights: FloatArray, means: FloatArray, variances: FloatArray
) -> FloatArray:
    """Derivative of the log density of a normal mixture in y."""
    log_parts = np.log(np.maximum(weights, np.finfo(float).tiny)) - 0.5 * np.log(variances)
    log_parts = log_parts - 0.5 * (y[:, None] - means) ** 2 / variances
    parts = np.exp(log_parts - log_parts.max(axis=1, keepdims=True))
    slopes = parts * (means - y[:, None]) / variances
    return np.asarray(slopes.sum(axis=1) / parts.sum(axis=1))


def _no_figures() -> WeightedMeans:
    gaps = aggregate(np.full((0, N_FIGURES), np.nan)).withhold(np.ones(N_FIGURES, dtype=bool))
    return WeightedMeans(gaps, gaps, gaps)


def _own_deviations(blocks: Blocks, ridge: FloatArray, classes: Classes) -> FloatArray:
    """A ridge regression for every entity alone, towards the regression of all, (E, F)."""
    penalty = classes.sigma2 / classes.delta2 * np.eye(len(ridge))
    rest = blocks.cross - blocks.products @ ridge
    return np.asarray(np.linalg.solve(blocks.products + penalty, rest[:, :, None])[:, :, 0])


def _log_mixture(
    y: FloatArray, weights: FloatArray, means: FloatArray, variances: FloatArray
) -> FloatArray:
    """Log density of a normal mixture at each y."""
    away = (y[:, None] - means) ** 2 / variances
    log_parts = -0.5 * (np.log(2 * math.pi * variances) + away)
    log_parts = log_parts + np.log(np.maximum(weights, np.finfo(float).tiny))
    top = log_parts.max(axis=1)
    return np.asarray(top + np.log(np.exp(log_parts - top[:, None]).sum(axis=1)))


def _write(
    message: Conclude,
    data: SiteData,
    events: Events,
    final: FloatArray,
    classes: Classes,
    s: Settings,
    state: State,
    site: SiteContext,
) -> None:
    """Labels by row, a table by entity, and the predictor."""
    label = np.argmax(final, axis=1)
    chance = final[np.arange(len(label)), label]
    site.output("class", label[events.entity] + 1)
    site.output("class_probability", chance[events.entity])
    agents = np.array(events.agent_names)
    site.table(
        "classes",
        {
            "agent": agents[events.agent_of],
            "entity": np.array(events.entity_names),
            "class": label + 1,
            "probability": chance,
            "events": np.bincount(events.entity, minlength=events.n_entities),
        },
    )
    counts = np.zeros((len(agents), classes.n_classes))
    np.add.at(counts, events.agent_of, final)
    site.output(
        "predictor",
        LatentClassPredictor(
            message.mean.value,
            message.covariance.value,
            sigma2=classes.sigma2,
            base=message.base.value,
            beta=message.beta,
            units=_units(data, s, state),
            agents=agents,
            agent_counts=counts,
            entities=np.array(events.entity_names),
            entity_agents=events.agent_of,
            probabilities=final,
            feature_names=data.feature_names,
        ),
    )


def _units(data: SiteData, s: Settings, state: State) -> Units:
    """Units of the columns as they were read and encoded, scaling of the preparation included."""
    centre, scale = (np.asarray(row[:-1]) for row in state["scaling"])
    if data.scaling is not None:
        centre, scale = data.scaling[1] + centre * data.scaling[2], scale * data.scaling[2]
    return Units(
        centre,
        scale,
        float(state["scaling"][0, -1]),
        float(state["scaling"][1, -1]),
        s.fit_intercept,
    )
