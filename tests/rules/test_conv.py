"""Rows of shardwright/rules/conv.py, those that gradients of convolutions and pooling need included."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from shardwright.rules.conv import ROWS, disjoint_windows
from tests.rules.harness import check, equations, letter_sizes, notation


def _x(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).uniform(0.5, 2, shape).astype(np.float32)


def _conv(stride=1, padding="SAME", groups=1, batch_groups=1, layout=("NHWC", "HWIO", "NHWC"), **rest):
    def fn(x, w):
        strides = (stride,) * (x.ndim - 2)
        return lax.conv_general_dilated(
            x,
            w,
            strides,
            padding,
            dimension_numbers=layout,
            feature_group_count=groups,
            batch_group_count=batch_groups,
            **rest,
        )

    return fn


_CONV1D = ("NHC", "HIO", "NHC")
_CASES = {
    "plain": (_conv(), [_x(5, 4, 4, 3), _x(3, 3, 3, 6)], "a..b,..bc->a..c | sum b", (5, 3, 6)),
    "channels first": (
        _conv(layout=("NCHW", "OIHW", "NCHW")), [_x(5, 3, 4, 4), _x(6, 3, 3, 3)], "ab..,cb..->ac.. | sum b", (5, 3, 6)),
    "with stride": (_conv(2), [_x(5, 8, 8, 3), _x(3, 3, 3, 6)], "a..b,..bc->a..c | sum b", (5, 3, 6)),
    "pointwise": (_conv(), [_x(2, 5, 3, 4), _x(1, 1, 4, 3)], "abcd,..de->abce | sum d", (2, 5, 3, 4, 3)),
    "pointwise in one dim": (
        _conv(), [_x(2, 5, 4, 3), _x(1, 3, 3, 2)], "ab.c,..cd->ab.d | sum c", (2, 5, 3, 2)),
    "pointwise with stride": (
        _conv(2), [_x(2, 6, 5, 3), _x(1, 1, 3, 2)], "ab.c,..cd->ab.d | sum c", (2, 3, 3, 2)),
    "patches": (
        _conv(4, "VALID"), [_x(2, 20, 12, 3), _x(4, 4, 3, 5)], "abcd,..de->abce | sum d", (2, 5, 3, 3, 5)),
    "grouped": (_conv(groups=3), [_x(5, 4, 4, 6), _x(3, 3, 2, 12)], "a..b,...b->a..b", (5, 3)),
    "depthwise": (_conv(groups=7, layout=_CONV1D), [_x(5, 6, 7), _x(3, 1, 7)], "a.b,..b->a.b", (5, 7)),
    "depthwise with a multiplier": (
        _conv(groups=5, layout=_CONV1D), [_x(3, 6, 5), _x(3, 1, 10)], "a.b,..b->a.b", (3, 5)),
    "batch groups": (
        _conv(batch_groups=3, layout=_CONV1D), [_x(6, 5, 4), _x(3, 4, 12)], "a.b,.ba->..a | sum b", (3, 4)),
    "dilated window": (
        _conv(rhs_dilation=(2,), layout=_CONV1D), [_x(5, 9, 3), _x(3, 3, 2)], "a.b,.bc->a.c | sum b", (5, 3, 2)),
    "transposed": (
        lambda x, w: lax.conv_transpose(x, w, (2,), "SAME"), [_x(5, 4, 3), _x(3, 3, 2)], "a.b,.bc->a.c | sum b",
        (5, 3, 2)),
    "transposed patches": (
        lambda x, w: lax.conv_transpose(x, w, (3,), "VALID"), [_x(2, 5, 3), _x(3, 3, 2)], "abc,.cd->abd | sum c",
        (2, 5, 3, 2)),
    "transposed patches with gaps": (
        lambda x, w: lax.conv_transpose(x, w, (3,), "VALID"), [_x(2, 5, 3), _x(2, 3, 2)], "abc,.cd->abd | sum c",
        (2, 5, 3, 2)),
    "narrow, wide result": (
        _conv(layout=_CONV1D, preferred_element_type=np.float32),
        [_x(5, 4, 3).astype(jnp.bfloat16), _x(3, 3, 2).astype(jnp.bfloat16)], "a.b,.bc->a.c | sum b", (5, 3, 2)),
}  # fmt: skip


@pytest.mark.parametrize("name", _CASES)
def test_convolution(name):
    fn, args, expected, sizes = _CASES[name]
    (equation,) = check(fn, *args, only="conv_general_dilated")
    factors = ROWS[equation.name].factors(equation)
    assert notation(factors) == expected
    assert letter_sizes(factors) == sizes


_GRADIENTS = {  # the convolution; by the operand; by the kernel
    "with stride": (_CASES["with stride"], "a..b,..cb->a..c | sum b", "a..b,a..c->..bc | sum a"),
    "pointwise": (_CASES["pointwise"], "abcd,..ed->abce | sum d", "abcd,abce->..de | sum abc"),
    "pointwise with stride": (
        _CASES["pointwise with stride"], "ab.c,..dc->ab.d | sum c", "ab.c,ab.d->..cd | sum ab"),
    "patches": (_CASES["patches"], "abcd,..ed->abce | sum d", "abcd,abce->..de | sum abc"),
    "transposed patches": (_CASES["transposed patches"], "abc,.dc->abd | sum c", "abc,abd->.cd | sum ab"),
    "transposed patches with gaps": (
        _CASES["transposed patches with gaps"], "abc,.dc->abd | sum c", "abc,abd->.cd | sum ab"),
    "grouped": (_CASES["grouped"], "a..b,..b.->a..b", "a..b,a..b->...b | sum a"),
    "depthwise": (_CASES["depthwise"], "a.b,.b.->a.b", "a.b,a.b->..b | sum a"),
    "batch groups": (_CASES["batch groups"], "a.b,.b.->a.b", "a.b,..a->.ba"),
}  # fmt: skip


@pytest.mark.parametrize("name", _GRADIENTS)
def test_gradients_of_a_convolution(name):
    (fn, args, *_), *expected = _GRADIENTS[name]
    for i, form in enumerate(expected):
        *_, backward = check(jax.grad(lambda *a: (fn(*a) ** 2).sum(), i), *args, only="conv_general_dilated")
        assert notation(ROWS[backward.name].factors(backward)) == form


_POOL = (1, 2, 2, 1)
_POOLS = {
    "reduce_window_max": (
        lambda x: lax.reduce_window(x, -np.inf, lax.max, _POOL, _POOL, "VALID"), [_x(3, 6, 10, 2)], "abcd->abcd",
        (3, 3, 5, 2)),
    "reduce_window_min": (
        lambda x: lax.reduce_window(x, np.inf, lax.min, _POOL, (1, 3, 2, 1), "VALID"), [_x(3, 9, 7, 2)], "ab.c->ab.c",
        (3, 3, 2)),
    "reduce_window_sum": (
        lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 3), (1, 1), "SAME"), [_x(5, 6)], "a.->a.", (5,)),
    "reduce_window": (
        lambda x: lax.reduce_window((x, x), (0.0, 1.0), _pairs, (1, 2), (1, 2), "VALID"), [_x(5, 6)],
        "ab,ab,,->ab,ab", (5, 3)),
    "select_and_scatter_add": (
        jax.grad(lambda x: (lax.reduce_window(x, -np.inf, lax.max, _POOL, _POOL, "VALID") ** 2).sum()),
        [_x(3, 6, 5, 2)], "ab.c,ab.c->ab.c", (3, 3, 2)),
    "select_and_gather_add": (
        lambda x, t: jax.jvp(lambda x: lax.reduce_window(x, -np.inf, lax.max, (1, 2), (1, 2), "VALID"), (x,), (t,)),
        [_x(5, 6), -_x(5, 6)], "ab,ab->ab", (5, 3)),
}  # fmt: skip


def _pairs(a, b):
    return a[0] + b[0], a[1] * b[1]


@pytest.mark.parametrize("name", _POOLS)
def test_windows(name):
    fn, args, expected, sizes = _POOLS[name]
    (equation,) = check(fn, *args, only=name)
    factors = ROWS[equation.name].factors(equation)
    assert notation(factors) == expected
    assert letter_sizes(factors) == sizes


def test_every_row_has_a_case():
    assert {"conv_general_dilated", *_POOLS} == set(ROWS)


def test_disjoint_windows():
    assert disjoint_windows(12, 3, 4, (0, 0)) == 3
    assert disjoint_windows(12, 1, 1, (0, 0)) == 12
    assert disjoint_windows(12, 2, 4, (0, 0), spread=3) == 3  # elements 0 and 3 of every 4
    assert disjoint_windows(12, 2, 4, (0, 0), spread=4) == 0  # overlap
    assert disjoint_windows(13, 3, 4, (0, 0)) == 0  # ends early
    assert disjoint_windows(12, 3, 4, (1, 0)) == 0
    assert disjoint_windows(12, 3, 4, (0, -1)) == 3  # element 11 was in no window
    assert disjoint_windows(12, 3, 4, (0, -2)) == 0  # two windows only
    assert disjoint_windows(12, 3, 4, (0, 3)) == 0  # four windows
    assert disjoint_windows(12, 3, 4, (0, 0), holes=2) == 0


def _flops(name: str, fn, *args) -> float:
    *_, equation = [e for e in equations(fn, *args) if e.name == name]
    return ROWS[name].flops(equation)


def test_flops():
    """A convolution and its two gradients do the same multiplications: n · o_h · o_w · k_h · k_w · c · o, twice."""
    fn, args, _, _ = _CASES["patches"]
    expected = 2 * 2 * 5 * 3 * 4 * 4 * 3 * 5
    for fn_of in (fn, *(jax.grad(lambda *a: fn(*a).sum(), i) for i in (0, 1))):
        assert _flops("conv_general_dilated", fn_of, *args) == expected
    fn, args, _, _ = _CASES["grouped"]
    assert _flops("conv_general_dilated", fn, *args) == 2 * 5 * 4 * 4 * 3 * 3 * 2 * 12
    fn, args, _, _ = _POOLS["reduce_window_max"]
    assert _flops("reduce_window_max", fn, *args) == 3 * 6 * 10 * 2
