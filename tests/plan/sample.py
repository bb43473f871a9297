"""A small plan record, made by hand: two axes, one weight, one batch."""

from __future__ import annotations

from shardwright.plan.decision import AxisPlan, Decision
from shardwright.plan.named import by_name
from shardwright.plan.record import (
    CandidateRecord,
    CollectiveRecord,
    EstimateRecord,
    LeafRecord,
    MemoryRecord,
    PlanRecord,
    PlanWarning,
    ProgramRecord,
)
from shardwright.program.ir import Role

NAMES = {0: "batch", 1: "state['w'].0", 2: "state['w'].1"}
SIZES = {"batch": 64, "state['w'].0": 512, "state['w'].1": 1024}


def decision() -> Decision:
    return Decision(
        (AxisPlan("d", 2, (0,), (1,), frozenset({Role.OPTIMIZER, Role.PARAMETER})), AxisPlan("t", 4, (2,))),
        {"batch['x']": (("d",), None)},
    )


def estimate(seconds: float = 0.0125, peak_bytes: int = 3_000_000) -> EstimateRecord:
    rows = (
        CollectiveRecord("all_gather", "d", 262144.0, 2, 0.004, "model.py:12", "dot_general", (512, 256), "float32"),
        CollectiveRecord("reduce_scatter", "d", 131072.0, 1, 0.002, "", "mul", (256, 256), "float32"),
        CollectiveRecord("all_gather", "d", 1000.0, 1, 0.0005, "model.py:12", "add", (512, 256), "float32"),
    )
    memory = MemoryRecord(
        peak_bytes,
        270_000,
        270_000,
        262_144,
        peak_bytes - 270_000,
        {"parameter": 262_144, "batch": 4096, "temporary": peak_bytes - 270_000},
    )
    return EstimateRecord(seconds, seconds - 0.0065, 0.0065, 2.5e9, 394216.0, memory, rows)


def record(**changes) -> PlanRecord:
    w = LeafRecord(
        "state['w']", (512, 1024), "float32", "parameter", ("state['w'].0", "state['w'].1"), (("d",), ("t",)), True
    )
    x = LeafRecord("batch['x']", (64, 512), "bfloat16", "batch", ("batch", "state['w'].0"), (("d",), ()))
    loss = LeafRecord("out[1]", (), "float32", "result", (), ())
    new = LeafRecord("out[0]['w']", w.shape, w.dtype, w.role, w.dims, w.spec)
    program = ProgramRecord("step", (("d", 2), ("t", 4)), by_name(decision(), NAMES), SIZES, (w, x), (new, loss))
    fields = {
        "fingerprint": "0123456789abcdef",
        "package_version": "0.1.0",
        "jax_version": "0.10.2",
        "cluster": "cpu:8",
        "num_devices": 8,
        "memory_limit_bytes": 4_000_000,
        "objective": "seconds",
        "programs": (program,),
        "estimate": estimate(),
        "warnings": (
            PlanWarning(
                "fallback", "'sort' runs whole on every device", "Pin its operand.", "model.py:30", 5000.0, 0.001
            ),
        ),
        "searched": (
            CandidateRecord("d=8: batch", 0.02, 2_000_000, 5e6, True, "slower"),
            CandidateRecord("t=8: state['w'].1", None, None, None, False, "batch does not divide"),
        ),
        "notes": ("traced in two parts",),
    }
    return PlanRecord(**{**fields, **changes})
