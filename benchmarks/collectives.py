"""The collectives predicted for a plan against those that XLA's compiled program runs.

    python -m benchmarks.collectives                    # on 8 virtual CPU devices
    python -m benchmarks.collectives --target h100:1x8  # gradient reductions by that target's compiler, too

For each plan, kind and mesh axes: bytes that one device sends in one step, which must agree within 2 %, and how often a
collective runs, which may be less than predicted (XLA merges some) but not more.

Then the gradient reductions: data parallelism all-reduces every gradient; where the consumer is cut (ZeRO-1, FSDP) it
is a reduce-scatter, of half the bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchmarks import models
from benchmarks.forced_plans import CapturedStep, capture_step, forced_plans
from shardwright._plan import Plan
from shardwright.run.traffic import Collective, traffic

BYTES_TOLERANCE = 0.02
REDUCTIONS = (("dp", "zero1", "x"), ("dp", "fsdp", "x"), ("dp_tp", "fsdp_tp", "d"))  # update whole, cut, batch's axis
Totals = dict[str, list[float]]  # "kind axes" -> [executions, bytes sent by one device]


def compare(plan: Plan, counted: Iterable[Collective]) -> dict[str, Any]:
    """Predicted and counted executions and bytes of each kind on each set of axes, and whether they agree."""
    ours, theirs = predicted_totals(plan), counted_totals(counted)
    rows = {}
    for key in sorted({*ours, *theirs}):
        (times, size), (seen, sent) = ours.get(key, [0, 0.0]), theirs.get(key, [0, 0.0])
        rows[key] = {
            "predicted_times": times,
            "counted_times": seen,
            "predicted_bytes": size,
            "counted_bytes": sent,
            "ok": abs(size - sent) <= BYTES_TOLERANCE * max(size, sent) and seen <= times,
        }
    return {
        "ok": all(row["ok"] for row in rows.values()),
        "predicted_bytes": sum(size for _, size in ours.values()),
        "counted_bytes": sum(sent for _, sent in theirs.values()),
        "rows": rows,
    }


def predicted_totals(plan: Plan) -> Totals:
    """What the plan's record says, groups of one device left out."""
    totals: Totals = {}
    for row in plan.estimate.collectives:
        named = set(row.axis.split("+"))
        if row.bytes:
            _add(totals, row.kind, [axis for axis in plan.mesh if axis in named], row.times, row.bytes)
    return totals


def counted_totals(rows: Iterable[Collective]) -> Totals:
    """What the compiled program's text says."""
    totals: Totals = {}
    for row in rows:
        if row.sent_bytes:
            _add(totals, row.kind, row.axes or ("?",), row.times, row.sent_bytes)
    return totals


def _add(totals: Totals, kind: str, axes: Iterable[str], times: int, size: float) -> None:
    total = totals.setdefault(f"{kind} {'+'.join(axes)}", [0, 0.0])
    total[0] += times
    total[1] += size


def counted_on_cpu(plan: Plan) -> tuple[Collective, ...]:
    """The collectives of the program that XLA's CPU compiler makes of a plan."""
    return traffic(plan.compile().compiled.as_text(), plan.mesh)


def gradient_reduction(whole: Totals, cut: Totals, axis: str) -> dict[str, Any]:
    """Bytes that the gradients' reductions over `axis` send, and whether the cut plan's are reduce-scatters of half.

    Args:
        whole: what the plan sends that updates every weight on every device of the axis.
        cut: what the one sends whose update is cut on it.
        axis: the mesh axis of the batch.
    """
    reduced, scattered, left = (
        totals.get(f"{kind} {axis}", [0, 0.0])[1]
        for totals, kind in ((whole, "all_reduce"), (cut, "reduce_scatter"), (cut, "all_reduce"))
    )
    halved = abs(2 * scattered - reduced) <= BYTES_TOLERANCE * reduced
    return {
        "whole_all_reduce_bytes": reduced,
        "cut_reduce_scatter_bytes": scattered,
        "cut_all_reduce_bytes": left,
        # A number such as the loss may be left to all-reduce.
        "ok": halved and left <= 0.001 * reduced,
    }


def of_step(step: CapturedStep, devices: int, targets: Iterable[str]) -> dict[str, Any]:
    """Both claims for one model."""
    cluster = f"cpu:{devices}"
    plans = forced_plans(step, cluster)
    counted, compared = {}, {}
    for name, plan in plans.items():
        counted[name] = counted_on_cpu(plan)
        compared[name] = compare(plan, counted[name])
        models.progress(f"  {name}: {'ok' if compared[name]['ok'] else 'DIFFERS'}")
    reductions = {cluster: _reductions(counted)}
    for target in targets:
        models.progress(f"  {target}")
        reduced = sorted({name for *pair, _ in REDUCTIONS for name in pair if name in plans})
        ahead = {name: plans[name].compile(target).collectives for name in reduced}
        reductions[target] = _reductions(ahead)
    return {"plans": compared, "gradient_reductions": reductions}


def _reductions(rows: dict[str, tuple[Collective, ...]]) -> dict[str, Any]:
    totals = {name: counted_totals(each) for name, each in rows.items()}
    return {
        cut: gradient_reduction(totals[whole], totals[cut], axis)
        for whole, cut, axis in REDUCTIONS
        if whole in totals and cut in totals
    }


def main() -> None:
    options = models.parser(__doc__, "default", "deep")
    options.add_argument("--devices", type=int, default=models.VIRTUAL_DEVICES)
    options.add_argument("--target", action="append", default=[], help="as h100:1x8, of as many devices")
    asked = options.parse_args()
    models.start_virtual_devices(asked.devices)
    found = {}
    for model in models.chosen(asked):
        models.progress(model)
        found[model] = of_step(capture_step(models.MODELS[model]), asked.devices, asked.target)
    models.report(found)


if __name__ == "__main__":
    main()
