"""Collectives in turn: what XLA's CPU runtime must be told, or it mixes up the messages of two collectives.

The runtime starts operations as soon as what they read is there, several at a time. Collectives it starts one after the
other, in the order of its schedule, and each holds its thread until all devices have met. But a loop that has
collectives in its body counts as started, not as ended, when the next one starts: the two then run at the same time,
and since all collectives of a program share one channel, a device may join the other's meeting (xla's
`ThunkExecutor`, where a communicator makes an edge of kind `kScheduling`; jax 0.10 and 0.12). The result is wrong
numbers or a corrupted heap.

So a loop or branch that communicates, and whatever else communicates in the same block, must not be independent. Where
nothing that they read makes one wait for the other, a `wait` does: an optimization barrier would not, for the CPU back
end drops it before it schedules.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from shardwright import _compat
from shardwright.partition.device import COLLECTIVES, Control, DeviceBlock, DeviceProgram, Move, Op, Slot


def in_turn(program: DeviceProgram) -> DeviceProgram:
    """`program` with waits between what must not run at the same time; itself if it needs none."""
    block = _block(program.block)
    return program if block is program.block else dataclasses.replace(program, block=block)


def _communicates(op: Op) -> bool:
    if isinstance(op, Control):
        return any(_communicates(inner) for body in op.bodies for inner in body.ops)
    return isinstance(op, Move) and op.kind in COLLECTIVES


def _block(block: DeviceBlock) -> DeviceBlock:
    if not any(isinstance(op, Control) and _communicates(op) for op in block.ops):
        return block
    behind: dict[Slot, frozenset[Op]] = {}  # of each value the communicating operations that it waits for
    before: dict[Op, frozenset[Op]] = {}  # of each communicating operation likewise, and itself
    ops: list[Op] = []
    for op in _reductions_first(block.ops):
        upstream = frozenset[Op]().union(*(behind.get(x, ()) for x in op.inputs if isinstance(x, Slot)))
        if isinstance(op, Control):
            op = dataclasses.replace(op, bodies=tuple(_block(body) for body in op.bodies))
        if _communicates(op):
            for other in reversed(before):
                if other not in upstream and (isinstance(op, Control) or isinstance(other, Control)):
                    op = _after(op, other, ops)
                    upstream |= before[other]
            upstream |= {op}
            before[op] = upstream
        behind.update((s, upstream) for s in op.outputs)
        ops.append(op)
    return DeviceBlock(block.inputs, tuple(ops), block.outputs)


def _reductions_first(ops: Sequence[Op]) -> list[Op]:
    """`ops` with each reduction, and what it reads, before the first loop that communicates and that it can precede.

    It leaves no more behind than it takes, so it need not wait.
    """
    made = {s: op for op in ops for s in op.outputs}
    order: list[Op] = []
    placed: set[Op] = set()

    def place(op: Op) -> None:
        pending = [op]
        while pending:
            last = pending[-1]
            missing = [made[x] for x in last.inputs if isinstance(x, Slot) and x in made and made[x] not in placed]
            if missing:
                pending.extend(missing)
            elif pending.pop() not in placed:
                placed.add(last)
                order.append(last)

    behind: dict[Slot, frozenset[Op]] = {}
    loops: dict[Op, list[Op]] = {}
    for op in ops:
        upstream = frozenset[Op]().union(*(behind.get(x, ()) for x in op.inputs if isinstance(x, Slot)))
        if isinstance(op, Control) and _communicates(op):
            loops[op] = []
            upstream |= {op}
        elif isinstance(op, Move) and op.kind in ("all_reduce", "reduce_scatter"):
            first = next((loop for loop in loops if loop not in upstream), None)
            if first is not None:
                loops[first].append(op)
        behind.update((s, upstream) for s in op.outputs)
    for op in ops:
        for reduction in loops.get(op, ()):
            place(reduction)
        place(op)
    return order


def _after(op: Op, other: Op, ops: list[Op]) -> Op:
    """`op`, of which the smallest operand waits for `other`."""
    trigger = _smallest(_results(other))
    x = _smallest([x for x in op.inputs if isinstance(x, Slot)])
    position = op.inputs.index(x)
    held = Slot(x.aval, x.placement, x.shape)
    ops.append(Move("wait", (x, trigger), (held,), (), op.source, why="what must not run at the same time"))
    return dataclasses.replace(op, inputs=(*op.inputs[:position], held, *op.inputs[position + 1 :]))  # type: ignore[arg-type]


def _results(op: Op) -> tuple[Slot, ...]:
    """Results that are there only when `op` has ended: not what a loop, or every branch, passes through."""
    if not isinstance(op, Control):
        return op.outputs
    made = []
    bodies = op.bodies[1:] if op.equation.name == "while" else op.bodies
    for i, slot in enumerate(op.outputs):
        ends = ((body.outputs[i], body.inputs) for body in bodies)
        if any(isinstance(end, Slot) and end not in inputs for end, inputs in ends):
            made.append(slot)
    return tuple(made)


def _smallest(slots: Sequence[Slot]) -> Slot:
    """The value that is least to copy; keys last."""
    return min((s for s in slots if s.bytes), key=lambda s: (_compat.is_extended(s.aval.dtype), s.bytes))
