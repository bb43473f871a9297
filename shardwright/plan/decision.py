"""What the search decides: for each mesh axis the classes of dims that it cuts, in order of preference.

Every placement follows from this. An equation is cut on an axis by the first class of `compute` among its factors; if
it has none, by one of `store`: that by which its operands lie cut, else that in which the result lies best. So with
`compute=(batch,)` and `store=(width,)` forward and backward run data parallel, and the update, which has no batch, runs
on shards of the weights: a gradient's pending sum meets a sharded consumer and becomes a reduce-scatter.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from shardwright.program.ir import Role


@dataclasses.dataclass(frozen=True)
class AxisPlan:
    """What one mesh axis cuts.

    Attributes:
      axis: name of the mesh axis.
      size: devices along it.
      compute: ids of the classes that it cuts wherever they occur, the most preferred first.
      store: ids of the classes that it cuts where no `compute` class occurs: state, and what updates it.
      rest: roles of the leaves that `store` cuts between steps; leaves of other roles lie whole on this axis.
    """

    axis: str
    size: int
    compute: tuple[int, ...] = ()
    store: tuple[int, ...] = ()
    rest: frozenset[Role] = frozenset({Role.PARAMETER, Role.OPTIMIZER})


@dataclasses.dataclass(frozen=True)
class Decision:
    """A plan's content.

    Attributes:
      axes: one entry a mesh axis, major to minor.
      pins: leaf name → axes of each dim; None leaves a dim free.
      partial_carries: whether a loop's accumulators hold each device's own sum until the loop has ended (one reduction,
        a whole buffer) or are reduced in every turn (a sharded buffer).
      regather: whether what was gathered for the forward is gathered again for the backward, rather than kept in
        between. Inside loops this is so anyway.
    """

    axes: tuple[AxisPlan, ...]
    pins: Mapping[str, tuple[tuple[str, ...] | None, ...]] = dataclasses.field(default_factory=dict)
    partial_carries: bool = True
    regather: bool = False

    @property
    def mesh(self) -> dict[str, int]:
        """Axis → size, major to minor."""
        return {a.axis: a.size for a in self.axes}

    def parts(self, dim_class: int) -> int:
        """Product of the sizes of the axes that cut this class somewhere."""
        return math.prod(a.size for a in self.axes if dim_class in a.compute or dim_class in a.store)
