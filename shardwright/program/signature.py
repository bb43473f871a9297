"""A call of the user's step: which arguments are arrays, which are static, what each is called."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import numpy as np


@dataclasses.dataclass(frozen=True)
class Options:
    """What `jax.jit` calls the same: static and donated arguments, by position or by name."""

    static_argnums: tuple[int, ...] = ()
    static_argnames: tuple[str, ...] = ()
    donate_argnums: tuple[int, ...] = ()
    donate_argnames: tuple[str, ...] = ()


def make_options(static_argnums: int | Sequence[int] = (), static_argnames: str | Sequence[str] = (),
                 donate_argnums: int | Sequence[int] = (), donate_argnames: str | Sequence[str] = ()) -> Options:
    """Options from what a user writes: one number or name, or several."""
    def many(x: Any) -> tuple:
        return tuple(x) if isinstance(x, (tuple, list)) else (x,)

    return Options(many(static_argnums), many(static_argnames), many(donate_argnums), many(donate_argnames))


@dataclasses.dataclass(frozen=True, eq=False)
class Call:
    """One call, its arrays apart from everything else.

    Attributes:
      args: positional arguments with static ones and leaves that are not arrays as None.
      kwargs: keyword arguments, likewise.
      names: a name for each positional argument.
      donated: names of the donated arguments.
      static: what was taken out, hashable where it is: with the trees it says whether a trace can serve again.
      step: a function of `args` and `kwargs` that puts the static parts back. It returns the arrays of the result; what else
        the step returns is kept in `extra`.
      extra: filled by `step` when it is traced: the result's structure with its non-arrays.
    """

    args: tuple
    kwargs: dict[str, Any]
    names: tuple[str, ...]
    donated: tuple[str, ...]
    static: Hashable
    step: Callable[..., Any]
    extra: dict[str, Any]


def is_array(x: Any) -> bool:
    """Whether jax would trace `x`: an array, an abstract one or a Python number."""
    return isinstance(x, (jax.Array, np.ndarray, np.generic, bool, int, float, complex, jax.ShapeDtypeStruct)) or (
        hasattr(x, "__jax_array__"))


def bind_call(step: Callable, args: tuple, kwargs: dict[str, Any], options: Options) -> Call:
    """Takes a call apart.

    Raises:
      ValueError: if an option names an argument that the call does not have.
    """
    names = _names(step, len(args))
    static = {_position(i, args, "static_argnums") for i in options.static_argnums}
    static |= {i for i, n in enumerate(names) if n in options.static_argnames}
    donated = {names[_position(i, args, "donate_argnums")] for i in options.donate_argnums}
    unknown = [n for n in options.donate_argnames if n not in names and n not in kwargs]
    if unknown:
        raise ValueError(f"donate_argnames names {unknown}, and this call has the arguments {[*names, *kwargs]}")
    donated |= set(options.donate_argnames)
    values = [a for i, a in enumerate(args) if i not in static]
    keywords = {k: v for k, v in kwargs.items() if k not in options.static_argnames}
    leaves, tree = jax.tree_util.tree_flatten((tuple(values), keywords))
    arrays = [x if is_array(x) else None for x in leaves]
    others = [None if is_array(x) else x for x in leaves]
    held = {i: args[i] for i in static}
    held_keywords = {k: v for k, v in kwargs.items() if k in options.static_argnames}
    extra: dict[str, Any] = {}

    def call(*call_args: Any, **call_kwargs: Any) -> Any:
        given = jax.tree_util.tree_leaves((call_args, call_kwargs), is_leaf=lambda x: x is None)
        merged = [o if g is None else g for g, o in zip(given, others, strict=True)]
        inner_args, inner_kwargs = jax.tree_util.tree_unflatten(tree, merged)
        position = iter(inner_args)
        full = [held[i] if i in held else next(position) for i in range(len(args))]
        return _arrays_of(step(*full, **inner_kwargs, **held_keywords), extra)

    new_args, new_kwargs = jax.tree_util.tree_unflatten(tree, arrays)
    key = (tuple(_hashable(o) for o in others), tuple(sorted((i, _hashable(v)) for i, v in held.items())),
           tuple(sorted((k, _hashable(v)) for k, v in held_keywords.items())))
    return Call(new_args, new_kwargs, tuple(n for i, n in enumerate(names) if i not in static), tuple(sorted(donated)), key,
                call, extra)


def _arrays_of(result: Any, extra: dict[str, Any]) -> Any:
    leaves, tree = jax.tree_util.tree_flatten(result)
    extra["tree"], extra["others"] = tree, [None if is_array(x) else x for x in leaves]
    return jax.tree_util.tree_unflatten(tree, [x if is_array(x) else None for x in leaves])


def restore(extra: dict[str, Any], arrays: Sequence[Any]) -> Any:
    """The step's result from its arrays in order."""
    position = iter(arrays)
    return jax.tree_util.tree_unflatten(extra["tree"], [next(position) if o is None else o for o in extra["others"]])


def _position(i: int, args: tuple, option: str) -> int:
    if not -len(args) <= i < len(args):
        raise ValueError(f"{option} names argument {i}, and the call has {len(args)} positional arguments")
    return i % len(args)


def _hashable(x: Any) -> Hashable:
    try:
        hash(x)
    except TypeError:
        return ("id", id(x))
    return ("", x) if isinstance(x, (str, int, float, bool, type(None))) else (type(x).__name__, hash(x))


def _names(step: Callable, count: int) -> tuple[str, ...]:
    try:
        parameters = list(inspect.signature(step).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names: list[str] = []
    for p in parameters:
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD):
            names.append(p.name)
        elif p.kind is p.VAR_POSITIONAL:
            names += [f"{p.name}{i}" for i in range(count - len(names))]
            break
        else:
            break
    names += [f"arg{i}" for i in range(len(names), count)]
    return tuple(names[:count])
