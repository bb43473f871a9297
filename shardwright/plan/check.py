"""Whether a plan is consistent in itself, and whether it is for the program at hand."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

from shardwright import _compat
from shardwright.plan.record import LeafRecord, PlanRecord, ProgramRecord
from shardwright.program.ir import Leaf, Role

MAX_LISTED = 8
"""Leaves that one message names."""


def problems(record: PlanRecord) -> tuple[str, ...]:
    """Every way in which `record` contradicts itself; none for a plan that this package made."""
    found: list[str] = []
    for program in record.programs:
        found += _program_problems(record, program)
    if len(record.programs) != 1:
        found.append(f"it holds {len(record.programs)} programs, one wanted")
    return tuple(found)


def _program_problems(record: PlanRecord, program: ProgramRecord) -> Iterator[str]:
    mesh = dict(program.mesh)
    axes = [(a.axis, a.size) for a in program.decision.axes]
    if len(mesh) != len(program.mesh) or min(mesh.values(), default=1) < 1:
        yield f"the mesh {_mesh_text(program.mesh)} repeats an axis or has one without devices"
    elif math.prod(mesh.values()) != record.num_devices:
        yield f"the mesh {_mesh_text(program.mesh)} does not hold {record.num_devices} devices"
    if axes != list(program.mesh):
        yield f"the decision is for the mesh {_mesh_text(axes)}, the program lies on {_mesh_text(program.mesh)}"
    roles = {r.value for r in Role}
    unknown = sorted({r for a in program.decision.axes for r in a.rest} - roles)
    if unknown:
        yield f"unknown roles {', '.join(unknown)}"
    for leaf in (*program.inputs, *program.outputs):
        problem = _leaf_problem(leaf, mesh, roles)
        if problem:
            yield f"{leaf.name} {problem}"


def _leaf_problem(leaf: LeafRecord, mesh: dict[str, int], roles: set[str]) -> str:
    if leaf.role not in roles:
        return f"has the unknown role {leaf.role!r}"
    if not len(leaf.spec) == len(leaf.dims) == len(leaf.shape):
        return f"has {len(leaf.shape)} dims, {len(leaf.dims)} names for them and a placement of {len(leaf.spec)}"
    used = [a for axes in leaf.spec for a in axes]
    if len(set(used)) != len(used) or set(used) - set(mesh):
        return f"lies on axes {', '.join(used)}, and the mesh has {', '.join(mesh)}"
    return ""


def _mesh_text(mesh: Sequence[tuple[str, int]]) -> str:
    return "{" + ", ".join(f"{axis}: {size}" for axis, size in mesh) + "}"


def check(record: PlanRecord, fingerprint: str, leaves: Sequence[Leaf]) -> None:
    """Refuses `record` for any program but the one that it was made for.

    Args:
        record: The plan.
        fingerprint: Of the program at hand.
        leaves: The program's input leaves.

    Raises:
        ValueError: The program is another one; the message lists the leaves that differ and says what changed.
    """
    if record.fingerprint == fingerprint:
        return
    differences = leaf_differences(record.program.inputs, leaves)
    roles = role_differences(record.program.inputs, leaves)
    head = f"The plan is for another program (fingerprint {record.fingerprint[:8]}, this one has {fingerprint[:8]})"
    if differences:
        raise ValueError(
            f"{head}. The step's arguments changed:{_listed(differences)}\nCall it with the arguments that were "
            "planned, or plan again for these."
        )
    if roles:
        raise ValueError(
            f"{head}. The arguments have the same shapes and dtypes, but the step uses them otherwise:{_listed(roles)}"
            "\nWhat a step returns in place of an argument, and what its loss depends on, tells their roles. Plan "
            "again for the step as it is now."
        )
    if record.jax_version != _compat.JAX_VERSION:
        raise ValueError(
            f"{head}. The arguments are the same, and the plan was made with jax {record.jax_version}; this is jax "
            f"{_compat.JAX_VERSION}, which may trace the same step to other operations. Plan again, or use that jax."
        )
    raise ValueError(
        f"{head}. The arguments are the same, so the step itself changed since it was planned: its code, a static "
        "argument or a constant that it closes over. Plan again for the step as it is now."
    )


def check_program(record: PlanRecord, made: ProgramRecord) -> None:
    """Refuses a plan whose leaves are not what its own decision makes of the program.

    Args:
        record: The plan.
        made: What this package makes of its decision.

    Raises:
        ValueError: The file was edited, or is of another version of this package; the first difference is named.
    """
    for side in ("inputs", "outputs"):
        said, is_so = (
            {leaf.name: dataclasses.replace(leaf, donated=False) for leaf in getattr(program, side)}
            for program in (record.program, made)
        )
        for name in dict.fromkeys((*said, *is_so)):
            if said.get(name) != is_so.get(name):
                raise ValueError(
                    f"The plan contradicts itself, as a file edited by hand or of another version may: of {name} it "
                    f"says {_leaf_text(said.get(name))}, and its decision makes it {_leaf_text(is_so.get(name))}. "
                    f"It was written by shardwright {record.package_version}. Plan again."
                )


def _leaf_text(leaf: LeafRecord | None) -> str:
    return "nothing" if leaf is None else f"{leaf.role} {_type_text(leaf)} of dims {leaf.dims} on {leaf.spec}"


def leaf_differences(planned: Sequence[LeafRecord], given: Sequence[Leaf]) -> tuple[str, ...]:
    """A line for each leaf that is missing, extra or of another shape or dtype."""
    old, new = {leaf.name: leaf for leaf in planned}, {leaf.name: leaf for leaf in given}
    found = []
    for name in dict.fromkeys((*old, *new)):
        if name not in new:
            found.append(f"{name}: planned as {_type_text(old[name])}, not given")
        elif name not in old:
            found.append(f"{name}: given as {_given_text(new[name])}, not in the plan")
        elif _type_text(old[name]) != _given_text(new[name]):
            found.append(f"{name}: planned as {_type_text(old[name])}, given as {_given_text(new[name])}")
    return tuple(found)


def role_differences(planned: Sequence[LeafRecord], given: Sequence[Leaf]) -> tuple[str, ...]:
    """A line for each leaf of both that has another role."""
    new = {leaf.name: leaf.role.value for leaf in given}
    return tuple(
        f"{leaf.name}: planned as {leaf.role}, now it is {new[leaf.name]}"
        for leaf in planned
        if new.get(leaf.name, leaf.role) != leaf.role
    )


def _listed(lines: Sequence[str]) -> str:
    more = len(lines) - MAX_LISTED
    return "".join(f"\n  {line}" for line in lines[:MAX_LISTED]) + (f"\n  and {more} more" if more > 0 else "")


def _type_text(leaf: LeafRecord) -> str:
    return f"{leaf.dtype}{list(leaf.shape)}"


def _given_text(leaf: Leaf) -> str:
    return f"{leaf.aval.dtype}{list(leaf.aval.shape)}"
