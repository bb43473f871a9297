"""A decision with class names in place of ids, so that it can be read for a program that is traced again."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from shardwright.plan.decision import AxisPlan, Decision
from shardwright.program.ir import Role


@dataclasses.dataclass(frozen=True)
class AxisRecord:
    """An `AxisPlan` with class names in place of ids and role names in place of roles (sorted)."""

    axis: str
    size: int
    compute: tuple[str, ...]
    store: tuple[str, ...]
    rest: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class DecisionRecord:
    """A `Decision` with class names in place of ids. `pins`: leaf name → axes of each dim, None where it is free."""

    axes: tuple[AxisRecord, ...]
    pins: Mapping[str, tuple[tuple[str, ...] | None, ...]]
    partial_carries: bool
    regather: bool


def by_name(decision: Decision, names: Mapping[int, str]) -> DecisionRecord:
    """`decision` with class names in place of ids; `names` holds the program's."""
    axes = tuple(
        AxisRecord(
            a.axis,
            a.size,
            tuple(names[c] for c in a.compute),
            tuple(names[c] for c in a.store),
            tuple(sorted(r.value for r in a.rest)),
        )
        for a in decision.axes
    )
    return DecisionRecord(axes, dict(sorted(decision.pins.items())), decision.partial_carries, decision.regather)


def by_id(record: DecisionRecord, ids: Mapping[str, int]) -> Decision:
    """The decision that `record` describes, for a program whose classes have these ids.

    Raises:
        ValueError: The record names a class that the program does not have.
    """
    axes = tuple(
        AxisPlan(a.axis, a.size, _ids(a, a.compute, ids), _ids(a, a.store, ids), frozenset(map(Role, a.rest)))
        for a in record.axes
    )
    return Decision(axes, dict(record.pins), record.partial_carries, record.regather)


def _ids(axis: AxisRecord, names: tuple[str, ...], ids: Mapping[str, int]) -> tuple[int, ...]:
    missing = [n for n in names if n not in ids]
    if missing:
        raise ValueError(
            f"The plan lays {', '.join(map(repr, missing))} on mesh axis {axis.axis!r}, and the program has no dims of "
            f"that name; it has {', '.join(sorted(ids))}. Classes are named after the step's arguments, and another "
            "version of this package may name them otherwise: plan again, or use the version that wrote the plan."
        )
    return tuple(ids[n] for n in names)
