"""Chooses a decision by pricing whole programs.

minimize    seconds (or memory, or bytes sent) of one step
over        the mesh's axes (one axis of all devices, or two: every factorization), for each axis its compute classes
            in order [candidates.compute_seeds, neighbors], whether state is cut where they do not reach
            [candidates.with_store; inputs that are no state too if they are large and memory binds], whether
            accumulators stay pending until a loop ends
subject to  peak memory of one device ≤ limit                                                    [_score]
            pins: leaves lie where the user says
              [partition.context.at_rest]

Every candidate is partitioned and priced whole. Seeds first, then the best of them climb: one class more or less at a
time, while that helps. Two-axis meshes start from the best lists of one axis. Deterministic: no clock, no random
choice.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

from shardwright.cluster import Cluster
from shardwright.cost.estimate import Estimate, estimate
from shardwright.partition.device import DeviceProgram
from shardwright.partition.lower import partition
from shardwright.partition.merge import merge_repeats
from shardwright.partition.turns import in_turn
from shardwright.plan.decision import AxisPlan, Decision
from shardwright.program.ir import Block, Program, Role, trip_count
from shardwright.rules.classes import Classes
from shardwright.search.candidates import (
    ALL_INPUTS,
    ALL_STATE,
    OPTIMIZER_ONLY,
    compute_seeds,
    neighbors,
    useful_classes,
    with_store,
)
from shardwright.search.facts import ClassFacts, class_facts

OBJECTIVES = ("seconds", "memory", "bytes")
KEEP = 3
MAX_ROUNDS = 3
CLIMB_CLASSES = 6
RESTS = (None, OPTIMIZER_ONLY, ALL_STATE)
LARGE_INPUT = 0.01  # of all inputs' bytes: where one that is no state is as large, it may be cut like state
REDUNDANCY = 1.5
FAR = 1.2  # times the cost: a step that led there is not tried again in this climb. At 1.05 good plans were lost
Step = tuple[Any, ...]  # of a climb: the axis and what changes on it
PINNED = Mapping[str, tuple[tuple[str, ...] | None, ...]]


@dataclasses.dataclass(frozen=True, eq=False)
class Candidate:
    """A decision with its program and price."""

    decision: Decision
    device: DeviceProgram
    estimate: Estimate


@dataclasses.dataclass(frozen=True, eq=False)
class Solution:
    """The best candidate, and all that were priced, best first."""

    best: Candidate
    tried: tuple[Candidate, ...]
    feasible: bool


def lowered_for(cluster: Cluster, device: DeviceProgram) -> DeviceProgram:
    """The per-device program as the cluster's back end takes it."""
    return in_turn(merge_repeats(device)) if cluster.device.platform == "cpu" else device


class _Search:
    """One search: what is fixed, and every candidate priced so far."""

    def __init__(self, program: Program, classes: Classes, cluster: Cluster, limit: int, objective: str, pins: PINNED):
        self.program, self.classes, self.cluster = program, classes, cluster
        self.limit, self.objective, self.pins = limit, objective, pins
        self.facts: ClassFacts = class_facts(program, classes)
        self.whole_flops = sum(_whole_flops(program.block, classes))
        least = LARGE_INPUT * sum(leaf.aval.bytes for leaf in program.inputs)
        self.large_input = any(leaf.role is Role.BATCH and leaf.aval.bytes >= least for leaf in program.inputs)
        self.rests: Sequence[frozenset[Role] | None] = RESTS
        self.priced: dict[tuple, Candidate] = {}
        self.useful = functools.cache(lambda size: useful_classes(classes, self.facts, size))

    def price(self, axes: Sequence[AxisPlan], partial_carries: bool = True, regather: bool = False) -> Candidate:
        key = (tuple(axes), partial_carries, regather)
        if key not in self.priced:
            decision = Decision(tuple(axes), self.pins, partial_carries, regather)
            device = lowered_for(self.cluster, partition(self.program, self.classes, decision))
            self.priced[key] = Candidate(decision, device, estimate(self.program, device, self.cluster))
        return self.priced[key]

    def score(self, c: Candidate) -> tuple:
        e = c.estimate
        over = max(0, e.memory.peak_bytes - self.limit)
        length = sum(3 * len(a.compute) + len(a.store) for a in c.decision.axes)  # what is only stored is simpler
        return (
            over > 0,
            over,
            self._repeated(c),
            self._cost(e),
            e.seconds,
            e.memory.peak_bytes,
            length,
            len(c.decision.axes),
        )

    def far(self, c: Candidate, best: Candidate) -> bool:
        """Whether `c` costs so much more (where `best` is over the limit: memory) that no later step mends it."""
        if best.estimate.memory.peak_bytes > self.limit:
            return c.estimate.memory.peak_bytes > FAR * best.estimate.memory.peak_bytes
        return self._cost(c.estimate) > FAR * self._cost(best.estimate)

    def _cost(self, e: Estimate) -> float:
        return {"seconds": e.seconds, "memory": e.memory.peak_bytes, "bytes": e.bytes_sent}[self.objective]

    def binds(self) -> bool:
        """Whether less memory is wanted than the best candidate takes that may take any."""
        best = min(self.priced.values(), key=lambda c: self.score(c)[2:])
        return self.objective == "memory" or best.estimate.memory.peak_bytes > self.limit

    def _repeated(self, c: Candidate) -> float:
        """How many times over the devices together do the step's work, if that is not what seconds already price.

        Sending nothing is easy where every device does everything; such a plan is no parallel run.
        """
        if self.objective == "seconds" or not self.whole_flops:
            return 0.0
        times = c.estimate.flops * math.prod(a.size for a in c.decision.axes) / self.whole_flops
        return 0.0 if times <= REDUNDANCY else round(times, 1)


