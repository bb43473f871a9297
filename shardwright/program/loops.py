"""Loops whose condition is an array: `jax.vmap` of a `while_loop` whose condition depends on what is mapped.

jax runs such a loop until no element's condition holds, and keeps the carry of those that have ended; it says so when
it lowers the loop. Here that is said in the program.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
from jax import lax
from jax.extend.core import jaxpr_as_fun


def with_one_condition(params: Mapping[str, Any]) -> dict[str, Any]:
    """The params of a `while` whose condition is one boolean; its body takes the condition's constants before its own.

    Args:
      params: of a `while` whose condition has dims, which lead each carry's dims.
    """
    condition, body = jaxpr_as_fun(params["cond_jaxpr"]), jaxpr_as_fun(params["body_jaxpr"])
    num_cond, num_body = params["cond_nconsts"], params["body_nconsts"]

    def test(*operands: Any) -> list[Any]:
        (going,) = condition(*operands)
        return [lax.reduce_or(going, tuple(range(going.ndim)))]

    def turn(*operands: Any) -> list[Any]:
        consts, carry = operands[: num_cond + num_body], operands[num_cond + num_body :]
        (going,) = condition(*consts[:num_cond], *carry)
        moved = body(*consts[num_cond:], *carry)
        masks = [lax.broadcast_in_dim(going, x.shape, range(going.ndim)) for x in moved]
        return [lax.select(mask, new, old) for mask, new, old in zip(masks, moved, carry, strict=True)]

    tested, consts = params["cond_jaxpr"].in_avals, params["body_jaxpr"].in_avals[:num_body]
    return dict(
        params,
        cond_jaxpr=jax.make_jaxpr(test)(*tested),
        body_jaxpr=jax.make_jaxpr(turn)(*tested[:num_cond], *consts, *tested[num_cond:]),
        body_nconsts=num_cond + num_body,
    )
