"""Compiles one exported program for devices that are not here: the script of a process of its own.

    python ahead_child.py REQUEST.json

`targets.compile_ahead` writes the request and sets the environment, which jax reads when it starts. The script imports
nothing of Shardwright, so that an interpreter with jax and the target's compiler is enough. What it finds goes to the
request's `result` path as gzipped JSON: the memory of one device and the compiled text, or what went wrong.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Platform -> modules of which one must be there, beside flatbuffers, in which jax writes exported programs.
COMPILERS = {
    "tpu": ("libtpu",),
    "cuda": ("jax_plugins.xla_cuda13", "jax_plugins.xla_cuda12"),
    "cpu": ("jaxlib",),
}


class Refused(Exception):
    """The compiler cannot be asked; `kind` names a member of `targets.Failure`."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


def main(request_path: str) -> None:
    """Answers the request: always writes a result, whatever happens short of a crash."""
    request = json.loads(Path(request_path).read_text())
    try:
        result = compiled(request)
    except Refused as refusal:
        result = {"failure": refusal.kind, "detail": str(refusal)}
    except Exception as error:  # whatever the compiler raises is the answer
        is_memory = "RESOURCE_EXHAUSTED" in str(error) or "out of memory" in str(error)
        result = {"failure": "OUT_OF_MEMORY" if is_memory else "COMPILER", "detail": f"{type(error).__name__}: {error}"}
    with gzip.open(request["result"], "wt", compresslevel=6) as file:
        json.dump(result, file)


def compiled(request: Mapping[str, Any]) -> dict[str, Any]:
    """Memory of one device and the compiled text."""
    check_installed(request)
    import jax
    from jax import export

    exported = export.deserialize(bytearray(Path(request["exported"]).read_bytes()))
    mesh = target_mesh(request)
    step = jax.jit(
        exported.call,
        in_shardings=exported.in_shardings_jax(mesh),
        out_shardings=exported.out_shardings_jax(mesh),
        donate_argnums=request["donate"],
    )
    arguments = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in exported.in_avals]
    done = step.lower(*arguments).compile(request["options"])
    stats = done.memory_analysis()
    memory = {
        "argument_bytes": stats.argument_size_in_bytes,
        "output_bytes": stats.output_size_in_bytes,
        "alias_bytes": stats.alias_size_in_bytes,
        "temp_bytes": stats.temp_size_in_bytes,
    }
    return {"memory": memory, "text": done.as_text()}


def check_installed(request: Mapping[str, Any]) -> None:
    """Refuses where the compiler is missing or jax is another than the one that exported the program."""
    choices = COMPILERS[request["platform"]]
    missing = [name for name in ("jax", "flatbuffers") if not is_installed(name)]
    if not any(is_installed(name) for name in choices):
        missing.append(" or ".join(choices))
    if missing:
        raise Refused("NOT_INSTALLED", f"{sys.executable} has no {', no '.join(missing)}")
    version = runpy.run_path(request["compat"])["JAX_VERSION"]
    if version != request["jax_version"]:
        raise Refused("OTHER_JAX", f"{sys.executable} has jax {version}; this process has {request['jax_version']}")


def is_installed(name: str) -> bool:
    """Whether a module can be imported, without importing it."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # its parent package is not there
        return False


def target_mesh(request: Mapping[str, Any]) -> Any:
    """The mesh of the target's devices, laid on its torus as jax lays a mesh on attached devices."""
    import jax
    from jax.experimental import mesh_utils, topologies

    shape = tuple(request["mesh_axes"].values())
    if request["platform"] == "cpu":
        devices = jax.devices("cpu")
    else:
        description = topologies.get_topology_desc(platform=request["platform"], **request["topology"])
        devices = list(description.devices)
    num_wanted = 1
    for size in shape:
        num_wanted *= size
    if num_wanted != len(devices):
        raise Refused("OTHER_DEVICES", f"the target has {len(devices)} devices, the mesh {request['mesh_axes']}")
    # A mesh axis may be part of a torus dimension where no other layout exists (2 x 8 on 4 x 4).
    places = mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
    return jax.sharding.Mesh(places, tuple(request["mesh_axes"]))


if __name__ == "__main__":
    main(sys.argv[1])
    # Some compilers' threads outlive the interpreter and crash it on the way out; the result is on disk.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
