"""The per-device program in float64: every operation, cut and move as it is, only the dtypes lifted.

Lifting what was partitioned, and not partitioning what was lifted, keeps the proof on the program that will run: sizes
in bytes and casts to narrow dtypes decide where values lie and sums are resolved, and the lift changes both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from jax import lax

from shardwright.partition.device import Compute, Constant, Control, DeviceBlock, DeviceProgram, Move, Op, Slot
from shardwright.program.ir import Equation, Literal
from shardwright.rewrite.lift import is_island, lift_alone, lifted_aval, lifted_dtype, lifted_literal
from shardwright.rules.row import Local, Row, bind

Form = Callable[[Equation, Sequence[Any], Local], list[Any]]


def lift_device(program: DeviceProgram) -> DeviceProgram:
    """`program` with float64 and complex128 in place of every inexact dtype. To run it takes `jax.enable_x64`."""
    return dataclasses.replace(program, block=_block(program.block))


def _block(block: DeviceBlock) -> DeviceBlock:
    slots: dict[Slot, Slot] = {}

    def new(x: Slot | Literal) -> Any:
        if isinstance(x, Literal):
            return lifted_literal(x)
        if x not in slots:
            slots[x] = Slot(lifted_aval(x.aval), x.placement, x.shape)
        return slots[x]

    inputs = tuple(map(new, block.inputs))
    ops = tuple(_lift(op, tuple(map(new, op.inputs)), tuple(map(new, op.outputs))) for op in block.ops)
    return DeviceBlock(inputs, ops, tuple(map(new, block.outputs)))


def _lift(op: Op, inputs: tuple[Any, ...], outputs: tuple[Slot, ...]) -> Op:
    if isinstance(op, Move):
        return dataclasses.replace(op, inputs=inputs, outputs=outputs)
    if isinstance(op, Constant):
        value = lifted_literal(Literal(op.value, op.outputs[0].aval)).value
        return dataclasses.replace(op, value=value, outputs=outputs)
    if isinstance(op, Control):
        return dataclasses.replace(op, inputs=inputs, outputs=outputs, bodies=tuple(map(_block, op.bodies)))
    return _compute(op, inputs, outputs)


def _compute(op: Compute, inputs: tuple[Any, ...], outputs: tuple[Slot, ...]) -> Compute:
    if not is_island(op.equation):
        return dataclasses.replace(op, equation=lift_alone(op.equation), inputs=inputs, outputs=outputs)
    row = op.row or Row(lambda eqn: op.factors)
    island = dataclasses.replace(row, local=_between_casts(row.local if op.row else bind))
    return dataclasses.replace(op, row=island, inputs=inputs, outputs=outputs)


def _between_casts(form: Form) -> Form:
    """`form` on operands cast to its equation's own dtypes, its results cast back."""

    def local_form(eqn: Equation, values: Sequence[Any], local: Local) -> list[Any]:
        own = [_cast(v, a.aval.dtype) for v, a in zip(values, eqn.invars, strict=True)]
        return [_cast(r, lifted_dtype(r.dtype)) for r in form(eqn, own, local)]

    return local_form


def _cast(value: Any, dtype: Any) -> Any:
    return value if value.dtype == dtype else lax.convert_element_type(value, dtype)
