"""Rows of shardwright/rules/opaque.py: (function, arguments, how the dims relate, flops)."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.lax import linalg

from shardwright.rules.opaque import ROWS
from tests.rules.harness import check, equations, notation


def _x(*shape: int, dtype=np.float32) -> np.ndarray:
    return np.random.default_rng(sum(shape)).uniform(-2, 2, shape).astype(dtype)


def _complex(*shape: int) -> np.ndarray:
    return (_x(*shape) + 1j * _x(*shape)[::-1]).astype(np.complex64)


def _positive(*shape: int) -> np.ndarray:
    """Symmetric matrices that are positive definite, with eigenvalues far apart."""
    n = shape[-1]
    return (_x(*shape) + np.swapaxes(_x(*shape), -1, -2)) / 10 + np.diag(np.arange(2, n + 2)).astype(np.float32)


def _triangular(**params):
    return lambda a, b: linalg.triangular_solve(a, b, lower=True, **params)


_CASES = {
    "fft": (jnp.fft.fft, [_complex(5, 3, 8)], "abc->abc | blocked c", 5 * 15 * 8 * 3),
    "fft: inverse of two dims": (jnp.fft.ifft2, [_complex(5, 4, 8)], "abc->abc | blocked bc", 5 * 5 * 32 * 5),
    "fft: real": (jnp.fft.rfft2, [_x(5, 4, 8)], "ab.->ab. | blocked b", 5 * 5 * 32 * 5 / 2),
    "fft: to real": (lambda x: jnp.fft.irfft(x, 8), [_complex(5, 5)], "a.->a.", 5 * 5 * 8 * 3 / 2),
    "cholesky": (linalg.cholesky, [_positive(5, 3, 3)], "abc->abc | blocked bc", 5 * 27 / 3),
    "cholesky: one": (linalg.cholesky, [_positive(3, 3)], "ab->ab | blocked ab", 27 / 3),
    "eig": (linalg.eig, [_x(5, 3, 3)], "abc->a.,ab.,ab. | blocked bc", 5 * 25 * 27),
    "eig: values": (
        lambda x: linalg.eig(x, compute_left_eigenvectors=False, compute_right_eigenvectors=False), [_x(5, 3, 3)],
        "abc->a. | blocked bc", 5 * 10 * 27),
    "eigh": (linalg.eigh, [_positive(5, 3, 3)], "abc->ab.,a. | blocked bc", 5 * 9 * 27),
    "eigh: of two batch dims": (linalg.eigh, [_positive(2, 3, 4, 4)], "abcd->abc.,ab. | blocked cd", 6 * 9 * 64),
    "geqrf": (
        lambda x: jnp.linalg.qr(x, mode="raw"), [_x(5, 4, 3)], "abc->abc,a. | blocked bc",
        5 * (2 * 4 * 9 - 2 * 27 / 3)),
    "hessenberg": (linalg.hessenberg, [_x(5, 3, 3)], "abc->abc,a. | blocked bc", 5 * 10 * 27 / 3),
    "householder_product": (
        linalg.householder_product, [_x(5, 4, 3), _x(5, 2)], "abc,a.->abc | blocked bc",
        5 * (4 * 4 * 3 * 2 - 2 * 7 * 4 + 4 * 8 / 3)),
    "lu": (linalg.lu, [_x(5, 3, 3)], "abc->abc,a.,a. | blocked bc", 5 * 2 * 27 / 3),
    "lu_pivots_to_permutation": (
        lambda p: linalg.lu_pivots_to_permutation(p, 4), [np.array([[2, 3, 3], [0, 1, 2]], np.int32)], "a.->a.", 2 * 3),
    "ormqr": (linalg.ormqr, [_x(5, 4, 2), _x(5, 2), _x(5, 4, 3)], "a..,a.,abc->abc | blocked b", 5 * 4 * 4 * 3 * 2),
    "ormqr: from the right": (
        lambda *args: linalg.ormqr(*args, left=False), [_x(5, 4, 2), _x(5, 2), _x(5, 3, 4)],
        "a..,a.,abc->abc | blocked c", 5 * 4 * 4 * 3 * 2),
    "qr": (linalg.qr, [_x(5, 3, 3)], "abc->ab.,a.c | blocked bc", 5 * 8 * 27 / 3),
    "qr: with pivots": (
        lambda x: linalg.qr(x, pivoting=True, full_matrices=False), [_x(5, 4, 3)], "abc->ab.,a.c,a. | blocked bc",
        5 * (2 * 4 * 9 - 2 * 27 / 3 + 4 * 4 * 9 - 2 * 7 * 9 + 4 * 27 / 3)),
    "schur": (linalg.schur, [_x(5, 3, 3)], "abc->a..,ab. | blocked bc", 5 * 25 * 27),
    "svd": (linalg.svd, [_x(5, 4, 3)], "abc->a.,ab.,a.c | blocked bc", 5 * (6 * 4 * 9 + 20 * 27)),
    "svd: values": (
        lambda x: linalg.svd(x, compute_uv=False), [_x(5, 3, 4)], "abc->a. | blocked bc", 5 * 4 * 9 * (4 - 1)),
    "symmetric_product": (
        linalg.symmetric_product, [_x(5, 3, 4), _x(5, 3, 3)], "ab.,abc->abc | blocked bc", 5 * 2 * 9 * 4),
    "triangular_solve": (
        _triangular(left_side=True), [_positive(2, 3, 3), _x(2, 3, 5)], "ab.,abc->abc | blocked b", 2 * 9 * 5),
    "triangular_solve: from the right": (
        _triangular(transpose_a=True), [_positive(2, 3, 3), _x(2, 5, 3)], "ab.,acb->acb | blocked b", 2 * 9 * 5),
    "tridiagonal": (linalg.tridiagonal, [_positive(5, 3, 3)], "abc->abc,a.,a.,a. | blocked bc", 5 * 4 * 27 / 3),
    "tridiagonal_solve": (
        linalg.tridiagonal_solve, [_x(2, 4), _x(2, 4) + 9, _x(2, 4), _x(2, 4, 5)], "ab,ab,ab,abc->abc | blocked b",
        2 * 4 * (3 + 5 * 5)),
}  # fmt: skip


@pytest.mark.parametrize("name", list(_CASES))
def test_row(name):
    fn, args, expected, flops = _CASES[name]
    (equation,) = check(fn, *args, only=name.split(":")[0])
    row = ROWS[equation.name]
    assert notation(row.factors(equation)) == expected
    assert math.isclose(row.flops(equation), flops)


_GROUPS = np.array([3, 0, 4], np.int32)


def _ragged(by: int):
    """The gradient of a product with groups by its rows (0) or its matrices (1)."""
    return jax.grad(lambda x, w, groups: (jax.lax.ragged_dot(x, w, groups) ** 2).sum(), by)


@pytest.mark.parametrize(
    ("by", "expected"), [(0, "ab,cdb,c->ad | sum b | blocked ac"), (1, "ab,ac,d->dbc | blocked ad")]
)
@pytest.mark.parametrize("rows", [7, 9], ids=["all rows", "a rest in no group"])
def test_ragged_product(by, expected, rows):
    """The gradient by the matrices sums over the ragged dim."""
    found = check(_ragged(by), _x(rows, 5), _x(3, 5, 4), _GROUPS, only="ragged_dot_general")
    row = ROWS["ragged_dot_general"]
    assert [notation(row.factors(e)) for e in found] == ["ab,cbd,c->ad | sum b | blocked ac", expected]
    assert [row.flops(e) for e in found] == [2 * rows * 5 * 4] * 2


def test_barrier_passes_every_operand_as_it_lies():
    (equation,) = check(jax.lax.optimization_barrier, (_x(5, 3), _x(7), np.int32(2)))
    row = ROWS["optimization_barrier"]
    assert row.passthrough
    assert notation(row.factors(equation)) == "ab,c,->ab,c,"


def test_what_is_linear():
    def linear(fn, *args):
        (equation,) = [e for e in equations(fn, *args) if e.name in ROWS]
        return ROWS[equation.name].linear(equation)

    assert linear(jnp.fft.fft, _complex(5)) == (frozenset({0}),)
    assert linear(_triangular(left_side=True), _x(3, 3), _x(3, 2)) == (frozenset({1}),)
    assert linear(jax.lax.ragged_dot, _x(7, 5), _x(3, 5, 4), _GROUPS) == (frozenset({0}), frozenset({1}))
    assert linear(linalg.cholesky, _x(3, 3)) == ()


def test_every_row_has_a_case():
    assert {name.split(":")[0] for name in _CASES} | {"ragged_dot_general", "optimization_barrier"} == set(ROWS)
