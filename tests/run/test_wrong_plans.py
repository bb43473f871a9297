"""Per-device programs that are wrong on purpose fail their proof; the right ones that they were made from pass."""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import optax
import pytest

from shardwright.partition.device import Compute, Control, DeviceBlock, DeviceProgram, Move, Op, Slot
from shardwright.partition.lower import partition
from shardwright.plan.decision import AxisPlan, Decision
from shardwright.program.ir import Equation, Literal, Var
from shardwright.rules.classes import unknown_factors
from shardwright.run.prove import prove_device
from tests.run import proof_steps
from tests.run.proof_steps import mesh_of, one_axis, shape, trace

pytestmark = pytest.mark.usefixtures("quick_compiles")

# Right programs


@functools.cache
def _mlp(batch=8):
    return proof_steps.mlp(batch=batch, optimizer=optax.sgd(0.1))


@functools.cache
def _accumulating():
    """Gradients added up over micro-batches, from a start that is not zero: the weights' decay."""

    def step(state, x):
        def turn(total, x):
            return total + jax.grad(lambda w: (jnp.tanh(x @ w) ** 2).mean())(state), None

        total, _ = jax.lax.scan(turn, 0.1 * state, x)
        return state - 0.1 * total

    return trace(step, (shape(16, 16), shape(3, 8, 16)), ["state", "x"])


def _data(m, size=4):
    return m, one_axis(size, (m.dim("x", 0),))


def _sharded(m):
    return m, one_axis(4, (m.dim("x", 0),), (m.dim("x", 1),))


def _tensor(m):
    return m, one_axis(4, (m.dim("state[0]['w1']", 1),))


def _both(m, store=(), pins=None):
    batch = m.dim("x", 0)
    return m, Decision((AxisPlan("d", 2, (batch,), store), AxisPlan("t", 2, (batch,), store)), pins or {})


def _accumulated():
    a = _accumulating()
    return a, one_axis(4, (a.dim("x", 1),))


def _dropout():
    b = proof_steps.bfloat16_dropout()
    return b, one_axis(4, (b.dim("x", 0),))


_RIGHT = {
    "data": lambda: _data(_mlp()),
    "uneven data": lambda: _data(_mlp(7), 3),
    "uneven data, two axes": lambda: _both(_mlp(7)),
    "sharded": lambda: _sharded(_mlp()),
    "tensor": lambda: _tensor(_mlp()),
    "both": lambda: _both(_mlp()),
    "both, sharded": lambda: _both(_mlp(), (_mlp().dim("x", 1),)),
    "both, pinned": lambda: _both(_mlp(), pins={"x": (("t", "d"), ())}),
    "accumulated": _accumulated,
    "dropout": _dropout,
}

# What is done wrong: an operation → what stands in its place, or None to leave it

Change = Callable[[Op], Sequence[Op] | None]


def _moves(kind: str, change: Callable[[Move], Sequence[Op]], *, axes: int = 1) -> Change:
    def apply(op: Op) -> Sequence[Op] | None:
        return change(op) if isinstance(op, Move) and op.kind == kind and len(op.axes) >= axes else None

    return apply


def _as(**fields) -> Callable[[Move], Sequence[Op]]:
    return lambda op: [dataclasses.replace(op, **fields)]


