"""The public functions: where planning, running and reporting meet."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from shardwright import _compat
from shardwright._plan import CompiledStep, Plan, Traced, argument_name, build, spec_entries
from shardwright.cluster import Cluster, attached, memory, parse
from shardwright.plan import files
from shardwright.plan.check import check
from shardwright.plan.diff import Diff, diff as _diff
from shardwright.plan.pins import resolve_pins
from shardwright.plan.named import by_id
from shardwright.program.capture import capture
from shardwright.program.ir import Program, walk
from shardwright.program.signature import Call, Options, bind_call, make_options
from shardwright.report.candidates import searched_of
from shardwright.report.recording import record_of
from shardwright.report.warnings import warnings_of
from shardwright.rules.classes import Classes, find_classes
from shardwright.run.certificate import Certificate
from shardwright.run.execute import make_mesh
from shardwright.run.prove import prove_program
from shardwright.search.infeasible import infeasible_message
from shardwright.search.search import OBJECTIVES, Solution, search


class InfeasibleError(ValueError):
    """No plan fits the memory; the message names what binds, its bytes and the smallest budget that works."""


def plan(step: Callable[..., Any], *args: Any, cluster: str | os.PathLike | Cluster | None = None, memory: str | int | None = None,
         mesh: Mapping[str, int] | Mesh | None = None, pins: Mapping[str, Any] | None = None, objective: str = "seconds",
         like: Plan | None = None, static_argnums: int | Sequence[int] = (), static_argnames: str | Sequence[str] = (),
         donate_argnums: int | Sequence[int] = (), donate_argnames: str | Sequence[str] = (), **kwargs: Any) -> Plan:
    """Works out how `step(*args, **kwargs)` runs on all devices of a cluster.

    Args:
      step: any function that `jax.jit` takes; written for one device.
      args: its arguments: arrays, or `jax.ShapeDtypeStruct`s (nothing is run).
      cluster: as "cpu:8", "h100:2x8", "tpu-v5p:2x2x2", a TOML file, or a `Cluster`; None: the attached devices.
      memory: bytes of one device that may be used, as a number or "80GB"; None: all the device has.
      mesh: axis → size, or a `jax.sharding.Mesh`; None: chosen.
      pins: leaf name → `PartitionSpec`. A leaf is named after its argument, as `state[0]['emb']`; results start with `out`.
        None in a spec is whole, `P.UNCONSTRAINED` is free.
      objective: what is minimized under the memory limit: "seconds", "memory" or "bytes".
      like: a plan of another function of the same state: leaves of the same name or, failing that, of the same path, shape and
        dtype lie as there.
      static_argnums: as for `jax.jit`; likewise static_argnames, donate_argnums and donate_argnames.
      **kwargs: the step's own keyword arguments.

    Returns:
      The plan.

    Raises:
      ValueError: the step cannot be traced, or an argument here is wrong.
      InfeasibleError: nothing fits into the memory.

    >>> import jax.numpy as jnp, shardwright as sw
    >>> w, x = jnp.ones((64, 64)), jnp.ones((32, 64))
    >>> sw.plan(lambda w, x: jnp.tanh(x @ w).sum(), w, x, cluster="cpu:8").mesh["x"]
    8
    """
    if objective not in OBJECTIVES:
        raise ValueError(f"objective={objective!r}: it is one of {', '.join(map(repr, OBJECTIVES))}")
    options = make_options(static_argnums, static_argnames, donate_argnums, donate_argnames)
    _start_virtual_devices(cluster)
    call, program = _capture(step, args, kwargs, options)
    classes = find_classes(program)
    fixed_mesh, user_mesh = _mesh(mesh, program, (call.args, call.kwargs), like)
    where = _cluster(cluster, fixed_mesh)
    limit = _memory(memory, where)
    resolved = _pins(pins or {}, program, call, fixed_mesh, like)
    solution = search(program, classes, where, limit=limit, objective=objective, mesh=fixed_mesh, pins=resolved)
    if not solution.feasible:
        raise InfeasibleError(infeasible_message(program, solution, where, limit))
    traced = Traced(step, options, call, program, classes, solution.best.decision, solution.best.device, solution.best.estimate,
                    user_mesh)
    return Plan(_record(traced, solution, where, limit, objective), traced)


def load_plan(path: str | os.PathLike[str], step: Callable[..., Any] | None = None, *args: Any, static_argnums: int | Sequence[int] = (),
              static_argnames: str | Sequence[str] = (), donate_argnums: int | Sequence[int] | None = None,
              donate_argnames: str | Sequence[str] = (), **kwargs: Any) -> Plan:
    """Reads a saved plan; with the step and its arguments it can run.

    Args:
      path: what `Plan.save` wrote.
      step: the planned step; it is traced again and must be the same program. None: the plan can only be read.
      args: its arguments, as for `plan`.
      static_argnums: as for `plan`; likewise static_argnames and donate_argnames.
      donate_argnums: as for `plan`; None: those that were donated when it was planned.
      **kwargs: the step's own keyword arguments.

    Raises:
      ValueError: the file is no plan, is damaged or of a newer version, or the program is another one.
    """
    record = files.load(path)
    if step is None:
        return Plan(record)
    if donate_argnums is None:
        names = {leaf.name.split("[")[0].split(".")[0] for leaf in record.program.inputs if leaf.donated}
        bound = bind_call(step, args, kwargs, make_options(static_argnums, static_argnames))
        donate_argnames = tuple(n for n in (*bound.names, *kwargs) if n in names)
        donate_argnums = ()
    options = make_options(static_argnums, static_argnames, donate_argnums, donate_argnames)
    _start_virtual_devices(record.cluster)
    call, program = _capture(step, args, kwargs, options)
    check(record, program.fingerprint, program.inputs)
    classes = find_classes(program)
    decision = by_id(record.program.decision, {c.name: c.id for c in classes.all})
    return Plan(record, build(step, options, call, program, classes, decision, _planned_cluster(record), None))


def prove(plan: Plan, step: Callable[..., Any], *args: Any, steps: int = 3, seed: int = 0, **kwargs: Any) -> Certificate:
    """Runs the step on one device and by the plan, and compares every leaf: in float64, and in the step's own dtypes.

    Args:
      plan: the plan.
      step: the step that was planned.
      args: its arguments; where one is a `jax.ShapeDtypeStruct`, values are made up.
      steps: how many steps to run, state fed back.
      seed: of what is made up.
      **kwargs: the step's own keyword arguments.

    Returns:
      The certificate: `.ok`, `.max_relative_error`, `.rows`, `.changes`; printable.

    Raises:
      ValueError: the step or its arguments are not those of the plan.
    """
    t = plan.traced
    call, program = _capture(step, args, kwargs, t.options)
    check(plan.record, program.fingerprint, program.inputs)
    mesh = t.mesh if t.mesh is not None else make_mesh(plan.mesh)
    values = jax.tree_util.tree_leaves((call.args, call.kwargs))

    def reference(*flat: Any) -> list[Any]:
        inner_args, inner_kwargs = jax.tree_util.tree_unflatten(program.in_tree, flat)
        return jax.tree_util.tree_leaves(call.step(*inner_args, **inner_kwargs))

    return prove_program(t.program, t.classes, t.decision, mesh, values, steps=steps, reference=reference, seed=seed)


def diff(a: Plan, b: Plan) -> Diff:
    """What differs between two plans: mesh, classes, leaves, prices; printable."""
    return _diff(a.record, b.record)


def _capture(step: Callable, args: tuple, kwargs: dict[str, Any], options: Options) -> tuple[Call, Program]:
    call = bind_call(step, args, kwargs, options)
    return call, capture(call.step, call.args, call.kwargs, names=call.names, donated=call.donated)


def _start_virtual_devices(cluster: Any) -> None:
    """`cpu:N` sets the number of virtual CPU devices while that is still possible."""
    if isinstance(cluster, str) and cluster.startswith("cpu:") and cluster[4:].isdigit() and not _compat.backend_is_up():
        if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
            jax.config.update("jax_num_cpu_devices", int(cluster[4:]))


def _mesh(mesh: Mapping[str, int] | Mesh | None, program: Program, arguments: Any,
          like: Plan | None) -> tuple[dict[str, int] | None, Mesh | None]:
    """(axis → size, the user's own mesh): given, of the plan to be like, of inputs that lie sharded, or of pins in the step."""
    if mesh is None and like is not None:
        return dict(like.mesh), like.traced.mesh
    if mesh is None:
        found = [x.sharding.mesh for x in jax.tree_util.tree_leaves(arguments) if _is_sharded(x)]
        found += [e.params["sharding"].mesh for e in walk(program.block)
                  if e.name == "sharding_constraint" and isinstance(e.params["sharding"], NamedSharding)]
        mesh = found[0] if found else None
    if mesh is None:
        return None, None
    sizes = {str(a): int(n) for a, n in dict(mesh.shape if not isinstance(mesh, Mapping) else mesh).items()}
    bad = {a: n for a, n in sizes.items() if n < 1}
    if bad or not sizes:
        raise ValueError(f"mesh={sizes}: every axis needs a size of at least 1, as in mesh={{'d': 2, 't': 4}}")
    if isinstance(mesh, Mesh):
        return sizes, make_mesh(sizes, list(mesh.devices.flat))
    return sizes, None


def _is_sharded(x: Any) -> bool:
    return isinstance(x, jax.Array) and isinstance(x.sharding, NamedSharding) and x.sharding.num_devices > 1


def _cluster(cluster: Any, mesh: dict[str, int] | None) -> Cluster:
    if cluster is None:
        devices = jax.devices()
        needed = math.prod(mesh.values()) if mesh else len(devices)
        if needed > len(devices):
            make_mesh(mesh or {}, devices)  # raises, saying what to do
        return attached(devices[:needed])
    where = parse(cluster)
    if mesh and math.prod(mesh.values()) != where.num_devices:
        raise ValueError(f"mesh={mesh} has {math.prod(mesh.values())} devices and cluster {where.name!r} has {where.num_devices}; give "
                         "axis sizes whose product is the number of devices, or a cluster of that size")
    return where


def _planned_cluster(record: Any) -> Cluster:
    return parse(record.cluster)


def _memory(limit: str | int | None, cluster: Cluster) -> int:
    return cluster.device.memory_bytes if limit is None else memory(limit)


def _pins(pins: Mapping[str, Any], program: Program, call: Call, mesh: dict[str, int] | None, like: Plan | None) -> dict:
    """The user's pins, what `like` says of shared leaves, and where sharded inputs already lie, in this order."""
    if mesh is None and any(e not in (None, ()) for spec in pins.values() for e in (spec if isinstance(spec, (tuple, list)) else ())):
        raise ValueError(f"pins name mesh axes ({dict(pins)}), so the mesh must be given too, as in mesh={{'d': 2, 't': 4}}")
    leaves = [*program.inputs, *program.outputs]
    resolved = resolve_pins(pins, leaves, mesh or {})
    if like is not None:
        for leaf in program.inputs:
            spec = _spec_in(like, leaf)
            if spec is not None:
                resolved.setdefault(leaf.name, spec)
    named = jax.tree_util.tree_leaves_with_path((call.args, call.kwargs))
    for path, x in named:
        if _is_sharded(x) and mesh is not None and dict(x.sharding.mesh.shape) == mesh:
            resolved.setdefault(argument_name(path, call.names), spec_entries(x.sharding.spec, x.ndim))
    return resolved


def _spec_in(like: Plan, leaf: Any) -> Any:
    planned = like.record.program.inputs
    same = [p for p in planned if p.name == leaf.name and p.shape == leaf.aval.shape]
    if not same:
        rest = leaf.name[len(leaf.name.split("[")[0].split(".")[0]):]
        same = [p for p in planned if rest and p.name.endswith(rest) and p.shape == leaf.aval.shape and p.dtype == str(leaf.aval.dtype)]
    return same[0].spec if same else None


def _record(t: Traced, solution: Solution, cluster: Cluster, limit: int, objective: str) -> Any:
    tried = [(c.decision, c.estimate) for c in solution.tried]
    searched = searched_of(tried, (t.decision, t.price), t.classes, limit_bytes=limit, objective=objective)
    return record_of(t.program, t.classes, t.decision, t.device, t.price, cluster=cluster.name, memory_limit_bytes=limit,
                     objective=objective, name=getattr(t.step, "__name__", "step"),
                     warnings=warnings_of(t.program, t.device, t.price), searched=searched)


def jit(step: Callable[..., Any], *, cluster: Any = None, memory: str | int | None = None, mesh: Mapping[str, int] | Mesh | None = None,
        pins: Mapping[str, Any] | None = None, objective: str = "seconds", static_argnums: int | Sequence[int] = (),
        static_argnames: str | Sequence[str] = (), donate_argnums: int | Sequence[int] = (),
        donate_argnames: str | Sequence[str] = (), cache: bool = True, verbose: bool = True) -> Jitted:
    """In place of `jax.jit`: plans at the first call, for the attached devices, and runs by the plan.

    Args:
      step: the training step, written for one device.
      cluster: as for `plan`; likewise memory, mesh, pins and objective.
      static_argnums: as for `jax.jit`; likewise static_argnames, donate_argnums and donate_argnames.
      cache: keep plans on disk, by fingerprint, in $SHARDWRIGHT_CACHE (else ~/.cache/shardwright).
      verbose: say on stderr when a plan is made.

    Returns:
      A function like the step. Its `plan` is the latest plan.
    """
    planning = dict(cluster=cluster, memory=memory, mesh=mesh, pins=pins, objective=objective)
    options = make_options(static_argnums, static_argnames, donate_argnums, donate_argnames)
    return Jitted(step, planning, options, cache, verbose)


class Jitted:
    """What `jit` returns: one plan and one compiled program for each kind of arguments."""

    def __init__(self, step: Callable[..., Any], planning: dict[str, Any], options: Options, cache: bool, verbose: bool):
        self.plan: Plan | None = None
        self._step, self._planning, self._options = step, planning, options
        self._cache, self._verbose = cache, verbose
        self._compiled: dict[Any, CompiledStep] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the step, planning first if these shapes are new."""
        call = bind_call(self._step, args, kwargs, self._options)
        values, tree = jax.tree_util.tree_flatten((call.args, call.kwargs))
        key = tree, call.static, tuple((jax.numpy.shape(x), _compat.dtype_of(x)) for x in values)
        if key not in self._compiled:
            self._compiled[key] = self._plan(args, kwargs).compile()
        return self._compiled[key](*args, **kwargs)

    def _plan(self, args: tuple, kwargs: dict[str, Any]) -> Plan:
        o = self._options
        planning = dict(self._planning, static_argnums=o.static_argnums, static_argnames=o.static_argnames,
                        donate_argnums=o.donate_argnums, donate_argnames=o.donate_argnames)
        if self._verbose:
            shapes = "" if self.plan is None else " for new shapes"
            print(f"shardwright: planning {getattr(self._step, '__name__', 'step')}{shapes}", file=sys.stderr)
        if self.plan is not None:
            planning["like"] = self.plan
        self.plan = plan(self._step, *args, **planning, **kwargs)
        return self.plan


