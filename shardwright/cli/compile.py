"""`shardwright compile`: what a compiler makes of a plan, on this machine or for a target that is not here."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from shardwright.cli import facts, load, options
from shardwright.cli.outcome import Outcome
from shardwright.cli.phases import phase
from shardwright.cli.planned import add_saved_plan, plan_for
from shardwright.plan.amounts import bytes_text
from shardwright.run import traffic
from shardwright.train.closing import peak_bytes

HELP = "compile a plan and report its memory and collectives as the compiler sees them"
EXAMPLE = "example: shardwright compile train.py:program --plan plan.json --target h100:2x8"

_MAX_ROWS = 20  # of collectives, printed; --json has them all


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the subcommand's options."""
    options.add_program(parser)
    add_saved_plan(parser)
    options.add_planning(parser)
    parser.add_argument(
        "--target",
        metavar="NAME",
        help="compile ahead of time with this target's own compiler, as tpu-v5p:2x2x2 or h100:1x8; no such device is "
        "needed. Default: the attached devices",
    )
    parser.add_argument("--text", metavar="FILE", help="write the compiled program there")
    options.add_json(parser)


def run(chosen: argparse.Namespace) -> Outcome:
    """Plans or reads a plan, and compiles it."""
    with phase(f"Loading {chosen.program}"):
        loaded = load.load(chosen.program)
    plan = plan_for(chosen, loaded)
    with phase(f"Compiling for {chosen.target or 'the attached devices'}"):
        peak, collectives, text = _ahead(plan, chosen.target) if chosen.target else _here(plan)
    if chosen.text:
        Path(chosen.text).write_text(text)
    reported = facts.compiled_facts(peak, collectives)
    predicted = {"peak_bytes": plan.estimate.memory.peak_bytes, "sent_bytes": plan.estimate.bytes_sent}
    found = {"target": chosen.target, "text": chosen.text, "predicted": predicted, **reported}
    return Outcome(_table(found), found)


def _ahead(plan: Any, target: str) -> tuple[float, Any, str]:
    ahead = plan.compile(target=target)
    return ahead.memory.peak_bytes, ahead.collectives, ahead.text


def _here(plan: Any) -> tuple[float, Any, str]:
    compiled = plan.compile().compiled
    text = compiled.as_text()
    return peak_bytes(compiled), traffic.traffic(text, dict(plan.mesh)), text


def _table(found: dict[str, Any]) -> str:
    predicted = found["predicted"]
    lines = [f"{'':<28}{'predicted':>14}{'compiler':>14}"]
    for title, name in (("memory of one device", "peak_bytes"), ("sent by one device a step", "sent_bytes")):
        lines.append(f"{title:<28}{bytes_text(predicted[name]):>14}{bytes_text(found[name]):>14}")
    rows = sorted(found["collectives"], key=lambda row: -row["bytes"])
    lines += ["", "collectives of the compiled program, largest first:" if rows else "no collectives"]
    for row in rows[:_MAX_ROWS]:
        axes = "+".join(row["axes"]) if row["axes"] else "?"
        head = f"  {row['kind']:<15}{axes:<8}x{row['times']:<6}{bytes_text(row['bytes']):>9}"
        lines.append(f"{head}  {row['source'] or row['scope']}".rstrip())
    if rest := rows[_MAX_ROWS:]:
        lines.append(f"  {f'and {len(rest)} smaller':<30}{bytes_text(sum(row['bytes'] for row in rest)):>9}")
    return "\n".join(lines)
