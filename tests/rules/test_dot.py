"""Rows of shardwright/rules/dot.py: (function, arguments, how the dims relate, flops)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardwright.rules.table import ROWS
from tests.rules.harness import check, notation


def _x(*shape: int, dtype=np.float32) -> np.ndarray:
    return np.random.default_rng(0).uniform(-2, 2, shape).astype(dtype)


_CASES = {
    "matrices": (jnp.matmul, [_x(5, 3), _x(3, 4)], "ab,bc->ac | sum b", 2 * 5 * 3 * 4),
    "vectors": (jnp.dot, [_x(5), _x(5)], "a,a-> | sum a", 2 * 5),
    "outer": (lambda x, y: jax.lax.dot_general(x, y, (((), ()), ((), ()))), [_x(5), _x(3)], "a,b->ab", 2 * 5 * 3),
    "batched": (jnp.matmul, [_x(2, 5, 3), _x(2, 3, 4)], "abc,acd->abd | sum c", 2 * 2 * 5 * 3 * 4),
    "two contracted": (
        lambda x, y: jax.lax.dot_general(x, y, (((1, 2), (1, 0)), ((), ()))),
        [_x(5, 2, 3), _x(3, 2)],
        "abc,cb->a | sum bc",
        2 * 5 * 2 * 3,
    ),
    "attention scores": (
        lambda q, k: jax.lax.dot_general(q, k, (((3,), (3,)), ((0, 2), (0, 2)))),
        [_x(2, 5, 3, 4), _x(2, 6, 3, 4)],
        "abcd,aecd->acbe | sum d",
        2 * 2 * 3 * 5 * 6 * 4,
    ),
    "bfloat16 into float32": (
        lambda x, y: jnp.matmul(x, y, preferred_element_type=np.float32),
        [_x(5, 3).astype(jnp.bfloat16), _x(3, 4).astype(jnp.bfloat16)],
        "ab,bc->ac | sum b",
        2 * 5 * 3 * 4,
    ),
    "integers": (jnp.matmul, [_x(5, 3, dtype=np.int32), _x(3, 4, dtype=np.int32)], "ab,bc->ac | sum b", 2 * 5 * 3 * 4),
    "booleans": (jnp.matmul, [_x(5, 3) > 1, _x(3, 4) > 1], "ab,bc->ac | or b", 2 * 5 * 3 * 4),
}


@pytest.mark.parametrize("name", _CASES)
def test_row(name):
    fn, args, expected, flops = _CASES[name]
    (equation,) = check(fn, *args, only="dot_general")
    row = ROWS["dot_general"]
    assert notation(row.factors(equation)) == expected
    assert row.flops(equation) == flops
    assert row.linear(equation) == (frozenset({0}), frozenset({1}))
