"""Runs a per-device program on simulated devices: NumPy arrays and plain loops, without XLA, `shard_map` or a mesh.

It is a second reading of `shardwright.partition.device`, and a stricter one than `shardwright.partition.emit`: padding
is filled with garbage, devices that should agree are compared, and collectives are what their names say.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shardwright import _compat
from shardwright.partition.device import Compute, Constant, Control, DeviceBlock, DeviceProgram, Mask, Move, Slot
from shardwright.partition.effects import runs_once
from shardwright.program.ir import Literal
from shardwright.rules.row import Local, bind, identity
from tests.fuzz.numpy_primitives import bind_in_numpy
from tests.rules.simulation import COMBINE, as_array, garbage

Place = tuple[int, ...]
Everywhere = dict[Place, Any]
"""A value of each device, by its place in the mesh."""


class Disagreement(AssertionError):
    """Devices that must hold the same hold something else."""


def run(program: DeviceProgram, values: Sequence[Any]) -> list[Any]:
    """The step's whole results from its whole arguments."""
    machine = _Machine(program.mesh)
    block = program.block
    with bind_in_numpy():
        inputs = [machine.cut(as_array(v), s) for s, v in zip(block.inputs, values, strict=True)]
        outputs = machine.block(block, inputs)
        return [
            machine.join(out, slot) if isinstance(slot, Slot) else as_array(slot.value)
            for out, slot in zip(outputs, block.outputs, strict=True)
        ]


