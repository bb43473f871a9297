"""Which leaves are parameters and which optimizer state, told from dependence alone."""

import jax
import jax.numpy as jnp
import optax
import pytest

from shardwright.program.capture import capture
from shardwright.program.ir import Role

_PARAMS = {"first": (4, 6), "last": (6, 3)}


def _shapes(shapes):
    return {name: jax.ShapeDtypeStruct(dims, jnp.float32) for name, dims in shapes.items()}


def _loss(params, x):
    hidden = jnp.tanh(x @ params["first"])
    return ((hidden @ params["last"]) ** 2).mean(), (hidden**2).mean()


def _roles(metrics, optimizer=None, dtype=jnp.float32):
    optimizer = optimizer or optax.adam(optax.cosine_decay_schedule(1e-2, 10))

    def step(state, x):
        params, slots, mask = state
        (loss, aux), grads = jax.value_and_grad(_loss, has_aux=True)(params, x)
        grads["first"] = jnp.where(mask[:, None], grads["first"], 0)
        updates, slots = optimizer.update(grads, slots, params)
        facts = {"loss": loss, "aux": aux, "updates": optax.tree.norm(updates), "mask": mask.mean()}
        facts |= {"rate": 1 / (1.0 + slots[-1].count), "norm": optax.tree.norm(grads)}
        return (optax.apply_updates(params, updates), slots, mask), {m: facts[m].astype(dtype) for m in metrics}

    params = _shapes(_PARAMS)
    state = params, jax.eval_shape(optimizer.init, params), jax.ShapeDtypeStruct((4,), bool)
    program = capture(step, (state, jax.ShapeDtypeStruct((8, 4), jnp.float32)), {}, names=["state", "x"])
    return {leaf.name: leaf.role for leaf in program.inputs}


@pytest.mark.parametrize(
    "metrics",
    [
        ["loss"],
        ["loss", "norm"],
        ["loss", "rate"],
        ["loss", "mask", "rate"],
        ["loss", "updates"],
        ["aux", "loss"],
        ["aux", "loss", "updates", "rate", "mask", "norm"],
        [],
    ],
)
def test_parameters_whatever_is_reported(metrics):
    roles = _roles(metrics)
    assert {name for name, role in roles.items() if role is Role.PARAMETER} == {"state[0]['first']", "state[0]['last']"}
    slots = [role for name, role in roles.items() if name.startswith("state[1]") and ".count" not in name]
    assert len(slots) == 4 and set(slots) == {Role.OPTIMIZER}
    assert roles["state[2]"] is Role.OPTIMIZER and roles["x"] is Role.BATCH


def test_a_loss_of_low_precision():
    assert _roles(["loss"], dtype=jnp.bfloat16)["state[0]['last']"] is Role.PARAMETER


@pytest.mark.parametrize("loop", ["scan", "cond", "fori"])
def test_several_updates_in_one_step(loop):
    """Losses after the first read slots too, and a branch that skips the update passes everything through."""
    optimizer = optax.adam(1e-2)

    def update(state, x):
        params, slots = state
        loss, grads = jax.value_and_grad(lambda p: _loss(p, x)[0])(params)
        updates, slots = optimizer.update(grads, slots, params)
        return (optax.apply_updates(params, updates), slots), loss

    def step(state, x):
        if loop == "scan":
            return jax.lax.scan(update, state, x)
        loss = _loss(state[0], x[0])[0]
        if loop == "cond":
            return jax.lax.cond(loss < 1e3, lambda s: update(s, x[0])[0], lambda s: s, state), loss
        return jax.lax.fori_loop(0, 2, lambda i, s: update(s, x[i])[0], state), loss

    params = _shapes(_PARAMS)
    state = params, jax.eval_shape(optimizer.init, params)
    program = capture(step, (state, jax.ShapeDtypeStruct((2, 8, 4), jnp.float32)), {}, names=["state", "x"])
    roles = {leaf.name: leaf.role for leaf in program.inputs}
    assert {name for name, role in roles.items() if role is Role.PARAMETER} == {"state[0]['first']", "state[0]['last']"}
    assert list(roles.values()).count(Role.OPTIMIZER) == 4


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("frozen", Role.PARAMETER),
        ("base_params", Role.PARAMETER),
        ("teacher", Role.PARAMETER),
        ("x", Role.BATCH),
        ("weights", Role.BATCH),  # of the rows of a batch, as like as not
        ("database", Role.BATCH),
    ],
)
def test_weights_beside_the_state_are_told_by_their_name(name, role):
    def step(state, other, x):
        loss, gradient = jax.value_and_grad(lambda p: ((x @ other + x @ p) ** 2).sum())(state)
        return state - gradient, loss

    w = jax.ShapeDtypeStruct((4, 4), jnp.float32)
    program = capture(step, (w, w, jax.ShapeDtypeStruct((8, 4), jnp.float32)), {}, names=["state", name, "rows"])
    assert [leaf.role for leaf in program.inputs] == [Role.PARAMETER, role, Role.BATCH]
