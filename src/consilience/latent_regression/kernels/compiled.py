"""Compiled loops of latent class regression: sums, densities, draws of labels, table counts.

Imported on first use: it loads numba. Every loop runs on one thread in one order; an entity's
numbers do not depend on which entities are computed beside it. A pivot of ``D = I / delta^2 +
(positive semidefinite)`` is at least ``1 / delta^2``: one that rounding has pushed below is raised.
One that is nothing but rounding beside its diagonal element is raised and its column cleared. So a
factorisation can only fail by overflow, which the caller sees as a number that is not finite.

Eight classes go side by side through one factorisation, F x F or, for few events, n x n (see
``batched_cholesky``). A class that holds the entity itself is done alone, after taking it out.
"""

from __future__ import annotations

from collections import namedtuple

import numpy as np

from consilience.latent_regression.kernels import batched_cholesky as lanes
from consilience.latent_regression.kernels.batched_cholesky import ROUNDING, WIDTH, compiled

Events = namedtuple("Events", "products cross squares n x y start")
"""Arrays of blocks."""
Sums = namedtuple("Sums", "products cross squares n counts")
"""Arrays of totals."""
State = namedtuple("State", "precision linear cholesky mean log_det")
"""Arrays of classes."""


@compiled
def mix(h):
    """Finaliser of splitmix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return h ^ (h >> np.uint64(31))


@compiled
def uniform(key, round_number, position):
    """One number in (0, 1) for key, round and position."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    h = mix(key + golden * (round_number + np.uint64(1)))
    h = mix(h ^ mix(golden * (position + np.uint64(1))))
    return (np.float64(h >> np.uint64(12)) + 0.5) * 2.0**-52


@compiled
def uniforms(keys, round_number, positions, out):
    """Fill `out` with one number for each key and position."""
    for i in range(out.size):
        out[i] = uniform(keys[i], round_number, positions[i])


@compiled
def sum_blocks(x, y, weight, start, products, cross, squares, n):
    """Add up the rows of each block."""
    f = x.shape[1]
    for e in range(start.size - 1):
        for row in range(start[e], start[e + 1]):
            for i in range(f):
                for j in range(i + 1):
                    products[e, i, j] += x[row, i] * x[row, j]
                cross[e, i] += x[row, i] * y[row]
            squares[e] += y[row] * y[row]
            n[e] += weight[row]
        for i in range(f):
            for j in range(i):
                products[e, j, i] = products[e, i, j]


@compiled
def whiten(x, y, own, start, log_det):
    """Turn rows of each block, in place, into such as have independent noise (see ``degrees``).

    `own` are the columns v with ``H = I + sum v v'``. One after the other is taken out of rows and
    later columns by ``I - c v v'``, whose square is the inverse of ``I + v v'``.
    """
    f, q = x.shape[1], own.shape[1]
    for e in range(start.size - 1):
        for k in range(q):
            square = 0.0
            for row in range(start[e], start[e + 1]):
                square += own[row, k] * own[row, k]
            root = np.sqrt(1.0 + square)
            log_det[e] += np.log1p(square)
            c = 1.0 / (root * (1.0 + root))
            for i in range(f):
                at = 0.0
                for row in range(start[e], start[e + 1]):
                    at += own[row, k] * x[row, i]
                for row in range(start[e], start[e + 1]):
                    x[row, i] -= c * at * own[row, k]
            at = 0.0
            for row in range(start[e], start[e + 1]):
                at += own[row, k] * y[row]
            for row in range(start[e], start[e + 1]):
                y[row] -= c * at * own[row, k]
            for i in range(k + 1, q):
                at = 0.0
                for row in range(start[e], start[e + 1]):
                    at += own[row, k] * own[row, i]
                for row in range(start[e], start[e + 1]):
                    own[row, i] -= c * at * own[row, k]


@compiled
def add_entities(events, first, last, labels, part):
    """Add entities to the rows of their classes: products, cross, squares, n and count."""
    f = events.cross.shape[1]
    at = f * f
    for e in range(first, last):
        c = labels[e]
        if c < 0:
            continue
        for i in range(f):
            for j in range(f):
                part[c, i * f + j] += events.products[e, i, j]
            part[c, at + i] += events.cross[e, i]
        part[c, at + f] += events.squares[e]
        part[c, at + f + 1] += events.n[e]
        part[c, at + f + 2] += 1.0


