"""`shardwright plan`: find a plan, print it, save it."""

from __future__ import annotations

import argparse

import shardwright as sw
from shardwright.cli import facts, load, options
from shardwright.cli.outcome import Outcome
from shardwright.cli.phases import phase
from shardwright.plan import files

HELP = "find how to run a step on many devices; no device is needed"
EXAMPLE = "example: shardwright plan train.py:program --cluster h100:2x8 --memory 80GB --donate 0 --output plan.json"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the subcommand's options."""
    options.add_program(parser)
    options.add_planning(parser)
    parser.add_argument("--output", metavar="PLAN.json", help="save the plan there")
    parser.add_argument(
        "--program",
        dest="show_program",
        action="store_true",
        help="also print the program of one device: every collective with its bytes and your source line",
    )
    options.add_json(parser)


def run(chosen: argparse.Namespace) -> Outcome:
    """Plans, and saves where asked."""
    if chosen.output:
        files.check_place(chosen.output)
    with phase(f"Loading {chosen.program}"):
        loaded = load.load(chosen.program)
    with phase("Planning"):
        plan = sw.plan(loaded.step, *loaded.args, **options.planning_arguments(chosen))
    found, text = facts.plan_facts(plan), str(plan)
    if chosen.show_program:
        found["program"] = plan.program()
        text = f"{text}\n\n{found['program']}"
    if chosen.output:
        plan.save(chosen.output)
        found["file"] = chosen.output
        text = f"{text}\n\nSaved as {chosen.output}."
    return Outcome(text, found)
