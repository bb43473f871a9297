"""Counts the collectives of a compiled XLA program: what each moves, how often, on which mesh axes.

    rows = traffic(compiled.as_text(), {"data": 2, "tensor": 4})
    sent_bytes(rows), by_kind(rows)

A collective inside a loop runs as often as the loops around it turn. Bytes sent are those of a bandwidth-optimal ring
(Patarasu and Yuan 2009): no schedule on point-to-point links sends less. With r bytes of result on each of n devices

    all_gather      each device passes on all blocks but its own         r (n − 1) / n
    reduce_scatter  the same the other way; the result is one block      r (n − 1)
    all_reduce      a reduce-scatter, then an all-gather                 2 r (n − 1) / n
    all_to_all      all blocks but one's own leave                       r (n − 1) / n
    permute         the whole operand leaves                             r

Asynchronous pairs count once, at their start. Two shapes are the TPU compiler's own: an all-reduce inside a fused
`all-reduce-scatter` computation is a reduce-scatter, and a collective overlapped with several fusions is printed again
in each of them under one `chain_id` and counts once.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from shardwright.run import hlo_text
from shardwright.run.hlo_frames import Frames, parse_frames, source_line
from shardwright.run.hlo_text import Instruction, Module

_KINDS = {
    "all-reduce": "all_reduce",
    "all-gather": "all_gather",
    "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
    "ragged-all-to-all": "all_to_all",
    "collective-permute": "permute",
    # One device's operand reaches every other, each passing it on once: what a permute sends.
    "collective-broadcast": "permute",
}
KINDS = tuple(dict.fromkeys(_KINDS.values()))


@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective of a compiled program.

    Attributes:
        kind: one of KINDS.
        result_bytes: size of one device's result, in one execution.
        group_size: devices that take part; for a permute all devices of the program.
        times: executions in one run of the program.
        axes: mesh axes along which the members of a group differ, in the mesh's order. A group smaller than the
            product of these axes is a part of them. None: no mesh was given, or it cannot be told.
        source: the user's source line, 'file.py:12', '' where XLA kept none.
        scope: the name-scope path of the operations it came from, likewise.
    """

    kind: str
    result_bytes: float
    group_size: int
    times: int
    axes: tuple[str, ...] | None
    source: str = ""
    scope: str = ""

    @property
    def sent_bytes(self) -> float:
        """Bytes that one device sends in one run of the program."""
        n, r = self.group_size, self.result_bytes
        if n <= 1:
            return 0.0
        share = {
            "all_reduce": 2 * (n - 1) / n,
            "all_gather": (n - 1) / n,
            "reduce_scatter": n - 1,
            "all_to_all": (n - 1) / n,
            "permute": 1,
        }[self.kind]
        return share * r * self.times


def traffic(text: str, mesh_axes: Mapping[str, int] | None = None) -> tuple[Collective, ...]:
    """The collectives that a compiled program runs.

    Args:
        text: what XLA's CPU, GPU or TPU compiler prints (`compiled.as_text()`).
        mesh_axes: axis -> size of the mesh that the program was compiled for, major to minor: device number k of the
            program stands at the k-th place of the mesh in row-major order.

    Returns:
        One row an instruction, in the order of execution; an instruction in a computation that is called from two
        places gives two rows.
    """
    module = hlo_text.parse(text)
    return tuple(_walk(module, parse_frames(text), module.entry, 1, mesh_axes, set(), ()))


def unknown_loops(text: str) -> tuple[str, ...]:
    """Names of the loops whose trip count the text does not tell: `traffic` counts one turn of each."""
    module = hlo_text.parse(text)
    loops = [each for body in module.computations.values() for each in body if each.opcode == "while"]
    return tuple(loop.name for loop in loops if hlo_text.trip_count(loop, module) is None)


def sent_bytes(rows: Iterable[Collective]) -> float:
    """Bytes that one device sends in one run of the program."""
    return sum(row.sent_bytes for row in rows)


def by_kind(rows: Iterable[Collective]) -> dict[str, tuple[int, float]]:
    """Kind -> (executions, bytes that one device sends)."""
    totals: dict[str, tuple[int, float]] = {}
    for row in rows:
        times, sent = totals.get(row.kind, (0, 0.0))
        totals[row.kind] = (times + row.times, sent + row.sent_bytes)
    return totals


def _walk(
    module: Module,
    frames: Frames,
    name: str,
    times: int,
    mesh_axes: Mapping[str, int] | None,
    chains: set[str],
    path: Sequence[str],
) -> Iterator[Collective]:
    """Rows of one computation and of all that it calls; `chains` holds the chain ids that were met in this turn."""
    if name in path:
        return
    for instruction in module.computations.get(name, ()):
        kind = instruction.opcode.removesuffix("-start")
        if kind in hlo_text.COLLECTIVES:
            chain = re.search(r'chain_id="([^"]*)"', instruction.rest)
            if chain is None or chain.group(1) not in chains:
                yield _row(module, frames, name, instruction, kind, times, mesh_axes)
            chains |= {chain.group(1)} if chain else set()
        elif not instruction.opcode.endswith(("-done", "-update")):
            turns = hlo_text.trip_count(instruction, module) if instruction.opcode == "while" else 1
            turns = 1 if turns is None else turns
            # The fusions of one chain are called from one computation; a loop or a branch starts afresh.
            inner = chains if instruction.opcode == "fusion" else None
            for callee in hlo_text.called(instruction):
                visited = set() if inner is None else inner
                yield from _walk(module, frames, callee, times * turns, mesh_axes, visited, (*path, name))


def _row(
    module: Module,
    frames: Frames,
    computation: str,
    instruction: Instruction,
    kind: str,
    times: int,
    mesh_axes: Mapping[str, int] | None,
) -> Collective:
    type_text = instruction.type_text
    # A start's type is (operands, results, context ...), but an all-reduce's start has its results alone.
    if instruction.opcode.endswith("-start") and kind != "all-reduce":
        parts = hlo_text.tuple_parts(type_text)
        type_text = parts[1] if len(parts) > 1 else type_text
    result_bytes = hlo_text.type_bytes(type_text)
    group_size, groups = hlo_text.device_groups(instruction.rest, module.num_devices)
    if kind == "all-reduce" and computation.startswith("all-reduce-scatter"):
        kind, result_bytes = "reduce-scatter", result_bytes / group_size
    named = re.search(r'op_name="([^"]*)"', instruction.rest)
    source, scope = source_line(instruction.rest, frames), named.group(1) if named else ""
    axes = None if mesh_axes is None or groups is None else _axes(groups, mesh_axes)
    return Collective(_KINDS[kind], result_bytes, group_size, times, axes, source, scope)


def _axes(groups: np.ndarray, mesh_axes: Mapping[str, int]) -> tuple[str, ...] | None:
    """The mesh axes along which some member of a group stands elsewhere than the group's first."""
    sizes = tuple(mesh_axes.values())
    if groups.size and groups.max() >= np.prod(sizes, dtype=int):
        return None
    places = np.unravel_index(groups, sizes) if sizes else ()
    return tuple(axis for axis, at in zip(mesh_axes, places, strict=True) if (at != at[:, :1]).any())
