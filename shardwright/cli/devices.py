"""Virtual CPU devices, asked for while that is still possible."""

from __future__ import annotations

import os
import re

import jax

_FLAG = "--xla_force_host_platform_device_count"


def ask_for_virtual_devices(cluster: str | None) -> None:
    """Makes `cpu:N` true: N CPU devices, once jax starts its back end.

    XLA reads its flags when the first device is asked for, which the user's file may do as soon as it is loaded. Other
    clusters, and names that `cluster.parse` will refuse, change nothing.

    Args:
        cluster: What `--cluster` was given.
    """
    match = re.fullmatch(r"cpu:([1-9]\d*)", cluster or "")
    if match is None:
        return
    others = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if not flag.startswith(f"{_FLAG}=")]
    os.environ["XLA_FLAGS"] = " ".join([*others, f"{_FLAG}={match[1]}"])
    jax.config.update("jax_platforms", "cpu")
