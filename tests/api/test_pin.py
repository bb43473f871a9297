"""Pins inside a step: `sw.pin` and `jax.lax.with_sharding_constraint`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardwright as sw
from shardwright.partition.device import Compute, Move, walk
from tests.api.steps import assert_close, grid, mlp_batch, mlp_state, mlp_step, shapes

MESH = {"d": 2, "t": 4}


def pin_equations(fn, *args):
    """The specs of the pins in `fn`'s jaxpr, in order, loops included."""
    found = []

    def visit(jaxpr):
        for eqn in jaxpr.eqns:
            if eqn.primitive.name == "pin":
                found.append(eqn.params["spec"])
            for inner in jax.extend.core.jaxprs_in_params(eqn.params):
                visit(inner)

    visit(jax.make_jaxpr(fn)(*args).jaxpr)
    return found


def pinned_sides(plan):
    """(placement before, placement after) of each move that a pin asked for."""
    moves = [op for op, _ in walk(plan.traced.device.block) if isinstance(op, Move) and op.why == "pin"]
    return [(m.inputs[0].placement.dims, m.outputs[0].placement.dims) for m in moves]


# On one device


def test_is_the_identity_on_one_device():
    x = jnp.arange(6.0).reshape(2, 3)
    spec = P("d", None)
    for run in (lambda x: sw.pin(x, spec), jax.jit(lambda x: sw.pin(x, spec)), jax.vmap(lambda x: sw.pin(x, P("d")))):
        assert_close(run(x), x, 0)
    assert sw.pin(np.ones((2, 2), np.float32), P()).dtype == jnp.float32
    assert jax.eval_shape(lambda x: sw.pin(x, spec), x) == jax.ShapeDtypeStruct((2, 3), jnp.float32)
    keys = jax.random.split(jax.random.key(0), 4)
    assert (sw.pin(keys, P("d")) == keys).all()


@pytest.mark.parametrize(
    ("spec", "entries"),
    [
        (P("d", None), (("d",), ())),
        (P(("d", "t")), (("d", "t"), ())),
        (P(None, P.UNCONSTRAINED), ((), None)),
        (P(), ((), ())),
        (("d", None), (("d",), ())),
    ],
)
def test_spec_is_kept_for_every_dim(spec, entries):
    assert pin_equations(lambda x: sw.pin(x, spec), jnp.ones((2, 2))) == [entries]


def test_the_cotangent_is_pinned_alike():
    x = jnp.ones((2, 2))
    assert pin_equations(jax.grad(lambda x: jnp.square(sw.pin(x, P("d"))).sum()), x) == [(("d",), ()), (("d",), ())]
    primal, tangent = jax.jvp(lambda x: sw.pin(x, P("d")) ** 2, (x,), (x,))
    assert_close((primal, tangent), (x, 2 * x))
    assert_close(jax.grad(lambda x: sw.pin(x, P("d"))[0].sum())(x), jnp.array([[1.0, 1.0], [0.0, 0.0]]))
    assert_close(jax.hessian(lambda x: (sw.pin(x, P(None)) ** 3).sum())(jnp.ones(2)), 6 * jnp.eye(2))


def test_a_vmapped_dim_is_free():
    x = jnp.ones((2, 3, 5))
    assert pin_equations(jax.vmap(lambda x: sw.pin(x, P("d", "t"))), x) == [(None, ("d",), ("t",))]
    assert pin_equations(jax.vmap(lambda x: sw.pin(x, P("d", "t")), in_axes=2, out_axes=2), x) == [
        (("d",), ("t",), None)
    ]
    batched = jax.vmap(jax.grad(lambda x: (sw.pin(x, P("d")) ** 2).sum()))
    assert_close(batched(x[0]), 2 * x[0])