class _Machine:
    """Devices in a mesh."""

    def __init__(self, mesh: Mapping[str, int]) -> None:
        self.mesh = dict(mesh)
        self.places: list[Place] = list(itertools.product(*(range(n) for n in self.mesh.values())))
        self._position = {axis: i for i, axis in enumerate(self.mesh)}

    def index(self, place: Place, axes: Sequence[str]) -> int:
        """The number of `place`'s block among those that `axes` cut, the first axis the most significant."""
        number = 0
        for axis in axes:
            number = number * self.mesh[axis] + place[self._position[axis]]
        return number

    def parts(self, axes: Sequence[str]) -> int:
        return math.prod(self.mesh[a] for a in axes)

    def groups(self, axes: Sequence[str]) -> Iterator[list[Place]]:
        """Places that differ along `axes` alone, in the order of their blocks."""
        found: dict[Place, list[Place]] = {}
        for place in self.places:
            found.setdefault(tuple(-1 if a in axes else p for a, p in zip(self.mesh, place, strict=True)), []).append(
                place
            )
        for group in found.values():
            yield sorted(group, key=lambda place: self.index(place, axes))

    def cut(self, value: Any, slot: Slot) -> Everywhere:
        """A whole value as it lies on the devices."""
        assert not slot.placement.partial
        for dim, axes in enumerate(slot.placement.dims):
            value = _padded(value, dim, slot.shape[dim] * self.parts(axes))
        out = {}
        for place in self.places:
            part = value
            for dim, axes in enumerate(slot.placement.dims):
                part = _block(part, dim, self.index(place, axes), slot.shape[dim])
            out[place] = part
        return out

    def join(self, values: Everywhere, slot: Slot) -> Any:
        """The whole value of what lies on the devices; those that hold the same block must agree."""
        assert not slot.placement.partial, "a pending sum leaves the program"
        shape = [n * self.parts(axes) for n, axes in zip(slot.shape, slot.placement.dims, strict=True)]
        first = values[self.places[0]]
        if _compat.is_extended(first.dtype):
            return first
        whole = np.zeros(shape, first.dtype)
        seen: dict[Place, Any] = {}
        for place, value in values.items():
            assert value.shape == slot.shape, f"{value.shape} on a device, {slot.shape} planned"
            at = tuple(self.index(place, axes) for axes in slot.placement.dims)
            if at in seen and not _agree(seen[at], value, at, slot, self):
                raise Disagreement(f"copies of {slot.aval} differ under {slot.placement}")
            seen[at] = value
            whole[tuple(slice(i * n, (i + 1) * n) for i, n in zip(at, slot.shape, strict=True))] = value
        return whole[tuple(slice(n) for n in slot.aval.shape)]

    # --- operations -------------------------------------------------------------------------------------------------

    def block(self, block: DeviceBlock, inputs: Sequence[Everywhere]) -> list[Everywhere]:
        env: dict[Slot, Everywhere] = dict(zip(block.inputs, inputs, strict=True))

        def read(x: Slot | Literal) -> Everywhere:
            return env[x] if isinstance(x, Slot) else dict.fromkeys(self.places, as_array(x.value))

        for op in block.ops:
            operands = [read(x) for x in op.inputs]
            if isinstance(op, Compute):
                results = self.compute(op, operands)
            elif isinstance(op, Move):
                results = [self.move(op, operands[0])]
            elif isinstance(op, Constant):
                results = [dict.fromkeys(self.places, as_array(op.value))]
            else:
                results = self.control(op, operands)
            env.update(zip(op.outputs, results, strict=True))
        return [read(x) for x in block.outputs]

    def compute(self, op: Compute, operands: list[Everywhere]) -> list[Everywhere]:
        if runs_once(op.equation):
            return []
        parts = tuple(self.parts(axes) for axes in op.cut)
        shapes = tuple(s.shape for s in op.outputs)
        made: dict[tuple, list[Any]] = {}  # devices with the same operands and blocks compute the same
        out: list[Everywhere] = [{} for _ in op.outputs]
        for place in self.places:
            own = [x[place] for x in operands]
            key = (*map(id, own), *(self.index(place, axes) for axes in op.cut))
            if key not in made:
                index = [self.index(place, axes) for axes in op.cut]
                local = Local(op.factors, parts, op.blocks, shapes, lambda f, index=index: np.int32(index[f]))
                for mask in op.masks:
                    own[mask.position] = _masked(op, mask, own[mask.position], local)
                row_local = op.row.local if op.row else bind
                made[key] = [as_array(r) for r in row_local(op.equation, own, local)]
                for got, slot in zip(made[key], op.outputs, strict=True):
                    assert got.shape == slot.shape, f"{op.equation.name}: {got.shape} computed, {slot.shape} planned"
                    assert got.dtype == slot.aval.dtype, f"{op.equation.name}: {got.dtype}, {slot.aval.dtype} planned"
            for result, value in zip(out, made[key], strict=True):
                result[place] = value
        return out

    def move(self, op: Move, x: Everywhere) -> Everywhere:
        if op.kind in ("barrier", "relabel", "wait"):
            return x
        moved = getattr(self, f"_{op.kind}")(op, x)
        for value in moved.values():
            assert value.shape == op.outputs[0].shape, f"{op.kind}: {value.shape}, {op.outputs[0].shape} planned"
        return moved

    def _all_reduce(self, op: Move, x: Everywhere) -> Everywhere:
        out = {}
        for group in self.groups(op.axes):
            total = x[group[0]]
            for place in group[1:]:
                total = COMBINE[op.monoid](total, x[place])
            out.update(dict.fromkeys(group, np.asarray(total, x[group[0]].dtype)))
        return out

    def _all_gather(self, op: Move, x: Everywhere) -> Everywhere:
        out = {}
        for group in self.groups(op.axes):
            joined = _joined([x[p] for p in group], op.dim)
            out.update(dict.fromkeys(group, _block(joined, op.dim, 0, op.outputs[0].shape[op.dim])))
        return out

    def _reduce_scatter(self, op: Move, x: Everywhere) -> Everywhere:
        assert op.monoid == "sum"
        return self._slice(op, self._all_reduce(op, x))

    def _slice(self, op: Move, x: Everywhere) -> Everywhere:
        size = op.outputs[0].shape[op.dim]
        return {
            place: _block(_padded(v, op.dim, size * self.parts(op.axes)), op.dim, self.index(place, op.axes), size)
            for place, v in x.items()
        }

    def _all_to_all(self, op: Move, x: Everywhere) -> Everywhere:
        out, size, other = {}, op.outputs[0].shape[op.dim], op.outputs[0].shape[op.other_dim]
        for group in self.groups(op.axes):
            for i, place in enumerate(group):
                sent = [_block(_padded(x[p], op.dim, size * len(group)), op.dim, i, size) for p in group]
                out[place] = _block(_joined(sent, op.other_dim), op.other_dim, 0, other)
        return out

    def _permute(self, op: Move, x: Everywhere) -> Everywhere:
        """The block with this number under the new order of the axes, from whoever had it under the old one."""
        before, after = op.inputs[0].placement.dims[op.dim], op.outputs[0].placement.dims[op.dim]
        out = {}
        for group in self.groups(op.axes):
            holder = {self.index(p, before): x[p] for p in group}
            out.update({p: holder[self.index(p, after)] for p in group})
        return out

    def _mask(self, op: Move, x: Everywhere) -> Everywhere:
        return {p: v if self.index(p, op.axes) == 0 else np.zeros_like(v) for p, v in x.items()}

    def _expand(self, op: Move, x: Everywhere) -> Everywhere:
        out = {}
        for place, v in x.items():
            rows = [np.zeros_like(v)] * self.parts(op.axes)
            rows[self.index(place, op.axes)] = v
            out[place] = _block(np.concatenate(rows, op.dim), op.dim, 0, op.outputs[0].shape[op.dim])
        return out

    # --- control flow -----------------------------------------------------------------------------------------------

    def control(self, op: Control, operands: list[Everywhere]) -> list[Everywhere]:
        return {"scan": self._scan, "while": self._while, "cond": self._cond}[op.equation.name](op, operands)

    def _scan(self, op: Control, operands: list[Everywhere]) -> list[Everywhere]:
        p = op.equation.params
        consts, carry = operands[: p["num_consts"]], operands[p["num_consts"] : p["num_consts"] + p["num_carry"]]
        xs = operands[p["num_consts"] + p["num_carry"] :]
        stacked: list[list[Everywhere]] = []
        turns = range(p["length"])
        for i in reversed(turns) if p["reverse"] else turns:
            row = [{place: v[place][i] for place in self.places} for v in xs]
            out = self.block(op.bodies[0], [*consts, *carry, *row])
            carry = out[: p["num_carry"]]
            stacked.append(out[p["num_carry"] :])
        if p["reverse"]:
            stacked.reverse()
        none = [dict.fromkeys(self.places, np.zeros(s.shape, s.aval.dtype)) for s in op.outputs[p["num_carry"] :]]
        ys = [{q: np.stack([turn[q] for turn in turns]) for q in self.places} for turns in zip(*stacked, strict=True)]
        return [*carry, *(ys if stacked else none)]

    def _while(self, op: Control, operands: list[Everywhere]) -> list[Everywhere]:
        p = op.equation.params
        cond, body = operands[: p["cond_nconsts"]], operands[p["cond_nconsts"] :][: p["body_nconsts"]]
        carry = operands[p["cond_nconsts"] + p["body_nconsts"] :]
        while self._same(self.block(op.bodies[0], [*cond, *carry])[0], "a loop's condition"):
            carry = self.block(op.bodies[1], [*body, *carry])
        return list(carry)

    def _cond(self, op: Control, operands: list[Everywhere]) -> list[Everywhere]:
        index = int(np.clip(self._same(operands[0], "a branch's index"), 0, len(op.bodies) - 1))
        return self.block(op.bodies[index], operands[1:])

    def _same(self, values: Everywhere, what: str) -> Any:
        found = {int(v) for v in values.values()}
        if len(found) != 1:
            raise Disagreement(f"{what} differs between devices: {found}")
        return found.pop()


