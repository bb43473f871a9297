"""What every stage of the partitioner reads: the program's classes under one decision."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence

from shardwright.partition.device import Copied
from shardwright.partition.effects import check_effects
from shardwright.partition.finer import finer
from shardwright.partition.pinned import check_pins, pin_of, pins_of
from shardwright.plan.decision import AxisPlan, Decision
from shardwright.plan.placement import Placement, local_shape
from shardwright.program.ir import Leaf, Program, Var
from shardwright.rules.classes import Classes

SMALL_BYTES = 16384
"""Below this a leaf stays whole at rest, and what updates it runs whole: its gather would cost more than it saves."""
TILE = (8, 128)
"""Elements of a TPU's tile, of the second minor and the minor dim."""


@dataclasses.dataclass(frozen=True, eq=False)
class Context:
    """A program, the classes that it is partitioned by, a decision in terms of them, and what these may leave whole."""

    program: Program
    classes: Classes
    decision: Decision
    mesh: Mapping[str, int]
    padded_sizes: tuple[int, ...]
    copied: tuple[Copied, ...] = ()
    padded_shapes: dict[Var, tuple[int, ...]] = dataclasses.field(default_factory=dict)

    @property
    def mesh_items(self) -> tuple[tuple[str, int], ...]:
        """The mesh, hashable."""
        return tuple(self.mesh.items())


def make_context(program: Program, classes: Classes, decision: Decision) -> Context:
    """Fixes every class' padded size: the least multiple of the product of the axes that cut it, here or in a pin.

    An axis of one device cuts nothing.
    """
    check_pins(program, decision.mesh)
    check_effects(program, decision.mesh)
    idle = [dataclasses.replace(a, compute=(), store=()) if a.size == 1 else a for a in decision.axes]
    classes, decision, copied = finer(program, classes, dataclasses.replace(decision, axes=tuple(idle)))
    axes: dict[int, set[str]] = {}
    for plan in decision.axes:
        for c in (*plan.compute, *plan.store):
            axes.setdefault(c, set()).add(plan.axis)
    for eqn in pins_of(program):
        for c, named in zip(classes.of[eqn.outvars[0]], pin_of(eqn), strict=True):
            axes.setdefault(c, set()).update(named or ())
    padded = []
    for each in classes.all:
        parts = math.prod(decision.mesh[a] for a in axes.get(each.id, ()))
        padded.append(math.ceil(each.size / parts) * parts)
    return Context(program, classes, decision, decision.mesh, tuple(padded), copied)


def copied(context: Context, rest: Sequence[Placement]) -> tuple[Copied, ...]:
    """Of what the classes leave whole that of which copies are cut indeed: by no class that the axis prefers.

    `rest`: where each input lies between steps.
    """
    if not context.copied:
        return ()
    lies = {leaf.name: place for leaf, place in zip(context.program.inputs, rest, strict=True)}
    return tuple(
        dataclasses.replace(c, whole=tuple(name for name in c.whole if not lies[name].axes & set(c.axes)))
        for c in context.copied
        if any(set(natural(context, v).dims[dim]) & set(c.axes) for v, dim in c.values)
    )


