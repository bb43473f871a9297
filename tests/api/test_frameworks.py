"""Steps of equinox, flax (linen and nnx) and haiku, as their users write them."""

import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.training import train_state
from jax.sharding import PartitionSpec as P

import shardwright as sw
from tests.api.steps import assert_close, compilations

BATCH, WIDTH, CLASSES = 16, 32, 8
KEY = jax.random.key(0)


def data(size=BATCH):
    rng = np.random.default_rng(0)
    return jnp.asarray(rng.normal(size=(size, WIDTH)), jnp.float32), jnp.asarray(rng.integers(CLASSES, size=size))


def cross_entropy(logits, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


# equinox


class Net(eqx.Module):
    first: eqx.nn.Linear
    dropout: eqx.nn.Dropout
    activation: object
    last: eqx.nn.Linear

    def __init__(self, key):
        a, b = jax.random.split(key)
        self.first, self.last = eqx.nn.Linear(WIDTH, 64, key=a), eqx.nn.Linear(64, CLASSES, key=b)
        self.dropout, self.activation = eqx.nn.Dropout(0.5), jax.nn.relu

    def __call__(self, x, key):
        return self.last(self.dropout(self.activation(self.first(x)), key=key))


def test_equinox_modules_are_arguments_and_results():
    optimizer = optax.adam(1e-2)

    def step(model, slots, x, y, key):
        def loss(model):
            return cross_entropy(jax.vmap(model)(x, jax.random.split(key, x.shape[0])), y)

        value, grads = eqx.filter_value_and_grad(loss)(model)
        updates, slots = optimizer.update(grads, slots, eqx.filter(model, eqx.is_array))
        return eqx.apply_updates(model, updates), slots, value

    model, (x, y) = Net(KEY), data()
    slots = optimizer.init(eqx.filter(model, eqx.is_array))
    expected = eqx.filter_jit(step)(model, slots, x, y, KEY)
    run = sw.jit(step, donate_argnums=(0, 1), mesh={"d": 8}, verbose=False)
    model, slots, value = run(model, slots, x, y, KEY)
    arrays = lambda tree: eqx.filter(tree, eqx.is_array)  # noqa: E731
    assert_close(arrays((model, slots, value)), arrays(expected))
    assert isinstance(model, Net) and model.activation is jax.nn.relu and model.dropout.p == 0.5
    roles = {leaf.name: leaf.role for leaf in run.plan.record.program.inputs}
    assert roles["model.first.weight"] == "parameter" and "optimizer" in roles.values()
    assert not any("dropout" in name or "activation" in name for name in roles)
    with compilations() as count:
        model, slots, value = run(model, slots, x, y, KEY)
        assert count() == 0
    with pytest.raises(ValueError, match="a leaf that is not an array, is not the one that was planned"):
        run.compiled(eqx.nn.inference_mode(model), slots, x, y, KEY)


# flax linen, haiku


def test_flax_train_state_counts_from_a_python_number():
    model, (x, y) = nn.Dense(CLASSES), data()
    create = lambda: train_state.TrainState.create(  # noqa: E731
        apply_fn=model.apply, params=model.init(KEY, x), tx=optax.sgd(0.1, momentum=0.9)
    )

    def step(state, x, y):
        value, grads = jax.value_and_grad(lambda p: cross_entropy(state.apply_fn(p, x), y))(state.params)
        return state.apply_gradients(grads=grads), value

    run, state, reference = sw.jit(step, donate_argnums=0, mesh={"d": 8}, verbose=False), create(), create()
    assert state.step == 0 and not isinstance(state.step, jax.Array)
    state, value = run(state, x, y)
    with compilations() as count:
        state, value = run(state, x, y)
        assert count() == 0, "the count is an array now, of the same weak type"
    for _ in range(2):
        reference, expected = jax.jit(step)(reference, x, y)
    assert_close((state.params, state.opt_state, value), (reference.params, reference.opt_state, expected))
    assert int(state.step) == 2


def test_haiku():
    net, (x, y) = hk.without_apply_rng(hk.transform(lambda x: hk.nets.MLP([64, CLASSES])(x))), data()

    def step(params, x, y):
        value, grads = jax.value_and_grad(lambda p: cross_entropy(net.apply(p, x), y))(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    params = net.init(KEY, x)
    expected = jax.jit(step)(params, x, y)
    run = sw.jit(step, mesh={"d": 8}, verbose=False)
    assert_close(run(params, x, y), expected)
    assert "params['mlp/~/linear_0']['w']" in {leaf.name for leaf in run.plan.record.program.inputs}


# flax nnx


class NnxNet(nnx.Module):
    def __init__(self, rngs):
        # no bias before the norm: its gradient would be noise, which Adam enlarges
        self.first, self.norm = nnx.Linear(WIDTH, 64, use_bias=False, rngs=rngs), nnx.BatchNorm(64, rngs=rngs)
        self.dropout, self.last = nnx.Dropout(0.5, rngs=rngs), nnx.Linear(64, CLASSES, rngs=rngs)
        self.depth = 2

    def __call__(self, x):
        return self.last(self.dropout(nnx.relu(self.norm(self.first(x)))))


ADAM = optax.adam(1e-2)  # one for all: it is static, and two are two


def create_nnx():
    model = NnxNet(nnx.Rngs(0))
    return model, nnx.Optimizer(model, ADAM, wrt=nnx.Param)


def nnx_step(model, optimizer, x, y):
    value, grads = nnx.value_and_grad(lambda m: cross_entropy(m(x), y))(model)
    optimizer.update(model, grads)
    return value


def test_nnx_objects_are_updated_in_place_as_by_nnx_jit():
    (model, optimizer), (other, other_optimizer), (x, y) = create_nnx(), create_nnx(), data()
    run, reference = sw.jit(nnx_step, donate_argnums=(0, 1), mesh={"d": 8}, verbose=False), nnx.jit(nnx_step)
    kernel = model.first.kernel
    values = [run(model, optimizer, x, y)]
    with compilations() as count:
        values.append(run(model, optimizer, x, y))
        assert count() == 0
    assert_close(values, [reference(other, other_optimizer, x, y) for _ in range(2)])
    arrays = lambda *objects: jax.tree.leaves(nnx.state(objects, nnx.Not(nnx.RngKey)))  # noqa: E731
    assert_close(arrays(model, optimizer), arrays(other, other_optimizer), 1e-4)
    assert model.first.kernel is kernel, "the user's own variables hold the new values"
    assert int(model.dropout.rngs.count[...]) == 2
    roles = {leaf.name: leaf.role for leaf in run.plan.record.program.inputs}
    assert roles["model['first']['kernel'].value"] == "parameter"
    assert roles["optimizer['opt_state'][0]['mu']['first']['kernel'].value"] == "optimizer"


def test_nnx_a_plan_compiled_proven_and_an_object_that_is_only_read():
    (model, _optimizer), (x, _y) = create_nnx(), data()
    model.eval()
    read = sw.plan(lambda model, x: model(x).sum(), model, x, mesh={"d": 8})
    assert [leaf.name for leaf in read.record.program.outputs] == ["out[0]"], "nothing changes, so nothing comes back"
    before = model(x).sum()
    assert_close(read.compile()(model, x), before)
    model.train()
    with pytest.raises(ValueError, match=r"static argument|not those that were planned"):
        read.compile()(model, x)


def test_nnx_objects_that_share_a_part():
    (model, _), (x, _) = create_nnx(), data()

    def step(model, first, x):
        first.kernel[...] = first.kernel[...] + 1.0
        return model.first.kernel[...].sum(), x.sum()

    before = model.first.kernel[...].sum()
    run = sw.jit(step, mesh={"d": 8}, verbose=False)
    assert_close(run(model, model.first, x)[0], before + WIDTH * 64)
    assert_close(model.first.kernel[...].sum(), before + WIDTH * 64)


def test_nnx_a_step_that_changes_the_structure_is_refused():
    (model, _), (x, _) = create_nnx(), data()

    def step(model, x):
        model.depth += 1
        return model(x).sum()

    with pytest.raises(ValueError, match="changes more than the arrays of an nnx object"):
        sw.jit(step, mesh={"d": 8}, verbose=False)(model, x)


def test_nnx_state_that_was_split_by_the_user_is_an_ordinary_pytree():
    (model, _), (x, _) = create_nnx(), data()
    graph, state = nnx.split(model)
    run = sw.jit(lambda state, x: nnx.merge(graph, state)(x).sum(), mesh={"d": 8}, verbose=False)
    model.train()
    run(state, x)
    assert [leaf.name for leaf in run.plan.record.program.outputs] == ["out"]


@pytest.mark.slow
def test_nnx_born_sharded_proven_saved_and_evaluated(tmp_path):
    (model, optimizer), (x, y) = create_nnx(), data()
    pins = {"model['first']['kernel'].value": P(None, "d")}
    plan = sw.plan(nnx_step, model, optimizer, x, y, mesh={"d": 8}, pins=pins, donate_argnums=(0, 1))
    born, born_optimizer = plan.init(create_nnx)
    kernel = born.first.kernel[...]
    assert kernel.sharding.spec == P(None, "d") and {s.data.shape for s in kernel.addressable_shards} == {(WIDTH, 8)}
    assert_close(kernel, model.first.kernel[...])
    assert_close(plan.compile()(born, born_optimizer, x, y), nnx.jit(nnx_step)(*create_nnx(), x, y))
    assert sw.prove(plan, nnx_step, model, optimizer, x, y, steps=1).ok
    plan.save(tmp_path / "plan.json")
    assert sw.load_plan(tmp_path / "plan.json", nnx_step, model, optimizer, x, y).record == plan.record
    read = sw.plan(lambda model, x: model(x).sum(), model, x, like=plan)
    assert jax.tree.leaves(read.inputs[0]["first"]["kernel"]) == [P(None, "d")]


# Functions that are made anew


def test_objects_made_anew_are_served_by_the_plan_if_the_program_is_the_same():
    (x, y), made = data(), []

    def create(rate=0.1, features=CLASSES):
        model = nnx.Linear(x.shape[1], features, rngs=nnx.Rngs(0))
        made.append(optax.sgd(rate, momentum=0.9))  # new functions at every call
        return model, nnx.Optimizer(model, made[-1], wrt=nnx.Param)

    def step(model, optimizer, x, y):
        value, grads = nnx.value_and_grad(lambda m: cross_entropy(m(x), y))(model)
        optimizer.update(model, grads)
        return value

    reference = create()
    expected = [step(*reference, x, y) for _ in range(2)]
    plan = sw.plan(step, *create(), x, y, mesh={"d": 8}, cluster="cpu:8")
    compiled, born = plan.compile(), plan.init(create)
    assert_close([compiled(*born, x, y) for _ in range(2)], expected)
    assert born[1].tx is made[-1], "the born optimizer keeps its own functions"
    assert_close(nnx.state(born[0]), nnx.state(reference[0]))
    run = sw.jit(step, mesh={"d": 8}, verbose=False, cache=False)
    fresh = create()
    with compilations() as count:
        run(*create(), x, y)
        assert count() > 0
        first = count()
        assert_close([run(*fresh, x, y) for _ in range(2)], expected)
        assert count() == first, "the same program is not compiled again"
    with pytest.raises(ValueError, match="nnx objects have another structure or hold other functions"):
        compiled(*create(rate=0.2), x, y)


def test_a_train_state_made_anew_is_served_by_the_plan():
    model, (x, y) = nn.Dense(CLASSES), data()
    create = lambda rate=0.1: train_state.TrainState.create(  # noqa: E731
        apply_fn=model.apply, params=model.init(KEY, x), tx=optax.sgd(rate, momentum=0.9)
    )

    def step(state, x, y):
        value, grads = jax.value_and_grad(lambda p: cross_entropy(state.apply_fn(p, x), y))(state.params)
        return state.apply_gradients(grads=grads), value

    expected, _ = jax.jit(step)(create(), x, y)
    plan = sw.plan(step, create(), x, y, mesh={"d": 8}, cluster="cpu:8")
    run, fresh = plan.compile(), create()
    state, _ = run(fresh, x, y)
    assert_close((state.params, state.opt_state), (expected.params, expected.opt_state))
    assert state.tx is fresh.tx, "what is returned keeps the functions that were given"
    with pytest.raises(ValueError, match="another structure, or hold other functions"):
        run(create(0.2), x, y)
