"""Says what takes time while it takes it, on stderr."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator


@contextlib.contextmanager
def phase(title: str) -> Iterator[None]:
    """Writes `title ... 3.2 s`: the title at once, the seconds when the block has ended."""
    started = time.perf_counter()
    sys.stderr.write(f"{title} ... ")
    sys.stderr.flush()
    ended = "failed"
    try:
        yield
        ended = f"{time.perf_counter() - started:.1f} s"
    except KeyboardInterrupt:
        ended = "stopped"
        raise
    finally:
        sys.stderr.write(f"{ended}\n")
        sys.stderr.flush()
