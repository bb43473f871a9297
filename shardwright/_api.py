"""The public functions: where planning, running and reporting meet."""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
import time
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from shardwright import _compat
from shardwright._plan import CompiledStep, Plan, Planning, make_plan, rebuild
from shardwright.cluster import Cluster, parse
from shardwright.plan import files
from shardwright.plan.amounts import bytes_text, seconds_text
from shardwright.plan.check import check
from shardwright.plan.diff import Diff
from shardwright.plan.diff import diff as _diff
from shardwright.plan.record import PlanRecord
from shardwright.program.again import Served, captured
from shardwright.program.signature import Call, Options, argument_name, argument_of, bind_call, check_step, make_options
from shardwright.report.recording import estimate_record
from shardwright.run.certificate import Certificate
from shardwright.run.devices import start_virtual_devices
from shardwright.run.prove import prove_program


def plan(
    step: Callable[..., Any],
    *args: Any,
    cluster: str | Path | Cluster | None = None,
    memory: str | int | None = None,
    mesh: Mapping[str, int] | Mesh | None = None,
    pins: Mapping[str, Any] | None = None,
    objective: str = "seconds",
    like: Plan | None = None,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    donate_argnums: int | Sequence[int] = (),
    donate_argnames: str | Sequence[str] = (),
    **kwargs: Any,
) -> Plan:
    """Works out how `step(*args, **kwargs)` runs on all devices of a cluster.

    Args:
      step: any function that `jax.jit` takes; written for one device.
      args: its arguments: arrays, or `jax.ShapeDtypeStruct`s (nothing is run).
      cluster: as "cpu:8", "h100:2x8", "tpu-v5p:2x2x2", a TOML file, or a `Cluster`; None: the attached devices.
      memory: bytes of one device that may be used, as a number or "80GB"; None: all the device has.
      mesh: axis → size, or a `jax.sharding.Mesh`; None: chosen.
      pins: leaf name → `PartitionSpec`. A leaf is named after its argument, as `state[0]['emb']`; results start with
        `out`. None in a spec is whole, `P.UNCONSTRAINED` is free.
      objective: what is minimized under the memory limit: "seconds", "memory" or "bytes".
      like: a plan of another function of the same state: leaves of the same name or, failing that, of the same path,
        shape and dtype lie as there.
      static_argnums: as for `jax.jit`.
      static_argnames: as for `jax.jit`.
      donate_argnums: as for `jax.jit`.
      donate_argnames: as for `jax.jit`.
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
    options = make_options(static_argnums, static_argnames, donate_argnums, donate_argnames)
    planning = Planning(cluster, memory, mesh, pins, objective)
    return make_plan(step, bind_call(step, args, kwargs, options), options, planning, like)


def load_plan(
    path: str | os.PathLike[str],
    step: Callable[..., Any] | None = None,
    *args: Any,
    cluster: str | Path | Cluster | None = None,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Sequence[str] | None = None,
    **kwargs: Any,
) -> Plan:
    """Reads a saved plan; with the step and its arguments it can run.

    Args:
      path: what `Plan.save` wrote.
      step: the planned step; it is traced again and must be the same program. None: the plan can only be read.
      args: its arguments, as for `plan`.
      cluster: what it was planned for, if that was a file of your own; None: by the name in the plan.
      static_argnums: as for `plan`.
      static_argnames: as for `plan`.
      donate_argnums: as for `plan`; None, with donate_argnames: what was donated when it was planned.
      donate_argnames: as for `plan`.
      **kwargs: the step's own keyword arguments.

    Raises:
      ValueError: the file is no plan, is damaged or of a newer version, or the program is another one.
    """
    record = files.load(path)
    if step is None:
        return Plan(record)
    options = make_options(static_argnums, static_argnames, donate_argnums, donate_argnames)
    if donate_argnums is None and donate_argnames is None:
        donated = {argument_of(leaf.name) for leaf in record.program.inputs if leaf.donated}
        names = [*bind_call(step, args, kwargs, options).names, *kwargs]
        options = dataclasses.replace(options, donate_argnames=tuple(n for n in names if n in donated))
    start_virtual_devices(record.cluster)
    call = bind_call(step, args, kwargs, options)
    where = _planned_cluster(record) if cluster is None else parse(cluster)
    traced = rebuild(record, step, options, call, captured(call), where, None)
    return Plan(dataclasses.replace(record, estimate=estimate_record(traced.price)), traced)  # as it is priced now


def _planned_cluster(record: PlanRecord) -> Cluster:
    try:
        return parse(record.cluster)
    except ValueError as error:
        raise ValueError(
            f"the plan is for the cluster {record.cluster!r}, which is not known here by name: give load_plan "
            f"cluster=, the file that it was planned for. ({error})"
        ) from error


def prove(
    plan: Plan, step: Callable[..., Any], *args: Any, steps: int = 3, seed: int = 0, **kwargs: Any
) -> Certificate:
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
      ValueError: the step or its arguments are not those of the plan, or `steps` or `seed` is no such number.
    """
    _check_plan("prove", plan)
    for name, value, least in (("steps", steps, 1), ("seed", seed, 0)):
        if isinstance(value, bool) or not hasattr(value, "__index__") or int(value) < least:
            raise ValueError(f"prove({name}={value!r}): a whole number from {least} on was wanted")
    t = plan.traced
    call = bind_call(step, args, kwargs, t.options)
    program = captured(call)
    check(plan.record, program.fingerprint, program.inputs)
    values = jax.tree_util.tree_leaves((call.args, call.kwargs))

    def reference(*flat: Any) -> list[Any]:
        inner_args, inner_kwargs = jax.tree_util.tree_unflatten(program.in_tree, flat)
        return jax.tree_util.tree_leaves(call.step(*inner_args, **inner_kwargs))

    return prove_program(
        t.program, t.classes, t.decision, plan.attached_mesh(), values, steps=steps, reference=reference, seed=seed
    )


