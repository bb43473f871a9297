"""Every route as the program that runs: one compile, all routes of a matrix over two axes, exact on every device."""

from __future__ import annotations

import itertools
import math

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from shardwright.partition.device import DeviceBlock, DeviceProgram, Move, Slot
from shardwright.partition.emit import emit
from shardwright.partition.routes import route
from shardwright.plan.placement import Placement, local_shape, whole, without_partial
from shardwright.program.ir import Aval, Source

MESH = {"x": 2, "y": 3}


def all_placements() -> list[Placement]:
    """Each axis cuts a dim, holds a pending sum or does neither; both orders where both cut one dim."""
    found = []
    for x, y in itertools.product((None, 0, 1, "sum"), repeat=2):
        for order in (("x", "y"), ("y", "x")):
            at = {"x": x, "y": y}
            dims = tuple(tuple(a for a in order if at[a] == d) for d in range(2))
            found.append(Placement(dims, tuple((a, "sum") for a in MESH if at[a] == "sum")))
    return list(dict.fromkeys(found))


class Chains:
    """Moves from one whole input, each placement reached once."""

    def __init__(self, aval, padded):
        self.aval, self.padded, self.ops = aval, padded, []
        self.input = self.slot(whole(aval.ndim))

    def slot(self, placement):
        return Slot(self.aval, placement, local_shape(self.aval.shape, self.padded, placement, MESH))

    def to(self, at, target):
        """`at` moved to `target` by its route."""
        steps = route(self.aval.shape, self.padded, self.aval.itemsize, at.placement, target, tuple(MESH.items()))[1]
        for s in steps:
            after = self.slot(s.target)
            self.ops.append(Move(s.kind, (at,), (after,), s.axes, Source(), s.dim, s.other_dim, s.monoid))
            at = after
        return at

    def start(self, placement):
        """The input in `placement`; of a pending sum the first device holds everything."""
        at = self.to(self.input, without_partial(placement))
        if placement.partial:
            after = self.slot(placement)
            self.ops.append(Move("mask", (at,), (after,), tuple(a for a, _ in placement.partial), Source()))
            at = after
        return at


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(12, 18), (11, 16)])
def test_every_route_runs_exactly(shape):
    """There and back to whole. The second shape divides by nothing, so blocks are padded on the way."""
    chains = Chains(Aval(shape, np.dtype("float32")), tuple(math.ceil(n / 6) * 6 for n in shape))
    settled = [p for p in all_placements() if not p.partial]
    starts = {p: chains.start(p) for p in all_placements()}
    pairs = [(source, target) for source in starts for target in settled]
    outputs = [chains.to(chains.to(starts[source], target), whole(2)) for source, target in pairs]
    program = DeviceProgram(DeviceBlock((chains.input,), tuple(chains.ops), tuple(outputs)), MESH)
    mesh = Mesh(np.array(jax.devices()[:6]).reshape(2, 3), tuple(MESH), axis_types=(AxisType.Auto,) * 2)
    value = np.random.default_rng(0).integers(-99, 99, shape).astype(np.float32)
    results = jax.jit(emit(program, mesh))(jax.device_put(value, NamedSharding(mesh, P())))
    assert len(results) == len(pairs) > 150
    for (source, target), result in zip(pairs, results, strict=True):
        assert len(result.addressable_shards) == 6
        for shard in result.addressable_shards:
            np.testing.assert_array_equal(shard.data, value, err_msg=f"{source} → {target}")
