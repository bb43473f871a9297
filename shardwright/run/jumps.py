"""Sign-like methods (lion, sign_sgd, rprop): gradients are compared, and the update on one device's gradients.

A sign jumps at zero, so where a gradient's true value is zero rounding alone decides between -1 and 1, and two right
programs part. Such an equation is cut: its operand becomes a result, which is compared, and its result an argument,
which both programs get from one device. Everything before the cut is compared as it is, and everything behind it on
equal signs. Cut are:

- `sign` of numbers outside loops, if no reported result (a loss) depends on it;
- comparisons of numbers with zero outside loops, if the number depends on optimizer state: how rprop reads signs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

from shardwright.partition.device import Compute, DeviceBlock, DeviceProgram, Slot
from shardwright.program.evaluate import literal_value
from shardwright.program.ir import Atom, Block, Equation, Literal, Program, Role, Var
from shardwright.program.roles import influences

_COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})


@dataclasses.dataclass(frozen=True)
class Jump:
    """An equation that is cut.

    Attributes:
      ordinal: its place among the block's equations with a name that could be cut: the lift keeps it.
      op: its place among the device's operations.
      operand: position of the operand that jumps.
      name: of the row in the certificate.
      primitive: its primitive.
      line: its source line.
    """

    ordinal: int
    op: int
    operand: int
    name: str
    primitive: str
    line: str


def find_jumps(program: Program, device: DeviceProgram) -> tuple[Jump, ...]:
    """The equations to cut, in order."""
    block = program.block
    results = zip(program.outputs, block.outvars, strict=True)
    reported = influences(block, [v for leaf, v in results if leaf.role is Role.RESULT])
    arguments = zip(program.inputs, block.invars, strict=True)
    optimizer = _dependents(block, [v for leaf, v in arguments if leaf.role is Role.OPTIMIZER])
    ops = {op.equation: k for k, op in enumerate(device.block.ops) if isinstance(op, Compute)}
    found = []
    for ordinal, eqn in enumerate(_candidates(block)):
        operand = _jumping_operand(eqn, optimizer)
        k = ops.get(eqn)
        if operand is None or k is None or eqn.outvars[0] in reported or not _is_settled(device.block.ops[k], operand):
            continue
        found.append(Jump(ordinal, k, operand, _name(program, eqn, ordinal), eqn.name, eqn.source.line))
    return tuple(found)


def cut_block(block: Block, jumps: Sequence[Jump]) -> Block:
    """`block` with operand and result of each jump as further results: what one device runs."""
    candidates = _candidates(block)
    extra = [a for j in jumps for a in (candidates[j.ordinal].invars[j.operand], candidates[j.ordinal].outvars[0])]
    return dataclasses.replace(block, outvars=(*block.outvars, *extra))


def cut_device(device: DeviceProgram, jumps: Sequence[Jump]) -> DeviceProgram:
    """`device` with each jump's result as a further argument and its operand as a further result."""
    ops = device.block.ops
    taken = {j.op for j in jumps}
    block = DeviceBlock(
        (*device.block.inputs, *(ops[j.op].outputs[0] for j in jumps)),
        tuple(op for k, op in enumerate(ops) if k not in taken),
        (*device.block.outputs, *(ops[j.op].inputs[j.operand] for j in jumps)),
    )
    return dataclasses.replace(device, block=block)


def describe(jumps: Sequence[Jump]) -> list[str]:
    """What a certificate says of the cuts: one text a source line."""
    lines: dict[tuple[str, str], int] = {}
    for j in jumps:
        lines[j.primitive, j.line] = lines.get((j.primitive, j.line), 0) + 1
    return [
        f"'{primitive}' at {line or 'an unknown line'} ({count} times): rounding decides the sign of a zero, so its "
        "operands are compared, and the update on one device's signs"
        for (primitive, line), count in lines.items()
    ]


def _candidates(block: Block) -> list[Equation]:
    return [eqn for eqn in block.equations if eqn.name == "sign" or eqn.name in _COMPARISONS]


def _jumping_operand(eqn: Equation, optimizer: set[Atom]) -> int | None:
    """The operand whose sign decides, if the equation is one to cut."""
    if eqn.name == "sign":
        return 0 if _is_number(eqn.invars[0]) else None
    for i, (a, other) in enumerate(zip(eqn.invars, eqn.invars[::-1], strict=True)):
        if a in optimizer and _is_number(a) and isinstance(other, Literal) and not np.any(literal_value(other)):
            return i
    return None


def _is_number(atom: Atom) -> bool:
    return isinstance(atom, Var) and bool(jax.dtypes.issubdtype(atom.aval.dtype, np.inexact))


def _is_settled(op: object, operand: int) -> bool:
    """Whether operand and result are whole values on the mesh, nothing pending."""
    assert isinstance(op, Compute)
    slots = (op.inputs[operand], op.outputs[0])
    return all(isinstance(s, Slot) and not s.placement.partial for s in slots)


def _dependents(block: Block, sources: Sequence[Var]) -> set[Atom]:
    """Every variable of `block` that depends on one of `sources`, themselves included."""
    reached: set[Atom] = set(sources)
    for eqn in block.equations:
        if reached.intersection(eqn.invars):
            reached.update(eqn.outvars)
    return reached


def _name(program: Program, eqn: Equation, ordinal: int) -> str:
    """The one parameter that the equation decides on, or the one slot of the optimizer."""
    reached = _dependents(program.block, eqn.outvars)
    for role in (Role.PARAMETER, Role.OPTIMIZER):
        results = zip(program.outputs, program.block.outvars, program.carried, strict=True)
        names = [
            program.inputs[i].name for leaf, v, i in results if i is not None and leaf.role is role and v in reached
        ]
        if len(names) == 1:
            return f"{names[0]} before '{eqn.name}'"
    return f"'{eqn.name}' {ordinal}"
