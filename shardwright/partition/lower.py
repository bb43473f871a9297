"""Second pass: the per-device program, with every move in plain sight.

Each equation asks for its operands where its cut wants them; a value that lies elsewhere is moved by the cheapest
route, once for each placement that anybody asks for. A pending sum passes through linear equations until resolving it
would cost more than it costs here: `pending.py` compares.
"""

from __future__ import annotations

import math

from shardwright.partition import boundary, control
from shardwright.partition.builder import Builder
from shardwright.partition.context import Context, at_rest, copied, make_context
from shardwright.partition.cuts import Cuts, expands, find_cuts, placed
from shardwright.partition.device import Compute, DeviceBlock, DeviceProgram, Fallback, Mask, Move, Slot
from shardwright.partition.effects import runs_once
from shardwright.partition.pending import passes
from shardwright.partition.pinned import is_pin, pinned
from shardwright.plan.decision import Decision
from shardwright.plan.placement import Placement, whole, with_partial
from shardwright.program.ir import Atom, Block, Equation, Literal, Program, Source, Var
from shardwright.rules.classes import Classes


def partition(program: Program, classes: Classes, decision: Decision) -> DeviceProgram:
    """The program that each device runs under `decision`."""
    context = make_context(program, classes, decision)
    cuts = find_cuts(context)
    block = program.block
    rest = [at_rest(context, leaf, v) for leaf, v in zip(program.inputs, block.invars, strict=True)]
    wanted: list[Placement] = []
    for leaf, v, i in zip(program.outputs, block.outvars, program.carried, strict=True):
        if i is not None:
            wanted.append(rest[i])
        else:
            wanted.append(at_rest(context, leaf, v) if isinstance(v, Var) else whole(v.aval.ndim))
    fallbacks: list[Fallback] = []
    lowered = _between(context, cuts, block, rest, wanted, fallbacks)
    return DeviceProgram(lowered, dict(decision.mesh), tuple(fallbacks), copied(context, rest))


def _between(
    context: Context,
    cuts: Cuts,
    block: Block,
    rest: list[Placement],
    wanted: list[Placement],
    fallbacks: list[Fallback],
) -> DeviceBlock:
    """The whole step, from where leaves lie before it to where they are wanted after it."""
    inputs = tuple(boundary.rest_slot(context, v, p) for v, p in zip(block.invars, rest, strict=True))
    first: list[Move] = []
    entered: list[Slot] = []
    for v, slot in zip(block.invars, inputs, strict=True):
        moves, slot = boundary.cross(context, slot, boundary.inside(context, v, slot.placement), Source())
        first += moves
        entered.append(slot)
    within = [boundary.inside(context, a, p) for a, p in zip(block.outvars, wanted, strict=True)]
    lowered = lower_block(context, cuts, block, tuple(entered), list(within), frozenset(), fallbacks)
    last: list[Move] = []
    outputs: list[Slot | Literal] = []
    for result, place in zip(lowered.outputs, wanted, strict=True):
        if isinstance(result, Slot):
            moves, result = boundary.cross(context, result, place, Source())
            last += moves
        outputs.append(result)
    return DeviceBlock(inputs, (*first, *lowered.ops, *last), tuple(outputs))


def lower_block(
    context: Context,
    cuts: Cuts,
    block: Block,
    inputs: tuple[Slot, ...],
    wanted: list[Placement | None],
    stay_pending: frozenset[int],
    fallbacks: list[Fallback],
    turns: int = 1,
) -> DeviceBlock:
    """Lowers one block.

    Args:
      context: the program under its decision.
      cuts: result of the first pass.
      block: what to lower.
      inputs: a slot for each of its inputs.
      wanted: where each result must lie; None: as it comes.
      stay_pending: positions of results that may leave as pending sums (on axes that `wanted` leaves uncut).
      fallbacks: filled with what could not be cut.
      turns: how often a loop runs the block.
    """
    b = Builder(context, cuts, wanted, stay_pending, fallbacks, turns)
    for v, slot in zip(block.invars, inputs, strict=True):
        b.define(v, slot)
    for eqn in block.equations:
        if eqn.blocks:
            control.lower(b, eqn, lower_block)
        else:
            _equation(b, eqn)
    outputs = tuple(
        _result(b, a, p, i in stay_pending) for i, (a, p) in enumerate(zip(block.outvars, wanted, strict=True))
    )
    return DeviceBlock(inputs, tuple(b.ops), outputs)


def _result(b: Builder, a: Atom, wanted: Placement | None, may_stay: bool) -> Slot:
    slot = b.primary(a)
    if wanted is None:
        return slot
    if may_stay:
        for axis, monoid in slot.placement.partial:
            if axis not in wanted.axes and wanted.pending(axis) is None and monoid == "sum":
                wanted = with_partial(wanted, axis, monoid)
    source = b.made[a] if isinstance(a, Var) else Source()
    return b.get(a, wanted, source, "result")


