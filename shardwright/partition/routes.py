"""The cheapest way from one placement to another.

A route is a sequence of moves; each changes one axis. Dijkstra's search over placements, where a move costs the bytes
that one device sends (bandwidth-optimal ring) plus a little for each collective, finds routes of small pieces: slices
first, all-to-all where an axis changes its dim, gathers last.
"""

from __future__ import annotations

import dataclasses
import functools
import heapq
import itertools
import math
from collections.abc import Iterator

from shardwright.plan.placement import Placement, local_shape, with_dim, without_partial

LATENCY_BYTES = 2048.0
"""What one collective costs beside its bytes, so that of two routes with equal bytes the shorter one wins."""


@dataclasses.dataclass(frozen=True)
class Step:
    """One move of a route, ending in `target`."""

    kind: str
    axes: tuple[str, ...]
    target: Placement
    dim: int = 0
    other_dim: int = 0
    monoid: str = "sum"


@functools.lru_cache(maxsize=65536)
def route(
    shape: tuple[int, ...],
    padded: tuple[int, ...],
    itemsize: int,
    source: Placement,
    target: Placement,
    mesh: tuple[tuple[str, int], ...],
) -> tuple[float, tuple[Step, ...]]:
    """Cheapest moves from `source` to `target`.

    Args:
      shape: logical sizes.
      padded: sizes when cut.
      itemsize: bytes of an element.
      source: where the value lies; what is pending there and not in `target` is reduced.
      target: where it is wanted.
      mesh: (axis, size) pairs, major to minor.

    Returns:
      (bytes that one device sends, the steps).
    """
    sizes = dict(mesh)
    counter = itertools.count()
    heap: list[tuple[float, int, Placement, tuple[Step, ...]]] = [(0.0, next(counter), source, ())]
    best: dict[Placement, float] = {}
    while heap:
        cost, _, at, steps = heapq.heappop(heap)
        if at == target:
            sent = sum(_sent(s, p, shape, padded, itemsize, sizes) for s, p in _pairs(source, steps))
            return sent, steps
        if best.get(at, math.inf) <= cost:
            continue
        best[at] = cost
        for step in _moves(at, target, shape, padded, sizes):
            price = _sent(step, at, shape, padded, itemsize, sizes)
            if step.kind != "slice":
                price += LATENCY_BYTES
            heapq.heappush(heap, (cost + price, next(counter), step.target, (*steps, step)))
    raise AssertionError(f"no route from {source} to {target}")


def _pairs(source: Placement, steps: tuple[Step, ...]) -> Iterator[tuple[Step, Placement]]:
    at = source
    for step in steps:
        yield step, at
        at = step.target


def _bytes(
    placement: Placement, shape: tuple[int, ...], padded: tuple[int, ...], itemsize: int, mesh: dict[str, int]
) -> float:
    return math.prod(local_shape(shape, padded, placement, mesh)) * itemsize


def _sent(
    step: Step, at: Placement, shape: tuple[int, ...], padded: tuple[int, ...], itemsize: int, mesh: dict[str, int]
) -> float:
    """Bytes that one device sends: with r the bytes of the larger side, 2r(n-1)/n for an all-reduce, r(n-1)/n else."""
    n = math.prod(mesh[a] for a in step.axes)
    if step.kind == "slice" or n == 1:
        return 0.0
    before, after = (_bytes(p, shape, padded, itemsize, mesh) for p in (at, step.target))
    if step.kind == "permute":
        return after
    larger = max(before, after)
    return (2.0 if step.kind == "all_reduce" else 1.0) * larger * (n - 1) / n


def _moves(
    at: Placement, target: Placement, shape: tuple[int, ...], padded: tuple[int, ...], mesh: dict[str, int]
) -> Iterator[Step]:
    yield from _reductions(at, target, padded, mesh)
    yield from _slices(at, target, shape, padded, mesh)
    for dim, axes in enumerate(at.dims):
        if not axes or axes == target.dims[dim]:
            continue
        for k in range(1, len(axes) + 1):
            gathered = axes[-k:]
            if axes[: len(axes) - k] == target.dims[dim][: len(axes) - k]:
                yield Step("all_gather", gathered, with_dim(at, dim, axes[:-k]), dim)
        last = axes[-1:]
        yield Step("all_gather", last, with_dim(at, dim, axes[:-1]), dim)
        for other in range(len(shape)):
            if other != dim and _divides(at, other, last, padded, mesh):
                moved = with_dim(with_dim(at, dim, axes[:-1]), other, (*at.dims[other], *last))
                yield Step("all_to_all", last, moved, other, dim)
        for order in itertools.permutations(
            axes
        ):  # an axis leaves a dim from its minor end, so it may have to go there
            if order != axes:
                yield Step("permute", tuple(a for a in mesh if a in axes), with_dim(at, dim, order), dim)


def _reductions(at: Placement, target: Placement, padded: tuple[int, ...], mesh: dict[str, int]) -> Iterator[Step]:
    by_monoid: dict[str, list[str]] = {}
    for axis, monoid in at.partial:
        if target.pending(axis) is None:
            by_monoid.setdefault(monoid, []).append(axis)
    for monoid, pending in by_monoid.items():
        unwanted = tuple(a for a in pending if a not in target.axes)
        if unwanted:
            yield Step("all_reduce", unwanted, without_partial(at, unwanted), monoid=monoid)
        for axis in pending:
            dim = target.dim_of(axis)
            if dim is None:
                continue
            if monoid == "sum" and _divides(at, dim, (axis,), padded, mesh):
                scattered = with_dim(without_partial(at, (axis,)), dim, (*at.dims[dim], axis))
                yield Step("reduce_scatter", (axis,), scattered, dim, monoid=monoid)
            yield Step("all_reduce", (axis,), without_partial(at, (axis,)), monoid=monoid)


def _slices(
    at: Placement, target: Placement, shape: tuple[int, ...], padded: tuple[int, ...], mesh: dict[str, int]
) -> Iterator[Step]:
    for dim, wanted in enumerate(target.dims):
        have = at.dims[dim]
        if len(wanted) > len(have) and wanted[: len(have)] == have:
            axis = wanted[len(have)]
            if axis not in at.axes and at.pending(axis) is None:
                yield Step("slice", (axis,), with_dim(at, dim, (*have, axis)), dim)


def _divides(at: Placement, dim: int, axes: tuple[str, ...], padded: tuple[int, ...], mesh: dict[str, int]) -> bool:
    parts = math.prod(mesh[a] for a in (*at.dims[dim], *axes))
    return padded[dim] % parts == 0
