"""`shardwright clusters`: the catalog, or the figures of one cluster."""

from __future__ import annotations

import argparse
from typing import Any

from shardwright import cluster as catalog
from shardwright.cli import options
from shardwright.cli.outcome import Outcome

HELP = "list the clusters that can be planned for, or show the figures of one"
EXAMPLE = "example: shardwright clusters h100:2x8"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the subcommand's options."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="a name with its shape, or a .toml file of your own")
    options.add_json(parser)


def run(chosen: argparse.Namespace) -> Outcome:
    """Lists names, or shows one cluster."""
    if chosen.name:
        shown = catalog.parse(chosen.name)
        return Outcome(catalog.to_toml(shown), _facts(shown))
    names = catalog.names()
    advice = "Add a shape: cpu:8, h100:2x8 (nodes x GPUs), tpu-v5p:2x2x2 (chips along each dim);"
    return Outcome("\n".join([*names, "", advice, "or give the path of a .toml file of your own."]), {"names": names})


def _facts(cluster: catalog.Cluster) -> dict[str, Any]:
    device = cluster.device
    return {
        "name": cluster.name,
        "num_devices": cluster.num_devices,
        "torus": list(cluster.torus),
        "device": {
            "name": device.name,
            "platform": device.platform,
            "memory_bytes": device.memory_bytes,
            "memory_bytes_per_second": device.memory_bytes_per_second,
            "flops_per_second": dict(device.flops_per_second),
        },
        "links": [
            {"name": link.name, "size": link.size, "bytes_per_second": link.bytes_per_second} for link in cluster.links
        ],
    }
