"""`shardwright prove`: run a plan beside one device and compare every leaf."""

from __future__ import annotations

import argparse

import shardwright as sw
from shardwright.cli import load, options
from shardwright.cli.outcome import Exit, Outcome
from shardwright.cli.phases import phase
from shardwright.cli.planned import add_saved_plan, plan_for
from shardwright.train.closing import certificate_facts

HELP = "prove that a plan computes what one device computes; exit code 1 if it does not"
EXAMPLE = "example: shardwright prove train.py:program --cluster cpu:8 --memory 2GB --donate 0"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the subcommand's options."""
    options.add_program(parser)
    add_saved_plan(parser)
    options.add_planning(parser)
    parser.add_argument(
        "--steps", metavar="N", type=options.count, default=3, help="steps that both run (default: %(default)s)"
    )
    options.add_json(parser)


def run(chosen: argparse.Namespace) -> Outcome:
    """Plans or reads a plan, and proves it."""
    with phase(f"Loading {chosen.program}"):
        loaded = load.load(chosen.program)
    plan = plan_for(chosen, loaded)
    with phase(f"Proving {chosen.steps} steps"):
        certificate = sw.prove(plan, loaded.step, *loaded.args, steps=chosen.steps)
    code = Exit.OK if certificate.ok else Exit.NOT_PROVEN
    return Outcome(str(certificate), certificate_facts(certificate), code)
