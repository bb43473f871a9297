"""Calls that an earlier trace serves.

Functions that are made anew with every model (those of an optax transformation, say) are not equal, and yet the program
may be: where static parts differ, the step is traced and the programs are compared.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import jax

from shardwright.program.capture import capture
from shardwright.program.equal import same_program
from shardwright.program.ir import Program
from shardwright.program.signature import Call, StepError

MOST = 16  # kinds of static parts that are kept


def captured(call: Call) -> Program:
    """The program of a call."""
    return capture(call.step, call.args, call.kwargs, names=call.names, donated=call.donated)


class Served:
    """The calls that `program`, the trace of `call`, serves. `tree`: the structure of that call's arguments."""

    def __init__(self, call: Call, program: Program):
        self._call, self._program = call, program
        self.tree = jax.tree_util.tree_structure((call.args, call.kwargs))
        self._extras: dict[Hashable, dict[str, Any]] = {}

    def extra_of(self, call: Call, tree: Any) -> dict[str, Any] | None:
        """What the result of such a call holds beside arrays; None if its static parts make another program.

        Args:
          call: a call with as many arrays of the same types.
          tree: the structure of its arguments; it holds static parts, too (a flax TrainState's functions).
        """
        kind = tree, call.static
        if kind == (self.tree, self._call.static):
            return self._call.extra
        if kind not in self._extras:
            try:
                program = captured(call)
            except StepError:  # it is not for these arguments
                return None
            if not same_program(program, self._program):
                return None
            if len(self._extras) == MOST:
                self._extras.pop(next(iter(self._extras)))
            self._extras[kind] = call.extra
        return self._extras[kind]

    def news(self, call: Call, tree: Any) -> str:
        """What of a call's static parts is not as traced, in a few words."""
        if tree != self.tree:
            return "the arguments have another structure, or hold other functions in it"
        (others, held, graph), (new_others, new_held, new_graph) = self._call.static, call.static
        old = dict(held)
        for name, value in new_held:
            if old.get(name) != value:
                return f"the static argument {name!r} is {_short(value)}, it was {_short(old.get(name))}"
        if graph != new_graph:
            return "the nnx objects have another structure or hold other functions"
        for a, b in zip(others, new_others, strict=False):
            if a != b:
                return f"a leaf that is not an array is {_short(b)}, it was {_short(a)}"
        return "other leaves are not arrays" if len(others) != len(new_others) else "jax's settings are others"


def _short(static: Any) -> str:
    text = "missing" if static is None else repr(static.value)
    return text if len(text) <= 80 else f"{text[:77]}..."
