"""Matrix products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from shardwright.program.ir import Equation
from shardwright.rules.row import Factors, FactorsBuilder, Local, Row, bind_with


def _factors(equation: Equation) -> Factors:
    """Batch dims: free in both and the result; contracting: a sum; the others: free in one and the result."""
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = equation.params["dimension_numbers"]
    lhs, rhs = (a.aval.shape for a in equation.invars)
    b = FactorsBuilder(equation)
    out = 0
    for i, j in zip(lhs_batch, rhs_batch, strict=True):
        b.link(lhs[i], {0: i, 1: j}, {0: out})
        out += 1
    for position, shape, taken in ((0, lhs, (*lhs_contract, *lhs_batch)), (1, rhs, (*rhs_contract, *rhs_batch))):
        for dim in range(len(shape)):
            if dim not in taken:
                b.link(shape[dim], {position: dim}, {0: out})
                out += 1
    monoid = "or" if equation.outvars[0].aval.dtype == np.bool_ else "sum"
    contracted = {b.link(lhs[i], {0: i, 1: j}, {}): monoid for i, j in zip(lhs_contract, rhs_contract, strict=True)}
    return b.build(contracted)


def _flops(equation: Equation) -> float:
    """2 · (elements of the result) · (product of the contracted sizes)."""
    (lhs_contract, _), _ = equation.params["dimension_numbers"]
    contracted = math.prod(equation.invars[0].aval.shape[i] for i in lhs_contract)
    return 2.0 * equation.outvars[0].aval.size * contracted


def _local(equation: Equation, values: Sequence[Any], local: Local) -> list[Any]:
    del local
    return bind_with(equation, values, dict(equation.params, out_sharding=None))


def _linear(equation: Equation) -> tuple[frozenset[int], ...]:
    del equation
    return (frozenset({0}), frozenset({1}))


ROWS: dict[str, Row] = {"dot_general": Row(_factors, _local, _linear, _flops)}
