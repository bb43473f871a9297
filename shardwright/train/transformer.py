"""A byte-level decoder transformer in plain JAX: the program that `shardwright train` plans.

Nothing here knows of devices. It is the step that a user writes for one device: pre-norm blocks under one `lax.scan`
over stacked layers, rotary positions, an output matrix tied to the embedding, and AdamW with warm-up and clipping.

Shapes: B batch, S sequence, D width, N heads, H size of a head, F hidden, V vocabulary, L layers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

VOCABULARY = 256  # bytes
_MASKED = -1e9  # finite: a row with nothing to see would otherwise be NaN

State = dict[str, Any]
Metrics = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class Config:
    """Sizes of the model and the settings of its optimizer.

    Attributes:
        width: D.
        layers: L.
        heads: N; divides `width`.
        hidden: F, the width of the MLP.
        sequence: S, the context that the model reads.
        learning_rate: The peak, reached after `warmup_steps`, from which a cosine falls to a tenth at `num_steps`.
        warmup_steps: Steps of linear warm-up.
        num_steps: Length of the schedule.
        weight_decay: Of AdamW, on matrices alone.
        clip_norm: Largest global norm of the gradient.
    """

    width: int = 192
    layers: int = 4
    heads: int = 6
    hidden: int = 768
    sequence: int = 64
    learning_rate: float = 3e-3
    warmup_steps: int = 15
    num_steps: int = 150
    weight_decay: float = 0.1
    clip_norm: float = 1.0

    def __post_init__(self):
        if self.width % (2 * self.heads):
            raise ValueError(f"width {self.width} must be a multiple of twice the heads, 2*{self.heads} (rotary pairs)")


def init_params(key: jax.Array, config: Config) -> dict[str, jax.Array]:
    """Returns the parameters; those of the layers are stacked on a leading dim L."""
    c, head = config, config.width // config.heads
    matrices = {
        "embedding": (VOCABULARY, c.width),
        "query": (c.layers, c.width, c.heads, head),
        "key": (c.layers, c.width, c.heads, head),
        "value": (c.layers, c.width, c.heads, head),
        "merge": (c.layers, c.heads, head, c.width),
        "up": (c.layers, c.width, c.hidden),
        "down": (c.layers, c.hidden, c.width),
    }
    # The two matrices that write to the residual stream start smaller, by the number of times they write (GPT-2).
    residual = 0.02 * (2 * c.layers) ** -0.5
    scales = {"merge": residual, "down": residual}
    keys = jax.random.split(key, len(matrices))
    draws = zip(keys, matrices.items(), strict=True)
    params = {n: jax.random.normal(k, shape) * scales.get(n, 0.02) for k, (n, shape) in draws}
    ones = {"attention_scale": (c.layers, c.width), "mlp_scale": (c.layers, c.width), "final_scale": (c.width,)}
    return params | {n: jnp.ones(shape) for n, shape in ones.items()}


def optimizer(config: Config) -> optax.GradientTransformation:
    """Returns AdamW with clipping by global norm, warm-up and cosine decay."""
    return optax.chain(
        optax.clip_by_global_norm(config.clip_norm),
        optax.adamw(
            lambda count: _learning_rate(count, config), b2=0.95, weight_decay=config.weight_decay, mask=_decays
        ),
    )


def init_state(key: jax.Array, config: Config) -> State:
    """Returns `{"params": ..., "optimizer": ...}` of a fresh model."""
    params = init_params(key, config)
    return {"params": params, "optimizer": optimizer(config).init(params)}


def logits(params: dict[str, jax.Array], tokens_BS: jax.Array, config: Config) -> jax.Array:
    """Returns float32 [B, S, V]: scores of the byte that follows each position."""
    stacked = {n: w for n, w in params.items() if n not in ("embedding", "final_scale")}
    rotation = _rotation(tokens_BS.shape[1], config.width // config.heads)

    def block(x_BSD, w):
        x_BSD = x_BSD + _attention(_norm(x_BSD, w["attention_scale"]), w, rotation)
        hidden_BSF = jax.nn.gelu(_norm(x_BSD, w["mlp_scale"]) @ w["up"])
        return x_BSD + hidden_BSF @ w["down"], None

    # Tied to the output, the embedding is small; the residual stream wants entries of order one.
    x_BSD = params["embedding"][tokens_BS] * config.width**0.5
    x_BSD, _ = jax.lax.scan(block, x_BSD, stacked)
    return _norm(x_BSD, params["final_scale"]) @ params["embedding"].T


def loss(params: dict[str, jax.Array], batch: jax.Array, config: Config) -> jax.Array:
    """Returns the mean cross-entropy of the next byte, in nats. batch: int32 [B, S + 1]."""
    scores_BSV = logits(params, batch[:, :-1], config)
    log_p_BSV = jax.nn.log_softmax(scores_BSV)
    return -jnp.take_along_axis(log_p_BSV, batch[:, 1:, None], axis=-1).mean()


def make_train_step(config: Config) -> Callable[[State, jax.Array], tuple[State, Metrics]]:
    """Returns `train_step(state, batch) -> (state, metrics)`; metrics are `loss` and `gradient_norm`."""
    tx = optimizer(config)

    def train_step(state: State, batch: jax.Array) -> tuple[State, Metrics]:
        params = state["params"]
        value, grads = jax.value_and_grad(loss)(params, batch, config)
        updates, slots = tx.update(grads, state["optimizer"], params)
        metrics = {"loss": value, "gradient_norm": optax.tree.norm(grads)}
        return {"params": optax.apply_updates(params, updates), "optimizer": slots}, metrics

    return train_step


def make_evaluate(config: Config) -> Callable[[dict[str, jax.Array], jax.Array], jax.Array]:
    """Returns `evaluate(params, batch) -> loss`, jitted."""
    return jax.jit(lambda params, batch: loss(params, batch, config))


def make_sample(config: Config, num_bytes: int, temperature: float) -> Callable[..., jax.Array]:
    """Returns `sample(params, prompt, key) -> int32 [len(prompt) + num_bytes]`, jitted.

    Each byte costs one forward pass over the whole context; there is no cache of keys and values.

    Args:
        config: Of the model.
        num_bytes: Bytes to write after the prompt.
        temperature: Zero takes the likeliest byte each time; one draws from the model's own distribution.
    """

    def sample(params: dict[str, jax.Array], prompt: jax.Array, key: jax.Array) -> jax.Array:
        start, end = prompt.shape[0], prompt.shape[0] + num_bytes
        # What lies to the right of the last byte written is hidden by the causal mask.
        text = jnp.zeros(max(end, config.sequence), jnp.int32).at[:start].set(prompt)

        def write(i, text):
            first = jnp.maximum(i - config.sequence, 0)
            window = jax.lax.dynamic_slice(text, (first,), (config.sequence,))
            scores_V = logits(params, window[None], config)[0, i - 1 - first]
            return text.at[i].set(_choose(jax.random.fold_in(key, i), scores_V, temperature))

        return jax.lax.fori_loop(start, end, write, text)[:end]

    return jax.jit(sample)


def _choose(key: jax.Array, scores_V: jax.Array, temperature: float) -> jax.Array:
    drawn = jax.random.categorical(key, scores_V / temperature) if temperature else scores_V.argmax()
    return drawn.astype(jnp.int32)


def _norm(x_BSD: jax.Array, scale_D: jax.Array) -> jax.Array:
    """Root-mean-square norm over the width."""
    return x_BSD * jax.lax.rsqrt((x_BSD**2).mean(-1, keepdims=True) + 1e-6) * scale_D


def _attention(y_BSD: jax.Array, w: dict[str, jax.Array], rotation: tuple[jax.Array, jax.Array]) -> jax.Array:
    sequence, head = y_BSD.shape[1], w["query"].shape[-1]
    q_BSNH, k_BSNH, v_BSNH = (jnp.einsum("bsd,dnh->bsnh", y_BSD, w[n]) for n in ("query", "key", "value"))
    q_BSNH, k_BSNH = _rotate(q_BSNH, rotation), _rotate(k_BSNH, rotation)
    scores_BNST = jnp.einsum("bsnh,btnh->bnst", q_BSNH, k_BSNH) * head**-0.5
    causal_ST = jnp.tril(jnp.ones((sequence, sequence), bool))
    seen_BNST = jax.nn.softmax(jnp.where(causal_ST, scores_BNST, _MASKED))
    return jnp.einsum("bnst,btnh,nhd->bsd", seen_BNST, v_BSNH, w["merge"])


def _rotation(sequence: int, head: int) -> tuple[jax.Array, jax.Array]:
    """Returns cosine and sine [S, 1, H/2] of the angle of each position and pair (RoFormer, arXiv:2104.09864)."""
    frequency = 10_000.0 ** (-jnp.arange(0, head, 2) / head)
    angle = jnp.arange(sequence)[:, None, None] * frequency
    return jnp.cos(angle), jnp.sin(angle)


def _rotate(x_BSNH: jax.Array, rotation: tuple[jax.Array, jax.Array]) -> jax.Array:
    cosine, sine = rotation
    a, b = jnp.split(x_BSNH, 2, axis=-1)
    return jnp.concatenate([a * cosine - b * sine, a * sine + b * cosine], axis=-1)


def _learning_rate(count: jax.Array, c: Config) -> jax.Array:
    # The first step is one step up the ramp already: at a rate of zero it would train nothing.
    ramp = jnp.minimum((count + 1) / max(c.warmup_steps, 1), 1.0)
    progress = jnp.clip((count - c.warmup_steps) / max(c.num_steps - c.warmup_steps, 1), 0.0, 1.0)
    return c.learning_rate * ramp * (0.55 + 0.45 * jnp.cos(jnp.pi * progress))  # from 1 down to a tenth


def _decays(params: dict[str, jax.Array]) -> dict[str, bool]:
    """Weight decay is for matrices: the scales of norms are left alone."""
    return {n: not n.endswith("_scale") for n in params}
