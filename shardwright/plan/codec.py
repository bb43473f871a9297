"""Frozen dataclasses as JSON and back, checked field by field against their annotations."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from typing import Any

Json = Any


def encode(value: Any) -> Json:
    """`value` as what `json` writes: a dataclass as an object of its fields, a tuple as a list.

    Raises:
        ValueError: A number that JSON cannot hold (inf, nan).
    """
    if dataclasses.is_dataclass(value):
        return {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): encode(v) for k, v in value.items()}
    if isinstance(value, tuple):
        return [encode(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} cannot be written to a plan file: write None where nothing is known.")
    assert value is None or isinstance(value, (str, bool, int, float)), f"no JSON for {type(value).__name__}"
    return value


def decode(wanted: Any, data: Json, path: str) -> Any:
    """`data` as a value of type `wanted`.

    Args:
        wanted: A dataclass, tuple[X, ...], tuple[X, Y], Mapping[str, X], X | None, str, bool, int or float.
        data: What `json` read.
        path: Where it stands in the file, for messages.

    Raises:
        ValueError: A key is missing or unknown, or a value is of another type; the message holds the place.
    """
    if dataclasses.is_dataclass(wanted):
        return _decode_fields(wanted, data, path)
    origin, args = typing.get_origin(wanted), typing.get_args(wanted)
    if origin in (types.UnionType, typing.Union):
        (inner,) = (a for a in args if a is not type(None))
        return None if data is None else decode(inner, data, path)
    if origin is tuple:
        return _decode_tuple(args, _of_type(data, list, "a list", path), path)
    if origin is not None and issubclass(origin, Mapping):
        found = _of_type(data, dict, "an object", path)
        return {k: decode(args[1], v, f"{path}[{k!r}]") for k, v in found.items()}
    return _decode_scalar(wanted, data, path)


def _decode_fields(wanted: Any, data: Json, path: str) -> Any:
    found = _of_type(data, dict, "an object", path)
    hints = typing.get_type_hints(wanted)
    names = [f.name for f in dataclasses.fields(wanted)]
    missing, unknown = [n for n in names if n not in found], sorted(set(found) - set(names))
    if missing or unknown:
        parts = [f"lacks {', '.join(missing)}"] * bool(missing) + [f"has unknown {', '.join(unknown)}"] * bool(unknown)
        raise ValueError(f"{path} {' and '.join(parts)}")
    return wanted(**{n: decode(hints[n], found[n], f"{path}.{n}") for n in names})


def _decode_tuple(args: tuple[Any, ...], data: list[Json], path: str) -> tuple[Any, ...]:
    if args[-1] is not Ellipsis and len(args) != len(data):
        raise ValueError(f"{path} holds {len(data)} values, {len(args)} wanted")
    kinds = [args[0]] * len(data) if args[-1] is Ellipsis else args
    return tuple(decode(k, v, f"{path}[{i}]") for i, (k, v) in enumerate(zip(kinds, data, strict=True)))


def _decode_scalar(wanted: type, data: Json, path: str) -> Any:
    if wanted is float and type(data) is int:
        return float(data)
    if type(data) is not wanted:  # a bool is an int, and must not pass for one
        raise ValueError(f"{path} is {type(data).__name__}, {wanted.__name__} wanted")
    return data


def _of_type(data: Json, wanted: type, words: str, path: str) -> Any:
    if not isinstance(data, wanted):
        raise ValueError(f"{path} is {type(data).__name__}, {words} wanted")
    return data
