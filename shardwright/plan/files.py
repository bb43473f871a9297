"""Plans as files: versioned JSON, the same bytes for the same plan."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from shardwright.plan.check import problems
from shardwright.plan.codec import decode, encode
from shardwright.plan.record import VERSION, PlanRecord

FORMAT = "shardwright plan"
_AGAIN = "Plan again with shardwright.plan and save that"


def to_json(record: PlanRecord) -> str:
    """`record` as JSON: keys sorted, one value a line, nothing of the day or the machine."""
    data = {"format": FORMAT, **encode(record)}
    return json.dumps(data, indent=1, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n"


def save(record: PlanRecord, path: str | os.PathLike[str]) -> None:
    """Writes `record` to `path`; whoever reads meanwhile finds the old file or the new one, never a part."""
    target = check_place(path)
    text = to_json(record)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        with open(partial, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def check_place(path: str | os.PathLike[str]) -> Path:
    """Refuses a path where no file can be written.

    Raises:
        OSError: It is a directory, or there is none to hold it.
    """
    target = Path(path)
    if target.is_dir() or not target.parent.is_dir():
        what = "is a directory" if target.is_dir() else f"lies in {target.parent}, which is no directory"
        raise OSError(f"the plan cannot be saved as {path}: that {what}; give the path of a file")
    return target


def load(path: str | os.PathLike[str]) -> PlanRecord:
    """Reads what `save` wrote.

    Raises:
        ValueError: The file is not JSON, not a plan, of a version that this package does not read, or incomplete. Each
            message says what was found, what was wanted and what to do.
        OSError: The file cannot be read.
    """
    data = _json(path)
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ValueError(
            f'{path} is not a plan: a plan file is a JSON object with "format": "{FORMAT}", and this one holds '
            f"{_describe(data)}. Give a file that Plan.save wrote."
        )
    version = data.get("version")
    if type(version) is not int or version < 1:
        raise ValueError(f"{path}: the plan's version is {version!r}, a number from 1 on was wanted. {_AGAIN}.")
    if version > VERSION:
        raise ValueError(
            f"{path} is a plan of version {version}, written by shardwright {data.get('package_version', '?')}; this "
            f"package reads versions up to {VERSION}. Upgrade shardwright, or plan again with this one."
        )
    try:
        record = decode(PlanRecord, {k: v for k, v in data.items() if k != "format"}, "plan")
    except ValueError as error:
        raise ValueError(f"{path} is not a whole plan of version {version}: {error}. {_AGAIN}.") from error
    found = problems(record)
    if found:
        raise ValueError(f"{path} contradicts itself, as a file edited by hand may: {'; '.join(found)}. {_AGAIN}.")
    return record


def _json(path: str | os.PathLike[str]) -> Any:
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path}: there is no such file; give the path of one that Plan.save wrote")
    raw = Path(path).read_bytes()
    try:
        return json.loads(raw.decode("utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        where = "it is empty" if not raw else f"{error}"
        raise ValueError(
            f"{path} cannot be read as JSON ({where}): the file is damaged or cut off, or it is no plan. {_AGAIN}."
        ) from error


def _describe(data: Any) -> str:
    if not isinstance(data, dict):
        return f"a {type(data).__name__}"
    if "format" in data:
        return f'"format": {data["format"]!r}'
    keys = sorted(data)
    return f"the keys {', '.join(keys[:5])}{' and others' if len(keys) > 5 else ''}" if keys else "an empty object"