def _equation(b: Builder, eqn: Equation) -> None:
    facts = b.context.classes.facts[eqn]
    if facts.row is not None and facts.row.passthrough:
        _pass_through(b, eqn)
        return
    if is_pin(eqn):
        _constrain(b, eqn)
        return
    if eqn.name == "rng_uniform" and math.prod(b.context.mesh.values()) > 1:
        raise ValueError(
            f"{eqn.source.line}: jax.lax.rng_uniform draws from a state of the device, so no two devices agree; use "
            "jax.random with a key"
        )
    if _is_source(eqn):
        b.define_source(eqn.outvars[0], eqn)
        return
    factors = facts.factors
    cut = b.cuts.axes[eqn]
    group, pending_axes = passes(b, eqn)
    inputs: list[Slot | Literal] = []
    masks: list[Mask] = []
    for i, (a, dims) in enumerate(zip(eqn.invars, factors.operands, strict=True)):
        if not isinstance(a, Var) and a.aval.ndim == 0:
            inputs.append(a)
            continue
        place = placed(dims, cut)
        if i in group:
            for axis in pending_axes:
                at = b.primary(a).placement
                if at.pending(axis) or expands(facts, i, axis, at):
                    place = with_partial(place, axis, "sum")
        inputs.append(b.get(a, place, eqn.source, eqn.name))
    blocks = tuple([b.block_size(facts, f, axes) if axes else factors.sizes[f] for f, axes in enumerate(cut)])
    share = 1.0
    for n, size, axes in zip(blocks, factors.sizes, cut, strict=True):
        if axes:
            share *= n / size
    for f, monoid in factors.contracted.items():
        if cut[f] and f not in factors.masked and blocks[f] * b.parts(cut[f]) != factors.sizes[f]:
            masks += [
                Mask(i, dim, f, monoid)
                for i, dims in enumerate(factors.operands)
                for dim, g in enumerate(dims)
                if g == f
            ]
    pending = [(axis, "sum") for axis in pending_axes]
    pending += [(axis, factors.contracted[f]) for f in factors.contracted for axis in cut[f]]
    outputs = []
    for v, dims in zip(eqn.outvars, factors.results, strict=True):
        place = placed(dims, cut)
        if pending:
            place = Placement(place.dims, tuple(sorted(pending)))
        outputs.append(b.slot(v, place))
    b.ops.append(
        Compute(eqn, facts.row, factors, tuple(inputs), tuple(outputs), cut, blocks, facts.flops * share, tuple(masks))
    )
    for v, slot in zip(eqn.outvars, outputs, strict=True):
        b.define(v, slot, eqn.source)
    if eqn.name == "transpose":
        b.define_transposed(eqn.outvars[0], eqn)
    _note_fallback(b, eqn)


def _is_source(eqn: Equation) -> bool:
    """Whether an equation computes one value from numbers alone, by a row that any placement suits."""
    return (
        eqn.name in ("broadcast_in_dim", "iota")
        and len(eqn.outvars) == 1
        and not any(isinstance(a, Var) or a.aval.ndim for a in eqn.invars)
    )


def _note_fallback(b: Builder, eqn: Equation) -> None:
    facts = b.context.classes.facts[eqn]
    if facts.row is None and not (runs_once(eqn) and all(a.aval.ndim == 0 for a in eqn.invars)):
        b.fallbacks.append(Fallback(eqn, f"no rule for the primitive '{eqn.name}'"))
    elif eqn in b.cuts.blocked:
        axes = ", ".join(b.cuts.blocked[eqn])
        b.fallbacks.append(Fallback(eqn, f"'{eqn.name}' cannot be cut along the dim that axis {axes} cuts"))


def _pass_through(b: Builder, eqn: Equation) -> None:
    """Each operand keeps its own placement."""
    facts = b.context.classes.facts[eqn]
    inputs = tuple(b.primary(a) for a in eqn.invars)
    outputs = tuple(b.slot(v, s.placement) for v, s in zip(eqn.outvars, inputs, strict=True))
    sizes = facts.factors.sizes
    b.ops.append(Compute(eqn, facts.row, facts.factors, inputs, outputs, ((),) * len(sizes), sizes))
    for v, slot in zip(eqn.outvars, outputs, strict=True):
        b.define(v, slot, eqn.source)


def _constrain(b: Builder, eqn: Equation) -> None:
    """A user's pin in the step: the value is moved where it says."""
    (a,), (v,) = eqn.invars, eqn.outvars
    b.define(v, b.get(a, pinned(eqn, b.primary(a).placement), eqn.source, "pin"), eqn.source)
