"""Operations that compute each element of the result from the same element of each operand."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from shardwright import _compat
from shardwright.program.ir import Equation
from shardwright.rules.row import Factors, FactorsBuilder, Row, one_flop_an_element


def elementwise_factors(equation: Equation) -> Factors:
    """One free factor a dim. A scalar operand is whole, and so is a dim of size 1, beside a larger one or alone."""
    b = FactorsBuilder(equation)
    shape = equation.outvars[0].aval.shape
    for dim, size in enumerate(shape):
        if size > 1:
            operands = {
                i: dim for i, a in enumerate(equation.invars) if a.aval.ndim == len(shape) and a.aval.shape[dim] == size
            }
            b.link(size, operands, dict.fromkeys(range(len(equation.outvars)), dim))
    return b.build()


def _bitcast_factors(equation: Equation) -> Factors:
    """Between widths the wider side lacks a trailing dim, that of the narrow elements in a wide one: whole."""
    b = FactorsBuilder(equation)
    for dim, (old, new) in enumerate(zip(equation.invars[0].aval.shape, equation.outvars[0].aval.shape, strict=False)):
        assert old == new
        if old > 1:
            b.link(old, {0: dim}, {0: dim})
    return b.build()


# --- what is linear -------------------------------------------------------------------------------------------------


def _jointly(equation: Equation) -> tuple[frozenset[int], ...]:
    return (frozenset(range(len(equation.invars))),)


def _in_each(equation: Equation) -> tuple[frozenset[int], ...]:
    return tuple(frozenset({i}) for i in range(len(equation.invars)))


def _in_first(equation: Equation) -> tuple[frozenset[int], ...]:
    del equation
    return (frozenset({0}),)


def _in_all_but_first(equation: Equation) -> tuple[frozenset[int], ...]:
    return (frozenset(range(1, len(equation.invars))),)


def _in_dividend(equation: Equation) -> tuple[frozenset[int], ...]:
    """Integers are divided with a remainder that is lost, and (1 + 1) / 2 is not 1 / 2 + 1 / 2."""
    return (frozenset({0}),) if _inexact(equation.outvars[0].aval.dtype) else ()


def _in_base(equation: Equation) -> tuple[frozenset[int], ...]:
    return (frozenset({0}),) if equation.params["y"] == 1 else ()


def _in_widened(equation: Equation) -> tuple[frozenset[int], ...]:
    """A sum may wait behind a conversion that keeps every number, never behind one that would round each term."""
    return (frozenset({0}),) if _keeps(equation.invars[0].aval.dtype, equation.params["new_dtype"]) else ()


def _inexact(dtype: Any) -> bool:
    return jax.dtypes.issubdtype(dtype, np.inexact)


def _keeps(old: Any, new: Any) -> bool:
    """Whether every number of the floating-point dtype `old` is one of `new`."""
    if old == new or not (_inexact(old) and _inexact(new)):
        return bool(old == new)
    if jax.dtypes.issubdtype(old, np.complexfloating) and not jax.dtypes.issubdtype(new, np.complexfloating):
        return False
    a, b = jax.numpy.finfo(old), jax.numpy.finfo(new)
    return b.nmant >= a.nmant and b.maxexp >= a.maxexp and b.minexp <= a.minexp


# --- the rows -------------------------------------------------------------------------------------------------------


def _flops_of_horner(equation: Equation) -> float:
    """A product and a sum an element for each coefficient but the highest."""
    return 2 * (len(equation.invars) - 2) * one_flop_an_element(equation)


def _row(linear: Any = None) -> Row:
    extra = {"linear": linear} if linear else {}
    return Row(elementwise_factors, flops=one_flop_an_element, fused=True, **extra)


_PLAIN = [
    "abs",
    "acos",
    "acosh",
    "acospi",
    "and",
    "asin",
    "asinh",
    "asinpi",
    "atan",
    "atan2",
    "atan2pi",
    "atanh",
    "atanpi",
    "bessel_i0e",
    "bessel_i1e",
    "cbrt",
    "ceil",
    "clamp",
    "clz",
    "cos",
    "cosh",
    "cospi",
    "digamma",
    "eq",
    "eq_to",
    "erf",
    "erf_inv",
    "erfc",
    "exp",
    "exp2",
    "exp2m1",
    "expm1",
    "floor",
    "fma",
    "fmuladd",
    "ge",
    "gt",
    "igamma",
    "igamma_grad_a",
    "igammac",
    "is_finite",
    "le",
    "le_to",
    "lgamma",
    "log",
    "log1p",
    "log2",
    "log2p1",
    "logistic",
    "lt",
    "lt_to",
    "max",
    "min",
    "mulhi",
    "ne",
    "nextafter",
    "not",
    "one_minus_square",
    "or",
    "polygamma",
    "population_count",
    "pow",
    "reduce_precision",
    "regularized_incomplete_beta",
    "rem",
    "round",
    "rsqrt",
    "shift_left",
    "shift_right_arithmetic",
    "shift_right_logical",
    "sign",
    "sin",
    "sinh",
    "sinpi",
    "sqrt",
    "square",
    "tan",
    "tanh",
    "tanpi",
    "xor",
    "zeta",
]

ROWS: dict[str, Row] = {
    **dict.fromkeys(_PLAIN, _row()),
    **dict.fromkeys(("add", "add_any", "complex", "sub"), _row(_jointly)),
    **dict.fromkeys(("conj", "copy", "imag", "name", "neg", "real", "stop_gradient"), _row(_in_first)),
    "mul": _row(_in_each),
    "div": _row(_in_dividend),
    "select_n": _row(_in_all_but_first),
    "convert_element_type": _row(_in_widened),
    "integer_pow": _row(_in_base),
    "bitcast_convert_type": Row(_bitcast_factors, fused=True),
    "polynomial": Row(elementwise_factors, flops=_flops_of_horner, linear=_in_all_but_first, fused=True),
}
for _name in _compat.MISSING_PRIMITIVES:
    del ROWS[_name]
