"""Several axes on one dim: the one that computes with it is major, so that state is gathered in one move."""

import numpy as np
import pytest

from shardwright.partition import context, cuts
from shardwright.partition.device import COLLECTIVES, Move, walk
from shardwright.partition.lower import partition
from shardwright.plan.decision import AxisPlan, Decision
from tests.run import proof_steps


def _plan(m, order):
    batch, hidden = m.dim("x", 0), m.dim("state[0]['w1']", 1)
    axes = {"d": AxisPlan("d", 2, (batch,), (hidden,)), "t": AxisPlan("t", 4, (hidden,))}
    return Decision(tuple(axes[a] for a in order))


@pytest.mark.parametrize("order", ["dt", "td"])
def test_computing_axis_is_major_in_the_mesh_s_order_or_not(order, monkeypatch):
    for module in (context, cuts):
        monkeypatch.setattr(module, "SMALL_BYTES", 512)
    m = proof_steps.mlp()
    device = partition(m.program, m.classes, _plan(m, order))
    weights = {leaf.name: slot for leaf, slot in zip(m.program.inputs, device.block.inputs, strict=True)}
    assert weights["state[0]['w1']"].placement.dims == ((), ("t", "d"))
    assert weights["state[0]['w1']"].shape == (64, 8)
    moves = [op for op, _ in walk(device.block) if isinstance(op, Move) and op.kind in COLLECTIVES]
    gathered = [op.axes for op in moves if op.kind == "all_gather"]
    assert gathered and set(gathered) == {("d",)} and not any(op.kind == "permute" for op in moves)
    assert np.prod(list(device.mesh.values())) == 8
