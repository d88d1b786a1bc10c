"""Eight numbers side by side in compiled code: one matrix algorithm runs for eight classes at once.

The compiler does not find this form by itself in loops as short as these. A value of type ``Lanes``
is a vector of eight doubles; the functions here are known to compiled code only. Every lane does
the operations of a plain double in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import types
from numba.core.cgutils import get_or_insert_function
from numba.extending import intrinsic, models, register_model
from numba.np.arrayobj import make_array

WIDTH = 8
_VECTOR = ir.VectorType(ir.DoubleType(), WIDTH)
_FUSE = ("contract",)  # a product and the sum that uses it may be rounded once


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


@_known
def plus(typing_context: Any, a: Any, b: Any) -> Any:
    """Sum."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.fadd(given[0], given[1])

    return _lanes(_lanes, _lanes), generate


@_known
def times(typing_context: Any, a: Any, b: Any) -> Any:
    """Product."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.fmul(given[0], given[1])

    return _lanes(_lanes, _lanes), generate


@_known
def plus_product(typing_context: Any, left: Any, a: Any, b: Any) -> Any:
    """``left + a b``."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        product = builder.fmul(given[1], given[2], flags=_FUSE)
        return builder.fadd(given[0], product, flags=_FUSE)

    return _lanes(_lanes, _lanes, _lanes), generate


@_known
def less_product(typing_context: Any, left: Any, a: Any, b: Any) -> Any:
    """``left - a b``."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        product = builder.fmul(given[1], given[2], flags=_FUSE)
        return builder.fsub(given[0], product, flags=_FUSE)

    return _lanes(_lanes, _lanes, _lanes), generate


@_known
def at_least(typing_context: Any, a: Any, b: Any) -> Any:
    """The larger of two; the first where it is not a number."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        below = builder.fcmp_ordered("<", given[0], given[1])
        return builder.select(below, given[1], given[0])

    return _lanes(_lanes, _lanes), generate


@_known
def unless_below(typing_context: Any, a: Any, b: Any, value: Any) -> Any:
    """``value``, but 0 where ``a < b``."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        below = builder.fcmp_ordered("<", given[0], given[1])
        return builder.select(below, ir.Constant(_VECTOR, [0.0] * WIDTH), given[2])

    return _lanes(_lanes, _lanes, _lanes), generate


@_known
def inverse_root(typing_context: Any, a: Any) -> Any:
    """``1 / sqrt(a)``, both steps rounded correctly."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        kind = ir.FunctionType(_VECTOR, [_VECTOR])
        root = get_or_insert_function(builder.module, kind, f"llvm.sqrt.v{WIDTH}f64")
        ones = ir.Constant(_VECTOR, [1.0] * WIDTH)
        return builder.fdiv(ones, builder.call(root, [given[0]]))

    return _lanes(_lanes), generate
