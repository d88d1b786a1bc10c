"""Textbook rounds of latent class regression: all agents in one place, every weight in the open.

The parallel schedule (arXiv 2206.10783, algorithm 3) with its corrections: all labels of a round
are drawn with smoothed sums of earlier rounds, from which each entity's own part is taken out by
adding up, over all earlier rounds, with what weight its events are still in them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from consilience.latent_regression.kernels.latent_class import (
    Totals,
    agent_key,
    blocks_of,
    classes_of,
    draw_uniform,
    totals_of,
)
from consilience.latent_regression.kernels.marginal_likelihood import (
    coefficient_moments,
    concentration_log_likelihood,
    draw_delta2,
    draw_psi,
    draw_sigma2,
    draw_weights,
    expected_entropies,
    merge_down,
    start_sigma2,
)
from consilience.latent_regression.kernels.sampling import draw_labels, table_counts
from consilience.numerics.random import stream

GRID = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)


@dataclass
class Textbook:
    """One run over all events; `fit` does everything.

    ``offer_round``: place of the first question in the exchange, on which the agents' seeds rest.
    """

    x: np.ndarray
    y: np.ndarray
    entity: np.ndarray
    agent: np.ndarray
    n_classes: int
    n_start: int
    seed: int
    rounds: tuple[int, int, int]
    rate: float = 0.5
    concentration: str = "exact"
    fixed_beta: float | None = None
    offer_round: int = 2
    labels: np.ndarray = field(init=False)
    history: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)
    trace: dict[str, list[Any]] = field(default_factory=lambda: {"sigma": [], "totals": []})

    def fit(self) -> dict[str, Any]:
        self.prepare()
        self.start()
        before, settle, average = self.rounds
        for _ in range(before):
            self.one_round()
        self.merge()
        for i in range(settle):
            self.one_round(grid=self.fixed_beta is None and i in (0, settle - 1))
        kept = []
        for _ in range(average):
            probabilities = self.one_round()
            kept.append((self.classes(), self.totals, self.base, self.sigma2, probabilities))
        return self.ending(kept)

    def prepare(self) -> None:
        """Units of variance 1, agents in name order, entities by first appearance."""
        self.centre = np.array([*self.x.mean(axis=0), self.y.mean()])
        self.scale = np.array([*self.x.std(axis=0), self.y.std()])
        design = np.column_stack(
            [np.ones(len(self.y)), (self.x - self.centre[:-1]) / self.scale[:-1]]
        )
        target = (self.y - self.centre[-1]) / self.scale[-1]
        self.names, agent = np.unique(self.agent, return_inverse=True)
        entity = np.unique(self.entity, return_inverse=True)[1]
        self.blocks = blocks_of(design, target, entity, agent)
        seeds = [
            int(
                stream(
                    self.seed, "agent", "latent-class-regression", str(a), self.offer_round, "offer"
                ).integers(2**63 - 1)
            )
            for a in self.names
        ]
        self.keys = np.array(
            [agent_key(s, str(a)) for s, a in zip(seeds, self.names)], dtype=np.uint64
        )
        self.rng = stream(self.seed, "coordinator")

    def start(self) -> None:
        b, k = self.blocks, self.n_start
        self.sigma2 = start_sigma2(b.products, b.cross, b.squares, b.n)
        self.delta2, self.beta = 1.0, 4.0 if self.fixed_beta is None else self.fixed_beta
        place = np.concatenate([np.arange(n) for n in np.bincount(b.agent)])
        u = draw_uniform(self.keys[b.agent], 0, place)
        self.labels = np.minimum((u * k).astype(int), k - 1)
        self.totals = totals_of(b, self.labels, k)
        self.tables = np.zeros(k)
        self.merged = False
        counts = self.totals.counts
        self.base = (counts + self.alpha / k) / (counts.sum() + self.alpha)
        self.history = [(self.labels.copy(), np.array([1.0]))]
        self.round = 0
        self.note()

    @property
    def alpha(self) -> float:
        return float(max((self.totals.counts > 1e-9).sum(), 1))

    def classes(self) -> Any:
        return classes_of(self.totals, self.sigma2, self.delta2)

    def own(self) -> np.ndarray:
        """Weight of each entity in each class, added up over everything that was ever sent."""
        weights = np.zeros((self.blocks.n_entities, self.n_start))
        for labels, weight in self.history:
            weights[np.arange(len(labels)), labels] += weight[0]
        return weights

    def one_round(self, *, grid: bool = False) -> np.ndarray:
        self.round += 1
        exact = self.concentration == "exact"
        # The shortcut would give a share to classes that are no more.
        k = (
            self.n_start
            if exact or not self.merged
            else 1 + int(np.flatnonzero(self.base > 1e-290)[-1])
        )
        drawn, found, _ = draw_labels(
            self.blocks,
            classes_of(self.totals.take(np.arange(k)), self.sigma2, self.delta2),
            self.labels,
            self.own()[:, :k],
            self.base if exact else None,
            self.beta,
            self.keys,
            self.round,
            shortcut_counts=None if exact else self.totals.counts[:k],
            alpha=self.alpha,
        )
        self.labels, probabilities = drawn, np.zeros((len(drawn), self.n_start))
        probabilities[:, :k] = found
        counts = np.zeros((len(self.keys), self.n_start))
        np.add.at(counts, (self.blocks.agent, self.labels), 1.0)
        tables = table_counts(counts.astype(int), self.beta, self.base, self.keys, self.round)
        if grid:
            fits = concentration_log_likelihood(counts, self.base, np.array(GRID))
            self.beta = GRID[int(np.argmax(fits))]
        new = totals_of(self.blocks, self.labels, self.n_start)
        self.totals = self.totals * (1 - self.rate) + new * self.rate
        self.tables = self.tables * (1 - self.rate) + tables.sum(axis=0) * self.rate
        for _, weight in self.history:
            weight *= 1 - self.rate
        self.history.append((self.labels.copy(), np.array([self.rate])))
        self.draw()
        self.note()
        return probabilities

    def draw(self) -> None:
        coefficients = draw_weights(self.classes(), self.rng)
        used = self.totals.n > 1e-9
        self.sigma2 = draw_sigma2(self.totals, coefficients, self.rng)
        self.delta2 = draw_delta2(coefficients[used], self.rng)
        live = used if self.merged else np.ones_like(used)
        self.base = np.full(self.n_start, 1e-300)
        self.base[live] = draw_psi(self.tables[live], self.alpha, self.rng)

    def merge(self) -> None:
        now = totals_of(self.blocks, self.labels, self.n_start)
        # what is left of a class goes where it fits
        left = (now.counts == 0) & (self.totals.counts > 0)
        trace = np.where(left, 1e-3 / np.where(left, self.totals.counts, 1.0), 0.0)
        now = now + Totals(*((a.T * trace).T for a in self.totals.arrays))
        mapping, _ = merge_down(
            now,
            self.sigma2,
            self.delta2,
            n_classes=self.n_classes,
            alpha=float(self.n_start),
            entropies=expected_entropies(now, self.sigma2, self.delta2),
        )
        k = self.n_start
        self.totals = self.totals.merged(mapping, k)
        self.tables = np.bincount(mapping, weights=self.tables, minlength=k)
        self.base = np.maximum(np.bincount(mapping, weights=self.base, minlength=k), 1e-300)
        self.labels = mapping[self.labels]
        self.history = [(mapping[labels], weight) for labels, weight in self.history]
        self.merged = True

    def note(self) -> None:
        self.trace["sigma"].append(np.sqrt(self.sigma2) * self.scale[-1])

    def ending(self, kept: list[Any]) -> dict[str, Any]:
        """Classes by size, in the units of the columns."""
        states, totals, bases, variances, probabilities = zip(*kept)
        mean_totals = Totals(*(np.mean(a, axis=0) for a in zip(*(t.arrays for t in totals))))
        cells = np.flatnonzero(mean_totals.counts >= 0.5)
        cells = cells[np.argsort(-mean_totals.counts[cells], kind="stable")]
        # a round says of a class as much as it has events in it
        mean, covariance = coefficient_moments(states, np.array([t.n for t in totals]))
        base = np.mean(bases, axis=0)[cells]
        found = np.mean(probabilities, axis=0)[:, cells]
        slopes = mean[cells, 1:] / self.scale[:-1] * self.scale[-1]
        return {
            "coefficients": slopes,
            "intercepts": mean[cells, 0] * self.scale[-1]
            + self.centre[-1]
            - slopes @ self.centre[:-1],
            "mean": mean[cells],
            "covariance": covariance[cells],
            "class_sizes": mean_totals.counts[cells],
            "class_events": mean_totals.n[cells],
            "class_shares": base / base.sum(),
            "sigma": np.sqrt(np.mean(variances)) * self.scale[-1],
            "delta": np.sqrt(self.delta2),
            "beta": self.beta,
            "trace_sigma": np.array(self.trace["sigma"]),
            "probabilities": found / found.sum(axis=1, keepdims=True),
        }
