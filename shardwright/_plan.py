"""The user's Plan: a thin face over a program, a decision and its record; every verb is some room's."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import Mesh, PartitionSpec

from shardwright.cost.estimate import Estimate, estimate
from shardwright.partition.device import DeviceProgram
from shardwright.partition.lower import partition
from shardwright.plan import files
from shardwright.plan.decision import Decision
from shardwright.plan.record import EstimateRecord, PlanRecord, PlanWarning
from shardwright.program.capture import capture
from shardwright.program.ir import Program
from shardwright.program.signature import Call, Options, bind_call, restore
from shardwright.report.listing import program_text
from shardwright.report.text import plan_text
from shardwright.rules.classes import Classes
from shardwright.run.born import init_decision, init_targets
from shardwright.run.execute import Executable, check_arguments, compile_program, lowerable, make_mesh
from shardwright.run.targets import Ahead, compile_ahead


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
    mesh: Mesh | None = None


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
            raise ValueError("this plan was loaded without its step, so it can be printed, compared and reported but not run or "
                             "listed: load it as load_plan(path, step, *args)")
        return self._traced

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
        """A `PartitionSpec` for every array argument, as a tuple of pytrees like the step's positional arguments (keyword arguments
        follow as one dict). Without the step: leaf name → spec."""
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
          Without a target a `CompiledStep`, called like the step; with one an object with `.memory`, `.collectives` and `.text`.

        Raises:
          ValueError: fewer devices are attached than the plan needs, or an unknown target.
          RuntimeError: the target's compiler is not installed or refuses the program.
        """
        t = self.traced
        if target is not None:
            return self._compile_ahead(target)
        mesh = t.mesh if t.mesh is not None and devices is None else make_mesh(self.mesh, devices)
        return CompiledStep(self, compile_program(t.program, t.device, mesh))

    def _compile_ahead(self, target: str) -> Ahead:
        t = self.traced
        return compile_ahead(lowerable(t.program, t.device), target)

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
        mesh = t.mesh if t.mesh is not None and devices is None else make_mesh(self.mesh, devices)
        call = bind_call(init_fn, args, {}, Options())
        program = capture(call.step, call.args, call.kwargs, names=call.names)
        targets = init_targets(program, self.record.program.inputs, t.program)
        classes, decision = init_decision(program, targets, t.decision)
        device = partition(program, classes, decision)
        run = compile_program(program, device, mesh)
        return restore(call.extra, run(jax.tree_util.tree_leaves((call.args, call.kwargs))))


class CompiledStep:
    """A plan on attached devices: called like the step. `compiled` is the `jax.stages.Compiled` behind it."""

    def __init__(self, plan: Plan, executable: Executable):
        self.plan = plan
        self.mesh = executable.mesh
        self.compiled = executable.compiled
        self._run = executable
        self._call = plan.traced.call
        self._tree = jax.tree_util.tree_structure((self._call.args, self._call.kwargs))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs one step. Inputs that do not lie as planned are put there; donated inputs are gone afterwards.

        Raises:
          ValueError: the arguments are not those of the plan; the message names the leaves.
        """
        t = self.plan.traced
        call = bind_call(t.step, args, kwargs, t.options)
        values, tree = jax.tree_util.tree_flatten((call.args, call.kwargs))
        self._check(call, values, tree)
        return restore(self._call.extra, self._run(values))

    def _check(self, call: Call, values: list[Any], tree: Any) -> None:
        program = self.plan.traced.program
        if tree == self._tree and all(_fits(x, leaf.aval) for x, leaf in zip(values, program.inputs, strict=True)):
            if call.static == self._call.static:
                return
            raise ValueError("a static argument (or a leaf that is not an array) differs from the one that was planned; plan "
                             "again for it")
        named = jax.tree_util.tree_leaves_with_path((call.args, call.kwargs))
        names = [argument_name(path, call.names) for path, _ in named]
        check_arguments(program, names, values, tree == self._tree)


def argument_name(path: tuple, names: Sequence[str]) -> str:
    """A leaf's name: the argument's and the path inside it."""
    head = names[path[1].idx] if path[0].idx == 0 else path[1].key
    return f"{head}{jax.tree_util.keystr(path[2:])}"


def _fits(x: Any, aval: Any) -> bool:
    shape = getattr(x, "shape", None)
    if shape is None:
        return not aval.shape
    return tuple(shape) == aval.shape and (x.dtype == aval.dtype or not hasattr(x, "sharding"))


def build(step: Callable, options: Options, call: Call, program: Program, classes: Classes, decision: Decision, cluster: Any,
          mesh: Mesh | None) -> Traced:
    """Partitions and prices `decision` for a captured call."""
    device = partition(program, classes, decision)
    return Traced(step, options, call, program, classes, decision, device, estimate(program, device, cluster), mesh)


def spec_entries(spec: PartitionSpec, ndim: int) -> tuple[tuple[str, ...] | None, ...]:
    """A spec as pins hold it: every dim fixed."""
    entries = [() if e is None else (e,) if isinstance(e, str) else tuple(e) for e in spec]
    return tuple(entries) + ((),) * (ndim - len(entries))
