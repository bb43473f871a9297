"""Asks the compiler of devices that are not here: memory of one device and collectives, before anything runs.

    ahead = compile_ahead(lowerable, "tpu-v5p:2x2x2")
    ahead.memory.peak_bytes, sent_bytes(ahead.collectives)

`target_names.py` lists the targets.

The compilers read their settings when jax starts, and libtpu serves one process at a time, so each compilation has a
process of its own (`ahead_child.py`). The program travels as jax exports it: serialized StableHLO for the target's
platform, lowered here over an abstract mesh. That keeps the shardings, the donated arguments, `shard_map` and its
collectives, and the source lines; the compiled program is the one that lowering over the target's own devices gives.

Environment:

    SHARDWRIGHT_TPU_PYTHON, SHARDWRIGHT_GPU_PYTHON   interpreter of the child process, where the compiler is not
                                                     installed beside this one; its jax must be of the same version
    SHARDWRIGHT_CACHE                                folder of the results, default ~/.cache/shardwright
"""

from __future__ import annotations

import dataclasses
import enum
import gzip
import hashlib
import json
import re
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
from jax import export
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from shardwright import _compat
from shardwright.plan import cache
from shardwright.run import target_names
from shardwright.run.devices import COMPILER_OPTIONS, abstract_mesh
from shardwright.run.target_names import Target
from shardwright.run.traffic import Collective, traffic

_HERE = Path(__file__).parent
_STORED_FORMAT = 2  # of the results on disk; another number leaves the old ones unread
_CHILD_SCOPE = "jit(call)/call_exported/"  # what calling an exported program puts before its name scopes


@dataclasses.dataclass(frozen=True)
class Lowerable:
    """A flat program that can be traced under any mesh of the given axes.

    Attributes:
        make_fn: mesh -> flat function of the arrays of `avals`; called with an abstract mesh.
        avals: shape and dtype of each argument, whole.
        in_specs: how each argument lies on the mesh.
        out_specs: how each result lies on the mesh.
        mesh_axes: axis -> size, major to minor.
        donate: positions of the arguments whose memory the results may take.
        lines: the user's source lines of what is computed: those that a stored result names are these.
    """

    make_fn: Callable[[Mesh | AbstractMesh], Callable[..., Any]]
    avals: tuple[jax.ShapeDtypeStruct, ...]
    in_specs: tuple[PartitionSpec, ...]
    out_specs: tuple[PartitionSpec, ...]
    mesh_axes: Mapping[str, int]
    donate: tuple[int, ...] = ()
    lines: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of one device in one run, as the compiler lays them out."""

    argument_bytes: int
    output_bytes: int
    alias_bytes: int  # of the outputs that lie where donated arguments lay
    temp_bytes: int

    @property
    def peak_bytes(self) -> int:
        """Arguments and outputs, those that share memory once, and temporaries."""
        return self.argument_bytes + self.output_bytes - self.alias_bytes + self.temp_bytes


@dataclasses.dataclass(frozen=True)
class Ahead:
    """What a target's compiler made of a program."""

    target: str
    memory: Memory
    collectives: tuple[Collective, ...]
    text: str  # the compiled program


class Failure(enum.Enum):
    """Why there is no compiled program; the value says what to do."""

    NOT_INSTALLED = 'the compiler for {target} is not installed: pip install "shardwright[{extra}]"'
    OTHER_JAX = "the interpreter that {variable} names has another version of jax; install the same one there"
    OTHER_DEVICES = "{target} has another number of devices than the mesh: change the target or the mesh"
    OUT_OF_MEMORY = "the program does not fit on a device of {target}: shard more, or rematerialize"
    COMPILER = "the compiler for {target} refused the program"
    CRASH = "the compiler for {target} ended without an answer"


class AheadError(RuntimeError):
    """A program could not be compiled ahead of time; `failure` says which kind."""

    def __init__(self, failure: Failure, target: Target, detail: str) -> None:
        advice = failure.value.format(target=target.name, extra=target.extra, variable=target.variable)
        super().__init__(f"{advice}\n{detail}")
        self.failure = failure


