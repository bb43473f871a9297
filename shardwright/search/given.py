"""What the user has fixed before the search: the mesh, and where leaves lie.

A mesh is fixed by `mesh=`, by a plan to be like, by inputs that already lie sharded, or by `with_sharding_constraint`
in the step, in this order. Leaves are fixed by `pins=`, by the plan to be like, and by where inputs lie, in this order.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from shardwright.cluster import Cluster
from shardwright.partition.pinned import check_pins, pin_of, pins_of
from shardwright.plan.pins import Pin, check_written, parse_pin_spec, resolve_pins
from shardwright.plan.record import PlanRecord
from shardwright.program.ir import Leaf, Program, Role
from shardwright.program.signature import Call, argument_name


@dataclasses.dataclass(frozen=True)
class Given:
    """What is fixed.

    Attributes:
      mesh: axis → size; None: to be chosen.
      devices: the user's own devices in the mesh's order; None: the first attached ones.
      pins: leaf name → axes of each dim, None where it is free.
      notes: what the reader of the plan should know about it.
      source: where the mesh comes from, for messages.
    """

    mesh: dict[str, int] | None
    devices: tuple[Any, ...] | None
    pins: dict[str, Pin]
    notes: tuple[str, ...] = ()
    source: str = "mesh"


def gather_given(
    program: Program,
    call: Call,
    mesh: Mapping[str, int] | Mesh | None,
    pins: Mapping[str, Any] | None,
    like: PlanRecord | None,
    like_devices: tuple[Any, ...] | None = None,
    elsewhere: Cluster | None = None,
) -> Given:
    """Everything that is fixed for the search.

    Args:
      program: the captured step.
      call: its arguments.
      mesh: from the user, or None.
      pins: from the user, or None.
      like: the plan to be like, or None.
      like_devices: the devices that `like` lies on, if they are not the first ones.
      elsewhere: the cluster that the user names; where arguments lie counts only if they can lie so there.

    Raises:
      ValueError: what is given contradicts itself, the step or the mesh.
    """
    if pins is not None and not isinstance(pins, Mapping):
        raise ValueError(f"pins={pins!r} is a {type(pins).__name__}; give leaf name → PartitionSpec")
    check_written(pins or {})
    notes = []
    lying = _lying(call)
    strange = [name for name, (own, _) in lying.items() if elsewhere is not None and not _is_of(own, elsewhere)]
    if strange and elsewhere is not None:
        more = f" and {len(strange) - 1} more" if len(strange) > 1 else ""
        notes.append(f"{strange[0]}{more} lies on other devices than {elsewhere.name}, which is no pin here.")
        lying = {name: x for name, x in lying.items() if name not in strange}
    sizes, devices, source = _mesh(program, mesh, lying, like, like_devices)
    if sizes is None:
        _refuse_axes_without_a_mesh(program, pins or {})
    check_pins(program, sizes or {})
    resolved = _on_inputs(program, resolve_pins(pins or {}, [*program.inputs, *program.outputs], sizes or {}))
    if like is not None:
        if sizes != like.mesh:
            raise ValueError(f"mesh={sizes} differs from the mesh of the plan to be like, {like.mesh}; leave mesh out")
        _add(resolved, {leaf.name: _spec_in(like, leaf) for leaf in program.inputs})
    for name, (own, spec) in lying.items():
        if dict(own.shape) == sizes:
            _add(resolved, {name: spec})
        elif name not in resolved:
            notes.append(f"{name} lies on the mesh {dict(own.shape)} and is moved to that of the plan.")
    return Given(sizes, devices, resolved, tuple(notes), source)


def check_size(given: Given, cluster: Cluster) -> None:
    """Refuses a mesh that does not fill the cluster.

    Raises:
      ValueError: with where the mesh comes from.
    """
    count = math.prod(given.mesh.values()) if given.mesh else cluster.num_devices
    if count != cluster.num_devices:
        raise ValueError(
            f"{given.source}, {given.mesh}, has {count} devices and the cluster {cluster.name} has "
            f"{cluster.num_devices}; give axis sizes whose product is the number of devices, or a cluster of that size"
        )


def _add(pins: dict[str, Pin], more: Mapping[str, Pin | None]) -> None:
    for name, spec in more.items():
        if spec is not None:
            pins.setdefault(name, spec)


def _mesh(
    program: Program,
    mesh: Any,
    lying: Mapping[str, tuple[Any, Pin]],
    like: PlanRecord | None,
    like_devices: tuple[Any, ...] | None,
) -> tuple[dict[str, int] | None, tuple[Any, ...] | None, str]:
    if mesh is not None:
        return _sizes(mesh), _devices(mesh), "mesh"
    if like is not None:
        return like.mesh, like_devices, "the mesh of the plan to be like"
    for name, (own, _) in lying.items():
        return _sizes(own), _devices(own), f"the mesh that {name} lies on"
    for eqn in pins_of(program):
        if eqn.name == "sharding_constraint" and isinstance(eqn.params["sharding"], NamedSharding):
            own = eqn.params["sharding"].mesh
            return _sizes(own), _devices(own), f"the mesh of with_sharding_constraint at {eqn.source.line}"
    return None, None, ""


def _sizes(mesh: Any) -> dict[str, int]:
    if not isinstance(mesh, Mapping) and not hasattr(mesh, "axis_names"):
        raise ValueError(
            f"mesh={mesh!r} is a {type(mesh).__name__}; give axis → size, as {{'d': 2, 't': 4}}, or a jax.sharding.Mesh"
        )
    given = dict(mesh if isinstance(mesh, Mapping) else mesh.shape)
    for axis, size in given.items():
        if not isinstance(axis, str) or not axis:
            raise ValueError(
                f"mesh={given}: {axis!r} is no name of an axis; name each by a text, as in mesh={{'d': 2, 't': 4}}"
            )
        if isinstance(size, bool) or not hasattr(size, "__index__") or int(size) < 1:
            raise ValueError(
                f"mesh={given}: axis {axis!r} has the size {size!r}; every axis has a name and a whole size of at "
                "least 1, as in mesh={'d': 2, 't': 4}"
            )
        if not axis.isascii() or not axis.isprintable():
            raise ValueError(
                f"mesh={given}: the name {axis!r} holds characters that XLA's compilers do not read; name axes in "
                "plain letters and digits, as in mesh={'d': 2, 't': 4}"
            )
    if not given:
        raise ValueError("mesh={} has no axes; give some, as in mesh={'d': 2, 't': 4}, or leave it out")
    return {axis: int(size) for axis, size in given.items()}


def _devices(mesh: Any) -> tuple[Any, ...] | None:
    return tuple(mesh.devices.flat) if isinstance(mesh, Mesh) else None


def _is_of(mesh: Any, cluster: Cluster) -> bool:
    """Whether a mesh's devices could be the cluster's: as many, of the same platform where the mesh says it."""
    devices = getattr(mesh, "devices", None)
    platform = devices.flat[0].platform if isinstance(mesh, Mesh) and devices is not None else cluster.device.platform
    return mesh.size == cluster.num_devices and platform == cluster.device.platform


def _lying(call: Call) -> dict[str, tuple[Any, Pin]]:
    """Leaf name → (mesh, axes of each dim) of the arguments that lie sharded over several devices."""
    found = {}
    for path, x in jax.tree_util.tree_leaves_with_path((call.args, call.kwargs)):
        sharding = getattr(x, "sharding", None)
        if isinstance(sharding, NamedSharding) and sharding.mesh.size > 1 and not sharding.is_fully_replicated:
            pin = parse_pin_spec(sharding.spec)
            found[argument_name(path, call.names)] = sharding.mesh, pin + ((),) * (len(x.shape) - len(pin))
    return found


def _refuse_axes_without_a_mesh(program: Program, pins: Mapping[str, Any]) -> None:
    for name, spec in pins.items():
        axes = _axes(parse_pin_spec(spec))
        if axes:
            raise ValueError(
                f"pins[{name!r}] = {spec} names mesh axis {', '.join(map(repr, axes))}, so the mesh must be given too, "
                f"as in mesh={{{', '.join(f'{a!r}: 2' for a in axes)}}}"
            )
    for eqn in pins_of(program):
        axes = _axes(pin_of(eqn))
        if axes:
            raise ValueError(
                f"{eqn.source.line}: the step pins a value to mesh axis {', '.join(map(repr, axes))}, so the mesh must "
                f"be given to plan or jit, as in mesh={{{', '.join(f'{a!r}: 2' for a in axes)}}}"
            )


def _axes(pin: Iterable[tuple[str, ...] | None]) -> list[str]:
    return sorted({a for axes in pin for a in axes or ()})


def _on_inputs(program: Program, pins: dict[str, Pin]) -> dict[str, Pin]:
    """Pins on results that replace an argument in the next step, moved to that argument: the two lie alike."""
    found = dict(pins)
    for out, i in zip(program.outputs, program.carried, strict=True):
        if i is None or out.name not in pins:
            continue
        name = program.inputs[i].name
        pin = found.pop(out.name)
        if pins.get(name, pin) != pin:
            raise ValueError(
                f"pins: {out.name} replaces {name} in the next step, so the two lie alike, and they are pinned to "
                f"{_text(pin)} and {_text(pins[name])}; pin one of them"
            )
        found[name] = pin
    return found


def _text(pin: Pin) -> str:
    return (
        "P("
        + ", ".join(
            "P.UNCONSTRAINED" if a is None else "None" if not a else repr(a[0] if len(a) == 1 else a) for a in pin
        )
        + ")"
    )


def _spec_in(like: PlanRecord, leaf: Leaf) -> Pin | None:
    """Where `like` lays this leaf: one of the same name, else state of the same path in its argument."""
    planned = [p for p in like.program.inputs if p.shape == leaf.aval.shape and p.dtype == str(leaf.aval.dtype)]
    same = [p for p in planned if p.name == leaf.name]
    rest = _inside(leaf.name)
    state = (Role.PARAMETER.value, Role.OPTIMIZER.value)
    if not same and rest:
        same = [p for p in planned if p.role in state and p.name.endswith(rest)]
    return same[0].spec if same else None


def _inside(name: str) -> str:
    """A leaf's path inside its argument."""
    ends = [i for i in (name.find("["), name.find(".")) if i >= 0]
    return name[min(ends) :] if ends else ""
