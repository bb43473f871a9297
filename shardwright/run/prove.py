"""The plan's program held against the one-device program, leaf by leaf, over several steps.

Two runs. In float64, by the lifted program, both sides differ by rounding of 1e-16 alone, so an error above 1e-9 is
other mathematics. In the step's own dtypes the errors are what rounding in another order does. The state of neither
side is ever copied from the other: each feeds its own results back, so an error in any step shows in all that follow.
What is lifted is the per-device program itself (`run.lifted`), every collective in its place.

In float64 one device runs twice more. On other batches: a leaf whose bits are the same there (its gradient is zero)
proves nothing and is reported as unproven. And on arguments changed in the last bit: how far that moves a leaf is what
rounding alone may do to it (`run.compare`).

Implemented in: arguments `run.inputs`, comparison `run.compare`, sign-like methods `run.jumps`, `run.certificate`.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shardwright import _compat
from shardwright.partition.device import DeviceProgram, Slot
from shardwright.partition.emit import emit
from shardwright.partition.lower import partition
from shardwright.plan.decision import Decision
from shardwright.program.evaluate import evaluate
from shardwright.program.ir import Program, Role
from shardwright.rewrite.lift import lift
from shardwright.rules.classes import Classes
from shardwright.run.callbacks import warn_of_callbacks
from shardwright.run.certificate import DIFFERS, EQUAL, NOT_FINITE, UNPROVEN, Certificate, LeafProof
from shardwright.run.compare import TOLERANCE, distance, host_array, noise, relative_errors
from shardwright.run.inputs import Inputs
from shardwright.run.jumps import Jump, cut_block, cut_device, describe, find_jumps
from shardwright.run.lifted import lift_device
from shardwright.run.placing import put

GRADIENT = "gradient"
Reference = Callable[..., Sequence[Any]]


def prove_program(
    program: Program,
    classes: Classes,
    decision: Decision,
    mesh: jax.sharding.Mesh,
    flat_args: Sequence[Any],
    steps: int = 3,
    reference: Reference | None = None,
    seed: int = 0,
) -> Certificate:
    """Runs `program` on one device and by `decision` on `mesh`, and compares.

    Args:
      program: the captured step.
      classes: its classes of dims.
      decision: the plan.
      mesh: attached devices, with the plan's axes and sizes.
      flat_args: a value for each input leaf; None or a `jax.ShapeDtypeStruct` where one is to be made up.
      steps: how many steps to run, results fed back, each on a batch of its own.
      reference: the user's step as a function of flat arguments to flat results; if given, the captured program is held
        against it, on one device.
      seed: of what is made up.

    Returns:
      The certificate.

    Raises:
      ValueError: if an argument has another shape than the step's, or there are no steps to run.
    """
    return prove_device(program, partition(program, classes, decision), mesh, flat_args, steps, reference, seed)


def prove_device(
    program: Program,
    device: DeviceProgram,
    mesh: jax.sharding.Mesh,
    flat_args: Sequence[Any],
    steps: int = 3,
    reference: Reference | None = None,
    seed: int = 0,
) -> Certificate:
    """As `prove_program`, for a per-device program that is given."""
    if steps < 1:
        raise ValueError(f"a proof takes at least one step, and {steps} were asked for")
    if not program.outputs:
        raise ValueError("the step returns no arrays, so there is nothing to prove")
    warn_of_callbacks(program, mesh)
    inputs = Inputs(program, flat_args, seed)
    jumps = find_jumps(program, device)
    own = _run(_Case(program, device, mesh, jumps, False), inputs, steps)
    lifted = lift(program)
    wide = _run(_Case(lifted.program, lift_device(device), mesh, jumps, True), inputs, steps)
    assert wide.devices > 1 or mesh.size == 1, f"{wide.devices} devices computed, of {mesh.size}: nothing was proven"
    changes = [*map(str, lifted.refusals), *lifted.redrawn, *describe(jumps)]
    difference = _capture_difference(program, reference, inputs, own.first, bool(jumps)) if reference else ""
    changes += [difference] if difference else []
    rows = _rows(program, jumps, own, wide)
    return Certificate(rows, tuple(changes), not difference, wide.devices, dict(mesh.shape), steps)


@dataclasses.dataclass(frozen=True)
class _Case:
    """One of the two runs: a program and its per-device form in the same dtypes."""

    program: Program
    device: DeviceProgram
    mesh: jax.sharding.Mesh
    jumps: tuple[Jump, ...]
    wide: bool


@dataclasses.dataclass
class _Outcome:
    """For each compared leaf the worst error, whether it was bitwise equal, whether it moved.

    devices: how many computed.
    first: the results of the first step on one device.
    """

    errors: list[float]
    bitwise: list[bool]
    moved: list[bool]
    devices: int = 0
    first: Sequence[np.ndarray] = ()


def _run(case: _Case, inputs: Inputs, steps: int) -> _Outcome:
    """Runs all steps on one device and under the plan; in float64 on one device also on other arguments."""
    program, home = case.program, case.mesh.devices.flat[0]
    block, device = cut_block(program.block, case.jumps), cut_device(case.device, case.jumps)
    num_results, num_inputs = len(program.outputs), len(program.inputs)
    slots, jump_slots = device.block.inputs[:num_inputs], device.block.inputs[num_inputs:]
    outcome = _Outcome([0.0] * len(device.block.outputs), [True] * len(device.block.outputs), [False] * num_results)
    with jax.enable_x64(True) if case.wide else contextlib.nullcontext():
        on_one = jax.jit(lambda *values: evaluate(block, values))
        on_all = jax.jit(emit(device, case.mesh))
        wanted: Sequence[Any] = ()
        got, others, shaken = wanted, wanted, wanted
        for step in range(steps):
            arguments = _typed(inputs.at(step), program)
            wanted = on_one(*_next(program, wanted, _placed(arguments, home)))
            signs = [host_array(x) for x in wanted[num_results + 1 :: 2]]
            got = on_all(*_next(program, got, _laid(arguments, slots, case.mesh)), *_laid(signs, jump_slots, case.mesh))
            hosts = _compared(wanted, num_results)
            outcome.first = outcome.first or hosts[:num_results]
            noises = [0.0] * len(hosts)
            if case.wide:
                others = on_one(*_next(program, others, _placed(_typed(inputs.other(step), program), home)))
                _note_moves(outcome, hosts, _compared(others, num_results))
                shaken = on_one(*_next(program, shaken, _placed(inputs.shaken(arguments), home)))
                noises = [noise(a, b) for a, b in zip(_compared(shaken, num_results), hosts, strict=True)]
            _note(outcome, program, hosts, got, noises)
    return outcome


def _compared(results: Sequence[Any], num_results: int) -> list[np.ndarray]:
    """Of what one device returns the results and the jumps' operands, without the jumps' results."""
    return [host_array(x) for x in (*results[:num_results], *results[num_results::2])]


def _typed(values: Sequence[Any], program: Program) -> list[Any]:
    return [
        x if _compat.is_extended(leaf.aval.dtype) else np.asarray(x).astype(leaf.aval.dtype)
        for x, leaf in zip(values, program.inputs, strict=True)
    ]


def _placed(values: Sequence[Any], home: jax.Device) -> list[Any]:
    return [jax.device_put(x, home) for x in values]


def _laid(values: Sequence[Any], slots: Sequence[Slot], mesh: jax.sharding.Mesh) -> list[Any]:
    return [put(x, slot, mesh) for x, slot in zip(values, slots, strict=True)]


def _next(program: Program, results: Sequence[Any], fresh: list[Any]) -> list[Any]:
    """A step's arguments: what the last step, if there was one, carried, and the rest fresh."""
    for result, i in zip(results, program.carried, strict=False):
        if i is not None:
            fresh[i] = result
    return fresh


