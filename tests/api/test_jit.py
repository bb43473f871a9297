"""`sw.jit`: plans at the first call, runs by the plan, never compiles twice."""

import functools
import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import shardwright as sw
from tests.api.steps import assert_close, compilations, grid, mlp_batch, mlp_state, mlp_step, put


def test_runs_like_the_step_and_compiles_once():
    step, state = sw.jit(mlp_step, donate_argnums=0), mlp_state()
    expected, expected_loss = jax.jit(mlp_step)(mlp_state(), mlp_batch())
    state, loss = step(state, mlp_batch())
    assert step.plan.record.num_devices == 8
    assert_close((state, loss), (expected, expected_loss))
    batches = [mlp_batch(seed) for seed in range(3)]
    with compilations() as count:
        for batch in batches:
            state, loss = step(state, batch)
        assert count() == 0
    for name, spec in step.plan.inputs[0].items():
        assert state[name].sharding.spec == spec


def test_the_step_is_planned_before_the_first_call_only():
    traces = []

    def step(x):
        traces.append(x.shape)
        return x * 2

    doubled = sw.jit(step)
    assert doubled.plan is None and doubled.compiled is None and not traces
    doubled(jnp.ones((16, 4)))
    count = len(traces)
    assert count >= 1 and doubled.plan is not None
    doubled(jnp.zeros((16, 4)))
    assert len(traces) == count


def test_says_what_it_plans(capsys):
    step = sw.jit(mlp_step)
    step(mlp_state(), mlp_batch())
    first = capsys.readouterr().err
    assert "planning mlp_step" in first and "cpu:8" in first
    step(mlp_state(), mlp_batch(seed=5))
    assert capsys.readouterr().err == ""
    sw.jit(mlp_step, verbose=False)(mlp_state(), mlp_batch())
    assert capsys.readouterr().err == ""


def test_a_new_batch_shape_plans_once_says_so_and_leaves_the_state(capsys):
    step = sw.jit(mlp_step, donate_argnums=0, mesh={"d": 8}, pins={"state['up']": P(None, "d")})
    state, _ = step(mlp_state(), mlp_batch())
    before = jax.tree.map(lambda x: x.sharding.spec, state)
    capsys.readouterr()
    state, _ = step(state, mlp_batch(size=16))
    said = capsys.readouterr().err
    assert "batch is float32[16, 64] (it was float32[32, 64])" in said
    assert jax.tree.map(lambda x: x.sharding.spec, state) == before
    assert before["up"] == P(None, "d")
    with compilations() as count:
        state, _ = step(state, mlp_batch())
        state, _ = step(state, mlp_batch(seed=7, size=16))
        assert count() <= 2, "making the two batches, at the most"
    assert capsys.readouterr().err == ""


def test_donated_arguments_are_gone_and_others_stay():
    state, batch = mlp_state(), mlp_batch()
    sw.jit(mlp_step, donate_argnums=0)(state, batch)
    assert state["up"].is_deleted() and state["down"].is_deleted()
    assert not batch.is_deleted()
    state = mlp_state()
    sw.jit(mlp_step)(state, batch)
    assert not state["up"].is_deleted()


def test_donation_by_name_reaches_a_keyword_argument():
    state = mlp_state()
    step = sw.jit(mlp_step, donate_argnames="state")
    step(batch=mlp_batch(), state=state)
    assert state["up"].is_deleted()
    assert {leaf.name for leaf in step.plan.record.program.inputs if leaf.donated} == {"state['up']", "state['down']"}


@pytest.mark.parametrize(
    ("options", "args", "kwargs"),
    [
        ({"static_argnums": 1}, (3, True), {}),
        ({"static_argnums": (1,)}, (3,), {"double": True}),
        ({"static_argnums": -1}, (3, True), {}),
        ({"static_argnames": "double"}, (3, True), {}),
        ({"static_argnames": ["double"]}, (3,), {"double": True}),
    ],
)
def test_static_arguments(options, args, kwargs):
    def step(x, double):
        return jnp.sum(x * 2 if double else x)  # a traced `double` would raise

    run = sw.jit(step, **options)
    x = jnp.arange(16.0)
    assert float(run(x, *args[1:], **kwargs)) == 240
    other = {"double": False} if kwargs else {}
    assert float(run(x, *([False] if not kwargs else []), **other)) == 120


def test_a_static_argument_is_part_of_the_program():
    run = sw.jit(lambda x, power: x**power, static_argnums=1)
    x = jnp.arange(8.0)
    assert_close(run(x, 2), x**2)
    assert_close(run(x, 3), x**3)
    assert_close(run(x, 2), x**2)
    # -1 and -2 have one hash
    assert_close(run(x + 1, -1), 1 / (x + 1))
    assert_close(run(x + 1, -2), (x + 1) ** -2.0)