@compiled
def sum_classes(events, agent_start, labels, n_classes):
    """Class sums of each agent, added up by a pairwise tree that is kept as a binary counter.

    Level l holds the sum over 2^l agents that waits for its neighbour: all sums of all agents never
    exist at the same time.
    """
    f = events.cross.shape[1]
    n_agents = agent_start.size - 1
    levels = 2
    while (1 << levels) <= n_agents:
        levels += 1
    waiting = np.zeros((levels + 1, n_classes, f * f + f + 3))
    full = np.zeros(levels + 1, dtype=np.bool_)
    part = np.zeros((n_classes, f * f + f + 3))
    for a in range(n_agents):
        part[:] = 0.0
        add_entities(events, agent_start[a], agent_start[a + 1], labels, part)
        level = 0
        while full[level]:
            part += waiting[level]
            full[level] = False
            level += 1
        waiting[level] = part
        full[level] = True
    part[:] = 0.0
    for level in range(levels + 1):
        if full[level]:
            part += waiting[level]
    return part


@compiled
def factor(a, floor, before):
    """Lower Cholesky factor in place of the lower triangle; returns the log determinant.

    The diagonal of `before`, what `a` was computed from, says how large its rounding errors are.
    Column by column, four rows at once: their sums do not wait for one another.
    """
    log_det = 0.0
    size = a.shape[0]
    for j in range(size):
        left = a[j, j]
        for p in range(j):
            left -= a[j, p] * a[j, p]
        rounding = ROUNDING * size * before[j, j]
        clear = left < rounding
        left = max(left, floor, rounding)
        log_det += np.log(left)
        root = np.sqrt(left)
        a[j, j] = root
        if clear:
            a[j + 1 :, j] = 0.0
            continue
        i = j + 1
        while i + 4 <= size:
            s0, s1, s2, s3 = a[i, j], a[i + 1, j], a[i + 2, j], a[i + 3, j]
            for p in range(j):
                pivot = a[j, p]
                s0 -= a[i, p] * pivot
                s1 -= a[i + 1, p] * pivot
                s2 -= a[i + 2, p] * pivot
                s3 -= a[i + 3, p] * pivot
            a[i, j], a[i + 1, j] = s0 / root, s1 / root
            a[i + 2, j], a[i + 3, j] = s2 / root, s3 / root
            i += 4
        while i < size:
            s0 = a[i, j]
            for p in range(j):
                s0 -= a[i, p] * a[j, p]
            a[i, j] = s0 / root
            i += 1
    return log_det


@compiled
def solve_lower(low, b):
    """Solve with the lower factor, in place."""
    for i in range(b.size):
        left = b[i]
        for p in range(i):
            left -= low[i, p] * b[p]
        b[i] = left / low[i, i]


@compiled
def solve_upper(low, b):
    """Solve with the transpose of the lower factor."""
    for i in range(b.size - 1, -1, -1):
        left = b[i]
        for p in range(i + 1, b.size):
            left -= low[p, i] * b[p]
        b[i] = left / low[i, i]


@compiled
def factor_class(products, cross, inv_sigma2, floor, state, k):
    """Precision, its factor, linear part and mean of class k from its sums."""
    f = cross.size
    precision, low = state.precision[k], state.cholesky[k]
    linear, mean = state.linear[k], state.mean[k]
    for i in range(f):
        for j in range(i + 1):
            value = products[i, j] * inv_sigma2
            if i == j:
                value += floor
            precision[i, j] = value
            precision[j, i] = value
            low[i, j] = value
        linear[i] = cross[i] * inv_sigma2
        mean[i] = linear[i]
    state.log_det[k] = factor(low, floor, precision)
    solve_lower(low, mean)
    solve_upper(low, mean)


@compiled
def factor_classes(products, cross, inv_sigma2, floor, state):
    """Factor every class; `inv_sigma2` has ``1 / sigma^2`` of each, as everywhere below."""
    for k in range(cross.shape[0]):
        factor_class(products[k], cross[k], inv_sigma2[k], floor, state, k)


# ------------------------------------------------------------- densities of the events of an entity


ROWS_FOR_ERRORS = 2
"""Errors come from the rows up to this many rows for each feature, from the sums beyond."""
FEATURES_PER_ROW = 3
"""From so many features for each row on, n x n matrices cost less than F x F ones."""


@compiled
def rows_of(events, entity):
    """Rows and outcomes of an entity."""
    here = slice(events.start[entity], events.start[entity + 1])
    return events.x[here], events.y[here]


