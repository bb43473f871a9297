"""First pass: by which factor each equation is cut on each axis.

Preference is the decision's order of classes. Where several factors of an equation are of one class (queries and keys
of self-attention) the one that the larger operands already lie cut by wins, then a free one before a contracted one.
Where the class meets an equation that cannot be cut by it (a cumulative sum along it), another free dim is taken if
its size
divides: an all-to-all moves less than a gather.

The pass also notes which values *could* be pending sums on which axis; the second pass decides where they are resolved.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
from collections.abc import Mapping

import numpy as np

from shardwright import _compat
from shardwright.partition.context import SMALL_BYTES, Context, at_rest, in_order, natural, storage_rank
from shardwright.partition.pinned import is_pin, pinned
from shardwright.plan.decision import AxisPlan
from shardwright.plan.placement import Placement, whole
from shardwright.program.ir import Atom, Block, Equation, Var
from shardwright.rules.classes import Facts, inner_operands
from shardwright.rules.row import Dims


@dataclasses.dataclass(eq=False)
class Cuts:
    """Result of the pass.

    factors: equation → for each axis the factor that cuts it, or None.
    axes: equation → for each factor the axes that cut it, major to minor.
    blocked: equation → axes whose class it could not be cut by.
    partial: variable → axes on which it could be a pending sum.
    accumulators: scan equation → for each carry the axes on which it may hold pending sums.
    zeros: variables known to be zero everywhere.
    feeds: (axis, variable) → whether what is computed from it is cut by a `compute` class of the axis.
    """

    factors: dict[Equation, tuple[int | None, ...]] = dataclasses.field(default_factory=dict)
    axes: dict[Equation, tuple[tuple[str, ...], ...]] = dataclasses.field(default_factory=dict)
    blocked: dict[Equation, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    partial: dict[Var, frozenset[str]] = dataclasses.field(default_factory=dict)
    accumulators: dict[Equation, tuple[frozenset[str], ...]] = dataclasses.field(default_factory=dict)
    zeros: set[Var] = dataclasses.field(default_factory=set)
    feeds: dict[tuple[str, Var], bool] = dataclasses.field(default_factory=dict)


def find_cuts(context: Context) -> Cuts:
    """Runs the pass over the whole program."""
    cuts = Cuts()
    block = context.program.block
    lies = {v: at_rest(context, leaf, v) for leaf, v in zip(context.program.inputs, block.invars, strict=True)}
    _block(context, cuts, block, lies)
    return cuts


def _block(context: Context, cuts: Cuts, block: Block, lies: dict[Var, Placement]) -> None:
    for eqn in block.equations:
        if eqn.blocks:
            _control(context, cuts, eqn, lies)
        else:
            _equation(context, cuts, eqn, lies)


def _equation(context: Context, cuts: Cuts, eqn: Equation, lies: dict[Var, Placement]) -> None:
    facts = context.classes.facts[eqn]
    if is_pin(eqn):
        (a,), (v,) = eqn.invars, eqn.outvars
        lies[v] = pinned(eqn, lies[a] if isinstance(a, Var) else whole(v.aval.ndim))
        cuts.partial[v] = frozenset()
        return
    if facts.row and facts.row.passthrough:
        for a, v in zip(eqn.invars, eqn.outvars, strict=True):
            lies[v] = lies.get(a, whole(v.aval.ndim)) if isinstance(a, Var) else whole(v.aval.ndim)
            cuts.partial[v] = cuts.partial.get(a, frozenset()) if isinstance(a, Var) else frozenset()
        return
    chosen: list[int | None] = []
    for axis_plan in context.decision.axes:
        factor, is_blocked = _choose(context, cuts, eqn, facts, axis_plan, lies)
        if is_blocked and factor is not None and not _divides(context, facts, factor, [*chosen, factor]):
            factor = None
        chosen.append(factor)
        if is_blocked:
            cuts.blocked[eqn] = (*cuts.blocked.get(eqn, ()), axis_plan.axis)
    cuts.factors[eqn] = tuple(chosen)
    axes = _axes_by_factor(context, facts, chosen)
    cuts.axes[eqn] = axes
    if eqn.name == "broadcast_in_dim" and is_zero(cuts, eqn.invars[0]):
        cuts.zeros.update(eqn.outvars)
    pending = _pending(context, cuts, eqn, facts, chosen, lies)
    for v, dims in zip(eqn.outvars, facts.factors.results, strict=True):
        lies[v] = placed(dims, axes)
        cuts.partial[v] = pending


def _axes_by_factor(context: Context, facts: Facts, chosen: list[int | None]) -> tuple[tuple[str, ...], ...]:
    found: list[tuple[str, ...]] = [()] * len(facts.factors.sizes)
    if all(f is None for f in chosen):
        return tuple(found)
    for plan, f in zip(context.decision.axes, chosen, strict=True):
        if f is not None:
            found[f] = (*found[f], plan.axis)
    return tuple(in_order(context.decision, c, axes) for c, axes in zip(facts.classes, found, strict=True))


@functools.lru_cache(maxsize=1 << 16)
def placed(dims: Dims, axes: tuple[tuple[str, ...], ...]) -> Placement:
    """Where an operand or result with these factors lies, if these axes cut the factors."""
    return Placement(tuple([() if f is None else axes[f] for f in dims]))


def _choose(
    context: Context, cuts: Cuts, eqn: Equation, facts: Facts, plan: AxisPlan, lies: dict[Var, Placement]
) -> tuple[int | None, bool]:
    """(factor or None, whether the wanted class could not be cut here)."""
    found = _listed(context, eqn, facts, plan, plan.compute, lies)
    if found is not None or not plan.store or facts.largest_bytes < SMALL_BYTES:
        return found or (None, False)
    found = _stored(context, eqn, facts, plan, lies)
    if found is None:
        return None, False
    if any(isinstance(a, Var) and plan.axis in lies[a].axes for a in eqn.invars):
        return found
    pending = [a for a in eqn.invars if isinstance(a, Var) and plan.axis in cuts.partial.get(a, ())]
    if not pending and any(_feeds_compute(context, cuts, v, plan) for v in eqn.outvars):
        return None, False  # cutting a whole value only to gather it again
    if (
        pending
        and passing_group(cuts, eqn, facts, plan.axis, None) is not None
        and _meets_another(context, eqn, pending)
    ):
        return None, False  # two sums that meet further on are reduced once
    return found


def _listed(
    context: Context, eqn: Equation, facts: Facts, plan: AxisPlan, classes: tuple[int, ...], lies: dict[Var, Placement]
) -> tuple[int | None, bool] | None:
    """The factor of the first of `classes` that the equation has; None if it has none of them."""
    for c in classes:
        if context.classes.all[c].size <= 1:
            continue
        having = facts.cuttable.get(c)
        if having:
            if len(having) == 1:
                return having[0], False
            contracted = facts.factors.contracted
            return max(having, key=lambda f: (_aligned(eqn, facts, f, plan.axis, lies), f not in contracted, -f)), False
        if c in facts.blocked:
            return _alternative(context, facts, plan), True
    return None


def _stored(
    context: Context, eqn: Equation, facts: Facts, plan: AxisPlan, lies: dict[Var, Placement]
) -> tuple[int | None, bool] | None:
    """As `_listed` of the store classes: where most operands lie cut already, else as the result would lie best."""
    having = [f for c in plan.store if context.classes.all[c].size > 1 for f in facts.cuttable.get(c, ())]
    if not having:
        return _listed(context, eqn, facts, plan, plan.store, lies)
    dims = facts.factors.results[0] if facts.factors.results else ()

    def rank(f: int) -> tuple:
        c = facts.classes[f]
        parts = 1 if c is None else context.decision.parts(c)
        ranks = (storage_rank(eqn.outvars[0].aval.shape, dim, parts) for dim, g in enumerate(dims) if g == f)
        return -_aligned(eqn, facts, f, plan.axis, lies), min(ranks, default=(math.inf,)), f

    return min(having, key=rank), False


def _meets_another(context: Context, eqn: Equation, pending: list[Var]) -> bool:
    """Whether the pending operands of a linear equation, read by nobody else, run into a sum of two values."""
    if any(len(context.classes.readers[a]) != 1 for a in pending):
        return False
    while True:
        if any(sum(isinstance(eqn.invars[i], Var) for i in group) > 1 for group in context.classes.facts[eqn].linear):
            return True
        readers = context.classes.readers.get(eqn.outvars[0], [])
        if len(readers) != 1 or readers[0][0] is None or readers[0][0].blocks:
            return False
        eqn = readers[0][0]
        if not context.classes.facts[eqn].linear:
            return False


def _feeds_compute(context: Context, cuts: Cuts, v: Var, plan: AxisPlan) -> bool:
    """Whether an equation that reads `v`, or what moves out of it, is cut by one of the axis' compute classes."""
    key = plan.axis, v
    if key not in cuts.feeds:
        cuts.feeds[key] = False
        cuts.feeds[key] = any(
            eqn is not None and _reads_for_compute(context, cuts, eqn, i, plan)
            for eqn, i in context.classes.readers.get(v, ())
        )
    return cuts.feeds[key]


