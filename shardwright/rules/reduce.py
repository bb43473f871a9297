"""Operations that reduce, accumulate or order along a dim."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

from shardwright.program.ir import Equation
from shardwright.rules.row import Factors, FactorsBuilder, Local, Row, bind, bind_with

_MONOIDS = {
    "reduce_sum": "sum",
    "reduce_prod": "prod",
    "reduce_max": "max",
    "reduce_min": "min",
    "reduce_and": "and",
    "reduce_or": "or",
}


def _removing(equation: Equation, dims: Collection[int], monoid: str | None = None) -> Factors:
    """All operands lose `dims` on the way to the results: contracted by `monoid`, or whole; the others are free.

    Operands of lower rank (initial values) have no factors.
    """
    b = FactorsBuilder(equation)
    shape = equation.invars[0].aval.shape
    sources = [i for i, a in enumerate(equation.invars) if a.aval.shape == shape] if shape else []
    results = range(len(equation.outvars))
    contracted: dict[int, str] = {}
    out = 0
    for dim, size in enumerate(shape):
        operands = dict.fromkeys(sources, dim)
        if dim not in dims:
            b.link(size, operands, dict.fromkeys(results, out))
            out += 1
        elif monoid:
            contracted[b.link(size, operands, {})] = monoid
    return b.build(contracted)


def _keeping(equation: Equation, dim: int) -> Factors:
    """Every dim of every operand is the results' own; along `dim` elements depend on one another."""
    b = FactorsBuilder(equation)
    everywhere = range(len(equation.invars))
    factors = [
        b.link(size, dict.fromkeys(everywhere, d), dict.fromkeys(everywhere, d))
        for d, size in enumerate(equation.invars[0].aval.shape)
    ]
    return b.build(blocked=(factors[dim],))


def _reduction_factors(equation: Equation) -> Factors:
    """A reduced dim is contracted by the monoid; exclusive or has none that a collective offers, so it is whole."""
    return _removing(equation, equation.params["axes"], _MONOIDS.get(equation.name))


def _arg_factors(equation: Equation) -> Factors:
    """The searched dim is whole."""
    return _removing(equation, equation.params["axes"])


def _generic_factors(equation: Equation) -> Factors:
    """A reduction by any function: reduced dims are whole. Operands: the arrays, then as many scalars."""
    return _removing(equation, equation.params["dimensions"])


def _cumulative_factors(equation: Equation) -> Factors:
    return _keeping(equation, equation.params["axis"])


def _sort_factors(equation: Equation) -> Factors:
    return _keeping(equation, equation.params["dimension"])


def _top_factors(equation: Equation) -> Factors:
    """The searched dim is whole in the operand, and so is its remainder (of size k) in the values and indices."""
    b = FactorsBuilder(equation)
    shape = equation.invars[0].aval.shape
    searched = _searched(equation)
    for dim, size in enumerate(shape):
        if dim != searched:
            b.link(size, {0: dim}, dict.fromkeys(range(len(equation.outvars)), dim))
    return b.build()


def _searched(equation: Equation) -> int:
    params = equation.params
    dim = params["axis"] if "axis" in params else params["reduction_dimension"]
    return int(dim) % equation.invars[0].aval.ndim


def _linear_in_operand(equation: Equation) -> tuple[frozenset[int], ...]:
    del equation
    return (frozenset({0}),)


def _one_an_operand_element(equation: Equation) -> float:
    """One operation for each element that goes in."""
    shape = equation.invars[0].aval.shape
    return float(sum(a.aval.size for a in equation.invars if a.aval.shape == shape))


def _sort_flops(equation: Equation) -> float:
    """Comparisons of `num_keys` keys, n · log2 n of each, along a dim of size n."""
    aval = equation.invars[0].aval
    return float(aval.size * math.log2(max(aval.shape[equation.params["dimension"]], 2)) * equation.params["num_keys"])


def _top_flops(equation: Equation) -> float:
    """A heap of k elements: n · log2 k comparisons, at least n."""
    return equation.invars[0].aval.size * max(math.log2(max(equation.params["k"], 1)), 1.0)


def _local(equation: Equation, values: Sequence[Any], local: Local) -> list[Any]:
    if "out_sharding" not in equation.params:
        return bind(equation, values, local)
    return bind_with(equation, values, dict(equation.params, out_sharding=None))


_REDUCTION = Row(_reduction_factors, _local, flops=_one_an_operand_element)
_CUMULATIVE = Row(_cumulative_factors, flops=_one_an_operand_element)
_ARG = Row(_arg_factors, flops=_one_an_operand_element)
_TOP = Row(_top_factors, flops=_top_flops)

ROWS: dict[str, Row] = {
    **dict.fromkeys((*_MONOIDS, "reduce_xor"), _REDUCTION),
    "reduce_sum": Row(_reduction_factors, _local, _linear_in_operand, _one_an_operand_element),
    "reduce": Row(_generic_factors, flops=_one_an_operand_element),
    "argmax": _ARG,
    "argmin": _ARG,
    **dict.fromkeys(("cumprod", "cummax", "cummin", "cumlogsumexp"), _CUMULATIVE),
    "cumsum": Row(_cumulative_factors, linear=_linear_in_operand, flops=_one_an_operand_element),
    "sort": Row(_sort_factors, flops=_sort_flops),
    "top_k": _TOP,
    "approx_top_k": _TOP,
}
