"""Plans and compiled programs as JSON types."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from typing import Any

import jax
from jax.sharding import PartitionSpec as P


def plan_facts(plan: Any) -> dict[str, Any]:
    """Returns what a plan decides and what it is predicted to cost."""
    estimate = plan.estimate
    return {
        "mesh": dict(plan.mesh),
        "seconds": estimate.seconds,
        "peak_bytes": estimate.memory.peak_bytes,
        "memory_by_role": dict(estimate.memory.by_role),
        "sent_bytes": estimate.bytes_sent,
        "collectives": [dataclasses.asdict(c) for c in estimate.collectives],
        "inputs": spec_facts(plan.inputs),
        "outputs": spec_facts(plan.outputs),
        "warnings": [dataclasses.asdict(w) for w in plan.warnings],
    }


def compiled_facts(peak_bytes: float, collectives: Iterable[Any]) -> dict[str, Any]:
    """Returns what a compiler reports: memory of one device and the collectives of one run."""
    rows = [
        {"kind": c.kind, "axes": c.axes, "bytes": c.sent_bytes, "times": c.times, "source": c.source, "scope": c.scope}
        for c in collectives
    ]
    return {"peak_bytes": peak_bytes, "sent_bytes": sum(r["bytes"] for r in rows), "collectives": rows}


def spec_facts(specs: Any) -> dict[str, Any]:
    """Returns path → one entry a dim: null where it is whole, else the names of its axes."""
    leaves = jax.tree_util.tree_leaves_with_path(specs, is_leaf=lambda x: isinstance(x, P))
    return {jax.tree_util.keystr(path): [_entry(e) for e in spec] for path, spec in leaves}


def to_json(facts: Any) -> str:
    """Returns one JSON object; numbers of numpy's types are written as plain ones."""
    return json.dumps(facts, indent=2, default=_plain)


def _entry(entry: Any) -> list[str] | None:
    if entry is None:
        return None
    return [entry] if isinstance(entry, str) else list(entry)


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else str(value)
