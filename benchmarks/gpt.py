"""A GPT training step for one device: the program that plans and experts are measured on.

    step, (state, tokens) = program(Config())        # the step and its abstract arguments
    (params, opt), loss = step((params, opt), tokens)

An ordinary JAX program: a scan over stacked layers, next-token cross-entropy, AdamW. It says nothing of devices. Two
hooks, both the identity by default, are where `experts/constrained.py` states layouts: `pin(name, x)` sees each weight
where it is used and the activations ("act"), `store(name, x)` sees gradients and new parameters.

Shapes: B batch, S sequence, D width, H heads, K width of a head, F hidden, V vocabulary, L layers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

Params = Mapping[str, jax.Array]
Hook = Callable[[str, jax.Array], jax.Array]
NORM_EPSILON = 1e-5
MASKED_SCORE = -1e9
EMBEDDING = "emb"  # every other parameter is stacked by layers
OPTIMIZER = optax.adamw(1e-3)


@dataclasses.dataclass(frozen=True)
class Config:
    """Sizes of the model and of one batch.

    Attributes:
        remat: compute a layer's activations again in the backward pass.
    """

    vocab: int = 1024
    width: int = 256
    layers: int = 4
    hidden: int = 1024
    heads: int = 8
    sequence: int = 128
    batch: int = 16
    remat: bool = False
    dtype: Any = jnp.float32


def unchanged(name: str, x: jax.Array) -> jax.Array:
    """The hook that does nothing."""
    del name
    return x


def shapes(c: Config) -> dict[str, tuple[int, ...]]:
    """Parameter name -> shape."""
    head = c.width // c.heads
    projection_LDHK = (c.layers, c.width, c.heads, head)
    return {
        EMBEDDING: (c.vocab, c.width),
        "wq": projection_LDHK,
        "wk": projection_LDHK,
        "wv": projection_LDHK,
        "wo": (c.layers, c.heads, head, c.width),
        "w1": (c.layers, c.width, c.hidden),
        "w2": (c.layers, c.hidden, c.width),
    }


def init(key: jax.Array, c: Config) -> dict[str, jax.Array]:
    """Normal parameters of standard deviation 0.02, each from a key of its own."""
    named = shapes(c)
    keys = jax.random.split(key, len(named))
    return {name: 0.02 * jax.random.normal(k, named[name], c.dtype) for name, k in zip(named, keys, strict=True)}


def norm(x: jax.Array) -> jax.Array:
    """Layer norm over the last dim, without scale or bias."""
    centered = x - x.mean(-1, keepdims=True)
    variance = (centered**2).mean(-1, keepdims=True)
    return centered * jax.lax.rsqrt(variance + NORM_EPSILON)


def attention(y_BSD: jax.Array, w: Params) -> jax.Array:
    """Causal attention of the heads that `w` holds, projected back: their part of the sum over heads, [B, S, D]."""
    q, k, v = (jnp.einsum("bsd,dhk->bshk", y_BSD, w[name]) for name in ("wq", "wk", "wv"))
    sequence, head = q.shape[1], q.shape[-1]
    scores_BHST = jnp.einsum("bshk,bthk->bhst", q, k) * head**-0.5
    causal_ST = jnp.tril(jnp.ones((sequence, sequence), bool))
    weights = jax.nn.softmax(jnp.where(causal_ST, scores_BHST, MASKED_SCORE), axis=-1)
    return jnp.einsum("bhst,bthk,hkd->bsd", weights, v, w["wo"])


def perceptron(y_BSD: jax.Array, w: Params) -> jax.Array:
    """The two-layer perceptron of the hidden units that `w` holds: their part of the sum, [B, S, D]."""
    return jax.nn.gelu(y_BSD @ w["w1"]) @ w["w2"]


def layer(x_BSD: jax.Array, w: Params, pin: Hook = unchanged) -> jax.Array:
    """One pre-norm transformer layer."""
    w = {name: pin(name, value) for name, value in w.items()}
    x_BSD = pin("act", x_BSD + attention(pin("act", norm(x_BSD)), w))
    return pin("act", x_BSD + perceptron(norm(x_BSD), w))


def stacked(params: Params) -> dict[str, jax.Array]:
    """The parameters that a scan over layers reads."""
    return {name: value for name, value in params.items() if name != EMBEDDING}


def token_losses(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Cross-entropy of each token, [B, S]."""
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], axis=-1)[..., 0]


def loss(params: Params, tokens: jax.Array, c: Config, pin: Hook = unchanged) -> jax.Array:
    """Mean cross-entropy of the next token; tokens: int32 [B, S + 1]."""

    def body(x, w):
        return layer(x, w, pin), None

    x_BSD = pin("act", pin(EMBEDDING, params[EMBEDDING])[tokens[:, :-1]])
    x_BSD, _ = jax.lax.scan(jax.checkpoint(body) if c.remat else body, x_BSD, stacked(params))
    logits_BSV = norm(x_BSD) @ pin(EMBEDDING, params[EMBEDDING]).T
    return token_losses(logits_BSV, tokens[:, 1:]).mean()


def make_step(c: Config, pin: Hook = unchanged, store: Hook = unchanged, optimizer=OPTIMIZER) -> Callable:
    """(state, tokens) -> (state, loss), where state is (parameters, optimizer state)."""

    def step(state, tokens):
        params, opt = state
        value, grads = jax.value_and_grad(loss)(params, tokens, c, pin)
        grads = {name: store(name, grad) for name, grad in grads.items()}
        updates, opt = optimizer.update(grads, opt, params)
        params = optax.apply_updates(params, updates)
        return ({name: store(name, param) for name, param in params.items()}, opt), value

    return step


def abstract_arguments(c: Config, optimizer=OPTIMIZER) -> tuple[Any, jax.ShapeDtypeStruct]:
    """Shapes and dtypes of a step's (state, tokens)."""
    params = jax.eval_shape(lambda key: init(key, c), jax.random.key(0))
    tokens = jax.ShapeDtypeStruct((c.batch, c.sequence + 1), jnp.int32)
    return (params, jax.eval_shape(optimizer.init, params)), tokens


def program(c: Config | None = None, optimizer=OPTIMIZER) -> tuple[Callable, tuple[Any, jax.ShapeDtypeStruct]]:
    """The one-device step and its abstract arguments ((parameters, optimizer state), tokens)."""
    c = Config() if c is None else c
    return make_step(c, optimizer=optimizer), abstract_arguments(c, optimizer)
