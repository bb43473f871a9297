"""One fuzzed program under one drawn decision against one device."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
import pytest

from shardwright import _compat
from shardwright.cluster import parse
from shardwright.cost.estimate import estimate
from shardwright.partition.device import DeviceProgram
from shardwright.partition.lower import partition
from shardwright.plan.decision import AxisPlan, Decision
from shardwright.program.capture import capture
from shardwright.program.ir import Program, Role
from shardwright.report.prices import prices
from shardwright.rules.classes import Classes, find_classes
from shardwright.run.devices import make_mesh
from shardwright.run.execute import compile_program
from shardwright.search.search import lowered_for
from tests.corpus.check import small_leaves_are_cut
from tests.fuzz import devices, reference
from tests.fuzz.operations import choose, coin
from tests.fuzz.programs import Case, Step, draw_spec

TOLERANCE = 1e-9
"""Of float64 results, against the largest element of the leaf."""
_RESTS = (frozenset({Role.PARAMETER, Role.OPTIMIZER}), frozenset({Role.OPTIMIZER}), frozenset(Role))


@dataclasses.dataclass(frozen=True)
class Traced:
    """A case as the planner sees it, with its arguments and what one device makes of them."""

    case: Case
    program: Program
    classes: Classes
    values: list[Any]

    @functools.cached_property
    def wanted(self) -> list[Any]:
        closed = jax.make_jaxpr(self.case.step)(*self.case.arguments())
        with np.errstate(all="ignore"):
            return reference.evaluate(closed, self.values)


def trace(case: Case) -> Traced:
    """Captures a case; to be called with 64-bit types on."""
    args = case.arguments()
    program = capture(case.step, args, {}, names=("state", "batch"), donated=("state",) if case.seed % 2 else ())
    return Traced(case, program, find_classes(program), jax.tree.leaves(args))


def draw_decision(traced: Traced) -> Decision:
    """Any classes on any axes in any order, leaves pinned or not."""
    rng = np.random.default_rng([traced.case.seed, 1])
    able = [c.id for c in traced.classes.all if c.size > 1]
    axes = []
    for axis, size in traced.case.mesh.items():
        drawn = [int(c) for c in rng.permutation(able)]
        most = int(rng.integers(0, 5))
        store = drawn[most : most + int(rng.integers(0, 4))]
        axes.append(AxisPlan(axis, size, tuple(drawn[:most]), tuple(store), choose(rng, _RESTS)))
    pins = {}
    for leaf in traced.program.inputs:
        if rng.random() < 0.2:
            spec = draw_spec(rng, leaf.aval.shape, traced.case.mesh)
            pins[leaf.name] = tuple((a,) if a else choose(rng, [None, ()]) for a in spec)
    return Decision(tuple(axes), pins, partial_carries=coin(rng), regather=coin(rng))


def partitioned(traced: Traced, decision: Decision) -> DeviceProgram:
    """The per-device program, state cut however small it is."""
    with pytest.MonkeyPatch.context() as patch:
        small_leaves_are_cut(patch, 16)
        return partition(traced.program, traced.classes, decision)


def in_simulation(traced: Traced, device: DeviceProgram) -> list[Any]:
    return devices.run(device, traced.values)


def in_xla(traced: Traced, device: DeviceProgram) -> list[Any]:
    run = compile_program(traced.program, device, make_mesh(device.mesh))
    return [np.asarray(x) for x in run([np.array(v) for v in traced.values])]


def check(case: Case, run: Callable[[Traced, DeviceProgram], list[Any]] = in_simulation) -> DeviceProgram:
    """Draws a decision, prices and runs the program under it, and compares.

    Raises:
      AssertionError: the results differ; anything else: the planner or the program broke.
    """
    with jax.enable_x64(True):
        traced = trace(case)
        device = partitioned(traced, draw_decision(traced))
        cluster = parse(f"cpu:{math.prod(case.mesh.values())}")
        if case.seed % 2:
            device = lowered_for(cluster, device)
        prices(device, estimate(traced.program, device, cluster))
        got = run(traced, device)
        for leaf, a, b in zip(traced.program.outputs, got, traced.wanted, strict=True):
            compare(leaf.name, a, b)
        return device


def compare(name: str, got: Any, wanted: Any) -> None:
    assert got.shape == wanted.shape and got.dtype == wanted.dtype, (
        f"{name}: {got.dtype}{got.shape}, not {wanted.dtype}{wanted.shape}"
    )
    if not wanted.size:
        return
    if not _compat.is_extended(wanted.dtype) and np.issubdtype(wanted.dtype, np.inexact):
        scale = np.max(np.abs(wanted), where=np.isfinite(wanted), initial=1e-3)
        np.testing.assert_allclose(got, wanted, rtol=TOLERANCE, atol=TOLERANCE * scale, err_msg=name)
    else:
        np.testing.assert_array_equal(got, wanted, err_msg=name)


# --- smaller programs -------------------------------------------------------------------------------------------------


def failure(case: Case, run: Callable = in_simulation) -> str | None:
    """What goes wrong, in a line, or None."""
    try:
        check(case, run)
    except Exception as error:
        text = " ".join(str(error).split())
        return f"{type(error).__name__}: {text[:300]}"
    return None


def smaller(case: Case) -> Iterator[Case]:
    """Cases with one step less, a body less deep, no gradient."""
    if case.gradient:
        yield dataclasses.replace(case, gradient=False)
    for steps in _fewer(case.steps, len(case.state) + len(case.batch) + len(case.ids)):
        yield dataclasses.replace(case, steps=steps)


def _fewer(steps: Sequence[Step], given: int) -> Iterator[tuple[Step, ...]]:
    for i in reversed(range(len(steps))):
        cut = _without(steps, i, given)
        if cut is not None:
            yield cut
    for i, step in enumerate(steps):
        for k, body in enumerate(step.bodies):
            inner = len(step.args)
            for less in _fewer(body, inner):
                bodies = (*step.bodies[:k], less, *step.bodies[k + 1 :])
                yield (*steps[:i], dataclasses.replace(step, bodies=bodies), *steps[i + 1 :])


def _without(steps: Sequence[Step], position: int, given: int) -> tuple[Step, ...] | None:
    """`steps` without one whose results nobody reads; results are counted by what the steps say they make."""
    counts = [_number_of_results(s) for s in steps]
    first = given + sum(counts[:position])
    gone = range(first, first + counts[position])
    if any(a in gone for s in steps[position + 1 :] for a in s.args):
        return None
    shifted = [
        dataclasses.replace(s, args=tuple(a - counts[position] if a >= first else a for a in s.args))
        for s in steps[position + 1 :]
    ]
    return (*steps[:position], *shifted)


def _number_of_results(step: Step) -> int:
    return 2 if step.name in ("scan", "remat", "split") else 1


def shrink(case: Case, run: Callable = in_simulation, tries: int = 150) -> Case:
    """The smallest case found that fails likewise."""
    wanted = (failure(case, run) or "").split(":")[0]
    while tries > 0:
        for less in smaller(case):
            tries -= 1
            found = failure(less, run)
            if found is not None and found.split(":")[0] == wanted:
                case = less
                break
            if tries <= 0:
                return case
        else:
            return case
    return case