def test_in_scan_and_remat():
    def loss(w, x):
        @jax.checkpoint
        def layer(x, w):
            return jnp.tanh(sw.pin(x, P("d", None)) @ w), None

        return jax.lax.scan(layer, x, w)[0].sum()

    w, x = jnp.ones((3, 4, 4)) / 4, jnp.ones((2, 4))
    plain = jax.grad(lambda w, x: jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w)[0].sum())
    assert_close(jax.grad(loss)(w, x), plain(w, x))
    assert len(pin_equations(jax.grad(loss), w, x)) >= 2


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (P("d", None, None), "names 3 dims, and the value has 2"),
        (P("d", "d"), "names mesh axis 'd' twice"),
        (("d", 3), "holds 3"),
        ("d", "a PartitionSpec was wanted"),
        (None, "a PartitionSpec was wanted"),
    ],
)
def test_refuses_what_is_no_spec(spec, message):
    with pytest.raises(ValueError, match=message):
        sw.pin(jnp.ones((2, 2)), spec)


# In a plan


def pinned_step(state, batch):
    def loss(w):
        hidden = sw.pin(jnp.tanh(batch @ sw.pin(w["up"], P(None, "t"))), P("d", "t"))
        return jnp.square(hidden @ w["down"]).mean()

    value, grads = jax.value_and_grad(loss)(state)
    return jax.tree.map(lambda w, g: w - 0.1 * g, state, grads), value


def test_a_plan_obeys_and_computes_the_same():
    state, batch = mlp_state(), mlp_batch()
    plan = sw.plan(pinned_step, state, batch, mesh=MESH)
    moved = pinned_sides(plan)
    assert moved, "batch and weights come whole or cut otherwise, so a pin must move something"
    assert all(after in [((), ("t",)), (("d",), ("t",))] for _, after in moved)
    assert_close(plan.compile()(state, batch), jax.jit(mlp_step)(state, batch))


def test_a_pin_beats_what_the_axis_would_cut():
    """The product is cut by its rows for nothing; pinned by columns it is moved there, and back for its result."""
    x, w = jax.ShapeDtypeStruct((64, 32), jnp.float32), jax.ShapeDtypeStruct((32, 16), jnp.float32)
    rows = {"x": P("d"), "w": P(), "out": P("d")}
    free = sw.plan(lambda x, w: x @ w, x, w, cluster="cpu:8", mesh={"d": 8}, pins=rows)
    assert free.estimate.collectives == ()
    pinned = sw.plan(lambda x, w: sw.pin(x @ w, P(None, "d")), x, w, cluster="cpu:8", mesh={"d": 8}, pins=rows)
    assert pinned.outputs == free.outputs == P("d", None)
    assert {c.kind for c in pinned.estimate.collectives} == {"all_to_all"}


def test_in_a_loop_of_a_plan():
    def step(w, x):
        def layer(x, w):
            return sw.pin(jnp.tanh(x @ w), P("d", None)), None

        return jax.grad(lambda w: jnp.square(jax.lax.scan(jax.checkpoint(layer), x, w)[0]).mean())(w)

    rng = np.random.default_rng(0)
    w, x = (jnp.asarray(rng.normal(size=s) / 6, jnp.float32) for s in [(3, 32, 32), (16, 32)])
    plan = sw.plan(step, w, x, mesh={"d": 8}, pins={"x": P()})
    assert any(after == (("d",), ()) for _, after in pinned_sides(plan)) or "cut=" in plan.program()
    assert_close(plan.compile()(w, x), jax.jit(step)(w, x))


def test_of_a_constant():
    def step(x):
        return x + sw.pin(jnp.zeros((16, 8)) + 1.5, P(None, "d")) + sw.pin(jnp.arange(16.0)[:, None], P("d"))

    x = jnp.ones((16, 8))
    assert_close(sw.plan(step, x, mesh={"d": 8}).compile()(x), step(x))


def test_a_free_dim_stays_as_it_lies_and_gives_way():
    x = jax.ShapeDtypeStruct((16, 16), jnp.float32)
    keep = sw.plan(
        lambda x: sw.pin(x, P(P.UNCONSTRAINED, None)) * 2, x, cluster="cpu:8", mesh={"d": 8}, pins={"x": P("d")}
    )
    assert pinned_sides(keep) == []
    give = sw.plan(
        lambda x: sw.pin(x, P(P.UNCONSTRAINED, "d")) * 2, x, cluster="cpu:8", mesh={"d": 8}, pins={"x": P("d")}
    )
    assert pinned_sides(give)[-1][1] == ((), ("d",))


