"""Operations that compute each element of the result from the same element of each operand."""

from __future__ import annotations

import math

import numpy as np

from shardwright.program.ir import Equation, Literal
from shardwright.rules.row import Factors, FactorsBuilder, Row, one_flop_an_element


def elementwise_factors(equation: Equation) -> Factors:
    """One free factor a dim. A dim of size 1 beside a larger one broadcasts and stays whole; so does a scalar."""
    b = FactorsBuilder(equation)
    shape = equation.outvars[0].aval.shape
    for dim, size in enumerate(shape):
        operands = {i: dim for i, a in enumerate(equation.invars)
                    if a.aval.ndim == len(shape) and (a.aval.shape[dim] == size)}
        b.link(size, operands, {i: dim for i in range(len(equation.outvars))})
    return b.build()


def _jointly(equation: Equation) -> tuple[frozenset[int], ...]:
    return (frozenset(range(len(equation.invars))),)


def _in_each(equation: Equation) -> tuple[frozenset[int], ...]:
    return tuple(frozenset({i}) for i in range(len(equation.invars)))


def _in_first(equation: Equation) -> tuple[frozenset[int], ...]:
    del equation
    return (frozenset({0}),)


def _in_cases(equation: Equation) -> tuple[frozenset[int], ...]:
    return (frozenset(range(1, len(equation.invars))),)


def _conversion(equation: Equation) -> tuple[frozenset[int], ...]:
    """A sum may wait behind a widening, never behind a narrowing: that would round each term."""
    old, new = equation.invars[0].aval.dtype, np.dtype(equation.params["new_dtype"])
    inexact = _inexact(old) and _inexact(new)
    return (frozenset({0}),) if inexact and new.itemsize >= np.dtype(old).itemsize else ()


def _inexact(dtype: object) -> bool:
    try:
        return np.dtype(dtype).kind in "fcV"  # ml_dtypes' floats are of kind V
    except TypeError:
        return False


def _power(equation: Equation) -> tuple[frozenset[int], ...]:
    return (frozenset({0}),) if equation.params["y"] == 1 else ()


def _select_factors(equation: Equation) -> Factors:
    """As elementwise; a scalar predicate is whole."""
    return elementwise_factors(equation)


def _clamp_factors(equation: Equation) -> Factors:
    return elementwise_factors(equation)


_PLAIN = Row(elementwise_factors, flops=one_flop_an_element, fused=True)
_SUM = Row(elementwise_factors, linear=_jointly, flops=one_flop_an_element, fused=True)
_PRODUCT = Row(elementwise_factors, linear=_in_each, flops=one_flop_an_element, fused=True)
_UNARY_LINEAR = Row(elementwise_factors, linear=_in_first, flops=one_flop_an_element, fused=True)

_PLAIN_NAMES = """
abs acos acosh and asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil clz cos cosh digamma eq erf erf_inv erfc exp
exp2 expm1 floor ge gt igamma igamma_grad_a igammac imag is_finite le le_to lgamma log log1p logistic lt lt_to max min ne
nextafter not or polygamma population_count pow random_gamma_grad real regularized_incomplete_beta rem round rsqrt shift_left
shift_right_arithmetic shift_right_logical sign sin sinh sqrt square tan tanh xor zeta conj erf_inv clamp complex
reduce_precision stop_gradient bitcast_convert_type
""".split()

ROWS: dict[str, Row] = {
    **dict.fromkeys(_PLAIN_NAMES, _PLAIN),
    **dict.fromkeys(("add", "sub", "add_any", "complex"), _SUM),
    "mul": _PRODUCT,
    **dict.fromkeys(("div", "neg", "copy", "copy_p", "real", "imag", "conj", "stop_gradient"), _UNARY_LINEAR),
    "select_n": Row(_select_factors, linear=_in_cases, flops=one_flop_an_element, fused=True),
    "convert_element_type": Row(elementwise_factors, linear=_conversion, flops=one_flop_an_element, fused=True),
    "integer_pow": Row(elementwise_factors, linear=_power, flops=one_flop_an_element, fused=True),
}


def is_scalar_literal(atom: object) -> bool:
    """Whether `atom` is a constant of one element."""
    return isinstance(atom, Literal) and math.prod(atom.aval.shape) == 1
