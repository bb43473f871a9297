"""Programs without a library: MLP, recurrence, remat, accumulation, mixed precision, states of every form."""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from tests.corpus.case import Case, cross_entropy, ids, key, shape, training


def _mlp_params(width=64, hidden=64, labels=10):
    return {"w1": shape(width, hidden), "b1": shape(hidden), "w2": shape(hidden, labels), "b2": shape(labels)}


def _mlp(params, x):
    return jax.nn.relu(x @ params["w1"] + params["b1"]) @ params["w2"] + params["b2"]


def mlp():
    """Plain gradient descent, the batch a dict."""

    def step(params, batch):
        loss, grads = jax.value_and_grad(lambda p: cross_entropy(_mlp(p, batch["image"]), batch["label"]))(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss

    return Case(step, (_mlp_params(), {"image": shape(12, 64), "label": ids(12)}))


def state_only():
    """Nothing but the state comes back; the batch is a tuple."""

    def step(state, batch):
        x, y = batch
        params, momentum = state
        grads = jax.grad(lambda p: ((_mlp(p, x) - y) ** 2).mean())(params)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
        return jax.tree.map(lambda p, m: p - 0.1 * m, params, momentum), momentum

    return Case(step, ((_mlp_params(), _mlp_params()), (shape(8, 64), shape(8, 10))))


class TrainState(NamedTuple):
    params: dict
    slots: tuple
    key: jax.Array
    step: jax.Array
    frozen: jax.Array
    seen: jax.Array


def mixed_leaves():
    """Integer, boolean and key leaves in the state; the loss also a metric, beside a learning rate and norms."""
    optimizer = optax.adam(optax.cosine_decay_schedule(1e-2, 100))

    def step(state, x, y, mask):
        use, carry = jax.random.split(state.key)

        def loss(params):
            noise = 0.1 * jax.random.normal(use, x.shape)
            error = optax.softmax_cross_entropy_with_integer_labels(_mlp(params, x + noise), y)
            return jnp.where(mask, error, 0).sum() / jnp.maximum(mask.sum(), 1)

        value, grads = jax.value_and_grad(loss)(state.params)
        grads["w1"] = jnp.where(state.frozen[:, None], 0, grads["w1"])
        updates, slots = optimizer.update(grads, state.slots)
        seen = state.seen.at[y].add(1)
        state = TrainState(optax.apply_updates(state.params, updates), slots, carry, state.step + 1, state.frozen, seen)
        rate = optax.cosine_decay_schedule(1e-2, 100)(state.step)
        metrics = {
            "loss": value,
            "rate": rate,
            "norm": optax.tree.norm(grads),
            "rare": (seen == 0).any(),
            "accuracy": (jnp.argmax(_mlp(state.params, x), -1) == y).mean(),
            "used": mask.sum(),
        }
        return state, value, metrics

    params = _mlp_params()
    state = TrainState(params, jax.eval_shape(optimizer.init, params), key(), ids(), shape(64, dtype=bool), ids(10))
    return Case(step, (state, shape(8, 64), ids(8), shape(8, dtype=bool)))


@functools.partial(jax.tree_util.register_dataclass, data_fields=["weights", "unused", "table"], meta_fields=["name"])
@dataclasses.dataclass
class Model:
    weights: list
    unused: jax.Array
    table: jax.Array
    name: str = "model"


def odd_results():
    """Donated leaves nobody reads, inputs as results, duplicated and constant results, dims of size 0 and 1."""

    def step(model, x, y, empty):
        def loss(weights):
            for w in weights:
                x_next = jnp.tanh(x @ w) if w is weights[0] else x_next @ w  # noqa: F821
            return ((x_next - y) ** 2).mean() + empty.sum()

        value, grads = jax.value_and_grad(loss)(model.weights)
        weights = [w - 0.1 * g for w, g in zip(model.weights, grads, strict=True)]
        new = Model(weights, model.unused, model.table, model.name)
        return new, (value, value, x, jnp.float32(3), jnp.zeros((4, 0)), weights[0].sum(0), jnp.arange(8))

    model = Model([shape(64, 32), shape(32, 1)], shape(64, 64), shape(1, 64))
    return Case(step, (model, shape(8, 64), shape(8, 1), shape(0, 8)))


def lstm():
    """A byte language model: embedding, LSTM over time by scan, tied output."""
    hidden, vocab = 32, 40

    def loss(params, tokens):
        def cell(carry, x):
            h, c = carry
            gates = x @ params["wx"] + h @ params["wh"] + params["b"]
            i, f, g, o = jnp.split(gates, 4, axis=-1)
            c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zero = jnp.zeros((tokens.shape[0], hidden))
        _, h = jax.lax.scan(cell, (zero, zero), params["emb"][tokens[:, :-1]].swapaxes(0, 1))
        return cross_entropy(h @ params["emb"].T, tokens[:, 1:].T)

    params = {"emb": shape(vocab, hidden), "wx": shape(hidden, 4 * hidden), "wh": shape(hidden, 4 * hidden)}
    return training(loss, params | {"b": shape(4 * hidden)}, ids(8, 7))


def bidirectional():
    """Two recurrences, one of them in reverse, their states side by side, keys for dropout as scan inputs."""

    def loss(params, x, y, seed):
        def run(w, reverse):
            def cell(h, inputs):
                x, key = inputs
                h = jnp.tanh(jnp.concatenate([x, h], -1) @ w)
                return h, jnp.where(jax.random.bernoulli(key, 0.8, h.shape), h / 0.8, 0)

            keys = jax.random.split(seed, x.shape[1])
            return jax.lax.scan(cell, jnp.zeros((x.shape[0], 32)), (x.swapaxes(0, 1), keys), reverse=reverse)[1]

        h = jnp.concatenate([run(params["fore"], False), run(params["back"], True)], -1)
        return ((h @ params["out"] - y.swapaxes(0, 1)) ** 2).mean()

    params = {"fore": shape(48, 32), "back": shape(48, 32), "out": shape(64, 4)}
    return training(loss, params, shape(8, 6, 16), shape(8, 6, 4), key())


def remat():
    """Four unrolled layers, each recomputed in the backward pass."""

    @jax.checkpoint
    def layer(w, x):
        return x + jax.nn.gelu(x @ w["up"]) @ w["down"]

    def loss(layers, x, y):
        for w in layers:
            x = layer(w, x)
        return ((x - y) ** 2).mean()

    layers = [{"up": shape(32, 64), "down": shape(64, 32)} for _ in range(4)]
    return training(loss, layers, shape(8, 32), shape(8, 32))


def accumulation():
    """Gradients summed over micro-batches by scan, one update."""
    optimizer = optax.sgd(0.1, momentum=0.9)

    def step(state, x, y):
        params, slots = state

        def turn(total, micro):
            value, grads = jax.value_and_grad(lambda p: cross_entropy(_mlp(p, micro[0]), micro[1]))(params)
            return jax.tree.map(jnp.add, total, (value, grads)), None

        zero = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, params))
        micro = x.reshape(4, -1, x.shape[-1]), y.reshape(4, -1)
        total, _ = jax.lax.scan(turn, zero, micro)
        value, grads = jax.tree.map(lambda t: t / 4, total)
        updates, slots = optimizer.update(grads, slots)
        return (optax.apply_updates(params, updates), slots), value

    params = _mlp_params()
    return Case(step, ((params, jax.eval_shape(optimizer.init, params)), shape(32, 64), ids(32)))


def accumulation_by_index():
    """The same with a loop over slices of the batch, the sum in the dtype of the parameters."""

    def step(params, x, y):
        def turn(i, total):
            part = [jax.lax.dynamic_slice_in_dim(a, i * 8, 8) for a in (x, y)]
            grads = jax.grad(lambda p: cross_entropy(_mlp(p, part[0]), part[1]))(params)
            return jax.tree.map(lambda t, g: t + g / 4, total, grads)

        grads = jax.lax.fori_loop(0, 4, turn, jax.tree.map(jnp.zeros_like, params))
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    return Case(step, (_mlp_params(), shape(32, 64), ids(32)))


def mixed_precision():
    """bfloat16 products, dropout, softmax in float32, float32 masters."""

    def loss(params, x, y, seed):
        half = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
        h = jax.nn.relu(x.astype(jnp.bfloat16) @ half["w1"] + half["b1"])
        h = jnp.where(jax.random.bernoulli(seed, 0.9, h.shape), h / 0.9, 0).astype(jnp.bfloat16)
        logits = (h @ half["w2"] + half["b2"]).astype(jnp.float32)
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], -1).mean()

    return training(loss, _mlp_params(), shape(8, 64), ids(8), key())
