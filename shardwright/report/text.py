"""A plan as text, at most 100 columns wide: what `print(plan)` shows. It reads the record alone and needs no step."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from shardwright.plan.amounts import bytes_text, flops_text, percent_text, seconds_text
from shardwright.plan.record import CollectiveRecord, PlanRecord
from shardwright.report.leaves import leaf_lines
from shardwright.report.sources import short_classes

WIDTH = 100
MAX_COLLECTIVES = 16
MAX_CANDIDATES = 6
ROLE_ORDER = ("parameter", "optimizer", "batch", "key", "scalar", "result", "temporary")


def plan_text(record: PlanRecord) -> str:
    """The plan for a reader: mesh, classes, leaves, memory, collectives, seconds, warnings, what lost and why."""
    sections = [
        _head(record),
        _axes(record),
        leaf_lines(record, WIDTH),
        _memory(record),
        _collectives(record.estimate.collectives),
        _warnings(record),
        _candidates(record),
        _notes(record),
    ]
    return "\n\n".join("\n".join(lines) for lines in map(list, sections) if lines)


def _head(record: PlanRecord) -> Iterator[str]:
    e = record.estimate
    mesh = " × ".join(f"{axis}={size}" for axis, size in record.mesh.items()) or "one device"
    devices = f"{record.num_devices} device{'s' * (record.num_devices != 1)}"
    yield f"Plan of {record.program.name!r} for {record.cluster}: mesh {mesh}, {devices}"
    yield f"  least {record.objective} within {bytes_text(record.memory_limit_bytes)} a device"
    yield (
        f"  predicted step  {seconds_text(e.seconds)} = compute {seconds_text(e.compute_seconds)} + communication "
        f"{seconds_text(e.collective_seconds)}; {flops_text(e.flops)} a device"
    )


def _axes(record: PlanRecord) -> Iterator[str]:
    program = record.program
    short = short_classes(program.classes)

    def listed(names: Sequence[str]) -> str:
        return ", ".join(f"{short[n]} ({program.classes[n]})" if n in short else n for n in names)

    for plan in program.decision.axes:
        parts = []
        if plan.compute:
            parts.append(f"cuts {listed(plan.compute)}")
        if plan.store:
            parts.append(f"at rest, and where none of these occurs, {listed(plan.store)} ({', '.join(plan.rest)})")
        text = "; ".join(parts) or "cuts nothing"
        yield from _wrapped(text, f"axis {plan.axis} of {plan.size}  ")
    for name, dims in program.decision.pins.items():
        text = ", ".join("free" if d is None else "+".join(d) or "whole" for d in dims)
        yield from _wrapped(f"{name} on ({text})", "pinned  ")


def _memory(record: PlanRecord) -> Iterator[str]:
    m, limit = record.estimate.memory, record.memory_limit_bytes
    share = f" ({percent_text(m.peak_bytes / limit)})" if limit else ""
    over = "" if m.peak_bytes <= limit else "  OVER THE LIMIT"
    yield f"Memory of one device: {bytes_text(m.peak_bytes)} of {bytes_text(limit)}{share}{over}"
    roles = sorted(m.by_role, key=lambda r: (ROLE_ORDER.index(r) if r in ROLE_ORDER else len(ROLE_ORDER), r))
    for role in roles:
        if m.by_role[role]:
            yield f"  {role:<12}{bytes_text(m.by_role[role]):>10}  {percent_text(m.by_role[role] / m.peak_bytes):>6}"


def _collectives(rows: Sequence[CollectiveRecord]) -> Iterator[str]:
    """By source line, kind and axis; the most bytes first."""
    if not rows:
        yield "Collectives: none"
        return
    total, seconds = sum(c.bytes for c in rows), sum(c.seconds for c in rows)
    yield f"Collectives: each device sends {bytes_text(total)} in a step, {seconds_text(seconds)}"
    yield f"  {'kind':<15}{'axis':<7}{'times':>6}{'bytes':>10}{'seconds':>10}  {'source':<24}for"
    groups: dict[tuple[str, str, str], list[CollectiveRecord]] = {}
    for c in rows:
        groups.setdefault((c.source, c.kind, c.axis), []).append(c)
    ranked = sorted(groups.items(), key=lambda g: (-sum(c.bytes for c in g[1]), g[0]))
    for (source, kind, axis), group in ranked[:MAX_COLLECTIVES]:
        yield _row(kind, axis, group, source, ", ".join(dict.fromkeys(c.why for c in group if c.why)))
    rest = [c for _, group in ranked[MAX_COLLECTIVES:] for c in group]
    if rest:
        yield _row("all others", "", rest, f"{len(ranked) - MAX_COLLECTIVES} more lines", "")


def _row(kind: str, axis: str, group: Sequence[CollectiveRecord], source: str, why: str) -> str:
    times, sent, seconds = (sum(getattr(c, f) for c in group) for f in ("times", "bytes", "seconds"))
    place = source or "(inside jax)"
    if len(place) > 23:
        place = f"…{place[-22:]}"
    line = f"  {kind:<15}{axis:<7}{times:>6}{bytes_text(sent):>10}{seconds_text(seconds):>10}  {place:<24}{why}"
    return line.rstrip() if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…"


def _warnings(record: PlanRecord) -> Iterator[str]:
    if record.warnings:
        yield f"Warnings: {len(record.warnings)}"
    for warning in record.warnings:
        yield from _wrapped(str(warning), f"  {warning.kind}: ", indent="    ")


def _candidates(record: PlanRecord) -> Iterator[str]:
    if not record.searched:
        return
    yield "Not taken"
    for c in record.searched[:MAX_CANDIDATES]:
        priced = [
            f"{seconds_text(c.seconds)} a step" if c.seconds is not None else "",
            f"{bytes_text(c.peak_bytes)} a device" if c.peak_bytes is not None else "",
            f"{bytes_text(c.bytes_sent)} sent" if c.bytes_sent is not None else "",
        ]
        facts = ", ".join(p for p in priced if p) or "not priced"
        yield from _wrapped(f"{c.text}: {facts}. {c.reason}", "  ", indent="    ")
    if len(record.searched) > MAX_CANDIDATES:
        yield f"  and {len(record.searched) - MAX_CANDIDATES} more"


def _notes(record: PlanRecord) -> Iterator[str]:
    for note in record.notes:
        yield from _wrapped(note, "note: ", indent="  ")


def _wrapped(text: str, head: str, indent: str = "    ") -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=head, subsequent_indent=indent, break_on_hyphens=False)
