"""The user's Plan and how one is made: a thin face over a program, a decision and its record.

Every verb is some room's.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from shardwright import _compat
from shardwright.cluster import Cluster, parse
from shardwright.cluster import memory as parse_memory
from shardwright.cost.estimate import Estimate, estimate
from shardwright.partition.device import DeviceProgram
from shardwright.partition.lower import partition
from shardwright.partition.turns import in_turn
from shardwright.plan import cache as plan_cache
from shardwright.plan import files
from shardwright.plan.check import check, check_program
from shardwright.plan.decision import Decision
from shardwright.plan.named import by_id
from shardwright.plan.record import EstimateRecord, PlanRecord, PlanWarning
from shardwright.program.again import Served, captured
from shardwright.program.ir import Program
from shardwright.program.signature import Call, Options, argument_name, bind_call, restore, without_values
from shardwright.report.candidates import searched_of
from shardwright.report.listing import program_text
from shardwright.report.recording import estimate_record, package_version, program_record, record_of
from shardwright.report.text import plan_text
from shardwright.report.warnings import warnings_of
from shardwright.rules.classes import Classes, find_classes
from shardwright.run.born import init_decision, init_targets, without_state
from shardwright.run.devices import attached_cluster, make_mesh, start_virtual_devices
from shardwright.run.execute import Executable, check_arguments, compile_program, lowerable
from shardwright.run.targets import compile_ahead
from shardwright.search.given import Given, check_size, gather_given
from shardwright.search.infeasible import infeasible_message
from shardwright.search.search import OBJECTIVES, lowered_for, search


class InfeasibleError(ValueError):
    """No plan fits the memory; the message names what binds, its bytes and the smallest budget that works.

    Attributes:
      nearest_bytes: that budget.
    """

    def __init__(self, message: str, nearest_bytes: int = 0):
        super().__init__(message)
        self.nearest_bytes = nearest_bytes


@dataclasses.dataclass(frozen=True, eq=False)
class Traced:
    """What a plan holds beside its record when the step is at hand."""

    step: Callable[..., Any]
    options: Options
    call: Call
    program: Program
    classes: Classes
    decision: Decision
    device: DeviceProgram
    price: Estimate
    devices: tuple[Any, ...] | None = None


class Plan:
    """How a step runs on many devices. Made by `shardwright.plan` or `shardwright.load_plan`.

    `print(plan)` shows the mesh, what each class of dims is laid on, memory, collectives and seconds.
    """

    def __init__(self, record: PlanRecord, traced: Traced | None = None):
        self.record = record
        self._traced = traced

    def __repr__(self) -> str:
        return plan_text(self.record)

    @property
    def traced(self) -> Traced:
        """The step's program; only a plan that was loaded with its step has it."""
        if self._traced is None:
            raise ValueError(
                "this plan was loaded without its step, so it can be printed, compared and reported but not run or "
                "listed: load it as load_plan(path, step, *args)"
            )
        return self._traced

    @property
    def devices(self) -> tuple[Any, ...] | None:
        """The user's own devices, in the mesh's order; None: the first attached ones."""
        return None if self._traced is None else self._traced.devices

    @property
    def mesh(self) -> dict[str, int]:
        """Axis → size, major to minor."""
        return self.record.mesh

    @property
    def estimate(self) -> EstimateRecord:
        """Predicted seconds, memory and collectives of one step on one device."""
        return self.record.estimate

    @property
    def warnings(self) -> tuple[PlanWarning, ...]:
        """What costs more than a reader would expect."""
        return self.record.warnings

    @property
    def inputs(self) -> Any:
        """A `PartitionSpec` for every array argument, as a tuple of pytrees like the step's positional arguments.

        Static arguments are left out, keyword arguments follow as one dict. Without the step: leaf name → spec.
        """
        specs = [leaf.placement.spec for leaf in self.record.program.inputs]
        if self._traced is None:
            return {leaf.name: s for leaf, s in zip(self.record.program.inputs, specs, strict=True)}
        args, kwargs = jax.tree_util.tree_unflatten(self._traced.program.in_tree, specs)
        return (*args, kwargs) if kwargs else args

    @property
    def outputs(self) -> Any:
        """A `PartitionSpec` for every array of the result, as a pytree like it. Without the step: leaf name → spec."""
        specs = [leaf.placement.spec for leaf in self.record.program.outputs]
        if self._traced is None:
            return {leaf.name: s for leaf, s in zip(self.record.program.outputs, specs, strict=True)}
        return jax.tree_util.tree_unflatten(self._traced.program.out_tree, specs)

    def program(self, *, fold: bool = False) -> str:
        """The per-device program as text: every operation, every collective with its bytes and the user's source line.

        Args:
          fold: show runs of elementwise operations as one line.
        """
        t = self.traced
        return program_text(t.program, t.classes, t.device, t.price, fold=fold)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan as JSON, atomically."""
        files.save(self.record, path)

    def compile(self, target: str | None = None, *, devices: Sequence[Any] | None = None) -> Any:
        """The step on the attached devices, or compiled ahead of time by another target's own compiler.

        Args:
          target: None for attached devices; else as "tpu-v5p:2x2x2" or "h100:1x8".
          devices: which attached devices; None: the first ones.

        Returns:
          Without a target a `CompiledStep`, called like the step; with one an object with `.memory`, `.collectives` and
          `.text`.

        Raises:
          ValueError: fewer devices are attached than the plan needs, or an unknown target.
          RuntimeError: the target's compiler is not installed or refuses the program.
        """
        t = self.traced
        if target is not None and not isinstance(target, str):
            raise ValueError(f"target={target!r} is a {type(target).__name__}; give a name, as 'tpu-v5p:2x2x2'")
        if target is not None:
            on_cpu = target.startswith("cpu")
            device = in_turn(t.device) if on_cpu else partition(t.program, t.classes, t.decision)
            return compile_ahead(lowerable(t.program, device), target)
        return CompiledStep(self, compile_program(t.program, t.device, self.attached_mesh(devices)))

    def attached_mesh(self, devices: Sequence[Any] | None = None) -> Mesh:
        """The plan's mesh over attached devices: the given ones, else the user's own mesh's, else the first."""
        return make_mesh(self.mesh, self.devices if devices is None else devices)

    def init(self, init_fn: Callable[..., Any], *args: Any, devices: Sequence[Any] | None = None) -> Any:
        """Runs `init_fn(*args)` so that its result is born where the plan wants it: no device holds the whole.

        Args:
          init_fn: returns the step's state: one of its arguments, or a tuple of its first ones.
          args: its arguments, such as a PRNG key.
          devices: as in `compile`.

        Raises:
          ValueError: what it returns is no argument of the step; the message lists both.
        """
        t = self.traced
        if not callable(init_fn):
            raise ValueError(f"init was given {init_fn!r}, a {type(init_fn).__name__}; a function was wanted")
        mesh = self.attached_mesh(devices)
        call = bind_call(init_fn, args, {}, Options())
        program = without_state(captured(call))
        targets = init_targets(program, self.record.program.inputs, t.program)
        classes, decision = init_decision(program, targets, t.decision)
        device = partition(program, classes, decision)
        run = compile_program(program, device, mesh)
        return call.finish(restore(call.extra, run(jax.tree_util.tree_leaves((call.args, call.kwargs)))))


