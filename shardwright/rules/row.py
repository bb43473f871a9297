"""What a row of the rule table states about a primitive.

A row relates the dims of an equation's operands and results through *factors*, in the sense of Shardy's sharding rules:
dims that share a factor must be cut alike. The factor of `i` in `ij,jk->ik` is free, that of `j` is contracted by a
sum. Everything that reads the table (classes, prices, the partitioner) reads the same factors.

How to write a row: see `Row`. Sizes of a factor and of a dim may differ: in a reshape `[b, s] -> [b*s]` the result
dim of size b*s carries the factor of `b`, because only its major part can be cut without moving data. A dim of size
`multiple * factor size`, cut by the factor, is cut into contiguous blocks of `multiple * block` elements.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from shardwright import _compat
from shardwright.program.ir import Equation

Dims = tuple[int | None, ...]
"""For each dim of one operand or result the id of its factor, or None where the dim must be whole."""


@dataclasses.dataclass(frozen=True)
class Factors:
    """How the dims of one equation relate.

    Attributes:
      sizes: size of each factor; its id is the position.
      operands: `Dims` of each operand. Give a dim that must be whole, and a dim of size 1 that broadcasts, None.
      results: `Dims` of each result.
      contracted: factor id → monoid ("sum", "prod", "max", "min", "and", "or") for factors that operands have and
        results
        lack: cutting one leaves each device with a partial result, to be combined by the monoid.
      blocked: ids of factors that relate dims but cannot be cut by `Row.local` (a cumulative sum's dim, a sorted dim).
      masked: ids of contracted factors whose padding `Row.local` itself keeps out of the result; for all other
        contracted factors the partitioner overwrites the padding with the monoid's identity before the call.
    """

    sizes: tuple[int, ...]
    operands: tuple[Dims, ...]
    results: tuple[Dims, ...]
    contracted: Mapping[int, str] = dataclasses.field(default_factory=dict)
    blocked: frozenset[int] = frozenset()
    masked: frozenset[int] = frozenset()


@dataclasses.dataclass(frozen=True)
class Local:
    """What `Row.local` may ask about the part that one device computes.

    Attributes:
      factors: the equation's factors.
      parts: for each factor into how many blocks it is cut (1: whole).
      blocks: for each factor the size of one block (the factor's whole size if it is not cut; if the size does not
        divide, blocks are of equal size and the last ones hold padding).
      result_shapes: shape of each result on one device.
      index: factor id → this device's block number, a traced int32 scalar (0 if the factor is not cut).
    """

    factors: Factors
    parts: tuple[int, ...]
    blocks: tuple[int, ...]
    result_shapes: tuple[tuple[int, ...], ...]
    index: Callable[[int], Any]

    def offset(self, factor: int) -> Any:
        """First element of this device's block, in units of the factor; a traced int32 scalar or 0."""
        return self.index(factor) * self.blocks[factor] if self.parts[factor] > 1 else 0


def bind(equation: Equation, values: Sequence[Any], local: Local) -> list[Any]:
    """The default local form: the same primitive with the same parameters on the local blocks."""
    del local
    return bind_with(equation, values, equation.params)


def bind_with(equation: Equation, values: Sequence[Any], params: Mapping[str, Any]) -> list[Any]:
    """The equation's primitive with other parameters."""
    out = _compat.bind(equation.primitive, values, dict(params))
    return list(out) if equation.primitive.multiple_results else [out]


def one_flop_an_element(equation: Equation) -> float:
    """Flops of an elementwise operation: one for each element of the results."""
    return float(sum(v.aval.size for v in equation.outvars))


def no_flops(equation: Equation) -> float:
    """Flops of an operation that only moves data."""
    del equation
    return 0.0


def not_linear(equation: Equation) -> tuple[frozenset[int], ...]:
    """The default: a pending sum may not pass through."""
    del equation
    return ()


@dataclasses.dataclass(frozen=True)
class Row:
    """All that is known of one primitive (or a family that behaves alike).

    Attributes:
      factors: equation → `Factors`.
      local: (equation, local values, `Local`) → local results. Called under a trace inside `jax.shard_map`, and with
        concrete arrays by the simulator; it may use any jax function, but no collective.
      linear: equation → groups of operand positions. The result is linear in the operands of one group taken
        together while all other operands are fixed: add ({0, 1},), mul ({0}, {1}), dot ({0}, {1}), sub ({0, 1},),
        div ({0},), select_n ({1, 2, …},), reshape ({0},). A pending sum on all operands of a group passes to the
        result.
      flops: equation → floating-point operations of the whole (not the local) equation.
      fused: True where XLA never stores the result for itself but computes it inside its consumer (elementwise,
        broadcast, iota, reshape of the same layout).
      passthrough: True where result i is operand i and every operand keeps its own placement (optimization_barrier).
    """

    factors: Callable[[Equation], Factors]
    local: Callable[[Equation, Sequence[Any], Local], list[Any]] = bind
    linear: Callable[[Equation], tuple[frozenset[int], ...]] = not_linear
    flops: Callable[[Equation], float] = no_flops
    fused: bool = False
    passthrough: bool = False


class FactorsBuilder:
    """Collects factors dim by dim.

    >>> b = FactorsBuilder(equation)
    >>> i = b.new(size); b.operand(0, dim, i); b.result(0, dim, i)
    >>> b.build(contracted={...})
    """

    def __init__(self, equation: Equation):
        self._sizes: list[int] = []
        self._operands: list[list[int | None]] = [[None] * a.aval.ndim for a in equation.invars]
        self._results: list[list[int | None]] = [[None] * v.aval.ndim for v in equation.outvars]

    def new(self, size: int) -> int:
        """A new factor of this size; returns its id."""
        self._sizes.append(int(size))
        return len(self._sizes) - 1

    def operand(self, position: int, dim: int, factor: int) -> None:
        """Says that this operand's dim is (major in) the factor."""
        self._operands[position][dim] = factor

    def result(self, position: int, dim: int, factor: int) -> None:
        """Says that this result's dim is (major in) the factor."""
        self._results[position][dim] = factor

    def link(self, size: int, operands: Mapping[int, int], results: Mapping[int, int]) -> int:
        """A new factor on the given operand position → dim and result position → dim; returns its id."""
        factor = self.new(size)
        for position, dim in operands.items():
            self.operand(position, dim, factor)
        for position, dim in results.items():
            self.result(position, dim, factor)
        return factor

    def build(
        self, contracted: Mapping[int, str] | None = None, blocked: Sequence[int] = (), masked: Sequence[int] = ()
    ) -> Factors:
        """The finished factors."""
        return Factors(
            tuple(self._sizes),
            tuple(map(tuple, self._operands)),
            tuple(map(tuple, self._results)),
            dict(contracted or {}),
            frozenset(blocked),
            frozenset(masked),
        )


def identity(monoid: str, dtype: Any) -> Any:
    """The monoid's neutral element as a NumPy scalar of `dtype`."""
    dtype = np.dtype(dtype)
    if monoid in ("sum", "or"):
        return np.zeros((), dtype)[()]
    if monoid in ("prod", "and"):
        return np.ones((), dtype)[()] if monoid == "prod" or dtype == np.bool_ else np.array(-1).astype(dtype)[()]
    if dtype == np.bool_:
        return np.bool_(monoid == "min")
    if np.issubdtype(dtype, np.integer):
        info = np.iinfo(dtype)
        return dtype.type(info.min if monoid == "max" else info.max)
    return dtype.type(-np.inf if monoid == "max" else np.inf)
