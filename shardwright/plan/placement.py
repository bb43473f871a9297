"""Where one tensor lies: per dim an ordered tuple of mesh axes, and the axes on which it is a pending sum."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence

from jax.sharding import PartitionSpec


@dataclasses.dataclass(frozen=True)
class Placement:
    """`dims[i]`: the mesh axes that cut dim i, major to minor. `partial`: (axis, monoid), sorted by axis."""

    dims: tuple[tuple[str, ...], ...]
    partial: tuple[tuple[str, str], ...] = ()

    @functools.cached_property
    def axes(self) -> frozenset[str]:
        """Every axis that cuts a dim."""
        return frozenset(a for axes in self.dims for a in axes)

    @property
    def spec(self) -> PartitionSpec:
        """As jax writes it; pending sums cannot be written."""
        return PartitionSpec(*(None if not a else a[0] if len(a) == 1 else a for a in self.dims))

    def dim_of(self, axis: str) -> int | None:
        """The dim that `axis` cuts, or None."""
        return next((i for i, axes in enumerate(self.dims) if axis in axes), None)

    def pending(self, axis: str) -> str | None:
        """The monoid of the pending reduction on `axis`, or None."""
        return next((m for a, m in self.partial if a == axis), None)


def whole(ndim: int) -> Placement:
    """Replicated on every axis."""
    return Placement(((),) * ndim)


def with_dim(placement: Placement, dim: int, axes: tuple[str, ...]) -> Placement:
    """`placement` with other axes on one dim."""
    return Placement((*placement.dims[:dim], axes, *placement.dims[dim + 1 :]), placement.partial)


def without_partial(placement: Placement, axes: Sequence[str] | None = None) -> Placement:
    """`placement` with nothing pending (on `axes`, or at all)."""
    kept = () if axes is None else tuple(p for p in placement.partial if p[0] not in axes)
    return Placement(placement.dims, kept)


def with_partial(placement: Placement, axis: str, monoid: str) -> Placement:
    """`placement`, pending by `monoid` on one more axis."""
    return Placement(placement.dims, tuple(sorted((*placement.partial, (axis, monoid)))))


def local_shape(
    shape: Sequence[int], padded: Sequence[int], placement: Placement, mesh: Mapping[str, int]
) -> tuple[int, ...]:
    """Shape of one device's part.

    Args:
      shape: logical size of each dim.
      padded: size of each dim when it is cut: the least multiple of its axes' product that the plan fixed.
      placement: which axes cut which dim.
      mesh: axis → size.
    """
    return tuple(
        [padded[i] // math.prod(mesh[a] for a in axes) if axes else shape[i] for i, axes in enumerate(placement.dims)]
    )


def notation(names: Sequence[str], placement: Placement) -> str:
    """`A[I_x, J]`-style text of the dims: each dim's name with its axes as subscript, pending sums behind."""
    dims = ", ".join(
        n + (f"_{''.join(a) if all(len(x) == 1 for x in a) else '.'.join(a)}" if a else "")
        for n, a in zip(names, placement.dims, strict=True)
    )
    pending = "".join(f" {{{'U' if m == 'sum' else m}_{a}}}" for a, m in placement.partial)
    return f"[{dims}]{pending}"


def from_spec(spec: Sequence, ndim: int) -> Placement:
    """A `PartitionSpec` as a placement; missing trailing dims are whole."""
    entries = [() if e is None else (e,) if isinstance(e, str) else tuple(e) for e in spec]
    return Placement(tuple(entries) + ((),) * (ndim - len(entries)))
