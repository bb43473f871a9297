"""A plan as frozen data: everything that is needed to print, compare and report it without the step.

Dims are written by the names of their classes and equations never by position, so a record says the same to a reader,
to another jax and to a program that is traced again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from shardwright.plan.named import DecisionRecord
from shardwright.plan.placement import Placement

VERSION = 1
"""Of the file format. A change of any field below is a new version."""

Spec = tuple[tuple[str, ...], ...]
"""For each dim of a tensor the mesh axes that cut it, major to minor."""


@dataclasses.dataclass(frozen=True)
class LeafRecord:
    """One array among the step's arguments or results, and where it lies between steps.

    Attributes:
        name: The step's argument name and `keystr`, as in `state[0]['emb']`.
        shape: Logical sizes.
        dtype: Its name.
        role: Value of `Role`.
        dims: Name of each dim's class.
        spec: Mesh axes of each dim.
        donated: Whether the step may overwrite it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: str
    dims: tuple[str, ...]
    spec: Spec
    donated: bool = False

    @property
    def placement(self) -> Placement:
        """Where it lies; nothing is pending between steps."""
        return Placement(self.spec)


@dataclasses.dataclass(frozen=True)
class ProgramRecord:
    """One program of the plan, on its mesh.

    Attributes:
        name: Of the step.
        mesh: (axis, size), major to minor.
        decision: What each axis cuts.
        classes: Name → size of every class that an axis cuts.
        inputs: A leaf for each array argument.
        outputs: A leaf for each array result.
    """

    name: str
    mesh: tuple[tuple[str, int], ...]
    decision: DecisionRecord
    classes: Mapping[str, int]
    inputs: tuple[LeafRecord, ...]
    outputs: tuple[LeafRecord, ...]


@dataclasses.dataclass(frozen=True)
class CollectiveRecord:
    """One collective of the per-device program.

    Attributes:
        kind: all_reduce, all_gather, reduce_scatter, all_to_all or permute.
        axis: The mesh axes it runs over, joined by '+'.
        bytes: What one device sends over the whole step, `times` included.
        times: How often one step runs it.
        seconds: Over the whole step.
        source: The user's source line, 'file.py:12'; '' where jax recorded none.
        why: The primitive that reads the result.
        shape: One device's result.
        dtype: Of the elements.
    """

    kind: str
    axis: str
    bytes: float
    times: int
    seconds: float
    source: str
    why: str
    shape: tuple[int, ...]
    dtype: str


@dataclasses.dataclass(frozen=True)
class MemoryRecord:
    """Bytes on one device. `by_role`: state and inputs by role, results, and what the step itself holds at its peak."""

    peak_bytes: int
    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temp_bytes: int
    by_role: Mapping[str, int]


@dataclasses.dataclass(frozen=True)
class EstimateRecord:
    """What the plan is predicted to cost in one step, on one device."""

    seconds: float
    compute_seconds: float
    collective_seconds: float
    flops: float
    bytes_sent: float
    memory: MemoryRecord
    collectives: tuple[CollectiveRecord, ...]


@dataclasses.dataclass(frozen=True)
class PlanWarning:
    """Something in a plan that costs more than a reader would expect.

    Attributes:
        kind: "fallback" (an operation that could not be cut), "gather" (a value made whole on every device),
            "redundant" (work that every device repeats), "padding", "copied" (dims with fewer pieces than devices), or
            "whole" (state of which no dim divides).
        message: What happens, with its price.
        remedy: What would remove it.
        source: The user's source line, 'file.py:12'; '' where jax recorded none.
        bytes: What one device sends for it in one step.
        seconds: What it costs in one step.
    """

    kind: str
    message: str
    remedy: str
    source: str = ""
    bytes: float = 0.0
    seconds: float = 0.0

    def __str__(self) -> str:
        at = f"{self.source}: " if self.source else ""
        return f"{at}{self.message}. {self.remedy}"


@dataclasses.dataclass(frozen=True)
class CandidateRecord:
    """A decision that the search priced and did not take. None: not priced. `reason`: why it lost."""

    text: str
    seconds: float | None
    peak_bytes: int | None
    bytes_sent: float | None
    feasible: bool
    reason: str


@dataclasses.dataclass(frozen=True)
class PlanRecord:
    """A plan.

    Attributes:
        version: Of the file format.
        fingerprint: Of the program that was planned.
        package_version: That wrote it.
        jax_version: That traced the program.
        cluster: Its name, as given to `cluster=`.
        num_devices: Of the mesh.
        memory_limit_bytes: For one device.
        objective: What was minimized under the limit: "seconds", "memory" or "bytes".
        programs: One today.
        estimate: What it is predicted to cost.
        warnings: What costs more than a reader would expect.
        searched: The candidates that lost, the best first.
        notes: Anything else that the reader should know.
    """

    fingerprint: str
    package_version: str
    jax_version: str
    cluster: str
    num_devices: int
    memory_limit_bytes: int
    objective: str
    programs: tuple[ProgramRecord, ...]
    estimate: EstimateRecord
    warnings: tuple[PlanWarning, ...] = ()
    searched: tuple[CandidateRecord, ...] = ()
    notes: tuple[str, ...] = ()
    version: int = VERSION

    @property
    def program(self) -> ProgramRecord:
        """The only program."""
        (only,) = self.programs
        return only

    @property
    def mesh(self) -> dict[str, int]:
        """Axis → size of the only program's mesh, major to minor."""
        return dict(self.program.mesh)
