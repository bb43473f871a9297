"""Rows of shardwright/rules/reduce.py: (function, arguments, how the dims relate)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from shardwright.rules.reduce import ROWS
from tests.rules.harness import check, equations, notation


def _x(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).uniform(0.5, 2, shape).astype(np.float32)


def _i(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(-9, 9, shape, np.int32)


def _pairs(a, b):
    return a[0] + b[0], a[1] * b[1]


_CASES = {
    "reduce_sum": (lambda x: x.sum((0, 2)), [_x(5, 4, 3)], "abc->b | sum ac"),
    "reduce_sum: of all": (lambda x: x.sum(), [_x(5, 3)], "ab-> | sum ab"),
    "reduce_sum: integers": (lambda x: x.sum(1), [_i(5, 3)], "ab->a | sum b"),
    "reduce_sum: narrow": (lambda x: lax.reduce_sum(x, (0,)), [_x(5, 3).astype(jnp.bfloat16)], "ab->b | sum a"),
    "reduce_prod": (lambda x: x.prod(1), [_x(5, 4, 3)], "abc->ac | prod b"),
    "reduce_max": (lambda x: x.max(1), [_x(5, 3)], "ab->a | max b"),
    "reduce_max: integers": (lambda x: x.max(), [_i(5, 3)], "ab-> | max ab"),
    "reduce_min": (lambda x: x.min(0), [-_x(5, 3)], "ab->b | min a"),
    "reduce_and": (lambda x: (x > 1).all(0), [_x(5, 3)], "ab->b | and a"),
    "reduce_and: bits": (lambda x: lax.reduce_and(x, (0,)), [_i(5, 3)], "ab->b | and a"),
    "reduce_or": (lambda x: (x > 1).any(1), [_x(5, 3)], "ab->a | or b"),
    "reduce_or: bits": (lambda x: lax.reduce_or(x, (0, 1)), [_i(5, 3)], "ab-> | or ab"),
    "reduce_xor": (lambda x: lax.reduce_xor(x, (0,)), [_i(5, 3)], ".a->a"),
    "reduce": (lambda x, y: lax.reduce((x, y), (0.0, 1.0), _pairs, (1,)), [_x(5, 4, 3)] * 2, "a.b,a.b,,->ab,ab"),
    "argmax": (lambda x: jnp.argmax(x, 1), [_x(5, 4, 3)], "a.b->ab"),
    "argmin": (lambda x: jnp.argmin(x, 0), [_i(5, 3)], ".a->a"),
    "cumsum": (lambda x: lax.cumsum(x, 1), [_x(5, 4, 3)], "abc->abc | blocked b"),
    "cumsum: reversed": (lambda x: lax.cumsum(x, 0, reverse=True), [_i(5, 3)], "ab->ab | blocked a"),
    "cumprod": (lambda x: lax.cumprod(x, 1), [_x(5, 3)], "ab->ab | blocked b"),
    "cummax": (lambda x: lax.cummax(x, 1), [_x(5, 3)], "ab->ab | blocked b"),
    "cummin": (lambda x: lax.cummin(x, 0), [_i(5, 3)], "ab->ab | blocked a"),
    "cumlogsumexp": (lambda x: lax.cumlogsumexp(x, 1), [_x(5, 3)], "ab->ab | blocked b"),
    "sort": (lambda x: lax.sort(x, dimension=0), [_x(5, 3)], "ab->ab | blocked a"),
    "sort: pairs": (lambda x, y: lax.sort((x, y), dimension=1), [_i(5, 3), _x(5, 3)], "ab,ab->ab,ab | blocked b"),
    "top_k": (lambda x: lax.top_k(x, 2), [_x(5, 3, 4)], "ab.->ab.,ab."),
    "top_k: of another dim": (lambda x: lax.top_k(x, 2, axis=1), [_x(5, 4, 3)], "a.b->a.b,a.b"),
    "approx_top_k": (lambda x: lax.approx_max_k(x, 2), [_x(5, 3, 4)], "ab.->ab.,ab."),
    "approx_top_k: least": (lambda x: lax.approx_min_k(x, 2, reduction_dimension=0), [_x(5, 3)], ".a->.a,.a"),
}


@pytest.mark.parametrize("name", _CASES)
def test_row(name):
    fn, args, expected = _CASES[name]
    (equation,) = check(fn, *args, only=name.split(":")[0])
    assert notation(ROWS[equation.name].factors(equation)) == expected


def test_every_row_has_a_case():
    assert {name.split(":")[0] for name in _CASES} == set(ROWS)


def _the_equation(fn, *args, name):
    (equation,) = [e for e in equations(fn, *args) if e.name == name]
    return equation


def test_only_sums_pass_a_pending_sum():
    x = _x(5, 3)
    for name, fn in (("reduce_sum", lambda x: x.sum(0)), ("cumsum", lambda x: lax.cumsum(x))):
        assert ROWS[name].linear(_the_equation(fn, x, name=name)) == (frozenset({0}),)
    for name, fn in (("reduce_max", lambda x: x.max(0)), ("cumprod", lambda x: lax.cumprod(x))):
        assert ROWS[name].linear(_the_equation(fn, x, name=name)) == ()


def test_flops():
    x = _x(5, 16)
    for name, fn, flops in (
        ("reduce_sum", lambda x: x.sum(0), 80),
        ("argmax", lambda x: jnp.argmax(x, 1), 80),
        ("cumsum", lambda x: lax.cumsum(x), 80),
        ("sort", lambda x: lax.sort(x), 80 * 4),
        ("top_k", lambda x: lax.top_k(x, 8), 80 * 3),
        ("top_k", lambda x: lax.top_k(x, 1), 80),
    ):
        assert ROWS[name].flops(_the_equation(fn, x, name=name)) == flops


def test_gradients_meet_the_same_rows():
    """A logsumexp's gradient: its maximum and sum are contracted, the rest elementwise."""
    block = equations(jax.grad(lambda x: jax.nn.logsumexp(x, 1).sum()), _x(5, 3))
    factors = {e.name: notation(ROWS[e.name].factors(e)) for e in block if e.name in ROWS}
    assert factors["reduce_max"] == "ab->a | max b"
    assert factors["reduce_sum"] == "ab->a | sum b"
