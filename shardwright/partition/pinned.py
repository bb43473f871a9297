"""Pins inside a step: `shardwright.pin`, and `jax.lax.with_sharding_constraint`, which is read as one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jax.sharding import PartitionSpec

from shardwright import _compat
from shardwright.plan.placement import Placement, with_dim
from shardwright.program.ir import Equation, Program, walk

Pin = tuple[tuple[str, ...] | None, ...]
"""For each dim its mesh axes, () for whole, None for free."""


def is_pin(eqn: Equation) -> bool:
    """Whether `eqn` says where a value lies, and nothing else."""
    return eqn.name in ("pin", "sharding_constraint")


def pins_of(program: Program) -> Iterator[Equation]:
    """Every pin of the step, loops included."""
    return (eqn for eqn in walk(program.block) if is_pin(eqn))


def pin_of(eqn: Equation) -> Pin:
    """Where a pin lays each dim; one of a single element is whole, whatever the pin says.

    Raises:
      ValueError: a sharding that is no `NamedSharding`.
    """
    return tuple(() if n == 1 else axes for n, axes in zip(eqn.outvars[0].aval.shape, _said(eqn), strict=True))


def _said(eqn: Equation) -> Pin:
    if eqn.name == "pin":
        return eqn.params["spec"]
    sharding, ndim = eqn.params["sharding"], eqn.outvars[0].aval.ndim
    if not hasattr(sharding, "spec"):
        if sharding.is_fully_replicated:
            return ((),) * ndim
        raise ValueError(
            f"{eqn.source.line}: with_sharding_constraint has a {type(sharding).__name__}, which names no mesh axes; "
            "give a NamedSharding, or use shardwright.pin"
        )
    entries = [_axes(e) for e in sharding.spec]
    entries += [()] * (ndim - len(entries))
    free = _compat.unconstrained_dims(eqn.params)
    return tuple(None if dim in free else axes for dim, axes in enumerate(entries))


def _axes(entry: Any) -> tuple[str, ...] | None:
    if entry is PartitionSpec.UNCONSTRAINED:
        return None
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)


def check_pins(program: Program, mesh: Mapping[str, int]) -> None:
    """Refuses a mesh that lacks an axis which the step pins a value to.

    Raises:
      ValueError: with the user's source line.
    """
    for eqn in pins_of(program):
        unknown = sorted({a for axes in _said(eqn) for a in axes or ()} - set(mesh))
        if unknown:
            raise ValueError(
                f"{eqn.source.line}: the step pins a value to mesh axis {', '.join(map(repr, unknown))}, and the "
                f"plan's mesh is {dict(mesh)}: plan with mesh={{...}} that has this axis, or mend the pin"
            )


def pinned(eqn: Equation, at: Placement) -> Placement:
    """Where the pinned value lies if its operand lies at `at`.

    Free dims stay as they are, and give way where a pinned dim takes their axis.
    """
    pin = pin_of(eqn)
    taken = {a for axes in pin for a in axes or ()}
    place = Placement(at.dims)
    for dim, axes in enumerate(pin):
        place = with_dim(place, dim, tuple(a for a in at.dims[dim] if a not in taken) if axes is None else axes)
    return place
