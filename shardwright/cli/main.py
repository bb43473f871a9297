"""Entry point of `shardwright`: reads the options, runs one subcommand, says how it went."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import traceback
from collections.abc import Sequence
from types import ModuleType
from typing import NoReturn

import shardwright as sw
from shardwright.cli import clusters, compile, plan, prove, train
from shardwright.cli.devices import ask_for_virtual_devices, cluster_of
from shardwright.cli.facts import to_json
from shardwright.cli.outcome import EXIT_HELP, Exit, Outcome
from shardwright.run.targets import AheadError

_SUBCOMMANDS: dict[str, ModuleType] = {
    "train": train,
    "plan": plan,
    "compile": compile,
    "prove": prove,
    "clusters": clusters,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code (see `outcome.Exit`).

    Args:
        arguments: Without the program's name; None takes those of the process.
    """
    chosen = _parser().parse_args(arguments)
    try:
        outcome = _run(chosen)
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted\n")
        return Exit.INTERRUPTED
    except Exception as error:
        outcome = _failure(error)
        if outcome.code is Exit.INTERNAL:
            traceback.print_exc()
        sys.stderr.write(f"shardwright {chosen.subcommand}: {outcome.text}\n")
        if chosen.json:
            print(to_json(outcome.facts))
        return outcome.code
    print(to_json(outcome.facts) if chosen.json else outcome.text)
    return outcome.code


def enter() -> NoReturn:
    """The command: runs the command line and ends the process.

    Interrupted, it ends at once: the back end's threads still run, and a shutdown around them can crash.
    """
    code = main()
    if code == Exit.INTERRUPTED:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    raise SystemExit(code)


def _run(chosen: argparse.Namespace) -> Outcome:
    # With --json stdout holds the one object, whatever the user's file prints.
    stdout = contextlib.redirect_stdout(sys.stderr) if chosen.json else contextlib.nullcontext()
    with stdout:
        # Before anything can start jax's back end: the number of virtual devices is fixed from then on.
        ask_for_virtual_devices(cluster_of(chosen))
        return _SUBCOMMANDS[chosen.subcommand].run(chosen)


def _failure(error: Exception) -> Outcome:
    code, title = Exit.INTERNAL, "internal error, please report it"
    if isinstance(error, ValueError | OSError | AheadError):
        code, title = Exit.BAD_INPUT, "error"
    if isinstance(error, sw.InfeasibleError):
        code, title = Exit.INFEASIBLE, "infeasible"
    message = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
    return Outcome(f"{title}: {message}", {"error": {"kind": code.name.lower(), "message": message}}, code)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="shardwright",
        description="Automatic parallel training for JAX: a plan for your one-device step, and its proof.",
        epilog=f"{EXIT_HELP}\n\n`shardwright SUBCOMMAND --help` tells the options of each.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    subparsers = parser.add_subparsers(dest="subcommand", metavar="SUBCOMMAND", required=True)
    for name, module in _SUBCOMMANDS.items():
        subparser = subparsers.add_parser(
            name,
            help=module.HELP,
            description=module.HELP[0].upper() + module.HELP[1:] + ".",
            epilog=f"{module.EXAMPLE}\n\n{EXIT_HELP}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.configure(subparser)
    return parser
