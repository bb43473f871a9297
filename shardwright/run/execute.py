"""A plan on attached devices: the compiled step, and state born where it will lie."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from shardwright import _compat
from shardwright.partition.device import DeviceProgram, Slot
from shardwright.partition.emit import emit
from shardwright.partition.turns import in_turn
from shardwright.plan.placement import Placement
from shardwright.program.ir import Leaf, Program, walk
from shardwright.run.callbacks import warn_of_callbacks
from shardwright.run.devices import COMPILER_OPTIONS
from shardwright.run.targets import Lowerable


@dataclasses.dataclass(frozen=True, eq=False)
class Executable:
    """A compiled per-device program over flat arguments and results.

    Attributes:
      program: the step.
      mesh: the devices.
      shardings: how each argument lies.
      compiled: the `jax.stages.Compiled`.
      call: what runs it: `compiled`, or where jax cannot call that, the same as a jitted function.
    """

    program: Program
    mesh: Mesh
    shardings: tuple[NamedSharding, ...]
    compiled: Any
    call: Callable[..., Sequence[jax.Array]]

    def __call__(self, values: Sequence[Any]) -> list[Any]:
        """Runs one step; values that do not lie as planned are put there first, donated ones are gone afterwards."""
        leaves = self.program.inputs
        if gone := [
            leaf for x, leaf in zip(values, leaves, strict=True) if isinstance(x, jax.Array) and x.is_deleted()
        ]:
            raise ValueError(_gone(gone))
        own = _apart(values, leaves)
        placed = [
            x if _lies(x, s) else _put(x, leaf.aval.dtype, s)
            for x, leaf, s in zip(own, leaves, self.shardings, strict=True)
        ]
        results = list(self.call(*placed))
        for x, y in zip(values, placed, strict=True):
            if x is not y and isinstance(x, jax.Array) and y.is_deleted() and not x.is_deleted():
                x.delete()  # a donated argument that had to be moved: its copy is gone, and the whole would stay
        return results


def _gone(leaves: Sequence[Leaf]) -> str:
    names = [leaf.name for leaf in leaves]
    more = f" and {len(names) - 3} more" if names[3:] else ""
    donated = " (this step donates it)" if leaves[0].donated else ""
    return (
        f"{', '.join(names[:3])}{more} has been deleted, most likely by a call to which it was donated{donated}: give "
        "what that call returned, or a copy made before it (jax.numpy.copy)"
    )


def _lies(x: Any, sharding: NamedSharding) -> bool:
    return isinstance(x, jax.Array) and (
        x.sharding is sharding or (x.committed and x.sharding.is_equivalent_to(sharding, x.ndim))
    )


def _put(x: Any, dtype: Any, sharding: NamedSharding) -> jax.Array:
    if not isinstance(x, jax.Array):
        x = np.asarray(x, dtype)
    return jax.device_put(x, sharding)


def _apart(values: Sequence[Any], leaves: Sequence[Leaf]) -> Sequence[Any]:
    """Copies a donated array that is another argument too: XLA refuses to overwrite what it also reads."""
    if len({id(x) for x in values}) == len(values):
        return values
    own = list(values)
    seen = {id(x) for x, leaf in zip(values, leaves, strict=True) if not leaf.donated}
    for i, (x, leaf) in enumerate(zip(values, leaves, strict=True)):
        if leaf.donated and id(x) in seen and isinstance(x, jax.Array):
            own[i] = jnp.copy(x)
        seen.add(id(x))
    return own


def compile_program(program: Program, device: DeviceProgram, mesh: Mesh) -> Executable:
    """Compiles `device`, the partitioned form of `program`, for `mesh`."""
    warn_of_callbacks(program, mesh)
    platform = mesh.devices.flat[0].platform
    if platform == "cpu":
        device = in_turn(device)
    named = functools.cache(lambda placement: NamedSharding(mesh, placement.spec))  # one object: see `_lies`
    shardings = tuple(named(s.placement) for s in device.block.inputs)
    results = tuple(named(_placement(o)) for o in device.block.outputs)
    donate = tuple(i for i, leaf in enumerate(program.inputs) if leaf.donated)
    step = jax.jit(
        _with_weak_results(emit(device, mesh), [leaf.aval.weak_type for leaf in program.outputs]),
        in_shardings=shardings,
        out_shardings=results,
        donate_argnums=donate,
        keep_unused=True,
        compiler_options=COMPILER_OPTIONS.get(platform),
    )
    abstract = [_compat.abstract(leaf.aval.shape, leaf.aval.dtype, leaf.aval.weak_type) for leaf in program.inputs]
    with jax.set_mesh(mesh):  # the user may have set another one
        compiled = step.lower(*abstract).compile()
    ahead = _compat.takes_ahead_of_time(leaf.aval.dtype for leaf in program.inputs)
    return Executable(program, mesh, shardings, compiled, compiled if ahead else _under(mesh, step))


def _with_weak_results(fn: Callable[..., Any], weak: Sequence[bool]) -> Callable[..., Any]:
    if not any(weak):
        return fn
    return lambda *v: tuple(_compat.weakly_typed(x) if w else x for x, w in zip(fn(*v), weak, strict=True))


def _under(mesh: Mesh, step: Callable[..., Any]) -> Callable[..., Any]:
    def call(*values: Any) -> Any:
        with jax.set_mesh(mesh):
            return step(*values)

    return call


def _placement(output: Any) -> Placement:
    return output.placement if isinstance(output, Slot) else Placement(())


def lowerable(program: Program, device: DeviceProgram) -> Lowerable:
    """What a target's own compiler needs."""
    avals = tuple(jax.ShapeDtypeStruct(leaf.aval.shape, leaf.aval.dtype) for leaf in program.inputs)
    return Lowerable(
        make_fn=lambda mesh: emit(device, mesh),
        avals=avals,
        in_specs=tuple(s.placement.spec for s in device.block.inputs),
        out_specs=tuple(_placement(o).spec for o in device.block.outputs),
        mesh_axes=dict(device.mesh),
        donate=tuple(i for i, leaf in enumerate(program.inputs) if leaf.donated),
        lines=tuple(eqn.source.line for eqn in walk(program.block)),
    )


def check_arguments(program: Program, names: Sequence[str], values: Sequence[Any]) -> None:
    """Refuses a call whose arguments are not those of the plan.

    Raises:
      ValueError: naming the leaves that differ, what was given and what the plan has.
    """
    planned = {leaf.name: leaf.aval for leaf in program.inputs}
    lines = []
    for name, x in zip(names, values, strict=True):
        if name not in planned:
            lines.append(f"{name} was given and the plan has no such leaf")
            continue
        if isinstance(x, jax.ShapeDtypeStruct):
            lines.append(f"{name} is abstract (a jax.ShapeDtypeStruct); to run takes an array")
            continue
        aval, shape, dtype = planned[name], tuple(np.shape(x)), _compat.dtype_of(x)
        if shape != aval.shape or dtype != aval.dtype:
            lines.append(f"{name} is {dtype}{list(shape)}, the plan has {aval.dtype}{list(aval.shape)}")
    lines += [f"{name} of the plan was not given" for name in planned if name not in set(names)]
    if lines or list(names) != list(planned):
        listed = "\n  ".join(lines[:12] or ["the arguments have another structure"])
        raise ValueError(
            f"the arguments are not those that were planned:\n  {listed}\n"
            "Call it with the planned shapes, or plan again for these (sw.jit does so by itself)."
        )