def padded_shape(context: Context, var: Var) -> tuple[int, ...]:
    """Size of each of `var`'s dims when it is cut."""
    if var not in context.padded_shapes:
        classes, padded = context.classes, context.padded_sizes
        context.padded_shapes[var] = tuple(
            [
                padded[c] * (size // classes.all[c].size) if classes.all[c].size else size
                for size, c in zip(var.aval.shape, classes.of[var], strict=True)
            ]
        )
    return context.padded_shapes[var]


def device_shape(context: Context, var: Var, placement: Placement) -> tuple[int, ...]:
    """Shape of one device's part of `var`."""
    return local_shape(var.aval.shape, padded_shape(context, var), placement, context.mesh)


def natural(context: Context, var: Var) -> Placement:
    """Where `var` lies if nothing else is known: on each axis cut by the first class on the axis' lists that it has."""
    dims: list[tuple[str, ...]] = [()] * var.aval.ndim
    for axis_plan in context.decision.axes:
        dim = _first_dim(context, var, axis_plan)
        if dim is not None:
            dims[dim] = (*dims[dim], axis_plan.axis)
    of = context.classes.of[var]
    return Placement(tuple(in_order(context.decision, c, axes) for c, axes in zip(of, dims, strict=True)))


def in_order(decision: Decision, dim_class: int | None, axes: tuple[str, ...]) -> tuple[str, ...]:
    """Axes that cut one dim, major to minor: those that compute with its class before those that only store it.

    State that `t` computes with and `d` stores lies cut by (t, d): one gather over d gives what is computed with.
    """
    if len(axes) < 2:
        return axes
    computing = {a.axis for a in decision.axes if dim_class in a.compute}
    return tuple(sorted(axes, key=lambda axis: axis not in computing))


@functools.lru_cache(maxsize=1 << 14)
def storage_rank(shape: tuple[int, ...], dim: int, parts: int) -> tuple[float, int]:
    """How well a value lies if `dim` is cut, the lowest best: by what tiles of 8 x 128 elements pad, then major dims.

    A block without a dim of 128 elements fills such a tile in no layout; a gather of the major dim needs no copy.
    """
    block = [math.ceil(n / parts) if i == dim else n for i, n in enumerate(shape)]
    second, first = ([1, *sorted(block)])[-2:]
    padding = _padding(first, TILE[1]) * _padding(second, TILE[0])
    return (padding if padding > 1.1 else 1.0), dim


def _padding(n: int, multiple: int) -> float:
    return math.ceil(n / multiple) * multiple / max(n, 1)


def _first_dim(context: Context, var: Var, axis_plan: AxisPlan) -> int | None:
    small = var.aval.bytes < SMALL_BYTES
    dims = _candidates(context, var, axis_plan.compute, () if small else axis_plan.store)
    return next((dim for dim in dims if context.classes.all[context.classes.of[var][dim]].size > 1), None)


def at_rest(context: Context, leaf: Leaf, var: Var) -> Placement:
    """Where a leaf lies between steps: as `natural`, on dims that divide; whole where its role is kept whole."""
    pinned = context.decision.pins.get(leaf.name)
    dims: list[tuple[str, ...]] = [() if p is None else p for p in pinned] if pinned else [()] * var.aval.ndim
    used = {a for axes in dims for a in axes}
    for axis_plan in context.decision.axes:
        if axis_plan.axis in used:
            continue
        stored = axis_plan.store if leaf.role in axis_plan.rest and var.aval.bytes >= SMALL_BYTES else ()
        for dim in _candidates(context, var, axis_plan.compute, stored):
            free = pinned is None or pinned[dim] is None
            parts = math.prod(context.mesh[a] for a in (*dims[dim], axis_plan.axis))
            if (
                free
                and var.aval.shape[dim]
                and padded_shape(context, var)[dim] == var.aval.shape[dim]
                and var.aval.shape[dim] % parts == 0
            ):
                dims[dim] = (*dims[dim], axis_plan.axis)
                break
    for dim, c in enumerate(context.classes.of[var]):
        if pinned is None or pinned[dim] is None:
            dims[dim] = in_order(context.decision, c, dims[dim])
    return Placement(tuple(dims))


def _candidates(context: Context, var: Var, compute: tuple[int, ...], store: tuple[int, ...]) -> list[int]:
    """Dims that an axis can cut, first choice first: compute classes as listed, then store classes as they lie best."""
    of = context.classes.of[var]
    stored = [dim for dim, found in enumerate(of) if found in store and found not in compute]
    return [
        *(dim for c in compute for dim, found in enumerate(of) if found == c),
        *sorted(stored, key=lambda dim: storage_rank(var.aval.shape, dim, context.decision.parts(of[dim]))),
    ]