def diff(a: Plan, b: Plan) -> Diff:
    """What differs between two plans: mesh, classes, leaves, prices; printable.

    Raises:
      ValueError: one of them is no plan.
    """
    _check_plan("diff", a)
    _check_plan("diff", b)
    return _diff(a.record, b.record)


def _check_plan(function: str, plan: Any) -> None:
    if not isinstance(plan, Plan):
        raise ValueError(
            f"{function} was given {plan!r}, a {type(plan).__name__}; a Plan was wanted, as shardwright.plan and "
            "shardwright.load_plan return it"
        )


def jit(
    step: Callable[..., Any],
    *,
    cluster: Any = None,
    memory: str | int | None = None,
    mesh: Mapping[str, int] | Mesh | None = None,
    pins: Mapping[str, Any] | None = None,
    objective: str = "seconds",
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    donate_argnums: int | Sequence[int] = (),
    donate_argnames: str | Sequence[str] = (),
    cache: bool = True,
    verbose: bool = True,
) -> Jitted:
    """In place of `jax.jit`: plans at the first call, for the attached devices, and runs by the plan.

    Args:
      step: the training step, written for one device.
      cluster: as for `plan`.
      memory: as for `plan`.
      mesh: as for `plan`.
      pins: as for `plan`.
      objective: as for `plan`.
      static_argnums: as for `jax.jit`.
      static_argnames: as for `jax.jit`.
      donate_argnums: as for `jax.jit`.
      donate_argnames: as for `jax.jit`.
      cache: keep plans on disk, by fingerprint, in $SHARDWRIGHT_CACHE (else ~/.cache/shardwright).
      verbose: say on stderr when a plan is made.

    Returns:
      A function like the step. Its `plan` is the latest plan.
    """
    options = make_options(static_argnums, static_argnames, donate_argnums, donate_argnames)
    check_step(step)
    return Jitted(step, Planning(cluster, memory, mesh, pins, objective, cache), options, verbose)


