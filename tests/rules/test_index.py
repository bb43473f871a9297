"""Rows of shardwright/rules/index.py and dynamic.py: (function, arguments, how the dims relate)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardwright.rules.table import ROWS
from tests.rules.harness import check, equations, notation


def _x(*shape: int, dtype=np.float32) -> np.ndarray:
    return np.random.default_rng(0).uniform(1, 50, shape).astype(dtype)


def _i(*shape: int, low: int = -9, high: int = 9) -> np.ndarray:
    """Indices in [low, high), in bounds or not."""
    return np.random.default_rng(1).integers(low, high, shape).astype(np.int32)


def _gather(mode: str, fill_value=None):
    """Rows of `x` at the raw indices that the primitive sees, negative ones too."""
    numbers = jax.lax.GatherDimensionNumbers(offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,))
    return lambda x, i: jax.lax.gather(x, i, numbers, (1, x.shape[1]), mode=mode, fill_value=fill_value)


def _scatter(scatter, mode: str, *, unique: bool = False):
    """Rows written at raw indices."""
    numbers = jax.lax.ScatterDimensionNumbers(
        update_window_dims=(1,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,)
    )
    return lambda x, i, u: scatter(x, i, u, numbers, mode=mode, unique_indices=unique)


def _windows(x, i):
    """Slices of 2 × 1 × all of `x` at pairs of indices."""
    numbers = jax.lax.GatherDimensionNumbers(offset_dims=(1, 2), collapsed_slice_dims=(1,), start_index_map=(1, 0))
    return jax.lax.gather(x, i, numbers, (2, 1, x.shape[2]), mode="fill")


def _add_windows(x, i, u):
    numbers = jax.lax.ScatterDimensionNumbers(
        update_window_dims=(1, 2), inserted_window_dims=(1,), scatter_dims_to_operand_dims=(1, 0)
    )
    return jax.lax.scatter_add(x, i, u, numbers, mode="fill")


_ROWS = "ab,c.->cb | sum a | masked a"
_LOOKUP = "ab,cd.->cdb | sum a | masked a"
_ADDED = "ab,c.,cb->ab | sum c | masked c"

_GATHERS = {
    "clip": (_gather("clip"), [_x(7, 5), _i(6, 1)], _ROWS),
    "promise": (_gather("promise_in_bounds"), [_x(7, 5), _i(6, 1)], _ROWS),
    "fill": (_gather("fill"), [_x(7, 5), _i(6, 1)], _ROWS),
    "fill with a number": (_gather("fill", 3.5), [_x(7, 5), _i(6, 1)], _ROWS),
    "fill integers": (_gather("fill"), [_x(7, 5, dtype=np.int32), _i(6, 1)], _ROWS),
    "fill unsigned": (_gather("fill"), [_x(7, 5, dtype=np.uint8), _i(6, 1)], _ROWS),
    "fill booleans": (_gather("fill"), [_x(7, 5) > 25, _i(6, 1)], "ab,c.->cb | or a | masked a"),
    "clip bfloat16": (_gather("clip"), [_x(7, 5).astype(jnp.bfloat16), _i(6, 1)], _ROWS),
    "fill at the end": (_gather("fill"), [_x(7, 5), np.array([[7], [8], [6], [-1]], np.int32)], _ROWS),
    "clip unsigned indices": (_gather("clip"), [_x(7, 5), _i(6, 1).astype(np.uint32)], _ROWS),
    "fill unsigned indices": (_gather("fill"), [_x(7, 5), _i(6, 1).astype(np.uint32)], _ROWS),
    "clip narrow indices": (_gather("clip"), [_x(7, 5), _i(6, 1).astype(np.int8)], _ROWS),
    "clip indices narrower than the dim": (_gather("clip"), [_x(300, 2), np.array([[127], [-3], [5]], np.int8)], _ROWS),
    "take": (lambda x, i: jnp.take(x, i, axis=0), [_x(7, 5), _i(2, 3)], _LOOKUP),
    "take clips": (lambda x, i: jnp.take(x, i, axis=0, mode="clip"), [_x(7, 5), _i(2, 3)], _LOOKUP),
    "take the last dim": (lambda x, i: jnp.take(x, i, axis=1), [_x(3, 7), _i(4)], "ab,c.->ac | sum b | masked b"),
    "embedding": (lambda x, i: x[i], [_x(10, 5), _i(2, 3, low=0)], _LOOKUP),
    "get fills": (lambda x, i: x.at[i].get(mode="fill", fill_value=0), [_x(7, 5), _i(2, 3)], _LOOKUP),
    "one row": (lambda x, i: jnp.take(x, i, axis=0), [_x(7, 5), np.int32(4)], "ab,.->b | sum a | masked a"),
    "along the vocabulary": (
        lambda x, i: jnp.take_along_axis(x, i[..., None], -1),
        [_x(3, 2, 7), _i(3, 2)],
        "abc,ab..->ab. | sum c | masked c",
    ),
    "along a dim": (lambda x, i: jnp.take_along_axis(x, i, 1), [_x(3, 7), _i(3, 4)], "ab,ac.->ac | sum b | masked b"),
    "of a batch": (
        jax.vmap(lambda x, i: jnp.take(x, i, axis=0)),
        [_x(3, 7, 2), _i(3, 4)],
        "abc,ad.->adc | sum b | masked b",
    ),
    "two indices": (lambda x, i, j: x[i, :, j], [_x(4, 3, 5), _i(6), _i(6, low=-4)], "abc,d.->db | sum ac | masked ac"),
    "windows": (_windows, [_x(4, 7, 3), _i(5, 2, low=-1, high=4)], "abc,d.->d.c | sum ab | masked ab"),
    "windows that clip": (
        jax.vmap(lambda x, i: jax.lax.dynamic_slice(x, (i,), (3,))),
        [_x(4, 7), _i(4)],
        "ab,a.->a. | sum b | masked b",
    ),
}


@pytest.mark.parametrize("name", _GATHERS)
def test_gather(name):
    fn, args, expected = _GATHERS[name]
    (equation,) = check(fn, *args, only="gather")
    assert notation(ROWS["gather"].factors(equation)) == expected


_RAW = [_x(7, 5), _i(6, 1), _x(6, 5) - 25]

_SCATTERS = {
    "scatter-add: drop": (_scatter(jax.lax.scatter_add, "drop"), _RAW, _ADDED),
    "scatter-add: clip": (_scatter(jax.lax.scatter_add, "clip"), _RAW, _ADDED),
    "scatter-add: promise": (_scatter(jax.lax.scatter_add, "promise_in_bounds"), _RAW, _ADDED),
    "scatter-add: integers": (
        _scatter(jax.lax.scatter_add, "drop"),
        [_x(7, 5, dtype=np.int32), _i(6, 1), _x(6, 5, dtype=np.int32)],
        _ADDED,
    ),
    "scatter-add: unsigned indices": (
        _scatter(jax.lax.scatter_add, "clip"),
        [_RAW[0], _RAW[1].astype(np.uint32), _RAW[2]],
        _ADDED,
    ),
    "scatter-add: narrow indices": (
        _scatter(jax.lax.scatter_add, "clip"),
        [_RAW[0], _RAW[1].astype(np.int8), _RAW[2]],
        _ADDED,
    ),
    "scatter-add: unique": (
        _scatter(jax.lax.scatter_add, "drop", unique=True),
        [_x(7, 5), np.array([[6], [0], [3]], np.int32), _x(3, 5)],
        _ADDED,
    ),
    "scatter-sub": (lambda x, i, u: x.at[i].subtract(u), [_x(7, 5), _i(6), _x(6, 5)], _ADDED),
    "scatter-mul": (
        _scatter(jax.lax.scatter_mul, "clip"),
        [_x(7, 5), _i(6, 1), _x(6, 5) / 25],
        "ab,c.,cb->ab | prod c | masked c",
    ),
    "scatter-min": (_scatter(jax.lax.scatter_min, "drop"), _RAW, "ab,c.,cb->ab | min c | masked c"),
    "scatter-max": (_scatter(jax.lax.scatter_max, "clip"), _RAW, "ab,c.,cb->ab | max c | masked c"),
    "scatter: drop": (_scatter(jax.lax.scatter, "drop"), _RAW, "ab,c.,cb->ab | blocked c"),
    "scatter: clip": (_scatter(jax.lax.scatter, "clip"), _RAW, "ab,c.,cb->ab | blocked c"),
    "scatter: one": (lambda x, u: x.at[3].set(u), [_x(7, 5), _x(5)], "ab,.,b->ab"),
    "scatter: one of the last dim": (lambda x, i, u: x.at[:, i].set(u), [_x(7, 5), np.int32(-2), _x(7)], "ab,.,a->ab"),
    "scatter: apply": (lambda x, i: x.at[i].apply(jnp.cos), [_x(7, 5), _i(1, low=0, high=5)], "ab,..,.b->ab"),
    "scatter-add: gradient of an embedding": (
        jax.grad(lambda x, i: (jnp.take(x, i, axis=0) ** 2).sum()),
        [_x(7, 5), _i(2, 3, low=0, high=7)],
        "ab,cd.,cdb->ab | sum cd | masked cd",
    ),
    "scatter-add: gradient along the vocabulary": (
        jax.grad(lambda x, i: (jnp.take_along_axis(x, i[..., None], -1) ** 2).sum()),
        [_x(3, 2, 7), _i(3, 2, low=0)],
        "abc,ab..,ab.->abc",
    ),
    "scatter-add: segments": (
        lambda x, i: jax.ops.segment_sum(x, i, num_segments=4),
        [_x(9, 2), _i(9, low=-1, high=6)],
        _ADDED,
    ),
    "scatter-add: of a batch": (
        jax.vmap(lambda x, i, u: x.at[i].add(u)),
        [_x(3, 7, 2), _i(3, 4), _x(3, 4, 2)],
        "abc,ad.,adc->abc | sum d | masked d",
    ),
    "scatter-add: two indices": (
        lambda x, i, j, u: x.at[i, :, j].add(u),
        [_x(4, 3, 5), _i(6), _i(6, low=-4), _x(6, 3)],
        "abc,d.,db->abc | sum d | masked d",
    ),
    "scatter-add: windows": (
        _add_windows,
        [_x(4, 7, 3), _i(5, 2, low=-1, high=4), _x(5, 2, 3)],
        "abc,d.,d.c->abc | sum d | masked d",
    ),
    "scatter: windows that clip": (
        jax.vmap(lambda x, u, i: jax.lax.dynamic_update_slice(x, u, (i,))),
        [_x(4, 7), _x(4, 3), _i(4)],
        "ab,a.,a.->ab",
    ),
    "scatter: a written slice": (lambda x, u: x.at[:, 2:5].set(u), [_x(4, 7), _x(4, 3)], "ab,.,a.->ab"),
    "scatter-add: an added slice": (lambda x: x.at[1:3, 4].add(1.0), [_x(4, 7)], "ab,.,.->ab"),
}


@pytest.mark.parametrize("name", _SCATTERS)
def test_scatter(name):
    fn, args, expected = _SCATTERS[name]
    (equation,) = check(fn, *args, only=name.split(":")[0])
    assert notation(ROWS[equation.name].factors(equation)) == expected


_SLICES = [(1, 0), (1, 6), (1, 9), (3, -2), (3, 2), (3, 9), (6, 1)]


def _sliced(x, taken, *starts):
    return jax.lax.dynamic_slice(x, starts, taken, allow_negative_indices=False)


def _updated(x, update, *starts):
    return jax.lax.dynamic_update_slice(x, update, starts, allow_negative_indices=False)


@pytest.mark.parametrize(("size", "start"), _SLICES)
def test_dynamic_slice(size, start):
    (equation,) = check(lambda x, i: _sliced(x, (3, size), 0, i), _x(3, 7), np.int32(start))
    assert notation(ROWS["dynamic_slice"].factors(equation)) == "ab,,->a. | sum b | masked b"


def test_dynamic_slice_of_two_dims():
    starts = np.uint8(2), np.uint8(250)
    (equation,) = check(lambda x, i, j: _sliced(x, (2, 3, 4), i, np.uint8(0), j), _x(5, 3, 7), *starts)
    assert notation(ROWS["dynamic_slice"].factors(equation)) == "abc,,,->.b. | sum ac | masked ac"


def test_dynamic_slice_of_booleans():
    (equation,) = check(lambda x, i: _sliced(x, (4,), i), _x(7) > 25, np.int32(2))
    assert notation(ROWS["dynamic_slice"].factors(equation)) == "a,->. | or a | masked a"


@pytest.mark.parametrize(("size", "start"), _SLICES)
def test_dynamic_update_slice(size, start):
    (equation,) = check(lambda x, u, i: _updated(x, u, 0, i), _x(3, 7), -_x(3, size), np.int32(start))
    assert notation(ROWS["dynamic_update_slice"].factors(equation)) == "ab,a.,,->ab"


def test_dynamic_update_slice_of_two_dims():
    (equation,) = check(lambda x, u, i, j: _updated(x, u, i, 0, j), _x(5, 3, 7), -_x(2, 3, 4), np.int32(2), np.int32(3))
    assert notation(ROWS["dynamic_update_slice"].factors(equation)) == "abc,.b.,,,->abc"


def _linear(fn, *args):
    (equation,) = equations(fn, *args)
    return ROWS[equation.name].linear(equation)


def test_lookup_that_fills_with_a_number_is_not_linear():
    assert _linear(_gather("fill", 3.5), _x(3, 2), _i(4, 1)) == ()
    assert _linear(_gather("fill"), _x(3, 2), _i(4, 1)) == (frozenset({0}),)


def test_overwriting_is_linear_where_updates_cannot_meet():
    scatter = _scatter(jax.lax.scatter, "drop")
    assert _linear(scatter, _x(3, 2), _i(4, 1), _x(4, 2)) == ()
    assert _linear(scatter, _x(3, 2), _i(1, 1), _x(1, 2)) == (frozenset({0, 2}),)
