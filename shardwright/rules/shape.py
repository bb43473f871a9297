"""Operations that only move data: reshape, transpose, broadcast, slice, pad, concatenate and their like.

A dim that an operation leaves as it is has a free factor. A dim that it slices, pads, reverses or joins stays whole: to
cut it takes data from the neighbors. Dims of size 1 carry no factor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shardwright.program.ir import Equation
from shardwright.rules.row import Factors, FactorsBuilder, Local, Row, bind_with


def _linear_in_first(equation: Equation) -> tuple[frozenset[int], ...]:
    del equation
    return (frozenset({0}),)


def _linear_jointly(equation: Equation) -> tuple[frozenset[int], ...]:
    return (frozenset(range(len(equation.invars))),)


def _same_dims(equation: Equation, pairs: Mapping[int, int]) -> Factors:
    """A free factor for each operand dim → result dim of equal size, alike in the first operand and every result."""
    b = FactorsBuilder(equation)
    for dim, out in pairs.items():
        size = equation.invars[0].aval.shape[dim]
        if size > 1:
            b.link(size, {0: dim}, dict.fromkeys(range(len(equation.outvars)), out))
    return b.build()


# --- reshape --------------------------------------------------------------------------------------------------------


def _groups(old: Sequence[int], new: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The major (dim of `old`, dim of `new`) of each smallest group of dims with equal products.

    Dims of size 1 are passed over, so [2, 1, 6] → [4, 3] is one group with majors 0 and 0, and [5, 2, 3] → [5, 6] two.
    """
    left = [d for d, size in enumerate(old) if size != 1]
    right = [d for d, size in enumerate(new) if size != 1]
    i = j = 0
    while i < len(left) and j < len(right):
        major = left[i], right[j]
        a, b = old[left[i]], new[right[j]]
        i, j = i + 1, j + 1
        while a != b:
            if a < b:
                a, i = a * old[left[i]], i + 1
            else:
                b, j = b * new[right[j]], j + 1
        yield major


def _reshape_factors(equation: Equation) -> Factors:
    """The major dims of a group share the factor gcd(their sizes).

    Let a group hold N elements in row-major order, with major dims a and c on the two sides. The first 1/f of the rows
    of a are the first N/f elements if f divides a, and so are the first 1/f of the rows of c if f divides c: for every
    common divisor f the two sides correspond block by block, and gcd(a, c) is the largest. No other dim of a group can
    be cut into contiguous blocks.
    """
    b = FactorsBuilder(equation)
    old, new = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
    order = equation.params["dimensions"] or range(len(old))
    if 0 not in old:
        for dim, out in _groups([old[d] for d in order], new):
            factor = math.gcd(old[order[dim]], new[out])
            if factor > 1:
                b.link(factor, {0: order[dim]}, {0: out})
    return b.build()


def _reshape_local(equation: Equation, values: Sequence[Any], local: Local) -> list[Any]:
    return bind_with(equation, values, dict(equation.params, new_sizes=local.result_shapes[0], sharding=None))


# --- dims renamed, added or dropped ---------------------------------------------------------------------------------


def _transpose_factors(equation: Equation) -> Factors:
    return _same_dims(equation, {dim: out for out, dim in enumerate(equation.params["permutation"])})


def _squeeze_factors(equation: Equation) -> Factors:
    dropped = set(equation.params["dimensions"])
    kept = [d for d in range(equation.invars[0].aval.ndim) if d not in dropped]
    return _same_dims(equation, {dim: out for out, dim in enumerate(kept)})


def _broadcast_factors(equation: Equation) -> Factors:
    """A dim that the operand has is free; a new or expanded one has a factor in the result alone, cut at no cost."""
    b = FactorsBuilder(equation)
    old, new = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
    source = {out: dim for dim, out in enumerate(equation.params["broadcast_dimensions"]) if old[dim] == new[out]}
    for out, size in enumerate(new):
        if size > 1:
            b.link(size, {0: source[out]} if out in source else {}, {0: out})
    return b.build()


def _broadcast_local(equation: Equation, values: Sequence[Any], local: Local) -> list[Any]:
    return bind_with(equation, values, dict(equation.params, shape=local.result_shapes[0], sharding=None))


def _tile_factors(equation: Equation) -> Factors:
    """A dim repeated once is free. Repeated r times it is r copies one after the other: a result factor of size r."""
    b = FactorsBuilder(equation)
    for dim, (repeats, size) in enumerate(zip(equation.params["reps"], equation.invars[0].aval.shape, strict=True)):
        if repeats > 1:
            b.link(repeats, {}, {0: dim})
        elif size > 1:
            b.link(size, {0: dim}, {0: dim})
    return b.build()


def _tile_local(equation: Equation, values: Sequence[Any], local: Local) -> list[Any]:
    reps = tuple(
        repeats if f is None or repeats == 1 else local.blocks[f]
        for repeats, f in zip(equation.params["reps"], local.factors.results[0], strict=True)
    )
    return bind_with(equation, values, dict(equation.params, reps=reps))


# --- sources --------------------------------------------------------------------------------------------------------


