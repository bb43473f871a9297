"""Progress of a training loop, with nothing installed: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import TextIO

_BAR_WIDTH = 24
_SECONDS_BETWEEN_LINES = 10.0


@dataclasses.dataclass(frozen=True)
class Progress:
    """Where a training loop stands.

    Attributes:
        step: Steps whose metrics have arrived.
        num_steps: Steps asked for.
        loss: Of step number `step`.
        tokens_per_second: Since the loop began.
        seconds: Since the loop began.
        ended: Whether this is the last report.
    """

    step: int
    num_steps: int
    loss: float
    tokens_per_second: float
    seconds: float
    ended: bool


Watch = Callable[[Progress], None]


def line(progress: Progress) -> str:
    """Returns `step 12/150  loss 3.41  5,120 tokens/s`."""
    p, digits = progress, len(str(progress.num_steps))
    return f"step {p.step:>{digits}}/{p.num_steps}  loss {p.loss:.3f}  {p.tokens_per_second:,.0f} tokens/s"


def bar(progress: Progress) -> str:
    """Returns `line` behind a bar of fixed width."""
    filled = _BAR_WIDTH * progress.step // progress.num_steps
    return f"[{'#' * filled}{'.' * (_BAR_WIDTH - filled)}] {line(progress)}"


def watch_on(stream: TextIO, clock: Callable[[], float] = time.monotonic) -> Watch:
    """Returns a watcher that writes to `stream`: one bar redrawn on a terminal, else a line every ten seconds."""
    return _redraw(stream) if stream.isatty() else _write_lines(stream, clock)


def _redraw(stream: TextIO) -> Watch:
    def watch(progress: Progress) -> None:
        # Blanks at the end wipe what a longer text left behind.
        stream.write(f"\r{bar(progress)}   " + ("\n" if progress.ended else ""))
        stream.flush()

    return watch


def _write_lines(stream: TextIO, clock: Callable[[], float]) -> Watch:
    due = clock()

    def watch(progress: Progress) -> None:
        nonlocal due
        if clock() >= due or progress.ended:
            due = clock() + _SECONDS_BETWEEN_LINES
            stream.write(line(progress) + "\n")
            stream.flush()

    return watch