def search(
    program: Program,
    classes: Classes,
    cluster: Cluster,
    *,
    limit: int,
    objective: str = "seconds",
    mesh: Mapping[str, int] | None = None,
    pins: PINNED | None = None,
) -> Solution:
    """The best decision that was found.

    Args:
      program: what to run.
      classes: its classes.
      cluster: where.
      limit: bytes of one device's memory.
      objective: "seconds", "memory" or "bytes": what is minimized under the limit.
      mesh: axis → size, major to minor; None: every mesh of one or two axes over all devices.
      pins: leaf name → axes of each dim, None where free.

    Returns:
      The solution; `feasible` is False if no candidate fits, and then `best` is the one that needs least.
    """
    s = _Search(program, classes, cluster, limit, objective, pins or {})
    with _collector_paused():
        meshes = _meshes(cluster.num_devices, mesh)
        for axes in meshes:
            _price_seeds(s, axes)
        if s.large_input and s.binds():
            s.rests = (*RESTS, ALL_INPUTS)
            for axes in meshes:
                _price_seeds(s, axes)
        for start in _starts(s):
            _climb(s, start)
    ranked = _distinct(sorted(s.priced.values(), key=s.score))
    return Solution(ranked[0], tuple(ranked), ranked[0].estimate.memory.peak_bytes <= limit)


