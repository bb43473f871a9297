"""TOML ↔ records, with errors that name the key.

A user's file (all numbers SI; `source` may be left out; a key that is not listed is refused)::

    name = "rack-7"                      # optional: the file's name
    num_devices = 16
    torus = [4, 4]                       # optional: chips along each dim, first fastest; needs a link named "ici"
    wrap_multiple = 16                   # optional, 0: a torus dim that is a multiple of this is a ring

    [device]
    name = "H100-SXM5-80GB"
    platform = "gpu"                     # "cpu", "gpu" or "tpu"
    memory_bytes = 80_000_000_000
    memory_bytes_per_second = 3.35e12
    matmul_efficiency = 0.8              # share of the peak that a large matmul reaches, in (0, 1]
    memory_efficiency = 0.87
    launch_seconds = 3e-6
    source = "where the figures come from"

    [device.flops_per_second]            # dense peak by dtype, at least one
    bfloat16 = 9.89e14
    float32 = 4.945e14

    [[links]]                            # innermost first; the last one reaches all devices
    name = "nvlink"
    size = 8                             # devices in one group of this level, counted cumulatively
    bytes_per_second = 4.5e11            # of one device in one direction; of one torus link for "ici"
    efficiency = 0.7                     # optional, 1: multiplies the rates
    latency_seconds = 5e-6               # a step of a collective
    call_seconds = 3e-5                  # optional, 0: a collective, once
    all_to_all_bytes_per_second = 4e11   # optional: where all-to-all or permutes have a rate of their own
    permute_bytes_per_second = 4e11
    source = "where the figures come from"
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from shardwright.cluster.cluster import TORUS_LINK, Cluster, Device, Link

PLATFORMS = ("cpu", "gpu", "tpu")

_RATES = ("bytes_per_second", "all_to_all_bytes_per_second", "permute_bytes_per_second")
_DEVICE_NUMBERS = ("memory_bytes_per_second", "matmul_efficiency", "memory_efficiency", "launch_seconds")
_DEVICE_ORDER = ("name", "platform", "memory_bytes", *_DEVICE_NUMBERS, "source")
_LINK_ORDER = ("name", "size", *_RATES, "latency_seconds", "call_seconds", "source")
_DEVICE_KEYS = frozenset({"flops_per_second", *_DEVICE_ORDER})
_LINK_KEYS = frozenset({"efficiency", *_LINK_ORDER})
_CLUSTER_KEYS = frozenset({"name", "num_devices", "torus", "wrap_multiple", "device", "links"})


def read_cluster(table: Mapping[str, Any], where: str) -> Cluster:
    """A user's file as a record.

    Args:
        table: The parsed TOML, as in the module's docstring.
        where: What to call it in errors, and the cluster where it has no name.

    Returns:
        The cluster.

    Raises:
        ValueError: A key is missing, unknown or has an impossible value; the message names it.
    """
    _refuse_unknown(table, _CLUSTER_KEYS, where, "the top level")
    links = _get(table, "links", where)
    if not isinstance(links, list) or not links or not all(isinstance(link, Mapping) for link in links):
        raise ValueError(f"{where}: `links` is {links!r}. Write at least one [[links]] table.")
    cluster = Cluster(
        name=str(table.get("name", where)),
        device=read_device(_get(table, "device", where), where),
        num_devices=_whole(table, "num_devices", where),
        links=tuple(read_link(link, where, f"links[{i}].") for i, link in enumerate(links)),
        torus=_torus(table.get("torus", []), where),
        wrap_multiple=_whole(table, "wrap_multiple", where, zero=True) if "wrap_multiple" in table else 0,
    )
    _check(cluster, where)
    return cluster


def read_device(table: Any, where: str) -> Device:
    """The [device] table of a user's or a catalog file; errors as `read_cluster`."""
    if not isinstance(table, Mapping):
        raise ValueError(f"{where}: `device` is {table!r}. Write a [device] table.")
    _refuse_unknown(table, _DEVICE_KEYS, where, "[device]")
    flops = _get(table, "flops_per_second", where, "device.")
    if not isinstance(flops, Mapping) or not flops:
        raise ValueError(f"{where}: `device.flops_per_second` is {flops!r}. Write a table of numbers by dtype.")
    if _get(table, "platform", where, "device.") not in PLATFORMS:
        raise ValueError(f"{where}: `device.platform` is {table['platform']!r}. Write one of {', '.join(PLATFORMS)}.")
    numbers = {key: _number(table, key, where, "device.") for key in _DEVICE_NUMBERS}
    for key in ("matmul_efficiency", "memory_efficiency"):
        if numbers[key] > 1:
            raise ValueError(f"{where}: `device.{key}` is {numbers[key]}. Write the share of the peak, in (0, 1].")
    return Device(
        name=str(_get(table, "name", where, "device.")),
        platform=table["platform"],
        memory_bytes=_whole(table, "memory_bytes", where, "device."),
        flops_per_second={dtype: _number(flops, dtype, where, "device.flops_per_second.") for dtype in flops},
        source=str(table.get("source", "")),
        **numbers,
    )


