"""Python callbacks that would wait for ever on virtual CPU devices.

XLA's CPU client has a pool of max(processors, devices) threads, and the program of each device takes one. A callback's
arguments of more than 100 KiB are copied by another task of that pool (smaller ones at once), and reading one waits for
its copy. Once each device's thread waits in a callback, or in a collective for a device that does, no thread is left to
copy. PJRT_NPROC, or NPROC, counts the processors in place of the real ones.
"""

from __future__ import annotations

import os
import warnings

from jax.sharding import Mesh

from shardwright.program.ir import Equation, Program, walk

COPIED_AT_ONCE_BYTES = 100 * 1024
"""Of an argument that needs no thread: XLA's limit for small transfers to a CPU device."""

_CALLBACKS = frozenset({"pure_callback", "io_callback", "debug_callback", "debug_print"})


def warn_of_callbacks(program: Program, mesh: Mesh) -> None:
    """Warns where a callback's large argument may wait for ever, once with the first such line, and says what helps."""
    devices = list(mesh.devices.flat)
    if devices[0].platform != "cpu" or len(devices) == 1:
        return
    num_threads = max(_num_processors(), len(devices[0].client.devices()))
    if num_threads > len(devices):
        return
    waiting = [eqn for eqn in walk(program.block) if eqn.name in _CALLBACKS and _largest(eqn) > COPIED_AT_ONCE_BYTES]
    if waiting:
        eqn = waiting[0]
        warnings.warn(
            f"{eqn.source.line}: this {eqn.name} may hang: it takes {_largest(eqn)} bytes, and jax has no thread to "
            f"copy them, {num_threads} for {len(devices)} virtual CPU devices that each wait. Start Python with "
            f"PJRT_NPROC={len(devices) + 1} in the environment, or give the callback less than {COPIED_AT_ONCE_BYTES} "
            "bytes (a sum, a slice)",
            stacklevel=2,
        )


def _largest(eqn: Equation) -> int:
    return max((atom.aval.bytes for atom in eqn.invars), default=0)


def _num_processors() -> int:
    for name in ("PJRT_NPROC", "NPROC"):
        if (text := os.environ.get(name, "").strip()).isdecimal():
            return int(text)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
