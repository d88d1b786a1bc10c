"""Compiled loops of k-means on observed coordinates.

Imported on first use: it loads numba. One thread, one order; a row's class never depends on which
other rows are in the batch. Rows are pieces of ``columns`` and ``values`` between their pointers;
values are given minus their column's mean, so that 0 stands for a coordinate that no row of a class
has. Centres are (p, k): the classes of one coordinate lie together.
"""

from __future__ import annotations

import numpy as np

from consilience.numerics.compilation import compiled


@compiled
def squares(indptr, columns, values, centres, out):
    """Sums of squared differences over the observed coordinates of each row, (n, k), into out."""
    k = centres.shape[1]
    for i in range(indptr.size - 1):
        for c in range(k):
            out[i, c] = 0.0
        for e in range(indptr[i], indptr[i + 1]):
            x, j = values[e], columns[e]
            for c in range(k):
                step = x - centres[j, c]
                out[i, c] += step * step


@compiled
def nearest(indptr, columns, values, centres, labels, costs):
    """Class and sum of squares of each row; class -1 for a row without an entry."""
    k = centres.shape[1]
    sums = np.empty(k)
    for i in range(indptr.size - 1):
        labels[i], costs[i] = -1, 0.0
        if indptr[i] == indptr[i + 1]:
            continue
        for c in range(k):
            sums[c] = 0.0
        for e in range(indptr[i], indptr[i + 1]):
            x, j = values[e], columns[e]
            for c in range(k):
                step = x - centres[j, c]
                sums[c] += step * step
        best = 0
        for c in range(1, k):
            if sums[c] < sums[best]:
                best = c
        labels[i], costs[i] = best, sums[best]


@compiled
def reseed(labels, costs, k):
    """Give each empty class the row that is worst off among those that are not alone."""
    sizes = np.zeros(k, dtype=np.int64)
    for i in range(labels.size):
        if labels[i] >= 0:
            sizes[labels[i]] += 1
    for c in range(k):
        if sizes[c]:
            continue
        worst = -1
        for i in range(labels.size):
            free = labels[i] >= 0 and costs[i] > 0.0 and sizes[labels[i]] > 1
            if free and (worst < 0 or costs[i] > costs[worst]):
                worst = i
        if worst < 0:  # fewer distinct rows than classes
            return
        sizes[labels[worst]] -= 1
        labels[worst], costs[worst], sizes[c] = c, 0.0, 1


@compiled
def means(indptr, columns, values, labels, centres, counts):
    """Centres of the classes, from the entries that are observed; 0 where there is none."""
    p, k = centres.shape
    centres[:] = 0.0
    counts[:] = 0.0
    for i in range(labels.size):
        c = labels[i]
        if c < 0:
            continue
        for e in range(indptr[i], indptr[i + 1]):
            centres[columns[e], c] += values[e]
            counts[columns[e], c] += 1.0
    for j in range(p):
        for c in range(k):
            if counts[j, c] > 0.0:
                centres[j, c] /= counts[j, c]


@compiled
def distance_to(indptr, columns, values, centre, out):
    """Sum of squares of each row to one centre, (p,), where that is smaller than what is there."""
    total = 0.0
    for i in range(indptr.size - 1):
        found = 0.0
        for e in range(indptr[i], indptr[i + 1]):
            step = values[e] - centre[columns[e]]
            found += step * step
        out[i] = min(out[i], found)
        total += out[i]
    return total


@compiled
def draw(weights, share):
    """Place at which the running sum of the weights passes this share of their total."""
    total = 0.0
    for weight in weights:
        total += weight
    if not total > 0.0:
        return min(int(share * weights.size), weights.size - 1)
    running, last = 0.0, 0
    for i in range(weights.size):
        if weights[i] > 0.0:
            running += weights[i]
            last = i
            if running > share * total:
                return i
    return last