def _reads_for_compute(context: Context, cuts: Cuts, eqn: Equation, position: int, plan: AxisPlan) -> bool:
    if eqn.blocks:
        return any(_feeds_compute(context, cuts, inner, plan) for inner in inner_operands(eqn, position))
    facts = context.classes.facts[eqn]
    if any(c in facts.cuttable and context.classes.all[c].size > 1 for c in plan.compute):
        return True
    return len(eqn.invars) == 1 and any(_feeds_compute(context, cuts, v, plan) for v in eqn.outvars)


def _aligned(eqn: Equation, facts: Facts, factor: int, axis: str, lies: dict[Var, Placement]) -> int:
    """Bytes of the operands that `axis` already cuts by `factor`."""
    total = 0
    for a, dims in zip(eqn.invars, facts.factors.operands, strict=True):
        if (
            isinstance(a, Var)
            and a in lies
            and any(f == factor and axis in lies[a].dims[d] for d, f in enumerate(dims))
        ):
            total += a.aval.bytes
    return total


def _alternative(context: Context, facts: Facts, plan: AxisPlan) -> int | None:
    """A free factor of another class that divides: the largest."""
    best, best_size = None, 0
    for f, size in enumerate(facts.factors.sizes):
        c = facts.classes[f]
        if c is None or f in facts.factors.blocked or f in facts.factors.contracted:
            continue
        if context.decision.parts(c) != 1 or context.classes.all[c].size % plan.size:
            continue
        if size > best_size:
            best, best_size = f, size
    return best


