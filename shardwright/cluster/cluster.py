"""What a cluster is, as data: one accelerator, the levels of the network, how many devices.

Every number is SI and decimal: bytes, seconds, bytes_per_second, flops_per_second. Nothing here asks for a device.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

TORUS_LINK = "ici"
"""The name of the level that is a torus, in a cluster that has one."""


@dataclass(frozen=True)
class Device:
    """One accelerator: what jax counts as one device.

    Attributes:
        name: The catalog's name, or the user's.
        platform: "cpu", "gpu" or "tpu".
        memory_bytes: What a program may use; for a TPU, the limit that its compiler applies.
        flops_per_second: Dense matmul peak by dtype name, at jax's default precision (float32 is TF32 on an A100 and
            later, one bfloat16 pass on a TPU; see `jax.lax.Precision`).
        memory_bytes_per_second: Peak of the main memory, reads and writes together.
        matmul_efficiency: Share of the peak that a large matmul reaches.
        memory_efficiency: Share of the memory's peak that a large copy reaches.
        launch_seconds: The least time that one kernel takes.
        source: Where the figures come from, with the date.
    """

    name: str
    platform: str
    memory_bytes: int
    flops_per_second: Mapping[str, float] = field(hash=False)  # a dict has no hash; equality still compares it
    memory_bytes_per_second: float
    matmul_efficiency: float
    memory_efficiency: float
    launch_seconds: float
    source: str


@dataclass(frozen=True)
class Link:
    """One level of the network, or what one group of devices gets of it (`group_link`).

    Attributes:
        name: For example "nvlink", "network", "ici", "host".
        size: Devices inside one group of this level, counted cumulatively: 8 in the node, 16 in the cluster.
        bytes_per_second: What one device sends in one direction, as measured (the peak times its efficiency). On the
            level named "ici" of a torus: over one link in one direction.
        latency_seconds: Each step of a collective (`cost.collectives` counts the steps).
        call_seconds: Each collective once, whatever its steps: launch and rendezvous.
        all_to_all_bytes_per_second: For all-to-all; None where it is `bytes_per_second`.
        permute_bytes_per_second: For permutes; None where it is `bytes_per_second`.
        source: Where the figures come from, with the date.
    """

    name: str
    size: int
    bytes_per_second: float
    latency_seconds: float
    call_seconds: float = 0.0
    all_to_all_bytes_per_second: float | None = None
    permute_bytes_per_second: float | None = None
    source: str = ""


@dataclass(frozen=True)
class Cluster:
    """Equal devices and the links between them.

    Device order is row-major, innermost neighbors next to each other: devices 0 to 7 share the first node. On a torus
    the first dim varies fastest, as jax numbers a TPU slice (`coords` (1, 0, 0) is the second chip), and the devices
    of one chip stand together.

    Attributes:
        name: What `parse` was given, in its canonical form.
        device: Each of the devices.
        num_devices: How many.
        links: Innermost first; the last one reaches all devices.
        torus: Chips along each dim as the vendor writes it (x first), () where there is none.
        wrap_multiple: A torus dim closes into a ring when it is a multiple of this; 0 means never.
    """

    name: str
    device: Device
    num_devices: int
    links: tuple[Link, ...]
    torus: tuple[int, ...] = ()
    wrap_multiple: int = 0


def peak_flops_per_second(device: Device, dtype: str) -> float:
    """The dense matmul peak of `device` for `dtype`, in flops per second.

    A dtype without a figure counts as the slowest dtype with one, slower in proportion where it is wider (float64 on
    a TPU: half of float32). Assumption: it errs on the side of too fast, as emulated types are slower still.

    Args:
        device: The accelerator.
        dtype: A dtype's name, such as "bfloat16".

    Returns:
        Flops per second, before `matmul_efficiency`.
    """
    if dtype in device.flops_per_second:
        return device.flops_per_second[dtype]
    slowest = min(device.flops_per_second, key=lambda name: device.flops_per_second[name])
    wider = max(1.0, _num_bits(dtype) / _num_bits(slowest))
    return device.flops_per_second[slowest] / wider


def _num_bits(dtype: str) -> int:
    digits = re.search(r"\d+", dtype)  # "float8_e4m3fn" → 8; "bool" → 8
    return int(digits.group()) if digits else 8
