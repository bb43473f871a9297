"""Faults planted into a per-device program: what the fuzzer must find."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from shardwright.partition.device import Compute, Control, DeviceBlock, DeviceProgram, Move, Op

Fault = Callable[[Op], Op]


def _moves(of_kind: str, **change: Any) -> Fault:
    """Every move of a kind becomes another one."""
    return lambda op: dataclasses.replace(op, **change) if isinstance(op, Move) and op.kind == of_kind else op


def _without_masks(op: Op) -> Op:
    return dataclasses.replace(op, masks=()) if isinstance(op, Compute) else op


def _axes_turned(kind: str) -> Fault:
    return lambda op: (
        dataclasses.replace(op, axes=op.axes[::-1])
        if isinstance(op, Move) and op.kind == kind and len(op.axes) > 1
        else op
    )


def _parts_of_another(op: Op) -> Op:
    """Each device believes that it is at the place of the axes' other order."""
    if not isinstance(op, Compute):
        return op
    return dataclasses.replace(op, cut=tuple(axes[::-1] for axes in op.cut))


FAULTS: dict[str, Fault] = {
    "padding reaches a sum": _without_masks,
    "a sum is left out": _moves("all_reduce", kind="relabel"),
    "a sum is a maximum": _moves("all_reduce", monoid="max"),
    "all devices keep the first block": _moves("slice", axes=()),
    "gathered blocks stand in another order": _axes_turned("all_gather"),
    "a device takes another's place": _parts_of_another,
}


def planted(program: DeviceProgram, fault: Fault) -> DeviceProgram:
    """`program` with the fault wherever it fits."""
    return dataclasses.replace(program, block=_block(program.block, fault))


def _block(block: DeviceBlock, fault: Fault) -> DeviceBlock:
    ops = []
    for op in block.ops:
        if isinstance(op, Control):
            op = dataclasses.replace(op, bodies=tuple(_block(b, fault) for b in op.bodies))
        ops.append(fault(op))
    return DeviceBlock(block.inputs, tuple(ops), block.outputs)
