"""Whole arrays onto the devices of a mesh, as a slot says they lie."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from shardwright.partition.device import Slot


def global_shape(slot: Slot, mesh: jax.sharding.Mesh) -> tuple[int, ...]:
    """Shape of all devices' parts put together: the logical one, or longer where sizes do not divide."""
    return tuple(
        size * math.prod(mesh.shape[a] for a in axes)
        for size, axes in zip(slot.shape, slot.placement.dims, strict=True)
    )


def put(value: Any, slot: Slot, mesh: jax.sharding.Mesh) -> jax.Array:
    """`value`, a whole array, laid as `slot` lies; zeros fill it up where the slot is padded."""
    shape = global_shape(slot, mesh)
    if tuple(value.shape) != shape:
        value = np.pad(value, [(0, n - m) for n, m in zip(shape, value.shape, strict=True)])
    return jax.device_put(value, NamedSharding(mesh, slot.placement.spec))
