"""Programs that plain XLA handles badly, from public threads; more of them where their parts are tested."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import shardwright as sw
from shardwright.cluster import parse
from shardwright.cost.estimate import estimate
from shardwright.partition.device import COLLECTIVES, Move, walk
from shardwright.partition.lower import partition
from shardwright.plan.decision import AxisPlan, Decision
from shardwright.report.warnings import warnings_of
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


def attention(heads, groups, size=16):
    """Causal attention with fewer key-value heads than query heads, and its squared output with the gradients."""

    def attend(w, x):
        q, k, v = ((x @ w[n]).reshape(*x.shape[:2], -1, size) for n in "qkv")
        k, v = (jnp.repeat(y, heads // groups, axis=2) for y in (k, v))
        score = jnp.einsum("bshk,bthk->bhst", q, k) / size**0.5
        score = jnp.where(jnp.tril(jnp.ones((x.shape[1],) * 2, bool)), score, -jnp.inf)
        mixed = jnp.einsum("bhst,bthk->bshk", jax.nn.softmax(score), v)
        return mixed.reshape(*x.shape[:2], heads * size) @ w["o"]

    def gradients(w, x):
        return jax.value_and_grad(lambda w: jnp.square(attend(w, x)).mean())(w)

    widths = {"q": heads * size, "k": groups * size, "v": groups * size}
    rng = np.random.default_rng(0)
    weights = {n: jnp.asarray(rng.normal(size=(128, m)) / 11, jnp.float32) for n, m in widths.items()}
    weights["o"] = jnp.asarray(rng.normal(size=(heads * size, 128)) / 11, jnp.float32)
    return attend, gradients, weights, jnp.asarray(rng.normal(size=(4, 16, 128)), jnp.float32)


TENSOR_PARALLEL = {"w['q']": P(None, "t"), "w['o']": P("t", None), "x": P()}


def shapes_sent(plan):
    return sorted((c.kind, c.shape) for c in plan.estimate.collectives for _ in range(c.times))


def assert_sends_as_predicted(plan):
    """XLA may make one collective of several, and sends the bytes that were predicted."""
    found = traffic(plan.compile().compiled.as_text(), plan.mesh)
    assert {c.kind for c in found} == {c.kind for c in plan.estimate.collectives}
    assert sum(c.sent_bytes for c in found) == pytest.approx(plan.estimate.bytes_sent, rel=0.02)


@pytest.mark.parametrize("groups", [2, 4])
def test_s15_a_few_key_value_heads_are_copied_and_not_gathered(groups):
    """XLA, on a tensor axis of 4 with 2 key-value heads: keys and values are gathered.

    The output is summed once. The gradient needs the cotangents of the 2 heads from the 4 devices, two small sums.
    """
    attend, gradients, weights, x = attention(8, groups)
    output = ("all_reduce", (4, 16, 128))
    for fn in (attend, gradients):
        plan = sw.plan(fn, weights, x, cluster="cpu:4", mesh={"t": 4}, pins=TENSOR_PARALLEL)
        few = [("all_reduce", (4, 16, 2 * 16))] * 2 if groups == 2 and fn is gradients else []
        assert shapes_sent(plan) == sorted([output, *few])
        assert_sends_as_predicted(plan)
        assert plan.inputs[0]["k"] == plan.inputs[0]["v"] == (P(None, None) if groups == 2 else P(None, "t"))
        told = [str(w) for w in plan.warnings if w.kind == "copied"]
        assert len(told) == (groups == 2)
        for text in told:
            assert "has 2 pieces, copied into 8 here, and axis t 4 devices" in text
            assert "the 2, and w['k'], w['v'], are whole on every device" in text
    assert sw.prove(plan, gradients, weights, x, steps=1).ok


def test_s15_without_pins_the_search_finds_the_same():
    _, gradients, weights, x = attention(8, 2)
    free, pinned = (
        sw.plan(gradients, weights, x, cluster="cpu:4", mesh={"t": 4}, pins=pins) for pins in (None, TENSOR_PARALLEL)
    )
    assert free.inputs == pinned.inputs and shapes_sent(free) == shapes_sent(pinned)


def test_s15_heads_that_do_not_divide_are_never_cut_in_two():
    """XLA, 6 heads over 4 devices: three gathers. Here three devices have 2 heads each, and a warning says so.

    The search need not take that: here it cuts the rows instead.
    """
    attend, gradients, weights, x = attention(6, 6)
    found = sw.plan(gradients, weights, x, cluster="cpu:4", mesh={"t": 4})
    assert_sends_as_predicted(found)
    assert sw.prove(found, gradients, weights, x, steps=1).ok
    t = sw.plan(attend, weights, x, cluster="cpu:4", mesh={"t": 4}).traced
    wide = [v for leaf, v in zip(t.program.inputs, t.program.block.invars, strict=True) if leaf.name == "w['q']"]
    heads = t.classes.of[wide[0]][1]
    device = partition(t.program, t.classes, Decision((AxisPlan("t", 4, (heads,)),)))
    moves = [op for op, _ in walk(device.block) if isinstance(op, Move) and op.kind in COLLECTIVES]
    assert [(m.kind, m.outputs[0].shape) for m in moves] == [("all_reduce", (4, 16, 128))]
    (told,) = [
        w for w in warnings_of(t.program, device, estimate(t.program, device, parse("cpu:4"))) if "96" in w.message
    ]
    assert told.kind == "padding" and "cut on axis t and padded to 128" in told.message
