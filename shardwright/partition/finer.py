"""Copies of too few pieces for the axes that cut them: the copies are cut, and the pieces are whole.

Grouped queries: 8 query heads read 2 key-value heads, so all heads are one class of 2 pieces, and an axis of 4 devices
would leave two of them idle. But all that joins the 8 to the 2 is copying: a value [2, 4] of which the 4 is new,
reshaped to [8], and in the backward [8] reshaped to [2, 4] and summed over the 4. Kept apart there, the copies are a
class of 8. Every device computes both key-value heads and takes its block of the copies; a cotangent's block is put
between zeros (a move called `expand`) and becomes a pending sum.

With c a class of n pieces and p the devices along the axes that cut it, n no multiple of p: kept apart at its copies, c
falls into parts. Those that p divides are cut, the others are whole. If the former have the share w of c's flops, each
device computes

    w / p + 1 - w     of them, and with c padded     ceil(n / p) / n.

The less is taken. Without copies c is padded.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping

from shardwright.partition.device import Copied
from shardwright.plan.decision import Decision
from shardwright.program.ir import Equation, Program, Var, counted
from shardwright.rules.classes import Classes, Facts, find_classes

Meeting = tuple[Equation, int]
"""An equation, and its factor that is kept apart there."""


@dataclasses.dataclass(frozen=True, eq=False)
class Finer:
    """Classes kept apart at copies.

    Attributes:
      classes: the new classes.
      cut: for each old class the new ones that are cut in its place.
      meetings: for each old class that has fallen into parts, where they meet.
    """

    classes: Classes
    cut: Mapping[int, tuple[int, ...]]
    meetings: Mapping[int, tuple[Meeting, ...]]


def finer(program: Program, classes: Classes, decision: Decision) -> tuple[Classes, Decision, tuple[Copied, ...]]:
    """The classes to partition by, the decision in terms of them, and what it leaves whole."""
    listed = {c for a in decision.axes for c in (*a.compute, *a.store) if classes.all[c].size > 1}
    wanted = frozenset((c, p) for c in listed if classes.all[c].size % (p := decision.parts(c)))
    if not wanted:
        return classes, decision, ()
    if wanted not in classes.finer:
        classes.finer[wanted] = _find(program, classes, dict(wanted))
    found: Finer = classes.finer[wanted]
    if not found.meetings:
        return classes, decision, ()
    axes = tuple(
        dataclasses.replace(a, compute=_parts(found, a.compute), store=_parts(found, a.store)) for a in decision.axes
    )
    copied = tuple(_copied(program, classes, found, decision, c) for c in sorted(found.meetings))
    return found.classes, dataclasses.replace(decision, axes=axes), copied


def _parts(found: Finer, ids: Iterable[int]) -> tuple[int, ...]:
    return tuple(itertools.chain.from_iterable(found.cut[c] for c in ids))


def _find(program: Program, classes: Classes, parts: Mapping[int, int]) -> Finer:
    """Keeps apart every class of `parts` that is the better for it. `parts`: class → devices that cut it."""
    meetings = {c: found for c, p in parts.items() if (found := _meetings(classes, c, p))}
    if not meetings:
        return Finer(classes, {c.id: (c.id,) for c in classes.all}, {})
    new = find_classes(program, frozenset(itertools.chain.from_iterable(meetings.values())))
    into: dict[int, set[int]] = {c.id: set() for c in classes.all}
    for v, of in classes.of.items():
        for c, k in zip(of, new.of[v], strict=True):
            into[c].add(k)
    into_parts = {c: parts[c] if c in meetings else 1 for c in into}
    cut = {c: tuple(sorted(k for k in ids if new.all[k].size % into_parts[c] == 0)) for c, ids in into.items()}
    better = {c: p for c, p in parts.items() if c in meetings and _pays(program, classes, new, c, p, cut[c])}
    return Finer(new, cut, meetings) if len(better) == len(meetings) else _find(program, classes, better)


def _pays(program: Program, old: Classes, new: Classes, c: int, parts: int, cut: tuple[int, ...]) -> bool:
    """Whether a device computes less with `cut` cut and the rest of class `c` whole than with `c` padded."""
    all_flops = cut_flops = 0.0
    for eqn, times in counted(program.block):
        if not eqn.blocks and c in old.facts[eqn].cuttable:
            facts = new.facts[eqn]
            all_flops += times * facts.flops
            cut_flops += times * facts.flops * any(k in facts.cuttable for k in cut)
    pieces = old.all[c].size
    return cut_flops / parts + (all_flops - cut_flops) < all_flops * math.ceil(pieces / parts) / pieces


def _meetings(classes: Classes, c: int, parts: int) -> tuple[Meeting, ...]:
    """Where pieces of class `c`, too few for `parts`, meet their copies."""
    made = {v: eqn for eqn in classes.facts for v in eqn.outvars}
    return tuple(
        (eqn, f)
        for eqn, facts in classes.facts.items()
        for f in facts.cuttable.get(c, ())
        if facts.factors.sizes[f] % parts and _joins_copies(classes, made, eqn, facts, f)
    )


def _joins_copies(classes: Classes, made: Mapping[Var, Equation], eqn: Equation, facts: Facts, factor: int) -> bool:
    """Whether one side of `eqn` has the pieces and their copies as two dims that the other side has as one.

    The copies are new in the operand, or nothing is done with them in the result but to sum them up.
    """
    if len(eqn.invars) != 1 or len(eqn.outvars) != 1 or not isinstance(eqn.invars[0], Var):
        return False
    operand, result = eqn.invars[0], eqn.outvars[0]
    dims, out = facts.factors.operands[0], facts.factors.results[0]
    if factor not in dims or factor not in out:
        return False
    at, to, size = dims.index(factor), out.index(factor), facts.factors.sizes[factor]
    if operand.aval.shape[at : at + 2] == (size, result.aval.shape[to] // size):
        return operand in made and _is_new(classes.facts[made[operand]], operand, made[operand], at + 1)
    if result.aval.shape[to : to + 2] == (size, operand.aval.shape[at] // size):
        readers = classes.readers.get(result, [])
        return bool(readers) and all(r is not None and _is_summed(classes, r, to + 1) for r, _ in readers)
    return False


def _is_new(facts: Facts, v: Var, eqn: Equation, dim: int) -> bool:
    """Whether `v`'s dim is one that no operand of `eqn`, which computes it, has."""
    factor = facts.factors.results[eqn.outvars.index(v)][dim]
    return factor is not None and not any(factor in dims for dims in facts.factors.operands)


