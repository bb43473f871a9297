"""ZeRO stage 1 by hand: each device updates its share of the weights (Xu et al. 2020; Rajbhandari et al. 2020).

Every device holds all parameters and computes gradients on its part of the batch. Each layer's gradients leave the
backward loop as the device's shard of their sum, the optimizer updates that shard with its slots, and an all-gather
spreads the result.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import optax
from jax.sharding import AbstractMesh, Mesh
from jax.sharding import PartitionSpec as P

from benchmarks import gpt
from benchmarks.experts import split
from benchmarks.experts.variant import Variant, by_hand, state_specs


def build(c: gpt.Config, mesh: Mesh | AbstractMesh) -> Variant:
    """The variant on a mesh of one axis 'x'."""
    n = mesh.shape[split.AXIS]
    dims = split.cut_dims(c, n)

    def loss(shards, params, tokens):
        both = {name: (shards[name], params[name]) for name in params}
        return split.loss_share(both, tokens, c, dims, lambda pair, dim: _as_gathered(*pair, dim))

    def local_step(state, tokens):
        params, opt = state
        shards = {name: _own_part(param, dims[name], n) for name, param in params.items()}
        value, grads = jax.value_and_grad(loss)(shards, params, tokens)
        updates, opt = gpt.OPTIMIZER.update(grads, opt, shards)
        shards = optax.apply_updates(shards, updates)
        params = {name: split.gather(shard, dims[name]) for name, shard in shards.items()}
        return (params, opt), jax.lax.psum(value, split.AXIS)

    whole = {name: P() for name in dims}
    state = state_specs(c, whole, split.cut_specs(dims))
    return by_hand(local_step, mesh, state, P(split.AXIS))


def _own_part(whole: jax.Array, dim: int, n: int) -> jax.Array:
    size = whole.shape[dim] // n
    return jax.lax.dynamic_slice_in_dim(whole, jax.lax.axis_index(split.AXIS) * size, size, dim)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _as_gathered(shard: jax.Array, whole: jax.Array, dim: int) -> jax.Array:
    """`whole`, differentiated as if it had just been gathered from the shards: the gradient goes to `shard`."""
    del shard, dim
    return whole


def _as_gathered_forward(shard: jax.Array, whole: jax.Array, dim: int) -> tuple[jax.Array, None]:
    del shard, dim
    return whole, None


def _as_gathered_backward(dim: int, residual: None, cotangent: jax.Array) -> tuple[Any, None]:
    del residual
    return split.scatter(cotangent, dim), None


_as_gathered.defvjp(_as_gathered_forward, _as_gathered_backward)


def closed_form_bytes(c: gpt.Config, n: int) -> float:
    """Bytes that one device sends in one step, by ring.

        reduce-scatter of every gradient     P (n − 1) / n
        all-gather of every parameter        P (n − 1) / n
        all-reduce of the loss               2 i (n − 1) / n

    with P bytes of parameters and i bytes of one number.
    """
    params = sum(split.param_bytes(c).values())
    number = jax.dtypes.canonicalize_dtype(c.dtype).itemsize
    return (n - 1) / n * (2 * params + 2 * number)