class CompiledStep:
    """A plan on attached devices: called like the step. `compiled` is the `jax.stages.Compiled` behind it."""

    def __init__(self, plan: Plan, executable: Executable):
        self.plan = plan
        self.mesh = executable.mesh
        self.compiled = executable.compiled
        self._run = executable
        self.served = Served(plan.traced.call, plan.traced.program)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs one step. Inputs that do not lie as planned are put there; donated inputs are gone afterwards.

        Raises:
          ValueError: the arguments are not those of the plan; the message names the leaves.
        """
        t = self.plan.traced
        call = bind_call(t.step, args, kwargs, t.options)
        values, tree = jax.tree_util.tree_flatten((call.args, call.kwargs))
        self._check(call, values, tree)
        extra = self.served.extra_of(call, tree)
        if extra is None:
            raise ValueError(
                "a static argument, or a leaf that is not an array, is not the one that was planned: "
                f"{self.served.news(call, tree)}; plan again for it (sw.jit does so by itself)"
            )
        return self.run(call, values, extra)

    def run(self, call: Call, values: list[Any], extra: dict[str, Any]) -> Any:
        """As `__call__`, for a call that is known to be as planned, its leaves and its result's `extra`."""
        return call.finish(restore(extra, self._run(values)))

    def _check(self, call: Call, values: list[Any], tree: Any) -> None:
        program = self.plan.traced.program
        same = tree == self.served.tree
        if not same or not all(_fits(x, leaf.aval) for x, leaf in zip(values, program.inputs, strict=True)):
            named = jax.tree_util.tree_leaves_with_path((call.args, call.kwargs))
            check_arguments(program, [argument_name(path, call.names) for path, _ in named], values)


def _fits(x: Any, aval: Any) -> bool:
    return isinstance(x, jax.Array) and x.shape == aval.shape and x.dtype == aval.dtype


def build(
    step: Callable,
    options: Options,
    call: Call,
    program: Program,
    classes: Classes,
    decision: Decision,
    cluster: Any,
    devices: tuple[Any, ...] | None,
) -> Traced:
    """Partitions and prices `decision` for a captured call."""
    device = lowered_for(cluster, partition(program, classes, decision))
    return Traced(step, options, call, program, classes, decision, device, estimate(program, device, cluster), devices)


