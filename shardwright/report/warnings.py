"""What in a plan costs more than a reader would expect, with its price and what would remove it.

Ordinary plans are silent: weights gathered for use (FSDP), activations gathered into a product that is cut by another
dim on the same axis (sequence parallelism), an update that every device repeats (data parallelism) are what they are.
Told are

- fallbacks: operations that could not be cut as the plan wanted;
- gathers of anything but state after which nothing is cut on the gathered axis: what was spread is now repeated;
- heavy operations that run whole on an axis;
- dims that divide badly;
- dims with too few pieces, of which the copies are cut;
- large state that lies whole because no dim of it divides.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from shardwright.cost.estimate import Collective, Estimate
from shardwright.partition.device import Compute, DeviceProgram, Fallback, Move, walk
from shardwright.plan.amounts import bytes_text, percent_text, seconds_text
from shardwright.plan.record import PlanWarning
from shardwright.program.ir import Equation, Program
from shardwright.report.flow import Flow, find_flow, is_state
from shardwright.report.prices import prices
from shardwright.report.sources import short_source

MIN_SHARE = 0.01
"""A gather or padding counts from this share of the step's bytes or seconds, or of a device's work."""

MIN_BYTES = 65536
"""A gather that sends less than this in a step is not told."""

REDUNDANT_SHARE = 0.05
"""Repeated work counts from this share of a device's work."""

REDUNDANT_SECONDS = 1e-3
"""Repeated work of less than this a step is not told: the collectives that would share it cost about as much. One call
takes 3e-5 to 1e-4 s on the clusters of the catalog, and to share a product takes several."""

PADDING = 0.2
"""Padding counts from this share of a dim's logical size."""

WHOLE_SHARE = 0.05
"""State that cannot be cut counts from this share of the peak."""


def warnings_of(program: Program, device: DeviceProgram, estimate: Estimate) -> tuple[PlanWarning, ...]:
    """Everything that a reader of the plan should know, the most expensive first.

    Args:
        program: The step.
        device: The step partitioned.
        estimate: The price of that.
    """
    priced = prices(device, estimate)
    work = {op: (times, _local_flops(op) * times) for op, times in walk(device.block) if isinstance(op, Compute)}
    told = {f.equation for f in device.fallbacks}
    found = [
        *_fallbacks(device, priced, work, estimate),
        *_gathers(find_flow(program, device), priced, told, estimate),
        *_redundant(device, work, told, estimate),
        *_padding(device, work),
        *_copied(device),
        *_whole(program, device, estimate),
    ]
    return tuple(sorted(found, key=lambda w: (-w.seconds, -w.bytes, w.kind, w.source, w.message)))


def _copied(device: DeviceProgram) -> Iterator[PlanWarning]:
    """Classes with too few pieces for their axes, which cut the copies of these."""
    for c in device.copied:
        more = f" and {len(c.whole) - 2} more" if c.whole[2:] else ""
        leaves = f", and {', '.join(c.whole[:2])}{more}," if c.whole else ""
        fitting = math.gcd(c.pieces, c.parts)
        yield PlanWarning(
            "copied",
            f"{c.name} has {c.pieces} pieces, copied into {c.copies} here, and axis {'+'.join(c.axes)} {c.parts} "
            f"devices: the copies are cut; the {c.pieces}{leaves} are whole on every device",
            f"{c.parts} pieces{f', or an axis of {fitting} devices,' if fitting > 1 else ''} would let both be cut.",
            short_source(c.line),
        )