def _note(
    outcome: _Outcome,
    program: Program,
    wanted: Sequence[np.ndarray],
    got: Sequence[jax.Array],
    noises: Sequence[float],
) -> None:
    roles = [leaf.role.value for leaf in program.outputs]
    distances = [distance(a, b) for a, b in zip(got, wanted, strict=True)]
    errors = relative_errors(distances, roles + [GRADIENT] * (len(got) - len(roles)), noises)
    outcome.errors = [max(a, b) for a, b in zip(outcome.errors, errors, strict=True)]
    outcome.bitwise = [a and d.bitwise for a, d in zip(outcome.bitwise, distances, strict=True)]
    outcome.devices = max(outcome.devices, len({d for x in got for d in x.sharding.device_set}))


def _note_moves(outcome: _Outcome, wanted: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> None:
    for k in range(len(outcome.moved)):
        outcome.moved[k] = outcome.moved[k] or wanted[k].tobytes() != others[k].tobytes()


def _rows(program: Program, jumps: Sequence[Jump], own: _Outcome, wide: _Outcome) -> tuple[LeafProof, ...]:
    leaves = []
    for leaf, i, moved in zip(program.outputs, program.carried, wide.moved, strict=True):
        state = i is not None and leaf.role in (Role.PARAMETER, Role.OPTIMIZER)
        leaves.append((leaf.name if i is None else program.inputs[i].name, leaf.role.value, state and not moved))
    leaves += [(jump.name, GRADIENT, False) for jump in jumps]
    measured = zip(leaves, wide.errors, own.errors, own.bitwise, strict=True)
    return tuple(
        LeafProof(name, role, error, own_error, bitwise, _status(error, idle))
        for (name, role, idle), error, own_error, bitwise in measured
    )


def _status(error: float, idle: bool) -> str:
    if error > TOLERANCE:
        return DIFFERS if np.isfinite(error) else NOT_FINITE
    return UNPROVEN if idle else EQUAL


def _capture_difference(
    program: Program, reference: Reference, inputs: Inputs, captured: Sequence[np.ndarray], has_jumps: bool
) -> str:
    """What the captured program does otherwise than the step, on one device in the step's own dtypes; '' if nothing.

    Both are compiled from nearly the same program, so they may differ by rounding alone: up to √ε of a leaf's dtype.
    Where rounding decides signs, state may part, and only the other results are compared.
    """
    values = [jnp.asarray(x) for x in _typed(inputs.at(0), program)]
    results = jax.jit(lambda *flat: list(reference(*flat)))(*values)
    distances = [distance(a, b) for a, b in zip(results, captured, strict=True)]
    errors = relative_errors(distances, [leaf.role.value for leaf in program.outputs], [0.0] * len(distances))
    for leaf, error, d, mine in zip(program.outputs, errors, distances, captured, strict=True):
        limit = 0.0 if d.exact else float(jnp.finfo(leaf.aval.dtype).eps) ** 0.5
        told = d.exact or bool(np.all(np.isfinite(mine)))
        if error > limit and told and not (has_jumps and leaf.role is not Role.RESULT):
            return f"the captured program is not the step: {leaf.name} differs by {error:.1e} on one device"
    return ""
