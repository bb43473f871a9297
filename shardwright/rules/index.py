"""Indexing: gather (lookups) and the scatters (indexed writes, gradients of lookups).

Both move slices between an operand and a batch of slices, at starts read from an array of indices (`Layout`). An
indexed dim may be cut: each device serves the slices that meet its block, so that a gather leaves a sum in which
every element is zero on all devices but one, and a scatter writes what is its own. Let i be a start, s a slice's size
and [o, o + B) the block: the slice meets it if i - o is in (-s, B). For s > 1 it may stick out by up to s - 1
elements, so the block is given margins of s - 1 zeros, and i becomes i - o + s - 1. Slices that share one start are
in `dynamic`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import GatherScatterMode

from shardwright import _compat
from shardwright.program.ir import Equation
from shardwright.rules import dynamic
from shardwright.rules.row import Factors, FactorsBuilder, Local, Row, bind_with, identity, no_flops

_SCATTER_MONOIDS = {
    "scatter-add": "sum",
    "scatter-sub": "sum",
    "scatter-mul": "prod",
    "scatter-min": "min",
    "scatter-max": "max",
}


@dataclasses.dataclass(frozen=True)
class Layout:
    """How slices of the operand lie in the slices array: the result of a gather, the updates of a scatter.

    Attributes:
      window: operand dim → dim of the slices array, for the dims that a slice keeps.
      batch: dim of the indices → dim of the slices array.
      batching: dim of the indices → operand dim that goes with it one to one.
      component: operand dim → position in the index vector, for indexed dims.
      taken: for each operand dim the size of a slice.
      limits: for each component the last start at which a slice fits.
    """

    window: Mapping[int, int]
    batch: Mapping[int, int]
    batching: Mapping[int, int]
    component: Mapping[int, int]
    taken: tuple[int, ...]
    limits: tuple[int, ...]

    def in_part(self, dim: int, size: int) -> bool:
        """Whether a slice is an indexed part of this operand dim, of this size."""
        return dim in self.component and 0 < self.taken[dim] < size


def layout(equation: Equation) -> Layout:
    """The layout of a gather or scatter."""
    d, operand = equation.params["dimension_numbers"], equation.invars[0].aval
    if equation.name == "gather":
        slices, window_dims, dropped = equation.outvars[0].aval, d.offset_dims, d.collapsed_slice_dims
        indexed, batching = d.start_index_map, d.start_indices_batching_dims
    else:
        slices, window_dims, dropped = equation.invars[2].aval, d.update_window_dims, d.inserted_window_dims
        indexed, batching = d.scatter_dims_to_operand_dims, d.scatter_indices_batching_dims
    kept = [i for i in range(operand.ndim) if i not in dropped and i not in d.operand_batching_dims]
    window = dict(zip(kept, window_dims, strict=True))
    taken = tuple(slices.shape[window[i]] if i in window else 1 for i in range(operand.ndim))
    return Layout(
        window,
        dict(enumerate(i for i in range(slices.ndim) if i not in window_dims)),
        dict(zip(batching, d.operand_batching_dims, strict=True)),
        {dim: c for c, dim in enumerate(indexed)},
        taken,
        tuple(operand.shape[dim] - taken[dim] for dim in indexed),
    )


def _signed(indices: Any) -> Any:
    return indices.astype(np.int64 if indices.dtype.itemsize > 4 else np.int32)


def _clamped(indices: Any, limits: Sequence[int]) -> Any:
    """Indices in [0, limit] for each component, as XLA clamps them: in their own dtype, then signed."""
    top = np.minimum(limits, np.iinfo(indices.dtype).max).astype(indices.dtype)
    return _signed(jnp.clip(indices, np.zeros_like(top), top))


def _first_block(local: Local, factors: Sequence[int]) -> Any:
    """Whether this device holds block 0 of each of `factors`."""
    return jnp.all(jnp.stack([jnp.asarray(local.index(f)) == 0 for f in factors]))


def _padded(local: Local) -> bool:
    """Whether some indices are padding, so that promises about all of them no longer hold."""
    return any(
        f is not None and local.parts[f] * local.blocks[f] != local.factors.sizes[f] for f in local.factors.operands[1]
    )


def _cut(equation: Equation, at: Layout, local: Local) -> dict[int, int]:
    """Cut operand dims of which a slice is an indexed part → their factor."""
    dims, shape = local.factors.operands[0], equation.invars[0].aval.shape
    return {d: f for d, f in enumerate(dims) if f is not None and local.parts[f] > 1 and at.in_part(d, shape[d])}


def _in_block(position: Any, equation: Equation, at: Layout, local: Local) -> tuple[Any, Any]:
    """Starts in this device's block with its margins, and whether each slice meets the block."""
    cut, shape = _cut(equation, at, local), equation.invars[0].aval.shape
    first = jnp.stack([jnp.asarray(local.offset(cut[d]) if d in cut else 0, position.dtype) for d in at.component])
    block = np.array([local.blocks[cut[d]] if d in cut else shape[d] for d in at.component], position.dtype)
    margin = np.array([at.taken[d] - 1 if d in cut else 0 for d in at.component], position.dtype)
    meets = jnp.all((position >= first - margin) & (position < first + block), axis=-1)
    return position - first + margin, meets


