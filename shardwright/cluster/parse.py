"""From what a user writes, or what jax has attached, to a `Cluster`. Nothing here asks jax for its devices."""

from __future__ import annotations

import collections
import difflib
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shardwright.cluster.catalog import Part, build, parts
from shardwright.cluster.cluster import Cluster
from shardwright.cluster.schema import read_cluster

_UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_MEMORY_EXAMPLES = "Write for example '80GB' (decimal), '80GiB' (binary) or plain bytes, 80000000000."


def names() -> list[str]:
    """The names of the catalog, sorted: "a100-40g", "cpu", "tpu-v5p", ….

    Example:
        >>> "h100" in names()
        True
    """
    return list(parts())


def parse(cluster: str | Path | Cluster) -> Cluster:
    """A cluster from its name and shape, from a file, or as it is.

    Args:
        cluster: A `Cluster`, which is returned as it is; a name with a shape, as "cpu:8" (virtual devices of one
            machine), "h100:4x8" (4 nodes of 8 GPUs), "tpu-v5p:4x4x8" (chips along each dim); or the path of a TOML
            file of one's own, whose keys `shardwright.cluster.schema` lists.

    Returns:
        The cluster. No device is needed or asked for.

    Raises:
        ValueError: An unknown name, an impossible shape, no such file, or a key that is missing or wrong in it.

    Example:
        >>> parse("h100:2x8").num_devices
        16
    """
    if isinstance(cluster, Cluster):
        return cluster
    text = str(cluster)
    if isinstance(cluster, Path) or text.endswith(".toml"):
        return _from_file(Path(text))
    name, _, shape = text.strip().lower().partition(":")
    if name not in parts():
        near = difflib.get_close_matches(name, names(), n=3, cutoff=0.5)
        hint = f"Did you mean {' or '.join(near)}? " if near else ""
        raise ValueError(
            f"Unknown cluster {text!r}. {hint}Known names: {', '.join(names())}; or give the path of a .toml file of "
            f"your own."
        )
    part = parts()[name]
    if not re.fullmatch(r"[0-9]+(x[0-9]+)*", shape):
        given = f"has the shape {shape!r}" if shape else "has no shape"
        raise ValueError(f"The cluster {text!r} {given}. Write {part.form}; {part.example}.")
    return build(part, tuple(int(number) for number in shape.split("x")))


def attached(devices: Sequence[Any]) -> Cluster:
    """The cluster that a list of jax devices is.

    Args:
        devices: What `jax.devices()` returned. The nodes of GPUs are told apart by `slice_index`, or by process where
            there is none; TPU chips by their `coords`.

    Returns:
        The catalog's cluster of that kind and shape.

    Raises:
        ValueError: No devices, several kinds, a kind that is not in the catalog, or a shape that is not whole.
    """
    kinds = sorted({device.device_kind for device in devices})
    if len(kinds) != 1:
        raise ValueError(f"The devices are of {len(kinds)} kinds: {kinds}. Pass devices of one kind, at least one.")
    part = _part_of(devices[0].platform, kinds[0])
    if part.shape == "host":
        return build(part, (len(devices),))
    if part.shape == "nodes":
        # XLA gives the GPUs of one machine (or NVLink domain) one slice index once it runs distributed.
        nodes = (getattr(device, "slice_index", device.process_index) for device in devices)
        counts = set(collections.Counter(nodes).values())
        if len(counts) != 1:
            raise ValueError(
                f"The nodes hold {sorted(counts)} devices of {kinds[0]!r}. Pass as many devices of each node, or "
                f"cluster=: a name such as {part.example.split()[0]!r}, or your own .toml file."
            )
        node_size = counts.pop()
        return build(part, (len(devices) // node_size, node_size))
    spans = [len({device.coords[dim] for device in devices}) for dim in range(len(part.largest))]
    cluster = build(part, tuple(spans))
    if cluster.num_devices != len(devices):
        raise ValueError(
            f"{len(devices)} devices of {kinds[0]!r} do not fill a slice of {'x'.join(map(str, spans))} chips "
            f"({cluster.num_devices} devices). Pass all devices of a slice, or cluster=: your own .toml file."
        )
    return cluster


def memory(size: str | int | float) -> int:
    """Bytes from a size: "80GB" is decimal, "80GiB" binary, a number is bytes.

    Args:
        size: A string with an optional unit B, kB, MB, GB, TB, KiB, MiB, GiB or TiB (upper or lower case), or a number.

    Returns:
        Whole bytes, above 0.

    Raises:
        ValueError: Not such a size, or not above 0.

    Example:
        >>> memory("1.5KiB")
        1536
    """
    if isinstance(size, str):
        match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?(?:e[0-9]+)?)\s*(?:([kmgt]?)(i?)b)?", size.strip().lower())
        if not match or (match[3] and not match[2]):
            raise ValueError(f"The memory size {size!r} is not understood. {_MEMORY_EXAMPLES}")
        value = float(match[1]) * (1024 if match[3] else 1000) ** _UNITS[match[2] or ""]
    elif isinstance(size, int | float) and not isinstance(size, bool):
        value = size
    else:
        raise ValueError(f"The memory size {size!r} is neither a text nor a number. {_MEMORY_EXAMPLES}")
    if not 1 <= value < float("inf"):
        raise ValueError(f"The memory size {size!r} is not a positive number of bytes. {_MEMORY_EXAMPLES}")
    return int(value)


def _from_file(path: Path) -> Cluster:
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ValueError(
            f"There is no cluster file {str(path)!r}. Give the path of a .toml file or one of {', '.join(names())}."
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"The cluster file {str(path)!r} is not TOML: {error}. Mend that line.") from error
    return read_cluster(table, path.name)


def _part_of(platform: str, kind: str) -> Part:
    for part in parts().values():
        if part.shape == "host" and platform == "cpu":
            return part
        if kind in part.device_kinds:
            return part
    known = sorted(kind for part in parts().values() for kind in part.device_kinds)
    raise ValueError(
        f"No figures are known for the device kind {kind!r}; known kinds: {', '.join(known)}. "
        f"Pass cluster=: one of {', '.join(names())} with a shape, or the path of your own .toml file."
    )