def read_link(table: Mapping[str, Any], where: str, prefix: str, size: int | None = None) -> Link:
    """One [[links]] table; a catalog file leaves `size` to the shape. Errors as `read_cluster`."""
    _refuse_unknown(table, _LINK_KEYS, where, f"[[links]] {table.get('name', prefix)}")
    efficiency = _number(table, "efficiency", where, prefix) if "efficiency" in table else 1.0
    rates = {key: efficiency * _number(table, key, where, prefix) for key in _RATES if key in table}
    if "bytes_per_second" not in rates:
        _get(table, "bytes_per_second", where, prefix)
    return Link(
        name=str(_get(table, "name", where, prefix)),
        size=_whole(table, "size", where, prefix) if size is None else size,
        latency_seconds=_number(table, "latency_seconds", where, prefix, zero=True),
        call_seconds=_number(table, "call_seconds", where, prefix, zero=True) if "call_seconds" in table else 0.0,
        source=str(table.get("source", "")),
        **rates,
    )


def to_toml(cluster: Cluster) -> str:
    """`cluster` as a user's file; `parse` of it gives an equal record. A start for a description of one's own."""
    lines = [f"name = {_text(cluster.name)}", f"num_devices = {cluster.num_devices}"]
    if cluster.torus:
        lines += [f"torus = {list(cluster.torus)}", f"wrap_multiple = {cluster.wrap_multiple}"]
    device = {key: getattr(cluster.device, key) for key in _DEVICE_ORDER}
    lines += ["", "[device]", *_assignments(device)]
    lines += ["", "[device.flops_per_second]", *_assignments(cluster.device.flops_per_second)]
    for link in cluster.links:
        fields = {key: getattr(link, key) for key in _LINK_ORDER}
        lines += ["", "[[links]]", *_assignments({key: value for key, value in fields.items() if value is not None})]
    return "\n".join(lines) + "\n"


def _assignments(fields: Mapping[str, Any]) -> list[str]:
    return [f"{key} = {_text(value) if isinstance(value, str) else repr(value)}" for key, value in fields.items()]


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'


def _check(cluster: Cluster, where: str) -> None:
    sizes = [link.size for link in cluster.links]
    if sizes != sorted(sizes) or sizes[-1] != cluster.num_devices:
        raise ValueError(
            f"{where}: the links' `size` are {sizes} for `num_devices` = {cluster.num_devices}. Write the links "
            f"innermost first; each size counts all devices inside one group of that level, the last one all devices."
        )
    chips = math.prod(cluster.torus)
    if cluster.torus and not any(link.name == TORUS_LINK and link.size % chips == 0 for link in cluster.links):
        raise ValueError(
            f"{where}: `torus` is {list(cluster.torus)}, {chips} chips. Write a link named {TORUS_LINK!r} whose size "
            f"is the chips times the devices of a chip."
        )


def _torus(value: Any, where: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(dim) is int and dim > 0 for dim in value):
        raise ValueError(f"{where}: `torus` is {value!r}. Write the chips along each dim, such as [4, 4].")
    return tuple(value)


def _get(table: Mapping[str, Any], key: str, where: str, prefix: str = "") -> Any:
    if key not in table:
        raise ValueError(
            f"{where}: the key `{prefix}{key}` is missing. Add it; `shardwright.cluster.schema` shows a file."
        )
    return table[key]


def _number(table: Mapping[str, Any], key: str, where: str, prefix: str, zero: bool = False) -> float:
    value = _get(table, key, where, prefix)
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not good or value < 0 or (value == 0 and not zero):
        raise ValueError(f"{where}: `{prefix}{key}` is {value!r}. Write a number {'from 0 on' if zero else 'above 0'}.")
    return float(value)


def _whole(table: Mapping[str, Any], key: str, where: str, prefix: str = "", zero: bool = False) -> int:
    value = _number(table, key, where, prefix, zero)
    if value != int(value):
        raise ValueError(f"{where}: `{prefix}{key}` is {value}. Write a whole number.")
    return int(value)


def _refuse_unknown(table: Mapping[str, Any], known: frozenset[str], where: str, part: str) -> None:
    unknown = sorted(set(table) - known)
    if unknown:
        raise ValueError(f"{where}: {part} has the unknown key `{unknown[0]}`. Known keys: {', '.join(sorted(known))}.")
