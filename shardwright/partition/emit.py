"""The per-device program as jax, to be run under `shard_map` over all mesh axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shardwright import _compat
from shardwright.partition.device import (
    COLLECTIVES,
    Compute,
    Constant,
    Control,
    DeviceBlock,
    DeviceProgram,
    Mask,
    Move,
    Slot,
)
from shardwright.partition.effects import runs_once
from shardwright.plan.placement import Placement
from shardwright.program.ir import Literal
from shardwright.rules.row import Local, bind, identity


def emit(program: DeviceProgram, mesh: jax.sharding.Mesh) -> Callable[..., tuple[Any, ...]]:
    """A function of the global flat inputs to the global flat outputs, for `jax.jit`.

    Args:
      program: the partitioned step.
      mesh: a mesh with the plan's axes and sizes, of Auto axis types.
    """
    in_specs = tuple(s.placement.spec for s in program.block.inputs)
    out_specs = tuple(o.placement.spec if isinstance(o, Slot) else Placement(()).spec for o in program.block.outputs)

    def local(*values: Any) -> tuple[Any, ...]:
        return tuple(run_block(program.block, values, program.mesh))

    return jax.shard_map(local, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def run_block(block: DeviceBlock, values: Sequence[Any], mesh: Mapping[str, int]) -> list[Any]:
    """Binds every operation of `block` on this device's values."""
    env: dict[Slot, Any] = dict(zip(block.inputs, values, strict=True))

    def read(x: Slot | Literal) -> Any:
        return env[x] if isinstance(x, Slot) else x.value

    for op in block.ops:
        inputs = [read(x) for x in op.inputs]
        with _compat.source_context(op.source.info):
            results = _RUN[type(op)](op, inputs, mesh)
        env.update(zip(op.outputs, results, strict=True))
    return [read(x) for x in block.outputs]


def block_index(axes: Sequence[str], mesh: Mapping[str, int]) -> Any:
    """This device's block number among those that `axes` cut, the first axis the most significant."""
    index: Any = 0
    for axis in axes:
        index = index * mesh[axis] + lax.axis_index(axis)
    return index


def _compute(op: Compute, inputs: list[Any], mesh: Mapping[str, int]) -> list[Any]:
    parts = tuple(math.prod(mesh[a] for a in axes) for axes in op.cut)
    local = Local(
        op.factors, parts, op.blocks, tuple(s.shape for s in op.outputs), lambda f: block_index(op.cut[f], mesh)
    )
    if runs_once(op.equation) and math.prod(mesh.values()) > 1:
        lax.cond(block_index(tuple(mesh), mesh) == 0, lambda: _effect(op, inputs), lambda: None)
        return []
    for mask in op.masks:
        inputs[mask.position] = _masked(op, mask, inputs[mask.position], local)
    results = op.row.local(op.equation, inputs, local) if op.row else bind(op.equation, inputs, local)
    for slot, result in zip(op.outputs, results, strict=True):
        assert tuple(result.shape) == slot.shape, f"{op.equation.name}: {result.shape} computed, {slot.shape} planned"
    return results


def _effect(op: Compute, inputs: list[Any]) -> None:
    _compat.bind(op.equation.primitive, inputs, dict(op.equation.params))


def _masked(op: Compute, mask: Mask, value: Any, local: Local) -> Any:
    """The operand with its padding along one dim replaced by the monoid's identity."""
    size, multiple = op.factors.sizes[mask.factor], value.shape[mask.dim] // local.blocks[mask.factor]
    position = lax.broadcasted_iota(jnp.int32, value.shape, mask.dim) + local.offset(mask.factor) * multiple
    return jnp.where(position < size * multiple, value, jnp.asarray(identity(mask.monoid, value.dtype)))


def _constant(op: Constant, inputs: list[Any], mesh: Mapping[str, int]) -> list[Any]:
    del inputs, mesh
    if _compat.is_extended(op.outputs[0].aval.dtype) or isinstance(op.value, jax.Array):
        return [op.value]
    return [jnp.asarray(op.value, op.outputs[0].aval.dtype)]