def _whole(program: Program, device: DeviceProgram, estimate: Estimate) -> Iterator[PlanWarning]:
    """Leaves of which no dim divides over an axis that cuts others of their role between steps."""
    lying = [(leaf, slot) for leaf, slot in zip(program.inputs, device.block.inputs, strict=True) if is_state(leaf)]
    cut = {(leaf.role, axis) for leaf, slot in lying for axis in slot.placement.axes}
    for leaf, slot in lying:
        share = slot.bytes / max(estimate.memory.peak_bytes, 1)
        for axis, size in device.mesh.items():
            able = axis in slot.placement.axes or any(n % size == 0 for n in slot.shape)
            if (leaf.role, axis) in cut and not able and share >= WHOLE_SHARE:
                yield PlanWarning(
                    "whole",
                    f"{leaf.name}, {leaf.aval.dtype}{list(leaf.aval.shape)}, lies whole on axis {axis}: no dim of it "
                    f"divides into {size} parts. It takes {bytes_text(slot.bytes)} of each device, "
                    f"{percent_text(share)} of the peak",
                    f"A dim padded to a multiple of {size} would let it be cut.",
                )


Work = Mapping[Compute, tuple[int, float]]
"""Operation → (times a step runs it, flops of one device over the step)."""


def _local_flops(op: Compute) -> float:
    """Whole flops times the share of every cut factor, padding included; an unknown primitive counts its results."""
    if op.row is None:
        return float(sum(math.prod(s.shape) for s in op.outputs))
    share = math.prod(block / size for block, size in zip(op.blocks, op.factors.sizes, strict=True) if size)
    return op.row.flops(op.equation) * share


def _fallbacks(
    device: DeviceProgram, priced: Mapping[Move, Collective], work: Work, estimate: Estimate
) -> Iterator[PlanWarning]:
    """One a primitive and place. A primitive with a rule is told only if it costs something."""
    spent: dict[int, list[Collective]] = {}
    for move, price in priced.items():
        spent.setdefault(id(move.source), []).append(price)
    cut = {op.equation: {a for axes in op.cut for a in axes} for op in work}
    groups: dict[tuple[str, str, str], list[Fallback]] = {}
    for f in device.fallbacks:
        groups.setdefault((f.equation.name, short_source(f.equation.source.line), f.reason), []).append(f)
    for (name, place, reason), alike in groups.items():
        rows = [c for f in alike for c in spent.get(id(f.equation.source), []) if c.why == name]
        sent, seconds = sum(c.bytes for c in rows), sum(c.seconds for c in rows)
        unknown = any(not _has_rule(work, f.equation) for f in alike)
        if not unknown and sent < 0.001 * estimate.bytes_sent and seconds < 0.001 * estimate.seconds:
            continue
        moved = all(cut.get(f.equation) for f in alike)
        effect = "it is cut along another dim instead" if moved else "it runs whole on every device"
        times = f" ({len(alike)} times in the program)" if len(alike) > 1 else ""
        cost = f"moving its operands sends {bytes_text(sent)} and takes {seconds_text(seconds)} a step"
        yield PlanWarning(
            "fallback",
            f"{reason}{times}: {effect}, and {cost}" if rows else f"{reason}{times}: {effect}",
            f"A rule for '{name}' would remove this; until then keep it off large values."
            if unknown
            else f"Pin its operand to another dim before '{name}', or lay another class on the axis.",
            place,
            sent,
            seconds,
        )


def _has_rule(work: Work, eqn: Equation) -> bool:
    return all(op.row is not None for op in work if op.equation is eqn)