def _source_factors(equation: Equation) -> Factors:
    """Every dim of a result that depends on no operand may be cut at no cost."""
    b = FactorsBuilder(equation)
    for dim, size in enumerate(equation.outvars[0].aval.shape):
        if size > 1:
            b.link(size, {}, {0: dim})
    return b.build()


def _iota_local(equation: Equation, values: Sequence[Any], local: Local) -> list[Any]:
    """Block k of the counted dim starts at k · block. Counting in int32 and converting rounds as iota does."""
    dim, dtype, shape = equation.params["dimension"], equation.params["dtype"], local.result_shapes[0]
    factor = local.factors.results[0][dim]
    if factor is None or local.parts[factor] == 1:
        return bind_with(equation, values, dict(equation.params, shape=shape, sharding=None))
    count = jax.lax.broadcasted_iota(jnp.int32, shape, dim) + jnp.int32(local.offset(factor))
    return [jax.lax.convert_element_type(count, dtype)]


def _empty_local(equation: Equation, values: Sequence[Any], local: Local) -> list[Any]:
    return bind_with(equation, values, dict(equation.params, shape=local.result_shapes[0], out_sharding=None))


# --- parts of a dim -------------------------------------------------------------------------------------------------


def _slice_whole(equation: Equation) -> list[bool]:
    """For each dim whether the slice takes all of it."""
    shape, p = equation.invars[0].aval.shape, equation.params
    strides = p["strides"] or (1,) * len(shape)
    return [
        start == 0 and limit == size and stride == 1
        for size, start, limit, stride in zip(shape, p["start_indices"], p["limit_indices"], strides, strict=True)
    ]


def _slice_factors(equation: Equation) -> Factors:
    return _same_dims(equation, {dim: dim for dim, whole in enumerate(_slice_whole(equation)) if whole})


def _slice_local(equation: Equation, values: Sequence[Any], local: Local) -> list[Any]:
    del local
    limits = tuple(
        size if whole else limit
        for size, limit, whole in zip(
            np.shape(values[0]), equation.params["limit_indices"], _slice_whole(equation), strict=True
        )
    )
    return bind_with(equation, values, dict(equation.params, limit_indices=limits))


def _pad_factors(equation: Equation) -> Factors:
    untouched = [dim for dim, amounts in enumerate(equation.params["padding_config"]) if tuple(amounts) == (0, 0, 0)]
    return _same_dims(equation, {dim: dim for dim in untouched})


def _split_factors(equation: Equation) -> Factors:
    return _same_dims(equation, {d: d for d in range(equation.invars[0].aval.ndim) if d != equation.params["axis"]})


def _unstack_factors(equation: Equation) -> Factors:
    axis = equation.params["axis"]
    return _same_dims(equation, {d: d - (d > axis) for d in range(equation.invars[0].aval.ndim) if d != axis})


def _rev_factors(equation: Equation) -> Factors:
    """A reversed dim relates the two sides, but block k needs the data of block n - 1 - k: blocked."""
    b = FactorsBuilder(equation)
    blocked = []
    for dim, size in enumerate(equation.invars[0].aval.shape):
        if size > 1:
            factor = b.link(size, {0: dim}, {0: dim})
            if dim in equation.params["dimensions"]:
                blocked.append(factor)
    return b.build(blocked=blocked)


# --- dims joined ----------------------------------------------------------------------------------------------------


def _concatenate_factors(equation: Equation) -> Factors:
    b = FactorsBuilder(equation)
    for dim, size in enumerate(equation.outvars[0].aval.shape):
        if dim != equation.params["dimension"] and size > 1:
            b.link(size, dict.fromkeys(range(len(equation.invars)), dim), {0: dim})
    return b.build()


def _stack_factors(equation: Equation) -> Factors:
    b = FactorsBuilder(equation)
    axis = equation.params["axis"]
    for dim, size in enumerate(equation.invars[0].aval.shape):
        if size > 1:
            b.link(size, dict.fromkeys(range(len(equation.invars)), dim), {0: dim + (dim >= axis)})
    return b.build()


ROWS: dict[str, Row] = {
    "reshape": Row(_reshape_factors, _reshape_local, _linear_in_first, fused=True),
    "transpose": Row(_transpose_factors, linear=_linear_in_first, fused=True),
    "squeeze": Row(_squeeze_factors, linear=_linear_in_first, fused=True),
    "broadcast_in_dim": Row(_broadcast_factors, _broadcast_local, _linear_in_first, fused=True),
    "tile": Row(_tile_factors, _tile_local, _linear_in_first, fused=True),
    "iota": Row(_source_factors, _iota_local, fused=True),
    "empty": Row(_source_factors, _empty_local),
    "empty2": Row(_source_factors),  # a scalar; broadcast, it is what a branch returns for a residual it does not have
    "slice": Row(_slice_factors, _slice_local, _linear_in_first, fused=True),
    "pad": Row(_pad_factors, linear=_linear_jointly, fused=True),
    "split": Row(_split_factors, linear=_linear_in_first, fused=True),
    "unstack": Row(_unstack_factors, linear=_linear_in_first, fused=True),
    "rev": Row(_rev_factors, linear=_linear_in_first, fused=True),
    "concatenate": Row(_concatenate_factors, linear=_linear_jointly),
    "stack": Row(_stack_factors, linear=_linear_jointly),
}
