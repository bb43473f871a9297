"""Slices read and written at starts that are known only when the program runs.

A dim that the slice takes whole is free. One of which it takes a part may be cut too: the slice lies in one block or
straddles several, and each device reads or writes its share. With V the dim's size, s the slice's, i the start (XLA
clamps it to [0, V - s]) and [o, o + B) a device's block, the slice starts at r = i - o of the block, and the share lies
within the window of w = min(B, s) elements at c = min(max(r, 0), B - w): if w = s, then either the whole slice is
inside (c = r) or it overlaps an end of the block by less than s; if w = B, the window is the block. All work is on
O(s) elements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shardwright import _compat
from shardwright.program.ir import Equation
from shardwright.rules.row import Factors, FactorsBuilder, Local, Row, bind_with


def _starts(equation: Equation, starts: Sequence[Any], taken: Sequence[int]) -> list[Any]:
    """The starts that XLA uses: clamped, in their own dtype, so that the slice fits into the whole operand."""
    clamped = []
    for start, size, n in zip(starts, equation.invars[0].aval.shape, taken, strict=True):
        start = jnp.asarray(start)
        top = np.array(min(size - n, np.iinfo(start.dtype).max), start.dtype)
        clamped.append(jax.lax.clamp(np.zeros_like(top), start, top).astype(np.int32))
    return clamped


def _cut(equation: Equation, taken: Sequence[int], local: Local) -> dict[int, int]:
    """Cut dims of which the slice takes a part → their factor."""
    shape, dims = equation.invars[0].aval.shape, local.factors.operands[0]
    return {d: f for d, f in enumerate(dims) if f is not None and local.parts[f] > 1 and taken[d] != shape[d]}


def _shares(
    starts: Sequence[Any], cut: Mapping[int, int], taken: Sequence[int], local: Local
) -> tuple[list[Any], list[int], dict[int, Any]]:
    """Starts and sizes of the window in this device's block, and for each cut dim r - c (see the module)."""
    windows, sizes, shifts = list(starts), list(taken), {}
    for dim, f in cut.items():
        relative, sizes[dim] = starts[dim] - local.offset(f), min(local.blocks[f], taken[dim])
        windows[dim] = jnp.clip(relative, 0, local.blocks[f] - sizes[dim])
        shifts[dim] = relative - windows[dim]
    return windows, sizes, shifts


def _shifted(x: Any, dim: int, shift: Any, size: int) -> Any:
    """Elements [shift, shift + size) of `x` along `dim`, zeros beyond its ends."""
    amounts = [(size, size, 0) if d == dim else (0, 0, 0) for d in range(x.ndim)]
    padded = jax.lax.pad(x, np.zeros((), x.dtype), amounts)
    starts = [shift + size if d == dim else np.int32(0) for d in range(x.ndim)]
    sizes = [size if d == dim else n for d, n in enumerate(x.shape)]
    return jax.lax.dynamic_slice(padded, starts, sizes, allow_negative_indices=False)


# --- dynamic_slice --------------------------------------------------------------------------------------------------


def _slice_factors(equation: Equation) -> Factors:
    """A dim taken in part is contracted: each element of the slice is in one block, all others give zero."""
    b = FactorsBuilder(equation)
    operand, contracted = equation.invars[0].aval, {}
    for dim, (size, taken) in enumerate(zip(operand.shape, equation.params["slice_sizes"], strict=True)):
        if size > 1 and taken == size:
            b.link(size, {0: dim}, {0: dim})
        elif size > 1 and not _compat.is_extended(operand.dtype):
            contracted[b.link(size, {0: dim}, {})] = "or" if operand.dtype == np.bool_ else "sum"
    return b.build(contracted, masked=tuple(contracted))


def _slice_local(equation: Equation, values: Sequence[Any], local: Local) -> list[Any]:
    """Element j of the slice is element j + r - c of the window."""
    operand, *starts = values
    taken = local.result_shapes[0]
    cut = _cut(equation, equation.params["slice_sizes"], local)
    if not cut:
        return bind_with(equation, values, dict(equation.params, slice_sizes=taken))
    starts = _starts(equation, starts, equation.params["slice_sizes"])
    windows, sizes, shifts = _shares(starts, cut, taken, local)
    piece = jax.lax.dynamic_slice(operand, windows, sizes, allow_negative_indices=False)
    for dim, shift in shifts.items():
        piece = _shifted(piece, dim, shift, taken[dim])
    return [piece]


# --- dynamic_update_slice -------------------------------------------------------------------------------------------


def _update_factors(equation: Equation) -> Factors:
    """A dim updated in part is free in operand and result; the update has all of its part."""
    b = FactorsBuilder(equation)
    extended = _compat.is_extended(equation.invars[0].aval.dtype)
    for dim, (size, taken) in enumerate(zip(*(a.aval.shape for a in equation.invars[:2]), strict=True)):
        if size > 1 and taken == size:
            b.link(size, {0: dim, 1: dim}, {0: dim})
        elif size > 1 and not extended:
            b.link(size, {0: dim}, {0: dim})
    return b.build()


def _update_local(equation: Equation, values: Sequence[Any], local: Local) -> list[Any]:
    """Element j of the window becomes element j + c - r of the update, if there is one."""
    operand, update, *starts = values
    whole = equation.invars[1].aval.shape
    cut = _cut(equation, whole, local)
    if not cut:
        return bind_with(equation, values, equation.params)
    windows, sizes, shifts = _shares(_starts(equation, starts, whole), cut, np.shape(update), local)
    mask: Any = True
    for dim, shift in shifts.items():
        update = _shifted(update, dim, -shift, sizes[dim])
        element = jax.lax.broadcasted_iota(np.int32, sizes, dim) - shift
        mask &= (element >= 0) & (element < whole[dim])
    old = jax.lax.dynamic_slice(operand, windows, sizes, allow_negative_indices=False)
    new = jnp.where(mask, update, old)
    return [jax.lax.dynamic_update_slice(operand, new, windows, allow_negative_indices=False)]


def _linear_in_operand(equation: Equation) -> tuple[frozenset[int], ...]:
    del equation
    return (frozenset({0}),)


def _linear_jointly(equation: Equation) -> tuple[frozenset[int], ...]:
    del equation
    return (frozenset({0, 1}),)


ROWS: dict[str, Row] = {
    "dynamic_slice": Row(_slice_factors, _slice_local, _linear_in_operand),
    "dynamic_update_slice": Row(_update_factors, _update_local, _linear_jointly),
}
