"""What the groups of a mesh axis get of the network: the slowest level they cross, and their share of it.

The mesh is laid on the cluster row-major: its last axis varies fastest, so it holds the innermost neighbors. A group is
then a list of segments (stride, size), one for each run of neighboring axes. Level by level, innermost first:

- a level carries traffic of a group when one block of it holds more of the members (h) than a block of the level
  below does (m);
- a ring enters and leaves each lower block once, and as every member can be the one that does (one ring for each
  member, as NCCL's channels are laid), the m members in a lower block drive m links of this level: `m · rate`;
- all-to-all: of the n-1 peers of a device h-m are on this level, so of the bytes sent (h-m)/(n-1) go over the
  device's own link of it: `rate · (n-1)/(h-m)`;
- permute: in the worst case each device sends everything over its own link: `rate`.

The slowest level crossed sets the pace.

The torus level has W bytes per second for each link and direction (closed forms as in "How to Scale Your Model",
jax-ml, 2025, chapters on TPUs and on sharded matrices). For an axis with `extent` members spaced `spacing` apart along
a dim, whose `spacing` interleaved groups share the dim's links:

- ring collectives: 2·W/spacing where the dim wraps round (both directions), W/spacing on a line, where an end has one
  neighbor. Over several dims the rates add up (each dim takes its part of the data).
- all-to-all of r bytes a device: on a ring the mean distance is extent/4 hops over two links, so
  r·extent·spacing/(8·W); on a line r/4·extent bytes of each group cross the middle link: r·extent·spacing/(4·W). The
  slowest dim counts; against the r·(n-1)/n bytes that a device sends this is a rate.
- permute: a shift by one, W/spacing.
- latency: the data travels extent/2 hops on a ring, extent-1 on a line; `cost.collectives` counts ceil(log2 n) steps,
  so a step takes hops / ceil(log2 n) of the latency of one hop.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from shardwright.cluster.cluster import TORUS_LINK, Cluster, Link


@dataclass(frozen=True)
class _Rates:
    ring: float
    all_to_all: float
    permute: float
    latency_seconds: float


@dataclass(frozen=True)
class _Cover:
    """The part of one torus dim that a group covers."""

    extent: int
    spacing: int
    wraps: bool


def axis_links(cluster: Cluster, mesh: Mapping[str, int]) -> dict[str, Link]:
    """The link of every mesh axis, with the bandwidth that its groups get when all of them talk at once.

    Args:
        cluster: Where it runs.
        mesh: Axis sizes, major to minor.

    Returns:
        One link for each axis: name and size of the outermost level crossed, rates per device and direction.

    Raises:
        ValueError: The mesh does not have as many devices as the cluster.
    """
    return {axis: group_link(cluster, mesh, (axis,)) for axis in mesh}


def group_link(cluster: Cluster, mesh: Mapping[str, int], axes: Sequence[str]) -> Link:
    """As `axis_links`, for groups that span several axes at once: `psum(x, ("data", "model"))`.

    Args:
        cluster: Where it runs.
        mesh: Axis sizes, major to minor.
        axes: The axes of the group, in any order.

    Returns:
        The link of these groups.

    Raises:
        ValueError: The mesh does not have as many devices as the cluster, or an axis is not in the mesh.
    """
    segments = _segments(cluster, mesh, axes)
    n = math.prod(size for _, size in segments)
    if n == 1:
        return cluster.links[0]
    crossed: list[tuple[Link, _Rates]] = []
    inside = 1  # members in one block of the level below
    for link in cluster.links:
        here = math.prod(_num_inside(link.size, *segment, cluster.num_devices) for segment in segments)
        if here > inside:
            crossed.append((link, _shared(_level_rates(cluster, link, segments), inside, here, n)))
        inside = here
        if here == n:
            break
    outermost = crossed[-1][0]
    return replace(
        outermost,
        bytes_per_second=min(rates.ring for _, rates in crossed),
        all_to_all_bytes_per_second=min(rates.all_to_all for _, rates in crossed),
        permute_bytes_per_second=min(rates.permute for _, rates in crossed),
        latency_seconds=max(rates.latency_seconds for _, rates in crossed),
        call_seconds=max(link.call_seconds for link, _ in crossed),
    )


def _segments(cluster: Cluster, mesh: Mapping[str, int], axes: Sequence[str]) -> list[tuple[int, int]]:
    """(stride, size) of each run of neighboring axes, innermost first; axes of size 1 leave no trace."""
    if math.prod(mesh.values()) != cluster.num_devices:
        raise ValueError(
            f"The mesh {dict(mesh)} has {math.prod(mesh.values())} devices and the cluster {cluster.name} has "
            f"{cluster.num_devices}. Give axis sizes whose product is {cluster.num_devices}, or a cluster of that size."
        )
    unknown = [axis for axis in axes if axis not in mesh]
    if unknown:
        raise ValueError(f"Axis {unknown[0]!r} is not in the mesh, which has {', '.join(mesh)}. Name one of these.")
    segments: list[tuple[int, int]] = []
    stride = 1
    for axis in reversed(tuple(mesh)):
        size = mesh[axis]
        if axis in axes and size > 1:
            if segments and math.prod(segments[-1]) == stride:
                segments[-1] = (segments[-1][0], segments[-1][1] * size)
            else:
                segments.append((stride, size))
        stride *= size
    return segments


def _num_inside(block: int, stride: int, size: int, num_devices: int) -> int:
    """Members of each group of the segment that share an aligned block of `block` devices (the least, if uneven).

    A group lies in an aligned run of stride·size devices. Where `block` is a multiple of the run, or is everything, no
    group crosses a boundary; otherwise at least one does, and all do alike only when the run is a multiple of `block`.
    """
    if block % (stride * size) == 0 or block >= num_devices:
        return size
    if (stride * size) % block == 0 and block % stride == 0:
        return block // stride
    return 1


def _shared(rates: _Rates, inside: int, here: int, n: int) -> _Rates:
    """Rates of one device's link → rates of a group of n, of which `here` share a block and `inside` a lower block."""
    return replace(rates, ring=inside * rates.ring, all_to_all=rates.all_to_all * (n - 1) / (here - inside))


