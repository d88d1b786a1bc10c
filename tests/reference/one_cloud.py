"""Separation, information, rows between classes and scores, by loops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np


def separation(rows: np.ndarray, labels: Sequence[int]) -> float:
    """Adjusted share of the sum of squares that lies between classes."""
    m, p = rows.shape
    classes = sorted(set(labels))
    within = total = 0.0
    for j in range(p):
        overall = sum(rows[:, j]) / m
        total += sum((x - overall) ** 2 for x in rows[:, j])
        for k in classes:
            mine = [x for x, label in zip(rows[:, j], labels, strict=True) if label == k]
            within += sum((x - sum(mine) / len(mine)) ** 2 for x in mine)
    return 1 - (within / (m - len(classes))) / (total / (m - 1))


def information(cells: Sequence[Sequence[tuple[int, int]]], labels: Sequence[int]) -> float:
    """Nats per record that its class tells of its (row of the table, value) pairs."""

    def share(among: Sequence[Sequence[tuple[int, int]]], row: int, value: int) -> float:
        seen = [b for one in among for a, b in one if a == row]
        return seen.count(value) / len(seen)

    told = 0.0
    for record, label in zip(cells, labels, strict=True):
        mine = [one for one, k in zip(cells, labels, strict=True) if k == label]
        for row, value in record:
            told += math.log(share(mine, row, value) / share(cells, row, value))
    return told / len(labels)


def share_between(rows: np.ndarray, labels: Sequence[int]) -> float:
    """Share of rows that have left their class mean by a third of the way to another."""
    means = {
        k: np.mean([x for x, label in zip(rows, labels, strict=True) if label == k], axis=0)
        for k in set(labels)
    }
    between = 0
    for x, label in zip(rows, labels, strict=True):
        steps = [
            float((x - means[label]) @ (mean - means[label]) / ((mean - means[label]) ** 2).sum())
            for k, mean in means.items()
            if k != label
        ]
        between += max(steps) > 1 / 3
    return between / len(labels)


def scored(column: Sequence[float], like: Sequence[float]) -> list[float]:
    """Normal scores of mean ranks among the values of `like`."""
    scores = []
    for x in column:
        rank = sum(y < x for y in like) + sum(y == x for y in like) / 2
        scores.append(NormalDist().inv_cdf(rank / len(like)))
    return scores


def at_correlation(
    told: np.ndarray, drawn: np.ndarray, rows: np.ndarray, labels: np.ndarray
) -> np.ndarray:
    """Statistics less their least squares on ``sum_k n_k m_k' (C_d - C) m_k``."""
    z = (rows - rows.mean(axis=0)) / rows.std(axis=0)
    part = np.zeros(len(drawn))
    for d, table in enumerate(drawn):
        off = np.corrcoef(table.T) - np.corrcoef(rows.T)
        for k in set(labels.tolist()):
            mean = z[labels == k].mean(axis=0)
            part[d] += (labels == k).sum() * mean @ off @ mean
    fit = np.linalg.lstsq(np.stack([np.ones(len(part)), part], axis=1), told, rcond=None)[0]
    return told - fit[1] * part
