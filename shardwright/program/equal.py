"""Equal equations become one, as every XLA back end makes of them: what is counted and priced is then what runs.

An equation equals an earlier one of its block if primitive, parameters and operands are the same. What stands behind an
`optimization_barrier` is not equal to what stands before it, so recomputation stays. Where a result has dims that no
operand has (zeros, a counter, a scalar broadcast, random bits) equal values may mean unlike things: a batch and a width
of the same size would become one dim. Each of these stays by itself, and so does what is computed from constants alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from typing import Any

import numpy as np

from shardwright import _compat
from shardwright.program.ir import Atom, Block, Equation, Literal, Var

_ALONE = frozenset(
    {"optimization_barrier", "rng_uniform", "random_bits", "random_split", "broadcast_in_dim", "tile", "pad"}
)
_SMALL = 64
"""Bytes of a constant that is compared by value; larger ones are equal if they are the same object."""


def merge_equal(block: Block) -> Block:
    """`block` with each equation that repeats an earlier one left out, in the blocks inside too."""
    same: dict[Var, Var] = {}
    constant: set[Var] = set()
    seen: dict[Hashable, Equation] = {}
    kept: list[Equation] = []
    for eqn in block.equations:
        inputs = tuple(_read(same, a) for a in eqn.invars)
        if eqn.blocks or inputs != eqn.invars:
            eqn = dataclasses.replace(eqn, invars=inputs, blocks=tuple(map(merge_equal, eqn.blocks)))
        if all(isinstance(a, Literal) or a in constant for a in inputs):
            constant.update(eqn.outvars)
            kept.append(eqn)
            continue
        key = _key(eqn)
        first = seen.setdefault(key, eqn) if key is not None else eqn
        if first is eqn:
            kept.append(eqn)
        else:
            same.update(zip(eqn.outvars, first.outvars, strict=True))
    return Block(block.invars, tuple(kept), tuple(_read(same, a) for a in block.outvars))


def _read(same: dict[Var, Var], atom: Atom) -> Atom:
    return same.get(atom, atom) if isinstance(atom, Var) else atom


def _key(eqn: Equation) -> Hashable | None:
    """Equal for equations that compute the same; None for one that must stay by itself."""
    if eqn.blocks or eqn.name in _ALONE or _compat.has_effects(eqn.primitive, eqn.params):
        return None
    key = eqn.name, tuple(sorted(eqn.params.items(), key=lambda kv: kv[0])), tuple(map(_value, eqn.invars))
    try:
        hash(key)
    except TypeError:  # a parameter that is an array, say
        return None
    return key


def _value(atom: Atom) -> Hashable:
    if not isinstance(atom, Literal):
        return atom
    if _compat.is_extended(atom.aval.dtype) or atom.aval.bytes > _SMALL:
        return id(atom.value)
    value: Any = np.asarray(atom.value, atom.aval.dtype)
    return str(atom.aval.dtype), atom.aval.weak_type, atom.aval.shape, value.tobytes()