def compile_ahead(lowerable: Lowerable, target: str) -> Ahead:
    """Compiles a program by the target's own compiler; no such device is needed. Results are kept on disk.

    An argument that the program does not use counts among the argument bytes, as it does at run time.

    Args:
        lowerable: the program; its mesh has as many devices as the target.
        target: a name from `target_names.py`.

    Raises:
        ValueError: there is no such target.
        AheadError: the compiler is not installed, or it refused the program.
    """
    parsed = target_names.parse_target(target)
    exported = export_program(lowerable, parsed)
    stored = cache.folder() / "ahead" / f"{_key(exported, lowerable, parsed)}.json.gz"
    if not stored.exists():
        _compile(exported, lowerable, parsed, stored)
    with gzip.open(stored, "rt") as file:
        result = json.load(file)
    rows = traffic(result["text"], lowerable.mesh_axes)
    rows = tuple(dataclasses.replace(row, scope=row.scope.replace(_CHILD_SCOPE, "")) for row in rows)
    return Ahead(target, Memory(**result["memory"]), rows, result["text"])


def export_program(lowerable: Lowerable, target: Target) -> export.Exported:
    """The program lowered for the target's platform over an abstract mesh."""
    mesh = abstract_mesh(lowerable.mesh_axes)
    step = jax.jit(
        lowerable.make_fn(mesh),
        in_shardings=tuple(NamedSharding(mesh, spec) for spec in lowerable.in_specs),
        out_shardings=tuple(NamedSharding(mesh, spec) for spec in lowerable.out_specs),
        donate_argnums=lowerable.donate,
    )
    # Custom calls keep their meaning within one version of jax, and the child is held to it.
    checks = [export.DisabledSafetyCheck.custom_call("ALL")]
    return export.export(step, platforms=(target.platform,), disabled_checks=checks)(*lowerable.avals)


def _key(exported: export.Exported, lowerable: Lowerable, target: Target) -> str:
    """A name for the result that is the same wherever the same program was asked for."""
    environment = target_names.child_environment(target)
    settings: list[Any] = [environment.get(name, "") for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "JAX_ENABLE_X64")]
    settings.append(COMPILER_OPTIONS.get(target.platform, {}))
    asked = [target.name, dict(target.topology), list(lowerable.mesh_axes.items()), lowerable.donate, settings]
    where = [target_names.child_python(target), _compat.JAX_VERSION, _STORED_FORMAT]
    text = str(exported.mlir_module())
    # Locations hold source lines, of the caller too, and the name scopes that results are reported under.
    scopes = sorted(set(re.findall(r'loc\("([^"]*)"(?!:)', text)))
    program = re.sub(r"^#loc.*\n| loc\((?:[^()\"]|\"[^\"]*\"|\([^()]*\))*\)", "", text, flags=re.MULTILINE)
    return hashlib.sha256(json.dumps([program, scopes, lowerable.lines, asked, where]).encode()).hexdigest()


def _compile(exported: export.Exported, lowerable: Lowerable, target: Target, stored: Path) -> None:
    """Runs the child process and keeps its result under `stored`, or raises what it says."""
    stored.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=stored.parent) as folder:
        place = Path(folder)
        program, request, result = place / "program", place / "request.json", place / "result"
        try:
            program.write_bytes(exported.serialize())
        except ImportError as error:  # flatbuffers, in which jax writes exported programs
            raise AheadError(Failure.NOT_INSTALLED, target, str(error)) from error
        asked = {
            "platform": target.platform,
            "topology": dict(target.topology),
            "mesh_axes": dict(lowerable.mesh_axes),
            "donate": list(lowerable.donate),
            "options": COMPILER_OPTIONS.get(target.platform, {}),
            "exported": str(program),
            "result": str(result),
            "compat": _compat.__file__,
            "jax_version": _compat.JAX_VERSION,
        }
        request.write_text(json.dumps(asked))
        # -P: the script's own folder must not stand in for other packages' modules.
        command = [target_names.child_python(target), "-P", str(_HERE / "ahead_child.py"), str(request)]
        child = subprocess.run(
            command, env=target_names.child_environment(target), capture_output=True, text=True, check=False
        )
        if not result.exists():
            raise AheadError(Failure.CRASH, target, f"exit status {child.returncode}\n{child.stderr[-4000:]}")
        with gzip.open(result, "rt") as file:
            answer = json.load(file)
        if "failure" in answer:
            raise AheadError(Failure[answer["failure"]], target, answer["detail"])
        result.replace(stored)
