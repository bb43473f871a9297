"""Memory and traffic of plans as the real compilers report them, beside the prediction and the best expert's.

    python -m benchmarks.ahead                                  # TPU v5p 2x2x2 and H100 1x8
    python -m benchmarks.ahead --target cpu:8 --model default

Every plan of `forced_plans.py`, and the plans that are found when the limit is the best expert's peak and when there is
none, is compiled by the target's own compiler; no device is needed. Claim: each is accepted, and the smallest peak is
at most 1.05 times that of the best expert there. `large` has 0.87 B parameters with remat; of the plans by name it has
only those that fit a device well.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import shardwright as sw
from benchmarks import gpt, measured, models
from benchmarks.expert_facts import programs
from benchmarks.experts import variant
from benchmarks.forced_plans import capture_step, forced_plans, predicted
from shardwright.run.targets import AheadError, compile_ahead
from shardwright.run.traffic import sent_bytes

TARGETS = ("tpu-v5p:2x2x2", "h100:1x8")
PEAK_LIMIT = 1.05
LARGE_SCHEMES = ("fsdp",)
LARGE_EXPERTS = ("fsdp by hand", "fsdp")
# The same scheme by an expert: ours must need no more memory than the best of these.
PEERS = {
    "dp": ("dp",),
    "zero1": ("zero1", "zero1 by hand"),
    "fsdp": ("fsdp", "fsdp by hand"),
    "tp": ("tp",),
    "tp_sp": ("tp_sp", "tensor_sequence by hand"),
    "dp_tp": ("dp_tp",),
    "fsdp_tp": ("fsdp_tp",),
}


def expert_facts(model: str, c: gpt.Config, target: str) -> dict[str, dict[str, float]]:
    """Expert -> what the target's compiler says of it."""
    found = {}
    for name, build, axes, _ in programs(c):
        if model == "large" and name not in LARGE_EXPERTS:
            continue
        models.progress(f"    expert {name}")
        ahead = compile_ahead(variant.lowerable(build, c, axes), target)
        found[name] = measured.memory_facts(ahead.memory, sent_bytes(ahead.collectives))
    return found


def plans(model: str, c: gpt.Config, target: str, best_peak: float) -> Iterator[tuple[str, sw.Plan]]:
    """Name -> plan: by name, and found."""
    for name, plan in forced_plans(capture_step(c), target).items():
        if model != "large" or name in LARGE_SCHEMES:
            yield name, plan
    step, arguments = gpt.program(c)
    for name, limit in (("found", None), ("found, tight", int(best_peak * PEAK_LIMIT))):
        try:
            yield name, sw.plan(step, *arguments, cluster=target, memory=limit, donate_argnums=0)
        except sw.InfeasibleError as error:
            models.progress(f"    {name}: {error}")


def plan_facts(plan: sw.Plan, target: str) -> dict[str, Any]:
    """Prediction and report of one plan; why it was refused if it was."""
    start = time.perf_counter()
    try:
        ahead = plan.compile(target)
    except AheadError as error:
        return {"accepted": False, "error": str(error)[:2000], "predicted": predicted(plan)}
    return {
        "accepted": True,
        "reported": measured.memory_facts(ahead.memory, sent_bytes(ahead.collectives)),
        "predicted": predicted(plan),
        "decision": repr(plan.record.program.decision.axes),
        "compile_seconds": time.perf_counter() - start,
    }


def of_target(model: str, target: str) -> dict[str, Any]:
    """Every plan of one model on one target."""
    c = models.MODELS[model]
    experts = expert_facts(model, c, target)
    best = min(experts.values(), key=lambda facts: facts["peak_bytes"])["peak_bytes"]
    rows: dict[str, Any] = {}
    for name, plan in plans(model, c, target, best):
        rows[name] = row = plan_facts(plan, target)
        if row["accepted"]:
            peak = row["reported"]["peak_bytes"]
            row["peak_to_best_expert"] = peak / best
            row["peak_to_peer"] = _to_peer(name, peak, experts)
        models.progress(f"    {name}: {_in_short(row)}")
    smallest = min((r["reported"]["peak_bytes"] for r in rows.values() if r["accepted"]), default=float("inf"))
    ok = all(r["accepted"] for r in rows.values()) and smallest <= PEAK_LIMIT * best
    return {
        "ok": ok,
        "best_expert_peak_bytes": best,
        "our_smallest_peak_bytes": smallest,
        "plans": rows,
        "experts": experts,
    }


def _to_peer(name: str, peak: float, experts: Mapping[str, Mapping[str, float]]) -> float | None:
    peers = [experts[peer]["peak_bytes"] for peer in PEERS.get(name, ()) if peer in experts]
    return peak / min(peers) if peers else None


def _in_short(row: Mapping[str, Any]) -> str:
    if not row["accepted"]:
        return f"REFUSED {row['error'][:200]}"
    told, said = row["predicted"], row["reported"]
    mega = [x / 1e6 for x in (told["peak_bytes"], said["peak_bytes"], told["sent_bytes"], said["sent_bytes"])]
    return "peak {:.1f} predicted, {:.1f} reported; sent {:.1f}, {:.1f} MB".format(*mega)


def main() -> None:
    options = models.parser(__doc__, "default", "deep", "large")
    options.add_argument("--target", action="append", help=f"default: {', '.join(TARGETS)}")
    asked = options.parse_args()
    models.start_virtual_devices()
    found: dict[str, Any] = {}
    for model in models.chosen(asked):
        for target in asked.target or TARGETS:
            models.progress(f"{model} on {target}")
            found.setdefault(model, {})[target] = of_target(model, target)
    models.report(found)


if __name__ == "__main__":
    main()
