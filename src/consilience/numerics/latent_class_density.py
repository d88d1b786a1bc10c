"""Compiled density of the events of an entity under all classes. Imported on first use.

Eight classes go side by side through one factorisation, F x F or, for few events, n x n (see
``latent_class_lanes``). A class that holds the entity itself is done alone, after taking it out.
"""

from __future__ import annotations

import numpy as np

from consilience.numerics.latent_class_kernels import (
    ROUNDING,
    compiled,
    factor,
    solve_lower,
    solve_upper,
)
from consilience.numerics.latent_class_lanes import (
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
def pack_class(precision, low, mean, k, packed_d, packed_low, packed_mean):
    """Put class k into its lane: lower triangles by rows, the factor's diagonal inverted."""
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
def pack_classes(precision, low, mean):
    """All classes side by side; lanes without a class hold the identity."""
    n_classes, f = mean.shape
    tiles = (n_classes + WIDTH - 1) // WIDTH
    size = tiles * (f * (f + 1) // 2) * WIDTH
    packed_d, packed_low = np.zeros(size), np.zeros(size)
    packed_mean = np.zeros(tiles * f * WIDTH)
    nothing, identity = np.zeros(f), np.eye(f)
    for k in range(tiles * WIDTH):
        if k < n_classes:
            pack_class(precision[k], low[k], mean[k], k, packed_d, packed_low, packed_mean)
        else:
            pack_class(identity, identity, nothing, k, packed_d, packed_low, packed_mean)
    return packed_d, packed_low, packed_mean


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
def by_events(x, y, packed_low, packed_mean, tile, inv_sigma2, a, e, v, result):
    """Log|M| - log|D| and the square of eight classes from ``I + X D^-1 X' / sigma^2``, n x n."""
    rows, f = x.shape
    tri = f * (f + 1) // 2
    from_low = tile * tri * WIDTH
    scale = np.sqrt(inv_sigma2)
    errors(x, y, packed_mean, tile * f * WIDTH, e, scale)
    wide = f * WIDTH
    step = (wide, wide, wide)
    row = 0
    while row + 4 <= rows:
        v0 = row * wide
        for i in range(f):
            low = from_low + (i * (i + 1) // 2) * WIDTH
            inverse = load(packed_low, low + i * WIDTH)
            at = v0 + i * WIDTH
            s0, s1, s2, s3 = four_products(
                splat(x[row, i] * scale),
                splat(x[row + 1, i] * scale),
                splat(x[row + 2, i] * scale),
                splat(x[row + 3, i] * scale),
                v,
                v0,
                step,
                packed_low,
                low,
                i,
            )
            store(v, at, times(s0, inverse))
            store(v, at + wide, times(s1, inverse))
            store(v, at + 2 * wide, times(s2, inverse))
            store(v, at + 3 * wide, times(s3, inverse))
        row += 4
    while row < rows:
        for i in range(f):
            low = from_low + (i * (i + 1) // 2) * WIDTH
            s = one_product(splat(x[row, i] * scale), v, row * wide, packed_low, low, i)
            store(v, row * wide + i * WIDTH, times(s, load(packed_low, low + i * WIDTH)))
        row += 1
    minus_one = splat(-1.0)
    for j in range(rows):
        i = j
        while i + 4 <= rows:
            zero = splat(0.0)
            s0, s1, s2, s3 = four_products(
                zero, zero, zero, zero, v, i * wide, step, v, j * wide, f
            )
            at = (i * (i + 1) // 2 + j) * WIDTH
            store(a, at, times(s0, minus_one))
            at += (i + 1) * WIDTH
            store(a, at, times(s1, minus_one))
            at += (i + 2) * WIDTH
            store(a, at, times(s2, minus_one))
            at += (i + 3) * WIDTH
            store(a, at, times(s3, minus_one))
            i += 4
        while i < rows:
            s = one_product(splat(0.0), v, i * wide, v, j * wide, f)
            store(a, (i * (i + 1) // 2 + j) * WIDTH, times(s, minus_one))
            i += 1
        diagonal = (j * (j + 1) // 2 + j) * WIDTH
        store(a, diagonal, plus(load(a, diagonal), splat(1.0)))
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
def judge(
    s, r, q, n, x, y, packed_d, packed_low, packed_mean, log_det, inv_sigma2, floor, work, out
):
    """Log density of one block under every class, all of its events being outside of them."""
    a, e, v, result = work
    n_classes, f = log_det.size, r.size
    if y.size == 0:
        out[:] = 0.0
        return True
    log_scale = n * np.log(2.0 * np.pi / inv_sigma2)
    few = y.size * FEATURES_PER_ROW <= f
    finite = True
    for tile in range((n_classes + WIDTH - 1) // WIDTH):
        if few:
            by_events(x, y, packed_low, packed_mean, tile, inv_sigma2, a, e, v, result)
        else:
            by_features(s, r, q, x, y, packed_d, packed_mean, tile, inv_sigma2, floor, a, e, result)
        for k in range(tile * WIDTH, min(n_classes, (tile + 1) * WIDTH)):
            lane = k - tile * WIDTH
            ratio = result[lane] if few else result[lane] - log_det[k]
            value = -0.5 * (log_scale + ratio + result[WIDTH + lane])
            out[k] = value
            finite = finite and np.isfinite(value)
    return finite


@compiled
def judge_own(
    s, r, q, n, x, y, weight, precision, linear, cholesky, inv_sigma2, floor, low, m_low, b, g
):
    """Log density of a block under a class that holds it with a weight, after taking it out."""
    f = r.size
    share = weight * inv_sigma2
    for i in range(f):
        for j in range(i + 1):
            low[i, j] = precision[i, j] - share * s[i, j]
        b[i] = linear[i] - share * r[i]
    log_det = factor(low, floor, precision)
    solve_lower(low, b)
    solve_upper(low, b)
    if weight == 1.0:
        m_low[:] = cholesky
        m_log_det = 0.0
        for i in range(f):
            m_log_det += 2.0 * np.log(m_low[i, i])
    else:
        for i in range(f):
            for j in range(i + 1):
                m_low[i, j] = precision[i, j] + (inv_sigma2 - share) * s[i, j]
        m_log_det = factor(m_low, floor, precision)
    if y.size <= ROWS_FOR_ERRORS * f:
        e2 = 0.0
        g[:] = 0.0
        for row in range(y.size):
            e = y[row]
            for i in range(f):
                e -= x[row, i] * b[i]
            e2 += e * e
            for i in range(f):
                g[i] += x[row, i] * e
    else:
        e2 = q
        for i in range(f):
            g[i] = r[i]
            for j in range(f):
                g[i] -= s[i, j] * b[j]
            e2 -= b[i] * (r[i] + g[i])
    square = 0.0
    g *= inv_sigma2
    solve_lower(m_low, g)
    for i in range(f):
        square += g[i] * g[i]
    log_scale = n * np.log(2.0 * np.pi / inv_sigma2)
    return -0.5 * (log_scale + m_log_det - log_det + e2 * inv_sigma2 - square)


@compiled
def likelihoods(
    products,
    cross,
    squares,
    n,
    x,
    y,
    start,
    precision,
    linear,
    cholesky,
    mean,
    log_det,
    inv_sigma2,
    floor,
    own,
    has_own,
    first,
    last,
    out,
):
    """Fill ``out[first:last]``; False if a value is not finite."""
    n_classes, f = mean.shape
    packed_d, packed_low, packed_mean = pack_classes(precision, cholesky, mean)
    work = workspace(f)
    low, m_low = np.zeros((f, f)), np.zeros((f, f))
    b, g = np.zeros(f), np.zeros(f)
    finite = True
    for i in range(first, last):
        xe, ye = x[start[i] : start[i + 1]], y[start[i] : start[i + 1]]
        finite &= judge(
            products[i],
            cross[i],
            squares[i],
            n[i],
            xe,
            ye,
            packed_d,
            packed_low,
            packed_mean,
            log_det,
            inv_sigma2,
            floor,
            work,
            out[i],
        )
        if not has_own or ye.size == 0:
            continue
        for k in range(n_classes):
            if own[i, k] != 0.0:
                out[i, k] = judge_own(
                    products[i],
                    cross[i],
                    squares[i],
                    n[i],
                    xe,
                    ye,
                    own[i, k],
                    precision[k],
                    linear[k],
                    cholesky[k],
                    inv_sigma2,
                    floor,
                    low,
                    m_low,
                    b,
                    g,
                )
                finite &= np.isfinite(out[i, k])
    return finite