def _is_summed(classes: Classes, reader: Equation, dim: int) -> bool:
    """Whether `reader` sums its only operand over this dim."""
    if reader.blocks or len(reader.invars) > 1:
        return False
    factors = classes.facts[reader].factors
    factor = factors.operands[0][dim]
    return factor is not None and factors.contracted.get(factor) == "sum"


def _copied(program: Program, old: Classes, found: Finer, decision: Decision, c: int) -> Copied:
    axes = tuple(a.axis for a in decision.axes if a.size > 1 and c in (*a.compute, *a.store))
    whole = tuple(
        leaf.name
        for leaf, v in zip(program.inputs, program.block.invars, strict=True)
        if any(was == c and k not in found.cut[c] for was, k in zip(old.of[v], found.classes.of[v], strict=True))
    )
    values = tuple(_copies(found.classes.facts[eqn], eqn, f) for eqn, f in found.meetings[c])
    copies = min(found.classes.all[k].size for k in found.cut[c])
    line = found.meetings[c][0][0].source.line
    return Copied(old.all[c].name, old.all[c].size, copies, axes, decision.parts(c), whole, values, line)


def _copies(facts: Facts, eqn: Equation, factor: int) -> tuple[Var, int]:
    """The side of a meeting that has the copies: its variable and dim."""
    result, dim = eqn.outvars[0], facts.factors.results[0].index(factor)
    if result.aval.shape[dim] > facts.factors.sizes[factor]:
        return result, dim
    operand = eqn.invars[0]
    assert isinstance(operand, Var), "constants meet nothing"
    return operand, facts.factors.operands[0].index(factor)
