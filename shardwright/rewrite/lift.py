"""The float64 lift: the same program with every inexact dtype made float64 or complex128.

It is a pass over the captured program, never a second trace: equations stay one to one and in order, so what was
decided for the program holds for the lifted one. A cast to bfloat16 becomes a cast to float64, which changes nothing; a
rounding (`reduce_precision`) becomes one to float64's own precision. What depends on the bits of a dtype is an
*island*: it runs in its own dtype between two casts, so the draws of a dropout mask are the step's own. A sampler that
computes with numbers (gamma) cannot be one, for its rounding would show: it draws anew in float64, from the same key.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from shardwright import _compat
from shardwright.program.evaluate import evaluate, literal_value
from shardwright.program.flatten import flatten
from shardwright.program.ir import Atom, Aval, Block, Equation, Leaf, Literal, Program, Var, walk

_BITS = frozenset({"bitcast_convert_type"})
_SAMPLERS = frozenset({"random_gamma", "rng_uniform"})
_SILENT = frozenset({"debug_callback", "debug_print"})
_FOREIGN = {
    "ffi_call": "a foreign function has its own dtypes",
    "pallas_call": "a Pallas kernel has its own dtypes",
    "pure_callback": "a Python callback has its own dtypes",
    "io_callback": "a Python callback has its own dtypes",
    "run_state": "a region with mutable arrays has its own dtypes",
}
_FLOAT64_BITS = {"exponent_bits": 11, "mantissa_bits": 52}


@dataclasses.dataclass(frozen=True)
class Refusal:
    """An equation that keeps its own dtypes in the lifted program, and why."""

    primitive: str
    line: str
    reason: str

    def __str__(self) -> str:
        return f"'{self.primitive}' at {self.line or 'an unknown line'} is not lifted to float64: {self.reason}"


@dataclasses.dataclass(frozen=True, eq=False)
class Lifted:
    """A lifted program.

    refusals: the equations that could not be lifted, and see or give numbers of low precision.
    redrawn: a text for each sampler whose draws are not the step's own.
    """

    program: Program
    refusals: tuple[Refusal, ...]
    redrawn: tuple[str, ...] = ()


def lift(program: Program) -> Lifted:
    """`program` in float64. To run it takes `jax.enable_x64`; it keeps its fingerprint, for its plan is the same."""
    block = lift_block(program.block)
    inputs = tuple(_lifted_leaf(leaf) for leaf in program.inputs)
    outputs = tuple(_lifted_leaf(leaf) for leaf in program.outputs)
    lifted = dataclasses.replace(program, block=block, inputs=inputs, outputs=outputs)
    return Lifted(lifted, refusals(program.block), redrawn(program.block))


def refusals(block: Block) -> tuple[Refusal, ...]:
    """What the lift leaves in its own dtypes in `block`, if results may show it; each line once."""
    found: dict[Refusal, None] = {}
    for eqn in walk(block):
        if is_island(eqn) and eqn.name not in _SILENT:
            reads = any(isinstance(a, Var) and _changes(a.aval) for a in eqn.invars)
            if eqn.name not in _BITS or reads:
                reason = _reason(eqn) or "bits are those of its own dtype"
                found[Refusal(eqn.name, eqn.source.line, reason)] = None
    return tuple(found)


def redrawn(block: Block) -> tuple[str, ...]:
    """A text for each sampler of `block` that draws anew in float64, each line once."""
    samplers = [eqn for eqn in walk(block) if eqn.name in _SAMPLERS and _changes(eqn.outvars[0].aval)]
    return tuple(dict.fromkeys(f"'{eqn.name}' at {eqn.source.line} draws anew in float64" for eqn in samplers))


def lifted_dtype(dtype: Any) -> Any:
    """float64 for every float, complex128 for every complex dtype; all others as they are."""
    if dtype is None or _compat.is_extended(dtype) or not jax.dtypes.issubdtype(dtype, np.inexact):
        return dtype
    return np.dtype(np.complex128 if jax.dtypes.issubdtype(dtype, np.complexfloating) else np.float64)


def lifted_aval(aval: Aval) -> Aval:
    """`aval` with its lifted dtype."""
    return Aval(aval.shape, lifted_dtype(aval.dtype), aval.weak_type) if _changes(aval) else aval


def lifted_literal(literal: Literal) -> Literal:
    """`literal`, exactly, in its lifted dtype; integers as arrays of their own width."""
    value = literal_value(literal)
    if _changes(literal.aval):
        value = np.asarray(value).astype(lifted_dtype(literal.aval.dtype))
    return Literal(value, lifted_aval(literal.aval))


def is_island(eqn: Equation) -> bool:
    """Whether `eqn` runs in its own dtypes between casts."""
    special = eqn.name in _BITS or eqn.name in _SILENT or bool(_reason(eqn))
    return special and any(_changes(a.aval) for a in (*eqn.invars, *eqn.outvars))


def lift_block(block: Block) -> Block:
    """`block` with new variables throughout; islands get their casts."""
    invars = tuple(Var(lifted_aval(v.aval)) for v in block.invars)
    env: dict[Atom, Atom] = dict(zip(block.invars, invars, strict=True))
    equations: list[Equation] = []

    def read(atom: Atom) -> Atom:
        if atom not in env:
            assert isinstance(atom, Literal), f"{atom} is read before it is defined"
            env[atom] = lifted_literal(atom)
        return env[atom]

    for eqn in block.equations:
        results = tuple(Var(lifted_aval(v.aval)) for v in eqn.outvars)
        if is_island(eqn):
            _append_island(eqn, tuple(a if isinstance(a, Literal) else read(a) for a in eqn.invars), results, equations)
        else:
            lifted = lift_equation(eqn, tuple(map(read, eqn.invars)), results)
            equations.append(dataclasses.replace(lifted, blocks=tuple(map(lift_block, eqn.blocks))))
        env.update(zip(eqn.outvars, results, strict=True))
    return Block(invars, tuple(equations), tuple(map(read, block.outvars)))


def lift_equation(eqn: Equation, invars: Sequence[Atom], outvars: Sequence[Var]) -> Equation:
    """`eqn` between lifted variables, its params adapted; control flow keeps its blocks and params."""
    params = eqn.params if eqn.blocks else _lifted_params(eqn)
    return dataclasses.replace(eqn, invars=tuple(invars), outvars=tuple(outvars), params=params)


def lift_alone(eqn: Equation) -> Equation:
    """`eqn`, no island, lifted between variables of its own."""
    invars = [Var(lifted_aval(a.aval)) if isinstance(a, Var) else lifted_literal(a) for a in eqn.invars]
    return lift_equation(eqn, invars, [Var(lifted_aval(v.aval)) for v in eqn.outvars])


def _changes(aval: Aval) -> bool:
    return lifted_dtype(aval.dtype) != aval.dtype


def _reason(eqn: Equation) -> str:
    """Why a foreign equation keeps its dtypes; '' if it is none."""
    return _FOREIGN.get(eqn.name, "a kernel of its own" if "kernel" in eqn.name or "custom_call" in eqn.name else "")


def _lifted_leaf(leaf: Leaf) -> Leaf:
    return dataclasses.replace(leaf, aval=lifted_aval(leaf.aval))


def _append_island(eqn: Equation, invars: tuple[Atom, ...], results: tuple[Var, ...], out: list[Equation]) -> None:
    """Casts in, the equation in its own dtypes, casts out."""
    inputs = []
    for a, original in zip(invars, eqn.invars, strict=True):
        if isinstance(a, Var) and _changes(original.aval):
            inside = Var(dataclasses.replace(original.aval, weak_type=False))
            out.append(_cast(a, inside, eqn))
            a = inside
        inputs.append(a)
    held = [Var(v.aval) if _changes(v.aval) else r for v, r in zip(eqn.outvars, results, strict=True)]
    out.append(dataclasses.replace(eqn, invars=tuple(inputs), outvars=tuple(held)))
    out.extend(_cast(h, r, eqn) for h, r in zip(held, results, strict=True) if h is not r)


def _cast(a: Var, to: Var, eqn: Equation) -> Equation:
    params = {"new_dtype": to.aval.dtype, "weak_type": False, "sharding": None}
    return Equation(jax.lax.convert_element_type_p, (a,), (to,), params, eqn.source)


# --- params ---------------------------------------------------------------------------------------------------------


def _lifted_params(eqn: Equation) -> Mapping[str, Any]:
    """Dtypes, jaxprs and roundings among the params, lifted where they are those of inexact values."""
    if not any(_changes(a.aval) for a in (*eqn.invars, *eqn.outvars)) and not _holds_jaxpr(eqn.params):
        return eqn.params
    params = {name: _lifted_param(name, value) for name, value in eqn.params.items()}
    if eqn.name == "reduce_precision":
        params.update(_FLOAT64_BITS)
    if "precision" in params:  # it may name the dtypes of the products
        params["precision"] = None
    return params


def _holds_jaxpr(params: Mapping[str, Any]) -> bool:
    return any(_compat.inner_jaxprs({"": value}) for value in params.values())


def _lifted_param(name: str, value: Any) -> Any:
    if value is None:
        return value
    if name.endswith("dtype") or name == "preferred_element_type":
        return lifted_dtype(jax.numpy.dtype(value) if not _compat.is_extended(value) else value)
    if isinstance(value, jax.extend.core.ClosedJaxpr):
        return _lifted_jaxpr(value)
    if isinstance(value, jax.extend.core.Jaxpr):
        return _lifted_jaxpr(jax.extend.core.ClosedJaxpr(value, ())).jaxpr if not value.constvars else value
    if isinstance(value, tuple) and _holds_jaxpr({name: value}):
        lifted = [_lifted_param("", v) for v in value]
        return type(value)(*lifted) if hasattr(value, "_fields") else tuple(lifted)
    return value


def _lifted_jaxpr(closed: Any) -> Any:
    """A scalar function that a reduction or scatter holds, or a solver's parts, traced again from its lifted block."""
    block = lift_block(flatten(closed))
    like = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in block.invars]
    with jax.enable_x64(True):
        return jax.make_jaxpr(lambda *values: evaluate(block, values))(*like)