def _gathered_along_other_dim(op: Move) -> Sequence[Op]:
    (source,), (target,) = op.inputs, op.outputs
    wide = Slot(source.aval, source.placement, (source.shape[0], source.shape[1] * target.shape[0] // source.shape[0]))
    params = {"new_sizes": target.shape, "dimensions": None, "sharding": None}
    reshape = Equation(jax.lax.reshape_p, (Var(source.aval),), (Var(target.aval),), params)
    gather = dataclasses.replace(op, outputs=(wide,), dim=1)
    return [gather, Compute(reshape, None, unknown_factors(reshape), (wide,), (target,), (), ())]


def _then(kind: str, **fields) -> Callable[[Move], Sequence[Op]]:
    """The move, and after it another of this kind on its result."""

    def change(op: Move) -> Sequence[Op]:
        between = Slot(op.outputs[0].aval, op.outputs[0].placement, op.outputs[0].shape)
        first = dataclasses.replace(op, outputs=(between,))
        return [first, dataclasses.replace(op, kind=kind, inputs=(between,), **fields)]

    return change


def _without_masks(op: Op) -> Sequence[Op] | None:
    return [dataclasses.replace(op, masks=())] if isinstance(op, Compute) and op.masks else None


def _mean_of_means(op: Op) -> Sequence[Op] | None:
    """Each device divides by its own block, 3 rows of 3 devices, where there are 7 rows."""
    if not isinstance(op, Compute) or op.equation.name != "div":
        return None
    is_count = [isinstance(x, Literal) and float(x.value) == 7 for x in op.inputs]
    if not any(is_count):
        return None
    inputs = [Literal(9.0, x.aval) if hit else x for x, hit in zip(op.inputs, is_count, strict=True)]
    return [dataclasses.replace(op, inputs=tuple(inputs))]


def _without_position(op: Op) -> Sequence[Op] | None:
    """Every device takes itself for the first: all draw the same dropout mask."""
    if not isinstance(op, Compute) or op.equation.name != "random_bits":
        return None
    form = op.row.local
    row = dataclasses.replace(
        op.row, local=lambda eqn, values, local: form(eqn, values, dataclasses.replace(local, index=lambda f: 0))
    )
    return [dataclasses.replace(op, row=row)]


EVERY = None
# kind of mistake → (right program, what is done to it, which of the operations that it fits)
_WRONG = {
    "a sum is dropped": ("data", _moves("all_reduce", _as(kind="relabel")), 0),
    "the loss alone is not summed": ("data", _moves("all_reduce", _as(kind="relabel")), 4),
    "a partial sum is read as whole": ("tensor", _moves("all_reduce", _as(kind="relabel")), 0),
    "a sum over one of two axes": ("both", _moves("all_reduce", _as(axes=("d",)), axes=2), 0),
    "max instead of sum": ("data", _moves("all_reduce", _as(monoid="max")), 0),
    "a slice instead of a reduce-scatter": ("sharded", _moves("reduce_scatter", _as(kind="slice")), 0),
    "gathered along the wrong dim": ("sharded", _moves("all_gather", _gathered_along_other_dim), 0),
    "gathered in the wrong order of axes": ("both, sharded", _moves("all_gather", _as(axes=("t", "d")), axes=2), 0),
    "a permute is left out": ("both, pinned", _moves("permute", _as(kind="relabel"), axes=2), 0),
    "a slice by the wrong block": ("uneven data, two axes", _moves("slice", _as(axes=("t",))), 0),
    "padding is not masked": ("uneven data", _without_masks, EVERY),
    "a mean of each device's mean": ("uneven data", _mean_of_means, EVERY),
    "a start counts on every device": ("accumulated", _moves("mask", _as(kind="relabel")), 0),
    "an accumulator is reduced twice": ("accumulated", _moves("all_reduce", _then("all_reduce")), 0),
    "copies differ but for the first device's": ("data", _moves("all_reduce", _then("mask")), 4),
    "positions are forgotten": ("dropout", _without_position, EVERY),
}


def _rewritten(program: DeviceProgram, change: Change, which: int | None) -> tuple[DeviceProgram, int]:
    """The program changed, and how many operations the change fits."""
    count = 0

    def block(old: DeviceBlock) -> DeviceBlock:
        nonlocal count
        ops: list[Op] = []
        for op in old.ops:
            if isinstance(op, Control):
                op = dataclasses.replace(op, bodies=tuple(map(block, op.bodies)))
            changed = change(op)
            ops += changed if changed is not None and which in (count, EVERY) else [op]
            count += changed is not None
        return dataclasses.replace(old, ops=tuple(ops))

    return dataclasses.replace(program, block=block(program.block)), count


def _prove(traced, decision, program):
    return prove_device(traced.program, program, mesh_of(decision), traced.made_up, steps=1)


@pytest.mark.parametrize("name", _RIGHT)
def test_right_program_passes(name):
    traced, decision = _RIGHT[name]()
    cert = _prove(traced, decision, partition(traced.program, traced.classes, decision))
    assert cert.ok and cert.devices > 1 and not cert.unproven, str(cert)


@pytest.mark.parametrize("mistake", _WRONG)
def test_wrong_program_fails(mistake):
    name, change, which = _WRONG[mistake]
    traced, decision = _RIGHT[name]()
    program, count = _rewritten(partition(traced.program, traced.classes, decision), change, which)
    assert count > (which or 0), "there was nothing to do wrong"
    cert = _prove(traced, decision, program)
    assert not cert.ok and cert.max_relative_error > 1e-6, str(cert)
    assert "NOT the same" in str(cert) and any(row.status == "differs" for row in cert.rows)
