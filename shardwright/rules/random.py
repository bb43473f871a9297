"""Random keys and bits: every block holds the same bits as on one device, whatever the mesh.

Partitionable threefry draws element i of an array from the hash of i alone, so a block is drawn from the positions of
its elements in the logical array. Other generators draw an array as one stream: they stay whole, and every device draws
all of it. (`rng_uniform` keeps its state in the device: its draws are the device's own in any program.)
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.random import threefry2x32_p

from shardwright.program.ir import Equation
from shardwright.rules.elementwise import elementwise_factors
from shardwright.rules.row import Factors, FactorsBuilder, Local, Row, bind

_IMPL = "threefry2x32"
_HASH_OPERATIONS = 2 + 20 * (1 + 3 + 1) + 5 * 3
"""Of one threefry2x32: key in; 20 rounds of an addition, a rotation (two shifts, an or) and a xor; 5 key injections."""


@functools.cache
def _threefry_dtype() -> Any:
    return jax.eval_shape(lambda: jax.random.key(0, impl=_IMPL)).dtype


def _draw_factors(equation: Equation) -> Factors:
    """Results [*keys, *shape]. Each key draws for itself; a dim of the shape has no operand: any placement is free."""
    b = FactorsBuilder(equation)
    keys = equation.invars[0].aval
    if keys.dtype != _threefry_dtype():
        return b.build()
    for dim, size in enumerate(equation.outvars[0].aval.shape):
        if size > 1 and (dim < keys.ndim or jax.config.jax_threefry_partitionable):
            b.link(size, {0: dim} if dim < keys.ndim else {}, {0: dim})
    return b.build()


def _key_factors(equation: Equation) -> Factors:
    """Dims of the key array are free; the words of a key stay together."""
    b = FactorsBuilder(equation)
    operand, result = equation.invars[0].aval, equation.outvars[0].aval
    for dim in range(min(operand.ndim, result.ndim)):
        if operand.shape[dim] > 1:
            b.link(operand.shape[dim], {0: dim}, {0: dim})
    return b.build()


def _fold_factors(equation: Equation) -> Factors:
    """Elementwise in keys and numbers, where the generator treats each key by itself."""
    if equation.invars[0].aval.dtype != _threefry_dtype():
        return _whole(equation)
    return elementwise_factors(equation)


def _counter_factors(equation: Equation) -> Factors:
    """The positions of an array's elements: no operand, so any placement is free."""
    b = FactorsBuilder(equation)
    for dim, size in enumerate(equation.outvars[0].aval.shape):
        if size > 1:
            b.link(size, {}, {0: dim, 1: dim})
    return b.build()


def _whole(equation: Equation) -> Factors:
    return FactorsBuilder(equation).build()


def _product_u64(position: Any, stride: int) -> tuple[Any, Any]:
    """The product mod 2⁶⁴ as high and low u32 words, from products of 16-bit halves.

    With p = p₁2¹⁶ + p₀ and the stride's low word s = s₁2¹⁶ + s₀:
      p·s = p₁s₁·2³² + (p₁s₀ + p₀s₁)·2¹⁶ + p₀s₀; the stride's high word adds to the high word only.
    """
    word = 2**32 - 1
    low, high = jnp.uint32(stride & word), jnp.uint32(stride >> 32 & word)
    p1, p0, s1, s0 = position >> 16, position & 0xFFFF, low >> 16, low & 0xFFFF
    middle = (p0 * s0 >> 16) + (p1 * s0 & 0xFFFF) + (p0 * s1 & 0xFFFF)  # < 3 · 2¹⁶
    hi = p1 * s1 + (p1 * s0 >> 16) + (p0 * s1 >> 16) + (middle >> 16) + position * high
    return hi, position * low


