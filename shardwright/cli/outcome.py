"""What a subcommand hands back, and the exit codes that scripts may rely on."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any


class Exit(enum.IntEnum):
    """Exit codes of every subcommand."""

    OK = 0
    NOT_PROVEN = 1
    BAD_INPUT = 2
    INFEASIBLE = 3
    INTERNAL = 4
    INTERRUPTED = 130


EXIT_HELP = """exit codes:
  0  done
  1  the proof failed: the plan does not compute what one device computes
  2  bad usage or bad input: an option, a file, the step or its arguments, a target whose compiler fails
  3  infeasible: no plan meets the memory limit
  4  a bug of shardwright's own (with its traceback)
  130  interrupted"""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a subcommand found.

    Attributes:
        text: For people, printed to stdout.
        facts: JSON types, printed instead with `--json`.
        code: The exit code.
    """

    text: str
    facts: Mapping[str, Any]
    code: Exit = Exit.OK
