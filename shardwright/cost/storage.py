"""Which values of a per-device program are stored in memory, and which exist only inside their consumer's fusion."""

from __future__ import annotations

from shardwright.partition.device import Compute, DeviceBlock, Move, Op, Slot


def stored(block: DeviceBlock) -> set[Slot]:
    """The slots of `block` that get a buffer of their own.

    A fused operation's result is computed inside its consumer if there is one consumer and that one is fused too, or a
    move that is local. A slice or relabel of a stored value is read in place.
    """
    readers: dict[Slot, list] = {}
    for op in block.ops:
        for x in op.inputs:
            if isinstance(x, Slot):
                readers.setdefault(x, []).append(op)
    kept = {s for s in block.outputs if isinstance(s, Slot)}
    for op in block.ops:
        for slot in op.outputs:
            uses = readers.get(slot, [])
            if (
                not _fusible(op)
                or (len(uses) > 1 and slot.bytes > 4 * _input_bytes(op))
                or any(not _fusible(u) for u in uses)
            ):
                kept.add(slot)
    return kept


def _input_bytes(op: Op) -> int:
    return sum(x.bytes for x in op.inputs if isinstance(x, Slot))


def _fusible(op: Op) -> bool:
    if isinstance(op, Compute):
        return op.row is not None and op.row.fused
    return isinstance(op, Move) and op.kind in ("slice", "relabel", "mask", "barrier")
