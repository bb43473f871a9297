"""Programs with branches and loops, and with segments."""

import jax
import jax.numpy as jnp

from tests.corpus.case import Case, cross_entropy, ids, shape, training


def branches():
    """A switch between activations by a value of the batch; a cond that skips an update with a large gradient."""

    def step(state, x, y, kind):
        params, skipped = state

        def loss(params):
            h = x @ params["w1"]
            h = jax.lax.switch(kind, [jax.nn.relu, jnp.tanh, lambda h: h], h)
            return ((h @ params["w2"] - y) ** 2).mean()

        value, grads = jax.value_and_grad(loss)(params)
        norm = sum((g**2).sum() for g in jax.tree.leaves(grads))

        def keep(args):
            return args[0], skipped + 1

        def update(args):
            return jax.tree.map(lambda p, g: p - 0.1 * g, *args), skipped

        return jax.lax.cond(norm > 1e6, keep, update, (params, grads)), value

    params = {"w1": shape(64, 32), "w2": shape(32, 16)}
    return Case(step, ((params, ids()), shape(8, 64), shape(8, 16), ids()))


def gradient_through_cond():
    """A block that is run or left out by what the data says; autodiff through the branches, a literal result."""

    def loss(params, x, y):
        h = jnp.tanh(x @ params["w1"])
        deep = jax.lax.cond(h.mean() > 0, lambda h: jnp.tanh(h @ params["mid"]), lambda h: h, h)
        extra = jax.lax.cond(y.sum() > 1e9, lambda: (params["w2"] ** 2).sum(), lambda: 0.0)
        return ((deep @ params["w2"] - y) ** 2).mean() + extra

    return training(loss, {"w1": shape(64, 32), "mid": shape(32, 32), "w2": shape(32, 16)}, shape(8, 64), shape(8, 16))


def loops():
    """A power iteration by while, a loop with a fixed count, a carry that starts as a literal."""

    def step(params, x, y):
        w = params["w"]

        def larger(carry):
            i, _, change = carry
            return (i < 5) & (change > 1e-9)

        def iterate(carry):
            i, v, _ = carry
            new = w.T @ (w @ v)
            new = new / jnp.sqrt((new**2).sum() + 1e-9)
            return i + 1, new, jnp.abs(new - v).sum()

        _, v, _ = jax.lax.while_loop(larger, iterate, (0, jnp.ones(w.shape[1]), jnp.inf))
        sigma = jax.lax.stop_gradient(jnp.sqrt(((w @ v) ** 2).sum()))

        def loss(params):
            h = x @ (params["w"] / sigma)
            h = jax.lax.fori_loop(0, 3, lambda i, h: jnp.sin(h @ params["mix"]) + i, h)
            return ((h @ params["out"] - y) ** 2).mean()

        value, grads = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads), (value, sigma)

    return Case(step, ({"w": shape(64, 32), "mix": shape(32, 32), "out": shape(32, 4)}, shape(8, 64), shape(8, 4)))


def segments():
    """A graph network: messages along edges summed at their targets, mean over the nodes of each graph."""

    def loss(params, nodes, source, target, graph, label):
        h = jax.nn.relu(nodes @ params["encode"])
        for w in params["layers"]:
            message = jax.nn.relu(h[source] @ w["message"])
            h = h + jax.ops.segment_sum(message, target, nodes.shape[0]) @ w["update"]
        total = jax.ops.segment_sum(h, graph, 4)
        count = jax.ops.segment_sum(jnp.ones(nodes.shape[0]), graph, 4)
        return cross_entropy((total / jnp.maximum(count, 1)[:, None]) @ params["decode"], label)

    layer = {"message": shape(32, 32), "update": shape(32, 32)}
    params = {"encode": shape(16, 32), "layers": [layer, layer], "decode": shape(32, 8)}
    return training(loss, params, shape(24, 16), ids(40), ids(40), ids(24), ids(4))
