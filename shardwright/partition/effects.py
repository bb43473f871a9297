"""Effects of a step on several devices: what prints or reports does so once; what cannot be done once is refused."""

from __future__ import annotations

import math
from collections.abc import Mapping

from shardwright import _compat
from shardwright.program.ir import Equation, Program, walk


def runs_once(eqn: Equation) -> bool:
    """Whether `eqn` has an effect and no result (`jax.debug.print`, `jax.debug.callback`): the first device does it."""
    return not eqn.outvars and not eqn.blocks and _compat.has_effects(eqn.primitive, eqn.params)


def check_effects(program: Program, mesh: Mapping[str, int]) -> None:
    """Refuses effects that several devices cannot have as one device has them.

    Raises:
      ValueError: with the user's source line.
    """
    if math.prod(mesh.values()) == 1:
        return
    for eqn in walk(program.block):
        if eqn.name == "io_callback":
            times = math.prod(mesh.values())
            raise ValueError(
                f"{eqn.source.line}: every device would run this io_callback, {times} times what one device does; use "
                "jax.pure_callback (it may run any number of times) or jax.debug.callback (the first device runs it), "
                "or call the function outside the step"
            )
        if _compat.is_ordered(eqn.params):
            raise ValueError(
                f"{eqn.source.line}: jax runs no ordered effects on several devices; take ordered=True out"
            )
