"""The float64 lift: dtypes, islands, refusals, and that a plan for the program is one for the lifted program."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardwright.program.capture import capture
from shardwright.program.evaluate import evaluate
from shardwright.program.ir import Literal, walk
from shardwright.rewrite.lift import lift, lifted_dtype
from shardwright.rules.classes import find_classes
from tests.run import proof_steps

_X = np.random.default_rng(0).uniform(0.5, 2, (4, 6)).astype(np.float32)


def _lift(fn, *args):
    lifted = lift(capture(fn, args, {}, names=[f"a{i}" for i in range(len(args))]))
    leaves = [
        np.asarray(x).astype(lifted_dtype(np.asarray(x).dtype)) if not _is_key(x) else x for x in jax.tree.leaves(args)
    ]
    with jax.enable_x64(True):
        out = jax.jit(lambda *x: evaluate(lifted.program.block, x))(*leaves)
        return lifted, out


def _is_key(x):
    return jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)


def _in_float64(fn, *args):
    with jax.enable_x64(True):
        return jax.tree.leaves(jax.jit(fn)(*[np.asarray(x).astype(lifted_dtype(x.dtype)) for x in args]))


def _window(x):
    return jax.lax.reduce_window(x, 0.0, lambda a, b: a + b * 1.0, (2, 2), (1, 1), "VALID")


def _loop(x):
    def turn(state):
        i, y = state
        return i + 1, jax.lax.cond(i > 1, lambda y: y * 0.5, jnp.sin, y)

    return jax.lax.while_loop(lambda s: s[0] < 4, turn, (0, x))


# Functions that are written without a dtype, so that jax itself can trace them in float64: what the lift must equal.
_FREE = {
    "arithmetic": lambda x: jnp.exp(x) / (1 + x**3),
    "product": lambda x: jax.lax.dot(x, x.T, precision="highest"),
    "reductions": lambda x: (x.sum(0), x.max(1), jnp.cumsum(x, 1), jnp.argmax(x)),
    "reduction by a function": lambda x: jax.lax.reduce(x, 0.0, lambda a, b: a + b * 1.0, (0,)),
    "window by a function": _window,
    "pooling, backward": jax.grad(
        lambda x: jax.lax.reduce_window(x, -np.inf, jax.lax.max, (2, 2), (1, 1), "VALID").sum()
    ),
    "scatter": lambda x: x.at[jnp.array([1, 3])].add(x[:2]).at[0].apply(jnp.sin).at[jnp.array([2])].multiply(3.0),
    "sort": lambda x: jax.lax.sort((x, -x), num_keys=1),
    "top": lambda x: jax.lax.top_k(x, 2),
    "linear algebra": lambda x: jnp.linalg.solve(x @ x.T + 5 * jnp.eye(4), x),
    "iterative solver": lambda x: jax.scipy.sparse.linalg.cg(lambda v: x @ (x.T @ v) + v, x[:, 0], maxiter=3)[0],
    "Fourier transform": lambda x: jnp.abs(jnp.fft.rfft(x)),
    "loops and branches": _loop,
    "scan": lambda x: jax.lax.scan(lambda c, r: (c * 0.5 + r.sum(), c), 1.0, x),
    "convolution": lambda x: jax.lax.conv(x[None, None], x[None, None, :2, :2], (1, 1), "SAME"),
    "special functions": lambda x: jax.scipy.special.gammaln(x) + jax.scipy.special.erfinv(x / 4),
}


@pytest.mark.parametrize("name", _FREE)
def test_equals_a_trace_in_float64(name):
    lifted, out = _lift(_FREE[name], _X)
    assert not lifted.refusals
    for got, want in zip(out, _in_float64(_FREE[name], _X), strict=True):
        assert got.dtype == (lifted_dtype(got.dtype) if want.dtype.kind in "fc" else got.dtype)
        np.testing.assert_allclose(got, want, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn", "float32"])
def test_casts_and_roundings_change_nothing(dtype):
    def fn(x):
        y = jax.lax.reduce_precision(x.astype(dtype).astype(jnp.float32), 5, 3)
        return jax.lax.dot_general(y, y, (((1,), (1,)), ((), ())), "BF16_BF16_F32", jnp.float32)

    _, (out,) = _lift(fn, _X)
    wide = _X.astype(np.float64)
    np.testing.assert_allclose(out, wide @ wide.T, rtol=1e-14)


def test_complex_becomes_complex128():
    _, (out,) = _lift(lambda x: jax.lax.complex(x, x) * np.complex64(1j), _X)
    assert out.dtype == np.complex128


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_draws_are_the_steps_own(dtype):
    def fn(key):
        return (
            jax.random.uniform(key, (64,), dtype),
            jax.random.bernoulli(key, 0.3, (64,)),
            jax.random.randint(key, (9,), 0, 5),
        )

    key = jax.random.key(3)
    _, out = _lift(fn, key)
    for got, want in zip(out, fn(key), strict=True):
        np.testing.assert_array_equal(np.asarray(got), np.asarray(want).astype(got.dtype))
    assert out[0].dtype == np.float64


def test_gamma_draws_anew_from_the_same_key():
    key = jax.random.key(1)
    lifted, (out,) = _lift(lambda k: jax.random.gamma(k, 2.0, (5,)), key)
    assert not lifted.refusals and ["random_gamma" in text for text in lifted.redrawn] == [True]
    with jax.enable_x64(True):
        want = jax.random.gamma(key, jnp.float64(2.0), (5,), jnp.float64)
    np.testing.assert_allclose(out, want, rtol=1e-14)


def test_integers_and_literals_keep_their_width():
    lifted, out = _lift(lambda x: (x.astype(jnp.int8) + 3, jnp.arange(3) * 2), _X)
    assert [o.dtype for o in out] == [np.int8, np.int32]
    literals = [a for e in walk(lifted.program.block) for a in e.invars if isinstance(a, Literal)]
    assert literals and all(np.asarray(a.value).dtype == a.aval.dtype for a in literals)


def test_foreign_code_is_refused_by_name():
    def fn(x):
        y = jax.pure_callback(lambda x: np.asarray(x) * 2, jax.ShapeDtypeStruct(x.shape, x.dtype), x * 3)
        return y + jax.lax.bitcast_convert_type(x, jnp.int32)

    lifted, (out,) = _lift(fn, _X)
    assert [r.primitive for r in lifted.refusals] == ["pure_callback", "bitcast_convert_type"]
    assert all("test_lift.py" in r.line for r in lifted.refusals) and "'pure_callback' at" in str(lifted.refusals[0])
    want = (_X * np.float32(3) * 2).astype(np.float64) + _X.view(np.int32)
    np.testing.assert_allclose(out, want, rtol=1e-7)


def test_int64_region_is_lifted_when_jax_is_wide():
    with jax.enable_x64(True):
        program = capture(lambda x: x * 2, (np.ones(3),), {}, names=["x"])
        assert lift(program).program.block.equations[0].outvars[0].aval.dtype == np.float64


_STEPS = {
    "mlp": proof_steps.mlp,
    "transformer": proof_steps.transformer,
    "bfloat16": proof_steps.bfloat16_dropout,
    "lstm": proof_steps.lstm,
}


@pytest.mark.parametrize("name", _STEPS)
def test_classes_and_equations_are_the_same(name):
    traced = _STEPS[name]()
    lifted = lift(traced.program).program
    assert find_classes(lifted).all == traced.classes.all
    casts = 2 if name == "bfloat16" else 0
    before = [e.name for e in walk(traced.program.block)]
    after = [e.name for e in walk(lifted.block)]
    assert [n for n in after if n != "convert_element_type"] == [n for n in before if n != "convert_element_type"]
    assert 0 <= len(after) - len(before) <= casts
    inexact = [
        v.aval.dtype for e in walk(lifted.block) for v in e.outvars if jax.dtypes.issubdtype(v.aval.dtype, np.inexact)
    ]
    assert inexact.count(np.dtype(np.float64)) >= len(inexact) - casts