def _move(op: Move, inputs: list[Any], mesh: Mapping[str, int]) -> list[Any]:
    if op.kind == "barrier":
        return [lax.optimization_barrier(tuple(inputs))[0]]
    if op.kind == "wait":
        return [_wait(inputs[0], inputs[1], mesh)]
    if not math.prod(op.outputs[0].shape):  # nothing to send, and XLA knows no collective of nothing
        return [jnp.zeros(op.outputs[0].shape, inputs[0].dtype)]
    x = inputs[0]
    packed = op.kind in COLLECTIVES and str(x.dtype) in ("int2", "uint2")  # of which XLA's CPU collectives lose count
    result = MOVES[op.kind](op, x.astype(jnp.int8) if packed else x, mesh)
    result = result.astype(x.dtype) if packed else result
    assert tuple(result.shape) == op.outputs[0].shape, (
        f"{op.kind}: {result.shape} computed, {op.outputs[0].shape} planned"
    )
    return [result]


def _wait(x: Any, trigger: Any, mesh: Mapping[str, int]) -> Any:
    """`x`, by a choice that reads `trigger` and never takes the other side: a device's index is not negative."""
    if _compat.is_extended(trigger.dtype):
        trigger = jax.random.key_data(trigger)
    if _compat.is_extended(x.dtype):
        held = _wait(jax.random.key_data(x), trigger, mesh)
        return jax.random.wrap_key_data(held, impl=jax.random.key_impl(x))
    first = lax.slice(trigger, (0,) * trigger.ndim, (1,) * trigger.ndim).reshape(())
    never = (block_index(tuple(mesh), mesh) < 0) & (first == np.ones((), first.dtype))
    return jnp.where(never, jnp.zeros((), x.dtype), x)


def _pad(x: Any, dim: int, size: int) -> Any:
    """`x` with zeros behind, `size` long in `dim`."""
    if x.shape[dim] == size:
        return x
    widths = [(0, size - x.shape[d], 0) if d == dim else (0, 0, 0) for d in range(x.ndim)]
    return lax.pad(x, np.zeros((), x.dtype), widths)


def _cut_off(x: Any, dim: int, size: int) -> Any:
    return x if x.shape[dim] == size else lax.slice_in_dim(x, 0, size, axis=dim)


def _all_reduce(op: Move, x: Any, mesh: Mapping[str, int]) -> Any:
    del mesh
    if op.monoid == "sum":
        return lax.psum(x, op.axes)
    if op.monoid in ("max", "or"):
        return _as_integer(lax.pmax, x, op.axes)
    if op.monoid in ("min", "and"):
        return _as_integer(lax.pmin, x, op.axes)
    return jnp.prod(lax.all_gather(x, op.axes), axis=0, dtype=x.dtype)


def _as_integer(reduce: Callable, x: Any, axes: tuple[str, ...]) -> Any:
    return reduce(x.astype(jnp.int8), axes).astype(bool) if x.dtype == jnp.bool_ else reduce(x, axes)


def _all_gather(op: Move, x: Any, mesh: Mapping[str, int]) -> Any:
    del mesh
    full = lax.all_gather(x, op.axes, axis=op.dim, tiled=True)
    return _cut_off(full, op.dim, op.outputs[0].shape[op.dim])


def _reduce_scatter(op: Move, x: Any, mesh: Mapping[str, int]) -> Any:
    parts = math.prod(mesh[a] for a in op.axes)
    x = _pad(x, op.dim, op.outputs[0].shape[op.dim] * parts)
    return lax.psum_scatter(x, op.axes, scatter_dimension=op.dim, tiled=True)


def _all_to_all(op: Move, x: Any, mesh: Mapping[str, int]) -> Any:
    parts = math.prod(mesh[a] for a in op.axes)
    x = _pad(x, op.dim, op.outputs[0].shape[op.dim] * parts)
    x = lax.all_to_all(x, op.axes, split_axis=op.dim, concat_axis=op.other_dim, tiled=True)
    return _cut_off(x, op.other_dim, op.outputs[0].shape[op.other_dim])


def _slice(op: Move, x: Any, mesh: Mapping[str, int]) -> Any:
    block = op.outputs[0].shape[op.dim]
    x = _pad(x, op.dim, block * math.prod(mesh[a] for a in op.axes))
    return lax.dynamic_slice_in_dim(x, block_index(op.axes, mesh) * block, block, axis=op.dim)