def _divides(context: Context, facts: Facts, factor: int, chosen: list[int | None]) -> bool:
    """Whether the axes that cut `factor` so far cut it into equal parts: a class that no axis lists is not padded."""
    parts = math.prod(p.size for p, f in zip(context.decision.axes, chosen, strict=False) if f == factor)
    c = facts.classes[factor]
    return c is not None and context.classes.all[c].size % parts == 0


def _pending(
    context: Context,
    cuts: Cuts,
    eqn: Equation,
    facts: Facts,
    chosen: list[int | None],
    lies: dict[Var, Placement],
) -> frozenset[str]:
    found = set()
    for plan, factor in zip(context.decision.axes, chosen, strict=True):
        if factor is not None:
            if facts.factors.contracted.get(factor) == "sum":
                found.add(plan.axis)
        elif passing_group(cuts, eqn, facts, plan.axis, None) or any(
            isinstance(a, Var) and expands(facts, i, plan.axis, lies.get(a)) for i, a in enumerate(eqn.invars)
        ):
            found.add(plan.axis)
    return frozenset(found)


def expands(facts: Facts, position: int, axis: str, at: Placement | None) -> bool:
    """Whether an operand that lies cut on `axis` can enter as a pending sum: each device's block between zeros.

    So it is where copies are summed into the pieces that they are copies of (`partition.finer`).
    """
    if not facts.apart or at is None or frozenset({position}) not in facts.linear:
        return False
    dim = at.dim_of(axis)
    return dim is not None and facts.factors.operands[position][dim] in facts.apart


def passing_group(
    cuts: Cuts, eqn: Equation, facts: Facts, axis: str, pending: Mapping[Atom, bool] | None
) -> frozenset[int] | None:
    """The operands through which a pending sum on `axis` can pass `eqn`: a linear group, all of it pending or zero.

    `pending` tells what is pending; None asks what could be.
    """
    if not facts.linear:
        return None

    def is_pending(a: Atom) -> bool:
        if not isinstance(a, Var):
            return False
        return bool(pending.get(a)) if pending is not None else axis in cuts.partial.get(a, ())

    positions = {i for i, a in enumerate(eqn.invars) if is_pending(a)}
    if not positions:
        return None
    for group in facts.linear:
        others = [eqn.invars[i] for i in group if i not in positions]
        if positions <= group and all(is_zero(cuts, a) for a in others):
            return group
    return None


