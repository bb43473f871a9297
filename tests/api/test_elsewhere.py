"""State that lies on these devices is no pin for a plan on others."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import shardwright as sw


def step(w, x):
    value, grad = jax.value_and_grad(lambda w: (jnp.tanh(x @ w) ** 2).mean())(w)
    return w - 0.1 * grad, value


@pytest.fixture
def arguments():
    mesh = Mesh(np.array(jax.devices()), ("x",), axis_types=(AxisType.Auto,))
    return jax.device_put(jnp.ones((256, 256)), NamedSharding(mesh, P(None, "x"))), jnp.ones((64, 256))


@pytest.mark.parametrize(("cluster", "devices"), [("h100:2x8", 16), ("h100:1x8", 8), ("cpu:4", 4)])
def test_a_named_cluster_plans_anew(arguments, cluster, devices):
    plan = sw.plan(step, *arguments, cluster=cluster)
    assert int(np.prod(list(plan.mesh.values()))) == devices
    assert any("w lies on other devices" in note for note in plan.record.notes)
    assert "w" not in plan.record.program.decision.pins


def test_on_its_own_devices_the_state_stays(arguments):
    plan = sw.plan(step, *arguments, cluster="cpu:8")
    assert plan.inputs[0] == P(None, "x")
