"""What fuzzed programs are made of: each operation draws its operands and parameters, and applies them.

An operation that decides by comparing (sorts, argmax, top_k, thresholds) takes its operand rounded, so that a sum in
another order does not decide otherwise; gradients pass the rounding unchanged. Values stay small, so that float64 keeps
twelve digits of every result.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Shaped = Any
"""Something with a shape and a dtype."""
Drawn = tuple[tuple[int, ...], dict[str, Any]]
"""Positions of the operands in the pool of values, and parameters."""


@dataclasses.dataclass(frozen=True)
class Operation:
    """`draw(rng, pool)` gives operands and parameters, or None where the pool has nothing fitting."""

    draw: Callable[[np.random.Generator, Sequence[Shaped]], Drawn | None]
    apply: Callable[..., Any]


OPERATIONS: dict[str, Operation] = {}


def operation(draw: Callable) -> Callable:
    """Registers the decorated function under its name, its operands drawn by `draw`."""

    def register(apply: Callable) -> Callable:
        OPERATIONS[apply.__name__.strip("_")] = Operation(draw, apply)
        return apply

    return register


@jax.custom_jvp
def rounded(x: Any) -> Any:
    """To sixteenths, away from where they meet."""
    return jnp.round(x * 16 + 0.137) / 16


rounded.defjvp(lambda p, t: (rounded(*p), t[0]))


def is_float(x: Shaped) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.floating))


def is_int(x: Shaped) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.integer))


def choose(rng: np.random.Generator, items: Sequence[Any]) -> Any:
    return items[int(rng.integers(len(items)))]


def one_of(pool: Sequence[Shaped], rng: np.random.Generator, fits: Callable[[Shaped], bool]) -> int | None:
    """A position in the pool, later ones more often."""
    able = [i for i, x in enumerate(pool) if fits(x)]
    return able[len(able) - 1 - int(len(able) * rng.random() ** 2)] if able else None


def a_float(least: int = 0, most: int = 4, size: int = 0) -> Callable:
    """Draws a float value of so many dims and at least so many elements."""

    def draw(rng: np.random.Generator, pool: Sequence[Shaped]) -> Drawn | None:
        i = one_of(pool, rng, lambda x: is_float(x) and least <= len(x.shape) <= most and int(np.prod(x.shape)) >= size)
        return None if i is None else ((i,), {})

    return draw


def along(least: int = 1, **more: Callable[[np.random.Generator, int], Any]) -> Callable:
    """Draws a float value that is not empty and one of its dims; `more`: parameter → a draw that knows its size."""

    def draw(rng: np.random.Generator, pool: Sequence[Shaped]) -> Drawn | None:
        found = a_float(1, 4, 1)(rng, pool)
        if found is None:
            return None
        shape = pool[found[0][0]].shape
        dim = int(rng.integers(len(shape)))
        if shape[dim] < least:
            return None
        return found[0], {"axis": dim, **{k: f(rng, shape[dim]) for k, f in more.items()}}

    return draw


def coin(rng: np.random.Generator, *_: Any) -> bool:
    return bool(rng.random() < 0.5)


# --- elementwise ----------------------------------------------------------------------------------------------------

UNARY: dict[str, Callable] = {
    "tanh": jnp.tanh,
    "sin": jnp.sin,
    "gelu": jax.nn.gelu,
    "softplus": jax.nn.softplus,
    "abs": jnp.abs,
    "neg": jnp.negative,
    "exp": lambda x: jnp.exp(-x * x),
    "log1p": lambda x: jnp.log1p(x * x),
    "sqrt": lambda x: jnp.sqrt(x * x + 0.1),
    "rsqrt": lambda x: lax.rsqrt(x * x + 0.1),
    "logistic": jax.nn.sigmoid,
    "cube": lambda x: jnp.tanh(x) ** 3,
    "erf": lax.erf,
    "cbrt": lambda x: jnp.cbrt(x + 3),
    "atan": jnp.arctan,
    "low precision": lambda x: lax.reduce_precision(rounded(x), 8, 10),
    "stop_gradient": lax.stop_gradient,
    "complex": lambda x: jnp.real(jnp.conj(lax.complex(x, -x) * lax.complex(jnp.sin(x), x))),
    "float32": lambda x: rounded(x).astype(jnp.float32).astype(x.dtype),
    "barrier": lax.optimization_barrier,
}


@operation(lambda rng, pool: _with(a_float()(rng, pool), fn=choose(rng, [*UNARY])))
def unary(x: Any, fn: str) -> Any:
    return UNARY[fn](x)


def _with(found: Drawn | None, **params: Any) -> Drawn | None:
    return None if found is None else (found[0], {**found[1], **params})


BINARY: dict[str, Callable] = {
    "add": jnp.add,
    "sub": jnp.subtract,
    "mul": lambda a, b: a * jnp.tanh(b),
    "div": lambda a, b: a / (b * b + 1),
    "max": lambda a, b: jnp.maximum(rounded(a), rounded(b)),
    "min": lambda a, b: jnp.minimum(rounded(a), rounded(b)),
    "atan2": lambda a, b: jnp.arctan2(a, b * b + 1),
    "pow": lambda a, b: (a * a + 0.5) ** jnp.tanh(b),
    "where": lambda a, b: jnp.where(rounded(a) > rounded(b), a, b),
    "clip": lambda a, b: jnp.clip(rounded(a), -1.0, rounded(b * b)),
    "average": lambda a, b: (a + b) / 2,
}


def _broadcastable(rng: np.random.Generator, pool: Sequence[Shaped]) -> Drawn | None:
    first = a_float()(rng, pool)
    if first is None:
        return None

    def fits(x: Shaped) -> bool:
        if not is_float(x):
            return False
        try:
            return int(np.prod(np.broadcast_shapes(x.shape, pool[first[0][0]].shape))) <= 4096
        except ValueError:
            return False

    second = one_of(pool, rng, fits)
    return None if second is None else ((first[0][0], second), {"fn": choose(rng, [*BINARY])})


@operation(_broadcastable)
def binary(a: Any, b: Any, fn: str) -> Any:
    return BINARY[fn](a, b)


# --- products -------------------------------------------------------------------------------------------------------


def _einsum(rng: np.random.Generator, pool: Sequence[Shaped]) -> Drawn | None:
    a = one_of(pool, rng, lambda x: is_float(x) and 1 <= len(x.shape) <= 4)
    b = one_of(pool, rng, lambda x: is_float(x) and 1 <= len(x.shape) <= 3)
    if a is None or b is None:
        return None
    left = [chr(ord("a") + i) for i in range(len(pool[a].shape))]
    sizes = dict(zip(left, pool[a].shape, strict=True))
    right: list[str] = []
    for j, n in enumerate(pool[b].shape):
        able = [x for x in left if sizes[x] == n and x not in right]
        right.append(choose(rng, able) if able and rng.random() < 0.7 else chr(ord("p") + j))
        sizes[right[-1]] = n
    shared = [x for x in left if x in right]
    kept = [x for x in dict.fromkeys([*left, *right]) if x not in shared or rng.random() < 0.35]
    if len(kept) > 4 or np.prod([sizes[x] for x in kept]) > 2048:
        return None
    return (a, b), {"spec": f"{''.join(left)},{''.join(right)}->{''.join(map(str, rng.permutation(kept)))}"}


@operation(_einsum)
def einsum(a: Any, b: Any, spec: str) -> Any:
    return jnp.tanh(jnp.einsum(spec, a, b) / 2)


def _layer(rng: np.random.Generator, pool: Sequence[Shaped]) -> Drawn | None:
    """x @ w for a weight that fits: what networks do most."""
    w = one_of(pool, rng, lambda x: is_float(x) and len(x.shape) == 2)
    x = w is not None and one_of(
        pool, rng, lambda x: is_float(x) and len(x.shape) >= 2 and x.shape[-1] == pool[w].shape[0]
    )
    return None if w is None or not x else ((x, w), {})


@operation(_layer)
def layer(x: Any, w: Any) -> Any:
    return jnp.tanh(x @ w)


# --- reductions -----------------------------------------------------------------------------------------------------

REDUCTIONS: dict[str, Callable] = {
    "sum": jnp.sum,
    "mean": jnp.mean,
    "max": lambda x, **k: jnp.max(rounded(x), **k),
    "min": lambda x, **k: jnp.min(rounded(x), **k),
    "prod": lambda x, **k: jnp.prod(jnp.tanh(x) + 0.5, **k),
    "var": jnp.var,
    "logsumexp": lambda x, **k: jax.nn.logsumexp(jnp.tanh(x), **k),
    "any": lambda x, **k: jnp.any(rounded(x) > 0.4, **k).astype(x.dtype),
    "all": lambda x, **k: jnp.all(rounded(x) > -0.4, **k).astype(x.dtype),
    "argmax": lambda x, **k: jnp.argmax(rounded(x), axis=k["axis"][0]).astype(x.dtype) / 4,
    "argmin": lambda x, **k: jnp.argmin(rounded(x), axis=k["axis"][0]).astype(x.dtype) / 4,
}


def _reduction(rng: np.random.Generator, pool: Sequence[Shaped]) -> Drawn | None:
    found = a_float(1, 4, 1)(rng, pool)
    if found is None:
        return None
    ndim = len(pool[found[0][0]].shape)
    axis = tuple(int(d) for d in np.sort(rng.permutation(ndim)[: rng.integers(1, ndim + 1)]))
    return _with(found, fn=choose(rng, [*REDUCTIONS]), axis=axis)


@operation(_reduction)
def reduction(x: Any, fn: str, axis: tuple[int, ...]) -> Any:
    return REDUCTIONS[fn](x, axis=axis)


@operation(along())
def softmax(x: Any, axis: int) -> Any:
    return jax.nn.softmax(x, axis)


@operation(along())
def normalize(x: Any, axis: int) -> Any:
    return (x - x.mean(axis, keepdims=True)) * lax.rsqrt(x.var(axis, keepdims=True) + 0.1)


CUMULATIVE: dict[str, Callable] = {
    "sum": lambda x, **k: lax.cumsum(x, **k) / 4,
    "prod": lambda x, **k: lax.cumprod(jnp.cos(x), **k),
    "max": lambda x, **k: lax.cummax(rounded(x), **k),
    "min": lambda x, **k: lax.cummin(rounded(x), **k),
    "logsumexp": lambda x, **k: lax.cumlogsumexp(jnp.tanh(x), **k),
    "associative": lambda x, axis, reverse: lax.associative_scan(
        lambda a, b: a * 0.5 + b, x, axis=axis, reverse=reverse
    ),
}


@operation(along(fn=lambda rng, n: choose(rng, [*CUMULATIVE]), reverse=coin))
def cumulative(x: Any, fn: str, axis: int, reverse: bool) -> Any:
    return CUMULATIVE[fn](x, axis=axis, reverse=reverse)


@operation(along(descending=coin))
def sort(x: Any, axis: int, descending: bool) -> Any:
    return jnp.sort(rounded(x), axis=axis, descending=descending)


@operation(along())
def sort_pair(x: Any, axis: int) -> Any:
    keys, values = lax.sort((rounded(x), jnp.sin(x)), dimension=axis, num_keys=1)
    return keys + values


@operation(along(k=lambda rng, n: int(rng.integers(1, n + 1))))
def top_k(x: Any, axis: int, k: int) -> Any:
    values, indices = lax.top_k(jnp.moveaxis(rounded(x), axis, -1), k)
    return values + indices.astype(x.dtype) / 8


# --- shapes ---------------------------------------------------------------------------------------------------------


def _reshape(rng: np.random.Generator, pool: Sequence[Shaped]) -> Drawn | None:
    found = a_float(1, 4)(rng, pool)
    if found is None:
        return None
    shape = list(pool[found[0][0]].shape)
    for _ in range(int(rng.integers(1, 3))):
        d = int(rng.integers(len(shape)))
        divisors = [k for k in (2, 3, 4) if shape[d] > k and shape[d] % k == 0]
        if divisors and rng.random() < 0.5 and len(shape) < 4:
            k = choose(rng, divisors)
            shape[d : d + 1] = [k, shape[d] // k] if rng.random() < 0.5 else [shape[d] // k, k]
        elif d + 1 < len(shape):
            shape[d : d + 2] = [shape[d] * shape[d + 1]]
        else:
            shape.insert(d, 1)
    return _with(found, shape=tuple(shape))


@operation(_reshape)
def reshape(x: Any, shape: tuple[int, ...]) -> Any:
    return x.reshape(shape)


@operation(lambda rng, pool: _with(a_float(2)(rng, pool), seed=int(rng.integers(99))))
def transpose(x: Any, seed: int) -> Any:
    return jnp.transpose(x, np.random.default_rng(seed).permutation(x.ndim))


@operation(lambda rng, pool: _with(a_float(0, 3)(rng, pool), size=int(rng.integers(1, 5)), place=int(rng.integers(4))))
def broadcast(x: Any, size: int, place: int) -> Any:
    place = min(place, x.ndim)
    return jnp.broadcast_to(jnp.expand_dims(x, place), (*x.shape[:place], size, *x.shape[place:]))


@operation(along(count=lambda rng, n: int(rng.integers(1, 4)), kind=lambda rng, n: choose(rng, ["tile", "repeat"])))
def copies(x: Any, axis: int, count: int, kind: str) -> Any:
    reps = [count if d == axis else 1 for d in range(x.ndim)]
    return jnp.tile(x, reps) if kind == "tile" else jnp.repeat(x, count, axis)


@operation(along(start=lambda rng, n: int(rng.integers(n)), step=lambda rng, n: int(rng.integers(1, 4))))
def strided(x: Any, axis: int, start: int, step: int) -> Any:
    return lax.slice_in_dim(x, start, None, step, axis)


@operation(along(low=lambda rng, n: int(rng.integers(-1, 3)), high=lambda rng, n: int(rng.integers(-1, 3)), inner=coin))
def pad(x: Any, axis: int, low: int, high: int, inner: bool) -> Any:
    low, high = (max(low, 0), max(high, 0)) if x.shape[axis] < 3 else (low, high)
    config = [(low, high, int(inner)) if d == axis else (0, 0, 0) for d in range(x.ndim)]
    return lax.pad(x, jnp.asarray(0.5, x.dtype), config)


@operation(along())
def reverse(x: Any, axis: int) -> Any:
    return jnp.flip(x, axis)


@operation(along(shift=lambda rng, n: int(rng.integers(-n, n + 1))))
def roll(x: Any, axis: int, shift: int) -> Any:
    return jnp.roll(x, shift, axis)


@operation(along(least=2, at=lambda rng, n: int(rng.integers(1, n))))
def split(x: Any, axis: int, at: int) -> Any:
    return tuple(jnp.split(x, [at], axis))


def _joined(rng: np.random.Generator, pool: Sequence[Shaped]) -> Drawn | None:
    found = along()(rng, pool)
    if found is None:
        return None
    shape, axis = pool[found[0][0]].shape, found[1]["axis"]
    other = one_of(
        pool,
        rng,
        lambda x: (
            is_float(x)
            and len(x.shape) == len(shape)
            and all(a == b or d == axis for d, (a, b) in enumerate(zip(x.shape, shape, strict=True)))
        ),
    )
    return None if other is None else ((found[0][0], other), found[1])


@operation(_joined)
def concatenate(a: Any, b: Any, axis: int) -> Any:
    return jnp.concatenate([a, b, a], axis)


def _alike(rng: np.random.Generator, pool: Sequence[Shaped]) -> Drawn | None:
    found = along()(rng, pool)
    other = found and one_of(pool, rng, lambda x: is_float(x) and x.shape == pool[found[0][0]].shape)
    return None if found is None or other is None else ((found[0][0], other), found[1])


@operation(_alike)
def stack(a: Any, b: Any, axis: int) -> Any:
    return jnp.stack([a, b], axis)


@operation(along())
def counted(x: Any, axis: int) -> Any:
    return x + lax.broadcasted_iota(jnp.int32, x.shape, axis).astype(x.dtype) / 8


TABLE = np.sin(np.arange(64.0))
"""An array that programs close over."""


@operation(along(place=lambda rng, n: choose(rng, ["along", "table", "mask"])))
def closed_over(x: Any, axis: int, place: str) -> Any:
    size = x.shape[axis]
    shape = [size if d == axis else 1 for d in range(x.ndim)]
    if place == "along":
        return x * jnp.asarray(TABLE[:size]).reshape(shape)
    if place == "table":
        return x + jnp.broadcast_to(TABLE[:size].reshape(shape), x.shape)
    return jnp.where(np.arange(size).reshape(shape) % 3 == 0, x, 0.5)


# --- slices, gathers and scatters -----------------------------------------------------------------------------------


def _number(x: Any, limit: int) -> Any:
    """An int32 that the values decide, from a little below zero to a little above `limit`."""
    return (rounded(jnp.sum(x)) * 3 % (limit + 3)).astype(jnp.int32) - 1


@operation(along(size=lambda rng, n: int(rng.integers(1, n + 1))))
def dynamic_slice(x: Any, axis: int, size: int) -> Any:
    return lax.dynamic_slice_in_dim(x, _number(x, x.shape[axis]), size, axis)


@operation(along(size=lambda rng, n: int(rng.integers(1, n + 1))))
def dynamic_update(x: Any, axis: int, size: int) -> Any:
    update = jnp.sin(lax.slice_in_dim(x, 0, size, axis=axis))
    return lax.dynamic_update_slice_in_dim(x, update, _number(x, x.shape[axis]), axis)


def _indexed(rng: np.random.Generator, pool: Sequence[Shaped]) -> Drawn | None:
    found = along()(rng, pool)
    at = one_of(pool, rng, lambda x: is_int(x) and len(x.shape) <= 2)
    if found is None or at is None or np.prod(pool[at].shape) * np.prod(pool[found[0][0]].shape) > 4096:
        return None
    return (found[0][0], at), {**found[1], "mode": choose(rng, ["clip", "fill", "wrap"])}


@operation(_indexed)
def take(x: Any, at: Any, axis: int, mode: str) -> Any:
    more = {"fill_value": 0.25} if mode == "fill" else {}
    return jnp.take(x, at, axis=axis, mode=mode, **more)


@operation(_indexed)
def take_along(x: Any, at: Any, axis: int, mode: str) -> Any:
    index = jnp.broadcast_to((at.sum() % 5).astype(jnp.int32), x.shape) + lax.broadcasted_iota(jnp.int32, x.shape, axis)
    return jnp.take_along_axis(x, index % x.shape[axis], axis, mode="clip" if mode == "wrap" else mode)


SCATTERS = ["add", "mul", "max", "min", "set"]


@operation(lambda rng, pool: _with(_indexed(rng, pool), fn=choose(rng, SCATTERS)))
def scatter(x: Any, at: Any, axis: int, mode: str, fn: str) -> Any:
    """Rows are written where ids say; `set` to one value alone, since the order of writes is open."""
    moved = jnp.moveaxis(x, axis, 0)
    ids = at.reshape(-1)
    rows = jnp.broadcast_to(jnp.sin(moved[:1]), (ids.size, *moved.shape[1:]))
    ids = ids % moved.shape[0] if mode == "wrap" else ids
    ref = moved.at[ids]
    mode = "drop" if mode in ("fill", "wrap") else "clip"
    if fn == "set":
        return jnp.moveaxis(ref.set(jnp.asarray(0.75, x.dtype), mode=mode), 0, axis)
    values = rounded(rows) if fn in ("max", "min") else jnp.tanh(rows)
    base = {"max": rounded, "min": rounded}.get(fn)
    if base is not None:
        ref = base(moved).at[ids]
    return jnp.moveaxis(getattr(ref, {"mul": "multiply"}.get(fn, fn))(values, mode=mode), 0, axis)


@operation(_indexed)
def segments(x: Any, at: Any, axis: int, mode: str) -> Any:
    moved = jnp.moveaxis(x, axis, 0)
    ids = jnp.resize(at.reshape(-1), (moved.shape[0],)) if at.size else jnp.zeros(moved.shape[0], jnp.int32)
    return jax.ops.segment_sum(moved, ids % 5, num_segments=4)


@operation(
    lambda rng, pool: (
        None
        if (i := one_of(pool, rng, lambda x: is_int(x) and len(x.shape) <= 3)) is None
        else ((i,), {"n": int(rng.integers(2, 7))})
    )
)
def one_hot(at: Any, n: int) -> Any:
    return jax.nn.one_hot(at, n, dtype=jnp.float64)


@operation(along(n=lambda rng, n: int(rng.integers(1, 9))))
def bucket(x: Any, axis: int, n: int) -> Any:
    """An integer array: ids that the values decide."""
    return (rounded(lax.index_in_dim(x, 0, axis, keepdims=False)) * 4).astype(jnp.int32) % n


@operation(along())
def ranks(x: Any, axis: int) -> Any:
    return jnp.argsort(rounded(x), axis=axis).astype(jnp.int32)


@operation(
    lambda rng, pool: (
        None
        if (i := one_of(pool, rng, is_int)) is None
        else ((i,), {"fn": choose(rng, ["mul", "shift", "xor", "count"])})
    )
)
def integers(at: Any, fn: str) -> Any:
    return {
        "mul": lambda: at * 3 % 7,
        "shift": lambda: (at << 2) >> 1,
        "xor": lambda: at ^ 5,
        "count": lambda: lax.population_count(at) + lax.rem(at, jnp.int32(3)),
    }[fn]()


# --- windows, transforms, matrices ----------------------------------------------------------------------------------


def _convolution(rng: np.random.Generator, pool: Sequence[Shaped]) -> Drawn | None:
    i = one_of(pool, rng, lambda x: is_float(x) and len(x.shape) in (3, 4) and np.prod(x.shape) > 0)
    if i is None:
        return None
    shape = pool[i].shape
    channels, spatial = shape[-1], len(shape) - 2
    groups = choose(rng, [g for g in (1, 2, 3, channels) if channels % g == 0])
    draw = lambda low, high: tuple(int(n) for n in rng.integers(low, high, spatial))  # noqa: E731
    return (i,), {
        "size": draw(1, 4),
        "stride": draw(1, 3),
        "dilation": draw(1, 3),
        "lhs": draw(1, 3),
        "groups": groups,
        "out": groups * int(rng.integers(1, 3)),
        "padding": choose(rng, ["SAME", "VALID"]),
    }


@operation(_convolution)
def convolution(x: Any, size: Any, stride: Any, dilation: Any, lhs: Any, groups: int, out: int, padding: str) -> Any:
    """Channels last; the kernel is made of the operand, so that its gradient counts."""
    spatial = "HW"[: x.ndim - 2]
    shape = (*size, x.shape[-1] // groups, out)
    kernel = jnp.resize(jnp.tanh(x).reshape(-1), shape)
    lhs = lhs if padding == "VALID" else (1,) * len(size)
    y = lax.conv_general_dilated(
        x, kernel, stride, padding, lhs, dilation, (f"N{spatial}C", f"{spatial}IO", f"N{spatial}C"), groups
    )
    return jnp.tanh(y / 2)


def _window(rng: np.random.Generator, pool: Sequence[Shaped]) -> Drawn | None:
    found = a_float(2, 4, 1)(rng, pool)
    if found is None:
        return None
    shape = pool[found[0][0]].shape
    size = tuple(int(rng.integers(1, min(n, 3) + 1)) for n in shape)
    stride = tuple(int(s) for s in rng.integers(1, 3, len(shape)))
    return _with(
        found, size=size, stride=stride, fn=choose(rng, ["max", "sum", "min"]), padding=choose(rng, ["SAME", "VALID"])
    )


@operation(_window)
def window(x: Any, size: Any, stride: Any, fn: str, padding: str) -> Any:
    start, combine = {"max": (-np.inf, lax.max), "min": (np.inf, lax.min), "sum": (0.0, lax.add)}[fn]
    x = x if fn == "sum" else rounded(x)
    y = lax.reduce_window(x, np.asarray(start, x.dtype)[()], combine, size, stride, padding)
    return y / 4 if fn == "sum" else y


@operation(along())
def fourier(x: Any, axis: int) -> Any:
    y = jnp.fft.rfft(x, axis=axis)
    return (jnp.real(y) + jnp.imag(y)) / 4


@operation(a_float(2, 4, 1))
def cholesky(x: Any) -> Any:
    gram = jnp.einsum("...ij,...kj->...ik", jnp.tanh(x), jnp.tanh(x)) + 2 * jnp.eye(x.shape[-2], dtype=x.dtype)
    factor = jnp.linalg.cholesky(gram)
    return jax.scipy.linalg.solve_triangular(factor, x, lower=True)


# --- random bits ----------------------------------------------------------------------------------------------------


@operation(lambda rng, pool: _with(a_float(0, 4)(rng, pool), seed=int(rng.integers(99)), rate=float(rng.random())))
def dropout(x: Any, seed: int, rate: float) -> Any:
    return jnp.where(jax.random.bernoulli(jax.random.key(seed), rate, x.shape), x, 0.0)


@operation(lambda rng, pool: _with(a_float(0, 4)(rng, pool), seed=int(rng.integers(99))))
def noise(x: Any, seed: int) -> Any:
    key = jax.random.fold_in(jax.random.key(seed), 3)
    return x + jax.random.normal(jax.random.split(key)[1], x.shape, x.dtype) / 4


# --- functions of functions -----------------------------------------------------------------------------------------


@jax.custom_vjp
def _clipped(x: Any) -> Any:
    return jnp.sin(x)


_clipped.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (g * jnp.tanh(x),))


@operation(a_float())
def own_gradient(x: Any) -> Any:
    return _clipped(x)


@operation(along())
def second_order(x: Any, axis: int) -> Any:
    return jax.grad(lambda y: jnp.sum(jnp.sum(jnp.sin(y) ** 2, axis) ** 2) / 8)(x)


@operation(a_float(1, 3, 1))
def mapped_loop(x: Any) -> Any:
    """A loop for each row, which ends when the row says."""
    limit = rounded(jnp.abs(lax.stop_gradient(x)))
    return jax.vmap(lambda row: lax.while_loop(lambda c: jnp.max(c) > 0.6, lambda c: c * 0.5, row))(limit)


@operation(a_float(1, 3, 1))
def mapped(x: Any) -> Any:
    return jax.vmap(lambda row: jnp.tanh(row) * jnp.sum(row) / 4)(x)
