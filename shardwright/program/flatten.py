"""jaxpr → `Block`: calls are inlined, control flow keeps its bodies, dead code and repeated code go.

`jit`, `custom_jvp_call`, `custom_vjp_call` and the like only group equations, so their bodies take their place. A
`remat` region that autodiff has made keeps its meaning through an `optimization_barrier` on its inputs, which is what
jax lowers it to: without it the compiler would merge the recomputed forward with the first one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from shardwright import _compat
from shardwright.program.equal import merge_equal
from shardwright.program.ir import Atom, Aval, Block, Equation, Literal, Source, Var
from shardwright.program.loops import with_one_condition
from shardwright.program.signature import StepError

_CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
    "remat": "jaxpr",
    "custom_vmap_call": "call",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
    "eval_jaxpr": "call_jaxpr",
}
_BLOCKS = {"scan": ("jaxpr",), "while": ("cond_jaxpr", "body_jaxpr"), "cond": ("branches",)}


def flatten(closed_jaxpr: Any) -> Block:
    """The block that computes what `closed_jaxpr` computes, without calls, dead code and repetitions."""
    return merge_equal(eliminate_dead_code(_block(closed_jaxpr, _compat.empty_name_stack())))


def _aval(aval: Any) -> Aval:
    shape, dtype = _compat.key_shape_and_dtype(aval)
    return Aval(shape, dtype, bool(getattr(aval, "weak_type", False)))


def _constant(value: Any, aval: Any) -> Literal:
    """A constant; one that lies on several devices is taken whole, for it may lie on other ones than the plan's."""
    spread = isinstance(value, jax.Array) and value.is_fully_addressable and len(value.devices()) > 1
    if spread and not _compat.is_extended(value.dtype):
        value = np.asarray(value)
    return Literal(value, _aval(aval))


def _block(closed_jaxpr: Any, stack: Any, line: str = "") -> Block:
    jaxpr = closed_jaxpr.jaxpr
    env: dict[Any, Atom] = {}
    for var, value in zip(jaxpr.constvars, closed_jaxpr.consts, strict=True):
        env[var] = _constant(value, var.aval)
    invars = tuple(Var(_aval(v.aval)) for v in jaxpr.invars)
    env.update(zip(jaxpr.invars, invars, strict=True))
    equations: list[Equation] = []
    outvars = _inline(jaxpr, env, stack, equations, line)
    return Block(invars, tuple(equations), outvars)


def _inline(jaxpr: Any, env: dict[Any, Atom], stack: Any, out: list[Equation], line: str = "") -> tuple[Atom, ...]:
    """Appends the equations of `jaxpr` to `out`; `env` holds its inputs and constants.

    `line`: where it is called from; of what jax's own helpers compute that is the user's line.
    """

    def read(atom: Any) -> Atom:
        if isinstance(atom, jax.extend.core.Literal):
            return Literal(atom.val, _aval(atom.aval))
        return env[atom]

    for eqn in jaxpr.eqns:
        scope = stack + eqn.source_info.name_stack
        own = _compat.source_line(eqn.source_info) or line
        source = Source(str(scope), own, eqn.source_info.replace(name_stack=scope))
        inputs = tuple(read(v) for v in eqn.invars)
        _refuse(eqn, own)
        high = _compat.expanded(eqn.primitive, eqn.params)
        if high is not None:
            start = len(out)
            results = _call(high, inputs, scope, source, out)
            out[start:] = [dataclasses.replace(made, source=source) for made in out[start:]]
        elif eqn.primitive.name in _CALLS:
            inner = eqn.params[_CALLS[eqn.primitive.name]]
            closed = inner if hasattr(inner, "consts") else jax.extend.core.ClosedJaxpr(inner, ())
            if eqn.params.get("differentiated") and eqn.params.get("prevent_cse"):
                inputs = _barrier(inputs, source, out)
            results = _call(closed, inputs, scope, source, out)
        elif eqn.primitive.name == "custom_linear_solve":
            results = _solve(eqn, inputs, scope, own, out)
        elif _is_identity(eqn):
            results = inputs
        else:
            made = tuple(Var(_aval(v.aval)) for v in eqn.outvars)
            params = _compat.counted_params(eqn.primitive, eqn.params)
            if eqn.primitive.name == "while" and params["cond_jaxpr"].out_avals[0].ndim:
                params, inputs = with_one_condition(params), (*inputs[: params["cond_nconsts"]], *inputs)
            bodies = _bodies(eqn.primitive.name, params)
            blocks = tuple(_block(b, _compat.empty_name_stack(), own) for b in bodies)
            out.append(Equation(eqn.primitive, inputs, made, params, source, blocks))
            results = made
        env.update(zip(eqn.outvars, results, strict=True))
    return tuple(read(v) for v in jaxpr.outvars)


def _refuse(eqn: Any, line: str) -> None:
    """Refuses what no plan can run."""
    if any(isinstance(v.aval, jax.ref.AbstractRef) for v in (*eqn.invars, *eqn.outvars)):
        what = "reads or writes a mutable array (jax.new_ref); return the new value instead, as in x = x.at[i].set(v)"
    elif eqn.primitive.name == "shard_map":
        what = "holds a manual jax.shard_map region, which knows its devices; write the step for one device"
    else:
        return
    raise StepError(f"{f'{line}: ' if line else ''}the step {what}")


