"""A program of the corpus: a training step as a user writes it, with the shapes of its arguments."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax


@dataclasses.dataclass(frozen=True)
class Case:
    """A step and its arguments, abstract or not. `donate`: positions of the arguments that it may overwrite."""

    step: Callable
    args: tuple
    donate: tuple[int, ...] = (0,)


def shape(*dims: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, dtype)


def ids(*dims: int) -> jax.ShapeDtypeStruct:
    return shape(*dims, dtype=jnp.int32)


def key() -> jax.ShapeDtypeStruct:
    return jax.eval_shape(lambda: jax.random.key(0))


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def training(loss: Callable, params: Any, *batch: Any, optimizer: optax.GradientTransformation | None = None) -> Case:
    """The usual step ((params, slots), *batch) → ((params, slots), loss); AdamW unless said otherwise."""
    optimizer = optimizer or optax.adamw(1e-2)

    def step(state, *batch):
        params, slots = state
        value, grads = jax.value_and_grad(loss)(params, *batch)
        updates, slots = optimizer.update(grads, slots, params)
        return (optax.apply_updates(params, updates), slots), value

    return Case(step, ((params, jax.eval_shape(optimizer.init, params)), *batch))
