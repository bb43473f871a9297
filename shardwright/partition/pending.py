"""Where a pending sum is resolved: the least bytes along its linear chain.

At an equation through which the sum may pass, resolving here costs

    Σ over the pending operands of  bytes(operand) · (1 if every reader wants it cut on this axis, else 2)

(a reduce-scatter sends half of what an all-reduce sends), and passing costs the cheapest point further down the
chain. A chain goes on while there is one reader and that reader is linear; a sum of two pending values is one value,
so three projections' cotangents are reduced once. Equal costs pass.

A value that lies cut can become pending too, where copies are summed (`cuts.expands`): it is weighed in the same way
against a gather, bytes(operand).
"""

from __future__ import annotations

import math

from shardwright.partition.builder import Builder
from shardwright.partition.context import natural
from shardwright.partition.cuts import expands, passing_group
from shardwright.program.ir import Atom, Equation, Var

OUTSIDE = 0.99
"""A sum that leaves a loop pending is reduced once, in one piece: slightly better than once a turn at equal bytes.

One that the loop accumulates is not even as many bytes: they are sent once and not once a turn.
"""


def passes(b: Builder, eqn: Equation) -> tuple[frozenset[int], tuple[str, ...]]:
    """(operand positions, axes) of the pending sums that pass through `eqn` unresolved."""
    facts = b.context.classes.facts[eqn]
    chosen = b.cuts.factors[eqn]
    group: frozenset[int] = frozenset()
    axes: list[str] = []
    for plan, factor in zip(b.context.decision.axes, chosen, strict=True):
        if factor is not None:
            continue
        pending = {
            a: _only_pending(b, a, plan.axis) or _expands(b, eqn, i, plan.axis) for i, a in enumerate(eqn.invars)
        }
        found = passing_group(b.cuts, eqn, facts, plan.axis, pending)
        if found is None or (group and found != group):
            continue
        waiting = {a for a in eqn.invars if isinstance(a, Var) and pending[a]}
        now = sum(_now_cost(b, a, plan.axis) for a in waiting if not _resolved_anyway(b, a, plan.axis, eqn))
        if min(_future(b, v, plan.axis) for v in eqn.outvars) <= now:
            group = found
            axes.append(plan.axis)
    return group, tuple(axes)


def _only_pending(b: Builder, a: Atom, axis: str) -> bool:
    """Whether `a` can only be had as a pending sum on `axis`; once resolved for one reader it is free for all."""
    slots = b.available(a) if isinstance(a, Var) else {}
    return bool(slots) and all(p.pending(axis) == "sum" for p in slots)


def _expands(b: Builder, eqn: Equation, position: int, axis: str) -> bool:
    """Whether the operand can be had only as cut on `axis`, and can enter as a sum."""
    a, facts = eqn.invars[position], b.context.classes.facts[eqn]
    slots = b.available(a) if isinstance(a, Var) else {}
    return bool(slots) and all(expands(facts, position, axis, at) for at in slots)


def _now_cost(b: Builder, v: Var, axis: str) -> float:
    """What it costs to have `v` not pending but as its reader wants it; where it lies cut, whole: a gather."""
    return _resolve_cost(b, v, axis) if _only_pending(b, v, axis) else _local_bytes(b, v, axis)


def _resolved_anyway(b: Builder, v: Var, axis: str, but: Equation) -> bool:
    """Whether another reader of `v` cannot take it pending: then it is resolved once, for all of them."""
    for eqn, _ in b.context.classes.readers.get(v, []):
        if eqn is None or eqn is but or eqn.blocks or eqn not in b.cuts.factors:
            continue
        if b.cuts.factors[eqn][_index(b, axis)] is not None:
            continue
        if passing_group(b.cuts, eqn, b.context.classes.facts[eqn], axis, None) is None:
            return True
    return False


def _future(b: Builder, v: Var, axis: str) -> float:
    """The least cost of resolving `v` here or anywhere down its chain."""
    best = math.inf
    while True:
        readers = b.context.classes.readers.get(v, [])
        best = min(best, _resolve_cost(b, v, axis))
        if len(readers) != 1:
            return best
        eqn, position = readers[0]
        if eqn is None:
            wanted = b.wanted[position]
            if wanted is not None and wanted.pending(axis):
                return min(best, _resolve_cost(b, v, axis) / b.turns * OUTSIDE)
            return best * OUTSIDE if position in b.stay_pending else best
        if eqn.blocks or eqn not in b.cuts.factors or b.cuts.factors[eqn][_index(b, axis)] is not None:
            return best
        facts = b.context.classes.facts[eqn]
        if passing_group(b.cuts, eqn, facts, axis, None) is None or len(eqn.outvars) != 1:
            return best
        v = eqn.outvars[0]


def _index(b: Builder, axis: str) -> int:
    return list(b.context.mesh).index(axis)


def _resolve_cost(b: Builder, v: Var, axis: str) -> float:
    """Bytes of `v` on one device, once if every reader wants it cut on `axis`, twice else."""
    readers = b.context.classes.readers.get(v, [])
    scattered = bool(readers) and all(_wants_cut(b, v, axis, *r) for r in readers)
    return _local_bytes(b, v, axis) * (1.0 if scattered else 2.0)


def _local_bytes(b: Builder, v: Var, axis: str) -> float:
    """Bytes of `v` on one device, whole on `axis`."""
    readers = b.context.classes.readers.get(v, [])
    others = 1
    for eqn, position in readers[:1]:
        if eqn is None and (wanted := b.wanted[position]) is not None:
            others = math.prod(b.context.mesh[a] for a in wanted.axes - {axis})
        elif eqn is not None and eqn in b.cuts.factors:
            dims = b.context.classes.facts[eqn].factors.operands[position]
            for plan, f in zip(b.context.decision.axes, b.cuts.factors[eqn], strict=True):
                if plan.axis != axis and f is not None and f in dims:
                    others *= plan.size
    return v.aval.bytes / others


def _wants_cut(b: Builder, v: Var, axis: str, eqn: Equation | None, position: int) -> bool:
    if eqn is None:
        wanted = b.wanted[position]
        return wanted is not None and axis in wanted.axes
    if eqn.blocks:
        return axis in natural(b.context, v).axes
    if eqn not in b.cuts.factors:
        return axis in natural(b.context, v).axes
    factor = b.cuts.factors[eqn][_index(b, axis)]
    return factor is not None and factor in b.context.classes.facts[eqn].factors.operands[position]
