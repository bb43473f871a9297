"""The parts that are known by name: data/*.toml, one file a part, and how its shape makes a cluster of it.

A catalog file has the [device] and [[links]] tables of a user's file (`schema`), without the sizes, and [family]:

- shape: "host" (virtual devices that share a machine), "nodes" (nodes x GPUs) or "torus" (chips along each dim);
- largest: bounds of the shape (devices; GPUs in a node; chips along each dim), `largest_chips` of a torus as a whole;
- wrap_multiple, cores_per_chip: of a torus, see `cluster.Cluster`;
- device_kinds: what jax calls such a device.
"""

from __future__ import annotations

import functools
import importlib.resources
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from shardwright.cluster.cluster import Cluster, Device, Link
from shardwright.cluster.schema import read_device, read_link


@dataclass(frozen=True)
class Part:
    """One catalog file."""

    name: str
    device: Device
    links: tuple[Link, ...]  # sizes unset (0)
    shape: str
    largest: tuple[int, ...]
    device_kinds: tuple[str, ...]
    largest_chips: int = 0
    wrap_multiple: int = 0
    cores_per_chip: int = 1

    @property
    def form(self) -> str:
        """How a cluster of it is written."""
        dims = "AxBxC" if len(self.largest) == 3 else "AxB"
        return f"{self.name}:{ {'host': 'N', 'nodes': 'NxM', 'torus': dims}[self.shape] }"

    @property
    def example(self) -> str:
        """A cluster of it, and what it means."""
        return {
            "host": f"{self.name}:8 is 8 virtual devices of one machine",
            "nodes": f"{self.name}:2x8 is 2 nodes of 8 GPUs",
            "torus": f"{self.name}:{'x'.join('4' for _ in self.largest)} is a slice of {4 ** len(self.largest)} chips",
        }[self.shape]


@functools.cache
def parts() -> Mapping[str, Part]:
    """Every part of the catalog by name, sorted."""
    folder = importlib.resources.files("shardwright.cluster") / "data"
    files = sorted(file.name for file in folder.iterdir() if file.name.endswith(".toml"))
    return {name[:-5]: _read_part(name[:-5], tomllib.loads((folder / name).read_text("utf-8"))) for name in files}


def build(part: Part, shape: tuple[int, ...]) -> Cluster:
    """The cluster of `part` in `shape`: (devices,), (nodes, GPUs in each) or chips along each dim.

    Raises:
        ValueError: The shape is impossible; the message says what was given and what is possible.
    """
    reason = _why_impossible(part, shape)
    if reason:
        given = f"{part.name}:{'x'.join(map(str, shape))}"
        raise ValueError(f"The cluster {given!r} is impossible: {reason}. Write {part.form}; {part.example}.")
    name = f"{part.name}:{'x'.join(map(str, shape))}"
    if part.shape == "host":
        return _host(part, name, shape[0])
    if part.shape == "nodes":
        num_nodes, node_size = shape
        inner, outer = part.links
        total = num_nodes * node_size
        levels = [replace(inner, size=node_size)] if node_size > 1 or num_nodes == 1 else []
        levels += [replace(outer, size=total)] if num_nodes > 1 else []
        return Cluster(name, part.device, total, tuple(levels))
    total = part.cores_per_chip * math.prod(shape)
    sizes = (part.cores_per_chip, total) if part.cores_per_chip > 1 else (total,)
    links = tuple(replace(link, size=size) for link, size in zip(part.links, sizes, strict=True))
    return Cluster(name, part.device, total, links, torus=shape, wrap_multiple=part.wrap_multiple)


def _host(part: Part, name: str, num_devices: int) -> Cluster:
    """Devices that share one machine: rates are divided among them, times that the machine spends for each add up."""
    device, link = part.device, part.links[0]
    return Cluster(
        name,
        replace(
            device,
            flops_per_second={dtype: rate / num_devices for dtype, rate in device.flops_per_second.items()},
            memory_bytes_per_second=device.memory_bytes_per_second / num_devices,
            launch_seconds=device.launch_seconds * num_devices,
        ),
        num_devices,
        (
            replace(
                link,
                size=num_devices,
                bytes_per_second=link.bytes_per_second / num_devices,
                call_seconds=link.call_seconds * num_devices,
            ),
        ),
    )


def _why_impossible(part: Part, shape: tuple[int, ...]) -> str:
    wanted = {"host": 1, "nodes": 2, "torus": len(part.largest)}[part.shape]
    if len(shape) != wanted:
        return f"its shape has length {len(shape)} and {part.name} takes {wanted}"
    if min(shape) < 1:
        return "every number must be at least 1"
    bounded = shape[1:] if part.shape == "nodes" else shape
    for given, largest in zip(bounded, part.largest, strict=True):
        if given > largest:
            what = {"host": "devices", "nodes": "GPUs in a node", "torus": "chips along this dim"}[part.shape]
            return f"{given} is more than {largest}, the most {what} that {part.name} has"
    if part.shape == "torus" and math.prod(shape) > part.largest_chips:
        return f"its {math.prod(shape)} chips are more than the {part.largest_chips} of a pod"
    cubes = part.wrap_multiple if len(shape) == 3 else 1  # 3D slices are made of whole 4x4x4 cubes or lie inside one
    for dim in shape:
        if dim > cubes > 1 and dim % cubes:
            return f"{dim} chips along a dim; from {cubes} on only multiples of {cubes} exist"
    return ""


def _read_part(name: str, table: dict[str, Any]) -> Part:
    where = f"data/{name}.toml"
    family = dict(table["family"])
    return Part(
        name=name,
        device=read_device(table["device"], where),
        links=tuple(read_link(link, where, f"links[{i}].", size=0) for i, link in enumerate(table["links"])),
        shape=family.pop("shape"),
        largest=tuple(family.pop("largest")),
        device_kinds=tuple(family.pop("device_kinds")),
        **family,
    )
