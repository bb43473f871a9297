"""Which dim of state is cut where no compute class occurs, and what a gather of it is shared by."""

import jax
import jax.numpy as jnp
import pytest

from shardwright.partition.context import storage_rank
from shardwright.partition.device import COLLECTIVES, Compute, Move, walk
from shardwright.partition.lower import partition
from shardwright.plan.decision import AxisPlan, Decision
from tests.run.proof_steps import shape, trace


@pytest.mark.parametrize(
    ("dims", "parts", "best"),
    [
        ((512, 2048), 8, 0),  # the major dim: a gather of it needs no copy
        ((2048, 512), 8, 0),
        ((256, 8, 32), 8, 1),  # 32 x 8 x 32 fills a tile of 128 in no layout
        ((2048, 16, 128), 8, 0),
        ((8, 4096), 8, 1),  # 1 x 4096 pads eight sublanes
        ((64, 64), 8, 0),  # no dim does better: the major one
    ],
)
def test_the_dim_in_which_state_lies_best(dims, parts, best):
    assert min(range(len(dims)), key=lambda dim: storage_rank(dims, dim, parts)) == best


def _var(t, name):
    return next(v for leaf, v in zip(t.program.inputs, t.program.block.invars, strict=True) if leaf.name == name)


def _mlp(state, x):
    def loss(p):
        return jnp.mean((jnp.tanh(x @ p["up"]) @ p["down"]) ** 2)

    return jax.tree.map(lambda w, g: w - 0.1 * g, state, jax.grad(loss)(state))


def test_each_weight_is_cut_by_its_own_major_dim():
    """`up` [512, 1024] and `down` [1024, 512] have the same two classes: each is cut by its first."""
    t = trace(_mlp, ({"up": shape(512, 1024), "down": shape(1024, 512)}, shape(64, 512)), ["state", "x"])
    width, hidden = t.classes.of[_var(t, "state['up']")]
    decision = Decision((AxisPlan("d", 4, (t.dim("x", 0),), (width, hidden)),))
    device = partition(t.program, t.classes, decision)
    lies = {leaf.name: s.placement.dims for leaf, s in zip(t.program.inputs, device.block.inputs, strict=True)}
    assert lies["state['up']"] == lies["state['down']"] == (("d",), ())
    kinds = {op.kind for op, _ in walk(device.block) if isinstance(op, Move) and op.kind in COLLECTIVES}
    assert kinds == {"all_gather", "reduce_scatter"}
    updates = [op for op in device.block.ops if isinstance(op, Compute) and op.equation.name == "sub"]
    assert [op.outputs[0].shape for op in updates][-2:] == [(256, 512), (128, 1024)]


def test_an_embedding_and_its_transpose_share_a_gather():
    """Looked up by the first layer and transposed for the last: gathered once, not for each of the two."""

    def step(emb, ids):
        def loss(emb):
            logits = jnp.tanh(emb[ids]) @ emb.T
            return jnp.mean(jax.nn.logsumexp(logits, -1))

        return emb - 0.1 * jax.grad(loss)(emb)

    t = trace(step, (shape(512, 256), shape(64, dtype=jnp.int32)), ["emb", "ids"])
    vocabulary, _ = t.classes.of[_var(t, "emb")]
    device = partition(t.program, t.classes, Decision((AxisPlan("d", 4, (t.dim("ids", 0),), (vocabulary,)),)))
    gathers = [op for op in device.block.ops if isinstance(op, Move) and op.kind == "all_gather"]
    assert [op.outputs[0].shape for op in gathers] == [(512, 256)]
