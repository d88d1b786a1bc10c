"""Compiled density of the events of an entity under all classes. Imported on first use.

Eight classes go side by side through one factorisation, F x F or, for few events, n x n (see
``latent_class_lanes``). A class that holds the entity itself is done alone, after taking it out.
"""

from __future__ import annotations

import numpy as np

from consilience.latent_regression.kernels.latent_class_kernels import (
    ROUNDING,
    compiled,
    factor,
    solve_lower,
    solve_upper,
)
from consilience.latent_regression.kernels.latent_class_lanes import (
    WIDTH,
    at_least,
    inverse_root,
    less_product,
    load,
    plus,
    plus_product,
    splat,
    store,
    times,
    unless_below,
)

ROWS_FOR_ERRORS = 2
"""Errors come from the rows up to this many rows for each feature, from the sums beyond."""
FEATURES_PER_ROW = 3
"""From so many features for each row on, n x n matrices cost less than F x F ones."""


@compiled
def pack(precision, low, mean, k, packed):
    """Put a class into lane k: lower triangles by rows, the factor's diagonal inverted."""
    packed_d, packed_low, packed_mean = packed
    f = mean.size
    tile, lane = k // WIDTH, k % WIDTH
    at = tile * (f * (f + 1) // 2) * WIDTH + lane
    for i in range(f):
        packed_mean[(tile * f + i) * WIDTH + lane] = mean[i]
        for j in range(i + 1):
            packed_d[at] = precision[i, j]
            packed_low[at] = 1.0 / low[i, i] if i == j else low[i, j]
            at += WIDTH


@compiled
def pack_class(state, k, packed):
    """Put class k into its lane."""
    pack(state.precision[k], state.cholesky[k], state.mean[k], k, packed)


@compiled
def pack_classes(state, n_classes):
    """Precisions, factors and means of all classes side by side; spare lanes hold the identity."""
    f = state.mean.shape[1]
    tiles = (n_classes + WIDTH - 1) // WIDTH
    size = tiles * (f * (f + 1) // 2) * WIDTH
    packed = (np.zeros(size), np.zeros(size), np.zeros(tiles * f * WIDTH))
    nothing, identity = np.zeros(f), np.eye(f)
    for k in range(tiles * WIDTH):
        if k < n_classes:
            pack_class(state, k, packed)
        else:
            pack(identity, identity, nothing, k, packed)
    return packed


@compiled
def four_products(s0, s1, s2, s3, a, first, step, b, at, count):
    """Take from four sums the products of four rows of `a` with one row of `b`.

    Rows of `a` start at ``first``, then ``step[0]``, ``step[0] + step[1]``, ... later.
    """
    a1 = first + step[0]
    a2 = a1 + step[1]
    a3 = a2 + step[2]
    for p in range(0, count * WIDTH, WIDTH):
        common = load(b, at + p)
        s0 = less_product(s0, load(a, first + p), common)
        s1 = less_product(s1, load(a, a1 + p), common)
        s2 = less_product(s2, load(a, a2 + p), common)
        s3 = less_product(s3, load(a, a3 + p), common)
    return s0, s1, s2, s3


@compiled
def one_product(s, a, first, b, at, count):
    """Take from a sum the product of a row of `a` with a row of `b`."""
    for p in range(0, count * WIDTH, WIDTH):
        s = less_product(s, load(a, first + p), load(b, at + p))
    return s


@compiled
def eliminate(a, size, floor, result):
    """Cholesky factorisation of eight matrices, with one row more below each: its g.

    `a` holds lower triangles by rows. ``result[:8]`` becomes the log determinants,
    ``result[8:16]`` the squares ``g' M^-1 g``; ``result[16:]`` is scratch.
    """
    least, rounding = splat(floor), splat(ROUNDING * size)
    product = splat(1.0)
    for k in range(WIDTH):
        result[k] = 0.0
    for j in range(size):
        row = (j * (j + 1) // 2) * WIDTH
        column = j * WIDTH
        diagonal = load(a, row + column)
        noise = times(diagonal, rounding)
        pivot = one_product(diagonal, a, row, a, row, j)
        inverse = inverse_root(at_least(at_least(pivot, least), noise))
        product = times(product, inverse)
        if j % 4 == 3 or j == size - 1:  # one logarithm for four pivots
            store(result, 2 * WIDTH, product)
            for k in range(WIDTH):
                result[k] -= 2.0 * np.log(result[2 * WIDTH + k])
            product = splat(1.0)
        inverse = unless_below(pivot, noise, inverse)
        i = j + 1
        while i + 4 <= size + 1:
            r0 = (i * (i + 1) // 2) * WIDTH
            step = ((i + 1) * WIDTH, (i + 2) * WIDTH, (i + 3) * WIDTH)
            at0 = r0 + column
            at1 = at0 + step[0]
            at2 = at1 + step[1]
            at3 = at2 + step[2]
            s0, s1, s2, s3 = four_products(
                load(a, at0), load(a, at1), load(a, at2), load(a, at3), a, r0, step, a, row, j
            )
            store(a, at0, times(s0, inverse))
            store(a, at1, times(s1, inverse))
            store(a, at2, times(s2, inverse))
            store(a, at3, times(s3, inverse))
            i += 4
        while i <= size:
            r0 = (i * (i + 1) // 2) * WIDTH
            s = one_product(load(a, r0 + column), a, r0, a, row, j)
            store(a, r0 + column, times(s, inverse))
            i += 1
    last = (size * (size + 1) // 2) * WIDTH
    minus = one_product(splat(0.0), a, last, a, last, size)
    store(result, WIDTH, times(minus, splat(-1.0)))


@compiled
def errors(x, y, mean, at, out, scale):
    """``scale (y - x m)`` of each row for eight classes."""
    f = x.shape[1]
    for row in range(y.size):
        e = splat(y[row])
        for i in range(f):
            e = less_product(e, splat(x[row, i]), load(mean, at + i * WIDTH))
        store(out, row * WIDTH, times(e, splat(scale)))


@compiled
def rows_of(events, entity):
    """Rows and outcomes of an entity."""
    here = slice(events.start[entity], events.start[entity + 1])
    return events.x[here], events.y[here]


@compiled
def by_features(s, r, q, x, y, packed_d, packed_mean, tile, inv_sigma2, floor, a, e, result):
    """Log|M| and ``e'e / sigma^2 - g' M^-1 g`` of eight classes from one F x F factorisation.

    ``e'e`` and ``X'e`` come from the rows while these are few: less is lost to cancellation.
    """
    f = r.size
    tri = f * (f + 1) // 2
    from_d, from_mean, last = tile * tri * WIDTH, tile * f * WIDTH, tri * WIDTH
    at = 0
    for i in range(f):
        for j in range(i + 1):
            shifted = plus(load(packed_d, from_d + at), splat(s[i, j] * inv_sigma2))
            store(a, at, shifted)
            at += WIDTH
    minus = splat(0.0)  # -e'e
    if y.size <= ROWS_FOR_ERRORS * f:
        errors(x, y, packed_mean, from_mean, e, 1.0)
        minus = one_product(minus, e, 0, e, 0, y.size)
        for i in range(f):
            g = splat(0.0)
            for row in range(y.size):
                g = plus_product(g, splat(x[row, i]), load(e, row * WIDTH))
            store(a, last + i * WIDTH, times(g, splat(inv_sigma2)))
    else:
        minus = splat(-q)
        for i in range(f):
            g = splat(r[i])
            for j in range(f):
                g = less_product(g, splat(s[i, j]), load(packed_mean, from_mean + j * WIDTH))
            mean = load(packed_mean, from_mean + i * WIDTH)
            minus = plus_product(minus, mean, plus(g, splat(r[i])))
            store(a, last + i * WIDTH, times(g, splat(inv_sigma2)))
    eliminate(a, f, floor, result)
    e2 = times(minus, splat(-inv_sigma2))
    store(result, WIDTH, less_product(e2, load(result, WIDTH), splat(1.0)))


@compiled
def solve_rows(x, scale, packed_low, first, v):
    """``L^-1 x scale`` of each row for eight classes whose factors begin at `first`."""
    rows, f = x.shape
    wide = f * WIDTH
    step = (wide, wide, wide)
    row = 0
    while row + 4 <= rows:
        v0 = row * wide
        for i in range(f):
            low = first + (i * (i + 1) // 2) * WIDTH
            inverse = load(packed_low, low + i * WIDTH)
            s0, s1 = splat(x[row, i] * scale), splat(x[row + 1, i] * scale)
            s2, s3 = splat(x[row + 2, i] * scale), splat(x[row + 3, i] * scale)
            s0, s1, s2, s3 = four_products(s0, s1, s2, s3, v, v0, step, packed_low, low, i)
            at = v0 + i * WIDTH
            store(v, at, times(s0, inverse))
            store(v, at + wide, times(s1, inverse))
            store(v, at + 2 * wide, times(s2, inverse))
            store(v, at + 3 * wide, times(s3, inverse))
        row += 4
    while row < rows:
        for i in range(f):
            low = first + (i * (i + 1) // 2) * WIDTH
            s = one_product(splat(x[row, i] * scale), v, row * wide, packed_low, low, i)
            store(v, row * wide + i * WIDTH, times(s, load(packed_low, low + i * WIDTH)))
        row += 1


@compiled
def identity_plus_products(v, rows, f, a):
    """``I + V V'`` of eight classes, lower triangles by rows."""
    wide = f * WIDTH
    step = (wide, wide, wide)
    zero, minus = splat(0.0), splat(-1.0)
    for j in range(rows):
        i = j
        while i + 4 <= rows:
            s0, s1, s2, s3 = four_products(
                zero, zero, zero, zero, v, i * wide, step, v, j * wide, f
            )
            at = (i * (i + 1) // 2 + j) * WIDTH
            store(a, at, times(s0, minus))
            at += (i + 1) * WIDTH
            store(a, at, times(s1, minus))
            at += (i + 2) * WIDTH
            store(a, at, times(s2, minus))
            at += (i + 3) * WIDTH
            store(a, at, times(s3, minus))
            i += 4
        while i < rows:
            s = one_product(zero, v, i * wide, v, j * wide, f)
            store(a, (i * (i + 1) // 2 + j) * WIDTH, times(s, minus))
            i += 1
        diagonal = (j * (j + 1) // 2 + j) * WIDTH
        store(a, diagonal, plus(load(a, diagonal), splat(1.0)))


@compiled
def by_events(x, y, packed_low, packed_mean, tile, inv_sigma2, a, e, v, result):
    """Log|M| - log|D| and the square of eight classes from ``I + X D^-1 X' / sigma^2``, n x n."""
    rows, f = x.shape
    scale = np.sqrt(inv_sigma2)
    errors(x, y, packed_mean, tile * f * WIDTH, e, scale)
    solve_rows(x, scale, packed_low, tile * (f * (f + 1) // 2) * WIDTH, v)
    identity_plus_products(v, rows, f, a)
    last = (rows * (rows + 1) // 2) * WIDTH
    for j in range(rows):
        store(a, last + j * WIDTH, load(e, j * WIDTH))
    eliminate(a, rows, 1.0, result)


@compiled
def workspace(n_features):
    """Room for the factorisations of eight classes: matrices, errors, solved rows, results."""
    f = n_features
    rows = max(1, ROWS_FOR_ERRORS * f)
    return (
        np.empty(((f + 1) * (f + 2) // 2) * WIDTH),
        np.empty(rows * WIDTH),
        np.empty((f // FEATURES_PER_ROW + 1) * f * WIDTH),
        np.empty(3 * WIDTH),
    )


@compiled
def judge(events, entity, packed, log_det, inv_sigma2, floor, work, out):
    """Log density of one block under every class, none of which holds it; False if not finite."""
    x, y = rows_of(events, entity)
    if y.size == 0:
        out[:] = 0.0
        return True
    s, r, q = events.products[entity], events.cross[entity], events.squares[entity]
    packed_d, packed_low, packed_mean = packed
    a, e, v, result = work
    log_scale = events.n[entity] * np.log(2.0 * np.pi / inv_sigma2)
    few = y.size * FEATURES_PER_ROW <= r.size
    finite = True
    for tile in range((out.size + WIDTH - 1) // WIDTH):
        if few:
            by_events(x, y, packed_low, packed_mean, tile, inv_sigma2, a, e, v, result)
        else:
            by_features(s, r, q, x, y, packed_d, packed_mean, tile, inv_sigma2, floor, a, e, result)
        for k in range(tile * WIDTH, min(out.size, (tile + 1) * WIDTH)):
            lane = k - tile * WIDTH
            ratio = result[lane] if few else result[lane] - log_det[k]
            out[k] = -0.5 * (log_scale + ratio + result[WIDTH + lane])
            finite = finite and np.isfinite(out[k])
    return finite


@compiled
def squared_error(events, entity, mean, g):
    """``e'e`` of an entity, and ``X'e`` into `g`, as in :func:`by_features`."""
    f = mean.size
    x, y = rows_of(events, entity)
    if y.size <= ROWS_FOR_ERRORS * f:
        total = 0.0
        g[:] = 0.0
        for row in range(y.size):
            e = y[row]
            for i in range(f):
                e -= x[row, i] * mean[i]
            total += e * e
            for i in range(f):
                g[i] += x[row, i] * e
        return total
    total = events.squares[entity]
    for i in range(f):
        g[i] = events.cross[entity, i]
        for j in range(f):
            g[i] -= events.products[entity, i, j] * mean[j]
        total -= mean[i] * (events.cross[entity, i] + g[i])
    return total


@compiled
def judge_own(events, entity, weight, state, k, inv_sigma2, floor, rooms):
    """Log density of a block under a class that holds it with a weight, after taking it out."""
    low, m_low, mean, g = rooms
    f = mean.size
    s, precision = events.products[entity], state.precision[k]
    share = weight * inv_sigma2
    for i in range(f):
        for j in range(i + 1):
            low[i, j] = precision[i, j] - share * s[i, j]
        mean[i] = state.linear[k, i] - share * events.cross[entity, i]
    log_det = factor(low, floor, precision)
    solve_lower(low, mean)
    solve_upper(low, mean)
    if weight == 1.0:  # put back, the class is what it was
        m_low[:] = state.cholesky[k]
        m_log_det = state.log_det[k]
    else:
        for i in range(f):
            for j in range(i + 1):
                m_low[i, j] = precision[i, j] + (inv_sigma2 - share) * s[i, j]
        m_log_det = factor(m_low, floor, precision)
    e2 = squared_error(events, entity, mean, g)
    g *= inv_sigma2
    solve_lower(m_low, g)
    square = 0.0
    for i in range(f):
        square += g[i] * g[i]
    log_scale = events.n[entity] * np.log(2.0 * np.pi / inv_sigma2)
    return -0.5 * (log_scale + m_log_det - log_det + e2 * inv_sigma2 - square)


@compiled
def likelihoods(events, state, inv_sigma2, floor, own, first, last, out):
    """Fill ``out[first:last]``; False if a value is not finite. Without rows, `own` is nothing."""
    n_classes, f = state.mean.shape
    packed = pack_classes(state, n_classes)
    work = workspace(f)
    rooms = (np.zeros((f, f)), np.zeros((f, f)), np.zeros(f), np.zeros(f))
    finite = True
    for e in range(first, last):
        finite &= judge(events, e, packed, state.log_det, inv_sigma2, floor, work, out[e])
        if own.shape[0] == 0 or events.start[e] == events.start[e + 1]:
            continue
        for k in range(n_classes):
            if own[e, k] != 0.0:
                out[e, k] = judge_own(events, e, own[e, k], state, k, inv_sigma2, floor, rooms)
                finite &= np.isfinite(out[e, k])
    return finite
