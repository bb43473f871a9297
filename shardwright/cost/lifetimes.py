"""From when to when the values of a per-device program are held, and which take the place of others.

A value is held from the operation that computes it to its last reader; what fusion never stores is not held. A result
of a fusion takes the place of an operand that it is the last to read. A loop's carries start in the place of the values
that it starts from.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from shardwright.cost.storage import is_fused
from shardwright.partition.device import Compute, Control, DeviceBlock, Move, Op, Slot
from shardwright.program.ir import Literal


def lifetimes(
    block: DeviceBlock, kept: Collection[Slot], ignore: set[Slot], scan: Mapping[str, Any] | None = None
) -> tuple[dict[Slot, int], dict[Slot, int]]:
    """For each value that `block` holds in memory the operation that computes it, and the last that it is held for.

    `kept`: the values that are stored (`cost.storage`); `ignore`: those that lie in memory of others; `scan`: the
    parameters of the scan of which `block` is the body.
    """
    last: dict[Slot, int] = {}
    birth: dict[Slot, int] = {}
    for i, op in enumerate(block.ops):
        birth.update((s, i) for s in op.outputs)
        last.update((x, i) for x in op.inputs if isinstance(x, Slot))
    _extend_through_fusions(block, kept, last)
    _hand_over(block, last)
    born = {s: i for s, i in birth.items() if s in kept and s not in ignore and not _is_renamed(block.ops[i])}
    if scan is None:
        last.update((x, len(block.ops)) for x in block.outputs if isinstance(x, Slot))
    else:
        _turn(block, scan, born, last)
    return born, {s: max(last.get(s, i), i) for s, i in born.items()}


def _is_renamed(op: Op) -> bool:
    return isinstance(op, Move) and op.kind in ("relabel", "barrier")


def _extend_through_fusions(block: DeviceBlock, kept: Collection[Slot], last: dict[Slot, int]) -> None:
    """A stored value that an unstored one is computed from lives until that one's last reader."""
    for op in reversed(block.ops):
        for out in op.outputs:
            if out in kept or out not in last:
                continue
            for x in op.inputs:
                if isinstance(x, Slot):
                    last[x] = max(last.get(x, -1), last[out])


def _hand_over(block: DeviceBlock, last: dict[Slot, int]) -> None:
    """A loop's results take the place of the values that it starts from, where these are not read again."""
    for i, op in enumerate(block.ops):
        if isinstance(op, Control):
            last.update((x, i - 1) for x in _started_from(op) if isinstance(x, Slot) and last.get(x) == i)


def _started_from(loop: Control) -> tuple[Slot | Literal, ...]:
    """A loop's first carries; none of a branch."""
    name, params = loop.equation.name, loop.equation.params
    if name == "scan":
        return loop.inputs[params["num_consts"] : params["num_consts"] + params["num_carry"]]
    return loop.inputs[params["cond_nconsts"] + params["body_nconsts"] :] if name == "while" else ()


def _turn(block: DeviceBlock, scan: Mapping[str, Any], born: dict[Slot, int], last: dict[Slot, int]) -> None:
    """A scan's turn: what it stacks is written to its place once it is computed, and freed after its last reader here.

    A slice that no fusion reads in place is a copy. A carry takes its predecessor's place. Where the predecessor may
    still be read when it does, because a reader does not stand before it, the predecessor is copied first.
    """
    carries, slices = scan["num_consts"], scan["num_consts"] + scan["num_carry"]
    readers: dict[Slot, list[int]] = {}
    for i, op in enumerate(block.ops):
        for x in op.inputs:
            if isinstance(x, Slot):
                readers.setdefault(x, []).append(i)
    makers = {s: i for i, op in enumerate(block.ops) for s in op.outputs}
    for before, after in zip(block.inputs[carries:slices], block.outputs, strict=False):
        if isinstance(after, Slot) and after in makers:
            born.pop(after, None)
            if not set(readers.get(before, ())) <= _upstream(block, makers, makers[after]):
                born[before] = 0
    for x in block.inputs[slices:]:
        if any(not is_fused(block.ops[i]) for i in readers.get(x, ())):
            born[x] = readers[x][0]


def _upstream(block: DeviceBlock, makers: Mapping[Slot, int], op: int) -> set[int]:
    """The operations that must have run for `op` to run, and itself."""
    found, open_ = {op}, [op]
    while open_:
        for x in block.ops[open_.pop()].inputs:
            if isinstance(x, Slot) and x in makers and makers[x] not in found:
                found.add(makers[x])
                open_.append(makers[x])
    return found


def reuses(block: DeviceBlock, born: Mapping[Slot, int], last: Mapping[Slot, int]) -> Iterator[tuple[Slot, Slot]]:
    """Results of fusions, each with an operand of its shape, read for the last time, whose place it takes."""
    dying: dict[int, list[Slot]] = {}
    for x in born:
        dying.setdefault(last[x], []).append(x)
    for i, op in enumerate(block.ops):
        if isinstance(op, Compute) and is_fused(op):
            able = [x for x in dying.get(i, ()) if born[x] < i]
            for s in op.outputs:
                like = [x for x in able if x.shape == s.shape and x.bytes == s.bytes]
                if s in born and like:
                    able.remove(like[0])
                    yield s, like[0]


def hold_together(block: DeviceBlock, leaders: Mapping[Op, Op], born: dict[Slot, int], last: dict[Slot, int]) -> None:
    """Collectives that are one (`cost.order`) hold all that they read and write at one time."""
    turns = {op: i for i, op in enumerate(block.ops) if op in leaders}
    ends = {leaders[op]: i for op, i in turns.items()}
    for op in turns:
        born.update((s, turns[leaders[op]]) for s in op.outputs if s in born)
        last.update((x, max(last[x], ends[leaders[op]])) for x in op.inputs if isinstance(x, Slot) and x in last)
