"""`sw.plan` and the Plan: what it shows, saves, loads and compiles."""

import dataclasses
import json
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import shardwright as sw
from shardwright import _plan
from shardwright.cluster import parse
from shardwright.cluster.schema import to_toml
from tests.api.steps import assert_close, grid, mlp_batch, mlp_state, mlp_step, put, shapes

STATE, BATCH = shapes(mlp_state()), shapes(mlp_batch())


@pytest.fixture(scope="module")
def plan():
    """A plan on a mesh of two axes, its weights cut over both."""
    return sw.plan(
        mlp_step,
        STATE,
        BATCH,
        mesh={"d": 2, "t": 4},
        donate_argnums=0,
        pins={"state['up']": P("d", "t"), "batch": P("d")},
    )


# What it shows


def test_mesh_inputs_and_outputs_are_pytrees_like_the_steps(plan):
    assert plan.mesh == {"d": 2, "t": 4} and list(plan.mesh) == ["d", "t"]
    state, batch = plan.inputs
    assert state["up"] == P("d", "t") and batch == P("d", None)
    new_state, loss = plan.outputs
    assert new_state == state and loss == P()
    assert jax.tree.structure(plan.inputs) == jax.tree.structure((STATE, BATCH))


def test_estimate_holds_seconds_memory_and_collectives(plan):
    e = plan.estimate
    assert e.seconds > 0 and e.memory.peak_bytes > 0
    assert e.memory.by_role["parameter"] == sum(
        np.prod(x.shape) * 4 // (8 if name == "up" else _parts(plan, name)) for name, x in STATE.items()
    )
    assert e.collectives
    for c in e.collectives:
        assert c.kind and c.axis and c.bytes > 0 and c.times >= 1 and c.seconds > 0
        assert c.source.startswith("steps.py:")


def _parts(plan, name):
    return int(np.prod([plan.mesh[a] for axes in plan.inputs[0][name] for a in (axes,) if axes]))


def test_prints(plan):
    text = str(plan)
    assert "mlp_step" in text and "d=2" in text and "all_" in text and "steps.py:" in text
    listing = plan.program()
    assert "steps.py:" in listing and "state['up'] on (d, t)" in listing


def test_no_device_is_needed_and_none_is_asked():
    plan = sw.plan(mlp_step, STATE, BATCH, cluster="h100:2x8", memory="80GB", donate_argnums=0)
    assert plan.record.num_devices == 16 and plan.record.memory_limit_bytes == 80_000_000_000


def test_static_and_keyword_arguments_in_inputs():
    plan = sw.plan(lambda n, x, *, y: x * n + y, 3, BATCH, y=BATCH, static_argnums=0, mesh={"d": 8})
    assert jax.tree.structure(plan.inputs) == jax.tree.structure((BATCH, {"y": BATCH}))


def test_one_device_is_an_identity_plan():
    plan = sw.plan(mlp_step, mlp_state(), mlp_batch(), cluster="cpu:1")
    assert plan.record.num_devices == 1 and plan.estimate.collectives == ()
    assert_close(plan.compile()(mlp_state(), mlp_batch()), jax.jit(mlp_step)(mlp_state(), mlp_batch()))


def test_s29_integers_booleans_and_a_metric_that_repeats_the_loss():
    def step(state, batch):
        value, grad = jax.value_and_grad(lambda w: jnp.where(batch["mask"], batch["x"] @ w, 0).mean())(state["w"])
        state = {"w": state["w"] - grad, "count": state["count"] + 1, "seen": state["seen"] | batch["mask"].any()}
        return state, value, {"loss": value}

    rng = np.random.default_rng(0)
    state = {"w": jnp.asarray(rng.normal(size=(64, 32)), jnp.float32), "count": jnp.int32(3), "seen": jnp.bool_(False)}
    batch = {"x": jnp.asarray(rng.normal(size=(16, 64)), jnp.float32), "mask": jnp.asarray(rng.random((16, 1)) < 0.5)}
    plan = sw.plan(step, state, batch, donate_argnums=0, mesh={"d": 8})
    expected = jax.jit(step)(state, batch)
    out = plan.compile()(jax.tree.map(jnp.copy, state), batch)
    assert_close(out, expected)
    assert out[0]["count"].dtype == jnp.int32 and out[0]["seen"].dtype == jnp.bool_


