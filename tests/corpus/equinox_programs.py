"""Programs of equinox: modules are arguments, their activation functions leaves that are not arrays."""

import equinox as eqx
import jax
import optax

from tests.corpus.case import Case, cross_entropy, ids, shape


class _CNN(eqx.Module):
    layers: list

    def __init__(self, seed):
        a, b, c = jax.random.split(seed, 3)
        self.layers = [
            eqx.nn.Conv2d(3, 8, 3, key=a),
            jax.nn.relu,
            eqx.nn.MaxPool2d(2, 2),
            eqx.nn.Conv2d(8, 16, 3, key=b),
            jax.nn.relu,
            lambda x: x.mean((1, 2)),
            eqx.nn.Linear(16, 10, key=c),
        ]

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def _training(model, x, y):
    optimizer = optax.adam(1e-2)

    def step(model, slots, x, y):
        loss = lambda model: cross_entropy(jax.vmap(model)(x), y)  # noqa: E731
        value, grads = eqx.filter_value_and_grad(loss)(model)
        updates, slots = optimizer.update(grads, slots)
        return eqx.apply_updates(model, updates), slots, value

    return Case(step, (model, jax.eval_shape(optimizer.init, eqx.filter(model, eqx.is_array)), x, y), (0, 1))


def mlp():
    model = eqx.nn.MLP(32, 10, 64, 2, key=jax.random.key(0))
    return _training(model, shape(8, 32), ids(8))


def cnn():
    return _training(_CNN(jax.random.key(0)), shape(8, 3, 10, 10), ids(8))
