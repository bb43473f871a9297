"""The plan record of a plan that has just been made."""

from __future__ import annotations

import importlib.metadata
import math
from collections.abc import Sequence

from shardwright import _compat
from shardwright.cost.estimate import Estimate
from shardwright.partition.device import DeviceProgram, Slot
from shardwright.plan.decision import Decision
from shardwright.plan.named import by_name
from shardwright.plan.placement import whole
from shardwright.plan.record import (
    CandidateRecord,
    CollectiveRecord,
    EstimateRecord,
    LeafRecord,
    MemoryRecord,
    PlanRecord,
    PlanWarning,
    ProgramRecord,
)
from shardwright.program.ir import Atom, Leaf, Literal, Program, Var
from shardwright.report.sources import short_source
from shardwright.rules.classes import Classes


def record_of(
    program: Program,
    classes: Classes,
    decision: Decision,
    device: DeviceProgram,
    estimate: Estimate,
    *,
    cluster: str,
    memory_limit_bytes: int,
    objective: str = "seconds",
    name: str = "step",
    warnings: Sequence[PlanWarning] = (),
    searched: Sequence[CandidateRecord] = (),
    notes: Sequence[str] = (),
) -> PlanRecord:
    """Everything about a plan that a reader may ask without the step.

    Args:
        program: What was planned.
        classes: Of its dims.
        decision: The plan's content.
        device: The program partitioned by it.
        estimate: The price of that.
        cluster: The cluster's name.
        memory_limit_bytes: For one device.
        objective: What was minimized.
        name: Of the step.
        warnings: From `report.warnings.warnings_of`.
        searched: Candidates that lost, the best first.
        notes: Anything else for the reader.
    """
    recorded = program_record(program, classes, decision, device, name)
    return PlanRecord(
        program.fingerprint,
        package_version(),
        _compat.JAX_VERSION,
        cluster,
        math.prod(decision.mesh.values()),
        int(memory_limit_bytes),
        objective,
        (recorded,),
        estimate_record(estimate),
        tuple(warnings),
        tuple(searched),
        tuple(notes),
    )


def program_record(
    program: Program, classes: Classes, decision: Decision, device: DeviceProgram, name: str
) -> ProgramRecord:
    """What a plan says of its program: the arguments as for `record_of`."""
    return ProgramRecord(
        name,
        tuple(decision.mesh.items()),
        by_name(decision, {c.id: c.name for c in classes.all}),
        {c.name: c.size for c in classes.all if decision.parts(c.id) > 1},
        _leaves(program.inputs, program.block.invars, device.block.inputs, classes),
        _leaves(program.outputs, program.block.outvars, device.block.outputs, classes),
    )


def package_version() -> str:
    """The installed version of this package, '0' where it is not installed."""
    try:
        return importlib.metadata.version("shardwright")
    except importlib.metadata.PackageNotFoundError:
        return "0"


def _leaves(
    leaves: Sequence[Leaf], atoms: Sequence[Atom], slots: Sequence[Slot | Literal], classes: Classes
) -> tuple[LeafRecord, ...]:
    return tuple(_leaf(*each, classes) for each in zip(leaves, atoms, slots, strict=True))


def _leaf(leaf: Leaf, atom: Atom, slot: Slot | Literal, classes: Classes) -> LeafRecord:
    names = [classes.all[c].name for c in classes.of[atom]] if isinstance(atom, Var) else ["whole"] * atom.aval.ndim
    placement = slot.placement if isinstance(slot, Slot) else whole(leaf.aval.ndim)
    return LeafRecord(
        leaf.name,
        leaf.aval.shape,
        str(leaf.aval.dtype),
        leaf.role.value,
        tuple(names),
        placement.dims,
        leaf.donated,
    )


def estimate_record(estimate: Estimate) -> EstimateRecord:
    """`estimate` as the record holds it: source lines without their directory."""
    m = estimate.memory
    memory = MemoryRecord(
        int(m.peak_bytes),
        int(m.argument_bytes),
        int(m.output_bytes),
        int(m.alias_bytes),
        int(m.temp_bytes),
        {role: int(size) for role, size in m.by_role.items()},
    )
    rows = tuple(
        CollectiveRecord(
            c.kind, c.axis, float(c.bytes), c.times, float(c.seconds), short_source(c.source), c.why, c.shape, c.dtype
        )
        for c in estimate.collectives
    )
    return EstimateRecord(
        float(estimate.seconds),
        float(estimate.compute_seconds),
        float(estimate.collective_seconds),
        float(estimate.flops),
        float(estimate.bytes_sent),
        memory,
        rows,
    )
