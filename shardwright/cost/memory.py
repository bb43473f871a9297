"""Memory of one device over one step, from the lifetimes of a per-device program's values.

Arguments lie in memory throughout; a donated argument's buffer takes the result that replaces it. A value is held from
the operation that computes it to its last reader; what fusion never stores is not held. A loop holds its stacked
results and carries while it runs, and its body's own peak on top.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from shardwright.cost.storage import stored
from shardwright.partition.device import Control, DeviceBlock, DeviceProgram, Move, Slot
from shardwright.program.ir import Program, Role


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes on one device. `by_role`: state and inputs by their role; what the step itself holds at its peak."""

    peak_bytes: int
    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temp_bytes: int
    by_role: Mapping[str, int]


def memory_of(program: Program, device: DeviceProgram) -> Memory:
    """The peak of one device."""
    block = device.block
    by_role = {r.value: 0 for r in (Role.PARAMETER, Role.OPTIMIZER, Role.BATCH)}
    arguments = 0
    for leaf, slot in zip(program.inputs, block.inputs, strict=True):
        arguments += slot.bytes
        by_role[leaf.role.value] = by_role.get(leaf.role.value, 0) + slot.bytes
    outputs = alias = 0
    reused: set[Slot] = set()
    for out, i in zip(block.outputs, program.carried, strict=True):
        size = out.bytes if isinstance(out, Slot) else out.aval.bytes
        outputs += size
        if i is not None and program.inputs[i].donated:
            alias += size
            if isinstance(out, Slot):
                reused.add(out)
    fresh = {s for s in block.outputs if isinstance(s, Slot)} - reused
    temp = peak_of(block, ignore=reused | fresh)
    by_role["result"] = outputs - alias
    by_role["temporary"] = temp
    return Memory(arguments + outputs - alias + temp, arguments, outputs, alias, temp, by_role)


def peak_of(block: DeviceBlock, ignore: set[Slot]) -> int:
    """Largest sum of the bytes held at one time by `block`'s own values; its inputs and `ignore` belong to others."""
    kept = stored(block)
    last: dict[Slot, int] = {}
    for i, op in enumerate(block.ops):
        for x in op.inputs:
            if isinstance(x, Slot):
                last[x] = i
    end = len(block.ops)
    for x in block.outputs:
        if isinstance(x, Slot):
            last[x] = end
    _extend_through_fusions(block, kept, last)
    owned = {s for op in block.ops for s in op.outputs if s in kept and s not in ignore and not _in_place(op)}
    freed: dict[int, int] = {}
    for s in owned:
        freed[last.get(s, -1)] = freed.get(last.get(s, -1), 0) + s.bytes
    live = peak = 0
    for i, op in enumerate(block.ops):
        born = sum(s.bytes for s in op.outputs if s in owned)
        if isinstance(op, Control):
            inner = max((peak_of(b, ignore=set()) for b in op.bodies), default=0)
            peak = max(peak, live + born + inner)
        live += born
        peak = max(peak, live)
        live -= sum(s.bytes for s in op.outputs if s in owned and s not in last)
        live -= freed.get(i, 0)
    return peak


def _in_place(op: object) -> bool:
    return isinstance(op, Move) and op.kind in ("relabel", "barrier")


def _extend_through_fusions(block: DeviceBlock, kept: set[Slot], last: dict[Slot, int]) -> None:
    """A stored value that an unstored one is computed from lives until that one's last reader."""
    for op in reversed(block.ops):
        for out in op.outputs:
            if out in kept or out not in last:
                continue
            for x in op.inputs:
                if isinstance(x, Slot):
                    last[x] = max(last.get(x, -1), last[out])
