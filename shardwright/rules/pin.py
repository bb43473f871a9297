"""Pins: a value that stays what it is and lies where the user says.

Its dims are those of its operand. A pending sum does not pass: whoever pins a value wants the value.
"""

from __future__ import annotations

from shardwright.rules.elementwise import elementwise_factors
from shardwright.rules.row import Row

ROWS: dict[str, Row] = dict.fromkeys(("pin", "sharding_constraint"), Row(elementwise_factors, fused=True))
