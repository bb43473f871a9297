"""Memory of one device over one step: the most that the values of a per-device program take at one time.

Arguments lie in memory throughout; a donated argument's buffer takes the result that replaces it. A loop holds its
stacked results and carries while it runs, and its body's own peak on top. What is held when: `cost.lifetimes`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from shardwright.cost.lifetimes import hold_together, lifetimes, reuses
from shardwright.cost.order import COMBINED, combined, depth_first
from shardwright.cost.storage import held_bytes, stored, workspace_bytes
from shardwright.partition.device import Control, DeviceBlock, DeviceProgram, Op, Slot
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


def memory_of(program: Program, device: DeviceProgram, platform: str) -> Memory:
    """The peak of one device of a platform: "cpu", "gpu" or "tpu"."""
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
    temp = peak_of(block, reused | fresh, platform)
    by_role["result"] = outputs - alias
    by_role["temporary"] = temp
    return Memory(arguments + outputs - alias + temp, arguments, outputs, alias, temp, by_role)


def peak_of(block: DeviceBlock, ignore: set[Slot], platform: str, scan: Mapping[str, Any] | None = None) -> int:
    """Largest sum of the bytes held at one time by `block`'s own values; its inputs and `ignore` belong to others.

    `scan`: the parameters of the scan of which `block` is the body.
    """
    kept = stored(block)
    leaders = combined(block, platform)
    block = depth_first(block, kept, leaders) if platform in COMBINED else block
    born, last = lifetimes(block, kept, ignore, scan)
    hold_together(block, leaders, born, last)
    steps = [0] * (len(block.ops) + 1)  # what is taken when an operation starts, less what the one before has freed
    for s, i in born.items():
        steps[i] += held_bytes(s, platform)
        steps[min(last[s] + 1, len(block.ops))] -= held_bytes(s, platform)
    for s, x in reuses(block, born, last):
        steps[born[s]] -= held_bytes(s, platform)
        steps[born[s] + 1] += held_bytes(x, platform)
    live = peak = 0
    for i, op in enumerate(block.ops):
        live += steps[i]
        inner = max((peak_of(b, set(), platform, own) for b, own in bodies(op)), default=workspace_bytes(op))
        peak = max(peak, live + inner)
    return peak


def bodies(op: Op) -> Iterator[tuple[DeviceBlock, Mapping[str, Any] | None]]:
    """The blocks of a loop or branch, each with the scan that it is the body of."""
    if isinstance(op, Control):
        for block in op.bodies:
            yield block, op.equation.params if op.equation.name == "scan" else None
