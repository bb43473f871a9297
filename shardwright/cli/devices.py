"""Virtual CPU devices, asked for while that is still possible."""

from __future__ import annotations

import argparse
import os
import re

import jax

from shardwright.plan import files

_FLAG = "--xla_force_host_platform_device_count"


def cluster_of(chosen: argparse.Namespace) -> str | None:
    """Returns the cluster that the options name: `--cluster`, else the one that a saved plan is for, else None."""
    named = vars(chosen)
    if named.get("cluster") or not named.get("plan"):
        return named.get("cluster")
    return files.load(named["plan"]).cluster


def virtual(cluster: str) -> int | None:
    """Returns N of `cpu:N`, None for any other name."""
    match = re.fullmatch(r"cpu:([1-9]\d*)", cluster.strip().lower())
    return int(match[1]) if match else None


def ask_for_virtual_devices(cluster: str | None) -> None:
    """Makes `cpu:N` true: N CPU devices, once jax starts its back end.

    XLA reads its flags when the first device is asked for, which the user's file may do as soon as it is loaded. Other
    clusters, and names that `cluster.parse` will refuse, change nothing.

    Args:
        cluster: A cluster's name; None where none was given.
    """
    count = virtual(cluster or "")
    if count is None:
        return
    others = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if not flag.startswith(f"{_FLAG}=")]
    os.environ["XLA_FLAGS"] = " ".join([*others, f"{_FLAG}={count}"])
    jax.config.update("jax_platforms", "cpu")
