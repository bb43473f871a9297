"""Collectives are priced as the CPU back end runs them: their kind, and the width of their elements."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardwright.cluster import parse
from shardwright.cost.estimate import estimate
from shardwright.partition.lower import partition
from shardwright.run.devices import make_mesh
from shardwright.run.execute import compile_program
from shardwright.run.traffic import by_kind, traffic
from tests.run.proof_steps import one_axis, shape, trace


def _runs_as_priced(step, dtype, dim=0, size=4):
    """(kind → (times, bytes)) of a step over x, cut along one dim; the same in the compiled program; the results."""
    x = shape(8, 16, dtype=dtype)
    t = trace(step, (x,), ["x"])
    device = partition(t.program, t.classes, one_axis(size, (t.dim("x", dim),)))
    rows = estimate(t.program, device, parse(f"cpu:{size}")).collectives
    run = compile_program(t.program, device, make_mesh({"x": size}))
    values = np.random.default_rng(0).integers(1, 3, x.shape).astype(dtype)
    (got,), want = run([values]), jax.jit(step)(values)
    assert got.dtype == want.dtype and np.array_equal(np.asarray(got), np.asarray(want))
    return {c.kind: (c.times, c.bytes) for c in rows}, by_kind(traffic(run.compiled.as_text(), {"x": size}))


@pytest.mark.parametrize("dtype, width", [("bfloat16", 4), ("float8_e4m3fn", 2), ("float16", 2), ("int8", 1)])
def test_narrow_floats_travel_wide_on_cpu(dtype, width):
    priced, counted = _runs_as_priced(lambda x: x.max(0), jnp.dtype(dtype))
    assert priced == counted == {"all_reduce": (1, 2 * 16 * width * 3 / 4)}


@pytest.mark.parametrize("dtype", ["float32", "int32", "int8"])
def test_products_are_gathered(dtype):
    priced, counted = _runs_as_priced(lambda x: jax.lax.reduce_prod(x, (0,)), jnp.dtype(dtype))
    assert priced == counted == {"all_gather": (1, 4 * 16 * jnp.dtype(dtype).itemsize * 3 / 4)}


def test_widths_are_the_dtype_s_own_elsewhere():
    t = trace(lambda x: x.max(0), (shape(8, 16, dtype=jnp.bfloat16),), ["x"])
    device = partition(t.program, t.classes, one_axis(8, (t.dim("x", 0),)))
    (row,) = estimate(t.program, device, parse("h100:1x8")).collectives
    assert row.bytes == 2 * 16 * 2 * 7 / 8


def test_an_exchange_of_uneven_dims_is_padded_on_both():
    """[32, 32] cut into 3 x 11 rows, exchanged for columns: each device sends 2/3 of 11 x 33."""

    def step(x):
        y = jnp.sin(x)
        return y * y.T

    t = trace(step, (shape(32, 32),), ["x"])
    device = partition(t.program, t.classes, one_axis(3, (t.dim("x", 0),)))
    run = compile_program(t.program, device, make_mesh({"x": 3}))
    counted = by_kind(traffic(run.compiled.as_text(), {"x": 3}))["all_to_all"]
    rows = [c for c in estimate(t.program, device, parse("cpu:3")).collectives if c.kind == "all_to_all"]
    assert [(c.times, c.bytes) for c in rows] == [counted] == [(1, 11 * 33 * 4 * 2 / 3)]
