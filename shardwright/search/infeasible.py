"""What to say when nothing fits."""

from __future__ import annotations

from shardwright.cluster import Cluster
from shardwright.plan.amounts import bytes_text
from shardwright.program.ir import Program
from shardwright.search.search import Solution


def infeasible_message(program: Program, solution: Solution, cluster: Cluster, limit: int) -> str:
    """Names the smallest peak that was found, what it consists of, and the pins that hold leaves whole."""
    best = min(solution.tried, key=lambda c: c.estimate.memory.peak_bytes)
    m = best.estimate.memory
    parts = sorted(((n, role) for role, n in m.by_role.items() if n), reverse=True)
    listed = ", ".join(f"{role} {bytes_text(n)}" for n, role in parts[:4])
    lines = [
        f"no plan for {cluster.name} fits {bytes_text(limit)} ({limit} bytes) a device: the smallest of "
        f"{len(solution.tried)} needs "
        f"{bytes_text(m.peak_bytes)} ({m.peak_bytes} bytes), of which {listed}."
    ]
    pinned = [
        (leaf.aval.bytes, leaf.name)
        for leaf in program.inputs
        if leaf.name in best.decision.pins and all(p == () for p in best.decision.pins[leaf.name]) and leaf.aval.ndim
    ]
    for size, name in sorted(pinned, reverse=True)[:3]:
        if size >= m.peak_bytes * 0.02:
            lines.append(f"The pin on {name} keeps {bytes_text(size)} ({size} bytes) whole on every device.")
    lines.append(
        f"The nearest budget that works is memory={m.peak_bytes}; or use more devices, a smaller batch, or more of the "
        "step under jax.checkpoint."
    )
    return "\n".join(lines)
