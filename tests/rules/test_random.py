"""Rows of shardwright/rules/random.py: every block is bit-equal to the same block of the whole draw."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest
from jax.extend.random import threefry2x32_p

from shardwright.program.ir import Aval, Equation, Var
from shardwright.rules.random import ROWS, positions
from shardwright.rules.row import Factors, Row
from tests.rules.harness import check, equations, notation
from tests.rules.simulation import simulate


def _keys(*shape: int, impl: str = "threefry2x32") -> jax.Array:
    key = jax.random.key(7, impl=impl)
    return jax.random.split(key, shape) if shape else key


def _bits(*shape: int, dtype=np.uint32):
    return lambda key: jax.random.bits(key, shape, dtype)


def _over(fn, times: int):
    return jax.vmap(_over(fn, times - 1)) if times else fn


def _traced(fn, *args, only: str) -> tuple[Row, Equation, Factors]:
    (equation,) = [e for e in equations(fn, *args) if e.name == only]
    return ROWS[only], equation, ROWS[only].factors(equation)


def _assert_blocks_equal(row: Row, equation: Equation, factors: Factors, values: list, whole, parts: tuple[int, ...]):
    """Results that are keys are compared by their words, which lie in a last dim that is whole."""
    if jax.dtypes.issubdtype(whole.dtype, jax.dtypes.prng_key):
        whole, local, (dims,) = jax.random.key_data(whole), row.local, factors.results
        words = Var(Aval(whole.shape, whole.dtype))

        def words_local(_, values, place):
            return [jax.random.key_data(r) for r in local(equation, values, _without_words(place, factors))]

        row = dataclasses.replace(row, local=words_local)
        equation = dataclasses.replace(equation, outvars=(words,))
        cut = dataclasses.replace(factors, results=((*dims, None),))
    else:
        cut = factors
    (got,) = simulate(row, equation, cut, values, parts)
    np.testing.assert_array_equal(got, whole)


def _without_words(place, factors: Factors):
    return dataclasses.replace(place, factors=factors, result_shapes=(place.result_shapes[0][:-1],))


def _check_draw(fn, keys, only: str, expected: str, *cuts: tuple[int, ...]):
    row, equation, factors = _traced(fn, keys, only=only)
    assert notation(factors) == expected
    for parts in cuts:
        _assert_blocks_equal(row, equation, factors, [keys], fn(keys), parts)


@pytest.mark.parametrize(
    "shape, dtype, expected, cuts",
    [
        ((7,), np.uint8, "->a", [(2,), (7,)]),
        ((5, 6), np.uint16, "->ab", [(2, 3), (5, 1)]),
        ((3, 4, 5), np.uint32, "->abc", [(2, 1, 3), (1, 4, 2)]),
    ],
)
def test_bits(shape, dtype, expected, cuts):
    _check_draw(_bits(*shape, dtype=dtype), _keys(), "random_bits", expected, *cuts)


def test_bits_of_a_scalar():
    _check_draw(_bits(), _keys(), "random_bits", "->", ())


def test_bits_of_64():
    with jax.enable_x64(True):
        _check_draw(_bits(5, 6, dtype=np.uint64), _keys(), "random_bits", "->ab", (2, 4))


def test_bits_of_several_keys():
    cuts = [(3, 1, 1, 1), (2, 1, 3, 1), (1, 2, 1, 4)]
    _check_draw(_over(_bits(3, 7), 2), _keys(6, 2), "random_bits", "ab->abcd", *cuts)


def test_bits_are_whole_per_key_where_threefry_is_not_partitionable():
    with jax.threefry_partitionable(False):
        _check_draw(_bits(5, 6), _keys(), "random_bits", "->..", ())
        _check_draw(_over(_bits(5), 1), _keys(4), "random_bits", "a->a.", (2,))
        _check_draw(lambda k: jax.random.split(k, 4), _keys(), "random_split", "->.", ())


@pytest.mark.parametrize("impl", ["rbg", "unsafe_rbg"])
def test_other_generators_are_whole(impl):
    _check_draw(_bits(5, 6), _keys(impl=impl), "random_bits", "->..", ())
    _check_draw(lambda k: jax.random.split(k, 4), _keys(impl=impl), "random_split", "->.", ())
    folded = _traced(jax.vmap(lambda k: jax.random.fold_in(k, 4)), _keys(6, impl=impl), only="random_fold_in")
    assert notation(folded[2]) == ".,->."


def test_split():
    _check_draw(lambda k: jax.random.split(k, 5), _keys(), "random_split", "->a", (1,), (2,), (5,))
    _check_draw(
        _over(lambda k: jax.random.split(k, (3, 5)), 1), _keys(4), "random_split", "a->abc", (2, 2, 1), (4, 1, 3)
    )


def test_fold_in():
    numbers = np.arange(6, dtype=np.uint32)
    row, equation, factors = _traced(jax.vmap(jax.random.fold_in), _keys(6), numbers, only="random_fold_in")
    assert notation(factors) == "a,a->a"
    for parts in [(2,), (3,)]:
        whole = jax.vmap(jax.random.fold_in)(_keys(6), numbers)
        _assert_blocks_equal(row, equation, factors, [_keys(6), numbers], whole, parts)
    by_one = _traced(_over(lambda k: jax.random.fold_in(k, 3), 2), _keys(6, 2), only="random_fold_in")
    assert notation(by_one[2]) == "ab,->ab"


def test_keys_from_and_to_words():
    words = np.asarray(jax.random.key_data(_keys(6, 2)))
    for fn, arg, only, expected in (
        (_over(jax.random.key, 1), np.arange(6), "random_seed", "a->a"),
        (lambda w: jax.random.wrap_key_data(w), words, "random_wrap", "ab.->ab"),
        (jax.random.key_data, _keys(6, 2), "random_unwrap", "ab->ab."),
        (jax.random.clone, _keys(6, 2), "random_clone", "ab->ab"),
    ):
        row, equation, factors = _traced(fn, arg, only=only)
        assert notation(factors) == expected
        _assert_blocks_equal(row, equation, factors, [arg], fn(arg), (3, 2)[: len(factors.sizes)])


def test_raw_hash_is_elementwise():
    x = np.arange(30, dtype=np.uint32).reshape(5, 6)
    (equation,) = check(lambda x, k: threefry2x32_p.bind(k, k, x, x + 1), x, np.uint32(9), only="threefry2x32")
    assert notation(ROWS["threefry2x32"].factors(equation)) == ",,ab,ab->ab,ab"


def test_streams_are_whole():
    state = np.arange(4, dtype=np.uint32)
    (equation,) = check(lambda s: jax.lax.rng_bit_generator(s, (3, 5)), state, only="rng_bit_generator")
    assert notation(ROWS["rng_bit_generator"].factors(equation)) == ".->.,.."
    (equation,) = [e for e in equations(lambda k: jax.random.gamma(k, 2.0, (3,)), _keys()) if e.name == "random_gamma"]
    assert notation(ROWS["random_gamma"].factors(equation)) == ",.->."


@pytest.mark.parametrize(
    "logical", [(70_000, 70_000), (3, 2**31 - 1, 5), (2**20, 2**20, 2**20), (2**31 - 1, 2**31 - 1, 3)]
)
def test_positions_are_64_bit(logical):
    rng = np.random.default_rng(0)
    block = (2,) * len(logical)
    compiled = jax.jit(lambda offsets: positions(block, list(offsets), logical))
    for _ in range(20):
        offsets = [int(rng.integers(0, n)) for n in logical]
        hi, lo = (np.asarray(w) for w in compiled(np.array(offsets, np.int32)))
        for index in itertools.product(*map(range, block)):
            expected = 0
            for offset, i, n in zip(offsets, index, logical, strict=True):
                expected = expected * n + offset + i
            assert int(hi[index]) << 32 | int(lo[index]) == expected % 2**64
