"""Equal equations become one, as every XLA back end makes of them: what is counted and priced is then what runs.

An equation equals an earlier one of its block if primitive, parameters and operands are the same. What stands behind an
`optimization_barrier` is not equal to what stands before it, so recomputation stays. Where a result has dims that no
operand has (zeros, a counter, a scalar broadcast, random bits) equal values may mean unlike things: a batch and a width
of the same size would become one dim. Each of these stays by itself, and so does what is computed from constants alone.

Whole programs are compared, too: two traces of a step whose functions were made anew are one if all of this agrees.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr

from shardwright import _compat
from shardwright.program.ir import Atom, Block, Equation, Literal, Program, Var

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


def same_program(a: Program, b: Program) -> bool:
    """Whether two traces compute the same: leaves, equations, parameters and constants. False where that is not known.

    Functions among the parameters (callbacks) are the same only if they are equal as objects.
    """
    return (a.inputs, a.outputs) == (b.inputs, b.outputs) and _same_block(a.block, b.block, {})


def _same_block(a: Block, b: Block, paired: dict[Var, Var]) -> bool:
    paired.update(zip(a.invars, b.invars, strict=False))
    return (
        [v.aval for v in a.invars] == [v.aval for v in b.invars]
        and len(a.equations) == len(b.equations)
        and all(_same_equation(x, y, paired) for x, y in zip(a.equations, b.equations, strict=True))
        and _same_atoms(a.outvars, b.outvars, paired)
    )


def _same_equation(a: Equation, b: Equation, paired: dict[Var, Var]) -> bool:
    same = (
        a.primitive is b.primitive
        and [v.aval for v in a.outvars] == [v.aval for v in b.outvars]
        and a.params.keys() == b.params.keys()
        and all(_same_parameter(x, b.params[k]) for k, x in a.params.items())
        and len(a.blocks) == len(b.blocks)
        and all(_same_block(x, y, paired) for x, y in zip(a.blocks, b.blocks, strict=True))
        and _same_atoms(a.invars, b.invars, paired)
    )
    paired.update(zip(a.outvars, b.outvars, strict=False))
    return same


def _same_atoms(a: Sequence[Atom], b: Sequence[Atom], paired: dict[Var, Var]) -> bool:
    return len(a) == len(b) and all(
        paired[x] is y if isinstance(x, Var) else isinstance(y, Literal) and _same_literal(x, y)
        for x, y in zip(a, b, strict=True)
    )


def _same_literal(a: Literal, b: Literal) -> bool:
    if a.aval != b.aval:
        return False
    x, y = (jax.random.key_data(v.value) if _compat.is_extended(v.aval.dtype) else v.value for v in (a, b))
    return np.asarray(x).tobytes() == np.asarray(y).tobytes()


def _same_parameter(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(map(_same_parameter, a, b))
    if isinstance(a, np.ndarray | jax.Array):
        return np.array_equal(a, b)
    if isinstance(a, ClosedJaxpr):
        return _same_parameter((a.jaxpr, a.consts), (b.jaxpr, b.consts))
    if isinstance(a, Jaxpr):  # those of loops and branches are compared as blocks; others (a scatter's sum) are short
        return str(a) == str(b)
    return bool(a == b)
