"""Programs that plain XLA handles badly, from public threads; more of them where their parts are tested."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import shardwright as sw
from shardwright.run.traffic import traffic
from tests.api.steps import assert_close, grid, put

LAYERS, WIDTH = 12, 256


def chain(weights, x):
    """Gradient of a chain of products, every weight a leaf of its own."""

    def loss(weights):
        y = x
        for w in weights:
            y = jnp.tanh(y @ w)
        return jnp.square(y).mean()

    return jax.value_and_grad(loss)(weights)


@pytest.mark.parametrize("rows", [32, 4096])
def test_s19_a_chain_of_sharded_weights_gathers_each_and_nothing_else(rows):
    """XLA: 12 weight gathers, 23 all-to-alls and 12 gathers of activations.

    With many rows the weights are gathered, once for both passes, and their gradients scattered. With 32 rows it is
    cheaper to cut the products by the dim that the weights lie cut by, and gather the activations.
    """
    mesh, rng = grid(d=8), np.random.default_rng(0)
    weights = [put(rng.normal(size=(WIDTH, WIDTH)).astype(np.float32) / 16, mesh, P("d")) for _ in range(LAYERS)]
    x = put(rng.normal(size=(rows, WIDTH)).astype(np.float32), mesh, P("d"))
    plan = sw.plan(chain, weights, x)
    assert plan.inputs == ([P("d", None)] * LAYERS, P("d", None)), "they are kept where they lie"
    predicted = Counter()
    for c in plan.estimate.collectives:
        predicted[c.kind] += c.times
    weight_bytes = WIDTH * WIDTH * 4 * 7 / 8  # what a gather of one weight, or a scatter of its gradient, sends
    if rows == 4096:
        assert predicted == {"all_gather": LAYERS, "reduce_scatter": LAYERS, "all_reduce": 1}
        assert plan.estimate.bytes_sent == pytest.approx(2 * LAYERS * weight_bytes, rel=1e-3)
    else:
        assert plan.estimate.bytes_sent < 2 * LAYERS * weight_bytes / 5
    fn = plan.compile()
    found = traffic(fn.compiled.as_text(), plan.mesh)
    counted = Counter()
    for c in found:
        counted[c.kind] += c.times
    assert counted == predicted
    assert sum(c.sent_bytes for c in found) == pytest.approx(plan.estimate.bytes_sent, rel=0.02)
    if rows == 32:
        assert_close(fn(weights, x), jax.jit(chain)(*jax.tree.map(np.asarray, (weights, x))))