def _padded(value: Any, dim: int, size: int) -> Any:
    """`value`, `size` long in `dim`; what is added is garbage."""
    extra = size - value.shape[dim]
    if extra <= 0:
        return value
    shape = (*value.shape[:dim], extra, *value.shape[dim + 1 :])
    if _compat.is_extended(value.dtype):
        return _joined([value, jax.random.split(jax.random.key(0), shape)], dim)
    return _joined([value, garbage(shape, value.dtype)], dim)


def _joined(values: Sequence[Any], dim: int) -> Any:
    return (jnp if _compat.is_extended(values[0].dtype) else np).concatenate(values, dim)


def _block(value: Any, dim: int, number: int, size: int) -> Any:
    if value.shape[dim] == size and number == 0:
        return value
    return value[(slice(None),) * dim + (slice(number * size, (number + 1) * size),)]


def _masked(op: Compute, mask: Mask, value: Any, local: Local) -> Any:
    """The operand with its padding along one dim replaced by the monoid's identity."""
    multiple = value.shape[mask.dim] // local.blocks[mask.factor]
    kept = op.factors.sizes[mask.factor] * multiple - int(local.offset(mask.factor)) * multiple
    value = np.array(value)
    value[(slice(None),) * mask.dim + (slice(max(kept, 0), None),)] = identity(mask.monoid, value.dtype)
    return value


def _agree(a: Any, b: Any, at: Place, slot: Slot, machine: _Machine) -> bool:
    """Whether two copies of a block are the same, padding apart."""
    if a is b:
        return True
    real = tuple(slice(max(0, n - i * m)) for n, i, m in zip(slot.aval.shape, at, slot.shape, strict=True))
    return np.array_equal(a[real], b[real], equal_nan=np.issubdtype(a.dtype, np.inexact))
