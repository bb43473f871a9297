"""What the search asks of a program's classes: how much state, how many values and how many flops each one cuts."""

from __future__ import annotations

import dataclasses

from shardwright.program.ir import Program, Role, Var, counted
from shardwright.rules.classes import Classes

STATE = (Role.PARAMETER, Role.OPTIMIZER)


@dataclasses.dataclass(frozen=True, eq=False)
class ClassFacts:
    """Totals over the whole program, by class id.

    flops: of the equations that the class can cut, loops multiplied. value_bytes: of the values that have it.
    state_bytes: of the parameters and optimizer slots that have it. parameters: of each parameter leaf, its classes.
    stacked: classes that a scan runs over: they can be cut at rest but not while the scan reads.
    """

    flops: dict[int, float]
    value_bytes: dict[int, float]
    state_bytes: dict[int, float]
    parameters: tuple[tuple[int, ...], ...]
    stacked: frozenset[int]


def class_facts(program: Program, classes: Classes) -> ClassFacts:
    """Adds up the facts of every class."""
    flops: dict[int, float] = {}
    values: dict[int, float] = {}
    stacked: set[int] = set()
    for eqn, times in counted(program.block):
        if eqn.name == "scan":
            first = eqn.params["num_consts"] + eqn.params["num_carry"]
            stacked.update(classes.of[a][0] for a in eqn.invars[first:] if isinstance(a, Var))
        if eqn.blocks:
            continue
        facts = classes.facts[eqn]
        for v in eqn.outvars:
            for c in set(classes.of[v]):
                values[c] = values.get(c, 0.0) + times * v.aval.bytes
        for c in facts.cuttable:
            flops[c] = flops.get(c, 0.0) + times * facts.flops
    state: dict[int, float] = {}
    parameters = []
    for leaf, v in zip(program.inputs, program.block.invars, strict=True):
        if leaf.role in STATE:
            for c in set(classes.of[v]):
                state[c] = state.get(c, 0.0) + leaf.aval.bytes
        if leaf.role is Role.PARAMETER:
            parameters.append(classes.of[v])
    return ClassFacts(flops, values, state, tuple(parameters), frozenset(stacked))