def test_a_dim_that_does_not_divide_is_padded_inside():
    """jax-ml/jax#26946: a 17x16 array pinned to P(d, -) came back replicated, with no message."""
    x = jnp.arange(17 * 16, dtype=jnp.float32).reshape(17, 16)
    plan = sw.plan(lambda x: sw.pin(x + 1, P("d", None)) * 2, x, mesh={"d": 8})
    after = [op.outputs[0].shape for op, _ in walk(plan.traced.device.block) if isinstance(op, (Move, Compute))]
    assert (3, 16) in after, "24 rows over 8 devices"
    assert_close(plan.compile()(x), (x + 1) * 2)


def test_a_pending_sum_is_resolved_where_it_is_pinned():
    x, w = jax.ShapeDtypeStruct((16, 64), jnp.float32), jax.ShapeDtypeStruct((64, 16), jnp.float32)
    plan = sw.plan(
        lambda x, w: sw.pin(x @ w, P("d", None)).sum(),
        x,
        w,
        cluster="cpu:8",
        mesh={"d": 8},
        pins={"x": P(None, "d"), "w": P("d")},
    )
    kinds = [c.kind for c in plan.estimate.collectives]
    assert kinds == ["reduce_scatter", "all_reduce"]


def test_prove_takes_a_step_with_pins():
    state, batch = shapes(mlp_state()), jax.ShapeDtypeStruct((8, 64), jnp.float32)
    plan = sw.plan(pinned_step, state, batch, mesh=MESH)
    cert = sw.prove(plan, pinned_step, state, batch, steps=1)
    assert cert.ok and cert.max_relative_error < 1e-9


# jax.lax.with_sharding_constraint


def test_with_sharding_constraint_is_read_as_a_pin_and_fixes_the_mesh():
    mesh = grid(rows=4, columns=2)

    def step(x):
        return jax.lax.with_sharding_constraint(x + 1, NamedSharding(mesh, P("columns", "rows"))) * 2

    x = jnp.arange(16 * 8, dtype=jnp.float32).reshape(16, 8)
    plan = sw.plan(step, x)
    assert plan.mesh == {"rows": 4, "columns": 2}
    shapes = [op.outputs[0].shape for op, _ in walk(plan.traced.device.block)]
    assert (8, 2) in shapes
    assert_close(plan.compile()(x), (x + 1) * 2)


def test_with_sharding_constraint_may_leave_dims_free():
    mesh = grid(d=8)

    def step(x):
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(P.UNCONSTRAINED, None))) * 2

    plan = sw.plan(step, jnp.ones((16, 16)), pins={"x": P("d")}, mesh=mesh)
    assert pinned_sides(plan) == []


def test_a_bare_spec_under_an_ambient_mesh():
    mesh = grid(d=2, t=4)

    def step(x):
        return jax.lax.with_sharding_constraint(x, P("t", "d")) * 2

    x = jnp.arange(64.0).reshape(8, 8)
    with jax.set_mesh(mesh):
        run = sw.jit(step)
        assert_close(run(x), 2 * x)
    assert run.plan.mesh == {"d": 2, "t": 4}
    with jax.set_mesh(grid(other=8)):  # compiled for one mesh, under another
        assert_close(
            sw.plan(mlp_step, mlp_state(), mlp_batch(), mesh={"d": 8}).compile()(mlp_state(), mlp_batch()),
            jax.jit(mlp_step)(mlp_state(), mlp_batch()),
        )


