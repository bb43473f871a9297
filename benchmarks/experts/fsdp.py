"""Fully sharded data parallelism by hand: ZeRO stage 3 (Rajbhandari et al. 2020; Zhao et al. 2023).

Parameters and slots are cut over all devices. The loop over layers gathers one layer's weights, uses them and lets
them go; the backward loop gathers them again, and each layer's gradient leaves it as the shard of its sum, which is
the gather's transpose. The embedding is gathered once and kept, since both ends of the model read it.
"""

from __future__ import annotations

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
    dims = split.cut_dims(c, mesh.shape[split.AXIS])

    def loss(shards, tokens):
        return split.loss_share(shards, tokens, c, dims, split.gather, _all_but_gathered)

    def local_step(state, tokens):
        shards, opt = state
        value, grads = jax.value_and_grad(loss)(shards, tokens)
        updates, opt = gpt.OPTIMIZER.update(grads, opt, shards)
        return (optax.apply_updates(shards, updates), opt), jax.lax.psum(value, split.AXIS)

    specs = split.cut_specs(dims)
    return by_hand(local_step, mesh, state_specs(c, specs, specs), P(split.AXIS))


def _all_but_gathered(primitive: Any, *_: Any, **__: Any) -> bool:
    """What a layer keeps: else all layers' gathered weights would be there at once when the backward pass begins."""
    return primitive.name != "all_gather"


def closed_form_bytes(c: gpt.Config, n: int) -> float:
    """Bytes that one device sends in one step, by ring.

        all-gather of the layers' weights, forward     W (n − 1) / n
        the same, backward                             W (n − 1) / n
        reduce-scatter of their gradients              W (n − 1) / n
        all-gather of the embedding                    E (n − 1) / n
        reduce-scatter of its gradient                 E (n − 1) / n
        all-reduce of the loss                         2 i (n − 1) / n

    with W bytes of stacked weights, E of the embedding, i of one number.
    """
    sizes = split.param_bytes(c)
    embedding = sizes.pop(gpt.EMBEDDING)
    number = jax.dtypes.canonicalize_dtype(c.dtype).itemsize
    return (n - 1) / n * (3 * sum(sizes.values()) + 2 * embedding + 2 * number)
