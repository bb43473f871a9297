"""The decisions that a search priced and did not take, with why they lost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shardwright.cost.estimate import Estimate
from shardwright.plan.amounts import bytes_text, percent_text
from shardwright.plan.decision import AxisPlan, Decision
from shardwright.plan.record import CandidateRecord
from shardwright.report.sources import short_classes
from shardwright.rules.classes import Classes

MAX_RECORDED = 12


def searched_of(
    tried: Iterable[tuple[Decision, Estimate]],
    taken: tuple[Decision, Estimate],
    classes: Classes,
    *,
    limit_bytes: int,
    objective: str = "seconds",
    count: int = MAX_RECORDED,
) -> tuple[CandidateRecord, ...]:
    """The best of `tried` but the one that was taken, as a plan records them.

    Args:
        tried: Decisions with their prices, the best first.
        taken: The plan.
        classes: Of the program.
        limit_bytes: Memory of one device.
        objective: "seconds", "memory" or "bytes".
        count: How many at the most; of those that read alike the first one counts.
    """
    short = short_classes(c.name for c in classes.all)
    names = {c.id: short[c.name] for c in classes.all}
    seen = {decision_text(taken[0], names)}
    found: list[CandidateRecord] = []
    for decision, price in tried:
        text = decision_text(decision, names)
        if text in seen or len(found) == count:
            continue
        seen.add(text)
        feasible = price.memory.peak_bytes <= limit_bytes
        reason = _lost(price, taken[1], limit_bytes, objective)
        found.append(
            CandidateRecord(
                text, float(price.seconds), int(price.memory.peak_bytes), float(price.bytes_sent), feasible, reason
            )
        )
    return tuple(found)


def decision_text(decision: Decision, names: Mapping[int, str]) -> str:
    """As in 'd=2: batch, at rest width (optimizer) | t=4: heads, hidden'.

    Args:
        decision: What each axis cuts.
        names: Class id → name.
    """
    text = " | ".join(f"{a.axis}={a.size}: {_axis_text(a, names)}" for a in decision.axes) or "one device"
    text = text if decision.partial_carries else f"{text}; accumulators reduced in every turn"
    return f"{text}; gathered again for the backward" if decision.regather else text


def _axis_text(axis: AxisPlan, names: Mapping[int, str]) -> str:
    parts = [", ".join(names[c] for c in axis.compute)] * bool(axis.compute)
    if axis.store:
        stored, roles = ", ".join(names[c] for c in axis.store), ", ".join(sorted(r.value for r in axis.rest))
        parts.append(f"at rest {stored} ({roles})")
    return ", ".join(parts) or "nothing"


def _lost(price: Estimate, best: Estimate, limit_bytes: int, objective: str) -> str:
    over = price.memory.peak_bytes - limit_bytes
    if over > 0:
        return f"Does not fit: {bytes_text(over)} over the limit"
    if objective == "memory":
        mine, its, words = float(price.memory.peak_bytes), float(best.memory.peak_bytes), "more memory"
    elif objective == "bytes":
        mine, its, words = price.bytes_sent, best.bytes_sent, "more sent"
    else:
        mine, its, words = price.seconds, best.seconds, "slower"
    if its and mine > its:
        return f"{percent_text(mine / its - 1)} {words}"
    return f"No better by {objective}" if mine == its else f"Better by {objective}, not by all that the search weighs"
