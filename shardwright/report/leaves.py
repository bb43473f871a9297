"""Where the leaves of a plan lie, those that lie alike on one line."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from shardwright.plan.amounts import bytes_text
from shardwright.plan.placement import notation
from shardwright.plan.record import LeafRecord, PlanRecord
from shardwright.report.folding import filled, folded
from shardwright.report.sources import short_classes

MAX_GROUPS = 24
MAX_NAMES = 12
_ROLES = ("parameter", "optimizer", "batch", "key", "scalar", "result")


def leaf_lines(record: PlanRecord, width: int) -> Iterator[str]:
    """A heading and a line for each group of leaves with the same role and placement: what one device holds of them.

    Args:
        record: The plan.
        width: Columns.
    """
    program = record.program
    leaves = [*program.inputs, *(leaf for leaf in program.outputs if leaf.role == "result")]
    short = short_classes(n for leaf in leaves for n in leaf.dims)
    groups: dict[tuple[str, str], list[LeafRecord]] = {}
    for leaf in leaves:
        groups.setdefault((leaf.role, _placed(leaf, short)), []).append(leaf)
    mesh = dict(program.mesh)
    ranked = sorted(groups.items(), key=lambda g: (_ROLES.index(g[0][0]), -sum(map(whole_bytes, g[1])), g[0][1]))
    yield "Leaves: placement, bytes of one device, bytes of the whole"
    column = min(max(len(placed) for _, placed in groups), 44)
    for (role, placed), group in ranked[:MAX_GROUPS]:
        amounts = f"{bytes_text(sum(local_bytes(leaf, mesh) for leaf in group)):>8} {_whole(group):>8}"
        head = f"  {role:<10}{placed:<{column}} {amounts}  "
        names = _names(group)
        if len(head) + len(", ".join(names)) <= width:
            yield head + ", ".join(names)
        else:
            yield head.rstrip()
            yield from (" " * 12 + line for line in filled(names, width - 12))
    if len(ranked) > MAX_GROUPS:
        yield f"  and {len(ranked) - MAX_GROUPS} more placements"


def _placed(leaf: LeafRecord, short: Mapping[str, str]) -> str:
    """As in '[2, width_d, 32]': a dim that is cut by its class, any other by its size."""
    names = [short[n] if axes else str(size) for n, size, axes in zip(leaf.dims, leaf.shape, leaf.spec, strict=True)]
    return notation(names, leaf.placement)


def whole_bytes(leaf: LeafRecord) -> int:
    """Bytes of the whole leaf; a PRNG key counts as two words."""
    return math.prod(leaf.shape) * _itemsize(leaf.dtype)


def local_bytes(leaf: LeafRecord, mesh: Mapping[str, int]) -> int:
    """Bytes of one device's part."""
    parts = (math.prod(mesh[a] for a in axes) for axes in leaf.spec)
    return math.prod(math.ceil(n / p) for n, p in zip(leaf.shape, parts, strict=True)) * _itemsize(leaf.dtype)


def _itemsize(dtype: str) -> int:
    """Bytes of an element by the dtype's name; NumPy does not know bfloat16, float8_e4m3fn and PRNG keys."""
    try:
        return np.dtype(dtype).itemsize
    except TypeError:
        bits = re.search(r"\d+", dtype)
        return max(1, int(bits.group()) // 8) if bits else 8


def _whole(group: Sequence[LeafRecord]) -> str:
    return bytes_text(sum(map(whole_bytes, group)))


def _names(group: Sequence[LeafRecord]) -> list[str]:
    every = folded([leaf.name for leaf in group])
    more = sum(f.count for f in every[MAX_NAMES:])
    return [f.name for f in every[:MAX_NAMES]] + ([f"and {more} more"] if more else [])
