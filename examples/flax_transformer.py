"""A language model in flax linen, as one writes it for one device; two lines differ from that script.

They are marked `was:`. The text is the source of a module of Python's own library, byte by byte.

python examples/flax_transformer.py
"""

import argparse
import pathlib

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.train_state import TrainState

import shardwright as sw

jax.config.update("jax_num_cpu_devices", 8)  # eight virtual devices; leave this out where there are real ones

BATCH, SEQUENCE, WIDTH, LAYERS = 32, 32, 64, 2


class Block(nn.Module):
    @nn.compact
    def __call__(self, x, _):
        mask = nn.make_causal_mask(jnp.ones(x.shape[:2]))
        attention = nn.MultiHeadDotProductAttention(num_heads=4, dropout_rate=0.1, deterministic=False)
        x = x + attention(nn.LayerNorm()(x), mask=mask)
        return x + nn.Dense(WIDTH)(nn.gelu(nn.Dense(4 * WIDTH)(nn.LayerNorm()(x)))), None


class Model(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        embed = nn.Embed(256, WIDTH)
        x = embed(tokens) + self.param("position", nn.initializers.normal(0.02), (SEQUENCE, WIDTH))
        layers = nn.scan(Block, {"params": 0}, split_rngs={"params": True, "dropout": True}, length=LAYERS)
        x, _ = layers()(x, None)
        return embed.attend(nn.LayerNorm()(x))


def create(key):
    model = Model()
    tokens = jnp.zeros((BATCH, SEQUENCE), jnp.int32)
    params = model.init({"params": key, "dropout": key}, tokens)["params"]
    return TrainState.create(apply_fn=model.apply, params=params, tx=optax.adamw(3e-3))


def train_step(state, tokens, key):
    rngs = {"dropout": jax.random.fold_in(key, state.step)}

    def loss(params):
        logits = state.apply_fn({"params": params}, tokens[:, :-1], rngs=rngs)
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    value, grads = jax.value_and_grad(loss)(state.params)
    return state.apply_gradients(grads=grads), value


def main():
    text = np.frombuffer(pathlib.Path(argparse.__file__).read_bytes(), np.uint8)
    draws, key = np.random.default_rng(0), jax.random.key(1)

    step = sw.jit(train_step, donate_argnums=0)  # was: jax.jit(train_step, donate_argnums=0)
    state = create(jax.random.key(0))
    for i in range(60):
        starts = draws.integers(0, text.size - SEQUENCE - 1, BATCH)
        tokens = np.stack([text[s : s + SEQUENCE + 1] for s in starts]).astype(np.int32)
        state, loss = step(state, tokens, key)
        if i % 20 == 19:
            print(f"step {i + 1}  loss {loss:.3f}")
    print(f"\n{step.plan}")


if __name__ == "__main__":
    main()