@compiled
def plus_plus(indptr, columns, values, seen, centres, given, shares):
    """Fill the centres from number `given` on with rows, as in greedy k-means++.

    `seen` are the rows with an entry, `shares` (k, trials) uniform numbers.
    """
    p, k = centres.shape
    n = indptr.size - 1
    costs = np.full(n, np.inf)
    for i in range(n):
        if indptr[i] == indptr[i + 1]:
            costs[i] = 0.0
    for c in range(given):
        distance_to(indptr, columns, values, centres[:, c].copy(), costs)
    centre, best_costs = np.empty(p), np.empty(n)
    for c in range(given, k):
        trials = shares.shape[1] if c else 1
        best = np.inf
        for t in range(trials):
            if c:
                row = draw(costs, shares[c, t])
            else:
                row = seen[min(int(shares[0, 0] * seen.size), seen.size - 1)]
            centre[:] = 0.0
            for e in range(indptr[row], indptr[row + 1]):
                centre[columns[e]] = values[e]
            trial = costs.copy()
            total = distance_to(indptr, columns, values, centre, trial)
            if total < best:
                best = total
                best_costs[:] = trial
                centres[:, c] = centre
        costs[:] = best_costs


@compiled
def lloyd(indptr, columns, values, centres, labels, max_iter, tol):
    """Iterate from centres, which change in place; the sum of squares, iterations, converged.

    The labels at the end are the nearest of the centres at the end.
    """
    n, k = labels.size, centres.shape[1]
    costs, counts = np.empty(n), np.empty(centres.shape)
    before = np.full(n, -2, dtype=np.int64)
    last, used, converged = np.inf, 0, False
    while used < max_iter:
        used += 1
        nearest(indptr, columns, values, centres, labels, costs)
        total = costs.sum()
        reseed(labels, costs, k)
        same = True
        for i in range(n):
            if labels[i] != before[i]:
                same = False
                break
        if same or (tol > 0.0 and last - total <= tol * total):
            converged = True
            break
        last = total
        before[:] = labels
        means(indptr, columns, values, labels, centres, counts)
    nearest(indptr, columns, values, centres, labels, costs)
    return costs.sum(), used, converged


@compiled
def best_of(indptr, columns, values, seen, starts, given, shares, max_iter, tol):
    """The start with the smallest sum of squares: centres, labels, sum, iterations, converged.

    `starts` (s, p, k) hold `given` (s,) centres each.
    """
    n = indptr.size - 1
    best, kept, used, done = np.inf, 0, 0, False
    labels, found = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    for s in range(starts.shape[0]):
        centres = starts[s]
        plus_plus(indptr, columns, values, seen, centres, given[s], shares[s])
        total, steps, converged = lloyd(indptr, columns, values, centres, labels, max_iter, tol)
        if total < best:
            best, kept, used, done = total, s, steps, converged
            found[:] = labels
    return starts[kept], found, best, used, done


@compiled
def refill(indptr, values, gaps, columns, labels, centres):
    """Replace the values in gaps by the centre of their row's class."""
    for i in range(labels.size):
        for e in range(indptr[i], indptr[i + 1]):
            if gaps[e]:
                values[e] = centres[columns[e], labels[i]]


@compiled
def observed_sum(indptr, columns, values, gaps, labels, centres):
    """Sum of squares over the entries that are no gaps."""
    total = 0.0
    for i in range(labels.size):
        for e in range(indptr[i], indptr[i + 1]):
            if not gaps[e]:
                step = values[e] - centres[columns[e], labels[i]]
                total += step * step
    return total


@compiled
def pod(indptr, columns, values, gaps, centres, labels, max_iter, tol):
    """Fill with the own centre, k-means on the filled table, again, from centres that change.

    Returns the sum over observed entries, the number of fills, and whether it has settled.
    """
    last, used = np.inf, 0
    while used < max_iter:
        used += 1
        lloyd(indptr, columns, values, centres, labels, max_iter, 0.0)
        total = observed_sum(indptr, columns, values, gaps, labels, centres)
        if not gaps.any() or last - total <= tol * total:
            return total, used, True
        last = total
        refill(indptr, values, gaps, columns, labels, centres)
    return last, used, False


@compiled
def best_pod(indptr, columns, values, gaps, seen, starts, given, shares, max_iter, tol):
    """The start with the smallest sum over observed entries, as :func:`best_of`."""
    best, kept, used, done = np.inf, 0, 0, False
    n = indptr.size - 1
    labels, found = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    for s in range(starts.shape[0]):
        centres, filled = starts[s], values.copy()
        plus_plus(indptr, columns, filled, seen, centres, given[s], shares[s])
        total, steps, converged = pod(indptr, columns, filled, gaps, centres, labels, max_iter, tol)
        if total < best:
            best, kept, used, done = total, s, steps, converged
            found[:] = labels
    return starts[kept], found, best, used, done