def _call(closed: Any, inputs: tuple[Atom, ...], scope: Any, source: Source, out: list[Equation]) -> tuple[Atom, ...]:
    env: dict[Any, Atom] = dict(zip(closed.jaxpr.invars, inputs, strict=True))
    for var, value in zip(closed.jaxpr.constvars, closed.consts, strict=True):
        env[var] = _constant(value, var.aval)
    return _inline(closed.jaxpr, env, scope, out, source.line)


def _is_identity(eqn: Any) -> bool:
    """Whether an equation gives its operands back: a reversal of dims of size 1, a move to no device in particular."""
    if eqn.primitive.name == "rev":
        return all(eqn.invars[0].aval.shape[d] == 1 for d in eqn.params["dimensions"])
    return eqn.primitive.name == "device_put" and all(d is None for d in eqn.params["devices"])


def _solve(eqn: Any, inputs: tuple[Atom, ...], scope: Any, line: str, out: list[Equation]) -> tuple[Atom, ...]:
    """A linear solve after differentiation is a call of its own solver.

    Operands: the constants of matvec, vecmat, solve and transposed solve, then b.
    """
    lengths, solver = eqn.params["const_lengths"], eqn.params["jaxprs"].solve
    start = lengths.matvec + lengths.vecmat
    consts, b = inputs[start : start + lengths.solve], inputs[sum(lengths) :]
    env: dict[Any, Atom] = dict(zip(solver.jaxpr.invars, (*consts, *b), strict=True))
    env.update((v, _constant(value, v.aval)) for v, value in zip(solver.jaxpr.constvars, solver.consts, strict=True))
    return _inline(solver.jaxpr, env, scope, out, line)


def _barrier(inputs: tuple[Atom, ...], source: Source, out: list[Equation]) -> tuple[Atom, ...]:
    held = [a for a in inputs if isinstance(a, Var)]
    results = tuple(Var(a.aval) for a in held)
    out.append(Equation(_compat.optimization_barrier, tuple(held), results, {}, source))
    replaced = dict(zip(held, results, strict=True))
    return tuple(replaced.get(a, a) if isinstance(a, Var) else a for a in inputs)


def _bodies(primitive: str, params: Mapping[str, Any]) -> list[Any]:
    bodies: list[Any] = []
    for name in _BLOCKS.get(primitive, ()):
        value = params[name]
        bodies.extend(value if isinstance(value, (tuple, list)) else [value])
    return bodies


def eliminate_dead_code(block: Block) -> Block:
    """`block` without equations whose results nobody reads; effects (prints, callbacks) stay."""
    live = {a for a in block.outvars if isinstance(a, Var)}
    kept: list[Equation] = []
    for eqn in reversed(block.equations):
        if not (live.intersection(eqn.outvars) or _compat.has_effects(eqn.primitive, eqn.params)):
            continue
        eqn = _trim(eqn, live)
        kept.append(eqn)
        live.update(a for a in eqn.invars if isinstance(a, Var))
    return dataclasses.replace(block, equations=tuple(reversed(kept)))


def _trim(eqn: Equation, live: set[Var]) -> Equation:
    """A scan without the stacked results and inputs that nobody reads, and with live code alone inside any block."""
    if eqn.name != "scan":
        if not eqn.blocks:
            return eqn
        return dataclasses.replace(eqn, blocks=tuple(eliminate_dead_code(b) for b in eqn.blocks))
    return _trim_scan(eqn, live)


def _trim_scan(eqn: Equation, live: set[Var]) -> Equation:
    (body,), consts, carry = eqn.blocks, eqn.params["num_consts"], eqn.params["num_carry"]
    keep_out = [i < carry or v in live for i, v in enumerate(eqn.outvars)]
    keep_carry = [v in live for v in eqn.outvars[:carry]]
    while True:  # a carry is needed if it is read outside, or by anything needed inside
        wanted = [v for v, k in zip(body.outvars, keep_carry + keep_out[carry:], strict=True) if k]
        trimmed = eliminate_dead_code(dataclasses.replace(body, outvars=tuple(wanted)))
        used = {a for e in trimmed.equations for a in e.invars if isinstance(a, Var)}
        used.update(a for a in trimmed.outvars if isinstance(a, Var))
        if _compat.has_effects(eqn.primitive, eqn.params):
            used.update(body.invars)
        grown = [k or body.invars[consts + i] in used for i, k in enumerate(keep_carry)]
        if grown == keep_carry:
            break
        keep_carry = grown
    keep_in = [
        v in used or (consts <= i < consts + carry and keep_carry[i - consts]) for i, v in enumerate(body.invars)
    ]
    params = dict(eqn.params, num_consts=sum(keep_in[:consts]), num_carry=sum(keep_carry))
    keep_results = keep_carry + keep_out[carry:]
    return dataclasses.replace(
        eqn,
        params=params,
        invars=tuple(v for v, k in zip(eqn.invars, keep_in, strict=True) if k),
        outvars=tuple(v for v, k in zip(eqn.outvars, keep_results, strict=True) if k),
        blocks=(dataclasses.replace(trimmed, invars=tuple(v for v, k in zip(body.invars, keep_in, strict=True) if k)),),
    )


def constant(value: Any) -> Literal:
    """`value` as a literal."""
    array = np.asarray(value)
    return Literal(value, Aval(array.shape, array.dtype))
