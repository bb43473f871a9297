"""Grouped-query attention (a public case: 8 query heads of 16 over 2 key-value heads)."""

import jax
import jax.numpy as jnp

from tests.corpus.case import Case, shape


def grouped_query(batch=4, sequence=16, width=128, heads=8, groups=2, size=16):
    """Causal attention with fewer key-value heads than query heads, squared error, gradient descent."""

    def attend(w, x):
        q = (x @ w["q"]).reshape(*x.shape[:2], heads, size)
        k, v = ((x @ w[n]).reshape(*x.shape[:2], groups, size) for n in "kv")
        k, v = (jnp.repeat(y, heads // groups, axis=2) for y in (k, v))
        score = jnp.einsum("bshk,bthk->bhst", q, k) / size**0.5
        score = jnp.where(jnp.tril(jnp.ones((x.shape[1],) * 2, bool)), score, -jnp.inf)
        mixed = jnp.einsum("bhst,bthk->bshk", jax.nn.softmax(score), v)
        return mixed.reshape(*x.shape[:2], heads * size) @ w["o"]

    def step(params, x, y):
        loss, grads = jax.value_and_grad(lambda p: ((attend(p, x) - y) ** 2).mean())(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss

    params = {"q": shape(width, heads * size), "k": shape(width, groups * size), "v": shape(width, groups * size)}
    params["o"] = shape(heads * size, width)
    return Case(step, (params, shape(batch, sequence, width), shape(batch, sequence, width)))
