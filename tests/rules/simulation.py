"""Plays the devices that compute one equation: cuts its operands, calls `Row.local` for each, joins the results."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from shardwright import _compat
from shardwright.program.ir import Equation, Var
from shardwright.rules.row import Dims, Factors, Local, Row, identity

COMBINE = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
}
_COMPILER_OPTIONS = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def simulate(row: Row, equation: Equation, factors: Factors, values: Sequence[Any], parts: Sequence[int]) -> list[Any]:
    """The equation's results, computed on prod(parts) devices and put together again."""
    blocks = tuple(-(-size // n) for size, n in zip(factors.sizes, parts, strict=True))
    shapes = tuple(
        _local_shape(v.aval.shape, dims, factors, blocks)
        for v, dims in zip(equation.outvars, factors.results, strict=True)
    )

    @functools.partial(jax.jit, compiler_options=_COMPILER_OPTIONS)
    def on_device(place: Any, *operands: Any) -> list[Any]:
        return row.local(equation, operands, Local(factors, tuple(parts), blocks, shapes, lambda f: place[f]))

    devices = list(itertools.product(*map(range, parts)))
    padded = [_pad(v, dims, factors, parts, blocks) for v, dims in zip(values, factors.operands, strict=True)]
    local: dict[tuple[int, ...], list[Any]] = {}
    for place in devices:
        operands = [_cut(v, dims, parts, place) for v, dims in zip(padded, factors.operands, strict=True)]
        out = on_device(np.array((*place, 0), np.int32), *operands)
        local[place] = [as_array(r) for r in out]
        assert [np.shape(r) for r in out] == list(shapes), f"{[np.shape(r) for r in out]} is not {shapes}"
    return [
        _join({place: out[i] for place, out in local.items()}, v, dims, factors, parts)
        for i, (v, dims) in enumerate(zip(equation.outvars, factors.results, strict=True))
    ]


def as_array(value: Any) -> Any:
    """`value` as a NumPy array; keys stay what they are."""
    return value if _compat.is_extended(getattr(value, "dtype", np.dtype(int))) else np.asarray(value)


def _local_shape(shape: Sequence[int], dims: Dims, factors: Factors, blocks: Sequence[int]) -> tuple[int, ...]:
    return tuple(n if f is None else n // factors.sizes[f] * blocks[f] for n, f in zip(shape, dims, strict=True))


def _pad(value: Any, dims: Dims, factors: Factors, parts: Sequence[int], blocks: Sequence[int]) -> Any:
    """`value` with every cut dim filled up to whole blocks.

    With identities where the factor is contracted and not masked, as the partitioner does, else with garbage.
    """
    for dim, f in enumerate(dims):
        extra = 0 if f is None else blocks[f] * parts[f] - factors.sizes[f]
        if extra:
            missing = value.shape[dim] // factors.sizes[f] * extra
            shape = (*value.shape[:dim], missing, *value.shape[dim + 1 :])
            if f in factors.contracted and f not in factors.masked:
                tail = np.full(shape, identity(factors.contracted[f], value.dtype))
            else:
                tail = garbage(shape, value.dtype)
            value = np.concatenate([value, tail], dim)
    return value


def garbage(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """What padding may hold at the worst: NaN; for integers both plausible and extreme ones."""
    if np.issubdtype(dtype, np.integer):
        info = np.iinfo(dtype)
        return np.resize(np.array([1, info.max, 0, info.min], dtype), shape)
    return np.full(shape, True if dtype == np.bool_ else np.nan, dtype)


def _cut(value: Any, dims: Dims, parts: Sequence[int], place: Sequence[int]) -> Any:
    for dim, f in enumerate(dims):
        if f is not None and parts[f] > 1:
            block = value.shape[dim] // parts[f]
            value = value[(slice(None),) * dim + (slice(place[f] * block, (place[f] + 1) * block),)]
    return value


def _join(local: dict[tuple[int, ...], Any], var: Var, dims: Dims, factors: Factors, parts: Sequence[int]) -> Any:
    """One result from every device's part: contracted factors combined, cut dims laid end to end, padding dropped.

    Devices that differ only in factors that the result does not have, and that are not contracted, must agree.
    """
    for f in reversed(range(len(parts))):  # each round folds the last coordinate of the devices' places
        groups: dict[tuple[int, ...], list[Any]] = {}
        for place in sorted(local):
            groups.setdefault(place[:f], []).append(local[place])
        local = {place: _fold(group, f, dims, factors) for place, group in groups.items()}
    return local[()][tuple(slice(n) for n in var.aval.shape)]


def _fold(group: list[Any], f: int, dims: Dims, factors: Factors) -> Any:
    if len(group) == 1:
        return group[0]
    if f in factors.contracted:
        total = group[0]
        for other in group[1:]:
            total = COMBINE[factors.contracted[f]](total, other)
        return total
    if f in dims:
        return np.concatenate(group, dims.index(f))
    for other in group[1:]:
        np.testing.assert_array_equal(group[0], other)
    return group[0]