@dataclasses.dataclass(frozen=True)
class Planning:
    """What a user may say about planning. `cache`: whether plans are kept on disk.

    Raises:
      ValueError: at once, if the objective is unknown or the memory is no size.
    """

    cluster: Any
    memory: str | int | None
    mesh: Mapping[str, int] | Mesh | None
    pins: Mapping[str, Any] | None
    objective: str
    cache: bool = False

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise ValueError(f"objective={self.objective!r}: it is one of {', '.join(map(repr, OBJECTIVES))}")
        if self.memory is not None:
            parse_memory(self.memory)
        start_virtual_devices(self.cluster)


def make_plan(step: Callable, call: Call, options: Options, planning: Planning, like: Plan | None) -> Plan:
    """Searches for a plan, or takes it from the cache.

    Raises:
      ValueError: the step cannot be traced, or what is given contradicts it.
      InfeasibleError: nothing fits into the memory.
    """
    if like is not None and not isinstance(like, Plan):
        raise ValueError(f"like={like!r} is a {type(like).__name__}, a Plan was wanted")
    program = captured(call)
    liked, devices = (None, None) if like is None else (like.record, like.devices)
    named = None if planning.cluster is None else parse(planning.cluster)
    given = gather_given(program, call, planning.mesh, planning.pins, liked, devices, elsewhere=named)
    call = without_values(call)
    where = named or attached_cluster(given.mesh, given.devices)
    check_size(given, where)
    limit = where.device.memory_bytes if planning.memory is None else parse_memory(planning.memory)
    stored = _cache_file(program, given, where, limit, planning.objective) if planning.cache else None
    record = None if stored is None else plan_cache.read(stored)
    if stored is not None and record is not None:
        try:
            traced = rebuild(record, step, options, call, program, where, given.devices)
            if estimate_record(traced.price) == record.estimate:
                return Plan(record, traced)
            plan_cache.refuse(stored, "its decision costs something else than it says")
        except ValueError as error:
            plan_cache.refuse(stored, str(error))
    plan = _searched(step, options, call, program, given, where, limit, planning.objective)
    if stored is not None:
        plan_cache.write(stored, plan.record)
    return plan


def _searched(
    step: Callable,
    options: Options,
    call: Call,
    program: Program,
    given: Given,
    where: Cluster,
    limit: int,
    objective: str,
) -> Plan:
    classes = find_classes(program)
    solution = search(program, classes, where, limit=limit, objective=objective, mesh=given.mesh, pins=given.pins)
    best = solution.best
    if not solution.feasible:
        message = infeasible_message(program, solution, where, limit)
        raise InfeasibleError(message, best.estimate.memory.peak_bytes)
    searched = searched_of(
        [(c.decision, c.estimate) for c in solution.tried],
        (best.decision, best.estimate),
        classes,
        limit_bytes=limit,
        objective=objective,
    )
    record = record_of(
        program,
        classes,
        best.decision,
        best.device,
        best.estimate,
        cluster=where.name,
        memory_limit_bytes=limit,
        objective=objective,
        name=getattr(step, "__name__", "step"),
        warnings=warnings_of(program, best.device, best.estimate),
        searched=searched,
        notes=given.notes,
    )
    return Plan(
        record, Traced(step, options, call, program, classes, best.decision, best.device, best.estimate, given.devices)
    )


def rebuild(
    record: PlanRecord,
    step: Callable,
    options: Options,
    call: Call,
    program: Program,
    where: Cluster,
    devices: tuple[Any, ...] | None,
) -> Traced:
    """The program of a plan that was read, partitioned anew.

    Raises:
      ValueError: the plan is for another program, or says of this one what its decision does not make of it.
    """
    check(record, program.fingerprint, program.inputs)
    call, classes = without_values(call), find_classes(program)
    decision = by_id(record.program.decision, {c.name: c.id for c in classes.all})
    traced = build(step, options, call, program, classes, decision, where, devices)
    check_program(record, program_record(program, classes, decision, traced.device, record.program.name))
    return traced


def _cache_file(program: Program, given: Given, where: Cluster, limit: int, objective: str) -> Path:
    """The cache's file for all that a plan is made from."""
    return plan_cache.path_of(
        {
            "fingerprint": program.fingerprint,
            "donated": [leaf.name for leaf in program.inputs if leaf.donated],
            "cluster": repr(where),
            "memory": limit,
            "mesh": given.mesh and list(given.mesh.items()),
            "pins": sorted(given.pins.items()),
            "objective": objective,
            "package": package_version(),
            "jax": _compat.JAX_VERSION,
        }
    )
