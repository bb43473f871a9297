"""The program that the planner sees: a jaxpr, flattened, with every leaf and equation named.

It mirrors a jaxpr field by field (`primitive`, `invars`, `outvars`, `params`), so a rule reads an `Equation` as it
would read a `JaxprEqn`, but only control flow keeps inner programs (`blocks`), and everything is ours to build.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any

from jax.extend.core import Primitive


class Role(enum.Enum):
    """What a leaf of the step's arguments or results is to training."""

    PARAMETER = "parameter"
    OPTIMIZER = "optimizer"
    BATCH = "batch"
    KEY = "key"
    SCALAR = "scalar"
    RESULT = "result"


@dataclasses.dataclass(frozen=True)
class Aval:
    """Shape and dtype of a value; `dtype` may be an extended one (PRNG keys)."""

    shape: tuple[int, ...]
    dtype: Any
    weak_type: bool = False

    @property
    def ndim(self) -> int:
        """Number of dims."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return int(self.dtype.itemsize)

    @functools.cached_property
    def bytes(self) -> int:
        """Bytes of the whole."""
        return self.size * self.itemsize


@dataclasses.dataclass(frozen=True, eq=False)
class Var:
    """A value of the program, equal only to itself."""

    aval: Aval

    def __repr__(self) -> str:
        return f"Var({self.aval.dtype}{list(self.aval.shape)})"


@dataclasses.dataclass(frozen=True, eq=False)
class Literal:
    """A constant of the program, scalar or array."""

    value: Any
    aval: Aval


Atom = Var | Literal


@dataclasses.dataclass(frozen=True)
class Source:
    """Where in the user's code an equation comes from: name-scope path, 'file.py:12 (function)', jax's own record."""

    scope: str = ""
    line: str = ""
    info: Any = dataclasses.field(default=None, compare=False, repr=False)


@dataclasses.dataclass(frozen=True, eq=False)
class Equation:
    """One application of a primitive. `blocks`: the bodies of scan (body), while (condition, body), cond (branches)."""

    primitive: Primitive
    invars: tuple[Atom, ...]
    outvars: tuple[Var, ...]
    params: Mapping[str, Any]
    source: Source = Source()
    blocks: tuple[Block, ...] = ()

    @property
    def name(self) -> str:
        """The primitive's name."""
        return self.primitive.name


@dataclasses.dataclass(frozen=True, eq=False)
class Block:
    """Equations in order, with their inputs and outputs."""

    invars: tuple[Var, ...]
    equations: tuple[Equation, ...]
    outvars: tuple[Atom, ...]


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One array among the step's arguments or results. `name`: argument name and `keystr`, as in `state[0]['emb']`."""

    name: str
    aval: Aval
    role: Role
    donated: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """A captured step.

    Attributes:
      block: the flat program.
      inputs: a leaf per `block.invars`.
      outputs: a leaf per `block.outvars`.
      carried: for each output the index of the input that it replaces in the next step, or None.
      in_tree: pytree structure of `(args, kwargs)` with only the array leaves.
      out_tree: pytree structure of the result.
      fingerprint: hash of everything above that a plan depends on.
    """

    block: Block
    inputs: tuple[Leaf, ...]
    outputs: tuple[Leaf, ...]
    carried: tuple[int | None, ...]
    in_tree: Any
    out_tree: Any
    fingerprint: str


def walk(block: Block) -> Iterator[Equation]:
    """Every equation of `block` and of the blocks inside, outer first."""
    for equation in block.equations:
        yield equation
        for inner in equation.blocks:
            yield from walk(inner)


def trip_count(equation: Equation) -> int:
    """How often one run of `equation` runs its blocks: a scan's length, else 1 (a while's is not known)."""
    return int(equation.params["length"]) if equation.name == "scan" else 1


def counted(block: Block, times: int = 1) -> Iterator[tuple[Equation, int]]:
    """Every equation of `block` and of the blocks inside, with how often one run of `block` runs it."""
    for equation in block.equations:
        yield equation, times
        for inner in equation.blocks:
            yield from counted(inner, times * trip_count(equation))
