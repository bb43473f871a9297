"""Loops and branches: what goes in, what is carried, what comes out.

What a loop reads (constants, scanned inputs) keeps its placement and is moved inside, turn by turn: weights are
gathered in the body, forward and backward. A constant that every reader in the body wants in one placement is moved
once, before the loop. A carry lies by its classes; an accumulator may stay a pending sum until the loop has ended. A
stacked result lies as its classes say; where they say nothing it may leave pending.
"""

from __future__ import annotations

from collections.abc import Callable

from shardwright.partition.builder import Builder
from shardwright.partition.context import device_shape, natural
from shardwright.partition.cuts import is_zero, placed
from shardwright.partition.device import Control, DeviceBlock, Move, Slot
from shardwright.plan.placement import Placement, whole, with_partial, without_partial
from shardwright.program.ir import Atom, Equation, Literal, Var

LowerBlock = Callable[..., DeviceBlock]


def lower(b: Builder, eqn: Equation, lower_block: LowerBlock) -> None:
    """Appends `eqn`, a scan, while or cond, to the builder's block."""
    {"scan": _scan, "while": _while, "cond": _cond}[eqn.name](b, eqn, lower_block)


def _inner_slot(b: Builder, v: Var, placement: Placement) -> Slot:
    return Slot(v.aval, placement, device_shape(b.context, v, placement))


def _as_it_lies(b: Builder, a: Atom, eqn: Equation) -> Slot:
    """`a` where it was computed, but nothing pending."""
    slot = b.primary(a)
    if not slot.placement.partial:
        return slot
    resolved = without_partial(slot.placement)
    if isinstance(a, Var):
        by_class = natural(b.context, a)
        if not any(set(x) - set(y) for x, y in zip(slot.placement.dims, by_class.dims, strict=True)):
            resolved = by_class
    return b.get(a, resolved, eqn.source, eqn.name)


def _hoisted(b: Builder, a: Atom, v: Var, eqn: Equation) -> Slot:
    """A loop's constant, where its readers want it if they all want the same."""
    slot = _as_it_lies(b, a, eqn)
    wanted = set()
    for reader, position in b.context.classes.readers.get(v, []):
        if reader is None or reader not in b.cuts.factors:
            return slot
        dims = b.context.classes.facts[reader].factors.operands[position]
        wanted.add(placed(dims, b.cuts.axes[reader]))
    if len(wanted) == 1 and isinstance(a, Var):
        return b.get(a, wanted.pop(), eqn.source, eqn.name)
    return slot


def _scan(b: Builder, eqn: Equation, lower_block: LowerBlock) -> None:
    (body,), consts, carry = eqn.blocks, eqn.params["num_consts"], eqn.params["num_carry"]
    inputs: list[Slot] = []
    inner: list[Slot] = []
    carried: list[Placement] = []
    for i, (a, v) in enumerate(zip(eqn.invars, body.invars, strict=True)):
        if i < consts:
            inputs.append(_hoisted(b, a, v, eqn))
            inner.append(_inner_slot(b, v, inputs[-1].placement))
        elif i < consts + carry:
            place = natural(b.context, v)
            pending = b.cuts.accumulators[eqn][i - consts] - place.axes
            for axis in sorted(pending):
                place = with_partial(place, axis, "sum")
            carried.append(place)
            inputs.append(_start(b, a, place, eqn))
            inner.append(_inner_slot(b, v, place))
        else:
            slot = _as_it_lies(b, a, eqn)
            place = Placement(((), *slot.placement.dims[1:]))
            inputs.append(b.get(a, place, eqn.source, eqn.name) if isinstance(a, Var) else slot)
            inner.append(_inner_slot(b, v, Placement(place.dims[1:])))
    stacked = [natural(b.context, a) if isinstance(a, Var) else whole(a.aval.ndim) for a in body.outvars[carry:]]
    stay = frozenset(range(carry, len(body.outvars)))
    turns = max(int(eqn.params["length"]), 1)
    lowered = lower_block(b.context, b.cuts, body, tuple(inner), [*carried, *stacked], stay, b.fallbacks, turns)
    outputs = []
    for i, (v, result) in enumerate(zip(eqn.outvars, lowered.outputs, strict=True)):
        assert isinstance(result, Slot), "a block's results are slots"
        place = result.placement
        outputs.append(b.slot(v, place if i < carry else Placement(((), *place.dims), place.partial)))
    _append(b, eqn, inputs, outputs, (lowered,))


