"""Rows of shardwright/rules/shape.py: (function, arguments, how the dims relate, sizes of the factors)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardwright.rules.table import ROWS
from tests.rules.harness import check, letter_sizes, notation


def _x(*shape: int, dtype=np.float32) -> np.ndarray:
    return np.random.default_rng(0).uniform(1, 50, shape).astype(dtype)


_CASES = {
    "reshape: merges": (lambda x: x.reshape(15), [_x(5, 3)], "a.->a", (5,)),
    "reshape: splits": (lambda x: x.reshape(5, 3), [_x(15)], "a->a.", (5,)),
    "reshape: keeps": (lambda x: x.reshape(4, 6, 5), [_x(4, 2, 3, 5)], "ab.c->abc", (4, 2, 5)),
    "reshape: regroups": (lambda x: x.reshape(4, 9), [_x(6, 6)], "a.->a.", (2,)),
    "reshape: has no common divisor": (lambda x: x.reshape(3, 2), [_x(2, 3)], "..->..", ()),
    "reshape: passes over ones": (lambda x: x.reshape(1, 5, 1, 3, 4), [_x(5, 1, 12)], "a.b->.a.b.", (5, 3)),
    "reshape: heads": (lambda x: x.reshape(2, 5, 12), [_x(2, 5, 4, 3)], "abc.->abc", (2, 5, 4)),
    "reshape: to a scalar": (lambda x: x.reshape(()), [_x(1, 1)], "..->", ()),
    "reshape: empty": (lambda x: x.reshape(0, 3), [_x(3, 0)], "..->..", ()),
    "reshape: permuted": (lambda x: jax.lax.reshape(x, (5, 8), (1, 0, 2)), [_x(4, 5, 2)], "ab.->ba", (4, 5)),
    "transpose": (lambda x: x.transpose(2, 0, 1), [_x(4, 5, 3)], "abc->cab", (4, 5, 3)),
    "squeeze": (lambda x: jnp.squeeze(x, (0, 2)), [_x(1, 5, 1, 3)], ".a.b->ab", (5, 3)),
    "broadcast_in_dim: a new dim": (lambda x: jnp.broadcast_to(x, (5, 4, 3)), [_x(3)], "a->bca", (3, 5, 4)),
    "broadcast_in_dim: expands": (lambda x: jax.lax.broadcast_in_dim(x, (5, 4), (0, 1)), [_x(5, 1)], "a.->ab", (5, 4)),
    "broadcast_in_dim: adds ones": (lambda x: jnp.expand_dims(x, (0, 2)), [_x(5, 3)], "ab->.a.b", (5, 3)),
    "broadcast_in_dim: a scalar": (lambda x: jnp.full((3, 5), x), [np.float32(2)], "->ab", (3, 5)),
    "tile": (lambda x: jax.lax.tile(x, (1, 3)), [_x(5, 2)], "a.->ab", (5, 3)),
    "iota": (lambda: jax.lax.iota(np.int32, 7), [], "->a", (7,)),
    "iota: of rank 3": (lambda: jax.lax.broadcasted_iota(np.float32, (2, 5, 3), 1), [], "->abc", (2, 5, 3)),
    "iota: rounds": (lambda: jax.lax.iota(jnp.bfloat16, 523), [], "->a", (523,)),
    "iota: wraps": (lambda: jax.lax.iota(np.int8, 300), [], "->a", (300,)),
    "empty": (lambda: jax.lax.empty((4, 3), np.float32), [], "->ab", (4, 3)),
    "slice": (lambda x: x[:, 1:4], [_x(5, 6, 3)], "a.b->a.b", (5, 3)),
    "slice: with a stride": (lambda x: jax.lax.slice(x, (0, 0), (5, 6), (1, 2)), [_x(5, 6)], "a.->a.", (5,)),
    "slice: with a stride of one": (lambda x: jax.lax.slice(x, (0, 2), (5, 6), (1, 1)), [_x(5, 6)], "a.->a.", (5,)),
    "pad": (lambda x: jax.lax.pad(x, np.float32(3), ((0, 0, 0), (1, 2, 0))), [_x(5, 3)], "a.,->a.", (5,)),
    "pad: inside": (lambda x, y: jax.lax.pad(x, y, ((0, 0, 1), (0, 0, 0))), [_x(4, 3), np.float32(7)], ".a,->.a", (3,)),
    "pad: cuts off": (lambda x: jax.lax.pad(x, np.float32(0), ((0, 0, 0), (-1, 0, 0))), [_x(5, 3)], "a.,->a.", (5,)),
    "split": (lambda x: jnp.split(x, (2, 3), axis=1), [_x(5, 6, 2)], "a.b->a.b,a.b,a.b", (5, 2)),
    "unstack": (lambda x: jnp.unstack(x, axis=1), [_x(5, 2, 3)], "a.b->ab,ab", (5, 3)),
    "rev": (lambda x: x[:, ::-1], [_x(5, 3)], "ab->ab | blocked b", (5, 3)),
    "concatenate": (lambda x, y: jnp.concatenate([x, y, x], 1), [_x(5, 2, 3), _x(5, 4, 3)], "a.b,a.b,a.b->a.b", (5, 3)),
    "concatenate: integers": (lambda x: jnp.concatenate([x, x]), [_x(2, 3, dtype=np.int32)], ".a,.a->.a", (3,)),
    "concatenate: booleans": (lambda x: jnp.concatenate([x, x], 1), [_x(5, 2) > 9], "a.,a.->a.", (5,)),
    "stack": (lambda x, y: jnp.stack([x, y], 1), [_x(5, 3), _x(5, 3)], "ab,ab->a.b", (5, 3)),
}


@pytest.mark.parametrize("name", _CASES)
def test_row(name):
    fn, args, expected, sizes = _CASES[name]
    (equation,) = check(fn, *args, only=name.split(":")[0])
    factors = ROWS[equation.name].factors(equation)
    assert notation(factors) == expected
    assert letter_sizes(factors) == sizes
