"""Finds the user's source line of an instruction in the text of a compiled XLA program.

An instruction names its line in its metadata, `source_file="a.py" source_line=3`, or, since 2025, a frame of the
tables at the head of the text: a frame has a place in a file and the frame that called it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]
_FOLDERS = re.compile(r"^.*[/\\]")
_ROW = re.compile(r"^(\d+) (.*)$")
_FRAME = re.compile(r"\bstack_frame_id=(\d+)")
_NAMED = re.compile(r'\bsource_file="([^"]*)"(?:.*?\bsource_line=(\d+))?')


@dataclasses.dataclass(frozen=True)
class Frames:
    """The tables of one program, by the numbers that it gives them.

    Attributes:
        files: names of files.
        places: (file, line).
        frames: (place, frame of the caller or 0).
    """

    files: Mapping[int, str]
    places: Mapping[int, tuple[int, int]]
    frames: Mapping[int, tuple[int, int]]


def parse_frames(text: str) -> Frames:
    """The tables of a compiled program's text; empty where it has none."""
    files = {number: row.strip('"') for number, row in _table(text, "FileNames")}
    places = {
        number: (_field(row, "file_name_id"), _field(row, "line")) for number, row in _table(text, "FileLocations")
    }
    frames = {
        number: (_field(row, "file_location_id"), _field(row, "parent_frame_id"))
        for number, row in _table(text, "StackFrames")
    }
    # The first frame has no caller, and callers come before those they call: XLA prints their numbers plus one.
    shift = int(frames.get(1, (0, 0))[1] > 0)
    return Frames(files, places, {number: (place, caller - shift) for number, (place, caller) in frames.items()})


def _table(text: str, title: str) -> Iterator[tuple[int, str]]:
    start = text.find(f"\n{title}\n")
    if start < 0:
        return
    for line in text[start + len(title) + 2 :].splitlines():
        row = _ROW.match(line)
        if not row:
            return
        yield int(row.group(1)), row.group(2)


def _field(row: str, name: str) -> int:
    found = re.search(rf"\b{name}=(\d+)", row)
    return int(found.group(1)) if found else 0


def source_line(attributes: str, frames: Frames) -> str:
    """'file.py:12' of the innermost frame that is neither this package's nor an installed one's.

    Where all are an installed package's, the innermost of those; '' where there are none.
    """
    found = ""
    for file, line in _places(attributes, frames):
        if _is_own(file):
            continue
        place = f"{_FOLDERS.sub('', file)}:{line}"
        if "site-packages" not in file:
            return place
        found = found or place
    return found


def _places(attributes: str, frames: Frames) -> Iterator[tuple[str, int]]:
    """File and line of each frame, the innermost first."""
    if (named := _NAMED.search(attributes)) and named.group(1):
        yield named.group(1), int(named.group(2) or 0)
    frame = _FRAME.search(attributes)
    number = int(frame.group(1)) if frame else 0
    while number in frames.frames:
        place, caller = frames.frames[number]
        file, line = frames.places.get(place, (0, 0))
        if file in frames.files:
            yield frames.files[file], line
        number = caller if caller < number else 0


def _is_own(file: str) -> bool:
    """Whether a file is one of this package that traces, emits or compiles; its models are programs like the user's."""
    path = Path(file)
    return path.is_relative_to(_PACKAGE) and not path.is_relative_to(_PACKAGE / "train")
