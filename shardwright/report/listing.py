"""The per-device program as indented text, one line an operation: what `print(plan.program())` shows.

A value's type is its dtype and the shape of one device's part; `{U_x}` behind it says that it is a pending sum on axis
x. An operation names the classes of dims by which it is cut: `cut=(batch/d)`. A collective tells what one device sends.
"""

from __future__ import annotations

import itertools
import keyword
import math
import string
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from shardwright.cost.estimate import Collective, Estimate
from shardwright.partition.device import Compute, Constant, Control, DeviceBlock, DeviceProgram, Move, Op, Slot, walk
from shardwright.plan.amounts import bytes_text
from shardwright.plan.placement import Placement, notation
from shardwright.program.ir import Leaf, Literal, Program
from shardwright.report.prices import prices
from shardwright.report.sources import short_classes, short_source
from shardwright.rules.classes import Classes

_DTYPES = {"float": "f", "bfloat": "bf", "int": "i", "uint": "u", "complex": "c"}


def program_text(
    program: Program, classes: Classes, device: DeviceProgram, estimate: Estimate, *, fold: bool = False
) -> str:
    """What every device runs.

    Args:
        program: The step.
        classes: Of its dims.
        device: The step partitioned.
        estimate: The price of that.
        fold: Whether a run of elementwise operations is shown as one line.
    """
    return "\n".join(_Lister(program, classes, device, estimate, fold).lines())


def type_text(slot: Slot) -> str:
    """As in 'f32[8,128] {U_t}'."""
    shape = ",".join(map(str, slot.shape))
    pending = notation([], Placement((), slot.placement.partial)).removeprefix("[]")
    return f"{dtype_text(slot.aval.dtype)}[{shape}]{pending}"


def dtype_text(dtype: object) -> str:
    """As in 'f32', 'bf16', 'i32', 'bool'."""
    name = str(dtype)
    stem = name.rstrip(string.digits)
    return _DTYPES[stem] + name[len(stem) :] if stem in _DTYPES and stem != name else name


