"""The program on one device, as plain jax: the reference that every plan is held against."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shardwright import _compat
from shardwright.program.ir import Block, Equation, Literal, Var


def evaluate(block: Block, values: Sequence[Any]) -> list[Any]:
    """The results of `block`, equation by equation.

    Under `jax.jit` this is the step itself. Pins say nothing on one device and are passed over.

    Args:
      block: a program, with the dtypes of its variables; float64 ones need `jax.enable_x64`.
      values: an array for each of its inputs.

    >>> evaluate(capture(step, args, {}, names=names).block, jax.tree.leaves(args))
    """
    env: dict[Var, Any] = dict(zip(block.invars, values, strict=True))

    def read(atom: Var | Literal) -> Any:
        return env[atom] if isinstance(atom, Var) else literal_value(atom)

    for eqn in block.equations:
        inputs = [read(a) for a in eqn.invars]
        with _compat.source_context(eqn.source.info):
            results = _RUN.get(eqn.name, _bind)(eqn, inputs)
        for v, result in zip(eqn.outvars, results, strict=True):
            given, meant = result.dtype, v.aval.dtype
            assert given == meant, f"{eqn.name} at {eqn.source.line}: {given} is not {meant}"
        env.update(zip(eqn.outvars, results, strict=True))
    return [read(a) for a in block.outvars]


def literal_value(literal: Literal) -> Any:
    """A literal as an array of its own dtype: a Python number would take the width that jax is set to."""
    if _compat.is_extended(literal.aval.dtype) or isinstance(literal.value, jax.Array):
        return literal.value
    return np.asarray(literal.value, literal.aval.dtype)


def _bind(eqn: Equation, inputs: list[Any]) -> list[Any]:
    out = _compat.bind(eqn.primitive, inputs, dict(eqn.params))
    return list(out) if eqn.primitive.multiple_results else [out]


def _pin(eqn: Equation, inputs: list[Any]) -> list[Any]:
    del eqn
    return inputs


def _scan(eqn: Equation, inputs: list[Any]) -> list[Any]:
    (body,), params = eqn.blocks, eqn.params
    nc, nk = params["num_consts"], params["num_carry"]
    consts = inputs[:nc]

    def turn(carry: list[Any], xs: list[Any]) -> tuple[list[Any], list[Any]]:
        out = _arrays(evaluate(body, [*consts, *carry, *xs]))
        return out[:nk], out[nk:]

    carry, ys = lax.scan(
        turn,
        inputs[nc : nc + nk],
        inputs[nc + nk :],
        length=params["length"],
        reverse=params["reverse"],
        unroll=params["unroll"],
    )
    return [*carry, *ys]


def _while(eqn: Equation, inputs: list[Any]) -> list[Any]:
    (test, body), nc, nb = eqn.blocks, eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    test_consts, body_consts, start = inputs[:nc], inputs[nc : nc + nb], inputs[nc + nb :]
    return list(
        lax.while_loop(
            lambda carry: evaluate(test, [*test_consts, *carry])[0],
            lambda carry: _arrays(evaluate(body, [*body_consts, *carry])),
            _arrays(start),
        )
    )


def _cond(eqn: Equation, inputs: list[Any]) -> list[Any]:
    def branch(block: Block) -> Callable[..., list[Any]]:
        return lambda *operands: _arrays(evaluate(block, operands))

    return list(lax.switch(jnp.asarray(inputs[0], jnp.int32), [branch(b) for b in eqn.blocks], *inputs[1:]))


def _arrays(values: Sequence[Any]) -> list[Any]:
    """What a body returns or starts from, also where it is a literal, as jax arrays of a strong type."""
    return [jnp.asarray(v, v.dtype) if isinstance(v, np.ndarray) else v for v in values]


_RUN: dict[str, Callable[[Equation, list[Any]], list[Any]]] = {
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    "sharding_constraint": _pin,
}
