"""Initial state that is born where a plan wants it.

The init function is a program like any other: its results are pinned where the step takes them, and on each axis every
equation is cut by the classes that the pinned dims have. Random bits are computed in place, block by block.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from shardwright.plan.decision import AxisPlan, Decision
from shardwright.plan.record import LeafRecord
from shardwright.program.ir import Program, Role, Var
from shardwright.program.signature import argument_of
from shardwright.rules.classes import Classes, find_classes


def without_state(program: Program) -> Program:
    """`program` with no result that replaces an argument: where an init function's arguments lie says nothing."""
    return dataclasses.replace(program, carried=(None,) * len(program.outputs))


def init_targets(program: Program, planned: Sequence[LeafRecord], step: Program) -> list[LeafRecord]:
    """For each result of the init program the step's input that it becomes.

    The results must be, in order, the leaves of one argument of the step, or of its first arguments.

    Raises:
      ValueError: if they are not.
    """
    wanted = [(leaf.aval.shape, leaf.aval.dtype) for leaf in program.outputs]
    if not wanted and step.inputs:
        raise ValueError("the init function returns no arrays; return what the step takes as its state")
    given = [(leaf.aval.shape, leaf.aval.dtype) for leaf in step.inputs]
    starts = [0, *(i for i in range(1, len(given)) if argument_of(planned[i].name) != argument_of(planned[i - 1].name))]
    for start in starts:
        if given[start : start + len(wanted)] == wanted:
            return list(planned[start : start + len(wanted)])
    first = next(
        (i for i, (a, b) in enumerate(zip(wanted, given, strict=False)) if a != b), min(len(wanted), len(given))
    )
    returned = f"{program.outputs[first].name} is {_text(*wanted[first])}" if first < len(wanted) else "it ends there"
    expected = (
        f"{planned[first].name} is {_text(*given[first])}" if first < len(given) else "the step's arguments end there"
    )
    raise ValueError(
        f"the init function returns {len(wanted)} arrays that are no argument of the step (which has {len(given)} "
        f"input arrays): at array {first}, {returned}, {expected}. Return what the step takes as its state, with the "
        "same structure and dtypes."
    )


def _text(shape: tuple[int, ...], dtype: object) -> str:
    return f"{dtype}{list(shape)}"


def init_decision(program: Program, targets: Sequence[LeafRecord], step: Decision) -> tuple[Classes, Decision]:
    """The init program's classes, and the decision that lays its results as the targets lie."""
    classes = find_classes(program)
    lists: dict[str, list[int]] = {a.axis: [] for a in step.axes}
    pins = {}
    for leaf, v, target in zip(program.outputs, program.block.outvars, targets, strict=True):
        pins[leaf.name] = target.spec
        for dim, names in enumerate(target.spec):
            for axis in names:
                c = classes.of[v][dim] if isinstance(v, Var) else None
                if c is not None and c not in lists[axis]:
                    lists[axis].append(c)
    axes = tuple(
        AxisPlan(a.axis, a.size, tuple(lists[a.axis]), (), frozenset({Role.PARAMETER, Role.OPTIMIZER}))
        for a in step.axes
    )
    return classes, dataclasses.replace(step, axes=axes, pins=pins)
