"""Rows of shardwright/rules/elementwise.py: (function, arguments, how the dims relate)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name

from shardwright import _compat
from shardwright.rules import elementwise
from shardwright.rules.table import ROWS
from tests.rules.harness import check, equations, notation


def _x(*shape: int, dtype=np.float32) -> np.ndarray:
    return np.random.default_rng(0).uniform(1, 50, shape).astype(dtype)


_CASES = {
    "add": (lambda x, y: x + y, [_x(5, 3), _x(5, 3)], "ab,ab->ab"),
    "add: a scalar": (lambda x: x + 2.0, [_x(5, 3)], "ab,->ab"),
    "add: a dim of size 1": (lambda x, y: jax.lax.add_p.bind(x, y), [_x(5, 3), _x(1, 3)], "ab,.b->ab"),
    "sub": (lambda x, y: x - y, [_x(5), _x(5)], "a,a->a"),
    "mul": (lambda x, y: x * y, [_x(5, 1, 3), _x(5, 1, 3)], "a.b,a.b->a.b"),
    "mul: integers": (lambda x, y: x * y, [_x(5, dtype=np.int32), _x(5, dtype=np.int32)], "a,a->a"),
    "mul: of a scalar": (lambda x, y: x * y, [np.float32(2), np.float32(3)], ",->"),
    "div": (lambda x, y: x / y, [_x(5, 3), _x(5, 3)], "ab,ab->ab"),
    "div: integers": (lambda x, y: jax.lax.div(x, y), [_x(5, dtype=np.int32), _x(5, dtype=np.int32)], "a,a->a"),
    "neg": (lambda x: -x, [_x(5, 3)], "ab->ab"),
    "max": (lambda x: jnp.maximum(x, 25.0), [_x(5, 3)], "ab,->ab"),
    "exp": (lambda x: jnp.exp(-x), [_x(5, 3)], "ab->ab"),
    "clamp": (lambda x: jax.lax.clamp(10.0, x, 30.0), [_x(5, 3)], ",ab,->ab"),
    "clamp: by arrays": (lambda x: jax.lax.clamp(x - 1, x * 2, x + 9), [_x(5, 3)], "ab,ab,ab->ab"),
    "select_n": (lambda p, x, y: jax.lax.select_n(p, x, y), [_x(5, 3) > 25, _x(5, 3), -_x(5, 3)], "ab,ab,ab->ab"),
    "select_n: by a scalar": (lambda p, x, y: jax.lax.select_n(p, x, y), [np.True_, _x(5, 3), -_x(5, 3)], ",ab,ab->ab"),
    "select_n: of three": (
        lambda p, x: jax.lax.select_n(p, x, x, -x),
        [np.array([2, 0, 1], np.int32), _x(3)],
        "a,a,a,a->a",
    ),
    "integer_pow": (lambda x: jax.lax.integer_pow(x, 3), [_x(5, 3)], "ab->ab"),
    "integer_pow: one": (lambda x: jax.lax.integer_pow_p.bind(x, y=1), [_x(5, 3)], "ab->ab"),
    "convert_element_type": (lambda x: x.astype(jnp.bfloat16), [_x(5, 3)], "ab->ab"),
    "convert_element_type: widens": (lambda x: x.astype(np.float32), [_x(5, 3).astype(jnp.bfloat16)], "ab->ab"),
    "complex": (lambda x, y: jax.lax.complex(x, y), [_x(5), _x(5)], "a,a->a"),
    "real": (lambda x: jnp.real(x), [_x(5).astype(np.complex64)], "a->a"),
    "imag": (lambda x: jnp.imag(x), [(_x(5) * 1j).astype(np.complex64)], "a->a"),
    "conj": (lambda x: jnp.conj(x), [(_x(5) * 1j).astype(np.complex64)], "a->a"),
    "copy": (lambda x: jnp.array(x, copy=True), [_x(5)], "a->a"),
    "name": (lambda x: checkpoint_name(x, "kept"), [_x(5)], "a->a"),
    "nextafter": (lambda x, y: jnp.nextafter(x, y), [_x(5), -_x(5)], "a,a->a"),
    "bitcast_convert_type": (lambda x: jax.lax.bitcast_convert_type(x, np.int32), [_x(5, 3)], "ab->ab"),
    "bitcast_convert_type: narrower": (lambda x: jax.lax.bitcast_convert_type(x, np.uint8), [_x(5, 3)], "ab->ab."),
    "bitcast_convert_type: wider": (
        lambda x: jax.lax.bitcast_convert_type(x, np.uint32),
        [_x(5, 3, 4, dtype=np.uint8)],
        "ab.->ab",
    ),
}
if "polynomial" not in _compat.MISSING_PRIMITIVES:
    _CASES |= {
        "polynomial": (lambda x, a: jax.lax.polynomial(x, [a, 2.0, a]), [_x(5, 3), _x(5, 3)], "ab,ab,,ab->ab"),
        "polynomial: a dim of size 1": (
            lambda x, a: jax.lax.polynomial_p.bind(x, a, x),
            [_x(5, 3), _x(1, 3)],
            "ab,.b,ab->ab",
        ),
    }


@pytest.mark.parametrize("name", _CASES)
def test_row(name):
    fn, args, expected = _CASES[name]
    (equation,) = check(fn, *args, only=name.split(":")[0])
    assert notation(ROWS[equation.name].factors(equation)) == expected


def _linear(fn, *args):
    (equation,) = equations(fn, *args)
    return ROWS[equation.name].linear(equation)


@pytest.mark.parametrize(
    ("old", "new", "kept"),
    [
        ("bfloat16", "float32", True),
        ("float16", "float32", True),
        ("float32", "complex64", True),
        ("float32", "bfloat16", False),
        ("float16", "bfloat16", False),
        ("bfloat16", "float16", False),
        ("float8_e4m3fn", "bfloat16", True),
        ("float8_e5m2", "float8_e4m3fn", False),
        ("int32", "float32", False),
        ("float32", "int32", False),
    ],
)
def test_a_sum_waits_behind_conversions_that_keep_every_number(old, new, kept):
    x = jnp.ones(3, old)
    assert _linear(lambda x: jax.lax.convert_element_type(x, new), x) == ((frozenset({0}),) if kept else ())


def test_division_is_linear_in_the_dividend_unless_it_drops_remainders():
    assert _linear(jax.lax.div, _x(3), _x(3)) == (frozenset({0}),)
    assert _linear(jax.lax.div, _x(3, dtype=np.int32), _x(3, dtype=np.int32)) == ()


def test_sums_products_and_choices_are_linear():
    x = _x(3)
    assert _linear(jax.lax.add, x, x) == (frozenset({0, 1}),)
    assert _linear(jax.lax.mul, x, x) == (frozenset({0}), frozenset({1}))
    assert _linear(jax.lax.select, x > 25, x, x) == (frozenset({1, 2}),)
    assert _linear(jax.lax.square, x) == ()


def test_every_name_is_a_primitive():
    known = jax.extend.core.primitives
    public = {getattr(known, n).name for n in dir(known) if n.endswith("_p")}
    elsewhere = {"eq_to", "le_to", "lt_to", "mulhi", "name", "stop_gradient"}  # not in jax.extend's list
    assert set(elementwise.ROWS) <= public | elsewhere
