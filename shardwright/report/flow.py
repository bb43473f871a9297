"""How values flow through a per-device program, loops and branches included: who reads what, and what is state.

A loop's operand and the body's input are one value here, and so are the body's result, the loop's result and, for a
carry, the next turn's input.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from shardwright.partition.device import Compute, Control, DeviceBlock, DeviceProgram, Move, Op, Slot
from shardwright.program.ir import Leaf, Literal, Program, Role


def is_state(leaf: Leaf) -> bool:
    """Whether a leaf is a parameter or optimizer state."""
    return leaf.role in (Role.PARAMETER, Role.OPTIMIZER)


@dataclasses.dataclass(eq=False)
class Flow:
    """Result of `find_flow`.

    makers: value → operation that computes it. readers: value → operations that read it. same: value → what it is
    handed on as, over the edge of a loop or branch. sources: the reverse of `same`. state: inputs and results of the
    step that are parameters or optimizer state. results: other results → their names.
    """

    makers: dict[Slot, Op] = dataclasses.field(default_factory=dict)
    readers: dict[Slot, list[Op]] = dataclasses.field(default_factory=dict)
    same: dict[Slot, list[Slot]] = dataclasses.field(default_factory=dict)
    sources: dict[Slot, list[Slot]] = dataclasses.field(default_factory=dict)
    state: set[Slot] = dataclasses.field(default_factory=set)
    results: dict[Slot, str] = dataclasses.field(default_factory=dict)

    def is_state(self, slot: Slot) -> bool:
        """Whether the value is state, a layer of it, a copy of it in another layout or dtype, or the next state."""
        return self._comes_from_state(slot, set()) or slot in self.state

    def _comes_from_state(self, slot: Slot, seen: set[Slot]) -> bool:
        """Along moves and operations without arithmetic (or with one operand) on state alone."""
        while slot not in seen:
            seen.add(slot)
            if slot in self.state and slot not in self.makers:
                return True
            if slot in self.sources:
                return all(self._comes_from_state(s, seen) for s in self.sources[slot])
            maker = self.makers.get(slot)
            inputs = [x for x in maker.inputs if isinstance(x, Slot)] if maker else []
            if (
                isinstance(maker, Compute)
                and maker.row is not None
                and not maker.row.fused
                and maker.row.flops(maker.equation)
            ):
                return False
            if len(inputs) != 1 or not isinstance(maker, (Move, Compute)):
                return False
            slot = inputs[0]
        return True  # a carry, met again: its other sources decide

    def is_used_cut(self, slot: Slot, axis: str) -> bool:
        """Whether some operation that reads the value, through what is not cut on `axis`, is cut there."""
        seen: set[Slot] = set()
        waiting = [slot]
        while waiting:
            at = waiting.pop()
            if at in seen:
                continue
            seen.add(at)
            waiting += self.same.get(at, [])
            for op in self.readers.get(at, []):
                if isinstance(op, Compute) and any(axis in axes for axes in op.cut):
                    return True
                if isinstance(op, Move) or (isinstance(op, Compute) and op.row is not None and op.row.fused):
                    waiting += [] if isinstance(op, Move) and axis in op.axes else op.outputs
        return False

    def result_name(self, slot: Slot) -> str:
        """Name of the step's result that the value is, '' if it is none."""
        return self.results.get(slot, "")


def find_flow(program: Program, device: DeviceProgram) -> Flow:
    """Follows every value of `device`, the partitioned form of `program`."""
    flow = Flow()
    _block(flow, device.block)
    for leaf, slot in zip(program.inputs, device.block.inputs, strict=True):
        if is_state(leaf):
            flow.state.add(slot)
    for leaf, out in zip(program.outputs, device.block.outputs, strict=True):
        if isinstance(out, Slot) and is_state(leaf):
            flow.state.add(out)
        elif isinstance(out, Slot):
            flow.results[out] = leaf.name
    return flow


def _block(flow: Flow, block: DeviceBlock) -> None:
    for op in block.ops:
        for slot in op.outputs:
            flow.makers[slot] = op
        if not isinstance(op, Control):
            for x in dict.fromkeys(x for x in op.inputs if isinstance(x, Slot)):
                flow.readers.setdefault(x, []).append(op)
            continue
        for body in op.bodies:
            _block(flow, body)
        for outer, inner in _edges(op):
            if isinstance(outer, Slot):
                flow.same.setdefault(outer, []).append(inner)
                flow.sources.setdefault(inner, []).append(outer)


def _edges(op: Control) -> Iterator[tuple[Slot | Literal, Slot]]:
    """(value, what it is handed on as)."""
    params = op.equation.params
    if op.equation.name == "scan":
        (body,), consts, carry = op.bodies, params["num_consts"], params["num_carry"]
        yield from zip(op.inputs, body.inputs, strict=True)
        yield from zip(body.outputs, op.outputs, strict=True)
        yield from zip(body.outputs[:carry], body.inputs[consts : consts + carry], strict=True)
    elif op.equation.name == "while":
        cond, body = op.bodies
        nc, nb = params["cond_nconsts"], params["body_nconsts"]
        yield from zip(op.inputs[:nc], cond.inputs[:nc], strict=True)
        yield from zip(op.inputs[nc:], body.inputs, strict=True)
        yield from zip(body.inputs[nb:], cond.inputs[nc:], strict=True)
        yield from zip(body.outputs, op.outputs, strict=True)
        yield from zip(body.outputs, body.inputs[nb:], strict=True)
    else:
        for body in op.bodies:
            yield from zip(op.inputs[1:], body.inputs, strict=True)
            yield from zip(body.outputs, op.outputs, strict=True)
