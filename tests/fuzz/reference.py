"""Evaluates a jaxpr as jax gives it, equation by equation: what a program means, whatever the planner makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from shardwright import _compat
from tests.fuzz.numpy_primitives import in_numpy
from tests.rules.simulation import as_array

_CALLS = {
    "jit": "jaxpr",
    "closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
}


def evaluate(closed: Any, values: Sequence[Any]) -> list[Any]:
    """The results of a closed jaxpr."""
    jaxpr = closed.jaxpr
    env = dict(zip(jaxpr.constvars, map(as_array, closed.consts), strict=True))
    env.update(zip(jaxpr.invars, values, strict=True))

    def read(atom: Any) -> Any:
        return as_array(atom.val) if isinstance(atom, jax.extend.core.Literal) else env[atom]

    for eqn in jaxpr.eqns:
        operands = [read(v) for v in eqn.invars]
        env.update(zip(eqn.outvars, _equation(eqn, operands), strict=True))
    return [read(v) for v in jaxpr.outvars]


def _equation(eqn: Any, operands: list[Any]) -> list[Any]:
    name = eqn.primitive.name
    if name in _CALLS:
        inner = eqn.params[_CALLS[name]]
        return evaluate(inner if hasattr(inner, "consts") else jax.extend.core.ClosedJaxpr(inner, ()), operands)
    if name == "scan":
        return _scan(_compat.counted_params(eqn.primitive, eqn.params), operands)
    if name == "while":
        return _while(_compat.counted_params(eqn.primitive, eqn.params), operands)
    if name == "cond":
        branches = eqn.params["branches"]
        return evaluate(branches[int(np.clip(operands[0], 0, len(branches) - 1))], operands[1:])
    found = in_numpy(name, operands, eqn.params)
    if found is NotImplemented:
        found = _compat.bind(eqn.primitive, operands, dict(eqn.params))
    return [as_array(x) for x in (found if eqn.primitive.multiple_results else [found])]


def _scan(p: Any, operands: list[Any]) -> list[Any]:
    nc, nk = p["num_consts"], p["num_carry"]
    consts, carry, xs = operands[:nc], operands[nc : nc + nk], operands[nc + nk :]
    turns = range(p["length"])
    stacked = []
    for i in reversed(turns) if p["reverse"] else turns:
        out = evaluate(p["jaxpr"], [*consts, *carry, *(x[i] for x in xs)])
        carry = out[:nk]
        stacked.append(out[nk:])
    if p["reverse"]:
        stacked.reverse()
    avals = p["jaxpr"].out_avals[nk:]
    none = [np.zeros((0, *a.shape), a.dtype) for a in avals]
    return [*carry, *([np.stack(rows) for rows in zip(*stacked, strict=True)] if stacked else none)]


def _while(p: Any, operands: list[Any]) -> list[Any]:
    nc, nb = p["cond_nconsts"], p["body_nconsts"]
    cond, body, carry = operands[:nc], operands[nc : nc + nb], operands[nc + nb :]
    while np.any(going := evaluate(p["cond_jaxpr"], [*cond, *carry])[0]):
        moved = evaluate(p["body_jaxpr"], [*body, *carry])
        # A condition with dims is that of each row: rows whose condition has failed stay.
        carry = [
            np.where(going.reshape(going.shape + (1,) * (new.ndim - going.ndim)), new, old) if going.ndim else new
            for new, old in zip(moved, carry, strict=True)
        ]
    return list(carry)
