"""Cholesky factorisations of eight matrices side by side, in compiled code.

The compiler does not find this form by itself in loops as short as these. A value of type ``Lanes``
is a vector of eight doubles; the functions here are known to compiled code only. Every lane does
the operations of a plain double in the same order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import types
from numba.core.caching import FunctionCache
from numba.core.cgutils import get_or_insert_function
from numba.extending import intrinsic, models, register_model
from numba.np.arrayobj import make_array

from consilience.numerics import compilation

WIDTH = 8
_VECTOR = ir.VectorType(ir.DoubleType(), WIDTH)
_FUSE = ("contract",)  # a product and the sum that uses it may be rounded once
ROUNDING = 64 * 2.0**-52
"""Pivots below this times the size times their diagonal element are rounding errors."""


_SOURCES = hashlib.sha256(
    b"".join(
        Path(__file__).with_name(f"{name}.py").read_bytes()
        for name in ("batched_cholesky", "compiled")
    )
).hexdigest()


class _Cache(FunctionCache):  # type: ignore[misc]
    """Compiled code that counts as old once any of these modules changed.

    They are compiled into one another; numba itself looks at the file of the outer function only.
    """

    def _index_key(self, signature: Any, codegen: Any) -> tuple[Any, ...]:
        return (*super()._index_key(signature, codegen), _SOURCES)


compiled = partial(compilation.compiled, cache=_Cache)


def _known(generator: Callable[..., Any]) -> Any:
    """Make a function known to compiled code; there it has all but the first parameter."""
    return intrinsic(generator)


class _LanesType(types.Type):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(name=f"Lanes{WIDTH}")


_lanes = _LanesType()


@register_model(_LanesType)
class _LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _VECTOR)


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    data = make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), _VECTOR.as_pointer())


@_known
def load(typing_context: Any, array: Any, index: Any) -> Any:
    """Eight numbers of a one-dimensional array from an index on."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        place = _pointer(context, builder, signature.args[0], given[0], given[1])
        return builder.load(place, align=8)

    return _lanes(array, types.intp), generate


@_known
def store(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    """Put eight numbers into a one-dimensional array from an index on."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        place = _pointer(context, builder, signature.args[0], given[0], given[1])
        builder.store(given[2], place, align=8)
        return context.get_dummy_value()

    return types.void(array, types.intp, _lanes), generate


@_known
def splat(typing_context: Any, value: Any) -> Any:
    """Eight times the same number."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        one = builder.insert_element(
            ir.Constant(_VECTOR, ir.Undefined), given[0], ir.Constant(ir.IntType(32), 0)
        )
        places = ir.Constant(ir.VectorType(ir.IntType(32), WIDTH), [0] * WIDTH)
        return builder.shuffle_vector(one, ir.Constant(_VECTOR, ir.Undefined), places)

    return _lanes(types.float64), generate


def _lanewise(operation: Callable[..., Any]) -> Any:
    """Make an operation on eight numbers at a time, in instructions, known to compiled code."""

    # numba counts the arguments of a call by the signature, and names the function in its cache
    @wraps(operation)
    def typed(typing_context: Any, *given: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            return operation(builder, *values)

        return _lanes(*given), generate

    return intrinsic(typed)


@_lanewise
def plus(builder: Any, a: Any, b: Any) -> Any:
    """Sum."""
    return builder.fadd(a, b)


@_lanewise
def times(builder: Any, a: Any, b: Any) -> Any:
    """Product."""
    return builder.fmul(a, b)


@_lanewise
def plus_product(builder: Any, left: Any, a: Any, b: Any) -> Any:
    """``left + a b``."""
    return builder.fadd(left, builder.fmul(a, b, flags=_FUSE), flags=_FUSE)


@_lanewise
def less_product(builder: Any, left: Any, a: Any, b: Any) -> Any:
    """``left - a b``."""
    return builder.fsub(left, builder.fmul(a, b, flags=_FUSE), flags=_FUSE)


@_lanewise
def at_least(builder: Any, a: Any, b: Any) -> Any:
    """The larger of two; the first where it is not a number."""
    return builder.select(builder.fcmp_ordered("<", a, b), b, a)


@_lanewise
def unless_below(builder: Any, a: Any, b: Any, value: Any) -> Any:
    """``value``, but 0 where ``a < b``."""
    nothing = ir.Constant(_VECTOR, [0.0] * WIDTH)
    return builder.select(builder.fcmp_ordered("<", a, b), nothing, value)


@_lanewise
def inverse_root(builder: Any, a: Any) -> Any:
    """``1 / sqrt(a)``, both steps rounded correctly."""
    kind = ir.FunctionType(_VECTOR, [_VECTOR])
    root = get_or_insert_function(builder.module, kind, f"llvm.sqrt.v{WIDTH}f64")
    return builder.fdiv(ir.Constant(_VECTOR, [1.0] * WIDTH), builder.call(root, [a]))


# --- factorisations


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
            # the diagonal inverted: products in the place of divisions
            packed_low[at] = 1.0 / low[i, i] if i == j else low[i, j]
            at += WIDTH


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
            pack(state.precision[k], state.cholesky[k], state.mean[k], k, packed)
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
        # a pivot below 1 / delta^2 is rounding: it is raised
        inverse = inverse_root(at_least(at_least(pivot, least), noise))
        product = times(product, inverse)
        if j % 4 == 3 or j == size - 1:  # one logarithm for four pivots
            store(result, 2 * WIDTH, product)
            for k in range(WIDTH):
                result[k] -= 2.0 * np.log(result[2 * WIDTH + k])
            product = splat(1.0)
        # one that is nothing but rounding has its column cleared
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
    """``scale (y - x m)`` of each row for eight classes, which have a scale each."""
    f = x.shape[1]
    for row in range(y.size):
        e = splat(y[row])
        for i in range(f):
            e = less_product(e, splat(x[row, i]), load(mean, at + i * WIDTH))
        store(out, row * WIDTH, times(e, scale))


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
            s0, s1 = times(splat(x[row, i]), scale), times(splat(x[row + 1, i]), scale)
            s2, s3 = times(splat(x[row + 2, i]), scale), times(splat(x[row + 3, i]), scale)
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
            s = one_product(times(splat(x[row, i]), scale), v, row * wide, packed_low, low, i)
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
