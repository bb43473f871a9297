"""Prints and callbacks of a step: once as on one device, or refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

import shardwright as sw

_W, _X = np.eye(64, dtype=np.float32), np.random.default_rng(0).random((16, 64), np.float32)


def _step(effect):
    def step(w, x):
        def loss(w):
            h = jnp.tanh(x @ w)
            return (effect(h) ** 2).mean()

        value, grad = jax.value_and_grad(loss)(w)
        return w - grad, value

    return step


def _run(effect, cluster="cpu:8", mesh=None):
    plan = sw.plan(_step(effect), _W, _X, cluster=cluster, mesh=mesh)
    out = plan.compile()(_W, _X)
    jax.effects_barrier()
    return plan, out


@pytest.mark.parametrize("mesh", [{"x": 8}, {"d": 2, "t": 4}])
def test_a_callback_runs_once_and_sees_the_whole(mesh):
    seen = []

    def effect(h):
        jax.debug.callback(lambda v: seen.append(np.asarray(v)), h)
        return h

    plan, _ = _run(effect, mesh=mesh)
    assert len(seen) == 1
    np.testing.assert_allclose(seen[0], np.tanh(_X @ _W), rtol=1e-5)
    assert any("debug_callback" in str(w) for w in plan.warnings), "what it costs is told"


def test_a_print_inside_a_loop_runs_once_a_turn_and_is_no_news(capfd):
    def effect(h):
        def turn(h, _):
            jax.debug.print("total {}", h.sum().astype(int))
            return h * 0.5, None

        return jax.lax.scan(turn, h, None, length=3)[0]

    plan, _ = _run(effect)
    assert capfd.readouterr().out.count("total ") == 3
    assert not any("debug" in str(w) for w in plan.warnings)


def test_a_pure_callback_runs_whole_and_is_told():
    def effect(h):
        shape, total = jax.ShapeDtypeStruct((), h.dtype), jax.lax.stop_gradient(h.sum())
        return h * jax.lax.stop_gradient(jax.pure_callback(lambda v: np.float32(v * 2), shape, total))

    plan, (_, loss) = _run(effect)
    assert any("no rule for the primitive 'pure_callback'" in str(w) for w in plan.warnings)
    np.testing.assert_allclose(loss, jax.jit(_step(effect))(_W, _X)[1], rtol=1e-5)


def _ordered_print(h):
    jax.debug.print("{}", h.sum(), ordered=True)
    return h


def _ordered_callback(h):
    jax.debug.callback(lambda v: None, h.sum(), ordered=True)
    return h


def _callback_with_effect(h):
    return h + jax.lax.stop_gradient(io_callback(lambda: np.float32(1), jax.ShapeDtypeStruct((), h.dtype)))


@pytest.mark.parametrize(
    "effect, words",
    [
        (_ordered_print, "test_effects.py.*no ordered effects on several devices"),
        (_ordered_callback, "test_effects.py.*no ordered effects on several devices"),
        (_callback_with_effect, "test_effects.py.*every device would run this io_callback, 8 times"),
    ],
)
def test_what_cannot_happen_once_is_refused_on_several_devices(effect, words):
    with pytest.raises(ValueError, match=words):
        sw.plan(_step(effect), _W, _X, cluster="cpu:8")
    _run(effect, cluster="cpu:1")
