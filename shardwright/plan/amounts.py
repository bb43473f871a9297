"""Amounts as a reader sees them: SI, decimal, three digits."""

from __future__ import annotations

import math
from collections.abc import Sequence

_BYTES = ("B", "kB", "MB", "GB", "TB", "PB")
_FLOPS = ("flop", "kflop", "Mflop", "Gflop", "Tflop", "Pflop", "Eflop")


def bytes_text(amount: float) -> str:
    """Bytes, decimal.

    >>> bytes_text(80e9), bytes_text(1234), bytes_text(12)
    ('80.0 GB', '1.23 kB', '12 B')
    """
    return _scaled(amount, _BYTES)


def flops_text(amount: float) -> str:
    """Floating-point operations.

    >>> flops_text(2.5e9)
    '2.50 Gflop'
    """
    return _scaled(amount, _FLOPS)


def seconds_text(amount: float) -> str:
    """Seconds, in the unit in which the number is between 1 and 1000.

    >>> seconds_text(0.0123), seconds_text(75)
    ('12.3 ms', '75.0 s')
    """
    if not math.isfinite(amount):
        return "unknown"
    if amount == 0:
        return "0 s"
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if amount >= 0.9995 * unit:
            return f"{_digits(amount / unit)} {name}"
    return f"{_digits(amount / 1e-9)} ns"


def percent_text(share: float) -> str:
    """A share as percent.

    >>> percent_text(0.256), percent_text(0.0012), percent_text(1e-6)
    ('26 %', '0.1 %', '<0.1 %')
    """
    percent = 100 * share
    if 0 < percent < 0.05:
        return "<0.1 %"
    return f"{percent:.0f} %" if percent >= 9.95 or percent == 0 else f"{percent:.1f} %"


def _scaled(amount: float, units: Sequence[str]) -> str:
    if not math.isfinite(amount):
        return "unknown"
    place = 0
    while abs(amount) >= 999.5 and place < len(units) - 1:
        amount, place = amount / 1000, place + 1
    return f"{amount:.0f} {units[0]}" if place == 0 else f"{_digits(amount)} {units[place]}"


def _digits(amount: float) -> str:
    """Three digits."""
    return f"{amount:.0f}" if abs(amount) >= 99.95 else f"{amount:.1f}" if abs(amount) >= 9.995 else f"{amount:.2f}"