def test_meshes_with_explicit_axes_are_taken_as_auto():
    mesh = jax.make_mesh((2, 4), ("d", "t"), axis_types=(AxisType.Explicit,) * 2)
    state = {"up": jax.device_put(mlp_state()["up"], NamedSharding(mesh, P(None, "t"))), "down": mlp_state()["down"]}
    step = sw.jit(mlp_step)
    out, _ = step(state, mlp_batch())
    assert step.plan.mesh == {"d": 2, "t": 4}
    assert set(step.compiled.mesh.axis_types) == {AxisType.Auto}
    out, loss = step(out, mlp_batch())
    expected = jax.jit(mlp_step)(jax.jit(mlp_step)(mlp_state(), mlp_batch())[0], mlp_batch())
    assert_close((out, loss), expected)


def test_two_programs_that_differ_in_a_pin_alone_differ():
    x = jax.ShapeDtypeStruct((16, 16), jnp.float32)
    mesh = grid(d=8)
    plans = [sw.plan(lambda x, s=s: sw.pin(x, s), x, cluster="cpu:8", mesh={"d": 8}) for s in (P("d"), P(None, "d"))]
    assert len({p.record.fingerprint for p in plans}) == 2
    plans = [
        sw.plan(lambda x, s=s: jax.lax.with_sharding_constraint(x, NamedSharding(mesh, s)), x)
        for s in (P("d"), P(None, "d"))
    ]
    assert len({p.record.fingerprint for p in plans}) == 2


# Pins on leaves


def test_a_leaf_may_be_pinned_finer_than_the_units_of_its_class():
    """4 heads of 16 over 8 devices: between steps a device holds half a head, inside the step no head is cut."""

    def step(w, x):
        def loss(w):
            heads = jnp.einsum("bd,dhk->bhk", x, w.reshape(32, 4, 16))
            return jnp.square(jnp.tanh(heads)).sum(-1).mean()

        value, grad = jax.value_and_grad(loss)(w)
        return w - grad, value

    rng = np.random.default_rng(0)
    w, x = (jnp.asarray(rng.normal(size=s) / 6, jnp.float32) for s in [(32, 64), (16, 32)])
    expected = jax.jit(step)(w, x)
    for mesh, spec in [({"d": 8}, P(None, "d")), ({"d": 4, "t": 2}, P(None, ("d", "t"))), ({"d": 8}, P("d", None))]:
        plan = sw.plan(step, w, x, mesh=mesh, pins={"w": spec})
        assert plan.inputs[0] == plan.outputs[0] == spec
        out = plan.compile()(w, x)
        assert {s.data.size for s in out[0].addressable_shards} == {32 * 64 // 8}
        assert_close(out, expected)


def test_a_result_may_be_pinned():
    x = jnp.arange(64.0 * 4).reshape(64, 4)
    plan = sw.plan(
        lambda x: (x.reshape(4, 16, 4).sum(1), x * 2), x, mesh={"d": 8}, pins={"x": P("d"), "out[1]": P("d")}
    )
    assert plan.outputs[1] == P("d", None)
    assert_close(plan.compile()(x), (x.reshape(4, 16, 4).sum(1), x * 2))


def test_a_pin_on_a_result_that_is_carried_holds_for_its_argument():
    plan = sw.plan(mlp_step, shapes(mlp_state()), shapes(mlp_batch()), mesh=MESH, pins={"out[0]['up']": P("d", "t")})
    assert plan.inputs[0]["up"] == plan.outputs[0]["up"] == P("d", "t")


def test_free_dims_of_a_pin_are_the_planners():
    pins = {"state['up']": P(P.UNCONSTRAINED, "t"), "state['down']": P(P.UNCONSTRAINED, P.UNCONSTRAINED)}
    plan = sw.plan(mlp_step, shapes(mlp_state()), shapes(mlp_batch()), mesh=MESH, pins=pins, memory="60kB")
    assert plan.inputs[0]["up"][1] == "t"
    assert plan.estimate.memory.peak_bytes <= 60_000


def test_pins_may_be_texts_as_on_the_command_line():
    plan = sw.plan(
        mlp_step, shapes(mlp_state()), shapes(mlp_batch()), mesh=MESH, pins={"state['up']": "P(None, ('d', 't'))"}
    )
    assert plan.inputs[0]["up"] == P(None, ("d", "t"))
