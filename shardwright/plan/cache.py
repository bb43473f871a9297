"""Plans kept on disk from one run to the next.

A file's name is the hash of all that its plan was made from, and its content is an ordinary plan file. What is read is
never taken on trust: whoever asks builds the plan anew from the decision and compares.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from shardwright.plan import files
from shardwright.plan.record import VERSION, PlanRecord


def folder() -> Path:
    """$SHARDWRIGHT_CACHE, else $XDG_CACHE_HOME/shardwright, else ~/.cache/shardwright."""
    named = os.environ.get("SHARDWRIGHT_CACHE")
    return Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shardwright"


def path_of(asked: dict[str, Any]) -> Path:
    """The file of the plan that was made from `asked`: what can be written as JSON, or has a `repr` that says all."""
    text = json.dumps({"version": VERSION, **asked}, sort_keys=True, default=repr)
    return folder() / "plans" / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"


def read(path: Path) -> PlanRecord | None:
    """The plan at `path`; None if there is none, or none that can be used, which is said."""
    try:
        return files.load(path)
    except FileNotFoundError:
        return None
    except (ValueError, OSError) as error:
        refuse(path, str(error))
        return None


def refuse(path: Path, why: str) -> None:
    """Says that the plan at `path` is not used."""
    print(f"shardwright: the cached plan {path} is not used and will be replaced: {why}", file=sys.stderr)


def write(path: Path, record: PlanRecord) -> None:
    """Keeps `record` at `path`; that it cannot be kept is said and is no error."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.save(record, path)
    except OSError as error:
        print(f"shardwright: the plan is not cached: {error}", file=sys.stderr)
