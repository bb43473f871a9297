"""The price of each collective in a per-device program, as the estimate has it."""

from __future__ import annotations

import math

from shardwright.cost.estimate import Collective, Estimate, as_run
from shardwright.partition.device import COLLECTIVES, DeviceProgram, Move, walk


def prices(device: DeviceProgram, estimate: Estimate) -> dict[Move, Collective]:
    """Collective → its price over one step.

    Two collectives that agree in kind, axes, place, reader, shape, dtype and number of runs cost the same, so the
    estimate's rows are found by these.

    Args:
        device: The per-device program.
        estimate: Of that program.
    """
    rows = {(c.kind, c.axis, c.source, c.why, c.shape, c.dtype, c.times): c for c in estimate.collectives}
    found = {}
    for op, times in walk(device.block):
        if isinstance(op, Move) and op.kind in COLLECTIVES:
            (result,) = op.outputs
            kind, _ = as_run(op, math.prod(device.mesh[a] for a in op.axes))
            key = (kind, "+".join(op.axes), op.source.line, op.why, result.shape, str(result.aval.dtype), times)
            assert key in rows, f"the estimate is of another program: it has no {op.kind} at {op.source.line!r}"
            found[op] = rows[key]
    return found