def test_python_numbers_are_arrays():
    run = sw.jit(lambda x, scale: x * scale)
    x = jnp.arange(8, dtype=jnp.bfloat16)
    with compilations() as count:
        first = run(x, 2.0)
        planned = count()
        assert run(x, 3.0).dtype == jnp.bfloat16 == first.dtype
        assert count() == planned
    # a strong float32 promotes, so it is another program
    assert run(x, jnp.float32(2)).dtype == jnp.float32


def test_keyword_arguments_defaults_and_star_arguments():
    def step(x, *more, scale=2.0, **named):
        return x * scale + sum(more) + named["bias"]

    x = jnp.arange(8.0)
    run = sw.jit(step)
    assert_close(run(x, x, x, bias=x), step(x, x, x, bias=x))
    names = [leaf.name for leaf in run.plan.record.program.inputs]
    assert names == ["x", "more0", "more1", "bias"]


def test_arguments_may_hold_none_and_results_too():
    def step(state, batch):
        return {"w": state["w"] + batch.sum(), "unused": None}, None

    state, nothing = sw.jit(step)({"w": jnp.ones((8, 8)), "unused": None}, jnp.ones(8))
    assert nothing is None and state["unused"] is None
    assert float(state["w"][0, 0]) == 9


def test_as_a_decorator():
    @sw.jit
    def double(x):
        """Twice."""
        return x * 2

    @functools.partial(sw.jit, donate_argnums=0)
    def triple(x):
        return x * 3

    assert double.__name__ == "double" and double.__doc__ == "Twice."
    assert_close((double(jnp.ones(8)), triple(jnp.ones(8))), (jnp.full(8, 2.0), jnp.full(8, 3.0)))


def test_inside_another_transformation_it_is_the_step_itself():
    run = sw.jit(lambda x: jnp.square(x).sum())
    assert_close(jax.grad(run)(jnp.arange(4.0)), 2 * jnp.arange(4.0))
    assert run.plan is None
    assert sw.plan(run, jnp.ones((16, 16)), cluster="cpu:8").record.num_devices == 8


def test_numpy_inputs_are_taken_and_never_written():
    state = jax.tree.map(np.asarray, mlp_state())
    kept = jax.tree.map(np.copy, state)
    step = sw.jit(mlp_step, donate_argnums=0)
    result, _ = step(state, np.asarray(mlp_batch(), np.float64))
    assert_close(result, jax.jit(mlp_step)(kept, mlp_batch())[0])
    assert_close(state, kept, 0)


def test_one_array_in_two_donated_places():
    def step(state):
        return {"w": state["w"] + 1, "average": state["average"] * 0.5}

    w = jnp.ones((16, 16))
    step = sw.jit(step, donate_argnums=0)
    out = step(step({"w": w, "average": w}))
    assert_close(out, {"w": jnp.full((16, 16), 3.0), "average": jnp.full((16, 16), 0.25)})


def test_inputs_that_lie_sharded_stay_where_they_are():
    mesh = grid(rows=4, columns=2)
    state = {"up": put(mlp_state()["up"], mesh, P("columns", "rows")), "down": put(mlp_state()["down"], mesh, P())}
    batch = put(mlp_batch(), mesh, P("rows", None))
    step = sw.jit(mlp_step)
    out, _ = step(state, batch)
    assert step.plan.mesh == {"rows": 4, "columns": 2}
    assert step.plan.inputs[0]["up"] == P("columns", "rows")
    assert step.plan.inputs[1] == P("rows", None)
    assert out["up"].sharding.spec == P("columns", "rows")
    assert_close(out, jax.jit(mlp_step)(mlp_state(), mlp_batch())[0])


def test_s13_a_pinned_table_leaves_its_moments_free():
    """jax-ml/jax#25346: moments inherited the pin of their weight, and open outputs compiled the second step again."""
    rows, width = 1024, 64

    def step(state, ids):
        table, mean, square = state

        def loss(table):
            return jnp.square(table[ids]).sum()

        value, grad = jax.value_and_grad(loss)(table)
        mean, square = 0.9 * mean + 0.1 * grad, 0.99 * square + 0.01 * grad**2
        return (table - 1e-2 * mean / (jnp.sqrt(square) + 1e-8), mean, square), value

    state = (jnp.ones((rows, width)), jnp.zeros((rows, width)), jnp.zeros((rows, width)))
    ids = jnp.arange(64, dtype=jnp.int32) * 3
    run = sw.jit(step, donate_argnums=0, mesh={"d": 8}, pins={"state[0]": P(None, None)}, memory="500kB")
    expected = jax.jit(step)(*jax.tree.map(jnp.copy, (state, ids)))
    out, loss = run(state, ids)
    assert_close((out, loss), expected)
    specs = run.plan.inputs[0]
    assert specs[0] == P(None, None)
    assert "d" in specs[1] and "d" in specs[2]
    with compilations() as count:
        out, _ = run(out, ids)
        assert count() == 0
    assert [x.sharding.spec for x in out] == list(specs)
    table = rows * width * 4
    by_role = run.plan.estimate.memory.by_role
    assert by_role["parameter"] + by_role["optimizer"] == table + 2 * table // 8
    told = run.compiled.compiled.memory_analysis().argument_size_in_bytes
    assert told == run.plan.estimate.memory.argument_bytes


