"""Traces a training step and says what each of its leaves is."""

from __future__ import annotations

import enum
import functools
import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from shardwright import _compat
from shardwright.program.flatten import flatten
from shardwright.program.ir import Block, Equation, Leaf, Literal, Program, Role, Var, walk
from shardwright.program.roles import find_roles
from shardwright.program.signature import StepError, WrongUse, argument_name, argument_of

_PACKAGE = str(Path(__file__).parents[1])


def capture(step: Callable, args: tuple, kwargs: dict, *, names: Sequence[str], donated: Sequence[str] = ()) -> Program:
    """Traces `step(*args, **kwargs)`.

    Args:
      step: any traceable function of pytrees of arrays.
      args: positional arguments; arrays or `jax.ShapeDtypeStruct`.
      kwargs: keyword arguments, likewise.
      names: a name for each positional argument, from the step's signature.
      donated: names of the arguments (positional or keyword) that the step may overwrite.

    Returns:
      The flattened program, its leaves named and with roles.

    Raises:
      ValueError: if the step cannot be traced; the message holds jax's own and says what to do.
    """
    leaves, in_tree = jax.tree_util.tree_flatten((args, kwargs))
    abstract = jax.tree_util.tree_unflatten(in_tree, [_compat.abstract_like(x) for x in leaves])
    try:
        fresh = functools.wraps(step)(lambda *a, **k: step(*a, **k))  # jax keeps traces by function
        traced, out_shape = jax.make_jaxpr(fresh, return_shape=True)(*abstract[0], **abstract[1])
    except StepError:
        raise
    except Exception as error:
        line = _compat.user_line(error.__traceback__, but=_PACKAGE)
        if isinstance(error, WrongUse):
            raise StepError(f"{line}: {error}" if line else str(error)) from error
        raise StepError(
            f"the step cannot be traced by jax{f', at {line}' if line else ''}: {type(error).__name__}: {error}\n"
            "A step must be a pure function of arrays; mark arguments that are not arrays with static_argnums."
        ) from error
    block = flatten(traced)
    if len(block.invars) != len(leaves):
        raise ValueError(f"the arguments hold {len(leaves)} leaves, of which jax traced {len(block.invars)}")
    paths = [argument_name(path, names) for path, _ in jax.tree_util.tree_leaves_with_path((args, kwargs))]
    out_paths, out_tree = jax.tree_util.tree_flatten_with_path(out_shape)
    carried = _carried((args, kwargs), out_shape, names, donated)
    roles = find_roles(block, paths, carried)
    inputs = tuple(
        Leaf(p, v.aval, r, argument_of(p) in donated) for p, v, r in zip(paths, block.invars, roles, strict=True)
    )
    outputs = tuple(
        Leaf("out" + jax.tree_util.keystr(path), a.aval, Role.RESULT if i is None else roles[i])
        for (path, _), a, i in zip(out_paths, block.outvars, carried, strict=True)
    )
    return Program(block, inputs, outputs, carried, in_tree, out_tree, fingerprint(block, inputs, outputs))


def _subtrees(tree: Any, depth: int = 2) -> Iterator[Any]:
    """`tree` and its children down to `depth`, outer first."""
    yield tree
    if depth:
        children, _ = jax.tree_util.tree_flatten(tree, is_leaf=lambda x: x is not tree)
        if not (len(children) == 1 and children[0] is tree):
            for child in children:
                yield from _subtrees(child, depth - 1)


def _carried(
    arguments: tuple[tuple, dict], out: Any, names: Sequence[str], donated: Sequence[str]
) -> tuple[int | None, ...]:
    """For each result leaf the argument leaf that it replaces: an argument whose whole tree comes back is state.

    A bare array counts only if it is donated or comes back at its own place, lest a prediction pass for its input.
    """
    args, kwargs = arguments
    labeled = [*zip(names, args, strict=False), *sorted(kwargs.items())]
    out_leaves = jax.tree_util.tree_leaves(out)
    position = {id(leaf): i for i, leaf in enumerate(out_leaves)}
    found: list[int | None] = [None] * len(out_leaves)
    offset = 0
    for place, (name, argument) in enumerate(labeled):
        leaves, tree = jax.tree_util.tree_flatten(argument)
        shapes = [(tuple(np.shape(x)), jax.numpy.result_type(x)) for x in leaves]
        for level, candidate in enumerate(_subtrees(out)):
            other, other_tree = jax.tree_util.tree_flatten(candidate)
            if not leaves or other_tree != tree or shapes != [(x.shape, x.dtype) for x in other]:
                continue
            if any(found[position[id(x)]] is not None for x in other):
                continue
            bare = len(leaves) == 1 and tree == jax.tree_util.tree_structure(0)
            if bare and name not in donated and not (shapes[0][0] and level in (0, place + 1)):
                continue
            for i, x in enumerate(other):
                found[position[id(x)]] = offset + i
            break
        offset += len(leaves)
    return tuple(found)


_PLAIN = (int, float, str, bool, tuple, type(None), enum.Enum, np.dtype)
_ADDRESS = re.compile(r" at 0x[0-9a-f]+|id=\d+")


def fingerprint(block: Block, inputs: Sequence[Leaf], outputs: Sequence[Leaf]) -> str:
    """Hash of what a plan depends on: leaves with shapes, dtypes and roles, and every equation in order."""
    digest = hashlib.sha256()
    for leaf in (*inputs, *outputs):
        digest.update(f"{leaf.name}:{leaf.aval.dtype}{list(leaf.aval.shape)}:{leaf.role.value}\n".encode())
    numbers: dict[Var, int] = {}
    for eqn in walk(block):
        digest.update(_line(eqn, numbers).encode())
    return digest.hexdigest()[:32]


def _line(eqn: Equation, numbers: dict[Var, int]) -> str:
    def show(atom: Any) -> str:
        if isinstance(atom, Literal):
            value = np.asarray(atom.value) if not _compat.is_extended(atom.aval.dtype) else None
            text = "key" if value is None else hashlib.sha256(value.tobytes()).hexdigest()[:16]
            return f"{text}:{atom.aval.dtype}{list(atom.aval.shape)}"
        return f"v{numbers.setdefault(atom, len(numbers))}:{atom.aval.dtype}{list(atom.aval.shape)}"

    simple = {k: v for k, v in eqn.params.items() if isinstance(v, _PLAIN)}
    if isinstance(eqn.params.get("sharding"), NamedSharding):
        simple["sharding"] = eqn.params["sharding"].spec, tuple(eqn.params["sharding"].mesh.shape.items())
    params = _ADDRESS.sub("", repr(sorted(simple.items(), key=lambda kv: kv[0])))
    results, operands = [show(a) for a in eqn.outvars], [show(a) for a in eqn.invars]
    return f"{results} = {eqn.name}{params if not eqn.blocks else ''} {operands}\n"
