"""The harness finds rows that are wrong, each in one way."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardwright.rules.row import Factors, FactorsBuilder, bind
from shardwright.rules.table import ROWS
from tests.rules import harness

_X = np.random.default_rng(0).uniform(1, 9, (5, 3)).astype(np.float32)
_INDICES = np.array([4, 9, 0, 2], np.int32)


def _swapped(equation) -> Factors:
    """Factors of a transpose that relate its dims in the old order."""
    b = FactorsBuilder(equation)
    for dim, size in enumerate(equation.invars[0].aval.shape):
        b.link(size, {0: dim}, {0: dim})
    return b.build()


def _take(x, i):
    return jax.lax.gather(x, i, jax.lax.GatherDimensionNumbers((1,), (0,), (0,)), (1, x.shape[1]), mode="fill")


def _everywhere(local):
    """The same device seen as block 0 of every factor."""
    return dataclasses.replace(local, index=lambda factor: 0)


_WRONG = {
    "no offset": (
        "iota",
        {"local": lambda e, v, p: ROWS["iota"].local(e, v, _everywhere(p))},
        lambda: jax.lax.iota(np.int32, 5),
        [],
    ),
    "wrong dims": ("transpose", {"factors": _swapped}, jnp.transpose, [_X]),
    "whole shapes": ("broadcast_in_dim", {"local": bind}, lambda x: jnp.broadcast_to(x, (4, 5, 3)), [_X]),
    "padding contracted": (
        "dot_general",
        {"factors": lambda e: dataclasses.replace(ROWS["dot_general"].factors(e), masked=frozenset({1}))},
        jnp.dot,
        [_X, _X.T[:, :4]],
    ),
    "no fill": (
        "gather",
        {"local": lambda e, v, p: [jnp.nan_to_num(ROWS["gather"].local(e, v, p)[0])]},
        _take,
        [_X, _INDICES[:, None]],
    ),
    "fill on every device": (
        "gather",
        {"local": lambda e, v, p: ROWS["gather"].local(e, v, _everywhere(p))},
        _take,
        [_X, _INDICES[:, None]],
    ),
    "not linear": ("square", {"linear": lambda e: (frozenset({0}),)}, jnp.square, [_X]),
    "a factor lost": ("exp", {"factors": lambda e: Factors((5,), ((0, None),), ((None, None),))}, jnp.exp, [_X]),
    "no multiple": ("exp", {"factors": lambda e: Factors((2,), ((0, None),), ((0, None),))}, jnp.exp, [_X]),
}


@pytest.mark.parametrize("name", _WRONG)
def test_a_wrong_row_fails(name):
    primitive, change, fn, args = _WRONG[name]
    row = ROWS[primitive]
    (equation,) = harness.equations(fn, *args)
    values, results = [np.asarray(a) for a in args], [np.asarray(fn(*args))]
    harness.check_equation(row, equation, values, results)
    with pytest.raises(AssertionError):
        harness.check_equation(dataclasses.replace(row, **change), equation, values, results)


def test_a_primitive_without_a_row_fails():
    with pytest.raises(AssertionError, match="no row"):
        harness.check(lambda x: jax.lax.fft(x, "fft", (3,)), _X.astype(np.complex64), only="iota")
