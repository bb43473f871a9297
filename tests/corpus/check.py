"""What must hold of a program under a plan: it computes the same, and sends what was predicted."""

import dataclasses
import functools

import jax
import numpy as np

from shardwright.cluster import parse
from shardwright.cost.estimate import estimate
from shardwright.partition import context, cuts
from shardwright.partition.device import DeviceProgram
from shardwright.partition.lower import partition
from shardwright.plan.decision import AxisPlan, Decision
from shardwright.program.capture import capture
from shardwright.program.ir import Program, Role
from shardwright.program.signature import bind_call, make_options
from shardwright.rules.classes import Classes, find_classes
from shardwright.run.devices import make_mesh
from shardwright.run.execute import compile_program
from shardwright.run.prove import prove_device
from shardwright.run.traffic import by_kind, traffic
from shardwright.search import candidates
from shardwright.search.facts import class_facts
from shardwright.search.search import lowered_for

SMALL_BYTES = 512


def small_leaves_are_cut(monkeypatch, least=SMALL_BYTES):
    """The corpus is small: what is kept whole at rest for being small must be smaller still."""
    for module in (context, cuts, candidates):
        monkeypatch.setattr(module, "SMALL_BYTES", least)


@dataclasses.dataclass(frozen=True)
class Traced:
    """A captured case."""

    program: Program
    classes: Classes
    args: tuple

    @functools.cached_property
    def values(self):
        return jax.tree.leaves(self.args)


def trace(case) -> Traced:
    call = bind_call(case.step, case.args, {}, make_options(donate_argnums=case.donate))
    program = capture(call.step, call.args, call.kwargs, names=call.names, donated=call.donated)
    return Traced(program, find_classes(program), call.args)


def forced(traced: Traced, devices=8) -> dict[str, Decision]:
    """Decisions that a search may or may not find: every usual kind of parallel training."""
    facts = class_facts(traced.program, traced.classes)
    batch = _batch(traced, facts)
    by_state = sorted({c for p in facts.parameters for c in p}, key=lambda c: (-facts.state_bytes.get(c, 0), c))
    large = [c for c in by_state if traced.classes.all[c].size > 1 and c != batch][:3]
    one = lambda n, compute: Decision((AxisPlan("x", n, compute),))  # noqa: E731
    found = {"batch": one(devices, (batch,)), "state": _stored(traced, facts, one(devices, (batch,)))}
    for rank, c in enumerate(large):
        found[f"parameter {rank}"] = one(devices, (c,))
    if devices % 2 == 0:
        found["two axes"] = _stored(
            traced, facts, Decision((AxisPlan("d", 2, (batch,)), AxisPlan("t", devices // 2, tuple(large[:1]))))
        )
    return found


def _batch(traced: Traced, facts) -> int:
    """Of the classes that no parameter has the one that cuts the most work: rows, or the rows of a micro-batch."""
    leaves = zip(traced.program.inputs, traced.program.block.invars, strict=True)
    first = [traced.classes.of[v][0] for leaf, v in leaves if leaf.role is Role.BATCH and leaf.aval.size > 1]
    inside = {c for p in facts.parameters for c in p}
    able = [c.id for c in traced.classes.all if c.id not in inside and c.size > 1]
    return max(able, key=lambda c: (facts.flops.get(c, 0), c in first[:1], c in first, -c))


def _stored(traced: Traced, facts, decision: Decision) -> Decision:
    axes = list(decision.axes)
    for i in range(len(axes)):
        axes[i] = candidates.with_store(traced.program, traced.classes, facts, axes, i, candidates.ALL_STATE)
    return dataclasses.replace(decision, axes=tuple(axes))


def holds(traced: Traced, device: DeviceProgram, steps=2):
    """Proves the per-device program and counts its collectives; returns the certificate."""
    sends_as_predicted(traced, device)
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        cert = prove_device(traced.program, device, make_mesh(device.mesh), traced.values, steps)
    finally:
        jax.config.update("jax_disable_most_optimizations", False)
    assert cert.ok, str(cert)
    assert cert.devices == int(np.prod(list(device.mesh.values())))
    return cert


def sends_as_predicted(traced: Traced, device: DeviceProgram):
    """XLA runs the collectives that were predicted: never more, and the bytes of each kind within 2 %."""
    size = int(np.prod(list(device.mesh.values())))
    predicted: dict[str, tuple[int, float]] = {}
    cluster = parse(f"cpu:{size}")
    for c in estimate(traced.program, lowered_for(cluster, device), cluster).collectives:
        times, sent = predicted.get(c.kind, (0, 0.0))
        predicted[c.kind] = (times + c.times, sent + c.bytes)
    run = compile_program(traced.program, device, make_mesh(device.mesh))
    counted = by_kind(traffic(run.compiled.as_text(), device.mesh))
    told = f"predicted {predicted}, counted {counted}"
    for kind in {*predicted, *counted}:
        (times, sent), (most, expected) = counted.get(kind, (0, 0.0)), predicted.get(kind, (0, 0.0))
        assert times <= most, f"more of {kind}: {told}"
        assert abs(sent - expected) <= 0.02 * expected, f"other bytes of {kind}: {told}"


def partitioned(traced: Traced, decision: Decision) -> DeviceProgram:
    return partition(traced.program, traced.classes, decision)
