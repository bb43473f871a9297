"""A call of the user's step: which arguments are arrays, which are static, what each is called.

As in `jax.jit`, Python numbers are arrays. Any other leaf that is not an array (an activation function, a string) is
static: it stays out of the traced arguments, and another one is another program. Inside an equinox module Python
numbers are static too, as in `equinox.filter_jit`: a dropout rate is no array. flax nnx objects are split into state
and graph (`program.nnx_bridge`).
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from shardwright import _compat
from shardwright.program import nnx_bridge


class WrongUse(ValueError):
    """A function of this package was called wrongly inside a step; the message says what it wants."""


class StepError(ValueError):
    """The user's step, or the arguments of one call of it, are not what can be planned."""


@dataclasses.dataclass(frozen=True)
class Options:
    """What `jax.jit` calls the same: static and donated arguments, by position or by name."""

    static_argnums: tuple[int, ...] = ()
    static_argnames: tuple[str, ...] = ()
    donate_argnums: tuple[int, ...] = ()
    donate_argnames: tuple[str, ...] = ()


def make_options(
    static_argnums: int | Sequence[int] | None = (),
    static_argnames: str | Sequence[str] | None = (),
    donate_argnums: int | Sequence[int] | None = (),
    donate_argnames: str | Sequence[str] | None = (),
) -> Options:
    """Options from what a user writes: one number or name, or several.

    Raises:
      ValueError: if a position is no whole number, or a name no string.
    """

    def many(option: str, x: Any, kind: type) -> tuple:
        found = () if x is None else tuple(x) if isinstance(x, (tuple, list, set, frozenset)) else (x,)
        for each in found:
            if not isinstance(each, kind) or isinstance(each, bool):
                wanted = "position of an argument, such as 0" if kind is int else "name of an argument, such as 'state'"
                raise ValueError(f"{option}={x!r}: {each!r} is no {wanted}")
        return found

    return Options(
        many("static_argnums", static_argnums, int),
        many("static_argnames", static_argnames, str),
        many("donate_argnums", donate_argnums, int),
        many("donate_argnames", donate_argnames, str),
    )


@dataclasses.dataclass(frozen=True, eq=False)
class Call:
    """One call, its arrays apart from everything else.

    Attributes:
      args: positional arguments with static ones left out and leaves that are not arrays as None.
      kwargs: keyword arguments, likewise.
      names: a name for each positional argument.
      donated: names of the donated arguments.
      static: what was taken out: with the trees it says whether a trace can serve again.
      step: a function of `args` and `kwargs` that puts the static parts back. It returns the arrays of the result; what
        else the step returns is kept in `extra`.
      extra: filled by `step` when it is traced: the result's structure with its non-arrays.
      finish: what turns the step's result into what the caller gets; it writes nnx objects' new state back.
    """

    args: tuple
    kwargs: dict[str, Any]
    names: tuple[str, ...]
    donated: tuple[str, ...]
    static: tuple[Any, ...]
    step: Callable[..., Any]
    extra: dict[str, Any]
    finish: Callable[[Any], Any]


def _check_arguments(step: Callable, signature: inspect.Signature | None, args: tuple, kwargs: dict[str, Any]) -> None:
    """Refuses arguments that the step does not take, in terms of its own signature; a built-in function has none."""
    if signature is None:
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        name = getattr(step, "__name__", "the step")
        taken = signature.parameters
        unknown = [] if any(p.kind is p.VAR_KEYWORD for p in taken.values()) else [k for k in kwargs if k not in taken]
        more = f"; it has no {' and no '.join(map(repr, unknown))}" if unknown else ""
        raise StepError(f"{name}{signature} was given arguments that it does not take: {error}{more}") from None


_ARRAYS = (jax.Array, jax.Ref, np.ndarray, np.generic, bool, int, float, complex, jax.ShapeDtypeStruct)


def is_array(x: Any) -> bool:
    """Whether jax would trace `x`: an array, an abstract one or a Python number."""
    return isinstance(x, _ARRAYS) or hasattr(x, "__jax_array__")