def _with_margins(operand: Any, cut: Mapping[int, int], at: Layout, sign: int = 1) -> Any:
    """The block with its margins of zeros; with `sign` -1 a block with margins without them."""
    margins = [sign * (at.taken[d] - 1) if d in cut else 0 for d in range(operand.ndim)]
    return jax.lax.pad(operand, np.zeros((), operand.dtype), [(m, m, 0) for m in margins]) if any(margins) else operand


# --- gather ---------------------------------------------------------------------------------------------------------


def _gather_factors(equation: Equation) -> Factors:
    """Batch dims of the indices, and dims that every slice takes whole, are free.

    An indexed dim of which a slice takes a part is contracted: one block holds an element, all others give zero.
    """
    b, at = FactorsBuilder(equation), layout(equation)
    operand, indices = (a.aval for a in equation.invars)
    for dim, out in at.batch.items():
        if indices.shape[dim] > 1:
            b.link(indices.shape[dim], {1: dim, **({0: at.batching[dim]} if dim in at.batching else {})}, {0: out})
    contracted: dict[int, str] = {}
    for dim, size in enumerate(operand.shape):
        if size > 1 and at.taken[dim] == size:
            b.link(size, {0: dim}, {0: at.window[dim]})
        elif at.in_part(dim, size) and not _compat.is_extended(operand.dtype):
            contracted[b.link(size, {0: dim}, {})] = "or" if operand.dtype == np.bool_ else "sum"
    return b.build(contracted, masked=tuple(contracted))


def _gather_local(equation: Equation, values: Sequence[Any], local: Local) -> list[Any]:
    """The lookup in this device's block.

    A gather that clips (in XLA also one that promises to be in bounds) reads at min(max(i, 0), V - s), V the dim's
    size. One that fills gives the fill value where an index does not fit, and must give it once: the devices with
    block 0 of the cut dims do, all others give zero.
    """
    operand, indices = values
    at, p = layout(equation), equation.params
    taken = tuple(local.result_shapes[0][at.window[d]] if d in at.window else n for d, n in enumerate(p["slice_sizes"]))
    cut = _cut(equation, at, local)
    params = dict(p, slice_sizes=taken, indices_are_sorted=p["indices_are_sorted"] and not _padded(local) and not cut)
    if not cut:
        return bind_with(equation, values, params)
    position, meets = _in_block(_clamped(indices, at.limits), equation, at, local)

    def select(mask: Any, yes: Any, no: Any) -> Any:
        mask = jax.lax.broadcast_in_dim(mask, local.result_shapes[0], tuple(at.batch.values()))
        return jnp.where(mask, yes, no)

    block = _with_margins(operand, cut, at)
    (rows,) = bind_with(equation, (block, position), dict(params, mode=GatherScatterMode.CLIP, fill_value=None))
    zero = np.zeros((), operand.dtype)
    rows = select(meets, rows, zero)
    if p["mode"] == GatherScatterMode.FILL_OR_DROP:
        given = indices.astype(np.int32)  # as jax compares them
        fits = jnp.all((given >= 0) & (given <= np.array(at.limits, np.int32)), axis=-1)
        fill = jnp.where(_first_block(local, list(cut.values())), np.array(p["fill_value"], operand.dtype), zero)
        rows = select(fits, rows, fill)
    return [rows]


def _gather_linear(equation: Equation) -> tuple[frozenset[int], ...]:
    """Linear in the operand, unless an index out of bounds gives a number that each term of a sum would add."""
    fill = equation.params["fill_value"] if equation.params["mode"] == GatherScatterMode.FILL_OR_DROP else 0
    return (frozenset({0}),) if fill == 0 or fill != fill else ()


