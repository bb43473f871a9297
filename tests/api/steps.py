"""Tiny training steps that the tests of the public API share, and how compilations are counted."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

WIDTH, HIDDEN, BATCH = 64, 128, 32
BACKEND_COMPILE = "/jax/core/compile/backend_compile_duration"


def mlp_step(state, batch):
    """SGD on a two-layer perceptron: (state, batch) → (state, loss)."""

    def loss(w):
        return jnp.square(jnp.tanh(batch @ w["up"]) @ w["down"]).mean()

    value, grads = jax.value_and_grad(loss)(state)
    return jax.tree.map(lambda w, g: w - 0.1 * g, state, grads), value


def mlp_state(seed=0):
    rng = np.random.default_rng(seed)
    return {
        "up": jnp.asarray(rng.normal(size=(WIDTH, HIDDEN)) / 8, jnp.float32),
        "down": jnp.asarray(rng.normal(size=(HIDDEN, WIDTH)) / 12, jnp.float32),
    }


def mlp_batch(seed=1, size=BATCH):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(size, WIDTH)), jnp.float32)


def shapes(tree):
    """The same without values."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)


def grid(**axes):
    """A mesh of Auto axes over the attached devices."""
    count = int(np.prod(list(axes.values())))
    devices = np.array(jax.devices()[:count], dtype=object).reshape(tuple(axes.values()))
    return Mesh(devices, tuple(axes))


def put(x, mesh, spec):
    return jax.device_put(x, NamedSharding(mesh, spec))


def assert_close(a, b, tolerance=1e-5):
    """Every leaf equal in the 2-norm, relative."""
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
        assert x.shape == y.shape
        assert np.linalg.norm(x - y) <= tolerance * max(np.linalg.norm(y), 1e-6), (x, y)


class _Counter:
    count = 0


_counter = _Counter()


def _heard(event, duration, **rest):
    del duration, rest
    _counter.count += event == BACKEND_COMPILE


jax.monitoring.register_event_duration_secs_listener(_heard)


@contextlib.contextmanager
def compilations():
    """Yields a function that tells how many programs XLA has compiled since."""
    before = _counter.count
    yield lambda: _counter.count - before