def _start(b: Builder, a: Atom, place: Placement, eqn: Equation) -> Slot:
    """A carry's first value. In a pending sum it must count once: zero is as it is, else one device keeps it."""
    slot = b.primary(a)
    fresh = tuple(axis for axis, _ in place.partial if not slot.placement.pending(axis))
    settled = Placement(place.dims, tuple(p for p in place.partial if p[0] not in fresh))
    slot = b.get(a, settled, eqn.source, eqn.name)
    if not fresh:
        return slot
    target = Slot(slot.aval, place, slot.shape)
    b.ops.append(Move("relabel" if is_zero(b.cuts, a) else "mask", (slot,), (target,), fresh, eqn.source))
    return target


def _while(b: Builder, eqn: Equation, lower_block: LowerBlock) -> None:
    cond, body = eqn.blocks
    nc, nb = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    inputs: list[Slot | Literal] = []
    cond_inner: list[Slot] = []
    body_inner: list[Slot] = []
    for i, a in enumerate(eqn.invars):
        if i < nc:
            held = _hoisted(b, a, cond.invars[i], eqn)
            inputs.append(held)
            cond_inner.append(_inner_slot(b, cond.invars[i], held.placement))
        elif i < nc + nb:
            v = body.invars[i - nc]
            held = _hoisted(b, a, v, eqn)
            inputs.append(held)
            body_inner.append(_inner_slot(b, v, held.placement))
        else:
            v = body.invars[i - nc]
            place = natural(b.context, v)
            inputs.append(b.get(a, place, eqn.source, eqn.name))
            body_inner.append(_inner_slot(b, v, place))
            cond_inner.append(_inner_slot(b, cond.invars[i - nb], place))
    carried = [s.placement for s in body_inner[nb:]]
    test = lower_block(b.context, b.cuts, cond, tuple(cond_inner), [whole(0)], frozenset(), b.fallbacks)
    turn = lower_block(b.context, b.cuts, body, tuple(body_inner), list(carried), frozenset(), b.fallbacks)
    outputs = [b.slot(v, p) for v, p in zip(eqn.outvars, carried, strict=True)]
    _append(b, eqn, inputs, outputs, (test, turn))


def _cond(b: Builder, eqn: Equation, lower_block: LowerBlock) -> None:
    index = b.get(eqn.invars[0], whole(0), eqn.source, eqn.name)
    operands = [_as_it_lies(b, a, eqn) for a in eqn.invars[1:]]
    results = [natural(b.context, v) for v in eqn.outvars]
    bodies = []
    for branch in eqn.blocks:
        inner = tuple(_inner_slot(b, v, s.placement) for v, s in zip(branch.invars, operands, strict=True))
        bodies.append(lower_block(b.context, b.cuts, branch, inner, list(results), frozenset(), b.fallbacks))
    outputs = [b.slot(v, p) for v, p in zip(eqn.outvars, results, strict=True)]
    _append(b, eqn, [index, *operands], outputs, tuple(bodies))


def _append(b: Builder, eqn: Equation, inputs: list, outputs: list[Slot], bodies: tuple[DeviceBlock, ...]) -> None:
    b.ops.append(Control(eqn, tuple(inputs), tuple(outputs), bodies))
    for v, slot in zip(eqn.outvars, outputs, strict=True):
        b.define(v, slot, eqn.source)
