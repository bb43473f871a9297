"""`shardwright train`: the demo, and a first look at one's own text."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import shardwright as sw
from shardwright.cli import facts, options
from shardwright.cli.outcome import Exit, Outcome
from shardwright.run import traffic
from shardwright.train import closing, recipe, transformer

HELP = "plan, prove and train a small transformer under a memory limit that one device cannot meet"
EXAMPLE = "example: shardwright train --memory 40MB --data my_texts/"
_DEFAULTS = recipe.Options()


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the subcommand's options."""
    d = _DEFAULTS
    parser.add_argument(
        "--cluster", metavar="NAME", default=d.cluster, help="attached devices to train on (default: %(default)s)"
    )
    parser.add_argument("--memory", metavar="SIZE", default=d.memory, help="limit of one device (default: %(default)s)")
    parser.add_argument("--data", metavar="DIR", help="train on the text files in DIR; default: Python's own library")
    parser.add_argument(
        "--steps", metavar="N", type=options.count, default=d.model.num_steps, help="default: %(default)s"
    )
    parser.add_argument(
        "--seconds",
        metavar="S",
        type=options.seconds,
        default=d.limit_seconds,
        help="stop training after S seconds, whatever --steps says (default: %(default)s)",
    )
    parser.add_argument("--seed", metavar="N", type=int, default=d.seed, help="default: %(default)s")
    parser.add_argument(
        "--output",
        metavar="FILE.json",
        default="demo.json",
        help="where the facts go, and the plan beside them as FILE-plan.json (default: %(default)s)",
    )
    options.add_json(parser)


def run(chosen: argparse.Namespace) -> Outcome:
    """Runs the demo and writes its facts."""
    output = Path(chosen.output)
    if not output.parent.is_dir():
        raise ValueError(f"--output {output}: there is no directory {output.parent}")
    result = recipe.run_demo(
        sw.plan,
        sw.prove,
        _demo_options(chosen, output),
        count_sent=lambda text: traffic.sent_bytes(traffic.traffic(text)),
        say=lambda paragraph: print(f"{paragraph}\n", flush=True),
        stream=sys.stderr,
    )
    found = closing.facts(result)
    output.write_text(facts.to_json(found) + "\n")
    text = f"{closing.table(result)}\n\nThe same facts are in {output}, the plan in {result.plan_file}."
    return Outcome(text, found, Exit.OK if result.ok else Exit.NOT_PROVEN)


def _demo_options(chosen: argparse.Namespace, output: Path) -> recipe.Options:
    return recipe.Options(
        cluster=chosen.cluster,
        memory=chosen.memory,
        model=transformer.Config(num_steps=chosen.steps, warmup_steps=chosen.steps // 10),
        limit_seconds=chosen.seconds,
        data=chosen.data,
        plan_file=output.with_name(f"{output.stem}-plan.json"),
        seed=chosen.seed,
    )
