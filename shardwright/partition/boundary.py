"""Leaves that a pin lays across the units of a dim's class.

Inside the step a dim is cut in whole units of its class (a head and not a part of it), padded to a multiple of what
cuts it. A leaf between steps is never padded, and a user may pin it, or hand it over, cut finer than that: 4 heads of
16 over 8 devices. Such a dim is made whole when the step begins, and cut again when it ends.
"""

from __future__ import annotations

from shardwright.partition.context import Context, device_shape, padded_shape
from shardwright.partition.device import Move, Slot
from shardwright.partition.routes import route
from shardwright.plan.placement import Placement, local_shape
from shardwright.program.ir import Atom, Source, Var


def inside(context: Context, a: Atom, rest: Placement) -> Placement:
    """Where a leaf that lies at `rest` between steps lies inside the step: the same, but whole in such dims."""
    if not isinstance(a, Var):
        return rest
    padded = padded_shape(context, a)
    return Placement(
        tuple(axes if padded[dim] == a.aval.shape[dim] else () for dim, axes in enumerate(rest.dims)), rest.partial
    )


def rest_slot(context: Context, v: Var, rest: Placement) -> Slot:
    """A leaf as it lies between steps."""
    if inside(context, v, rest) == rest:
        return Slot(v.aval, rest, device_shape(context, v, rest))
    return Slot(v.aval, rest, local_shape(v.aval.shape, v.aval.shape, rest, context.mesh))


def cross(context: Context, slot: Slot, target: Placement, source: Source) -> tuple[list[Move], Slot]:
    """The moves of a leaf from one side of the step's boundary to the other: none where both are the same."""
    shape, moves = slot.aval.shape, []
    _, steps = route(shape, shape, slot.aval.itemsize, slot.placement, target, context.mesh_items)
    for s in steps:
        result = Slot(slot.aval, s.target, local_shape(shape, shape, s.target, context.mesh))
        moves.append(Move(s.kind, (slot,), (result,), s.axes, source, s.dim, s.other_dim, s.monoid, "pin"))
        slot = result
    return moves, slot