def _gathers(
    flow: Flow, priced: Mapping[Move, Collective], told: set[Equation], estimate: Estimate
) -> Iterator[PlanWarning]:
    """Values that are not state, gathered for readers that are not cut on the axis."""
    sources = {id(e.source) for e in told}
    groups: dict[tuple[str, str, str, str], list[tuple[Move, Collective]]] = {}
    for move, price in priced.items():
        if move.kind != "all_gather" or id(move.source) in sources or flow.is_state(move.outputs[0]):
            continue
        if all(flow.is_used_cut(move.outputs[0], axis) for axis in move.axes):
            continue
        result = flow.result_name(move.outputs[0])
        groups.setdefault((short_source(price.source), price.axis, price.why, result), []).append((move, price))
    for (place, axis, why, result), alike in groups.items():
        sent, seconds = sum(p.bytes for _, p in alike), sum(p.seconds for _, p in alike)
        large = sent >= MIN_SHARE * estimate.bytes_sent or seconds >= MIN_SHARE * estimate.seconds
        if sent < MIN_BYTES or not large:
            continue
        shape = list(max((m.outputs[0].shape for m, _ in alike), key=math.prod))
        cost = f"which sends {bytes_text(sent)} and takes {seconds_text(seconds)} a step"
        if result:
            message = f"the result {result} is made whole on axis {axis}, {cost}"
            remedy = f"Pin it to stay cut (pins={{{result!r}: …}}), or do not return it."
        else:
            message = f"a value of {shape} is gathered over axis {axis} for '{why}', which is not cut there, {cost}"
            remedy = f"Pin the value to another dim there, or lay a class that '{why}' has on axis {axis}."
            if why == "pin":
                remedy = f"A pin in the step asks for it: pin that dim to {axis!r}, or leave it P.UNCONSTRAINED."
        yield PlanWarning("gather", message, remedy, place, sent, seconds)


def _redundant(device: DeviceProgram, work: Work, told: set[Equation], estimate: Estimate) -> Iterator[PlanWarning]:
    """Heavy operations that are not cut on some axis: what a device computes beyond its share.

    With local flops f on an operation that p of the n devices share, f·(1 − p/n) is a repetition; its seconds are that
    share of all computing.
    """
    total = sum(flops for _, flops in work.values())
    num_devices = math.prod(device.mesh.values())
    groups: dict[tuple[str, str, str], float] = {}
    for op, (_, flops) in work.items():
        if op.row is None or op.row.fused or op.equation in told:
            continue
        used = {a for axes in op.cut for a in axes}
        idle = [a for a in device.mesh if a not in used and device.mesh[a] > 1]
        parts = math.prod(device.mesh[a] for a in used)
        key = (short_source(op.source.line), op.equation.name, "+".join(idle))
        groups[key] = groups.get(key, 0.0) + flops * (1 - parts / num_devices)
    for (place, name, axes), repeated in groups.items():
        seconds = estimate.compute_seconds * repeated / total if total else 0.0
        if axes and seconds >= REDUNDANT_SECONDS and repeated > REDUNDANT_SHARE * total:
            yield PlanWarning(
                "redundant",
                f"'{name}' is not cut on axis {axes}: {percent_text(repeated / total)} of each device's work, "
                f"{seconds_text(seconds)} a step, repeats what others do",
                f"Lay one of its dims on axis {axes} too, or plan with a smaller axis.",
                place,
                seconds=seconds,
            )


def _padding(device: DeviceProgram, work: Work) -> Iterator[PlanWarning]:
    """Dims that a cut makes longer by more than `PADDING`, where that is a noticeable share of the work."""
    total = sum(flops for _, flops in work.values())
    wasted: dict[tuple[int, int, str], float] = {}
    places: dict[tuple[int, int, str], tuple[float, str]] = {}
    for op, (_, flops) in work.items():
        for size, block, axes in zip(op.factors.sizes, op.blocks, op.cut, strict=True):
            padded = block * math.prod(device.mesh[a] for a in axes)
            if not axes or not size or padded <= (1 + PADDING) * size:
                continue
            key = (size, padded, "+".join(axes))
            wasted[key] = wasted.get(key, 0.0) + flops * (1 - size / padded)
            places[key] = max(places.get(key, (0.0, "")), (flops, short_source(op.source.line)))
    for key, flops in wasted.items():
        size, padded, over = key
        if total and flops > MIN_SHARE * total:
            yield PlanWarning(
                "padding",
                f"a dim of {size} is cut on axis {over} and padded to {padded}: {percent_text(padded / size - 1)} more "
                f"of all that has it, {percent_text(flops / total)} of each device's work",
                f"A size that axis {over} divides, or a mesh axis that divides {size}, would remove this.",
                places[key][1],
            )