class Jitted:
    """What `jit` returns: one plan and one compiled program for each kind of arguments.

    Inside another jax transformation (`jax.jit`, `jax.grad`, `shardwright.plan`) it is the step itself.

    Attributes:
      plan: the latest plan; None before the first call.
      compiled: the latest `CompiledStep`; None before the first call.
    """

    def __init__(self, step: Callable[..., Any], planning: Planning, options: Options, verbose: bool):
        self.plan: Plan | None = None
        self.compiled: CompiledStep | None = None
        self._step, self._planning, self._options, self._verbose = step, planning, options, verbose
        self._known: dict[Any, tuple[CompiledStep, dict[str, Any]]] = {}
        functools.update_wrapper(self, step)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """As a method, of which `instance` is the first argument."""
        return self if instance is None else types.MethodType(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the step, planning first if these shapes or static arguments are new.

        Under `jax.disable_jit` the step runs as it is, on one device.
        """
        if jax.config.jax_disable_jit:
            return self._step(*args, **kwargs)
        call = bind_call(self._step, args, kwargs, self._options)
        values, tree = jax.tree_util.tree_flatten((call.args, call.kwargs))
        if any(isinstance(x, jax.core.Tracer | jax.ShapeDtypeStruct) for x in values):
            return self._not_run(call, values, args, kwargs)
        arrays = tuple(map(_compat.type_of, values)), _compat.trace_context()
        known = self._known.get((arrays, tree, call.static)) or self._again(arrays, call, tree)
        if known is None:
            known = self._known[arrays, tree, call.static] = self._compile(call)
        compiled, extra = known
        return compiled.run(call, values, extra)

    def _again(self, arrays: tuple, call: Call, tree: Any) -> tuple[CompiledStep, dict[str, Any]] | None:
        """A compiled step that serves although static parts are not equal: they make the same program."""
        alike = (compiled for (kind, *_), (compiled, _) in self._known.items() if kind == arrays)
        found = ((compiled, compiled.served.extra_of(call, tree)) for compiled in alike)
        return next(((compiled, extra) for compiled, extra in found if extra is not None), None)

    def _not_run(self, call: Call, values: list[Any], args: tuple, kwargs: dict[str, Any]) -> Any:
        """Inside another transformation the step is traced with it; abstract arguments are refused."""
        if any(isinstance(x, jax.core.Tracer) for x in values):
            return self._step(*args, **kwargs)
        named = jax.tree_util.tree_leaves_with_path((call.args, call.kwargs))
        path = next(path for path, x in named if isinstance(x, jax.ShapeDtypeStruct))
        raise ValueError(
            f"{argument_name(path, call.names)} is abstract (a jax.ShapeDtypeStruct); to run takes an array, and to "
            "plan without one is shardwright.plan"
        )

    def _compile(self, call: Call) -> tuple[CompiledStep, dict[str, Any]]:
        name = getattr(self._step, "__name__", "step")
        before, start = self.plan, time.perf_counter()
        self._say(f"planning {name}" if before is None else f"planning {name} again: {_news(before, call)}")
        self.plan = make_plan(self._step, call, self._options, self._planning, before)
        mesh = ", ".join(f"{axis}: {size}" for axis, size in self.plan.mesh.items())
        estimate = self.plan.estimate
        self._say(
            f"planned in {time.perf_counter() - start:.1f} s for {self.plan.record.cluster}, mesh ({mesh}): predicted "
            f"{seconds_text(estimate.seconds)} and {bytes_text(estimate.memory.peak_bytes)} a device; compiling"
        )
        self.compiled = self.plan.compile()
        return self.compiled, self.plan.traced.call.extra

    def _say(self, text: str) -> None:
        if self._verbose:
            print(f"shardwright: {text}", file=sys.stderr, flush=True)


def _news(before: Plan, call: Call) -> str:
    """What is new in a call, in a few words."""
    planned = {leaf.name: leaf.aval for leaf in before.traced.program.inputs}
    changed = []
    for path, x in jax.tree_util.tree_leaves_with_path((call.args, call.kwargs)):
        name, aval = argument_name(path, call.names), _compat.abstract_like(x)
        old = planned.get(name)
        if old is None or (old.shape, old.dtype) != (aval.shape, aval.dtype):
            was = "new" if old is None else f"it was {old.dtype}{list(old.shape)}"
            changed.append(f"{name} is {aval.dtype}{list(aval.shape)} ({was})")
    more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
    if changed:
        return ", ".join(changed[:3]) + more
    return Served(before.traced.call, before.traced.program).news(
        call, jax.tree_util.tree_structure((call.args, call.kwargs))
    )