class _Lister:
    """Names the values in the order in which they appear, and writes the lines."""

    def __init__(
        self, program: Program, classes: Classes, device: DeviceProgram, estimate: Estimate, fold: bool
    ) -> None:
        self.program, self.device, self.estimate, self.fold = program, device, estimate, fold
        self.classes = classes
        self.short = short_classes(c.name for c in classes.all)
        self.prices = prices(device, estimate)
        self.uncut = {f.equation: f.reason for f in device.fallbacks}
        self.names: dict[Slot, str] = {}
        self.fresh = _letters()

    def lines(self) -> Iterator[str]:
        device = self.device
        mesh = " × ".join(f"{axis}={size}" for axis, size in device.mesh.items())
        num_ops = sum(1 for _ in walk(device.block))
        num_devices = math.prod(device.mesh.values())
        sent = f"sent by collectives: {bytes_text(self.estimate.bytes_sent)} in {len(self.prices)}"
        yield f"# Runs on each of {num_devices} devices, mesh {mesh}. Operations: {num_ops}, {sent}."
        for leaf, slot in zip(self.program.inputs, device.block.inputs, strict=True):
            yield f"input {self.name(slot)}: {type_text(slot)}{self._comment(self._leaf(leaf, slot))}"
        yield from self.block(device.block, "")
        for leaf, out in zip(self.program.outputs, device.block.outputs, strict=True):
            place = self._leaf(leaf, out) if isinstance(out, Slot) else leaf.name
            yield f"output {self.read(out)}{self._comment(place)}"

    def name(self, slot: Slot) -> str:
        if slot not in self.names:
            self.names[slot] = next(self.fresh)
        return self.names[slot]

    def read(self, x: Slot | Literal) -> str:
        if isinstance(x, Slot):
            return self.name(x)
        return _value_text(x.value) if x.aval.size == 1 else f"constant {dtype_text(x.aval.dtype)}{list(x.aval.shape)}"

    def define(self, slots: Sequence[Slot]) -> str:
        return ", ".join(f"{self.name(s)}: {type_text(s)}" for s in slots)

    def block(self, block: DeviceBlock, indent: str) -> Iterator[str]:
        for is_run, group in itertools.groupby(block.ops, key=lambda op: self.fold and _is_elementwise(op)):
            ops = list(group)
            if is_run and len(ops) > 1:
                yield self._folded(ops, block, indent)
                continue
            for op in ops:
                yield from self.control(op, indent) if isinstance(op, Control) else [indent + self.line(op)]

    def line(self, op: Op) -> str:
        arguments, results = [self.read(x) for x in op.inputs], self.define(op.outputs)
        if isinstance(op, Constant):
            value = _value_text(op.value) if np.size(op.value) == 1 else ""
            return f"{results} = constant({value})"
        if isinstance(op, Move):
            text = ", ".join((*arguments, *_move_facts(op)))
            return f"{results} = {op.kind}({text}){self._comment(self._sent(op), self._place(op))}"
        assert isinstance(op, Compute)
        notes = self.uncut.get(op.equation, "")
        text = ", ".join((*arguments, *self._cut(op)))
        return f"{results} = {op.equation.name}({text}){self._comment(notes, self._place(op))}"

    def control(self, op: Control, indent: str) -> Iterator[str]:
        yield from {"scan": self._scan, "while": self._while, "cond": self._cond}[op.equation.name](op, indent)

    def _scan(self, op: Control, indent: str) -> Iterator[str]:
        params, (body,) = op.equation.params, op.bodies
        consts, carry, inner = params["num_consts"], params["num_carry"], indent + "  "
        order = " in reverse" if params["reverse"] else ""
        yield f"{indent}scan, {params['length']} turns{order}:{self._comment(self._place(op))}"
        for i, (x, slot) in enumerate(zip(op.inputs, body.inputs, strict=True)):
            kind = "every turn" if i < consts else "carried" if i < consts + carry else "each turn"
            part = "[turn]" if i >= consts + carry else ""
            yield f"{inner}{kind:<10} {self.define([slot])} = {self.read(x)}{part}"
        yield from self.block(body, inner)
        for i, (x, slot) in enumerate(zip(body.outputs, body.inputs[consts : consts + carry], strict=False)):
            if i < carry:
                yield f"{inner}{'next turn':<10} {self.name(slot)} = {self.read(x)}"
        for i, (x, slot) in enumerate(zip(body.outputs, op.outputs, strict=True)):
            source = self.name(body.inputs[consts + i]) if i < carry else f"{self.read(x)} of every turn"
            yield f"{indent}{'last' if i < carry else 'stacked'} {self.define([slot])} = {source}"

    def _while(self, op: Control, indent: str) -> Iterator[str]:
        params, (cond, body) = op.equation.params, op.bodies
        nc, nb, inner = params["cond_nconsts"], params["body_nconsts"], indent + "  "
        yield f"{indent}while:{self._comment(self._place(op))}"
        for x, slot in zip(op.inputs, (*cond.inputs[:nc], *body.inputs), strict=True):
            kind = "carried" if slot in body.inputs[nb:] else "every turn"
            yield f"{inner}{kind:<10} {self.define([slot])} = {self.read(x)}"
        self.names.update({s: self.name(b) for s, b in zip(cond.inputs[nc:], body.inputs[nb:], strict=True)})
        yield f"{inner}condition:"
        yield from self.block(cond, inner + "  ")
        yield f"{inner}  go on if {self.read(cond.outputs[0])}"
        yield f"{inner}body:"
        yield from self.block(body, inner + "  ")
        for x, slot in zip(body.outputs, body.inputs[nb:], strict=True):
            yield f"{inner}  next turn {self.name(slot)} = {self.read(x)}"
        for slot, carried in zip(op.outputs, body.inputs[nb:], strict=True):
            yield f"{indent}last {self.define([slot])} = {self.name(carried)}"

    def _cond(self, op: Control, indent: str) -> Iterator[str]:
        results, index = self.define(op.outputs), self.read(op.inputs[0])
        yield f"{indent}{results} = one of, by {index}:{self._comment(self._place(op))}"
        for k, body in enumerate(op.bodies):
            yield f"{indent}  case {k}:"
            for x, slot in zip(op.inputs[1:], body.inputs, strict=True):
                yield f"{indent}    {self.define([slot])} = {self.read(x)}"
            yield from self.block(body, indent + "    ")
            yield f"{indent}    result {', '.join(self.read(x) for x in body.outputs)}"

    def _folded(self, ops: Sequence[Op], block: DeviceBlock, indent: str) -> str:
        """One line for a run: what it reads from before, and what is read after it."""
        made = dict.fromkeys(s for op in ops for s in op.outputs)
        inside = {id(op) for op in ops}
        after = {x for op in block.ops if id(op) not in inside for x in op.inputs} | set(block.outputs)
        arguments = dict.fromkeys(x for op in ops for x in op.inputs if isinstance(x, Slot) and x not in made)
        read = ", ".join(self.read(x) for x in arguments)
        results = self.define([s for s in made if s in after])
        return f"{indent}{results} = … {len(ops)} elementwise operations ({read}){self._comment(self._places(ops))}"

    def _cut(self, op: Compute) -> list[str]:
        names = self.classes.facts[op.equation].classes
        parts = []
        for c, axes in zip(names, op.cut, strict=True):
            if axes:
                parts.append(f"{self.short[self.classes.all[c].name] if c is not None else 'dim'}/{'+'.join(axes)}")
        masks = [f"{self.read(op.inputs[m.position])} dim {m.dim} for {m.monoid}" for m in op.masks]
        return [f"cut=({', '.join(parts)})"] * bool(parts) + [f"masked=({', '.join(masks)})"] * bool(masks)

    def _sent(self, op: Move) -> str:
        found: Collective | None = self.prices.get(op)
        if found is None:
            return ""
        each = bytes_text(found.bytes / found.times)
        return each if found.times == 1 else f"{each}, {found.times} times"

    def _leaf(self, leaf: Leaf, slot: Slot) -> str:
        return f"{leaf.name} on ({', '.join('+'.join(axes) or '-' for axes in slot.placement.dims)})"

    def _place(self, op: Op) -> str:
        return short_source(op.source.line)

    def _places(self, ops: Sequence[Op]) -> str:
        return ", ".join(list(dict.fromkeys(filter(None, map(self._place, ops))))[:3])

    def _comment(self, *parts: str) -> str:
        text = "  ".join(p for p in parts if p)
        return f"  # {text}" if text else ""


def _letters() -> Iterator[str]:
    """a, b, …, z, aa, ab, … without Python's keywords."""
    for count in itertools.count(1):
        for letters in itertools.product(string.ascii_lowercase, repeat=count):
            name = "".join(letters)
            if not keyword.iskeyword(name):
                yield name


def _is_elementwise(op: Op) -> bool:
    return isinstance(op, Compute) and op.row is not None and op.row.fused


def _value_text(value: object) -> str:
    try:
        item = np.asarray(value).reshape(()).item()
        return f"{item:.7g}" if isinstance(item, float) else str(item)
    except (TypeError, ValueError):
        return "constant"


def _move_facts(op: Move) -> list[str]:
    facts: Mapping[str, object] = {
        "all_gather": {"dim": op.dim},
        "reduce_scatter": {"dim": op.dim},
        "slice": {"dim": op.dim},
        "expand": {"dim": op.dim},
        "permute": {"dim": op.dim},
        "all_to_all": {"cut_dim": op.dim, "joined_dim": op.other_dim},
    }.get(op.kind, {})
    monoid = [op.monoid] if op.monoid != "sum" else []
    return [*monoid, f"axis={'+'.join(op.axes)}", *(f"{k}={v}" for k, v in facts.items())]
