"""What a back end without optimization barriers makes of a per-device program: equal operations run once.

XLA's CPU back end drops barriers before it merges common subexpressions, so in unrolled code it computes once what
`jax.checkpoint` asks to compute again, and gathers once what the plan gathers twice. For such a back end the program is
merged here, so that what is priced is what runs. Reductions stay apart: when the barriers go, each has been combined
with others into one of many operands. A loop's body is a program of its own and keeps its recomputation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable

from shardwright import _compat
from shardwright.partition.device import Compute, Control, DeviceBlock, DeviceProgram, Move, Op, Slot, walk
from shardwright.program.ir import Literal


def merge_repeats(program: DeviceProgram) -> DeviceProgram:
    """`program` without barriers and without operations that repeat an earlier one; itself if it has no barrier."""
    if not any(_is_barrier(op) for op, _ in walk(program.block)):
        return program
    return dataclasses.replace(program, block=_merge(program.block))


def _merge(block: DeviceBlock) -> DeviceBlock:
    same: dict[Slot, Slot] = {}
    seen: dict[Hashable, Op] = {}
    ops: list[Op] = []
    for op in block.ops:
        inputs = tuple(same.get(x, x) if isinstance(x, Slot) else x for x in op.inputs)
        if _is_barrier(op):
            same.update((out, x) for out, x in zip(op.outputs, inputs, strict=False) if isinstance(x, Slot))
            continue
        op = dataclasses.replace(op, inputs=inputs)  # type: ignore[arg-type]  # of the same kinds as before
        if isinstance(op, Control):
            op = dataclasses.replace(op, bodies=tuple(_merge(b) for b in op.bodies))
        key = _key(op)
        earlier = seen.setdefault(key, op) if key is not None else op
        if earlier is op:
            ops.append(op)
        else:
            same.update(zip(op.outputs, earlier.outputs, strict=True))
    return DeviceBlock(
        block.inputs, tuple(ops), tuple(same.get(x, x) if isinstance(x, Slot) else x for x in block.outputs)
    )


def _is_barrier(op: Op) -> bool:
    if isinstance(op, Compute):
        return op.equation.name == "optimization_barrier"
    return isinstance(op, Move) and op.kind == "barrier"


def _key(op: Op) -> Hashable | None:
    """Equal for operations that compute the same; None for those that are never merged."""
    inputs = tuple(_value(x) for x in op.inputs)
    if isinstance(op, Move) and op.kind in ("all_reduce", "reduce_scatter"):
        return None
    if isinstance(op, Move):
        return (op.kind, op.axes, op.dim, op.other_dim, op.monoid, inputs, op.outputs[0].placement)
    if isinstance(op, Compute) and not _compat.has_effects(op.equation.primitive, op.equation.params):
        return (op.equation.name, repr(sorted(op.equation.params.items(), key=lambda kv: kv[0])), inputs, op.cut)
    return None


def _value(x: Slot | Literal) -> Hashable:
    return id(x) if isinstance(x, Slot) else (str(x.aval.dtype), x.aval.shape, repr(x.value))