def _expand(op: Move, x: Any, mesh: Mapping[str, int]) -> Any:
    """This device's block at its place between zeros."""
    block, full = x.shape[op.dim], op.outputs[0].shape[op.dim]
    shape = [block * math.prod(mesh[a] for a in op.axes) if d == op.dim else n for d, n in enumerate(x.shape)]
    among = lax.dynamic_update_slice_in_dim(jnp.zeros(shape, x.dtype), x, block_index(op.axes, mesh) * block, op.dim)
    return _cut_off(among, op.dim, full)


def _permute(op: Move, x: Any, mesh: Mapping[str, int]) -> Any:
    """The same blocks under another order of the axes: device (i, j) holds block i·J+j and wants block j·I+i."""
    before, after = op.inputs[0].placement.dims[op.dim], op.outputs[0].placement.dims[op.dim]
    pairs = []
    for device, place in enumerate(np.ndindex(*(mesh[a] for a in op.axes))):
        at = dict(zip(op.axes, place, strict=True))
        block = 0
        for axis in before:
            block = block * mesh[axis] + at[axis]
        holder = {}
        for axis in reversed(after):
            block, holder[axis] = divmod(block, mesh[axis])
        target = 0
        for axis in op.axes:
            target = target * mesh[axis] + holder[axis]
        pairs.append((device, target))
    return lax.ppermute(x, op.axes, pairs)


def _mask(op: Move, x: Any, mesh: Mapping[str, int]) -> Any:
    return jnp.where(block_index(op.axes, mesh) == 0, x, jnp.zeros((), x.dtype))


MOVES: dict[str, Callable[[Move, Any, Mapping[str, int]], Any]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "slice": _slice,
    "expand": _expand,
    "permute": _permute,
    "mask": _mask,
    "relabel": lambda op, x, mesh: x,
}


def _control(op: Control, inputs: list[Any], mesh: Mapping[str, int]) -> list[Any]:
    return {"scan": _scan, "while": _while, "cond": _cond}[op.equation.name](op, inputs, mesh)


def _scan(op: Control, inputs: list[Any], mesh: Mapping[str, int]) -> list[Any]:
    params = op.equation.params
    nc, nk = params["num_consts"], params["num_carry"]
    consts = inputs[:nc]

    def turn(carry: list[Any], xs: list[Any]) -> tuple[list[Any], list[Any]]:
        out = run_block(op.bodies[0], [*consts, *carry, *xs], mesh)
        return _typed(out[:nk], carry), out[nk:]

    carry, ys = lax.scan(
        turn,
        inputs[nc : nc + nk],
        inputs[nc + nk :],
        length=params["length"],
        reverse=params["reverse"],
        unroll=params["unroll"],
    )
    return [*carry, *ys]


def _typed(values: list[Any], like: list[Any]) -> list[Any]:
    """Carries as arrays of their own dtype (a body may return a literal)."""
    return [
        jnp.asarray(v, x.dtype) if not _compat.is_extended(x.dtype) else v for v, x in zip(values, like, strict=True)
    ]


def _while(op: Control, inputs: list[Any], mesh: Mapping[str, int]) -> list[Any]:
    params = op.equation.params
    nc, nb = params["cond_nconsts"], params["body_nconsts"]
    cond, body, start = inputs[:nc], inputs[nc : nc + nb], inputs[nc + nb :]
    return list(
        lax.while_loop(
            lambda carry: run_block(op.bodies[0], [*cond, *carry], mesh)[0],
            lambda carry: _typed(run_block(op.bodies[1], [*body, *carry], mesh), carry),
            list(start),
        )
    )


def _cond(op: Control, inputs: list[Any], mesh: Mapping[str, int]) -> list[Any]:
    def branch(body: DeviceBlock) -> Callable:
        like = [jax.ShapeDtypeStruct(s.shape, s.aval.dtype) for s in op.outputs]
        return lambda *operands: _typed(run_block(body, operands, mesh), like)

    return list(lax.switch(jnp.asarray(inputs[0], jnp.int32), [branch(b) for b in op.bodies], *inputs[1:]))


_RUN: dict[type, Callable[[Any, list[Any], Mapping[str, int]], list[Any]]] = {
    Compute: _compute,
    Move: _move,
    Constant: _constant,
    Control: _control,
}
