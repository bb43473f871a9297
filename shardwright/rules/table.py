"""The one table: primitive name → row. Control flow (scan, while, cond) has none; the partitioner descends into it."""

from __future__ import annotations

from shardwright.program.ir import Equation
from shardwright.rules import conv, dot, elementwise, index, opaque, pin, random, reduce, shape
from shardwright.rules.row import Row

_KINDS = (elementwise, dot, shape, index, reduce, conv, random, opaque, pin)

ROWS: dict[str, Row] = {}
for _kind in _KINDS:
    _twice = sorted(set(ROWS) & set(_kind.ROWS))
    assert not _twice, f"{_kind.__name__} repeats the rows of {_twice}"
    ROWS.update(_kind.ROWS)


def row(equation: Equation) -> Row | None:
    """The row of the equation's primitive, None where nothing is known of it."""
    return ROWS.get(equation.name)