@compiled
def by_features(s, r, q, x, y, packed_d, packed_mean, tile, noise, floor, a, e, result):
    """Log|M| and ``e'e / sigma^2 - g' M^-1 g`` of eight classes from one F x F factorisation.

    ``e'e`` and ``X'e`` come from the rows while these are few: less is lost to cancellation.
    """
    f = r.size
    tri = f * (f + 1) // 2
    from_d, from_mean, last = tile * tri * WIDTH, tile * f * WIDTH, tri * WIDTH
    inverse = lanes.load(noise[0], tile * WIDTH)
    at = 0
    for i in range(f):
        for j in range(i + 1):
            d = lanes.load(packed_d, from_d + at)
            shifted = lanes.plus_product(d, lanes.splat(s[i, j]), inverse)
            lanes.store(a, at, shifted)
            at += WIDTH
    minus = lanes.splat(0.0)  # -e'e
    if y.size <= ROWS_FOR_ERRORS * f:
        lanes.errors(x, y, packed_mean, from_mean, e, lanes.splat(1.0))
        minus = lanes.one_product(minus, e, 0, e, 0, y.size)
        for i in range(f):
            g = lanes.splat(0.0)
            for row in range(y.size):
                g = lanes.plus_product(g, lanes.splat(x[row, i]), lanes.load(e, row * WIDTH))
            lanes.store(a, last + i * WIDTH, lanes.times(g, inverse))
    else:
        minus = lanes.splat(-q)
        for i in range(f):
            g = lanes.splat(r[i])
            for j in range(f):
                g = lanes.less_product(
                    g, lanes.splat(s[i, j]), lanes.load(packed_mean, from_mean + j * WIDTH)
                )
            mean = lanes.load(packed_mean, from_mean + i * WIDTH)
            minus = lanes.plus_product(minus, mean, lanes.plus(g, lanes.splat(r[i])))
            lanes.store(a, last + i * WIDTH, lanes.times(g, inverse))
    lanes.eliminate(a, f, floor, result)
    # e'e / sigma^2 - g' M^-1 g
    e2 = lanes.times(minus, lanes.times(inverse, lanes.splat(-1.0)))
    lanes.store(result, WIDTH, lanes.less_product(e2, lanes.load(result, WIDTH), lanes.splat(1.0)))


