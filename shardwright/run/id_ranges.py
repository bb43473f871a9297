"""Which values an integer argument may take: read from what it indexes.

Ids travel from an argument through operations that keep them (reshape, slice, the wrap of negative indices, …) to a
gather, a scatter, a slice's start or a comparison with a count (one-hot); the size that is indexed there is the number
of values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np

from shardwright.program.evaluate import literal_value
from shardwright.program.ir import Atom, Block, Equation, Literal, Program, Var

_KEEPING = frozenset(
    {"reshape", "broadcast_in_dim", "slice", "squeeze", "transpose", "convert_element_type", "select_n", "add"}
    | {"concatenate", "dynamic_slice", "copy", "rev", "clamp", "max", "min", "optimization_barrier"}
    | {"sharding_constraint", "split", "stack", "unstack", "pad", "reduce_max"}
)
_STARTS = {"dynamic_slice": 1, "dynamic_update_slice": 2}
_NOTHING: frozenset[int] = frozenset()


@dataclasses.dataclass
class _Walk:
    """What is known so far.

    holds: variable → arguments whose ids it holds.
    counts: variable → n, where it counts 0 … n - 1.
    made: variable → its equation.
    found: argument → sizes that it indexes.
    """

    holds: dict[Var, frozenset[int]] = dataclasses.field(default_factory=dict)
    counts: dict[Var, int] = dataclasses.field(default_factory=dict)
    made: dict[Var, Equation] = dataclasses.field(default_factory=dict)
    found: dict[int, set[int]] = dataclasses.field(default_factory=dict)

    def of(self, atom: Atom) -> frozenset[int]:
        return self.holds.get(atom, _NOTHING) if isinstance(atom, Var) else _NOTHING


def id_ranges(program: Program) -> dict[int, int]:
    """Position of an integer argument → how many values it may take (0 … n - 1), where the program tells."""
    walk = _Walk()
    for i, v in enumerate(program.block.invars):
        if _is_integer(v):
            walk.holds[v] = frozenset({i})
    _block(walk, program.block)
    return {i: min(sizes) for i, sizes in walk.found.items()}


def _is_integer(atom: Atom) -> bool:
    return isinstance(atom.aval.dtype, np.dtype) and atom.aval.dtype.kind in "iu"


def _block(walk: _Walk, block: Block) -> None:
    for eqn in block.equations:
        if eqn.blocks:
            _control(walk, eqn)
            continue
        for v in eqn.outvars:
            walk.made[v] = eqn
        _note(walk, eqn)
        if eqn.name == "iota":
            walk.counts[eqn.outvars[0]] = eqn.params["shape"][eqn.params["dimension"]]
        kept = eqn.invars if eqn.name in _KEEPING else eqn.invars[:1] if eqn.name == "gather" else ()
        held = frozenset().union(*map(walk.of, kept)) if kept else _NOTHING
        for v in eqn.outvars:
            if held and _is_integer(v):
                walk.holds[v] = held
            if kept and isinstance(kept[0], Var) and kept[0] in walk.counts:
                walk.counts[v] = walk.counts[kept[0]]


def _control(walk: _Walk, eqn: Equation) -> None:
    for block in eqn.blocks:
        for outer, inner in _entries(eqn, block):
            held = walk.of(outer)
            if held:
                walk.holds[inner] = walk.of(inner) | held
        _block(walk, block)
        if len(block.outvars) == len(eqn.outvars):
            for made, result in zip(block.outvars, eqn.outvars, strict=True):
                walk.holds[result] = walk.of(result) | walk.of(made)


def _entries(eqn: Equation, block: Block) -> Iterable[tuple[Atom, Var]]:
    """What enters a block of control flow, with the variable that it is there."""
    if eqn.name == "cond":
        return zip(eqn.invars[1:], block.invars, strict=True)
    if eqn.name != "while":
        return zip(eqn.invars, block.invars, strict=True)
    test, body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    own = eqn.invars[:test] if block is eqn.blocks[0] else eqn.invars[test : test + body]
    return zip((*own, *eqn.invars[test + body :]), block.invars, strict=True)


def _note(walk: _Walk, eqn: Equation) -> None:
    """Records the sizes that ids index in `eqn`."""
    if eqn.name == "gather":
        _note_indices(walk, eqn, eqn.params["dimension_numbers"].start_index_map)
    elif eqn.name.startswith("scatter"):
        _note_indices(walk, eqn, eqn.params["dimension_numbers"].scatter_dims_to_operand_dims)
    elif eqn.name in _STARTS:
        taken = eqn.params["slice_sizes"] if eqn.name == "dynamic_slice" else eqn.invars[1].aval.shape
        for start, size, n in zip(eqn.invars[_STARTS[eqn.name] :], eqn.invars[0].aval.shape, taken, strict=True):
            _record(walk, start, size - n + 1)
    elif eqn.name == "eq":
        for atom, counted in (eqn.invars, eqn.invars[::-1]):
            size = _count(walk, counted)
            if size:
                _record(walk, atom, size)


def _note_indices(walk: _Walk, eqn: Equation, dims: tuple[int, ...]) -> None:
    """Each component of the index vector is an operand of the concatenation that made it, where there was one."""
    operand, indices = eqn.invars[:2]
    sizes = [operand.aval.shape[d] for d in dims]
    made = walk.made.get(indices) if isinstance(indices, Var) else None
    if made is not None and made.name == "concatenate" and len(made.invars) == len(sizes):
        for part, size in zip(made.invars, sizes, strict=True):
            _record(walk, part, size)
    elif sizes:
        _record(walk, indices, min(sizes))


def _count(walk: _Walk, atom: Atom) -> int:
    """The n for which `atom` counts 0 … n - 1, or 0."""
    if isinstance(atom, Literal) and _is_integer(atom) and atom.aval.size > 1:
        return int(np.max(literal_value(atom))) + 1
    return walk.counts.get(atom, 0) if isinstance(atom, Var) else 0


def _record(walk: _Walk, atom: Atom, size: int) -> None:
    for i in walk.of(atom):
        walk.found.setdefault(i, set()).add(size)