def test_s29_a_callback_gets_a_warning_with_its_price():
    def step(x, w):
        y = jax.pure_callback(lambda a: np.cumsum(a, 0), jax.ShapeDtypeStruct((64, 512), jnp.float32), jnp.tanh(x @ w))
        return (y * 2).sum(0)

    plan = sw.plan(
        step,
        jax.ShapeDtypeStruct((64, 256), jnp.float32),
        jax.ShapeDtypeStruct((256, 512), jnp.float32),
        cluster="cpu:8",
        mesh={"d": 8},
        pins={"x": P("d")},
    )
    (warning,) = [w for w in plan.warnings if "pure_callback" in w.message]
    assert warning.bytes > 0 and warning.seconds > 0 and warning.source.startswith("test_plan.py:")


@pytest.mark.parametrize("objective", ["seconds", "memory", "bytes"])
def test_objectives(objective):
    found = {o: sw.plan(mlp_step, STATE, BATCH, cluster="cpu:8", objective=o).estimate for o in ("seconds", objective)}
    value = {
        "seconds": lambda e: e.seconds,
        "memory": lambda e: e.memory.peak_bytes,
        "bytes": lambda e: e.bytes_sent,
    }[objective]
    assert value(found[objective]) <= value(found["seconds"])


# Files


def test_saved_and_loaded_with_the_step(plan, tmp_path):
    plan.save(tmp_path / "plan.json")
    loaded = sw.load_plan(tmp_path / "plan.json", mlp_step, STATE, BATCH)
    assert loaded.record == plan.record
    assert str(sw.diff(plan, loaded)) == "the plans are the same"
    assert [leaf.donated for leaf in loaded.traced.program.inputs] == [True, True, False]
    state = mlp_state()
    assert_close(loaded.compile()(state, mlp_batch()), jax.jit(mlp_step)(mlp_state(), mlp_batch()))
    assert state["up"].is_deleted()


def test_loaded_without_the_step_it_can_be_read(plan, tmp_path):
    plan.save(tmp_path / "plan.json")
    loaded = sw.load_plan(tmp_path / "plan.json")
    assert str(loaded) == str(plan) and loaded.mesh == plan.mesh and loaded.estimate == plan.estimate
    assert loaded.inputs["state['up']"] == P("d", "t") and loaded.outputs["out[1]"] == P()
    for ask in (loaded.program, loaded.compile, lambda: loaded.init(mlp_state), lambda: sw.prove(loaded, mlp_step)):
        with pytest.raises(ValueError, match=r"loaded without its step.*load_plan\(path, step, \*args\)"):
            ask()


def test_a_plan_for_a_cluster_of_ones_own(tmp_path):
    own = dataclasses.replace(parse("cpu:8"), name="rack-7")
    (tmp_path / "rack.toml").write_text(to_toml(own))
    plan = sw.plan(mlp_step, STATE, BATCH, cluster=tmp_path / "rack.toml")
    plan.save(tmp_path / "plan.json")
    with pytest.raises(ValueError, match=r"rack-7.*give load_plan cluster="):
        sw.load_plan(tmp_path / "plan.json", mlp_step, STATE, BATCH)
    loaded = sw.load_plan(tmp_path / "plan.json", mlp_step, STATE, BATCH, cluster=tmp_path / "rack.toml")
    assert loaded.record == plan.record


def test_saved_files_hold_no_object_and_no_path(plan, tmp_path):
    plan.save(tmp_path / "plan.json")
    text = (tmp_path / "plan.json").read_text()
    assert "0x" not in text and str(tmp_path) not in text and "/steps.py" not in text
    json.loads(text)


# Compiled


