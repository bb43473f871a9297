"""Data parallelism over cut parameters: where each is cut, and the loss on a device's part of the batch.

`zero1.py` and `fsdp.py` differ in how a device comes by a whole weight; the rest of their forward pass is here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.sharding import PartitionSpec as P

from benchmarks import gpt

AXIS = "x"
TPU_LANES = 128  # a TPU pads the minor dim of what it stores to a multiple of this

Whole = Callable[[Any, int], jax.Array]  # (a parameter as the device has it, the dim cut) -> the whole parameter


def cut_dims(c: gpt.Config, n: int) -> dict[str, int]:
    """Parameter -> the dim that is cut in `n`, never the dim of layers.

    The most major dim that divides, if the cut leaves some dim to fill the lanes of a TPU.

    Raises:
        ValueError: some parameter has no dim that divides, or the batch does not.
    """
    dims = {}
    for name, shape in gpt.shapes(c).items():
        candidates = [dim for dim in range(name != gpt.EMBEDDING, len(shape)) if shape[dim] % n == 0]
        if not candidates:
            raise ValueError(f"no dim of {name} {shape} is a multiple of {n} devices")
        dims[name] = next((dim for dim in candidates if _fills_lanes(shape, dim, n)), candidates[0])
    if c.batch % n:
        raise ValueError(f"a batch of {c.batch} does not divide over {n} devices")
    return dims


def _fills_lanes(shape: tuple[int, ...], cut: int, n: int) -> bool:
    return any((size // n if dim == cut else size) % TPU_LANES == 0 for dim, size in enumerate(shape))


def cut_specs(dims: Mapping[str, int]) -> dict[str, P]:
    """The specs of parameters cut along these dims."""
    return {name: P(*[None] * dim, AXIS) for name, dim in dims.items()}


def gather(shard: jax.Array, dim: int) -> jax.Array:
    """The whole array on each device; its transpose is `scatter`."""
    return jax.lax.all_gather(shard, AXIS, axis=dim, tiled=True)


def scatter(whole: jax.Array, dim: int) -> jax.Array:
    """Each device's shard of the sum over devices."""
    return jax.lax.psum_scatter(whole, AXIS, scatter_dimension=dim, tiled=True)


def loss_share(
    params: Mapping[str, Any],
    tokens: jax.Array,
    c: gpt.Config,
    dims: Mapping[str, int],
    whole: Whole,
    keep: Callable[..., bool] | None = None,
) -> jax.Array:
    """A device's share of the mean loss: the sum of shares over devices is the loss.

    Args:
        params: each parameter as the device has it; those of layers are stacked.
        tokens: the device's part of the batch.
        c: the whole problem.
        dims: parameter -> the dim that is cut.
        whole: makes one layer's weight, or the embedding, whole.
        keep: which results a layer keeps for the backward pass, as a policy of `jax.checkpoint`; by default all.
    """

    def layer(x_BSD, w):
        return gpt.layer(x_BSD, {name: whole(value, dims[name] - 1) for name, value in w.items()}), None

    if c.remat or keep:
        layer = jax.checkpoint(layer, prevent_cse=False, policy=None if c.remat else keep)
    emb_VD = whole(params[gpt.EMBEDDING], dims[gpt.EMBEDDING])
    x_BSD, _ = jax.lax.scan(layer, emb_VD[tokens[:, :-1]], gpt.stacked(params))
    losses = gpt.token_losses(gpt.norm(x_BSD) @ emb_VD.T, tokens[:, 1:])
    return losses.sum() / (c.batch * c.sequence)


def param_bytes(c: gpt.Config) -> dict[str, int]:
    """Parameter -> bytes."""
    params, _ = gpt.abstract_arguments(c)[0]
    return {name: param.size * param.dtype.itemsize for name, param in params.items()}
