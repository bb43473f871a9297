"""Proofs of right plans: data parallel, sharded state, tensor parallel, two axes, uneven sizes, every kind of leaf."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from shardwright.partition.device import COLLECTIVES, Move, walk
from shardwright.partition.lower import partition
from shardwright.plan.decision import AxisPlan, Decision
from shardwright.run.certificate import EQUAL, UNPROVEN
from shardwright.run.prove import prove_program
from tests.run import proof_steps
from tests.run.proof_steps import mesh_of, one_axis, shape, trace

pytestmark = pytest.mark.usefixtures("quick_compiles")


def _prove(traced, decision, steps=2, given=None, **more):
    kinds = {
        op.kind for op, _ in walk(partition(traced.program, traced.classes, decision).block) if isinstance(op, Move)
    }
    assert kinds & set(COLLECTIVES), "nothing is exchanged: the plan is none"
    given = given or traced.made_up
    return prove_program(traced.program, traced.classes, decision, mesh_of(decision), given, steps, **more)


def _assert_same(cert, devices, own=1e-5):
    assert cert.ok, str(cert)
    assert cert.devices == devices and not cert.unproven and not cert.changes
    assert cert.max_relative_error <= 1e-11 and cert.own_dtype_max_relative_error <= own


def _mlp_plans(m):
    batch, width, hidden = m.dim("x", 0), m.dim("x", 1), m.dim("state[0]['w1']", 1)
    two = Decision((AxisPlan("d", 2, (batch,), (width,)), AxisPlan("t", 4, (hidden,))))
    return {
        "data parallel": one_axis(2, (batch,)),
        "data parallel on 8": one_axis(8, (batch,)),
        "sharded state": one_axis(4, (batch,), (width,)),
        "tensor parallel": one_axis(8, (hidden,)),
        "contracted first": one_axis(4, (width,)),
        "two axes": two,
        "batch over both axes": Decision((AxisPlan("d", 2, (batch,)), AxisPlan("t", 4, (batch,), (hidden,)))),
    }


_QUICK = ("data parallel", "sharded state", "tensor parallel", "two axes")
_SLOW = ("data parallel on 8", "contracted first", "batch over both axes")


@pytest.mark.parametrize("name", [*_QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in _SLOW)])
def test_mlp(name):
    m = proof_steps.mlp()
    decision = _mlp_plans(m)[name]
    _assert_same(_prove(m, decision, reference=m.flat_step), int(np.prod(list(decision.mesh.values()))))


@pytest.mark.parametrize("batch", [7, 8])
def test_uneven_batch_over_three_devices(batch):
    m = proof_steps.mlp(batch=batch)
    _assert_same(_prove(m, one_axis(3, (m.dim("x", 0),), (m.dim("x", 1),))), 3)


def test_uneven_hidden_over_three_devices():
    m = proof_steps.mlp(hidden=64)
    _assert_same(_prove(m, one_axis(3, (m.dim("state[0]['w1']", 1),))), 3)


def _transformer_plan(t, name):
    batch, width, vocabulary = t.dim("tokens", 0), t.dim("state[0]['emb']", 1), t.dim("state[0]['emb']", 0)
    heads, hidden = t.dim("state[0]['layers']['q']", 2), t.dim("state[0]['layers']['w1']", 2)
    return {
        "data parallel": lambda: one_axis(4, (batch,)),
        "sharded state": lambda: one_axis(8, (batch,), (width,)),
        "tensor parallel": lambda: one_axis(4, (heads, hidden, vocabulary)),
        "two axes": lambda: Decision(
            (AxisPlan("d", 2, (batch,), (width,)), AxisPlan("t", 4, (heads, hidden, vocabulary)))
        ),
    }[name]()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("data parallel", marks=pytest.mark.slow),
        "sharded state",
        pytest.param("tensor parallel", marks=pytest.mark.slow),
        pytest.param("two axes", marks=pytest.mark.slow),
    ],
)
def test_transformer_with_adamw(name):
    t = proof_steps.transformer()
    decision = _transformer_plan(t, name)
    _assert_same(_prove(t, decision), int(np.prod(list(decision.mesh.values()))))


@pytest.mark.parametrize("axes", [pytest.param((2,), marks=pytest.mark.slow), (2, 4)])
def test_bfloat16_with_dropout_and_float32_softmax(axes):
    b = proof_steps.bfloat16_dropout()
    batch, hidden = b.dim("x", 0), b.dim("state[0]['w1']", 1)
    plans = [AxisPlan("d", axes[0], (batch,)), AxisPlan("t", axes[-1], (hidden,))][: len(axes)]
    cert = _prove(b, Decision(tuple(plans)), reference=b.flat_step)
    _assert_same(cert, int(np.prod(axes)), own=0.05)
    assert cert.own_dtype_max_relative_error > 1e-6, "bfloat16 rounds, and the proof in it must show it"


def test_lstm_by_scan():
    m = proof_steps.lstm()
    _assert_same(_prove(m, one_axis(4, (m.dim("x", 0),))), 4)


# What the certificate says


def _frozen_step(decay):
    def loss(params, x, y):
        return ((x @ params["w"] - y) ** 2).mean() + 0 * params["unused"].sum()

    optimizer = optax.adamw(0.1, weight_decay=decay)

    def step(state, x, y):
        params, slots = state
        value, grads = jax.value_and_grad(loss)(params, x, y)
        updates, slots = optimizer.update(grads, slots, params)
        return (optax.apply_updates(params, updates), slots), value

    params = {"w": shape(6, 2), "unused": shape(3)}
    args = ((params, jax.eval_shape(optimizer.init, params)), shape(8, 6), shape(8, 2))
    return trace(step, args, ["state", "x", "y"])


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_zero_gradient_is_unproven_even_where_weights_decay(decay):
    f = _frozen_step(decay)
    cert = _prove(f, one_axis(2, (f.dim("x", 0),)))
    assert cert.ok
    assert {n for n in cert.unproven if "unused" in n} == set(cert.unproven) and "state[0]['unused']" in cert.unproven
    rows = {row.name: row for row in cert.rows}
    assert rows["state[0]['unused']"].status == UNPROVEN and rows["state[0]['w']"].status == EQUAL
    assert "unproven" in str(cert)


@pytest.mark.parametrize("method", ["lion", "rprop", "sign_sgd"])
def test_sign_like_methods(method):
    """A shift of all logits alike has a gradient of zero: rounding alone decides its sign."""

    def loss(params, x, y):
        logits = jnp.tanh(x @ params["w"]) @ params["v"]
        return -(jax.nn.log_softmax(logits + params["shift"]) * jax.nn.one_hot(y, 4)).sum(-1).mean()

    optimizer = getattr(optax, method)(1e-3)

    def step(state, x, y):
        params, slots = state
        value, grads = jax.value_and_grad(loss)(params, x, y)
        updates, slots = optimizer.update(grads, slots, params)
        return (optax.apply_updates(params, updates), slots), value

    params = {"w": shape(16, 8), "v": shape(8, 4), "shift": shape(1)}
    args = ((params, jax.eval_shape(optimizer.init, params)), shape(12, 16), shape(12, dtype=jnp.int32))
    s = trace(step, args, ["state", "x", "y"])
    cert = _prove(s, one_axis(4, (s.dim("x", 0),)), steps=3, reference=s.flat_step)
    gradients = [row for row in cert.rows if row.role == "gradient"]
    assert cert.ok, str(cert)
    assert all("shift" in name for name in cert.unproven)
    assert len(gradients) >= 3 and "before 'sign'" in str(cert)
    assert any("one device's signs" in change for change in cert.changes)


def test_adam_on_a_gradient_that_is_zero_but_for_rounding():
    """A bias on attention's keys shifts every score alike. Adam divides its gradient, all rounding, by itself."""

    def loss(params, x):
        k = x @ params["k"] + params["bias"]
        return (jax.nn.softmax(jnp.einsum("bsd,btd->bst", x @ params["q"], k)) @ x**3).mean()

    optimizer = optax.adam(1e-3)

    def step(state, x):
        params, slots = state
        value, grads = jax.value_and_grad(loss)(params, x)
        updates, slots = optimizer.update(grads, slots, params)
        return (optax.apply_updates(params, updates), slots), value

    params = {"q": shape(8, 8), "k": shape(8, 8), "bias": shape(8)}
    s = trace(step, ((params, jax.eval_shape(optimizer.init, params)), shape(8, 5, 8)), ["state", "x"])
    slots = [leaf.name.startswith("state[1]") or "bias" in leaf.name for leaf in s.program.inputs]
    given = [
        np.zeros(leaf.aval.shape, leaf.aval.dtype) if zero else None
        for leaf, zero in zip(s.program.inputs, slots, strict=True)
    ]
    cert = _prove(s, one_axis(4, (s.dim("x", 0),)), given=given, steps=3)
    assert cert.ok, str(cert)
    own = {row.name: row.own_error for row in cert.rows}
    assert own["state[0]['bias']"] > 1e-3, "in float32 the rounding is as large as the update, and the row says so"