def test_inputs_that_do_not_lie_as_planned_are_put_there(plan):
    fn = plan.compile()
    expected = jax.jit(mlp_step)(mlp_state(), mlp_batch())
    elsewhere = grid(x=8)
    wrong = put(mlp_state()["up"], elsewhere, P("x")), put(mlp_state()["down"], elsewhere, P())
    assert_close(fn({"up": wrong[0], "down": wrong[1]}, np.asarray(mlp_batch())), expected)
    assert wrong[0].is_deleted() and wrong[1].is_deleted()
    right = {n: put(x, fn.mesh, plan.inputs[0][n]) for n, x in mlp_state().items()}
    out = fn(right, mlp_batch())
    assert_close(out, expected)
    assert right["up"].is_deleted() and out[0]["up"].sharding.spec == P("d", "t")


def test_compiled_is_the_stage_behind_it(plan):
    fn = plan.compile()
    assert isinstance(fn.compiled, jax.stages.Compiled)
    assert fn.compiled.memory_analysis().argument_size_in_bytes == plan.estimate.memory.argument_bytes


def test_fewer_devices_than_attached_takes_the_first():
    plan = sw.plan(mlp_step, STATE, BATCH, mesh={"d": 4})
    fn = plan.compile()
    assert list(fn.mesh.devices.flat) == jax.devices()[:4]
    out, _ = fn(mlp_state(), mlp_batch())
    assert out["up"].sharding.device_set == set(jax.devices()[:4])
    chosen = jax.devices()[::2]
    out, _ = plan.compile(devices=chosen)(mlp_state(), mlp_batch())
    assert out["up"].sharding.device_set == set(chosen)


def test_the_users_own_mesh_keeps_its_devices_and_order():
    devices = np.array(jax.devices()[::-1][:4]).reshape(2, 2)
    mesh = jax.sharding.Mesh(devices, ("rows", "columns"))
    plan = sw.plan(mlp_step, STATE, BATCH, mesh=mesh, pins={"state['up']": P("rows", "columns")})
    assert plan.mesh == {"rows": 2, "columns": 2}
    fn = plan.compile()
    assert list(fn.mesh.devices.flat) == list(devices.flat)
    out, _ = fn(mlp_state(), mlp_batch())
    assert out["up"].sharding.device_set == set(devices.flat)


# Born sharded


def init(key):
    up, down = jax.random.split(key)
    return {"up": jax.random.normal(up, (64, 128)), "down": jax.random.normal(down, (128, 64))}


