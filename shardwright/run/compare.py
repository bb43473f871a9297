"""How far a result on many devices is from the same result on one.

The error of a leaf, with a its value under the plan and b on one device, is

    ‖a − b‖₂ / max(‖b‖₂, 1e-6 · √size · RMS of all leaves of its role)

since a leaf whose true value is zero holds only rounding. A method may magnify that rounding (Adam divides it by
itself), so with d the change on one device when its arguments change in the last bit, a distance up to 100 ‖d‖ is no
error: the denominator is at least

    min(100 ‖d‖₂, 1e-6 · √size · RMS of all leaves of its role) / 1e-9

which changes nothing for a leaf that rounding moves by less than 1e-11 of itself, and never hides what is large beside
the other leaves. In the step's own dtypes d is left out.

Every device's copy is compared: where several devices hold the same part, the worst of them counts. Integers, booleans
and keys have the share of elements that differ.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from shardwright import _compat

TOLERANCE = 1e-9
"""The largest relative error of a leaf in float64 that still counts as the same mathematics."""
_FLOOR = 1e-6
_ROUNDINGS = 100
"""How many times further a sum in another order may lie than arguments changed in the last bit."""


@dataclasses.dataclass(frozen=True)
class Distance:
    """‖a − b‖² (for exact leaves the number of elements that differ), ‖b‖² and the size of one leaf."""

    squared: float
    norm_squared: float
    size: int
    exact: bool
    bitwise: bool


def host_array(value: Any) -> np.ndarray:
    """A value on one device as NumPy; keys as their words."""
    return np.asarray(jax.random.key_data(value) if _is_key(value) else value)


def distance(value: jax.Array, want: np.ndarray) -> Distance:
    """Compares a sharded array, which may be padded behind, with the whole array that it should be.

    Args:
      value: the result under the plan, on all devices.
      want: the result on one device, from `host_array`.
    """
    value = jax.random.key_data(value) if _is_key(value) else value
    exact = not _is_inexact(want)
    worst: dict[tuple, float] = {}
    bitwise = True
    for shard in value.addressable_shards:
        part = tuple(slice(*s.indices(n)[:2]) for s, n in zip(shard.index, value.shape, strict=True))
        expected = want[part]
        got = np.asarray(shard.data)[tuple(slice(0, n) for n in expected.shape)]
        bitwise = bitwise and got.dtype == want.dtype and got.tobytes() == expected.tobytes()
        key = tuple((s.start, s.stop) for s in part)
        worst[key] = max(worst.get(key, 0.0), _squared_difference(got, expected, exact))
    norm = 0.0 if exact else _squared_norm(want)
    return Distance(sum(worst.values()), norm, want.size, exact, bitwise)


def noise(value: Any, want: np.ndarray) -> float:
    """‖d‖₂ of one leaf: how far `value`, from arguments changed in the last bit, lies from `want`."""
    exact = not _is_inexact(want)
    return 0.0 if exact else math.sqrt(_squared_difference(host_array(value), want, exact))


def relative_errors(distances: Sequence[Distance], roles: Sequence[str], noises: Sequence[float]) -> list[float]:
    """The error of each leaf; infinite where a value is not a number or the two are not both infinite."""
    squares: dict[str, float] = {}
    sizes: dict[str, int] = {}
    for d, role in zip(distances, roles, strict=True):
        if not d.exact:
            squares[role] = squares.get(role, 0.0) + d.norm_squared
            sizes[role] = sizes.get(role, 0) + d.size
    errors = []
    for d, role, moved in zip(distances, roles, noises, strict=True):
        if d.squared == 0:
            errors.append(0.0)
        elif d.exact:
            errors.append(d.squared / d.size)
        else:
            typical = math.sqrt(squares[role] / sizes[role]) if sizes[role] else 0.0
            floor = _FLOOR * math.sqrt(d.size) * typical
            scale = max(math.sqrt(d.norm_squared), floor, min(_ROUNDINGS * moved, floor) / TOLERANCE)
            errors.append(math.sqrt(d.squared) / scale if scale and math.isfinite(d.squared) else math.inf)
    return errors


def _squared_difference(got: np.ndarray, want: np.ndarray, exact: bool) -> float:
    if exact:
        return float(np.count_nonzero(got != want))
    got, want = _wide(got), _wide(want)
    with np.errstate(all="ignore"):
        difference = np.where(got == want, 0, got - want)  # equal infinities are equal
        squared = float(np.sum(np.abs(difference) ** 2))
    return squared if math.isfinite(squared) else math.inf


def _squared_norm(want: np.ndarray) -> float:
    wide = _wide(want)
    with np.errstate(all="ignore"):
        return float(np.sum(np.abs(np.where(np.isfinite(wide), wide, 0)) ** 2))


def _wide(x: np.ndarray) -> np.ndarray:
    return x if x.dtype.kind == "c" else x.astype(np.float64)


def _is_inexact(x: np.ndarray) -> bool:
    return bool(jax.dtypes.issubdtype(x.dtype, np.inexact))


def _is_key(value: Any) -> bool:
    return _compat.is_extended(value.dtype)
