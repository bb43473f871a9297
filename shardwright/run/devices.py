"""Attached devices: virtual ones asked for in time, a mesh over them, the cluster that they are."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh

from shardwright import _compat
from shardwright.cluster import Cluster, attached

# Platform → what a program is compiled with. Left alone, XLA's CPU back end runs first what is ready first, and holds
# the more for it; our devices are many to a processor and have no idle cores to gain by that. `cost.order` prices this.
COMPILER_OPTIONS = {"cpu": {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}}
_DEVICE_FLAG = "xla_force_host_platform_device_count"


def start_virtual_devices(cluster: Any) -> None:
    """`cpu:N` sets the number of virtual CPU devices, while that is still possible and nobody has asked for more."""
    name = cluster.strip().lower() if isinstance(cluster, str) else ""
    if (
        not re.fullmatch(r"cpu:[0-9]+", name)
        or _compat.backend_is_up()
        or _DEVICE_FLAG in os.environ.get("XLA_FLAGS", "")
    ):
        return
    if jax.config.jax_num_cpu_devices < int(name[4:]):
        jax.config.update("jax_num_cpu_devices", int(name[4:]))


def make_mesh(axes: Mapping[str, int], devices: Sequence[Any] | None = None) -> Mesh:
    """A mesh of Auto axes over the first devices.

    Args:
      axes: axis → size, major to minor.
      devices: which devices; None: jax's attached ones, in order.

    Raises:
      ValueError: if fewer devices are attached than the mesh has, or one is given twice.
    """
    chosen = first_devices(axes, devices)
    grid = np.array(chosen, dtype=object).reshape(tuple(axes.values()))
    return Mesh(grid, tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


def abstract_mesh(axes: Mapping[str, int]) -> AbstractMesh:
    """A mesh of Auto axes (axis → size, major to minor) over no devices."""
    return AbstractMesh(tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


def first_devices(axes: Mapping[str, int], devices: Sequence[Any] | None = None) -> list[Any]:
    """As many devices as a mesh has."""
    given = jax.devices() if devices is None else list(devices)
    strange = next((d for d in given if not hasattr(d, "platform")), None)
    if strange is not None:
        raise ValueError(f"devices={devices!r}: {strange!r} is no device; give some of jax.devices()")
    needed = math.prod(axes.values())
    if len(given) < needed:
        where = "attached" if devices is None else "given"
        platform = f" ({given[0].platform})" if given else ""
        raise ValueError(
            f"the mesh {dict(axes)} has {needed} devices and {len(given)}{platform} are {where}: {_hint(given, needed)}"
        )
    chosen = given[:needed]
    if len(set(chosen)) != needed:
        raise ValueError(f"the mesh {dict(axes)} takes {needed} different devices, the given ones repeat: {chosen}")
    return chosen


def _hint(devices: Sequence[Any], needed: int) -> str:
    if devices and devices[0].platform != "cpu":
        return f"plan for {len(devices)} devices, or run where {needed} are attached"
    if _DEVICE_FLAG in os.environ.get("XLA_FLAGS", ""):
        return f"put --{_DEVICE_FLAG}={needed} into XLA_FLAGS before the start"
    return f"put jax.config.update('jax_num_cpu_devices', {needed}) before the first use of jax"


def attached_cluster(axes: Mapping[str, int] | None, devices: Sequence[Any] | None) -> Cluster:
    """The cluster of the user's devices, or of the first attached ones: as many as a given mesh has, else all.

    Raises:
      ValueError: if fewer are attached than the mesh has, or nothing is known of their kind.
    """
    if axes is None:
        return attached(jax.devices() if devices is None else devices)
    return attached(first_devices(axes, devices))