def is_zero(cuts: Cuts, a: Atom) -> bool:
    """Whether `a` is known to be zero everywhere."""
    if isinstance(a, Var):
        return a in cuts.zeros
    return not _compat.is_extended(a.aval.dtype) and not np.any(a.value)


def _control(context: Context, cuts: Cuts, eqn: Equation, lies: dict[Var, Placement]) -> None:
    if eqn.name == "scan":
        _scan(context, cuts, eqn, lies)
        return
    for block in eqn.blocks:
        _block(context, cuts, block, {v: natural(context, v) for v in block.invars})
    for v in eqn.outvars:
        lies[v] = natural(context, v)
        cuts.partial[v] = frozenset()


def _scan(context: Context, cuts: Cuts, eqn: Equation, lies: dict[Var, Placement]) -> None:
    (body,), consts, carry = eqn.blocks, eqn.params["num_consts"], eqn.params["num_carry"]
    inner: dict[Var, Placement] = {}
    for i, (outer, v) in enumerate(zip(eqn.invars, body.invars, strict=True)):
        outside = lies.get(outer) if isinstance(outer, Var) else None
        if consts <= i < consts + carry or outside is None:
            inner[v] = natural(context, v)
        else:
            inner[v] = Placement(outside.dims[int(i >= consts + carry) :])
    candidates = _accumulator_equations(eqn) if context.decision.partial_carries else {}
    for i in candidates:  # optimistic: pending on every axis until the body says otherwise
        cuts.partial[body.invars[consts + i]] = frozenset(context.mesh) - natural(context, body.invars[consts + i]).axes
    _block(context, cuts, body, inner)
    accumulators = []
    for i in range(carry):
        end = body.outvars[i]
        axes: frozenset[str] = frozenset()
        if i in candidates and isinstance(end, Var):
            axes = cuts.partial.get(candidates[i], frozenset()) & cuts.partial.get(end, frozenset())
        cuts.partial[body.invars[consts + i]] = axes
        accumulators.append(axes)
    cuts.accumulators[eqn] = tuple(accumulators)
    for i, v in enumerate(eqn.outvars):
        result = body.outvars[i]
        place = natural(context, result) if isinstance(result, Var) else whole(result.aval.ndim)
        lies[v] = Placement(((),) * int(i >= carry) + place.dims)
        could = cuts.partial.get(result, frozenset()) if isinstance(result, Var) else frozenset()
        cuts.partial[v] = accumulators[i] if i < carry else could - place.axes


def _accumulator_equations(eqn: Equation) -> dict[int, Var]:
    """Carries that are only ever added to: position → what is added in each turn."""
    (body,), consts, carry = eqn.blocks, eqn.params["num_consts"], eqn.params["num_carry"]
    uses = collections.Counter(a for inner in body.equations for a in inner.invars if isinstance(a, Var))
    uses.update(a for a in body.outvars if isinstance(a, Var))
    made = {v: inner for inner in body.equations for v in inner.outvars}
    found = {}
    for i in range(carry):
        start, end = body.invars[consts + i], body.outvars[i]
        if not isinstance(end, Var) or uses[end] != 1 or not start.aval.size:
            continue
        adder = made.get(end)
        if adder is None or adder.name not in ("add", "add_any"):
            continue
        for position, a in enumerate(adder.invars):
            other = adder.invars[1 - position]
            if _is_only(start, a, uses, made) and isinstance(other, Var) and other.aval.shape == start.aval.shape:
                found[i] = other
    return found


def _is_only(start: Var, a: Atom, uses: Mapping[Var, int], made: Mapping[Var, Equation]) -> bool:
    """Whether `a` is `start`, read here alone; from a Python number jax converts to the dtype that it has already."""
    if not isinstance(a, Var) or uses[a] != 1:
        return False
    maker = made.get(a)
    if maker is not None and maker.name == "convert_element_type" and a.aval.dtype == start.aval.dtype:
        return _is_only(start, maker.invars[0], uses, made)
    return a is start