def test_abstract_arguments_are_refused():
    run = sw.jit(lambda x: x * 2, verbose=False)
    for _ in range(2):
        with pytest.raises(ValueError, match="x is abstract"):
            run(jax.ShapeDtypeStruct((8,), jnp.float32))
        run(jnp.ones(8))


def test_a_plan_keeps_no_array_alive():
    step = sw.jit(mlp_step, verbose=False)
    x = mlp_batch()
    held = weakref.ref(x)
    step(mlp_state(), x)
    plan = sw.plan(mlp_step, mlp_state(), x)
    fn = plan.compile()
    fn(mlp_state(), x)
    del x
    gc.collect()
    assert held() is None
    assert not any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(plan.traced.call.args))


def test_as_a_method():
    @jax.tree_util.register_static
    class Scale:
        @functools.partial(sw.jit, verbose=False)
        def apply(self, x):
            return x * 2

    assert_close(Scale().apply(jnp.arange(8.0)), jnp.arange(8.0) * 2)


def test_results_keep_their_weak_dtypes():
    rate, scaled, five = sw.jit(lambda rate, x: (rate * 0.9, x * rate, 5.0), verbose=False)(0.1, jnp.ones(8))
    assert rate.weak_type and five.weak_type and not scaled.weak_type
    assert (jnp.ones(3, jnp.bfloat16) * five).dtype == jnp.bfloat16


@pytest.mark.parametrize("kind", [jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit])
@pytest.mark.parametrize("count", [4, 8])
def test_a_closed_over_array_may_lie_on_other_devices(kind, count):
    mesh = jax.make_mesh((count,), ("q",), axis_types=(kind,), devices=jax.devices()[:count])
    table = jax.random.normal(jax.random.key(0), (64, 8))
    spread = jax.device_put(table, jax.NamedSharding(mesh, P("q")))
    x = jnp.arange(128.0).reshape(16, 8) / 128
    assert_close(sw.jit(lambda x: spread @ x.T, cluster="cpu:8", verbose=False)(x), table @ x.T)


# What no plan can run


def _new_ref(x):
    ref = jax.new_ref(x)
    ref[...] = ref[...] * 2
    return ref[...]


def _ref_in_a_loop(x):
    ref = jax.new_ref(jnp.zeros(8))
    jax.lax.fori_loop(0, 8, lambda i, _: ref.__setitem__(..., ref[...] + x[i]), None)
    return ref[...]


@pytest.mark.parametrize("step", [_new_ref, _ref_in_a_loop])
def test_mutable_arrays_are_refused_with_their_line(step):
    with pytest.raises(ValueError, match=r"test_jit.py:\d+.*the step reads or writes a mutable array"):
        sw.plan(step, jnp.ones((8, 8)), cluster="cpu:8")


def test_a_closed_over_mutable_array_is_refused():
    ref = jax.new_ref(jnp.zeros(8))
    with pytest.raises(ValueError, match="mutable array"):
        sw.plan(lambda x: (ref.__setitem__(..., x), x * 2)[1], jnp.ones(8), cluster="cpu:8")


def test_a_manual_region_is_refused_with_its_line():
    mesh = grid(q=8)
    total = jax.shard_map(lambda x: jax.lax.psum(x.sum(), "q"), mesh=mesh, in_specs=P("q"), out_specs=P())
    with pytest.raises(ValueError, match=r"test_jit.py:\d+.*manual jax.shard_map region"):
        sw.plan(lambda x: total(x), jnp.ones(8), cluster="cpu:8")


def test_a_step_without_arrays_in_its_result_proves_nothing():
    plan = sw.plan(lambda x: (), jnp.ones(8), cluster="cpu:8")
    with pytest.raises(ValueError, match="returns no arrays, so there is nothing to prove"):
        sw.prove(plan, lambda x: (), jnp.ones(8))
