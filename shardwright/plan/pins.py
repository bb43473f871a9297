"""What a user pins: leaf name → `PartitionSpec`, checked against the leaves and the mesh.

In a pin `None` is whole and `P.UNCONSTRAINED` is free; dims that are not named are whole, as in jax.
"""

from __future__ import annotations

import ast
import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jax.sharding import PartitionSpec

from shardwright.program.ir import Leaf

Pin = tuple[tuple[str, ...] | None, ...]
"""For each named dim its mesh axes, () for whole, None for free."""

_EXAMPLES = "Write for example P('d'), P(None, 't'), P(('d', 't'), None) or P(P.UNCONSTRAINED, 't')."


def parse_pin_spec(spec: Any) -> Pin:
    """A pin as the user wrote it.

    Args:
        spec: A `PartitionSpec`, a tuple or list of its entries, or its text, such as "P(None, 't')".

    Returns:
        Axes of each named dim.

    Raises:
        ValueError: It is none of these, or names an axis twice.

    >>> parse_pin_spec("P(('d', 't'), None, P.UNCONSTRAINED)")
    (('d', 't'), (), None)
    """
    entries = _parse_text(spec) if isinstance(spec, str) else spec
    if not isinstance(entries, (PartitionSpec, tuple, list)):
        raise ValueError(f"The pin {spec!r} is a {type(spec).__name__}, a PartitionSpec was wanted. {_EXAMPLES}")
    pin = tuple(_entry(e, spec) for e in entries)
    named = [a for axes in pin if axes for a in axes]
    twice = sorted({a for a in named if named.count(a) > 1})
    if twice:
        raise ValueError(f"The pin {spec} names mesh axis {', '.join(twice)} twice; an axis cuts one dim. {_EXAMPLES}")
    return pin


def _entry(entry: Any, spec: Any) -> tuple[str, ...] | None:
    if entry is None:
        return ()
    if entry is PartitionSpec.UNCONSTRAINED:
        return None
    axes = (entry,) if isinstance(entry, str) else entry
    if not isinstance(axes, (tuple, list)) or not all(isinstance(a, str) for a in axes):
        raise ValueError(f"The pin {spec} holds {entry!r}, the name of a mesh axis was wanted. {_EXAMPLES}")
    return tuple(axes)


def _parse_text(text: str) -> tuple[Any, ...]:
    """Reads the text without evaluating it."""
    try:
        node = ast.parse(text.strip(), mode="eval").body
        if not isinstance(node, ast.Call) or node.keywords or ast.unparse(node.func).split(".")[-1] not in _SPEC_NAMES:
            raise ValueError
        return tuple(_free_or_literal(argument) for argument in node.args)
    except (SyntaxError, ValueError):
        raise ValueError(f"The pin {text!r} cannot be read as a PartitionSpec. {_EXAMPLES}") from None


_SPEC_NAMES = ("P", "PartitionSpec")


def _free_or_literal(node: ast.expr) -> Any:
    if isinstance(node, ast.Attribute) and node.attr == "UNCONSTRAINED":
        return PartitionSpec.UNCONSTRAINED
    return ast.literal_eval(node)


def check_written(pins: Mapping[str, Any]) -> None:
    """Refuses pins that cannot be read, by the leaf's name.

    Raises:
        ValueError: A key is no name, or a value is not what `parse_pin_spec` takes.
    """
    for name, spec in pins.items():
        if not isinstance(name, str):
            raise ValueError(f"pins: {name!r} is a {type(name).__name__}, a leaf's name was wanted, as \"state['w']\"")
        try:
            parse_pin_spec(spec)
        except ValueError as error:
            raise ValueError(f"pins[{name!r}]: {error}") from None


def resolve_pins(pins: Mapping[str, Any], leaves: Sequence[Leaf], mesh: Mapping[str, int]) -> dict[str, Pin]:
    """Pins as a `Decision` holds them, one entry a dim.

    Args:
        pins: Leaf name → what `parse_pin_spec` takes.
        leaves: The program's leaves, inputs and results.
        mesh: Axis → size.

    Raises:
        ValueError: No leaf has the name; the mesh lacks the axis; more dims than the leaf has; a dim that its axes do
            not divide.
    """
    by_name = {leaf.name: leaf for leaf in leaves}
    found = {}
    for name, spec in sorted(pins.items()):
        if name not in by_name:
            raise ValueError(f"pins: the step has no leaf {name!r}{_suggestion(name, list(by_name))}")
        pin = parse_pin_spec(spec)
        problem = next(_contradictions(pin, by_name[name], mesh), None)
        if problem:
            raise ValueError(f"pins[{name!r}] = {spec}: {problem}")
        found[name] = pin + ((),) * (by_name[name].aval.ndim - len(pin))
    return found


def _suggestion(name: str, names: list[str]) -> str:
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    listed = close or names[:8]
    words = "Did you mean" if close else "It has"
    return (
        f". {words} {', '.join(map(repr, listed))}{'?' if close else ''} A leaf's name is the step's own argument name "
        "followed by jax.tree_util.keystr; results start with 'out'."
    )


def _contradictions(pin: Pin, leaf: Leaf, mesh: Mapping[str, int]) -> Iterator[str]:
    shape = list(leaf.aval.shape)
    if len(pin) > len(shape):
        yield f"it names {len(pin)} dims, the leaf has {len(shape)}: {shape}. Name one entry a dim at the most."
        return
    for dim, axes in enumerate(pin):
        unknown = [a for a in axes or () if a not in mesh]
        if unknown:
            yield (
                f"the mesh {dict(mesh)} has no axis {', '.join(map(repr, unknown))}. Give mesh={{...}} with it, or pin "
                f"to {', '.join(map(repr, mesh))}."
            )
            return
        parts = math.prod(mesh[a] for a in axes or ())
        if shape[dim] % parts:
            yield (
                f"dim {dim} of {shape} does not divide into {parts} parts. A leaf lies in equal parts between steps: "
                "pin another dim, or pin the value inside the step with shardwright.pin, where padding is allowed."
            )
            return
