"""The program that every device runs: local equations and moves, loops inside loops.

It is data. The price is read from it, a reader prints it, `emit` turns it into jax under `shard_map`. Every value is a
`Slot`: one variable in one placement, so a variable that is needed in two placements has two slots.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import Any

from shardwright.plan.placement import Placement
from shardwright.program.ir import Aval, Equation, Literal, Source, Var
from shardwright.rules.row import Factors, Row


@dataclasses.dataclass(frozen=True, eq=False)
class Slot:
    """A value on each device: logical shape and dtype, placement, and the shape of one device's part."""

    aval: Aval
    placement: Placement
    shape: tuple[int, ...]

    @functools.cached_property
    def bytes(self) -> int:
        """Bytes of one device's part."""
        return math.prod(self.shape) * self.aval.itemsize


@dataclasses.dataclass(frozen=True, eq=False)
class Mask:
    """Before the call, the padding of operand `position` in `dim`, cut by `factor`, becomes the monoid's identity."""

    position: int
    dim: int
    factor: int
    monoid: str


@dataclasses.dataclass(frozen=True, eq=False)
class Compute:
    """One equation on local blocks.

    `cut[f]`: axes that cut factor f; `blocks[f]`: size of one block of it; `flops`: of one device.
    """

    equation: Equation
    row: Row | None
    factors: Factors
    inputs: tuple[Slot | Literal, ...]
    outputs: tuple[Slot, ...]
    cut: tuple[tuple[str, ...], ...]
    blocks: tuple[int, ...]
    flops: float = 0.0
    masks: tuple[Mask, ...] = ()

    @property
    def source(self) -> Source:
        """Where in the user's code it comes from."""
        return self.equation.source


@dataclasses.dataclass(frozen=True, eq=False)
class Move:
    """A change of placement.

    kind: all_reduce, all_gather, reduce_scatter, all_to_all, permute (collectives), slice (keep a block of a whole
    dim), mask (a whole value becomes a pending sum: kept on the first device of `axes`, zero elsewhere), relabel (zero
    becomes a pending sum as it is), expand (a block becomes a pending sum, at its place between zeros), barrier (the
    first input again, but not before the second one), wait (likewise, and no compiler takes it away).
    `dim` is gathered, scattered or sliced; all_to_all scatters `dim` and gathers `other_dim`.
    """

    kind: str
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    axes: tuple[str, ...]
    source: Source
    dim: int = 0
    other_dim: int = 0
    monoid: str = "sum"
    why: str = ""


@dataclasses.dataclass(frozen=True, eq=False)
class Constant:
    """An array that the program closes over, whole on every device."""

    value: Any
    outputs: tuple[Slot, ...]
    inputs: tuple[Slot, ...] = ()
    source: Source = dataclasses.field(default_factory=Source)


@dataclasses.dataclass(frozen=True, eq=False)
class Control:
    """scan, while or cond with the bodies partitioned."""

    equation: Equation
    inputs: tuple[Slot | Literal, ...]
    outputs: tuple[Slot, ...]
    bodies: tuple[DeviceBlock, ...]

    @property
    def source(self) -> Source:
        """Where in the user's code it comes from."""
        return self.equation.source


Op = Compute | Move | Constant | Control
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute")


@dataclasses.dataclass(frozen=True, eq=False)
class DeviceBlock:
    """Operations in order, with the slots that come in and go out."""

    inputs: tuple[Slot, ...]
    ops: tuple[Op, ...]
    outputs: tuple[Slot | Literal, ...]


@dataclasses.dataclass(frozen=True)
class Fallback:
    """An equation that runs whole on every device although its operands are cut, and why."""

    equation: Equation
    reason: str


@dataclasses.dataclass(frozen=True)
class Copied:
    """A class of dims that its axes cut only where its pieces have been copied.

    Attributes:
      name: the class.
      pieces: how many it has.
      copies: how many there are of them where they are cut.
      axes: mesh axes that cut these.
      parts: devices along the axes.
      whole: leaves that have the pieces and are whole on these axes.
      values: variables that have the copies, and in which dim.
      line: where the pieces are copied.
    """

    name: str
    pieces: int
    copies: int
    axes: tuple[str, ...]
    parts: int
    whole: tuple[str, ...]
    values: tuple[tuple[Var, int], ...]
    line: str


@dataclasses.dataclass(frozen=True, eq=False)
class DeviceProgram:
    """The partitioned step: what goes in and comes out has the placements of the plan."""

    block: DeviceBlock
    mesh: dict[str, int]
    fallbacks: tuple[Fallback, ...] = ()
    copied: tuple[Copied, ...] = ()


def walk(block: DeviceBlock, times: int = 1) -> Iterator[tuple[Op, int]]:
    """Every operation with how often one step runs it; a while's body counts once, a cond counts every branch."""
    for op in block.ops:
        yield op, times
        if isinstance(op, Control):
            turns = times * (int(op.equation.params["length"]) if op.equation.name == "scan" else 1)
            for body in op.bodies:
                yield from walk(body, turns)
