"""Operations that are whole in the dims they work on and independent in all others.

Transforms and factorizations of the last dims, products with groups of uneven sizes, and the barrier that keeps values
apart. A dim they work on is blocked: a plan that cuts it says so, and may cut a batch dim in its place.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

from shardwright.program.ir import Equation
from shardwright.rules.row import Factors, FactorsBuilder, Local, Row, bind_with

_Linear = tuple[frozenset[int], ...]

# --- Fourier transforms ---------------------------------------------------------------------------------------------


def _fft_factors(equation: Equation) -> Factors:
    """The transformed dims are the last ones; one that a real transform shortens or lengthens has no factor."""
    b = FactorsBuilder(equation)
    first = equation.invars[0].aval.ndim - len(equation.params["fft_lengths"])
    sizes = zip(equation.invars[0].aval.shape, equation.outvars[0].aval.shape, strict=True)
    factors = {dim: b.link(old, {0: dim}, {0: dim}) for dim, (old, new) in enumerate(sizes) if old == new > 1}
    return b.build(blocked=[f for dim, f in factors.items() if dim >= first])


def _fft_flops(equation: Equation) -> float:
    """5 · n · log2 n for each transform of n points (Cooley and Tukey, radix 2), half of it for a real one."""
    lengths, shape = equation.params["fft_lengths"], equation.invars[0].aval.shape
    points, transforms = math.prod(lengths), math.prod(shape[: len(shape) - len(lengths)])
    share = 0.5 if equation.params["fft_type"].name in ("RFFT", "IRFFT") else 1.0
    return share * 5.0 * transforms * points * math.log2(max(points, 2))


def _linear_in_first(equation: Equation) -> _Linear:
    del equation
    return (frozenset({0}),)


# --- linear algebra -------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Algebra:
    """What one primitive of linear algebra differs in.

    Attributes:
      dims: the last dims of operands and results, behind their batch dims: a small letter for a dim of a matrix, a
        capital for columns (or rows) of which each is treated by itself, '.' for neither. A result may be absent.
      flops: (m, n, equation) → operations for one element of the batch; m rows and n columns in the first operand.
      linear: operands in each of which the result is linear.
    """

    dims: str | Callable[[Equation], str]
    flops: Callable[[int, int, Equation], float]
    linear: tuple[int, ...] = ()


def _algebra_factors(algebra: _Algebra, equation: Equation) -> Factors:
    b = FactorsBuilder(equation)
    text = algebra.dims if isinstance(algebra.dims, str) else algebra.dims(equation)
    sides = [side.split(",") for side in text.split("->")]
    first = equation.invars[0].aval
    batch = first.ndim - len(sides[0][0])
    for dim, size in enumerate(first.shape[:batch]):
        if size > 1:
            b.link(
                size, dict.fromkeys(range(len(equation.invars)), dim), dict.fromkeys(range(len(equation.outvars)), dim)
            )
    found: dict[str, tuple[int, tuple[dict[int, int], dict[int, int]]]] = {}
    for i, (atoms, letters) in enumerate(zip((equation.invars, equation.outvars), sides, strict=True)):
        for position, (atom, word) in enumerate(zip(atoms, letters, strict=False)):
            for dim, letter in enumerate(word, batch):
                size, places = found.setdefault(letter, (atom.aval.shape[dim], ({}, {})))
                if size == atom.aval.shape[dim] > 1:
                    places[i][position] = dim
    found.pop(".", None)
    factors = {letter: b.link(size, *places) for letter, (size, places) in found.items() if size > 1}
    return b.build(blocked=[f for letter, f in factors.items() if letter.islower()])


def _algebra_flops(algebra: _Algebra, equation: Equation) -> float:
    dims = algebra.dims if isinstance(algebra.dims, str) else algebra.dims(equation)
    shape = equation.invars[0].aval.shape
    batch = len(shape) - len(dims.split(",")[0].split("->")[0])
    return float(math.prod(shape[:batch]) * algebra.flops(shape[batch], shape[-1], equation))


def _algebra_row(algebra: _Algebra) -> Row:
    linear = tuple(frozenset({i}) for i in algebra.linear)
    return Row(
        functools.partial(_algebra_factors, algebra),
        linear=lambda equation: linear,
        flops=functools.partial(_algebra_flops, algebra),
    )


# Operations, from G. H. Golub and C. F. Van Loan, Matrix Computations, 4th edition (chapters 3 to 5, 7 and 8), and from
# LAPACK Working Note 41, appendix C. A complex operation counts as one.


def _lu_flops(m: int, n: int, equation: Equation) -> float:
    k = min(m, n)
    return 2 * m * n * k - (m + n) * k**2 + 2 * k**3 / 3


def _reflections_flops(m: int, n: int, equation: Equation) -> float:
    k = min(m, n)
    return 2 * k**2 * (max(m, n) - k / 3)


def _product_flops(m: int, n: int, k: int) -> float:
    """An m × n product of k reflections."""
    return 4 * m * n * k - 2 * (m + n) * k**2 + 4 * k**3 / 3


def _qr_flops(m: int, n: int, equation: Equation) -> float:
    return _reflections_flops(m, n, equation) + _product_flops(m, equation.outvars[0].aval.shape[-1], min(m, n))


def _svd_flops(m: int, n: int, equation: Equation) -> float:
    k, large = min(m, n), max(m, n)
    return 6 * large * k**2 + 20 * k**3 if equation.params["compute_uv"] else 4 * k**2 * (large - k / 3)


def _iterated_flops(m: int, n: int, equation: Equation) -> float:
    """QR iteration of a general matrix, with or without vectors."""
    return (25 if len(equation.outvars) > 1 else 10) * n**3


def _triangular_dims(equation: Equation) -> str:
    return "m.,mC->mC" if equation.params["left_side"] else "m.,Cm->Cm"


def _reflected_dims(equation: Equation) -> str:
    return "..,.,mC->mC" if equation.params["left"] else "..,.,Cm->Cm"


def _columns_flops(m: int, n: int, equation: Equation) -> float:
    """Each of the vectors of the last operand meets each element of the matrix: n operations an element, or 2 · n."""
    shape = equation.invars[-1].aval.shape
    return math.prod(shape[-2:]) * n * (1 if equation.name == "triangular_solve" else 4)


_ALGEBRA = {
    "cholesky": _Algebra("mn->mn", lambda m, n, e: n**3 / 3),
    "eig": _Algebra("mn->.,m.,m.", _iterated_flops),
    "eigh": _Algebra("mn->m.,.", lambda m, n, e: 9 * n**3),
    "geqrf": _Algebra("mn->mn,.", _reflections_flops),
    "hessenberg": _Algebra("mn->mn,.", lambda m, n, e: 10 * n**3 / 3),
    "householder_product": _Algebra("mn,.->mn", lambda m, n, e: _product_flops(m, n, e.invars[1].aval.shape[-1])),
    "lu": _Algebra("mn->mn,.,.", _lu_flops),
    "lu_pivots_to_permutation": _Algebra(".->.", lambda m, n, e: n),
    "ormqr": _Algebra(_reflected_dims, _columns_flops, (2,)),
    "qr": _Algebra("mn->m.,.n,.", _qr_flops),
    "schur": _Algebra("mn->..,m.", _iterated_flops),
    "svd": _Algebra("mn->.,m.,.n", _svd_flops),
    "symmetric_product": _Algebra("m.,mn->mn", lambda m, n, e: 2 * m**2 * n),
    "triangular_solve": _Algebra(_triangular_dims, _columns_flops, (1,)),
    "tridiagonal": _Algebra("mn->mn,.,.,.", lambda m, n, e: 4 * n**3 / 3),
    "tridiagonal_solve": _Algebra("m,m,m,mC->mC", lambda m, n, e: (3 + 5 * e.invars[3].aval.shape[-1]) * n, (3,)),
}

# --- products with ragged groups ------------------------------------------------------------------------------------
# With x batch, m and n kept, k contracted and g groups, whose sizes are the third operand; the ragged dim is capital:
#   [x, M, k] [g, x, k, n] -> [x, M, n]       each group of rows times a matrix of its own
#   [x, m, K] [x, K, n]    -> [g, x, m, n]    a product for each group of the contracted dim
#   [X, m, k] [X, k, n]    -> [X, m, n]
# A block does not know which groups its part of the ragged dim holds: that dim and the groups are blocked.


def _ragged_factors(equation: Equation) -> Factors:
    numbers = equation.params["ragged_dot_dimension_numbers"]
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = numbers.dot_dimension_numbers
    (ragged,), rhs_groups = numbers.lhs_ragged_dimensions, tuple(numbers.rhs_group_dimensions)
    lhs, rhs, groups = (a.aval.shape for a in equation.invars)
    b = FactorsBuilder(equation)
    contracted, blocked, out = {}, [], 0
    if ragged in lhs_contract:
        blocked.append(b.link(groups[-1], {2: len(groups) - 1}, {0: 0}))
        out = 1
    elif rhs_groups:
        blocked.append(b.link(groups[-1], {1: rhs_groups[0], 2: len(groups) - 1}, {}))
    batch = dict(zip(lhs_batch, rhs_batch, strict=True))
    kept = [d for d in range(len(lhs)) if d not in lhs_contract and d not in batch]
    for dim in (*lhs_batch, *kept):
        f = b.link(lhs[dim], {0: dim, 1: batch[dim]} if dim in batch else {0: dim}, {0: out})
        blocked += [f] if dim == ragged else []
        out += 1
    for dim, size in enumerate(rhs):
        if dim not in (*rhs_contract, *rhs_batch, *rhs_groups):
            b.link(size, {1: dim}, {0: out})
            out += 1
    for i, j in zip(lhs_contract, rhs_contract, strict=True):
        f = b.link(lhs[i], {0: i, 1: j}, {})
        if i == ragged:
            blocked.append(f)
        else:
            contracted[f] = "sum"
    return b.build(contracted, blocked)


def _ragged_local(equation: Equation, values: Sequence[Any], local: Local) -> list[Any]:
    del local
    return bind_with(equation, values, dict(equation.params, out_sharding=None))


def _ragged_flops(equation: Equation) -> float:
    """2 · (elements of the result) · (product of the contracted sizes); each ragged element is in one group."""
    numbers = equation.params["ragged_dot_dimension_numbers"]
    (lhs_contract, _), _ = numbers.dot_dimension_numbers
    made = equation.outvars[0].aval.size
    if numbers.lhs_ragged_dimensions[0] in lhs_contract:
        made //= max(equation.outvars[0].aval.shape[0], 1)
    return 2.0 * made * math.prod(equation.invars[0].aval.shape[d] for d in lhs_contract)


def _linear_in_each_matrix(equation: Equation) -> _Linear:
    del equation
    return (frozenset({0}), frozenset({1}))


# --- barrier --------------------------------------------------------------------------------------------------------


def _barrier_factors(equation: Equation) -> Factors:
    """Result i is operand i, with factors of its own."""
    b = FactorsBuilder(equation)
    for i, atom in enumerate(equation.invars):
        for dim, size in enumerate(atom.aval.shape):
            if size > 1:
                b.link(size, {i: dim}, {i: dim})
    return b.build()


ROWS: dict[str, Row] = {
    "fft": Row(_fft_factors, linear=_linear_in_first, flops=_fft_flops),
    **{name: _algebra_row(algebra) for name, algebra in _ALGEBRA.items()},
    "ragged_dot_general": Row(_ragged_factors, _ragged_local, _linear_in_each_matrix, _ragged_flops),
    "optimization_barrier": Row(_barrier_factors, passthrough=True),
}
