"""Dims that must move together, found once by union over the rules' factors.

A class holds every (variable, dim) that shares a factor with another of its members, through loops and branches. Its
`size` is the number of pieces into which every member can be cut alike: the greatest common divisor of their sizes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

from shardwright.program.ir import Atom, Block, Equation, Program, Role, Var, walk
from shardwright.rules.row import Factors, Row
from shardwright.rules.table import row

Node = tuple[Var, int]


@dataclasses.dataclass(frozen=True)
class DimClass:
    """A set of dims that are cut alike. `name` is for the reader."""

    id: int
    name: str
    size: int


@dataclasses.dataclass(frozen=True, eq=False)
class Facts:
    """What the table says of one equation, asked once.

    Attributes:
      row: its row, None for a primitive without one.
      factors: how its dims relate.
      classes: the class of each factor (None: no dim of a variable has it).
      cuttable: class → its factors that can be cut.
      blocked: classes whose factors cannot be cut.
      apart: factors that join nothing: their dims are in different classes and whole here.
      linear: groups of operands through which a pending sum may pass.
      flops: of the whole equation.
      largest_bytes: of its largest operand or result.
    """

    row: Row | None
    factors: Factors
    classes: tuple[int | None, ...]
    cuttable: dict[int, tuple[int, ...]]
    blocked: frozenset[int]
    apart: frozenset[int]
    linear: tuple[frozenset[int], ...]
    flops: float
    largest_bytes: int


@dataclasses.dataclass(frozen=True, eq=False)
class Classes:
    """Classes of a program, and the facts of each of its equations outside control flow.

    `readers`: variable → (equation, or None for its block's result; operand position), in order. `finer`: what the
    partitioner has found of classes that their axes do not divide, by (class, devices that cut it) of all of these.
    """

    all: tuple[DimClass, ...]
    of: dict[Var, tuple[int, ...]]
    facts: dict[Equation, Facts]
    readers: dict[Var, list[tuple[Equation | None, int]]]
    finer: dict[frozenset[tuple[int, int]], Any] = dataclasses.field(default_factory=dict)

    def size_multiple(self, var: Var, dim: int) -> int:
        """How many elements of `var`'s dim one unit of its class is."""
        size = self.all[self.of[var][dim]].size
        return var.aval.shape[dim] // size if size else 1


class _Union:
    def __init__(self) -> None:
        self.parent: dict[Node, Node] = {}
        self.units: dict[Node, int] = {}

    def find(self, node: Node) -> Node:
        parent = self.parent.setdefault(node, node)
        if parent is node or parent == node:
            return node
        root = self.find_root(node)
        while self.parent[node] != root:
            self.parent[node], node = root, self.parent[node]
        return root

    def find_root(self, node: Node) -> Node:
        while self.parent[node] != node:
            node = self.parent[node]
        return node

    def join(self, nodes: Iterable[Node], units: int | None = None) -> None:
        roots = [self.find(n) for n in nodes]
        if not roots:
            return
        for r in roots[1:]:
            a, b = self.find(roots[0]), self.find(r)
            if a != b:
                self.parent[b] = a
                self.units[a] = math.gcd(self.units.get(a, 0), self.units.pop(b, 0))
        if units is not None:
            root = self.find(roots[0])
            self.units[root] = math.gcd(self.units.get(root, 0), units)


Apart = frozenset[tuple[Equation, int]]
"""(Equation, factor): factors that join nothing."""


def find_classes(program: Program, apart: Apart = frozenset()) -> Classes:
    """The classes of `program`'s dims; the factors in `apart` join none."""
    union = _Union()
    facts: dict[Equation, tuple[Row | None, Factors]] = {}
    _visit(program.block, union, facts, apart)
    for out, i in zip(program.block.outvars, program.carried, strict=True):
        if i is not None:
            _join_all(union, [out, program.block.invars[i]])
    return _number(program, union, facts, apart)


def _join_all(union: _Union, atoms: Iterable[Atom], drop: tuple[int, ...] | None = None) -> None:
    """Joins equal dims of several variables; `drop[k]` leading dims of the k-th are left out."""
    atoms = list(atoms)
    drop = drop or (0,) * len(atoms)
    held = [(a, d) for a, d in zip(atoms, drop, strict=True) if isinstance(a, Var)]
    if held:
        for dim in range(held[0][0].aval.ndim - held[0][1]):
            union.join([(a, dim + d) for a, d in held], held[0][0].aval.shape[dim + held[0][1]])


def _visit(block: Block, union: _Union, facts: dict[Equation, tuple[Row | None, Factors]], apart: Apart) -> None:
    for eqn in block.equations:
        for inner in eqn.blocks:
            _visit(inner, union, facts, apart)
        if eqn.blocks:
            _JOIN[eqn.name](eqn, union)
            continue
        found = row(eqn)
        factors = found.factors(eqn) if found else unknown_factors(eqn)
        facts[eqn] = found, factors
        for f, size in enumerate(factors.sizes):
            if (eqn, f) not in apart:
                union.join(_members(eqn, factors, f), size)


def unknown_factors(eqn: Equation) -> Factors:
    """Everything whole: how a primitive without a row is treated."""
    return Factors(
        (), tuple((None,) * a.aval.ndim for a in eqn.invars), tuple((None,) * v.aval.ndim for v in eqn.outvars)
    )


def _members(eqn: Equation, factors: Factors, factor: int) -> list[Node]:
    sides = [*zip(eqn.invars, factors.operands, strict=True), *zip(eqn.outvars, factors.results, strict=True)]
    return [(a, dim) for a, dims in sides if isinstance(a, Var) for dim, f in enumerate(dims) if f == factor]


def _join_scan(eqn: Equation, union: _Union) -> None:
    (body,), consts, carry = eqn.blocks, eqn.params["num_consts"], eqn.params["num_carry"]
    for i, (outer, inner) in enumerate(zip(eqn.invars, body.invars, strict=True)):
        _join_all(union, [outer, inner], (int(i >= consts + carry), 0))
    for i, (result, made) in enumerate(zip(eqn.outvars, body.outvars, strict=True)):
        atoms = [result, made, *([body.invars[consts + i]] if i < carry else [])]
        _join_all(union, atoms, (int(i >= carry),) + (0,) * (len(atoms) - 1))


def _join_while(eqn: Equation, union: _Union) -> None:
    cond, body = eqn.blocks
    nc, nb = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    for outer, inner in zip(eqn.invars[:nc], cond.invars, strict=False):
        _join_all(union, [outer, inner])
    for outer, inner in zip(eqn.invars[nc : nc + nb], body.invars, strict=False):
        _join_all(union, [outer, inner])
    for atoms in zip(eqn.invars[nc + nb :], cond.invars[nc:], body.invars[nb:], body.outvars, eqn.outvars, strict=True):
        _join_all(union, atoms)


def _join_cond(eqn: Equation, union: _Union) -> None:
    for branch in eqn.blocks:
        for outer, inner in [
            *zip(eqn.invars[1:], branch.invars, strict=True),
            *zip(eqn.outvars, branch.outvars, strict=True),
        ]:
            _join_all(union, [outer, inner])


_JOIN = {"scan": _join_scan, "while": _join_while, "cond": _join_cond}


def _number(
    program: Program, union: _Union, facts: dict[Equation, tuple[Row | None, Factors]], apart: Apart
) -> Classes:
    ids: dict[Node, int] = {}
    sizes: list[int] = []
    of: dict[Var, tuple[int, ...]] = {}

    def add(var: Var) -> None:
        if var in of:
            return
        found = []
        for dim, size in enumerate(var.aval.shape):
            root = union.find((var, dim))
            if root not in ids:
                ids[root] = len(sizes)
                sizes.append(0)
            sizes[ids[root]] = math.gcd(math.gcd(sizes[ids[root]], size), union.units.get(root, 0))
            found.append(ids[root])
        of[var] = tuple(found)

    for block in _blocks(program.block):
        for var in block.invars:
            add(var)
        for eqn in block.equations:
            for var in eqn.outvars:
                add(var)
    names = _names(program, of, facts, len(sizes))
    numbered = tuple(DimClass(i, names[i], s) for i, s in enumerate(sizes))
    complete = {e: _complete(e, r, f, of, apart) for e, (r, f) in facts.items()}
    return Classes(numbered, of, complete, _readers(program.block))


def _readers(program: Block) -> dict[Var, list[tuple[Equation | None, int]]]:
    found: dict[Var, list[tuple[Equation | None, int]]] = {}
    for block in _blocks(program):
        for eqn in block.equations:
            for i, a in enumerate(eqn.invars):
                if isinstance(a, Var):
                    found.setdefault(a, []).append((eqn, i))
        for i, a in enumerate(block.outvars):
            if isinstance(a, Var):
                found.setdefault(a, []).append((None, i))
    return found


def inner_operands(eqn: Equation, position: int) -> list[Var]:
    """The variables of a control-flow equation's blocks that stand for its operand."""
    if eqn.name == "scan":
        return [eqn.blocks[0].invars[position]]
    if eqn.name == "cond":
        return [b.invars[position - 1] for b in eqn.blocks] if position else []
    cond, body = eqn.blocks
    nc, nb = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    if position < nc:
        return [cond.invars[position]]
    inner = [body.invars[position - nc]]
    return inner if position < nc + nb else [*inner, cond.invars[position - nb]]


def _complete(
    eqn: Equation, found: Row | None, factors: Factors, of: dict[Var, tuple[int, ...]], apart: Apart
) -> Facts:
    alone = frozenset(f for f in range(len(factors.sizes)) if (eqn, f) in apart)
    classes = tuple(None if f in alone else c for f, c in enumerate(_factor_classes(eqn, factors, of)))
    cuttable: dict[int, tuple[int, ...]] = {}
    for f, c in enumerate(classes):
        if c is not None and f not in factors.blocked:
            cuttable[c] = (*cuttable.get(c, ()), f)
    blocked = frozenset(
        c for f, c in enumerate(classes) if c is not None and f in factors.blocked and c not in cuttable
    )
    flops = found.flops(eqn) if found else float(sum(v.aval.size for v in eqn.outvars))
    largest = max((a.aval.bytes for a in (*eqn.invars, *eqn.outvars)), default=0)
    linear = tuple(found.linear(eqn)) if found else ()
    return Facts(found, factors, classes, cuttable, blocked, alone, linear, flops, largest)


def _blocks(block: Block) -> Iterable[Block]:
    yield block
    for eqn in walk(block):
        yield from eqn.blocks


def _factor_classes(eqn: Equation, factors: Factors, of: dict[Var, tuple[int, ...]]) -> tuple[int | None, ...]:
    found: list[int | None] = []
    for f in range(len(factors.sizes)):
        members = _members(eqn, factors, f)
        found.append(of[members[0][0]][members[0][1]] if members else None)
    return tuple(found)


def _names(
    program: Program, of: dict[Var, tuple[int, ...]], facts: dict[Equation, tuple[Row | None, Factors]], count: int
) -> list[str]:
    """Names for the reader: batch, vocabulary where ids index, else the largest parameter that has it, and its dim."""
    names: dict[int, str] = {}
    for eqn, (_, factors) in facts.items():
        if eqn.name == "gather":
            for f in factors.masked:
                for var, dim in _members(eqn, factors, f):
                    names.setdefault(of[var][dim], "vocabulary")
    leaves = list(zip(program.inputs, program.block.invars, strict=True))
    for leaf, var in leaves:
        if leaf.role is Role.BATCH and var.aval.ndim:
            names.setdefault(of[var][0], "batch")
    ranked = [Role.PARAMETER, Role.OPTIMIZER, Role.BATCH, Role.KEY, Role.SCALAR]
    for leaf, var in sorted(leaves, key=lambda lv: (ranked.index(lv[0].role), -lv[1].aval.size)):
        for dim, c in enumerate(of[var]):
            names.setdefault(c, f"{leaf.name}.{dim}")
    taken: dict[str, int] = {}
    out = []
    for c in range(count):
        name = names.get(c, f"inner{c}")
        taken[name] = taken.get(name, 0) + 1
        out.append(name if taken[name] == 1 else f"{name}'{taken[name]}")
    return out