# --- scatter --------------------------------------------------------------------------------------------------------


def _scatter_factors(equation: Equation) -> Factors:
    """Dims that every update takes whole, batching dims, and indexed dims are free.

    The batch of updates is contracted by the operation's monoid; overwriting has none, so there it is blocked.
    """
    b, at = FactorsBuilder(equation), layout(equation)
    operand, indices = (a.aval for a in equation.invars[:2])
    monoid = _SCATTER_MONOIDS.get(equation.name) if at.component else None
    contracted, blocked = {}, []
    for dim, out in at.batch.items():
        size = indices.shape[dim]
        if size > 1 and dim in at.batching:
            b.link(size, {0: at.batching[dim], 1: dim, 2: out}, {0: at.batching[dim]})
        elif size > 1:
            factor = b.link(size, {1: dim, 2: out}, {})
            if monoid:
                contracted[factor] = monoid
            else:
                blocked.append(factor)
    for dim, size in enumerate(operand.shape):
        if size > 1 and at.taken[dim] == size:
            b.link(size, {0: dim, 2: at.window[dim]}, {0: dim})
        elif at.in_part(dim, size) and not (at.taken[dim] > 1 and _compat.is_extended(operand.dtype)):
            b.link(size, {0: dim}, {0: dim})
    return b.build(contracted, blocked, masked=tuple(contracted))


def _scatter_local(equation: Equation, values: Sequence[Any], local: Local) -> list[Any]:
    """The scatter into this device's block, of this device's updates.

    Where the batch of updates is cut, the operand must enter the sum (or product) once: on the devices with block 0 of
    the batch; elsewhere the scatter is into identities. An index becomes -1, which XLA drops, if its slice does not
    meet the block of a cut dim, if it does not fit into the whole operand, or if it is padding.
    """
    operand, indices, updates = values
    at, p = layout(equation), equation.params
    batch = [f for f in local.factors.contracted if local.parts[f] > 1]
    if batch and _SCATTER_MONOIDS[equation.name] in ("sum", "prod"):
        neutral = identity(_SCATTER_MONOIDS[equation.name], operand.dtype)
        operand = jnp.where(_first_block(local, batch), operand, neutral)
    cut = _cut(equation, at, local)
    if not at.component or not (cut or _padded(local)):
        return bind_with(equation, (operand, indices, updates), p)
    position = _clamped(indices, at.limits) if p["mode"] == GatherScatterMode.CLIP else _signed(indices)
    keep = jnp.all((position >= 0) & (position <= np.array(at.limits, position.dtype)), axis=-1)
    position, meets = _in_block(position, equation, at, local)
    keep &= meets
    for dim, f in enumerate(local.factors.operands[1]):
        if f in batch:
            keep &= jax.lax.broadcasted_iota(np.int32, keep.shape, dim) + local.offset(f) < local.factors.sizes[f]
    position = jnp.where(keep[..., None], position, -1)
    params = dict(p, mode=GatherScatterMode.FILL_OR_DROP, unique_indices=False, indices_are_sorted=False)
    (written,) = bind_with(equation, (_with_margins(operand, cut, at), position, updates), params)
    return [_with_margins(written, cut, at, -1)]


def _scatter_linear(equation: Equation) -> tuple[frozenset[int], ...]:
    """Adding is linear in operand and updates together, multiplying in the operand.

    So is overwriting, if no two updates meet: which of them wins may differ between the terms of a sum.
    """
    if equation.name in ("scatter-add", "scatter-sub"):
        return (frozenset({0, 2}),)
    if equation.name == "scatter-mul":
        return (frozenset({0}),)
    single = all(n == 1 for n in equation.invars[1].aval.shape[:-1])
    alone = equation.params["unique_indices"] or single
    plain = equation.name == "scatter" and equation.params["update_jaxpr"] is None
    return (frozenset({0, 2}),) if plain and alone else ()


def _scatter_flops(equation: Equation) -> float:
    """One operation for each element of the updates."""
    return float(equation.invars[2].aval.size)


ROWS: dict[str, Row] = {
    **dynamic.ROWS,
    "gather": Row(_gather_factors, _gather_local, _gather_linear),
    "scatter": Row(_scatter_factors, _scatter_local, _scatter_linear, no_flops),
    **dict.fromkeys(_SCATTER_MONOIDS, Row(_scatter_factors, _scatter_local, _scatter_linear, _scatter_flops)),
}