def test_given_arguments_are_used_and_the_batch_changes_each_step():
    m = proof_steps.mlp(batch=8)
    values = [np.full(leaf.aval.shape, 0.01, leaf.aval.dtype) for leaf in m.program.inputs]
    decision = one_axis(4, (m.dim("x", 0),))
    cert = _prove(m, decision, given=values)
    assert cert.ok and cert.steps == 2
    values[-2] = np.zeros((5, 5))
    with pytest.raises(ValueError, match=r"x has shape \[8, 64\] in the step, and \[5, 5\]"):
        _prove(m, decision, given=values)
    with pytest.raises(ValueError, match="argument leaves"):
        _prove(m, decision, given=values[:-1])
    with pytest.raises(ValueError, match="at least one step"):
        _prove(m, decision, steps=0)


def test_not_a_number_proves_nothing():
    m = proof_steps.mlp()
    given = m.made_up
    given[0] = np.full(m.program.inputs[0].aval.shape, np.nan, np.float32)
    cert = _prove(m, one_axis(2, (m.dim("x", 0),)), given=given)
    assert not cert.ok and cert.max_relative_error == np.inf and "not finite" in str(cert)


def test_capture_that_is_not_the_step_is_found():
    m = proof_steps.mlp()

    def other_step(*flat):
        *state, loss = m.flat_step(*flat)
        return [*state, loss * 1.01]

    cert = _prove(m, one_axis(2, (m.dim("x", 0),)), reference=other_step)
    assert not cert.ok and not cert.captured and "the captured program is not the step: out[1]" in str(cert)


def test_integers_booleans_and_keys_exactly():
    def step(state, x):
        key, count, w = state
        key, noise = jax.random.split(key)
        grad = jax.grad(lambda w: ((x @ w - jax.random.normal(noise, (x.shape[0], 3))) ** 2).mean())(w)
        return (key, count + (x > 0.5).sum(), w - 0.1 * grad), (jnp.argmax(x @ w, 1), (x > 0).all())

    key = jax.eval_shape(lambda: jax.random.key(0))
    s = trace(step, ((key, shape(dtype=jnp.int32), shape(4, 3)), shape(8, 4)), ["state", "x"])
    cert = _prove(s, one_axis(4, (s.dim("x", 0),)))
    assert cert.ok and [row.bitwise for row in cert.rows if row.role != "parameter"].count(True) >= 4


def test_certificate_is_data():
    m = proof_steps.mlp()
    cert = _prove(m, one_axis(2, (m.dim("x", 0),)))
    read = json.loads(json.dumps(cert.as_dict()))
    assert read["ok"] is True and read["mesh"] == {"x": 2} and len(read["rows"]) == len(m.program.outputs)
    assert read["rows"][0]["name"] == "state[0]['b1']"
    assert dataclasses.replace(cert, captured=False).ok is False