def bind_call(step: Callable, args: tuple, kwargs: dict[str, Any], options: Options) -> Call:
    """Takes a call apart.

    Raises:
      ValueError: if an option names an argument that the step does not have, a static argument cannot be hashed or is
        donated, an array holds no numbers or an integer is too large, or a dict's keys do not sort.
    """
    check_step(step)
    parameters = _parameters(step)
    _check_arguments(step, parameters.signature, args, kwargs)
    names = parameters.names_of(len(args))
    static = _named(parameters, names, options.static_argnums, options.static_argnames, "static")
    donated = _named(parameters, names, options.donate_argnums, options.donate_argnames, "donate")
    if static & donated:
        raise ValueError(
            f"argument {sorted(static & donated)[0]!r} is both static and donated; only arrays can be donated"
        )
    held = {n: _hashed(n, v) for n, v in [*zip(names, args, strict=True), *kwargs.items()] if n in static}
    positions = [i for i, n in enumerate(names) if n not in static]
    values = tuple(args[i] for i in positions)
    keywords = {k: v for k, v in kwargs.items() if k not in static}
    try:
        values, keywords, graph, update = nnx_bridge.split(values, keywords)
        leaves, tree = jax.tree_util.tree_flatten((values, keywords))
    except ValueError:
        _refuse_unsortable({**{names[i]: args[i] for i in positions}, **keywords})
        raise
    traced = _traced(leaves, (values, keywords))
    others = [_TRACED if t else x for x, t in zip(leaves, traced, strict=True)]
    fixed = [a if names[i] in held else None for i, a in enumerate(args)]
    fixed_keywords = {k: v for k, v in kwargs.items() if k in held}
    extra: dict[str, Any] = {}

    def call(*call_args: Any, **call_kwargs: Any) -> Any:
        given = iter(jax.tree_util.tree_leaves((call_args, call_kwargs)))
        merged = [next(given) if o is _TRACED else o for o in others]
        inner_args, inner_kwargs, collect = nnx_bridge.merge(graph, *jax.tree_util.tree_unflatten(tree, merged))
        full = list(fixed)
        for i, value in zip(positions, inner_args, strict=True):
            full[i] = value
        result = collect(step(*full, **inner_kwargs, **fixed_keywords))
        return _arrays_of(result, extra, [*others, *(h.value for h in held.values())])

    if not held:
        functools.update_wrapper(call, step)  # jax's own messages then name the user's function and arguments
    arrays = [x if t else None for x, t in zip(leaves, traced, strict=True)]
    new_args, new_kwargs = jax.tree_util.tree_unflatten(tree, arrays)
    call_names = tuple(names[i] for i in positions)
    if any(map(_wrong, leaves)):
        _refuse_wrong((new_args, new_kwargs), call_names)
    key = (tuple(_Static(o) for o in others if o is not _TRACED), tuple(sorted(held.items())), graph)
    return Call(new_args, new_kwargs, call_names, tuple(sorted(donated)), key, call, extra, update)


def without_values(call: Call) -> Call:
    """`call` with shapes in the place of arrays: what may be kept without keeping the first state alive."""
    args, kwargs = jax.tree_util.tree_map(_compat.abstract_like, (call.args, call.kwargs))
    return dataclasses.replace(call, args=args, kwargs=kwargs, finish=lambda result: result)


def check_step(step: Any) -> None:
    """Refuses what cannot be called.

    Raises:
      StepError: it is no function.
    """
    if not callable(step):
        raise StepError(f"the step is a {type(step).__name__}, a function was wanted: plan(step, *args) or jit(step)")


def argument_name(path: tuple, names: Sequence[str]) -> str:
    """The name of a leaf of `(args, kwargs)`: its argument's, and the path inside it."""
    head = names[path[1].idx] if path[0].idx == 0 else path[1].key
    return f"{head}{jax.tree_util.keystr(path[2:])}"


def argument_of(name: str) -> str:
    """The argument that a leaf of this name is in."""
    return re.split(r"[\[.]", name, maxsplit=1)[0]


class _Traced:
    """Stands where a traced leaf was."""


_TRACED = _Traced()


@functools.total_ordering
class _Static:
    """A static value as a key: equal by value where it can be hashed, else the very object."""

    def __init__(self, value: Any):
        self.value = value
        try:
            self._hash, self._by_value = hash((type(value), value)), True
        except TypeError:
            self._hash, self._by_value = id(value), False

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: Any) -> bool:
        if self.value is other.value:
            return True
        return (
            self._by_value
            and other._by_value
            and type(self.value) is type(other.value)
            and bool(self.value == other.value)
        )

    def __lt__(self, other: Any) -> bool:  # names are unique, so sorting never asks for values
        return self._hash < other._hash


def _hashed(name: str, value: Any) -> _Static:
    found = _Static(value)
    if not found._by_value:
        raise ValueError(
            f"the static argument {name!r} is a {type(value).__name__}, which cannot be hashed; give a value that can "
            "(a tuple for a list), or pass it as an array"
        )
    return found


def _traced(leaves: Sequence[Any], tree: Any) -> list[bool]:
    """For each leaf whether it is traced."""
    equinox = sys.modules.get("equinox")
    if equinox is None:
        return [is_array(x) for x in leaves]

    def is_module(x: Any) -> bool:
        return isinstance(x, equinox.Module)

    found: list[bool] = []
    for x in jax.tree_util.tree_leaves(tree, is_leaf=is_module):
        if is_module(x):
            inner = jax.tree_util.tree_leaves(x)
            found += [is_array(y) and not _compat.is_python_number(y) for y in inner]
        else:
            found.append(is_array(x))
    return found


