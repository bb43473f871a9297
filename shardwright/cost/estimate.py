"""The price of a per-device program: seconds of one step, memory of one device, every collective."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import numpy as np

from shardwright.cluster import Cluster, Link, axis_links
from shardwright.cost.collectives import collective_seconds, sent_bytes
from shardwright.cost.memory import Memory, memory_of
from shardwright.cost.storage import stored
from shardwright.partition.device import COLLECTIVES, Compute, Control, DeviceBlock, DeviceProgram, Move, Slot
from shardwright.program.ir import Program


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
    links = axis_links(cluster, device.mesh)
    totals = _Totals(cluster, links, device.mesh)
    _block(totals, device.block, 1)
    communication = sum(c.seconds for c in totals.collectives)
    return Estimate(totals.seconds + communication, totals.seconds, communication, totals.flops,
                    memory_of(program, device), tuple(totals.collectives))


class _Totals:
    def __init__(self, cluster: Cluster, links: Mapping[str, Link], mesh: Mapping[str, int]):
        self.cluster, self.links, self.mesh = cluster, links, mesh
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
    link = min((totals.links[a] for a in op.axes), key=lambda x: x.bytes_per_second)
    result = op.outputs[0].bytes
    if op.kind in ("all_gather", "all_to_all"):
        result = max(result, op.inputs[0].bytes * (group if op.kind == "all_gather" else 1))
    aval = op.outputs[0].aval
    return Collective(op.kind, "+".join(op.axes), times * sent_bytes(op.kind, result, group), times,
                      times * collective_seconds(op.kind, result, group, link), op.source.line, op.why,
                      op.outputs[0].shape, str(aval.dtype))


def _seconds(totals: _Totals, op: object, kept: set[Slot], times: int) -> float:
    """Roofline of one operation: the larger of flops / peak and stored bytes / bandwidth, and the launch if it is a kernel."""
    device = totals.cluster.device
    touched = sum(s.bytes for s in {*op.inputs, *op.outputs} if isinstance(s, Slot) and s in kept)  # type: ignore[attr-defined]
    flops = 0.0
    kernel = any(s in kept for s in op.outputs)  # type: ignore[attr-defined]
    compute = 0.0
    if isinstance(op, Compute):
        flops = _local_flops(op)
        totals.flops += flops * times
        compute = flops / _flops_per_second(device, op)
    return max(compute, touched / (device.memory_bytes_per_second * device.memory_efficiency)) + kernel * device.launch_seconds


def _local_flops(op: Compute) -> float:
    if op.row is None:
        return float(sum(s.aval.size for s in op.outputs))
    share = math.prod(b / s for b, s in zip(op.blocks, op.factors.sizes, strict=True) if s)
    return op.row.flops(op.equation) * share


def _flops_per_second(device: object, op: Compute) -> float:
    """The device's rate for this operation's dtype; what the catalog does not name runs as float32, wider floats at half of it."""
    rates = device.flops_per_second  # type: ignore[attr-defined]
    dtype = max((x.aval.dtype for x in op.inputs if not _is_key(x)), key=lambda d: np.dtype(d).itemsize, default=np.dtype("float32"))
    rate = rates.get(str(dtype)) or (rates["float32"] / 2 if np.dtype(dtype).itemsize == 8 else rates["float32"])
    heavy = op.equation.name in ("dot_general", "conv_general_dilated", "ragged_dot_general")
    return rate * (device.matmul_efficiency if heavy else 1.0)  # type: ignore[attr-defined]


def _is_key(x: object) -> bool:
    try:
        np.dtype(x.aval.dtype)  # type: ignore[attr-defined]
    except TypeError:
        return True
    return False
