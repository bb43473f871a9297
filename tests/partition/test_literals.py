"""Arrays that a step closes over: where a loop's accumulator starts, what is broadcast, what is zero."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardwright.partition.device import Move, walk
from shardwright.partition.lower import partition
from shardwright.run.devices import make_mesh
from shardwright.run.execute import compile_program
from tests.run.proof_steps import one_axis, shape, trace

_VALUES = {"scalar": 2.0, "array": np.arange(6, dtype=np.float32), "zeros": np.zeros(6, np.float32)}


@pytest.mark.parametrize("start", _VALUES)
@pytest.mark.parametrize("devices", [3, 8])
def test_accumulator_that_starts_as_a_constant(start, devices):
    """Each device adds its own rows; the start must count once."""
    value = _VALUES[start]

    def step(x):
        begin = jnp.broadcast_to(jnp.asarray(value), (5, 6)) if start == "array" else jnp.full((5, 6), 2.0)
        begin = jnp.zeros((5, 6)) + jnp.asarray(value) if start == "zeros" else begin
        return jax.lax.scan(lambda total, part: (total + jnp.einsum("bi,bj->ij", part[:, :5], part), None), begin, x)[0]

    t = trace(step, (shape(4, 24, 6),), ["x"])
    device = partition(t.program, t.classes, one_axis(devices, (t.dim("x", 1),)))
    kinds = [op.kind for op, _ in walk(device.block) if isinstance(op, Move)]
    assert kinds.count("all_reduce") == 1, "one reduction, after the loop"
    x = np.random.default_rng(0).random((4, 24, 6), np.float32)
    (got,) = compile_program(t.program, device, make_mesh({"x": devices}))([x])
    np.testing.assert_allclose(got, jax.jit(step)(x), rtol=1e-5)
