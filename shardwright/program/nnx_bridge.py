"""flax nnx objects among the arguments: split into state, merged inside the step, updated in place after it.

As `nnx.jit` does: a module's arrays are arguments, its graph is static, and what the step changes in it comes back as a
second result beside the step's own. flax is imported only when an argument already comes from it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import jax


def split(args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any], Any, Callable[[Any], Any]]:
    """Puts the state of nnx objects in their place.

    Returns:
      The arguments, with a `nnx.State` for every argument that holds an nnx object; what `merge` needs, None where
      there are no such objects; and a function that writes a step's second result back into the objects and returns
      the first.
    """
    labeled: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
    held = [label for label, x in labeled.items() if _holds_object(x)]
    if not held:
        return args, kwargs, None, lambda result: result
    nnx = sys.modules["flax.nnx"]
    objects = tuple(labeled[label] for label in held)
    graph, state = nnx.split(objects)
    labeled.update({label: state.get(i, nnx.State({})) for i, label in enumerate(held)})

    def update(result: Any) -> Any:
        value, changed = result
        nnx.update(objects, nnx.State(changed))
        return value

    return tuple(labeled[i] for i in range(len(args))), {k: labeled[k] for k in kwargs}, (graph, tuple(held)), update


def merge(split_graph: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any], Callable[[Any], Any]]:
    """Puts the objects back in the place of their state.

    Returns:
      The arguments as the step wants them, and a function from the step's result to (it, the state that changed).
    """
    if split_graph is None:
        return args, kwargs, lambda result: result
    nnx = sys.modules["flax.nnx"]
    graph, held = split_graph
    labeled: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
    states = {i: labeled[label] for i, label in enumerate(held)}
    before = {i: jax.tree_util.tree_leaves(s) for i, s in states.items()}
    objects = nnx.merge(graph, nnx.State(states))
    labeled.update(zip(held, objects, strict=True))

    def collect(result: Any) -> tuple[Any, dict[int, Any]]:
        after_graph, after = nnx.split(objects)
        if after_graph != graph:
            raise ValueError(
                "the step changes more than the arrays of an nnx object (it adds, drops or replaces a part, or an "
                "attribute that is no array); do that outside of the step"
            )
        changed = {
            i: after[i] for i in before if before[i] and _differs(before[i], jax.tree_util.tree_leaves(after[i]))
        }
        return result, changed

    return tuple(labeled[i] for i in range(len(args))), {k: labeled[k] for k in kwargs}, collect


def _differs(before: list[Any], after: list[Any]) -> bool:
    return any(x is not y for x, y in zip(before, after, strict=True))


def _holds_object(x: Any) -> bool:
    nnx = sys.modules.get("flax.nnx")
    if nnx is None:
        return False
    ends = (nnx.Pytree, nnx.Variable, nnx.State)  # a State is a pytree of Variables, and split already
    leaves = jax.tree_util.tree_leaves(x, is_leaf=lambda y: isinstance(y, ends))
    return any(isinstance(y, ends[:2]) for y in leaves)
