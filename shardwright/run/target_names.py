"""The names of machines that a program can be compiled for, and the process that each compiler wants.

tpu-GENERATION:SHAPE     a slice of v2, v3, v4, v5e, v5p, v6e or 7x: tpu-v5e:4x4, tpu-v5p:2x2x2
GPU:HOSTSxGPUS           hosts of that many GPUs each (a name in data/*.txt): h100:1x8, a100-80g:2x8, b200:1x8
GPU:DOMAINSxHOSTSxGPUS   the same where a fast-link domain spans hosts
cpu:N                    N virtual devices of this processor
"""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import jax

from shardwright import cluster

_DATA = Path(__file__).parent / "data"
_TPU_GENERATIONS = ("v2", "v3", "v4", "v5e", "v5p", "v6e", "7x")


@dataclasses.dataclass(frozen=True)
class Target:
    """A parsed target name."""

    name: str
    platform: str  # as jax calls it: tpu, cuda, cpu
    extra: str  # the extra of this package that brings the compiler
    topology: Mapping[str, str]  # what jax's topology description is asked for

    @property
    def variable(self) -> str:
        """The environment variable that names the child's interpreter."""
        return f"SHARDWRIGHT_{self.extra.upper()}_PYTHON"


def parse_target(name: str) -> Target:
    """Reads a target's name.

    Raises:
        ValueError: it is none of the forms in the module's docstring.
    """
    machine, _, shape = name.partition(":")
    sizes = shape.split("x")
    is_shape = bool(re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", shape))
    generation = machine.removeprefix("tpu-")
    gpus = sorted(path.stem for path in _DATA.glob("*.txt"))
    if is_shape and machine == f"tpu-{generation}" and generation in _TPU_GENERATIONS and len(sizes) in (2, 3):
        full_name = "tpu7x" if generation == "7x" else generation
        return Target(name, "tpu", "tpu", {"topology_name": f"{full_name}:{shape}"})
    if is_shape and machine in gpus and len(sizes) in (2, 3):
        domains, hosts, each = sizes if len(sizes) == 3 else (sizes[0], "1", sizes[1])
        config = (_DATA / f"{machine}.txt").read_text()
        topology = {"topology_name": machine, "topology": f"{domains}x{hosts}x{each}", "target_config": config}
        return Target(name, "cuda", "gpu", topology)
    if is_shape and machine == "cpu" and len(sizes) == 1:
        return Target(name, "cpu", "cpu", {"num_devices": shape})
    known = ", ".join([*(f"tpu-{each}:SHAPE" for each in _TPU_GENERATIONS), *(f"{gpu}:HOSTSxGPUS" for gpu in gpus)])
    listed = f"the targets are {known} and cpu:N, such as tpu-v5p:2x2x2, h100:1x8, cpu:8"
    if machine in cluster.names() and not machine.startswith(("tpu-", "cpu")) and machine not in gpus:
        raise ValueError(
            f"no target {name!r}: {machine} can be planned for, but XLA's GPU compiler no longer knows it (CUDA 13 "
            f"begins with compute capability 7.5). Compile for another target to see its collectives; {listed}"
        )
    raise ValueError(f"no target {name!r}; {listed}")


def child_python(target: Target) -> str:
    """The interpreter that has the target's compiler."""
    return os.environ.get(target.variable) or sys.executable


def child_environment(target: Target) -> dict[str, str]:
    """This process's environment, with what the compilers want before jax starts."""
    environment = dict(os.environ)
    count_flag = "--xla_force_host_platform_device_count"
    flags = [flag for flag in environment.get("XLA_FLAGS", "").split() if not flag.startswith(count_flag)]
    if target.platform == "cpu":
        flags.append(f"{count_flag}={target.topology['num_devices']}")
    environment["XLA_FLAGS"] = " ".join(flags)
    environment["JAX_PLATFORMS"] = "cpu"
    if target.platform == "cuda":
        del environment["JAX_PLATFORMS"]  # naming another platform would leave the plugin unloaded
    environment["JAX_ENABLE_X64"] = str(int(jax.config.jax_enable_x64))
    environment["TPU_SKIP_MDS_QUERY"] = "1"  # no metadata server to wait for
    environment["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"  # nothing runs on a TPU here
    environment["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"  # nor on a GPU: no driver is needed
    environment["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    if child_python(target) != sys.executable:
        environment.pop("PYTHONPATH", None)  # it is this interpreter's
    return environment
