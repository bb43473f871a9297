"""Classes with too few pieces for their axes: where the pieces are copied, the copies are cut."""

import math
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from shardwright.partition.device import COLLECTIVES, DeviceBlock, DeviceProgram, Move, Slot, walk
from shardwright.partition.emit import emit
from shardwright.partition.finer import finer
from shardwright.plan.decision import AxisPlan, Decision
from shardwright.plan.placement import Placement, local_shape
from shardwright.program.ir import Aval, Source
from tests.corpus import check
from tests.corpus.attention import grouped_query
from tests.corpus.case import Case, shape

BATCH, SEQUENCE, WIDTH, SIZE = 4, 6, 32, 4


def class_of(traced, name, dim):
    variables = dict(zip([leaf.name for leaf in traced.program.inputs], traced.program.block.invars, strict=True))
    return traced.classes.of[variables[name]][dim]


def cut_heads(traced, dim=1, **axes):
    """The decision that cuts the class of the query projection's columns on these axes."""
    c = class_of(traced, "params['q']", dim)
    return Decision(tuple(AxisPlan(axis, n, (c,)) for axis, n in axes.items()))


def attention(heads, groups):
    return check.trace(grouped_query(BATCH, SEQUENCE, WIDTH, heads, groups, SIZE))


def collectives(device):
    return [
        (op.kind, op.outputs[0].shape)
        for op, _ in walk(device.block)
        if isinstance(op, Move) and op.kind in COLLECTIVES
    ]


# What is kept apart


@pytest.mark.parametrize(
    ("heads", "groups", "devices", "copied"),
    [
        (8, 2, 4, True),
        (8, 2, 8, True),
        (8, 4, 4, False),  # divides
        (6, 6, 4, False),  # no copies: what is as fine as the columns of the weights would have to be gathered
        (6, 3, 4, False),  # the copies do not divide either
        (12, 6, 4, False),  # padded, a device computes 2/6; with 6 whole it would compute more
    ],
)
def test_copies_are_cut_where_that_is_less_work(heads, groups, devices, copied):
    """Per token the work of a query head (two projections, two products with the rows) is q, of a key-value head k.

    The share of the copies is w = heads·q / (heads·q + groups·k); they pay if w/p + 1 - w < ceil(groups/p) / groups.
    """
    query, key_value = 2 * WIDTH + 2 * SEQUENCE, 2 * WIDTH
    w = heads * query / (heads * query + groups * key_value)
    pays = w / devices + 1 - w < math.ceil(groups / devices) / groups
    assert copied == (groups % devices > 0 and heads % devices == 0 and pays)
    traced = attention(heads, groups)
    decision = cut_heads(traced, t=devices)
    classes, new, whole = finer(traced.program, traced.classes, decision)
    if not copied:
        assert classes is traced.classes and new is decision and whole == ()
        return
    (found,) = whole
    assert (found.pieces, found.copies, found.axes, found.parts) == (groups, heads, ("t",), devices)
    assert found.whole == ("params['k']", "params['v']")
    assert [classes.all[c].size for c in new.axes[0].compute] == [heads]


def test_only_copies_are_kept_apart():
    """Rows that are grouped, and read as groups: nothing says that the groups' members are alike."""

    def step(params, x):
        grouped = jnp.tanh((x @ params["q"]).reshape(BATCH, 2, 4 * SIZE))
        return jnp.einsum("bgk,bgk->bg", grouped, grouped), grouped.reshape(BATCH, -1) @ params["o"]

    params = {"q": shape(WIDTH, 8 * SIZE), "o": shape(8 * SIZE, WIDTH)}
    traced = check.trace(Case(step, (params, shape(BATCH, WIDTH))))
    assert traced.classes.all[class_of(traced, "params['q']", 1)].size == 2
    assert finer(traced.program, traced.classes, cut_heads(traced, t=4))[0] is traced.classes


# What is computed and sent


def test_few_key_value_heads_are_whole_and_their_cotangents_are_summed():
    traced = attention(8, 2)
    device = check.partitioned(traced, cut_heads(traced, t=4))
    tokens = (BATCH, SEQUENCE)
    assert Counter(collectives(device)) == {
        ("all_reduce", (*tokens, WIDTH)): 1,  # the output
        ("all_reduce", (*tokens, 2 * SIZE)): 2,  # cotangents of keys and values
    }
    check.holds(traced, device)


