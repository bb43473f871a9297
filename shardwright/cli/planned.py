"""A plan for the user's step: a saved one, or one found now."""

from __future__ import annotations

import argparse
from typing import Any

import shardwright as sw
from shardwright.cli import devices, options
from shardwright.cli.load import Loaded
from shardwright.cli.phases import phase

# `--cluster cpu:N` may stand beside a saved plan for other devices: it makes N virtual ones to run it on.
_FIXED_BY_A_PLAN = ("memory", "mesh", "pin", "objective", "donate")


def add_saved_plan(parser: argparse.ArgumentParser) -> None:
    """Adds `--plan`."""
    parser.add_argument("--plan", metavar="PLAN.json", help="take this saved plan and do not search")


def plan_for(chosen: argparse.Namespace, loaded: Loaded) -> Any:
    """Returns the saved plan of `--plan`, else what the planning options find.

    Raises:
        ValueError: `--plan` stands beside an option that the saved plan already decides.
    """
    if not chosen.plan:
        with phase("Planning"):
            return sw.plan(loaded.step, *loaded.args, **options.planning_arguments(chosen))
    also = options.given(chosen, _FIXED_BY_A_PLAN)
    own = chosen.cluster and chosen.cluster.endswith(".toml")  # a plan keeps its cluster's name alone
    if chosen.cluster and not own and devices.virtual(chosen.cluster) is None:
        also.insert(0, "--cluster")
    if also:
        raise ValueError(f"--plan {chosen.plan} already decides {' and '.join(also)}: leave one of the two out")
    with phase(f"Reading {chosen.plan}"):
        return sw.load_plan(chosen.plan, loaded.step, *loaded.args, cluster=chosen.cluster if own else None)
