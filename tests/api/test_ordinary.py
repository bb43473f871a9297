"""Ordinary programs that a plan once got wrong, or refused: each computes what one device computes."""

import dataclasses
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import shardwright as sw
from tests.api.test_errors import refused

TABLE = jnp.arange(64.0)
MASK = np.arange(64) % 3 == 0


def agrees(step, *args, rtol=2e-6, **options):
    """The plan of `step`, which computes what jax.jit computes."""
    plan = sw.plan(step, *args, cluster="cpu:8", **options)
    for got, wanted in zip(jax.tree.leaves(plan.compile()(*args)), jax.tree.leaves(jax.jit(step)(*args)), strict=True):
        assert got.dtype == wanted.dtype and got.shape == wanted.shape
        np.testing.assert_allclose(np.asarray(got, np.float64), np.asarray(wanted, np.float64), rtol=rtol, atol=1e-6)
    return plan


def arange(*shape, dtype=np.float32):
    return (np.arange(np.prod(shape, dtype=int)).reshape(shape) % 17 / 16).astype(dtype)


@pytest.mark.parametrize(
    "step",
    [
        lambda x: x * TABLE[:, None],
        lambda x: jnp.where(MASK[:, None], x, 0),
        lambda x: x + jax.lax.broadcast_in_dim(TABLE, (64, 32), (0,)),
        lambda x: jax.vmap(lambda row: jnp.where(jnp.asarray(MASK[:32]), row, 1.0))(x),
        lambda x: x @ jnp.broadcast_to(TABLE[None, :32, None], (1, 32, 8))[0],
    ],
)
def test_closed_over_arrays_that_are_broadcast(step):
    plan = agrees(step, arange(64, 32), mesh={"x": 8}, pins={"x": P("x")})
    assert plan.inputs == (P("x", None),)


def test_a_mapped_loop_whose_condition_depends_on_the_row():
    def step(x, limit):
        def halve(row, low):
            return jax.lax.while_loop(
                lambda c: (jnp.abs(c[0]).max() > low) & (c[1] < 9), lambda c: (c[0] * 0.6, c[1] + 1), (row, 0)
            )

        return jax.vmap(halve)(x, limit)

    x = arange(8, 4) + np.arange(8, dtype=np.float32)[:, None]
    rows, turns = jax.jit(step)(x, np.linspace(0.2, 1, 8, dtype=np.float32))
    assert len(set(np.asarray(turns).tolist())) > 3 and rows.shape == (8, 4)
    agrees(step, x, np.linspace(0.2, 1, 8, dtype=np.float32))
    agrees(lambda x: jax.vmap(jax.vmap(lambda v: jax.lax.while_loop(lambda c: c > 0.3, lambda c: c * 0.7, v)))(x), x)


def test_a_product_over_a_cut_dim_is_priced_as_it_runs():
    plan = agrees(lambda x: jnp.prod(x + 0.75), arange(16), mesh={"x": 8}, pins={"x": P("x")})
    assert "prod" in plan.program() and plan.estimate.collectives[0].kind == "all_gather"


@pytest.mark.parametrize("shape", [(1, 4), (2, 4), (5, 4), (0, 4)])
@pytest.mark.parametrize("spec", [P("d"), P(("d", "t")), P(None, "t")])
def test_pins_of_dims_of_every_size(shape, spec):
    agrees(lambda x: sw.pin(jnp.sin(x), spec) * 2, arange(*shape), mesh={"d": 2, "t": 4})


@pytest.mark.parametrize(
    "step",
    [
        lambda x: jnp.sin(x),
        lambda x: x.T @ x,
        lambda x: jnp.tile(x, (3, 2)),
        lambda x: jnp.concatenate([x, jnp.ones((4, 4), x.dtype)]),
        lambda x: jnp.tanh(x).sum(0),
    ],
)
def test_dims_of_size_zero(step):
    agrees(lambda x: step(x), arange(0, 4), mesh={"x": 8}, pins={"x": P("x")})


def test_numbers_of_numpy_keep_their_dtype():
    half = jnp.ones((8, 8), jnp.bfloat16)
    for number in (np.float64(1.001), np.float32(1.001), np.int64(2), 1.001):
        agrees(lambda a, s: a * s, half, number)
        step = lambda a, s: a * s  # noqa: E731
        assert (
            sw.jit(step, cluster="cpu:8", verbose=False, cache=False)(half, number).dtype
            == jax.jit(step)(half, number).dtype
        )


def test_another_configuration_of_jax_is_another_program():
    step = sw.jit(lambda x, y: x @ y, cluster="cpu:8", verbose=False, cache=False)
    x = jnp.ones((8, 8))
    step(x, x)
    assert "highest" not in step.compiled.compiled.as_text().lower()
    plain = step.compiled
    with jax.default_matmul_precision("highest"):
        step(x, x)
        assert step.compiled is not plain and "highest" in step.compiled.compiled.as_text().lower()
    step = sw.jit(lambda x: x * jnp.sum(jnp.zeros(3) + 1), cluster="cpu:8", verbose=False, cache=False)
    assert step(x).dtype == jnp.float32
    with jax.enable_x64(True):
        assert step(x).dtype == jnp.float64


