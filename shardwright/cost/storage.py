"""Which values of a per-device program are stored in memory, and which exist only inside their consumer's fusion."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import ml_dtypes
import numpy as np

from shardwright.partition.device import Compute, DeviceBlock, Move, Op, Slot
from shardwright.program.ir import Aval

_WIDENED_ON_CPU = {np.dtype(ml_dtypes.bfloat16): 4} | {
    np.dtype(getattr(ml_dtypes, name)): 2 for name in dir(ml_dtypes) if name.startswith("float8")
}


@functools.lru_cache(maxsize=8)
def stored(block: DeviceBlock) -> frozenset[Slot]:
    """The slots of `block` that get a buffer of their own.

    A fused operation's result is computed inside its consumer if there is one consumer and that one is fused too, or a
    move that is local. A slice or relabel of a stored value is read in place.
    """
    kept = {s for s in block.outputs if isinstance(s, Slot)}
    readers: dict[Slot, int] = {}
    turned = _read_both_ways(block)
    for op in block.ops:
        slots = [x for x in op.inputs if isinstance(x, Slot)]
        if not is_fused(op):
            kept.update(set(slots) - turned)
            kept.update(op.outputs)
        for x in slots:
            readers[x] = readers.get(x, 0) + 1
    for op in block.ops:
        for slot in op.outputs:
            if readers.get(slot, 0) > 1 and slot not in kept and slot.bytes > 4 * _input_bytes(op):
                kept.add(slot)
    return frozenset(kept.difference(block.inputs))


def _read_both_ways(block: DeviceBlock) -> set[Slot]:
    """What products alone read, one along several first dims and one along its last: computed for each as it wants it.

    Contracted dims are made one, behind the others; a single one may stand first.
    """
    products = [op for op in block.ops if isinstance(op, Compute) and op.equation.name == "dot_general"]
    ways: dict[Slot, set[bool]] = {}
    for op in products:
        for i, x in enumerate(op.inputs):
            if isinstance(x, Slot):
                ways.setdefault(x, set()).add(_along_first(op, i, x))
    both = {x for x, found in ways.items() if len(found) == 2}
    if both:
        others = set(block.ops).difference(products)
        both.difference_update(*(op.inputs for op in others))
    return both


def _along_first(op: Compute, position: int, x: Slot) -> bool:
    contracted, batch = (sides[position] for sides in op.equation.params["dimension_numbers"])
    order = [d for d, n in enumerate(x.shape) if n > 1 and d not in batch]
    c = [d for d in contracted if x.shape[d] > 1]
    return len(c) > 1 and c == order[: len(c)]


def _input_bytes(op: Op) -> int:
    return sum(x.bytes for x in op.inputs if isinstance(x, Slot))


def is_fused(op: Op) -> bool:
    """Whether `op` can be computed inside the fusion of its reader, and read there what it reads."""
    if isinstance(op, Compute):
        return op.row is not None and op.row.fused
    return isinstance(op, Move) and op.kind in ("slice", "relabel", "mask", "barrier", "wait", "expand")


def itemsize_on(platform: str, aval: Aval) -> int:
    """Bytes of an element as it is computed and sent.

    XLA's CPU back end turns bfloat16 into float32 and narrower floats into float16.
    """
    return _WIDENED_ON_CPU.get(aval.dtype, aval.itemsize) if platform == "cpu" else aval.itemsize


def held_bytes(slot: Slot, platform: str) -> int:
    """Bytes of one device's part of a value that the step itself computes."""
    return slot.bytes // slot.aval.itemsize * itemsize_on(platform, slot.aval)


def workspace_bytes(op: Op) -> int:
    """Bytes of the copies that `op` makes while it runs.

    A collective gathers and scatters along the major dim; a matrix product wants batch dims first, then contracted ones
    together at either end. What lies otherwise is copied.
    """
    if isinstance(op, Move) and op.kind in ("all_gather", "reduce_scatter"):
        whole = op.outputs[0] if op.kind == "all_gather" else op.inputs[0]
        return whole.bytes if math.prod(whole.shape[: op.dim]) > 1 else 0
    if isinstance(op, Compute) and op.equation.name == "dot_general":
        contracted, batch = op.equation.params["dimension_numbers"]
        sides = zip(op.inputs, contracted, batch, strict=True)
        return sum(x.bytes for x, c, b in sides if isinstance(x, Slot) and not _is_matrix(x.shape, c, b))
    return 0


def _is_matrix(shape: tuple[int, ...], contracted: Sequence[int], batch: Sequence[int]) -> bool:
    """Whether an operand is read as a stack of matrices as it lies; dims of size 1 lie anywhere."""
    order = [d for d, n in enumerate(shape) if n > 1]
    b, c = [d for d in batch if shape[d] > 1], [d for d in contracted if shape[d] > 1]
    rest = order[len(b) :]
    return order[: len(b)] == b and c in (rest[: len(c)], rest[len(rest) - len(c) :])