@compiled
def by_events(x, y, packed_low, packed_mean, tile, noise, a, e, v, result):
    """Log|M| - log|D| and the square of eight classes from ``I + X D^-1 X' / sigma^2``, n x n."""
    rows, f = x.shape
    scale = lanes.load(noise[1], tile * WIDTH)
    # e / sigma
    lanes.errors(x, y, packed_mean, tile * f * WIDTH, e, scale)
    # V = X L'^-1 / sigma, so that V V' = X D^-1 X' / sigma^2
    lanes.solve_rows(x, scale, packed_low, tile * (f * (f + 1) // 2) * WIDTH, v)
    lanes.identity_plus_products(v, rows, f, a)
    last = (rows * (rows + 1) // 2) * WIDTH
    for j in range(rows):
        lanes.store(a, last + j * WIDTH, lanes.load(e, j * WIDTH))
    lanes.eliminate(a, rows, 1.0, result)


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
def noise_of(inv_sigma2):
    """``1 / sigma^2``, ``1 / sigma`` and ``log(2 pi sigma^2)`` of each class."""
    return inv_sigma2, np.sqrt(inv_sigma2), np.log(2.0 * np.pi / inv_sigma2)


@compiled
def judge(events, entity, packed, log_det, noise, floor, work, out):
    """Log density of one block under every class, none of which holds it; False if not finite."""
    x, y = rows_of(events, entity)
    if y.size == 0:
        out[:] = 0.0
        return True
    s, r, q = events.products[entity], events.cross[entity], events.squares[entity]
    packed_d, packed_low, packed_mean = packed
    a, e, v, result = work
    # n x n or F x F, whichever is cheaper: |M| / |D| = |I + X D^-1 X' / sigma^2|
    few = y.size * FEATURES_PER_ROW <= r.size
    finite = True
    for k in range(out.size):
        out[k] = events.n[entity] * noise[2][k]
    for tile in range((out.size + WIDTH - 1) // WIDTH):
        if few:
            by_events(x, y, packed_low, packed_mean, tile, noise, a, e, v, result)
        else:
            by_features(s, r, q, x, y, packed_d, packed_mean, tile, noise, floor, a, e, result)
        for k in range(tile * WIDTH, min(out.size, (tile + 1) * WIDTH)):
            lane = k - tile * WIDTH
            # log|M| - log|D|
            ratio = result[lane] if few else result[lane] - log_det[k]
            out[k] = -0.5 * (out[k] + ratio + result[WIDTH + lane])
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
    # D - own S / sigma^2 and c - own r / sigma^2: the class without the entity
    share = weight * inv_sigma2
    for i in range(f):
        for j in range(i + 1):
            low[i, j] = precision[i, j] - share * s[i, j]
        mean[i] = state.linear[k, i] - share * events.cross[entity, i]
    # D without the entity
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
        # M = D + S / sigma^2 with the entity whole
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
def likelihoods(events, state, inv_sigma2, floor, own, out):
    """Fill `out`; False if a value is not finite. Without rows, `own` is nothing."""
    n_classes, f = state.mean.shape
    packed, noise = lanes.pack_classes(state, n_classes), noise_of(inv_sigma2)
    work = workspace(f)
    rooms = (np.zeros((f, f)), np.zeros((f, f)), np.zeros(f), np.zeros(f))
    finite = True
    for e in range(out.shape[0]):
        finite &= judge(events, e, packed, state.log_det, noise, floor, work, out[e])
        if own.shape[0] == 0 or events.start[e] == events.start[e + 1]:
            continue
        for k in range(n_classes):
            if own[e, k] != 0.0:
                out[e, k] = judge_own(events, e, own[e, k], state, k, inv_sigma2[k], floor, rooms)
                finite &= np.isfinite(out[e, k])
    return finite


# -------------------------------------------------------------------- draws of labels, table counts


@compiled
def choose(weights, prior, u):
    """Turn log likelihoods into probabilities in place and draw a class; -1 if none is possible."""
    top = -np.inf
    for k in range(weights.size):
        if prior[k] > 0.0 and weights[k] > top:
            top = weights[k]
    if not np.isfinite(top):
        return -1
    total = 0.0
    for k in range(weights.size):
        weights[k] = prior[k] * np.exp(weights[k] - top) if prior[k] > 0.0 else 0.0
        total += weights[k]
    chosen, cumulative, drawn = -1, 0.0, False
    # inverse of the cumulative probabilities at u
    target = u * total
    for k in range(weights.size):
        cumulative += weights[k]
        if weights[k] > 0.0 and not drawn:
            chosen = k
            drawn = cumulative >= target
        weights[k] /= total
    return chosen


@compiled
def count_labels(labels, first, last, out):
    """Entities by class from `first` to `last`."""
    out[:] = 0.0
    for e in range(first, last):
        if labels[e] >= 0:
            out[labels[e]] += 1.0


@compiled
def set_prior(mine, base, beta, everywhere, alpha, prior):
    """``N_i^k + beta psi_k``, or the shortcut with ``(N^k + alpha/K) / (sum N + alpha)`` for psi.

    The shortcut is wanted where `alpha` is not negative.
    """
    n_classes = mine.size
    total = alpha
    if alpha >= 0.0:
        for k in range(n_classes):
            total += everywhere[k]
    for k in range(n_classes):
        # section 3.2: N_i^k + beta psi_k, or the shortcut for psi_k
        share = base[k] if alpha < 0.0 else (everywhere[k] + alpha / n_classes) / total
        prior[k] = mine[k] + beta * share


@compiled
def draw_agents(weights, labels, agent_start, base, beta, keys, round_number, own, counts, alpha):
    """Draw the entities of each agent in turn; `weights` go in as log likelihoods.

    Returns the number of labels that moved, -1 if an entity has no possible class.
    """
    n_classes = weights.shape[1]
    mine, prior, everywhere = np.zeros(n_classes), np.zeros(n_classes), counts.copy()
    moved = 0
    for a in range(agent_start.size - 1):
        count_labels(labels, agent_start[a], agent_start[a + 1], mine)
        for e in range(agent_start[a], agent_start[a + 1]):
            old = labels[e]
            if old >= 0:
                mine[old] -= 1.0
            if alpha >= 0.0 and own.shape[0] > 0:
                for k in range(n_classes):
                    everywhere[k] = max(counts[k] - own[e, k], 0.0)
            set_prior(mine, base, beta, everywhere, alpha, prior)
            u = uniform(keys[a], round_number, np.uint64(e - agent_start[a]))
            new = choose(weights[e], prior, u)
            if new < 0:
                return -1
            moved += new != old
            labels[e] = new
            mine[new] += 1.0
    return moved


@compiled
def count_tables(agent_counts, beta, base, keys, round_number, out):
    """Occupied tables of a Chinese restaurant: customer t opens one with weight c / (c + t)."""
    salt = np.uint64(0x5461626C65735F31)
    for a in range(agent_counts.shape[0]):
        key = mix(keys[a] ^ salt)
        for k in range(agent_counts.shape[1]):
            c = beta * base[k]
            for t in range(agent_counts[a, k]):
                # a place of its own for each class and customer
                place = np.uint64(k) * np.uint64(1 << 40) + np.uint64(t)
                if t == 0 or uniform(key, round_number, place) * (c + t) < c:
                    out[a, k] += 1


@compiled
def add_block(events, e, sign, sums, k):
    """Add an entity to the sums of class k, or take it out of them."""
    f = events.cross.shape[1]
    for i in range(f):
        for j in range(f):
            sums.products[k, i, j] += sign * events.products[e, i, j]
        sums.cross[k, i] += sign * events.cross[e, i]
    sums.squares[k] += sign * events.squares[e]
    sums.n[k] += sign * events.n[e]
    sums.counts[k] += sign
    if sums.counts[k] == 0.0:  # an empty class holds nothing, not what rounding has left
        sums.products[k] = 0.0
        sums.cross[k] = 0.0
        sums.squares[k] = 0.0
        sums.n[k] = 0.0


@compiled
def copy_class(sums, state, source, target):
    """Copy the sums of a class and all that follows from them."""
    sums.products[target] = sums.products[source]
    sums.cross[target] = sums.cross[source]
    sums.squares[target] = sums.squares[source]
    sums.n[target] = sums.n[source]
    sums.counts[target] = sums.counts[source]
    state.precision[target] = state.precision[source]
    state.linear[target] = state.linear[source]
    state.cholesky[target] = state.cholesky[source]
    state.mean[target] = state.mean[source]
    state.log_det[target] = state.log_det[source]


@compiled
def move_block(events, e, sign, sums, inv_sigma2, floor, state, k, packed):
    """Add an entity to class k or take it out, and bring all that follows up to date."""
    add_block(events, e, sign, sums, k)
    factor_class(sums.products[k], sums.cross[k], inv_sigma2[k], floor, state, k)
    lanes.pack(state.precision[k], state.cholesky[k], state.mean[k], k, packed)


@compiled
def sweep_entities(
    events, agent_start, labels, sums, inv_sigma2, floor, base, beta, keys, round_number, alpha
):
    """One sequential sweep in place: take an entity out, draw its class, put it in.

    `sums` have room for one class more: where an entity stays, its class is put back from there and
    no rounding is left behind. Returns the number of labels that moved, -1 if a likelihood is not
    finite.
    """
    spare, f = sums.counts.size - 1, sums.cross.shape[1]
    state = State(
        np.zeros((spare + 1, f, f)),
        np.zeros((spare + 1, f)),
        np.zeros((spare + 1, f, f)),
        np.zeros((spare + 1, f)),
        np.zeros(spare + 1),
    )
    factor_classes(sums.products, sums.cross, inv_sigma2, floor, state)
    packed, work, noise = lanes.pack_classes(state, spare), workspace(f), noise_of(inv_sigma2)
    weights, mine, prior = np.zeros(spare), np.zeros(spare), np.zeros(spare)
    moved = 0
    for a in range(agent_start.size - 1):
        count_labels(labels, agent_start[a], agent_start[a + 1], mine)
        for e in range(agent_start[a], agent_start[a + 1]):
            old = labels[e]
            if old >= 0:
                mine[old] -= 1.0
                copy_class(sums, state, old, spare)
                move_block(events, e, -1.0, sums, inv_sigma2, floor, state, old, packed)
            if not judge(events, e, packed, state.log_det, noise, floor, work, weights):
                return -1
            set_prior(mine, base, beta, sums.counts, alpha, prior)
            u = uniform(keys[a], round_number, np.uint64(e - agent_start[a]))
            new = choose(weights, prior, u)
            if new < 0:
                return -1
            mine[new] += 1.0
            labels[e] = new
            if new == old:
                copy_class(sums, state, spare, old)
                mean = state.mean[old]
                lanes.pack(state.precision[old], state.cholesky[old], mean, old, packed)
            else:
                moved += 1
                move_block(events, e, 1.0, sums, inv_sigma2, floor, state, new, packed)
    return moved
