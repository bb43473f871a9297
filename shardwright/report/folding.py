"""Names of leaves, those that differ in a number or a key written as one.

* layers[0].up, layers[1].up, layers[2].up: layers[0…2].up
* state['wk'], state['wq']: state['wk', 'wq']
* slots.mu['a'], slots.nu['a']: slots.{mu,nu}['a']
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence

MAX_KEYS = 12
"""Keys that one folded name lists."""

# An argument's name, or one step of the path behind it: .name, [3], ['key'].
_STEP = re.compile(r"""\[(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\[\]]*)\]|\.[^.\[]+|[^.\[]+""")
_BREAK = re.compile(r"(?<=, )|(?=[.\[])")


@dataclasses.dataclass(frozen=True)
class Folded:
    """A name that stands for `count` leaves."""

    name: str
    count: int


@dataclasses.dataclass
class _Row:
    """Names alike but for some of their parts; `parts[i]` are the texts that stand at place i."""

    parts: list[tuple[str, ...]]
    count: int


def folded(names: Sequence[str]) -> tuple[Folded, ...]:
    """Each name once, alone or with others; first those that differ in numbers are joined, then in a key.

    >>> [f.name for f in folded(["w[0]['up']", "w[1]['up']", "w[0]['out']", "w[1]['out']", "b"])]
    ["w[0…1]['up', 'out']", 'b']
    """
    rows = [_Row([(part,) for part in re.split(r"(\d+)", name)], 1) for name in names]
    rows = _joined(rows, lambda place: place % 2 == 1)
    texts = ["".join(_number_text(p) if i % 2 else p[0] for i, p in enumerate(row.parts)) for row in rows]
    rows = [_Row([(step,) for step in _steps(text)], row.count) for text, row in zip(texts, rows, strict=True)]
    rows = _joined(rows, lambda place: place > 0)
    return tuple(Folded("".join(map(_step_text, row.parts)), row.count) for row in rows)


def _steps(name: str) -> list[str]:
    found = _STEP.findall(name)
    return found if "".join(found) == name else [name]


def _joined(rows: list[_Row], is_free: Callable[[int], bool]) -> list[_Row]:
    """Rows that are equal but for the texts at one free place become one, until there are no more such."""
    before = len(rows) + 1
    while len(rows) < before:
        before = len(rows)
        for place in filter(is_free, range(max((len(row.parts) for row in rows), default=0))):
            rows = _joined_at(rows, place)
    return rows


def _joined_at(rows: list[_Row], place: int) -> list[_Row]:
    found: dict[object, _Row] = {}
    for number, row in enumerate(rows):
        if place >= len(row.parts):
            found[number] = row
            continue
        texts = row.parts[place]
        mark = texts[0][0] if texts[0][0] in "[." else ""  # a key joins keys, an attribute attributes
        held = found.setdefault((mark, *row.parts[:place], None, *row.parts[place + 1 :]), row)
        if held is not row:
            held.parts[place] = tuple(dict.fromkeys(held.parts[place] + texts))
            held.count += row.count
    return list(found.values())


def _number_text(texts: tuple[str, ...]) -> str:
    """'7', '0…5', or '{0…5,9}'."""
    runs: list[list[str]] = []
    for text in sorted(texts, key=int):
        if runs and int(text) == int(runs[-1][-1]) + 1:
            runs[-1].append(text)
        else:
            runs.append([text])
    parts = [run[0] if len(run) == 1 else f"{run[0]}…{run[-1]}" for run in runs]
    return parts[0] if len(parts) == 1 else f"{{{','.join(parts)}}}"


def _step_text(steps: tuple[str, ...]) -> str:
    """One step as it stands, several as ['a', 'b'] or .{a,b}."""
    if len(steps) == 1:
        return steps[0]
    more = f" and {len(steps) - MAX_KEYS} more" if len(steps) > MAX_KEYS else ""
    if steps[0].startswith("["):
        return f"[{', '.join(step[1:-1] for step in steps[:MAX_KEYS])}{more}]"
    return f".{{{','.join(step[1:] for step in steps[:MAX_KEYS])}{more}}}"


def filled(names: Sequence[str], width: int) -> Iterator[str]:
    """Lines of at most `width` columns: broken between names, inside one only if it is longer than a line."""
    line = ""
    for i, name in enumerate(names):
        text = name + ("," if i < len(names) - 1 else "")
        if line and len(line) + 1 + len(text) <= width:
            line += f" {text}"
            continue
        if line:
            yield line
        *full, line = _pieces(text, width)
        yield from full
    if line:
        yield line


def _pieces(text: str, width: int) -> Iterator[str]:
    """A name in pieces of at most `width` columns, broken before a step or a key where there is one."""
    line = ""
    for piece in _BREAK.split(text):
        if line and len(line) + len(piece.rstrip()) > width:
            yield line.rstrip()
            line = ""
        while len(piece) > width:
            yield piece[:width]
            piece = piece[width:]
        line += piece
    yield line
