"""The common primitives in NumPy, so that simulated devices need no compiler for them.

`bind_in_numpy` puts them in the place of jax's own while a program is simulated. What is not here, or gets values that
are not NumPy's, is bound by jax as ever.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from shardwright import _compat

Values = Sequence[Any]
Params = Mapping[str, Any]
_UNARY = {
    "abs": np.abs,
    "neg": np.negative,
    "sign": np.sign,
    "floor": np.floor,
    "ceil": np.ceil,
    "exp": np.exp,
    "log": np.log,
    "log1p": np.log1p,
    "expm1": np.expm1,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "tanh": np.tanh,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "atan": np.arctan,
    "sqrt": np.sqrt,
    "square": np.square,
    "is_finite": np.isfinite,
    "not": np.invert,
    "real": np.real,
    "imag": np.imag,
    "copy": np.array,
    "copy_p": np.array,
    "name": np.array,
    "stop_gradient": np.array,
}
_BINARY = {
    "add": np.add,
    "add_any": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "pow": np.power,
    "atan2": np.arctan2,
    "nextafter": np.nextafter,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
_REDUCE = {
    "reduce_sum": np.add,
    "reduce_prod": np.multiply,
    "reduce_max": np.maximum,
    "reduce_min": np.minimum,
    "reduce_and": np.bitwise_and,
    "reduce_or": np.bitwise_or,
}
_CUMULATIVE = {"cumsum": np.add, "cumprod": np.multiply, "cummax": np.maximum, "cummin": np.minimum}


def _div(values: Values, params: Params) -> Any:
    a, b = values
    if np.issubdtype(a.dtype, np.inexact):
        return a / b
    return NotImplemented


def _convert(values: Values, params: Params) -> Any:
    (x,) = values
    old, new = x.dtype, np.dtype(params["new_dtype"])
    if np.issubdtype(old, np.inexact) and not np.issubdtype(new, np.inexact) and new != np.bool_:
        return NotImplemented  # what is out of range is XLA's to say
    return (x != 0) if new == np.bool_ else x.astype(new)


def _reduce(values: Values, params: Params, ufunc: Any) -> Any:
    (x,) = values
    if not x.size and ufunc in (np.maximum, np.minimum):
        return NotImplemented
    return ufunc.reduce(x, axis=tuple(params["axes"]), dtype=x.dtype)


def _cumulative(values: Values, params: Params, ufunc: Any) -> Any:
    (x,) = values
    axis = params["axis"]
    x = np.flip(x, axis) if params["reverse"] else x
    out = ufunc.accumulate(x, axis=axis, dtype=x.dtype)
    return np.flip(out, axis) if params["reverse"] else out


def _broadcast(values: Values, params: Params) -> Any:
    (x, *_), shape = values, params["shape"]
    spread = [1] * len(shape)
    for old, new in enumerate(params["broadcast_dimensions"]):
        spread[new] = x.shape[old]
    return np.broadcast_to(x.reshape(spread), shape)


def _reshape(values: Values, params: Params) -> Any:
    if params["dimensions"] is not None:
        return NotImplemented
    return values[0].reshape(params["new_sizes"])


def _slice(values: Values, params: Params) -> Any:
    strides = params["strides"] or (1,) * values[0].ndim
    starts, limits = params["start_indices"], params["limit_indices"]
    return values[0][tuple(slice(*x) for x in zip(starts, limits, strides, strict=True))]


def _pad(values: Values, params: Params) -> Any:
    x, fill = values
    config = params["padding_config"]
    if any(low < 0 or high < 0 for low, high, _ in config):
        return NotImplemented
    sizes = list(zip(x.shape, config, strict=True))
    out = np.full([low + n + max(n - 1, 0) * inner + high for n, (low, high, inner) in sizes], fill, x.dtype)
    out[tuple(slice(low, low + n + max(n - 1, 0) * inner, inner + 1) for n, (low, _, inner) in sizes)] = x
    return out


def _dot(values: Values, params: Params) -> Any:
    a, b = values
    ((ca, cb), (ba, bb)) = params["dimension_numbers"]
    out_dtype = params["preferred_element_type"] or a.dtype
    if a.dtype != b.dtype or not np.issubdtype(a.dtype, np.inexact) or out_dtype != a.dtype:
        return NotImplemented
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    left, right = [""] * a.ndim, [""] * b.ndim
    for i, j in (*zip(ba, bb, strict=True), *zip(ca, cb, strict=True)):
        left[i] = right[j] = next(letters)
    left, right = ([x or next(letters) for x in side] for side in (left, right))
    out = [left[i] for i in ba]
    out += [x for i, x in enumerate(left) if i not in (*ca, *ba)] + [
        x for i, x in enumerate(right) if i not in (*cb, *bb)
    ]
    return np.einsum(f"{''.join(left)},{''.join(right)}->{''.join(out)}", a, b)


def _argmax(values: Values, params: Params, find: Callable) -> Any:
    (axis,) = params["axes"]
    if np.issubdtype(values[0].dtype, np.inexact) and np.isnan(values[0]).any():
        return NotImplemented
    return find(values[0], axis=axis).astype(params["index_dtype"])


def _select(values: Values, params: Params) -> Any:
    which, *cases = values
    if which.dtype == np.bool_ and len(cases) == 2:
        return np.where(which, cases[1], cases[0])
    return NotImplemented


def _clamp(values: Values, params: Params) -> Any:
    return np.minimum(np.maximum(values[1], values[0]), values[2])


def _iota(values: Values, params: Params) -> Any:
    shape, dim = params["shape"], params["dimension"]
    along = np.arange(shape[dim]).astype(params["dtype"])
    return np.broadcast_to(along.reshape([-1 if d == dim else 1 for d in range(len(shape))]), shape)


def _split(values: Values, params: Params) -> Any:
    return np.split(values[0], np.cumsum(params["sizes"])[:-1], params["axis"])


_TABLE: dict[str, Callable[[Values, Params], Any]] = {
    **{name: lambda v, p, f=f: f(v[0]) for name, f in _UNARY.items()},
    **{name: lambda v, p, f=f: f(v[0], v[1]) for name, f in _BINARY.items()},
    **{name: lambda v, p, f=f: _reduce(v, p, f) for name, f in _REDUCE.items()},
    **{name: lambda v, p, f=f: _cumulative(v, p, f) for name, f in _CUMULATIVE.items()},
    "argmax": lambda v, p: _argmax(v, p, np.argmax),
    "argmin": lambda v, p: _argmax(v, p, np.argmin),
    "broadcast_in_dim": _broadcast,
    "clamp": _clamp,
    "concatenate": lambda v, p: np.concatenate(v, p["dimension"]),
    "convert_element_type": _convert,
    "div": _div,
    "dot_general": _dot,
    "integer_pow": lambda v, p: v[0] ** p["y"] if np.issubdtype(v[0].dtype, np.inexact) else NotImplemented,
    "iota": _iota,
    "logistic": lambda v, p: 1 / (1 + np.exp(-v[0])),
    "pad": _pad,
    "reshape": _reshape,
    "rev": lambda v, p: np.flip(v[0], p["dimensions"]),
    "rsqrt": lambda v, p: 1 / np.sqrt(v[0]),
    "select_n": _select,
    "slice": _slice,
    "split": _split,
    "squeeze": lambda v, p: v[0].reshape([n for d, n in enumerate(v[0].shape) if d not in p["dimensions"]]),
    "transpose": lambda v, p: np.transpose(v[0], p["permutation"]),
}


def in_numpy(name: str, values: Values, params: Params) -> Any:
    """The primitive's results, or NotImplemented."""
    if name not in _TABLE or not all(isinstance(v, np.ndarray | np.generic) for v in values):
        return NotImplemented
    with np.errstate(all="ignore"):
        return _TABLE[name]([np.asarray(v) for v in values], params)


@contextlib.contextmanager
def bind_in_numpy() -> Iterator[None]:
    """Within, `_compat.bind` computes in NumPy what it can."""
    original = _compat.bind

    def bind(primitive: Any, values: Any, params: dict[str, Any]) -> Any:
        found = in_numpy(primitive.name, values, params)
        if found is NotImplemented:
            with jax.ensure_compile_time_eval():
                return original(primitive, values, params)
        return [np.asarray(x) for x in found] if primitive.multiple_results else np.asarray(found)

    _compat.bind = bind
    try:
        yield
    finally:
        _compat.bind = original
