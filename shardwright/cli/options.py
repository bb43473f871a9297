"""The options that several subcommands share, and how their texts are read."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

from jax.sharding import PartitionSpec as P

from shardwright.cli.load import FORM
from shardwright.plan.pins import parse_pin_spec

OBJECTIVES = ("seconds", "memory", "bytes")
PIN_HELP = """keep a leaf where you say; may be given several times. LEAF is the step's own argument name followed by
the path in it, results start with 'out'; SPEC is a PartitionSpec: None is whole, P.UNCONSTRAINED is free, as in
--pin "state[0]['emb']=P('t', None)" """


def add_program(parser: argparse.ArgumentParser) -> None:
    """Adds FILE.py:NAME."""
    parser.add_argument("program", metavar="FILE.py:NAME", help=FORM)


def add_planning(parser: argparse.ArgumentParser) -> None:
    """Adds what `sw.plan` takes."""
    group = parser.add_argument_group("planning")
    group.add_argument(
        "--cluster",
        metavar="NAME",
        help="cpu:8, h100:2x8, tpu-v5p:2x2x2, ... (see `shardwright clusters`), or a .toml file; default: the attached "
        "devices. cpu:N makes N virtual devices",
    )
    group.add_argument("--memory", metavar="SIZE", help="limit of one device, as 80GB or 512MiB; default: the device's")
    group.add_argument("--mesh", metavar="AXES", type=mesh, help="fix the mesh: axes and sizes, as d=2,t=4")
    group.add_argument("--pin", metavar="LEAF=SPEC", type=pin, action="append", default=[], help=PIN_HELP)
    group.add_argument(
        "--objective", choices=OBJECTIVES, default="seconds", help="what is minimized (default: %(default)s)"
    )
    group.add_argument(
        "--donate",
        metavar="ARGNUMS",
        type=argnums,
        default=(),
        help="arguments whose memory the results may take, as donate_argnums of jax.jit: 0 or 0,2; a training step "
        "usually donates its state",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """Adds `--json`."""
    parser.add_argument("--json", action="store_true", help="print one JSON object to stdout, and all else to stderr")


def planning_arguments(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the keyword arguments of `sw.plan`."""
    return {
        "cluster": options.cluster,
        "memory": options.memory,
        "mesh": options.mesh,
        "pins": _pins(options.pin),
        "objective": options.objective,
        "donate_argnums": options.donate,
    }


def _pins(pins: Sequence[tuple[str, P]]) -> dict[str, P]:
    twice = sorted({leaf for leaf, _ in pins if [other for other, _ in pins].count(leaf) > 1})
    if twice:
        raise ValueError(f"--pin names {', '.join(twice)} twice; pin each leaf once")
    return dict(pins)


def given(options: argparse.Namespace, names: Iterable[str]) -> list[str]:
    """Returns those of the planning options `names` that the user gave, as they are written."""
    defaults = {"objective": "seconds"}
    return [f"--{n}" for n in names if (value := getattr(options, n)) and value != defaults.get(n)]


def mesh(text: str) -> dict[str, int]:
    """Reads `d=2,t=4`."""
    axes: dict[str, int] = {}
    for part in text.split(","):
        axis, _, size = (x.strip() for x in part.partition("="))
        if not axis.isidentifier() or not size.isdecimal() or int(size) < 1:
            raise argparse.ArgumentTypeError(f"{part!r} is not AXIS=SIZE; write axes and sizes as d=2,t=4")
        if axis in axes:
            raise argparse.ArgumentTypeError(f"the axis {axis!r} is given twice in {text!r}")
        axes[axis] = int(size)
    return axes


def pin(text: str) -> tuple[str, P]:
    """Reads `LEAF=SPEC`."""
    leaf, separator, spec = text.rpartition("=")
    if not separator or not leaf.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not LEAF=SPEC; write for example \"state['w']=P('d', None)\"")
    try:
        entries = parse_pin_spec(spec)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return leaf.strip(), P(*(P.UNCONSTRAINED if axes is None else axes for axes in entries))


def argnums(text: str) -> tuple[int, ...]:
    """Reads `0` or `0,2`."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of positions; write for example 0 or 0,2")
    return tuple(int(part) for part in parts)


def count(text: str) -> int:
    """Reads a number of steps: whole, at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


def seconds(text: str) -> float:
    """Reads a time above zero."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above zero")
    return value
