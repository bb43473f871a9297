"""What is different between two plans."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from shardwright.plan.amounts import bytes_text, seconds_text
from shardwright.plan.placement import notation
from shardwright.plan.record import LeafRecord, PlanRecord

MAX_LEAVES = 40
"""Leaves that the text of a difference names."""


@dataclasses.dataclass(frozen=True)
class Change:
    """One thing that differs: what, and how it reads in the first and in the second plan ('' where it is absent)."""

    what: str
    before: str
    after: str


@dataclasses.dataclass(frozen=True)
class Diff:
    """The changes from one plan to another. `str` of it is for the reader.

    Attributes:
        program: Whether the two are for different programs.
        setting: Cluster, memory limit, objective and mesh.
        classes: What each axis cuts.
        leaves: Inputs and results that lie elsewhere.
        estimate: Seconds, memory, bytes sent.
    """

    program: tuple[Change, ...]
    setting: tuple[Change, ...]
    classes: tuple[Change, ...]
    leaves: tuple[Change, ...]
    estimate: tuple[Change, ...]

    def __bool__(self) -> bool:
        return any(getattr(self, f.name) for f in dataclasses.fields(self))

    def __str__(self) -> str:
        if not self:
            return "the plans are the same"
        return "\n".join(line for f in dataclasses.fields(self) for line in _section(f.name, getattr(self, f.name)))


def diff(a: PlanRecord, b: PlanRecord) -> Diff:
    """What changes from `a` to `b`."""
    return Diff(
        _changes([("fingerprint", a.fingerprint[:8], b.fingerprint[:8])]),
        _changes(
            [
                ("cluster", a.cluster, b.cluster),
                ("memory limit", bytes_text(a.memory_limit_bytes), bytes_text(b.memory_limit_bytes)),
                ("objective", a.objective, b.objective),
                ("mesh", _mesh_text(a), _mesh_text(b)),
            ]
        ),
        _changes(_classes(a, b)),
        _changes(_leaves(a, b)),
        _changes(_estimates(a, b)),
    )


def _changes(rows: list[tuple[str, str, str]] | Iterator[tuple[str, str, str]]) -> tuple[Change, ...]:
    return tuple(Change(*row) for row in rows if row[1] != row[2])


def _mesh_text(record: PlanRecord) -> str:
    return " × ".join(f"{axis}={size}" for axis, size in record.mesh.items())


def _classes(a: PlanRecord, b: PlanRecord) -> Iterator[tuple[str, str, str]]:
    laid = [{x.axis: x for x in r.program.decision.axes} for r in (a, b)]
    for axis in dict.fromkeys((*laid[0], *laid[1])):
        for what in ("compute", "store", "rest"):
            before, after = (", ".join(getattr(x[axis], what)) if axis in x else "" for x in laid)
            yield f"{axis} {what}", before, after
    pins = [r.program.decision.pins for r in (a, b)]
    for name in sorted({*pins[0], *pins[1]}):
        before, after = (str(p[name]) if name in p else "" for p in pins)
        yield f"pin {name}", before, after
    before, after = (str(r.program.decision.partial_carries) for r in (a, b))
    yield "partial carries", before, after


def _leaves(a: PlanRecord, b: PlanRecord) -> Iterator[tuple[str, str, str]]:
    for side in ("inputs", "outputs"):
        lies = [{leaf.name: leaf for leaf in getattr(r.program, side)} for r in (a, b)]
        for name in dict.fromkeys((*lies[0], *lies[1])):
            before, after = (_leaf_text(x[name]) if name in x else "" for x in lies)
            yield name, before, after


def _leaf_text(leaf: LeafRecord) -> str:
    return f"{leaf.dtype}{notation([str(n) for n in leaf.shape], leaf.placement)}"


def _estimates(a: PlanRecord, b: PlanRecord) -> Iterator[tuple[str, str, str]]:
    x, y = a.estimate, b.estimate
    yield "seconds", seconds_text(x.seconds), seconds_text(y.seconds)
    yield "compute", seconds_text(x.compute_seconds), seconds_text(y.compute_seconds)
    yield "communication", seconds_text(x.collective_seconds), seconds_text(y.collective_seconds)
    yield "bytes sent", bytes_text(x.bytes_sent), bytes_text(y.bytes_sent)
    yield "peak memory", bytes_text(x.memory.peak_bytes), bytes_text(y.memory.peak_bytes)
    for role in dict.fromkeys((*x.memory.by_role, *y.memory.by_role)):
        before, after = (bytes_text(m.by_role.get(role, 0)) for m in (x.memory, y.memory))
        yield f"memory of {role}", before, after


def _section(title: str, changes: tuple[Change, ...]) -> Iterator[str]:
    if not changes:
        return
    yield title
    shown = changes[:MAX_LEAVES]
    width = max(len(c.what) for c in shown)
    for c in shown:
        yield f"  {c.what:<{width}}  {c.before or '(none)'} → {c.after or '(none)'}"
    if len(changes) > MAX_LEAVES:
        yield f"  and {len(changes) - MAX_LEAVES} more"
