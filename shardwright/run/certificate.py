"""What a proof says: a row for each result leaf, and everything that was not compared as it stands."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from shardwright.run.compare import TOLERANCE

EQUAL = "equal"
UNPROVEN = "unproven"
DIFFERS = "differs"
NOT_FINITE = "not finite"


@dataclasses.dataclass(frozen=True)
class LeafProof:
    """One result leaf, the worst over all steps and all devices that hold it.

    Attributes:
      name: name of the leaf, that of the argument where it replaces one; the operand of a cut sign is named for the
        parameter that it updates.
      role: what the leaf is to training.
      error: relative error in float64, as `run.compare` defines it; for integers, booleans and keys the share that
        differs.
      own_error: likewise in the step's own dtypes.
      bitwise: whether in its own dtypes every bit is the same.
      status: equal, differs, not finite (nothing can be said), or unproven: the leaf never moved, so it proves nothing.
    """

    name: str
    role: str
    error: float
    own_error: float
    bitwise: bool
    status: str


@dataclasses.dataclass(frozen=True)
class Certificate:
    """The plan's program held against the one-device program.

    Attributes:
      rows: one a leaf.
      changes: every place where the mathematics is not the same or was not compared as it stands.
      captured: whether the captured program is the user's step, on one device; True where no step was given to compare.
      devices: how many devices computed.
      mesh: axis → size.
      steps: how many steps were run, each on its own batch.
    """

    rows: tuple[LeafProof, ...]
    changes: tuple[str, ...]
    captured: bool
    devices: int
    mesh: Mapping[str, int]
    steps: int

    @property
    def ok(self) -> bool:
        """Whether in float64 every leaf agrees, and all integers, booleans and keys exactly."""
        return self.captured and all(row.status in (EQUAL, UNPROVEN) for row in self.rows)

    @property
    def max_relative_error(self) -> float:
        """Of all leaves, in float64."""
        return max((row.error for row in self.rows), default=0.0)

    @property
    def own_dtype_max_relative_error(self) -> float:
        """Of all leaves, in the step's own dtypes."""
        return max((row.own_error for row in self.rows), default=0.0)

    @property
    def unproven(self) -> tuple[str, ...]:
        """Leaves that agree but never moved."""
        return tuple(row.name for row in self.rows if row.status == UNPROVEN)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "ok": self.ok,
            "max_relative_error": self.max_relative_error,
            "own_dtype_max_relative_error": self.own_dtype_max_relative_error,
            "captured": self.captured,
            "unproven": list(self.unproven),
            "devices": self.devices,
            "mesh": dict(self.mesh),
            "steps": self.steps,
            "changes": list(self.changes),
            "rows": [dataclasses.asdict(row) for row in self.rows],
        }

    def _verdict(self) -> str:
        if not self.ok:
            return "NOT the same as on one device"
        if not self.unproven:
            return "the same as on one device"
        count = f"{len(self.unproven)} of {len(self.rows)} leaves"
        return f"the same as on one device as far as shown; unproven are {count}, which never moved"

    def __str__(self) -> str:
        mesh = ", ".join(f"{axis}: {size}" for axis, size in self.mesh.items())
        lines = [
            f"{self._verdict()}: {self.steps} steps on {self.devices} devices ({mesh})",
            f"largest relative error {self.max_relative_error:.1e} in float64 (limit {TOLERANCE:.0e}), "
            f"{self.own_dtype_max_relative_error:.1e} in the step's own dtypes",
            "",
        ]
        if self.rows:
            lines += _table(self.rows)
        lines += ["", "changes of mathematics: " + ("none" if not self.changes else "")]
        lines += [f"  {change}" for change in self.changes]
        return "\n".join(line.rstrip() for line in lines)


def _table(rows: tuple[LeafProof, ...]) -> list[str]:
    width = max(len(row.name) for row in rows)
    lines = [f"{'leaf':<{width}}  {'role':<9}  {'float64':>8}  {'own dtypes':>10}  status"]
    for row in rows:
        own = "bitwise" if row.bitwise else f"{row.own_error:.1e}"
        lines.append(f"{row.name:<{width}}  {row.role:<9}  {row.error:>8.1e}  {own:>10}  {row.status}")
    return lines
