"""Latent class analysis row by row, after Linzer and Lewis (2011), equations 1 to 5.

A row is a list of level codes, None where the entry is missing. ``probabilities[k][j][l]`` is the
probability of level l of column j in class k.
"""

from __future__ import annotations

import itertools
import math


def row_probability(row, of_class):
    """Equation 1: a product over the columns that are observed."""
    product = 1.0
    for column, level in zip(of_class, row, strict=True):
        if level is not None:
            product *= column[level]
    return product


def mixture_probability(row, shares, probabilities):
    """Equation 2."""
    return sum(
        p * row_probability(row, of_class)
        for p, of_class in zip(shares, probabilities, strict=True)
    )


def by_completion(row, shares, probabilities):
    """The same, as a sum over everything that the missing entries could be."""
    choices = [
        range(len(column)) if level is None else [level]
        for column, level in zip(probabilities[0], row, strict=True)
    ]
    return sum(
        mixture_probability(list(full), shares, probabilities)
        for full in itertools.product(*choices)
    )


def log_likelihood(rows, weights, shares, probabilities):
    """Equation 3."""
    return sum(
        w * math.log(mixture_probability(row, shares, probabilities))
        for row, w in zip(rows, weights, strict=True)
    )


def objective(rows, weights, shares, probabilities, pseudo_count):
    prior = sum(
        pseudo_count * math.log(p) for of_class in probabilities for col in of_class for p in col
    )
    return log_likelihood(rows, weights, shares, probabilities) + prior


def posterior(row, shares, probabilities):
    """Equation 4."""
    joint = [
        p * row_probability(row, of_class)
        for p, of_class in zip(shares, probabilities, strict=True)
    ]
    return [term / sum(joint) for term in joint]


def em_step(rows, weights, shares, probabilities, pseudo_count):
    """Equation 5, with pseudo-counts: new shares and level probabilities."""
    k, d = len(shares), len(rows[0])
    sizes = [0.0] * k
    counts = [[[pseudo_count] * len(column) for column in of_class] for of_class in probabilities]
    for row, w in zip(rows, weights, strict=True):
        for c, share in enumerate(posterior(row, shares, probabilities)):
            sizes[c] += w * share
            for j in range(d):
                if row[j] is not None:
                    counts[c][j][row[j]] += w * share
    fresh = [[[x / sum(column) for x in column] for column in of_class] for of_class in counts]
    return [size / sum(sizes) for size in sizes], fresh


def em(rows, weights, shares, probabilities, pseudo_count, steps):
    for _ in range(steps):
        shares, probabilities = em_step(rows, weights, shares, probabilities, pseudo_count)
    return shares, probabilities


def as_logits(shares, probabilities):
    return [math.log(p) for p in shares], [
        [[math.log(p) for p in column] for column in of_class] for of_class in probabilities
    ]


def softmax(logits):
    return [math.exp(a) / sum(math.exp(b) for b in logits) for a in logits]


def score(row, shares, probabilities, step=1e-5):
    """Derivatives of a row's log density by each logit, by central differences."""
    share_logits, level_logits = as_logits(shares, probabilities)

    def density():
        levels = [[softmax(column) for column in of_class] for of_class in level_logits]
        return math.log(mixture_probability(row, softmax(share_logits), levels))

    found = []
    places = [share_logits] + [column for of_class in level_logits for column in of_class]
    for logits in places:
        for i in range(len(logits)):
            logits[i] += step
            up = density()
            logits[i] -= 2 * step
            found.append((up - density()) / (2 * step))
            logits[i] += step
    return found
