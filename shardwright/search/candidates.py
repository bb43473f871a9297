"""Lists of classes that are worth pricing on one mesh axis.

Three kinds of seeds, found from the program's structure alone:
- one class: the batch (data parallelism), a sequence, a spatial dim;
- a set of parameter classes of which no parameter has two (each weight is cut once, so a product's contraction meets
a cut
  operand: Megatron's pairs for an MLP and attention), alone and followed by a class of the values between them
  (sequence parallelism);
- nothing.
Each can be joined by `store` classes, which cut the state (optimizer slots alone, or parameters too) where no seed
class does.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from shardwright.partition.context import SMALL_BYTES, storage_rank
from shardwright.plan.decision import AxisPlan
from shardwright.program.ir import Program, Role
from shardwright.rules.classes import Classes
from shardwright.search.facts import STATE, ClassFacts

OPTIMIZER_ONLY = frozenset({Role.OPTIMIZER})
ALL_STATE = frozenset(STATE)
ALL_INPUTS = ALL_STATE | {Role.BATCH}
MAX_CLASSES = 10
MIN_SHARE = 0.02


def useful_classes(classes: Classes, facts: ClassFacts, size: int) -> tuple[int, ...]:
    """Classes that cut a noticeable share of the flops or of the values, the most flops first."""
    flops, values = (max(x.values(), default=1.0) or 1.0 for x in (facts.flops, facts.value_bytes))
    scored = []
    for c in classes.all:
        if c.size < 2 or c.id in facts.stacked or c.size < size / 2:
            continue
        share = max(facts.flops.get(c.id, 0.0) / flops, facts.value_bytes.get(c.id, 0.0) / values)
        if share >= MIN_SHARE:
            scored.append((-share, c.id))
    return tuple(c for _, c in sorted(scored)[:MAX_CLASSES])


def compute_seeds(classes: Classes, facts: ClassFacts, useful: Sequence[int]) -> list[tuple[int, ...]]:
    """Lists of compute classes to start from."""
    in_parameters = {c for p in facts.parameters for c in p}
    seeds: list[tuple[int, ...]] = [(), *((c,) for c in useful)]
    sets: dict[frozenset[int], tuple[int, ...]] = {}  # no parameter has two of a set: their order says little
    for start in [c for c in useful if c in in_parameters]:
        chosen = _independent(facts, start, [c for c in useful if c in in_parameters])
        sets.setdefault(frozenset(chosen), chosen)
    between = [c for c in useful if c not in in_parameters]
    for chosen in sets.values():
        seeds.append(chosen)
        seeds.extend((*chosen, c) for c in between[:3])
    return list(dict.fromkeys(seeds))


def _independent(facts: ClassFacts, start: int, others: Sequence[int]) -> tuple[int, ...]:
    """`start` and every other class that shares no parameter with those taken, largest state first."""
    taken = [start]
    for c in sorted(others, key=lambda c: (-facts.state_bytes.get(c, 0.0), c)):
        if c not in taken and not any(c in p and any(t in p for t in taken) for p in facts.parameters):
            taken.append(c)
    return tuple(taken)


def with_store(
    program: Program,
    classes: Classes,
    facts: ClassFacts,
    axes: Sequence[AxisPlan],
    position: int,
    rest: frozenset[Role],
) -> AxisPlan:
    """The axis with the store classes that cut all state which its compute classes leave whole.

    Of each leaf that dim is taken which divides evenly and lets the leaf lie best (`storage_rank`); one that scans run
    over only where no leaf has another. With `ALL_INPUTS` likewise every other input: weights that are not trained.
    """
    plan = axes[position]
    store: dict[int, int] = {}
    roles = set()
    for leaf, v in zip(program.inputs, program.block.invars, strict=True):
        of = classes.of[v]
        if leaf.role in ALL_STATE | rest and leaf.aval.bytes >= SMALL_BYTES and not set(plan.compute) & set(of):
            parts = [_parts(axes, position, c) for c in of]
            able = [dim for dim, c in enumerate(of) if classes.all[c].size % parts[dim] == 0]
            if able:
                ranks = {
                    dim: (of[dim] in facts.stacked, *storage_rank(leaf.aval.shape, dim, parts[dim])) for dim in able
                }
                best = of[min(able, key=lambda dim: ranks[dim])]
                store[best] = store.get(best, 0) + leaf.aval.bytes
                roles.add(leaf.role)
    if not facts.stacked.issuperset(store):
        store = {c: n for c, n in store.items() if c not in facts.stacked}
    listed = tuple(sorted(store, key=lambda c: (-store[c], c)))
    rest = rest if Role.BATCH in roles else rest - {Role.BATCH}
    return dataclasses.replace(plan, store=listed, rest=rest) if listed else plan


def _parts(axes: Sequence[AxisPlan], position: int, c: int) -> int:
    """Into how many blocks the axes would cut the class if this one cut it too."""
    others = math.prod(a.size for i, a in enumerate(axes) if i != position and (c in a.compute or c in a.store))
    return others * axes[position].size


def neighbors(plan: AxisPlan, useful: Sequence[int]) -> dict[tuple[str, int], tuple[int, ...]]:
    """Compute lists one step away: step → list. A class more (in front or behind), a class less."""
    lists = {("less", c): tuple(x for x in plan.compute if x != c) for c in plan.compute}
    for c in useful:
        if c not in plan.compute:
            lists["front", c] = (c, *plan.compute)
            if plan.compute:
                lists["behind", c] = (*plan.compute, c)
    return lists