def _arrays_of(result: Any, extra: dict[str, Any], known: Sequence[Any]) -> Any:
    """The arrays of the step's result; the rest goes to `extra`. It must be the caller's own, or inside a module."""
    leaves, tree = jax.tree_util.tree_flatten(result)
    traced = _traced(leaves, result)
    extra["tree"], extra["others"] = tree, [_TRACED if t else x for x, t in zip(leaves, traced, strict=True)]
    equinox = sys.modules.get("equinox")
    for path, x in jax.tree_util.tree_leaves_with_path(
        result, is_leaf=lambda x: equinox and isinstance(x, equinox.Module)
    ):
        inside = equinox and isinstance(x, equinox.Module)
        if not (inside or any(x is k for k in known)) and (not is_array(x) or _wrong(x)):
            raise StepError(
                f"the step returns a {type(x).__name__} at out{jax.tree_util.keystr(path)}; a step returns arrays "
                "(and what is no array only as it came in)"
            )
    return jax.tree_util.tree_unflatten(tree, [x if t else None for x, t in zip(leaves, traced, strict=True)])


def restore(extra: dict[str, Any], arrays: Sequence[Any]) -> Any:
    """The step's result from its arrays in order."""
    position = iter(arrays)
    return jax.tree_util.tree_unflatten(extra["tree"], [next(position) if o is _TRACED else o for o in extra["others"]])


def _refuse_unsortable(values: dict[str, Any]) -> None:
    for name, value in values.items():
        try:
            jax.tree_util.tree_flatten(value)
        except ValueError as error:
            raise StepError(
                f"{name} is no pytree that jax takes apart: {error} The keys of a dict must sort: texts, or "
                "numbers, not both"
            ) from error


def _refuse_wrong(arguments: Any, names: Sequence[str]) -> None:
    for path, x in jax.tree_util.tree_leaves_with_path(arguments):
        if why := _wrong(x):
            raise StepError(f"{argument_name(path, names)} is {why}")


def _wrong(x: Any) -> str:
    """What is wrong with a leaf that looks like an array; empty if nothing is."""
    if isinstance(x, np.ndarray | np.generic):
        if x.dtype.kind in "OSUMm" or x.dtype.type is np.void:
            return (
                f"a NumPy array of dtype {x.dtype}, which holds no numbers; leave it out of the arguments, or encode it"
            )
        if x.dtype.char in "gG":
            return f"a NumPy array of dtype {x.dtype}, which jax does not have; convert it to float64 or float32"
    elif isinstance(x, jax.Ref):
        return "a mutable array (jax.new_ref); pass its value and return the new one"
    elif type(x) is int:
        limits = np.iinfo(jax.dtypes.canonicalize_dtype(np.int64))
        if not limits.min <= x <= limits.max:
            return (
                f"{x}, which {limits.dtype} does not hold; give a float or, if it never changes, name it in "
                "static_argnums"
            )
    return ""


@dataclasses.dataclass(frozen=True)
class _Parameters:
    """Names by position, of `*args` ('' if none), of keywords, whether it takes `**kwargs`; the signature, if any."""

    positional: tuple[str, ...]
    rest: str
    keyword: tuple[str, ...]
    open: bool
    signature: inspect.Signature | None = None

    def names_of(self, count: int) -> tuple[str, ...]:
        """A name for each of `count` positional arguments."""
        rest = self.rest or "arg"
        offset = len(self.positional) if self.rest else 0
        return self.positional[:count] + tuple(f"{rest}{i - offset}" for i in range(len(self.positional), count))


def _parameters(step: Callable) -> _Parameters:
    try:
        return _signature(step)
    except TypeError:  # a step that cannot be hashed
        return _signature.__wrapped__(step)


@functools.lru_cache(maxsize=256)
def _signature(step: Callable) -> _Parameters:
    try:
        signature = inspect.signature(step)
    except (TypeError, ValueError):
        return _Parameters((), "arg", (), True)
    parameters = list(signature.parameters.values())
    positional = tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "")
    keyword = tuple(p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD))
    return _Parameters(positional, rest, keyword, any(p.kind is p.VAR_KEYWORD for p in parameters), signature)


def _named(
    parameters: _Parameters, names: tuple[str, ...], argnums: tuple[int, ...], argnames: tuple[str, ...], kind: str
) -> frozenset[str]:
    """The names that an option means: as in jax, a position also means its argument given by name, and the reverse."""
    found = set(argnames)
    allowed = {*parameters.positional, *parameters.keyword, *names}
    unknown = [n for n in argnames if n not in allowed]
    if unknown and not parameters.open:
        raise ValueError(
            f"{kind}_argnames names {', '.join(map(repr, unknown))}, and the step takes "
            f"{', '.join(map(repr, sorted(allowed))) or 'no arguments'}"
        )
    for i in argnums:
        count = len(names) if parameters.rest else len(parameters.positional)
        if not -count <= i < count and not (parameters.rest and i >= 0):
            raise ValueError(
                f"{kind}_argnums names argument {i}, and the step takes {count} positional arguments"
                f"{': ' if names else ''}{', '.join(parameters.positional or names)}"
            )
        every = names if parameters.rest else parameters.positional
        if i < len(every):
            found.add(every[i])
    return frozenset(found)
