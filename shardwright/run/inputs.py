"""Arguments for a proof: those given, the others made up so that a wrong plan shows.

Numbers are random, no two rows of the batch are alike, ids run over their whole range and repeat; optimizer state is
small and not negative (second moments are not), but not zero, for zeros hide where they lie. Each step gets a batch of
its own: a given one with its rows in another order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from shardwright import _compat
from shardwright.program.ir import Leaf, Program, Role
from shardwright.run.id_ranges import id_ranges

_KEY_KINDS = ("threefry2x32", "rbg", "unsafe_rbg")
_SLOT_SIZE = 1e-3
_CARRIED_SCALAR = 1.0
_FIXED_SCALAR = 0.01


class Inputs:
    """The arguments of every step of a proof, in the step's own dtypes, as NumPy arrays (or key arrays).

    >>> Inputs(program, given=[None] * len(program.inputs), seed=0).at(step=0)
    """

    def __init__(self, program: Program, given: Sequence[Any], seed: int = 0):
        if len(given) != len(program.inputs):
            raise ValueError(f"the proof takes {len(program.inputs)} argument leaves, and {len(given)} were given")
        self._leaves = program.inputs
        self._carried = {i for i in program.carried if i is not None}
        self._ranges: Mapping[int, int] = id_ranges(program)
        self._seed = seed
        pairs = zip(given, program.inputs, strict=True)
        self._given = [None if _is_abstract(x) else _checked(x, leaf) for x, leaf in pairs]

    def at(self, step: int) -> list[Any]:
        """All arguments of one step; those that a step carries are of use for the first alone."""
        return [self._one(i, leaf, step, False) for i, leaf in enumerate(self._leaves)]

    def other(self, step: int) -> list[Any]:
        """As `at`, with another batch and other keys, made up even where they are given."""
        return [self._one(i, leaf, step, True) for i, leaf in enumerate(self._leaves)]

    def shaken(self, arguments: Sequence[Any]) -> list[Any]:
        """`arguments` with every float64 number changed in its last bit, or not, by chance."""
        rng = np.random.default_rng(self._seed)
        return [_shaken(x, rng) if getattr(x, "dtype", None) in (np.float64, np.complex128) else x for x in arguments]

    def _one(self, i: int, leaf: Leaf, step: int, other: bool) -> Any:
        varies = i not in self._carried and leaf.role in (Role.BATCH, Role.KEY)
        value = self._given[i]
        if value is None or (other and varies):
            rng = np.random.default_rng((self._seed, i, step, other) if varies else (self._seed, i))
            return generated(leaf, rng, i in self._carried, self._ranges.get(i))
        if not (varies and step and leaf.role is Role.BATCH and leaf.aval.ndim):
            return value
        order = np.random.default_rng((self._seed, step)).permutation(leaf.aval.shape[0])
        return value[order]


def _shaken(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return x * (1 + np.finfo(np.float64).eps * rng.integers(-1, 2, x.shape))


def _is_abstract(value: Any) -> bool:
    return value is None or isinstance(value, jax.ShapeDtypeStruct)


def _checked(value: Any, leaf: Leaf) -> Any:
    if tuple(np.shape(value)) != leaf.aval.shape:
        shape = list(np.shape(value))
        raise ValueError(
            f"{leaf.name} has shape {list(leaf.aval.shape)} in the step, and {shape} was given for the proof"
        )
    return value if _compat.is_extended(leaf.aval.dtype) else np.asarray(value, leaf.aval.dtype)


def generated(leaf: Leaf, rng: np.random.Generator, carried: bool, values: int | None) -> Any:
    """A leaf's value made up.

    Args:
      leaf: what it is.
      rng: where it is drawn from.
      carried: whether the step returns it changed.
      values: for an integer leaf how many values it may take, if that is known.
    """
    aval = leaf.aval
    if _compat.is_extended(aval.dtype):
        return _keys(leaf, rng)
    if leaf.role is Role.KEY:
        return rng.integers(0, 2**32, aval.shape, np.uint32).astype(aval.dtype)
    if aval.dtype == np.bool_:
        return rng.random(aval.shape) < 0.5
    if jax.dtypes.issubdtype(aval.dtype, np.integer):
        if carried or (leaf.role is not Role.BATCH and values is None):
            return np.zeros(aval.shape, aval.dtype)
        return _ids(aval.shape, values or _default_range(aval.dtype), rng).astype(aval.dtype)
    numbers = _numbers(leaf, rng, carried)
    if jax.dtypes.issubdtype(aval.dtype, np.complexfloating):
        numbers = numbers + 1j * _numbers(leaf, rng, carried)
    return np.asarray(numbers).astype(aval.dtype)


def _numbers(leaf: Leaf, rng: np.random.Generator, carried: bool) -> np.ndarray:
    shape = leaf.aval.shape
    if leaf.role is Role.OPTIMIZER:
        return _SLOT_SIZE * rng.random(shape)
    if leaf.role is Role.PARAMETER and len(shape) > 1:
        return rng.standard_normal(shape) / math.sqrt(_fan_in(shape) or 1)
    if leaf.role is Role.PARAMETER:
        return 1 + 0.1 * rng.standard_normal(shape)
    if leaf.role is Role.SCALAR:
        return np.full(shape, _CARRIED_SCALAR if carried else _FIXED_SCALAR)
    return rng.random(shape)  # a batch may be weights or probabilities: not negative


def _fan_in(shape: tuple[int, ...]) -> int:
    """Terms of a sum over the weight's rows. Of more than two dims it is not known which are summed: the largest.

    Too large weights saturate a softmax, and a saturated network multiplies rounding in every step.
    """
    return shape[-2] if len(shape) == 2 else max(shape)


def _default_range(dtype: Any) -> int:
    """Of an integer that indexes nothing: all values of a byte; else a mask's two."""
    return 1 << 7 if np.iinfo(dtype).bits <= 8 else 2


def _ids(shape: tuple[int, ...], values: int, rng: np.random.Generator) -> np.ndarray:
    """Every value if there is room, else a sample with both ends; rows differ if they can."""
    size = math.prod(shape)
    for _ in range(8):
        ids = rng.permutation(size) % values if size >= values else rng.integers(0, values, size)
        if 1 < size < values:
            ids[rng.permutation(size)[:2]] = 0, values - 1
        if len(shape) == 1 and size < values:
            ids = rng.permutation(values)[:size]
        ids = ids.reshape(shape)
        if len(shape) < 2 or len(np.unique(ids.reshape(shape[0], -1), axis=0)) == shape[0]:
            break
    return ids


def _keys(leaf: Leaf, rng: np.random.Generator) -> Any:
    for kind in _KEY_KINDS:
        one = jax.random.key(int(rng.integers(2**31)), impl=kind)
        if one.dtype == leaf.aval.dtype:
            return jax.random.split(one, leaf.aval.shape) if leaf.aval.shape else one
    raise ValueError(f"{leaf.name} is a key of an unknown kind, {leaf.aval.dtype}; give its value for the proof")
