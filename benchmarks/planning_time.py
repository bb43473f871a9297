"""How long planning takes, tracing included.

    python -m benchmarks.planning_time

`sw.plan` of the 12-layer model takes under 5 s on a quiet machine of two cores. CPU seconds stand beside the clock's:
on a machine with other work the clock tells of that work. The first call in a process also loads what jax loads at its
first trace. Then the same once more in parts: tracing with classes, and search, with the candidates that it priced.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import shardwright as sw
from benchmarks import gpt, models
from benchmarks.forced_plans import capture_step
from shardwright.cluster import parse
from shardwright.search.search import search

LIMIT_SECONDS = 5.0
CLUSTERS = ("cpu:8", "tpu-v5p:2x2x2", "h100:1x8")


def clocked(work: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """What `work` returns, and its seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    cpu_seconds, wall_seconds = time.process_time() - cpu, time.perf_counter() - wall
    return result, {"wall_seconds": wall_seconds, "cpu_seconds": cpu_seconds}


def of_cluster(c: gpt.Config, cluster: str) -> dict[str, Any]:
    """Planning as a user does it, then in parts."""
    step, arguments = gpt.program(c)
    _, whole = clocked(lambda: sw.plan(step, *arguments, cluster=cluster, donate_argnums=0))
    captured, tracing = clocked(lambda: capture_step(c))
    where = parse(cluster)
    limit = where.device.memory_bytes
    solution, searching = clocked(lambda: search(captured.program, captured.classes, where, limit=limit))
    return {
        "plan": whole,
        "tracing_and_classes": tracing,
        "search": searching,
        "candidates_priced": len(solution.tried),
        "ok": min(whole.values()) < LIMIT_SECONDS,
    }


def main() -> None:
    options = models.parser(__doc__, "deep")
    options.add_argument("--cluster", action="append", help=f"default: {', '.join(CLUSTERS)}")
    asked = options.parse_args()
    models.start_virtual_devices()
    found: dict[str, Any] = {"load_average": os.getloadavg()[0], "cores": os.cpu_count()}
    for model in models.chosen(asked):
        for cluster in asked.cluster or CLUSTERS:
            row = of_cluster(models.MODELS[model], cluster)
            found.setdefault(model, {})[cluster] = row
            wall, cpu = row["plan"].values()
            count = row["candidates_priced"]
            models.progress(f"{model} {cluster}: {wall:.1f} s by the clock, {cpu:.1f} s of CPU, {count} candidates")
    models.report(found)


if __name__ == "__main__":
    main()
