"""The price of a per-device program: seconds of one step, memory of one device, every collective."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from shardwright.cluster import Cluster, Device, group_link, peak_flops_per_second
from shardwright.cost.collectives import collective_seconds, sent_bytes
from shardwright.cost.memory import Memory, memory_of
from shardwright.cost.storage import itemsize_on, stored
from shardwright.partition.device import COLLECTIVES, Compute, Control, DeviceBlock, DeviceProgram, Move, Op, Slot
from shardwright.program.ir import Literal, Program

MATMULS = frozenset({"dot_general", "conv_general_dilated", "ragged_dot_general"})


@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective of the program.

    Attributes:
      kind: all_reduce, all_gather, reduce_scatter, all_to_all or permute.
      axis: the mesh axes it runs over, joined by '+'.
      bytes: what one device sends over the whole step, `times` included.
      times: how often one step runs it.
      seconds: over the whole step.
      source: the user's source line that asked for it.
      why: the primitive that read the result.
      shape: one device's result.
      dtype: of the elements.
    """

    kind: str
    axis: str
    bytes: float
    times: int
    seconds: float
    source: str
    why: str
    shape: tuple[int, ...]
    dtype: str


@dataclasses.dataclass(frozen=True)
class Estimate:
    """What a plan is predicted to cost: seconds of one step, memory of one device, its collectives."""

    seconds: float
    compute_seconds: float
    collective_seconds: float
    flops: float
    memory: Memory
    collectives: tuple[Collective, ...]

    @property
    def bytes_sent(self) -> float:
        """Bytes that one device sends in one step."""
        return sum(c.bytes for c in self.collectives)


def estimate(program: Program, device: DeviceProgram, cluster: Cluster) -> Estimate:
    """Prices `device`, the partitioned form of `program`, on `cluster`."""
    totals = _Totals(cluster, device.mesh)
    _block(totals, device.block, 1)
    communication = sum(c.seconds for c in totals.collectives)
    return Estimate(
        totals.seconds + communication,
        totals.seconds,
        communication,
        totals.flops,
        memory_of(program, device, cluster.device.platform),
        tuple(totals.collectives),
    )


class _Totals:
    def __init__(self, cluster: Cluster, mesh: Mapping[str, int]):
        self.cluster, self.mesh = cluster, mesh
        self.link = functools.cache(lambda axes: group_link(cluster, mesh, axes))
        self.rate = functools.cache(lambda dtype, heavy: _rate(cluster.device, str(dtype), heavy))
        self.seconds = 0.0
        self.flops = 0.0
        self.collectives: list[Collective] = []


def _block(totals: _Totals, block: DeviceBlock, times: int) -> None:
    kept = stored(block) | set(block.inputs)
    for op in block.ops:
        if isinstance(op, Control):
            turns = times * (int(op.equation.params["length"]) if op.equation.name == "scan" else 1)
            for body in op.bodies:
                _block(totals, body, turns)
        elif isinstance(op, Move) and op.kind in COLLECTIVES:
            totals.collectives.append(_collective(totals, op, times))
        else:
            totals.seconds += times * _seconds(totals, op, kept, times)


def _collective(totals: _Totals, op: Move, times: int) -> Collective:
    group = math.prod(totals.mesh[a] for a in op.axes)
    link = totals.link(op.axes)
    aval = op.outputs[0].aval
    kind, result = as_run(op, group)
    result = result * itemsize_on(totals.cluster.device.platform, aval) // aval.itemsize
    return Collective(
        kind,
        "+".join(op.axes),
        times * sent_bytes(kind, result, group),
        times,
        times * collective_seconds(kind, result, group, link),
        op.source.line,
        op.why,
        op.outputs[0].shape,
        str(aval.dtype),
    )


def as_run(op: Move, group: int) -> tuple[str, int]:
    """(kind, bytes of one device's result) of the collective behind a move: products are gathered and multiplied."""
    result = op.outputs[0].bytes
    if op.kind == "all_reduce" and op.monoid == "prod":
        return "all_gather", result * group
    if op.kind == "all_gather":
        return op.kind, max(result, op.inputs[0].bytes * group)
    if (
        op.kind == "all_to_all" and result
    ):  # the dim that it cuts is padded before, the one that it joins cut off behind
        before, after = op.inputs[0].shape[op.dim], op.outputs[0].shape[op.dim] * group
        return op.kind, op.inputs[0].bytes // before * after
    return op.kind, result


def _seconds(totals: _Totals, op: Op, kept: Collection[Slot], times: int) -> float:
    """Roofline of one operation: the larger of flops / peak and stored bytes / bandwidth, plus a kernel's launch."""
    device = totals.cluster.device
    touched = sum(s.bytes for s in {*op.inputs, *op.outputs} if isinstance(s, Slot) and s in kept)
    kernel = any(s in kept for s in op.outputs)
    compute = 0.0
    if isinstance(op, Compute):
        totals.flops += op.flops * times
        compute = op.flops / totals.rate(_widest(op), op.equation.name in MATMULS) if op.flops else 0.0
    return (
        max(compute, touched / (device.memory_bytes_per_second * device.memory_efficiency))
        + kernel * device.launch_seconds
    )


def _rate(device: Device, dtype: str, heavy: bool) -> float:
    return peak_flops_per_second(device, dtype) * (device.matmul_efficiency if heavy else 1.0)


def _widest(op: Compute) -> Any:
    """The dtype of the operation's widest operand, which decides its rate."""
    dtypes = [x.aval.dtype for x in op.inputs if not _is_key(x)]
    return max(dtypes, key=lambda d: d.itemsize) if dtypes else np.dtype(np.float32)


def _is_key(x: Slot | Literal) -> bool:
    return not isinstance(x.aval.dtype, np.dtype)