def test_without_jit_the_step_runs_as_it_is():
    seen = []
    step = sw.jit(lambda x: seen.append(x) or x + 1, cluster="cpu:8", verbose=False, cache=False)
    with jax.disable_jit():
        assert step(jnp.ones(3)).tolist() == [2, 2, 2]
    assert not isinstance(seen[0], jax.core.Tracer) and step.plan is None


def test_what_jax_helpers_compute_has_the_users_line():
    def step(x):
        return jnp.take(x, jnp.array([3, 1]), axis=0).sum()

    plan = agrees(step, arange(64, 32), mesh={"x": 8}, pins={"x": P("x")})
    assert plan.estimate.collectives and all("test_ordinary.py" in c.source for c in plan.estimate.collectives[:1])


@pytest.mark.parametrize("stacked", [True, False])
def test_accumulation_reduces_once_after_the_loop(stacked):
    """Also where a turn's gradient comes in pieces: the gradient of `w[i]` is padded to the whole."""
    layers, width = 4, 128

    def step(w, x):
        def loss(w, x):
            for i in range(layers):
                x = jnp.tanh(x @ w[i])
            return (x**2).mean()

        def turn(total, x):
            return jax.tree.map(jnp.add, total, jax.value_and_grad(loss)(w, x)), None

        (total, slopes), _ = jax.lax.scan(turn, (0.0, jax.tree.map(jnp.zeros_like, w)), x)
        return jax.tree.map(lambda w, g: w - 0.1 * g, w, slopes), total

    w = arange(layers, width, width) / 8
    plan = agrees(step, w if stacked else list(w), arange(8, 256, width), mesh={"x": 8}, objective="bytes", rtol=2e-5)
    most = 2 * 7 / 8 * w.nbytes + 100
    assert plan.estimate.bytes_sent <= most and {c.times for c in plan.estimate.collectives} == {1}


def test_words_for_bad_input():
    step = lambda x: jnp.sin(x)  # noqa: E731
    x = arange(8, 8)
    plan = sw.plan(step, x, cluster="cpu:8")
    refused("does not take", lambda: sw.plan(step, x, x, cluster="cpu:8"))
    refused(
        "holds characters that XLA's compilers do not read", lambda: sw.plan(step, x, cluster="cpu:8", mesh={"é": 8})
    )
    said = refused("names 3 dims, and the value has 2", lambda: sw.plan(lambda x: sw.pin(x, P(None, None, "d")), x))
    assert re.search(r"test_ordinary\.py:\d+", said) and "static_argnums" not in said
    refused("pin each array of it by itself", lambda: sw.plan(lambda x: sw.pin({"a": x}, P("d")), x, cluster="cpu:8"))
    for steps in (1.5, "3", None, True, 0):
        refused("a whole number from 1 on", lambda steps=steps: sw.prove(plan, step, x, steps=steps))
    refused("a whole number from 0 on", lambda: sw.prove(plan, step, x, seed=-1))
    refused("a Plan was wanted", lambda: sw.prove("plan.json", step, x))
    refused("a Plan was wanted", lambda: sw.diff(plan, None))
    refused("give a name, as 'tpu-v5p:2x2x2'", lambda: plan.compile(8))
    refused("१GB", lambda: sw.plan(step, x, cluster="cpu:8", memory="१GB"))


@pytest.mark.parametrize(
    "edit",
    [
        lambda d: d["programs"][0].update(inputs=[]),
        lambda d: d["programs"][0]["inputs"][0].update(shape=[-1, 8]),
        lambda d: d["programs"][0]["inputs"][0].update(dtype="x"),
        lambda d: d["programs"][0]["inputs"][0].update(dims=["x", "zz"]),
        lambda d: d["programs"][0]["outputs"][0].update(spec=[[], []]),
    ],
)
def test_a_plan_file_that_says_something_else_of_its_program(tmp_path, edit):
    step = lambda x: jnp.sin(x)  # noqa: E731
    plan = sw.plan(step, arange(8, 8), cluster="cpu:8", mesh={"x": 8}, pins={"x": P("x")})
    plan.save(tmp_path / "plan.json")
    data = json.loads((tmp_path / "plan.json").read_text())
    edit(data)
    (tmp_path / "plan.json").write_text(json.dumps(data))
    refused("contradicts itself", lambda: sw.load_plan(tmp_path / "plan.json", step, arange(8, 8)))


def test_a_loaded_plan_has_the_price_that_it_has_now(tmp_path):
    step = lambda x: jnp.sin(x)  # noqa: E731
    plan = sw.plan(step, arange(8, 8), cluster="cpu:8")
    plan.save(tmp_path / "plan.json")
    data = json.loads((tmp_path / "plan.json").read_text())
    data["estimate"]["flops"] = -1
    (tmp_path / "plan.json").write_text(json.dumps(data))
    loaded = sw.load_plan(tmp_path / "plan.json", step, arange(8, 8))
    assert loaded.record == dataclasses.replace(plan.record) and loaded.record.estimate.flops > 0


def test_places_where_no_plan_can_lie(tmp_path):
    plan = sw.plan(lambda x: x + 1, arange(8), cluster="cpu:8")
    refused("that is a directory", lambda: plan.save(tmp_path), OSError)
    refused("which is no directory", lambda: plan.save(tmp_path / "none" / "plan.json"), OSError)