def positions(shape: Sequence[int], offsets: Sequence[Any], logical: Sequence[int]) -> tuple[Any, Any]:
    """Row-major position of each element of a block in the logical array, as high and low u32 words.

    Args:
      shape: shape of the block.
      offsets: index of the block's first element in each dim.
      logical: shape of the whole array.
    """
    hi = lo = jnp.zeros(tuple(shape), jnp.uint32)
    one_word = math.prod(logical) < 2**32
    for dim, offset in enumerate(offsets):
        index = jnp.arange(shape[dim], dtype=jnp.uint32) + jnp.asarray(offset).astype(jnp.uint32)
        along = index.reshape([-1 if d == dim else 1 for d in range(len(shape))])
        stride = math.prod(logical[dim + 1 :])
        if one_word:
            lo = lo + along * jnp.uint32(stride % 2**32)
            continue
        step_hi, step_lo = _product_u64(along, stride)
        lo = lo + step_lo
        hi = hi + step_hi + (lo < step_lo).astype(jnp.uint32)  # the low words' carry
    return hi, lo


def _offsets(local: Local, first_dim: int) -> list[Any]:
    """Where the block begins in each dim of the result from `first_dim` on."""
    return [0 if f is None else local.offset(f) for f in local.factors.results[0][first_dim:]]


def _hash_block(keys: Any, logical: Sequence[int], local: Local) -> tuple[Any, Any]:
    """The two hashed words of each element of a block [*keys, *shape] of the draws of `keys`."""
    shape = local.result_shapes[0]
    hi, lo = positions(shape[keys.ndim :], _offsets(local, keys.ndim), logical)
    words = jax.random.key_data(keys).reshape(*keys.shape, *(1 for _ in logical), 2)
    full = functools.partial(jnp.broadcast_to, shape=shape)
    first, second = threefry2x32_p.bind(full(words[..., 0]), full(words[..., 1]), full(hi), full(lo))
    return first, second


def _shape_is_whole(equation: Equation, local: Local) -> bool:
    drawn = local.factors.results[0][equation.invars[0].aval.ndim :]
    return all(f is None or local.parts[f] == 1 for f in drawn)


def _bits_local(equation: Equation, values: Sequence[Any], local: Local) -> list[Any]:
    if _shape_is_whole(equation, local):
        return bind(equation, values, local)
    first, second = _hash_block(values[0], equation.params["shape"], local)
    dtype = equation.outvars[0].aval.dtype
    if equation.params["bit_width"] == 64:
        return [(first.astype(dtype) << 32) | second.astype(dtype)]
    return [(first ^ second).astype(dtype)]


def _split_local(equation: Equation, values: Sequence[Any], local: Local) -> list[Any]:
    if _shape_is_whole(equation, local):
        return bind(equation, values, local)
    words = jnp.stack(_hash_block(values[0], equation.params["shape"], local), axis=-1)
    return [jax.random.wrap_key_data(words, impl=_IMPL)]


def _counter_local(equation: Equation, values: Sequence[Any], local: Local) -> list[Any]:
    del values
    return list(positions(local.result_shapes[0], _offsets(local, 0), equation.params["shape"]))


def _hash_flops(equation: Equation) -> float:
    """One hash an element."""
    return float(equation.outvars[0].aval.size * _HASH_OPERATIONS)


_ELEMENTWISE_HASH = Row(elementwise_factors, flops=_hash_flops)
_WHOLE = Row(_whole, flops=_hash_flops)

ROWS: dict[str, Row] = {
    "random_bits": Row(_draw_factors, _bits_local, flops=_hash_flops),
    "random_split": Row(_draw_factors, _split_local, flops=_hash_flops),
    "random_fold_in": Row(_fold_factors, flops=_hash_flops),
    **dict.fromkeys(("random_seed", "random_wrap", "random_unwrap", "random_clone"), Row(_key_factors)),
    **dict.fromkeys(("threefry2x32", "threefry4x32", "philox2x32", "philox4x32"), _ELEMENTWISE_HASH),
    "iota_2x32_shape": Row(_counter_factors, _counter_local),
    **dict.fromkeys(("random_gamma", "rng_bit_generator", "rng_uniform"), _WHOLE),
}
