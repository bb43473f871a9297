"""Names and places as a reader wants them: short, and still telling one from another."""

from __future__ import annotations

import re
from collections.abc import Iterable

_PLACE = re.compile(r"^(?P<file>.*?):(?P<line>\d+)(:\d+)?( \(.*\))?$")
_PARTS = re.compile(r"[^\[\].'\"]+")
_DIM = re.compile(r"^(?P<leaf>.*)\.(?P<dim>\d+)(?P<again>'\d+)?$")


def short_source(line: str) -> str:
    """'file.py:12' of jax's '/path/file.py:12:3 (function)'; '' stays ''.

    >>> short_source("/home/me/model.py:12:3 (loss)")
    'model.py:12'
    """
    found = _PLACE.match(line)
    return f"{found['file'].replace(chr(92), '/').rpartition('/')[2]}:{found['line']}" if found else line


def short_classes(names: Iterable[str]) -> dict[str, str]:
    """Each class name with as few parts of its leaf's name as keep it unique, never a number alone.

    >>> short_classes(["batch", "state[0]['emb'].1", "layers[3].1"])
    {'batch': 'batch', "state[0]['emb'].1": 'emb.1', 'layers[3].1': 'layers.3.1'}
    """
    full = list(dict.fromkeys(names))
    short = {n: _last_parts(n, 1) for n in full}
    for count in range(2, 12):
        taken: dict[str, list[str]] = {}
        for name, text in short.items():
            taken.setdefault(text, []).append(name)
        clashes = [n for group in taken.values() if len(group) > 1 for n in group]
        if not clashes:
            return short
        short.update({n: _last_parts(n, count) for n in clashes})
    return {n: n for n in full}


def _last_parts(name: str, count: int) -> str:
    """The last `count` parts of the leaf's name, and as many more as it takes to start with a word; and the dim."""
    found = _DIM.match(name)
    if not found:
        return name
    parts = _PARTS.findall(found["leaf"])
    if parts[1:] and parts[-1] == "value":  # flax boxes its arrays; the box says nothing
        del parts[-1]
    while count < len(parts) and parts[-count].isdigit():
        count += 1
    return f"{'.'.join(parts[-count:])}.{found['dim']}{found['again'] or ''}"