def test_groups_that_are_summed_and_copied_back():
    """The mean of each of 2 groups of 8 columns, on 4 devices: half a group each, and the sums travel."""

    def step(params, x):
        def loss(params):
            y = x @ params["q"]
            mean = y.reshape(BATCH, 2, 8).sum(2) / 8
            return (((y - jnp.repeat(mean, 8, axis=1)) @ params["o"]) ** 2).mean()

        value, grads = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    params = {"q": shape(WIDTH, 16), "o": shape(16, WIDTH)}
    traced = check.trace(Case(step, (params, shape(BATCH, WIDTH))))
    device = check.partitioned(traced, cut_heads(traced, t=4))
    assert device.copied
    assert Counter(collectives(device)) == {("all_reduce", (BATCH, WIDTH)): 1, ("all_reduce", (BATCH, 2)): 2}
    check.holds(traced, device)


def layers(remat):
    """Two layers in a scan, gradient descent."""

    def layer(x, w):
        q = (x @ w["q"]).reshape(BATCH, SEQUENCE, 8, SIZE)
        k, v = ((x @ w[n]).reshape(BATCH, SEQUENCE, 2, SIZE) for n in "kv")
        k, v = (jnp.broadcast_to(y[:, :, :, None], (BATCH, SEQUENCE, 2, 4, SIZE)).reshape(q.shape) for y in (k, v))
        score = jax.nn.softmax(jnp.einsum("bshk,bthk->bhst", q, k))
        return x + jnp.einsum("bhst,bthk->bshk", score, v).reshape(BATCH, SEQUENCE, -1) @ w["o"], None

    def step(params, x):
        body = jax.checkpoint(layer) if remat else layer
        loss, grads = jax.value_and_grad(lambda p: (jax.lax.scan(body, x, p)[0] ** 2).mean())(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss

    params = {n: shape(2, WIDTH, h * SIZE) for n, h in zip("qkv", (8, 2, 2), strict=True)} | {
        "o": shape(2, 8 * SIZE, WIDTH)
    }
    return check.trace(Case(step, (params, shape(BATCH, SEQUENCE, WIDTH))))


@pytest.mark.slow
@pytest.mark.parametrize("remat", [False, True])
@pytest.mark.parametrize("axes", [{"t": 4}, {"d": 2, "t": 4}, {"s": 4, "t": 2}])
def test_in_a_loop_on_one_and_two_axes(remat, axes):
    """Beside the batch on another axis, and with two axes that cut the heads together."""
    traced = layers(remat)
    decision = cut_heads(traced, 2, **axes)
    if "d" in axes:
        batch = AxisPlan("d", axes["d"], (class_of(traced, "x", 0),))
        decision = Decision((batch, decision.axes[1]))
    device = check.partitioned(traced, decision)
    assert device.copied and not [c for c in collectives(device) if c[0] == "all_gather"]
    check.holds(traced, device)


def test_nothing_is_told_where_the_rows_are_cut_first():
    """Every value that has the copies has rows too, and the axis prefers those."""
    traced = attention(8, 2)
    heads = class_of(traced, "params['q']", 1)
    device = check.partitioned(traced, Decision((AxisPlan("t", 4, (class_of(traced, "x", 0), heads)),)))
    assert device.copied == ()


# The move


@pytest.mark.parametrize(("axes", "kept"), [(("y",), ("x",)), (("x", "y"), ()), (("y", "x"), ())])
@pytest.mark.parametrize("size", [12, 11])
def test_expand_puts_blocks_between_zeros(axes, kept, size):
    """The sum over the axes is the whole; the second size is padded to 12 where it is cut."""
    mesh, aval = {"x": 2, "y": 3}, Aval((4, size), np.dtype("float32"))

    def slot(placement):
        return Slot(aval, placement, local_shape(aval.shape, (4, 12), placement, mesh))

    cut, left = Placement(((), (*kept, *axes))), Placement(((), kept))
    pending = Placement(left.dims, tuple((a, "sum") for a in sorted(axes)))
    start, blocks, placed, summed, end = slots = [
        slot(p) for p in (Placement(((), ())), cut, pending, left, Placement(((), ())))
    ]
    moves = [
        Move("slice", (start,), (blocks,), (*kept, *axes), Source(), 1),
        Move("expand", (blocks,), (placed,), axes, Source(), 1),
        Move("all_reduce", (placed,), (summed,), axes, Source()),
    ]
    if kept:
        moves.append(Move("all_gather", (summed,), (end,), kept, Source(), 1))
    program = DeviceProgram(DeviceBlock((start,), tuple(moves), (slots[4 if kept else 3],)), mesh)
    devices = Mesh(np.array(jax.devices()[:6]).reshape(2, 3), tuple(mesh), axis_types=(AxisType.Auto,) * 2)
    value = np.arange(4 * size, dtype=np.float32).reshape(4, size)
    (result,) = jax.jit(emit(program, devices))(jax.device_put(value, NamedSharding(devices, P())))
    assert len(result.addressable_shards) == 6
    for shard in result.addressable_shards:
        np.testing.assert_array_equal(shard.data, value)