def _distinct(ranked: Sequence[Candidate]) -> list[Candidate]:
    """The candidates without those that cost what a better one costs to the last digit: one program, two names."""
    seen: dict[tuple, Candidate] = {}
    for c in ranked:
        e = c.estimate
        seen.setdefault((e.seconds, e.memory.peak_bytes, e.bytes_sent, c.decision.mesh.keys() != {"x"}), c)
    return list(seen.values())


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """Thousands of small records are made and kept: the cyclic garbage collector would walk all of jax for nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _meshes(num_devices: int, mesh: Mapping[str, int] | None) -> list[list[AxisPlan]]:
    """The meshes to try, their axes empty: the given one, or one axis and every factorization into two."""
    if mesh is not None:
        return [[AxisPlan(axis, size) for axis, size in mesh.items()]]
    two = [(a, num_devices // a) for a in range(2, num_devices) if num_devices % a == 0]
    return [[AxisPlan("x", num_devices)], *([AxisPlan("d", a), AxisPlan("t", b)] for a, b in two)]


def _price_seeds(s: _Search, axes: list[AxisPlan]) -> None:
    """One axis: every seed, its state cut or not. Two: the lists that did best on one axis, paired."""
    if len(axes) == 1:
        for compute in compute_seeds(s.classes, s.facts, s.useful(axes[0].size)):
            for rest in s.rests:
                s.price(_stored(s, _with(axes, 0, compute), [rest]))
        return
    short = [[()] if a.size == 1 else _short_list(s, axes, i) for i, a in enumerate(axes)]
    for chosen in itertools.product(*short):
        filled = [dataclasses.replace(a, compute=c) for a, c in zip(axes, chosen, strict=True)]
        for rest in s.rests:
            s.price(_stored(s, filled, [rest] * len(axes)))


def _short_list(s: _Search, axes: list[AxisPlan], position: int) -> list[tuple[int, ...]]:
    """The compute lists that do best on one axis of this size, for the objective and for seconds, the others idle."""
    size = axes[position].size
    lists = compute_seeds(s.classes, s.facts, s.useful(size))
    alone = {}
    whole = next((c for c in s.priced.values() if len(c.decision.axes) == 1), None)
    for x in lists:
        if whole is not None:  # the one-axis mesh has told already
            alone[x] = min(
                (c for c in s.priced.values() if len(c.decision.axes) == 1 and c.decision.axes[0].compute == x),
                key=s.score,
                default=whole,
            )
        else:
            alone[x] = s.price(_with(axes, position, x))
    by_score = sorted(lists, key=lambda x: (s.score(alone[x]), x))[:KEEP]
    by_seconds = sorted(lists, key=lambda x: (alone[x].estimate.seconds, x))[:KEEP]
    return list(dict.fromkeys([*by_score, *by_seconds]))[: KEEP + 1]


def _with(axes: Sequence[AxisPlan], position: int, compute: tuple[int, ...]) -> list[AxisPlan]:
    return [dataclasses.replace(a, compute=compute) if i == position else a for i, a in enumerate(axes)]


def _starts(s: _Search) -> list[Candidate]:
    """Where climbing starts: the best of each number of axes, and the smallest if memory binds."""
    ranked = sorted(s.priced.values(), key=s.score)
    starts = []
    for count in sorted({len(c.decision.axes) for c in ranked}):
        starts.append(next(c for c in ranked if len(c.decision.axes) == count))
    if s.score(ranked[0])[0]:
        starts.append(min(ranked, key=lambda c: (c.estimate.memory.peak_bytes, s.score(c))))
    return list(dict.fromkeys(starts))


def _stored(s: _Search, axes: Sequence[AxisPlan], rests: Sequence[frozenset | None]) -> list[AxisPlan]:
    """`axes` with state cut for these roles on each axis (None: not cut), each axis knowing those before."""
    out = [dataclasses.replace(a, store=(), rest=ALL_STATE) for a in axes]
    for i, rest in enumerate(rests):
        if rest is not None and out[i].size > 1:
            out[i] = with_store(s.program, s.classes, s.facts, out, i, rest)
    return out


def _climb(s: _Search, start: Candidate) -> None:
    """Steps that lead far from the best are not tried again further up."""
    best, hopeless = start, set[Step]()
    for _ in range(MAX_ROUNDS):
        found = _around(s, best, hopeless)
        hopeless.update(step for step, c in found.items() if s.far(c, best))
        better = min(found.values(), key=s.score, default=best)
        if s.score(better) >= s.score(best):
            return
        best = better


def _around(s: _Search, at: Candidate, but: Set[Step]) -> dict[Step, Candidate]:
    """Every candidate one step away, except by the steps `but`.

    A class more or less on one axis, its state cut for other roles; where memory binds accumulators reduced in every
    turn, and gathers repeated.
    """
    axes = at.decision.axes
    rests = [a.rest if a.store else None for a in axes]
    partial, regather = at.decision.partial_carries, at.decision.regather
    found: dict[Step, Candidate] = {}
    for i, plan in enumerate(axes):
        if plan.size == 1:
            continue
        for step, compute in neighbors(plan, s.useful(plan.size)[:CLIMB_CLASSES]).items():
            if (i, *step) not in but:
                found[i, *step] = s.price(_stored(s, _with(axes, i, compute), rests))
        for rest in s.rests:
            if (i, rest) not in but:
                cut = _stored(s, axes, [rest if j == i else r for j, r in enumerate(rests)])
                found[i, rest] = s.price(cut)
    if s.binds() or not partial:
        found["carries",] = s.price(axes, not partial, regather)
    if s.binds() or regather:
        found["regather",] = s.price(axes, partial, not regather)
    return found


def _whole_flops(block: Block, classes: Classes, times: int = 1) -> Iterator[float]:
    for eqn in block.equations:
        if not eqn.blocks:
            yield times * classes.facts[eqn].flops
        for inner in eqn.blocks:
            yield from _whole_flops(inner, classes, times * trip_count(eqn))
