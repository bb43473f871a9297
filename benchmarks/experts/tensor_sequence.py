"""Tensor and sequence parallelism by hand (Shoeybi et al. 2019; Korthikanti et al. 2022).

Heads, hidden units and the vocabulary are cut over all devices, and so is the sequence wherever a layer works on each
token by itself. A sublayer gathers the sequence, computes the part of its sum that its own heads or hidden units give,
and scatters that sum over the sequence. Embedding and cross-entropy are vocabulary-parallel: no device sees the whole
table, nor the logits of the whole vocabulary.

The loss that each device differentiates is the share of its own tokens, so that the shares add up to the loss. Only
gathers and scatters lie between parameters and shares, and the transpose of one is the other.

Shapes as in `gpt.py`; T is a device's part of the sequence, U of the vocabulary.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from jax.sharding import AbstractMesh, Mesh
from jax.sharding import PartitionSpec as P

from benchmarks import gpt
from benchmarks.experts.constrained import tensor_specs
from benchmarks.experts.split import AXIS, gather, scatter
from benchmarks.experts.variant import Variant, by_hand, state_specs

SEQUENCE_DIM = 1


def build(c: gpt.Config, mesh: Mesh | AbstractMesh) -> Variant:
    """The variant on a mesh of one axis 'x'.

    Raises:
        ValueError: heads, hidden units, vocabulary or sequence do not divide.
    """
    n = mesh.shape[AXIS]
    for what in ("heads", "hidden", "vocab", "sequence"):
        if getattr(c, what) % n:
            raise ValueError(f"{what} = {getattr(c, what)} does not divide over {n} devices")

    def layer(x_BTD, w):
        y_BSD = gather(gpt.norm(x_BTD), SEQUENCE_DIM)
        x_BTD = x_BTD + scatter(gpt.attention(y_BSD, w), SEQUENCE_DIM)
        y_BSD = gather(gpt.norm(x_BTD), SEQUENCE_DIM)
        return x_BTD + scatter(gpt.perceptron(y_BSD, w), SEQUENCE_DIM), None

    def share_of_loss(params, tokens):
        x_BTD = _embed(params[gpt.EMBEDDING], tokens[:, :-1])
        body = jax.checkpoint(layer, prevent_cse=False) if c.remat else layer
        x_BTD, _ = jax.lax.scan(body, x_BTD, gpt.stacked(params))
        logits_BSU = gather(gpt.norm(x_BTD), SEQUENCE_DIM) @ params[gpt.EMBEDDING].T
        return _token_losses(logits_BSU, tokens[:, 1:]).sum() / (c.batch * c.sequence)

    def local_step(state, tokens):
        params, opt = state
        value, grads = jax.value_and_grad(share_of_loss)(params, tokens)
        updates, opt = gpt.OPTIMIZER.update(grads, opt, params)
        return (optax.apply_updates(params, updates), opt), jax.lax.psum(value, AXIS)

    specs = tensor_specs(AXIS)
    return by_hand(local_step, mesh, state_specs(c, specs, specs), P())


def _own_rows(ids: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
    """Places of token ids among this device's `size` rows of the vocabulary, and which of them it holds."""
    places = ids - jax.lax.axis_index(AXIS) * size
    is_own = (places >= 0) & (places < size)
    return jnp.where(is_own, places, 0), is_own


def _embed(emb_UD: jax.Array, ids_BS: jax.Array) -> jax.Array:
    """The embedding of this device's part of the sequence, [B, T, D]: each token's row is on one device."""
    places, is_own = _own_rows(ids_BS, emb_UD.shape[0])
    return scatter(jnp.where(is_own[..., None], emb_UD[places], 0), SEQUENCE_DIM)


def _token_losses(logits_BSU: jax.Array, targets_BS: jax.Array) -> jax.Array:
    """Cross-entropy of this device's tokens, [B, T], from its part of the vocabulary of all tokens' logits.

    With m the largest logit of a token, log Σ_v exp(z_v − m) − (z_target − m); both sums are over devices.
    """
    largest_BS = jax.lax.pmax(jax.lax.stop_gradient(logits_BSU.max(-1)), AXIS)
    shifted_BSU = logits_BSU - largest_BS[..., None]
    places, is_own = _own_rows(targets_BS, logits_BSU.shape[-1])
    of_target_BS = jnp.take_along_axis(shifted_BSU, places[..., None], axis=-1)[..., 0]
    total_BT = scatter(jnp.exp(shifted_BSU).sum(-1), SEQUENCE_DIM)
    return jnp.log(total_BT) - scatter(jnp.where(is_own, of_target_BS, 0), SEQUENCE_DIM)


def closed_form_bytes(c: gpt.Config, n: int) -> float:
    """Bytes that one device sends in one step, by ring, each line times (n − 1) / n.

        layers: 2 gathers and 2 scatters, and the transposes     8 L A
        with remat: 2 gathers and the first scatter again        3 L A
        embedding: a scatter, and its transpose                  2 A
        logits: a gather of the sequence, and its transpose      2 A
        largest logit: an all-reduce                             2 R
        sum of exponentials: a scatter, and its transpose        2 R
        logit of the target: a scatter                           R
        loss: an all-reduce                                      2 i

    with L layers, A = B S D i bytes of activations, R = B S i, i bytes of one number. The target's scatter has no
    transpose to send: its cotangent is the same number for every token.
    """
    number = jax.dtypes.canonicalize_dtype(c.dtype).itemsize
    per_token = c.batch * c.sequence * number
    activations = per_token * c.width
    per_layer = 11 if c.remat else 8
    return (n - 1) / n * ((per_layer * c.layers + 4) * activations + 5 * per_token + 2 * number)
