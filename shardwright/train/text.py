"""Byte-level text: a corpus that every machine already has, or the user's own files.

The built-in corpus is Python's standard library, read from the running interpreter: no download, and the same bytes for
the same Python. Files are split into training and held-out text, never windows of one file, so the held-out loss is
measured on files that the model has not seen.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import sysconfig
from collections.abc import Iterator

import numpy as np

HELD_OUT_EVERY = 20  # one file in twenty is held out
MAX_BYTES = 1_000_000_000  # a corpus is read into memory whole
_SKIPPED_FOLDERS = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"})


@dataclasses.dataclass(frozen=True, eq=False)
class Corpus:
    """Text as bytes, already split.

    Attributes:
        train: uint8, one dim; the training files joined.
        held_out: uint8, one dim; the held-out files joined.
        num_files: files read, both parts together.
        num_skipped: files left out because they hold zero bytes of text or look binary.
        source: what was read, for people.
    """

    train: np.ndarray
    held_out: np.ndarray
    num_files: int
    num_skipped: int
    source: str


def standard_library() -> Corpus:
    """Returns the corpus of the running interpreter's own standard library.

    Tests and installed packages are left out: distributions differ in whether they ship them.

    Raises:
        ValueError: This Python keeps no `.py` files on disk (a frozen or zipped library).
    """
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    paths = [p for p in _walk(root, _SKIPPED_FOLDERS) if p.suffix == ".py"] if root.is_dir() else []
    if not paths:
        raise ValueError(
            f"this Python keeps no source files of its standard library in {root} (a frozen or zipped library?); "
            "give a directory of text files with --data DIR"
        )
    return _read(paths, f"Python's standard library ({root})")


def directory(path: str | os.PathLike) -> Corpus:
    """Returns the corpus of a directory of text files, or of one text file.

    Hidden files and folders are passed over; files that hold a NUL byte are taken to be binary and counted as skipped.
    A single file is split by position: its last twentieth is held out.

    Args:
        path: A directory, read recursively, or a file.

    Raises:
        ValueError: Nothing is there, no file holds text, or the files are too large to be read into memory.
    """
    root = pathlib.Path(path).expanduser()
    if not root.exists():
        raise ValueError(f"--data {path}: no such directory; give a directory that holds text files")
    paths = [root] if root.is_file() else list(_walk(root, frozenset()))
    if not paths:
        raise ValueError(f"--data {path}: the directory holds no files; give a directory that holds text files")
    return _read(paths, str(root))


def load(path: str | os.PathLike | None) -> Corpus:
    """Returns `directory(path)`, or the standard library's corpus where `path` is None."""
    return standard_library() if path is None else directory(path)


def batches(text: np.ndarray, batch: int, sequence: int, seed: int) -> Iterator[np.ndarray]:
    """Yields random windows of `text` for ever, the same ones for the same seed.

    Args:
        text: uint8, one dim.
        batch: Windows in a batch.
        sequence: Tokens that a model reads; a window holds one more, the last target.
        seed: Of a generator that belongs to this iterator alone.

    Yields:
        int32 [batch, sequence + 1].

    Raises:
        ValueError: The text is shorter than one window.
    """
    num_starts = text.size - sequence
    if num_starts < 1:
        raise ValueError(
            f"the text holds {text.size} bytes, but one window needs {sequence + 1}; "
            "give more text, or a shorter sequence"
        )
    return _windows(text, batch, np.arange(sequence + 1), num_starts, np.random.default_rng(seed))


def printable(ids: np.ndarray) -> str:
    """Returns bytes as text that is safe on a terminal: control characters and broken UTF-8 become a middle dot."""
    text = bytes(np.asarray(ids, np.uint8)).decode("utf-8", errors="replace")
    return "".join(c if c == "\n" or (c.isprintable() and c != "\ufffd") else "\u00b7" for c in text.expandtabs(4))


def _windows(text, batch, offsets, num_starts, random) -> Iterator[np.ndarray]:
    while True:
        starts = random.integers(num_starts, size=(batch, 1))
        yield text[starts + offsets].astype(np.int32)


def _walk(root: pathlib.Path, skipped: frozenset[str]) -> Iterator[pathlib.Path]:
    """Yields the regular files under `root` in an order that does not depend on the file system."""
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if f not in skipped and not f.startswith("."))
        for name in sorted(names):
            path = pathlib.Path(folder, name)
            if not name.startswith(".") and path.is_file():
                yield path


def _read(paths: list[pathlib.Path], source: str) -> Corpus:
    num_bytes = sum(p.stat().st_size for p in paths)
    if num_bytes > MAX_BYTES:
        raise ValueError(
            f"{source} holds {num_bytes / 1e9:.1f} GB in {len(paths)} files; a corpus is read into memory whole, "
            f"{MAX_BYTES / 1e9:.0f} GB at most: give a smaller directory"
        )
    try:
        texts = [p.read_bytes() for p in paths]
    except OSError as error:
        raise ValueError(f"{error.filename} cannot be read: {error.strerror}; take it out of {source}") from error
    kept = [t for t in texts if t.strip() and b"\0" not in t]
    if not kept:
        raise ValueError(f"{source}: none of the {len(paths)} files holds text (they are empty or binary)")
    train, held_out = _split(kept)
    return Corpus(train, held_out, len(kept), len(paths) - len(kept), source)


def _split(texts: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Splits by file: every twentieth is held out, and at least the last. One file alone is split by position."""
    if len(texts) == 1:
        cut = len(texts[0]) - len(texts[0]) // HELD_OUT_EVERY
        texts = [texts[0][:cut], texts[0][cut:]]
    last = len(texts) - 1
    chosen = set(range(HELD_OUT_EVERY - 1, len(texts), HELD_OUT_EVERY)) or {last}
    parts = [t for i, t in enumerate(texts) if i not in chosen], [t for i, t in enumerate(texts) if i in chosen]
    train, held_out = (np.frombuffer(b"\n".join(part), np.uint8) for part in parts)
    return train, held_out
