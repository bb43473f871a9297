"""Rows of shardwright/rules/shape.py."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.rules.harness import all_rows, check, notation


def _x(*shape: int, dtype=np.float32) -> np.ndarray:
    return np.random.default_rng(0).uniform(1, 50, shape).astype(dtype)


_CASES = {
    "reshape merges": (lambda x: x.reshape(15), [_x(5, 3)], "a.->a", (5,)),
    "reshape splits": (lambda x: x.reshape(5, 3), [_x(15)], "a->a.", (5,)),
    "reshape keeps": (lambda x: x.reshape(4, 6, 5), [_x(4, 2, 3, 5)], "ab.c->abc", (4, 2, 5)),
    "reshape regroups": (lambda x: x.reshape(4, 9), [_x(6, 6)], "a.->a.", (2,)),
    "reshape has no common divisor": (lambda x: x.reshape(3, 2), [_x(2, 3)], "..->..", ()),
    "reshape passes over ones": (lambda x: x.reshape(1, 5, 1, 3, 4), [_x(5, 1, 12)], "a.b->.a.b.", (5, 3)),
    "reshape heads": (lambda x: x.reshape(2, 5, 12), [_x(2, 5, 4, 3)], "abc.->abc", (2, 5, 4)),
    "reshape to a scalar": (lambda x: x.reshape(()), [_x(1, 1)], "..->", ()),
    "reshape empty": (lambda x: x.reshape(0, 3), [_x(3, 0)], "..->..", ()),
    "reshape permuted": (lambda x: jax.lax.reshape(x, (5, 8), (1, 0, 2)), [_x(4, 5, 2)], "ab.->ba", None),
    "transpose": (lambda x: x.transpose(2, 0, 1), [_x(4, 5, 3)], "abc->cab", (3, 4, 5)),
    "squeeze": (lambda x: jnp.squeeze(x, (0, 2)), [_x(1, 5, 1, 3)], ".a.b->ab", (5, 3)),
}


@pytest.mark.parametrize("name", _CASES)
def test_row(name):
    fn, args, expected, sizes = _CASES[name]
    (equation,) = check(fn, *args)
    factors = all_rows()[equation.name].factors(equation)
    assert notation(factors) == expected
    assert sizes is None or sorted(factors.sizes) == sorted(sizes)