def test_state_is_born_where_it_lies():
    plan = sw.plan(
        mlp_step, STATE, BATCH, mesh={"d": 2, "t": 4}, pins={"state['up']": P("d", "t"), "state['down']": P(("t", "d"))}
    )
    key = jax.random.key(3)
    state = plan.init(init, key)
    assert {n: x.sharding.spec for n, x in state.items()} == plan.inputs[0]
    for x in state.values():
        assert len(x.addressable_shards) == 8
        assert {s.data.size for s in x.addressable_shards} == {x.size // 8}
    assert_close(state, jax.jit(init)(key), 1e-6)
    plan.compile()(state, mlp_batch())


def test_no_device_ever_holds_a_whole(monkeypatch):
    """Not even on the way: no value of the compiled init program is larger than one device's part."""

    def step(w, x):
        return w - 1e-3 * (x @ w).sum()

    compiled = []
    compile_program = _plan.compile_program
    monkeypatch.setattr(_plan, "compile_program", lambda *args: compiled.append(compile_program(*args)) or compiled[-1])
    whole = jax.ShapeDtypeStruct((512, 512), jnp.float32)
    plan = sw.plan(step, whole, jax.ShapeDtypeStruct((8, 512), jnp.float32), mesh={"d": 8}, pins={"w": P("d")})
    w = plan.init(lambda key: jax.random.normal(key, whole.shape), jax.random.key(0))
    assert {s.data.shape for s in w.addressable_shards} == {(64, 512)}
    (executable,) = compiled
    dims = re.findall(r"\b[a-z]+\d+\[([\d,]+)\]", executable.compiled.as_text())
    sizes = {math.prod(map(int, d.split(","))) for d in dims}
    assert max(sizes) == 64 * 512


def test_init_may_give_a_later_argument_or_several():
    def step(params, slots, x):
        grads = jax.grad(lambda p: jnp.square(x @ p["w"]).mean())(params)
        slots = jax.tree.map(lambda s, g: 0.9 * s + g, slots, grads)
        return jax.tree.map(lambda p, s: p - 0.1 * s, params, slots), slots

    params = {"w": jax.ShapeDtypeStruct((64, 64), jnp.float32), "b": jax.ShapeDtypeStruct((8,), jnp.float32)}
    plan = sw.plan(
        lambda p, s, x: step(p, s, x),
        params,
        params,
        BATCH,
        mesh={"d": 8},
        pins={"p['w']": P("d"), "s['w']": P(None, "d")},
    )
    make = lambda: {"w": jnp.ones((64, 64)), "b": jnp.zeros(8)}  # noqa: E731
    both = plan.init(lambda: (make(), jax.tree.map(jnp.zeros_like, make())))
    assert both[0]["w"].sharding.spec == P("d", None) and both[1]["w"].sharding.spec == P(None, "d")
    assert float(both[0]["w"].sum()) == 4096 and float(both[1]["w"].sum()) == 0
    slots = plan.init(lambda p: jax.tree.map(jnp.zeros_like, p), both[0])
    assert jax.tree.structure(slots) == jax.tree.structure(params)


def test_init_that_returns_something_else_is_refused():
    plan = sw.plan(mlp_step, STATE, BATCH, mesh={"d": 8})
    with pytest.raises(ValueError, match=r"out\['up'\] is float32\[64, 127\], state\['up'\] is float32\[64, 128\]"):
        plan.init(lambda: {"down": jnp.zeros((128, 64)), "up": jnp.zeros((64, 127))})


# Like another plan


def test_like_lays_shared_leaves_alike():
    plan = sw.plan(
        mlp_step, STATE, BATCH, mesh={"d": 2, "t": 4}, pins={"state['up']": P("d", "t"), "state['down']": P("t", "d")}
    )

    def evaluate(params, batch):
        return jnp.square(jnp.tanh(batch @ params["up"]) @ params["down"]).mean()

    other = sw.plan(evaluate, STATE, jax.ShapeDtypeStruct((16, 64), jnp.float32), like=plan)
    assert other.mesh == plan.mesh and other.inputs[0] == plan.inputs[0]
    state, _loss = plan.compile()(mlp_state(), mlp_batch())
    kept = jax.tree.map(lambda x: x, state)
    value = other.compile()(state, mlp_batch(size=16))
    assert_close(value, evaluate(jax.tree.map(np.asarray, kept), mlp_batch(size=16)))


def test_like_a_plan_that_was_loaded_without_its_step(plan, tmp_path):
    plan.save(tmp_path / "plan.json")
    other = sw.plan(lambda state: state["up"].sum(), STATE, like=sw.load_plan(tmp_path / "plan.json"))
    assert other.inputs[0]["up"] == P("d", "t") and other.mesh == plan.mesh


def test_weights_that_are_not_trained_are_cut_where_memory_binds():
    """They are no state, and whatever they are called: eight of them take 8.4 MB whole."""

    def step(w, network, x):
        def loss(w):
            h = x
            for layer in network:
                h = jnp.tanh(h @ layer)
            return jnp.mean((h @ w) ** 2)

        value, gradient = jax.value_and_grad(loss)(w)
        return w - 0.1 * gradient, value

    f = jnp.float32
    network = [jax.ShapeDtypeStruct((512, 512), f)] * 8
    args = jax.ShapeDtypeStruct((512, 8), f), network, jax.ShapeDtypeStruct((2048, 512), f)
    loose = sw.plan(step, *args, cluster="cpu:8", donate_argnums=0)
    tight = sw.plan(step, *args, cluster="cpu:8", donate_argnums=0, memory="4MB")
    assert loose.inputs[1] == [P(None, None)] * 8 and loose.inputs[2] == P("x", None)
    assert tight.inputs[1] == [P("x", None)] * 8 and tight.inputs[2] == P("x", None)
    assert tight.estimate.memory.by_role["batch"] == (8 * 512 * 512 + 2048 * 512) * 4 // 8