def _level_rates(cluster: Cluster, link: Link, segments: list[tuple[int, int]]) -> _Rates:
    if cluster.torus and link.name == TORUS_LINK:
        return _torus_rates(link, [cover for segment in segments for cover in _covers(cluster, link, *segment)])
    ring = link.bytes_per_second
    return _Rates(
        ring=ring,
        all_to_all=link.all_to_all_bytes_per_second or ring,
        permute=link.permute_bytes_per_second or ring,
        latency_seconds=link.latency_seconds,
    )


def _torus_rates(link: Link, covers: list[_Cover]) -> _Rates:
    one_way = link.bytes_per_second  # of one link: W
    n = math.prod(cover.extent for cover in covers)
    hops = sum(c.spacing * (c.extent / 2 if c.wraps else c.extent - 1) for c in covers)
    return _Rates(
        ring=sum((2 if c.wraps else 1) * one_way / c.spacing for c in covers),
        all_to_all=(n - 1) / n * min((8 if c.wraps else 4) * one_way / (c.extent * c.spacing) for c in covers),
        permute=min(one_way / c.spacing for c in covers),
        latency_seconds=link.latency_seconds * max(1.0, hops / math.ceil(math.log2(n))),
    )


def _covers(cluster: Cluster, link: Link, stride: int, size: int) -> list[_Cover]:
    """The parts of the torus dims that the segment covers, one for each dim.

    The segment is the interval [stride, stride·size) on a multiplicative scale, and so is every dim; a cover is the
    overlap. Where sizes do not divide each other (6 devices along dims of 4) the extent is rounded up: an assumption.
    """
    covers = []
    low = link.size // math.prod(cluster.torus)  # devices of one chip stand together, inside the torus
    for length in cluster.torus:
        start, end = max(stride, low), min(stride * size, low * length)
        if start < end:
            extent, spacing = math.ceil(end / start), max(1, start // low)
            covers.append(_Cover(extent, spacing, extent * spacing >= length and _wraps(cluster, length)))
        low *= length
    return covers


def _wraps(cluster: Cluster, length: int) -> bool:
    """Whether a dim of `length` chips is a ring.

    Assumptions. 3D (v4, v5p, 7x): slices are made of 4x4x4 cubes joined by optical switches, so all dims wrap, or none
    where any dim is shorter than a cube. 2D (v2, v3, v5e, v6e): a dim wraps when it is as long as the pod.
    """
    multiple = cluster.wrap_multiple
    if not multiple:
        return False
    dims = cluster.torus if len(cluster.torus) == 3 else (length,)
    return all(dim % multiple == 0 for dim in dims)
