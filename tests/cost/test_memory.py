"""Predicted memory against what XLA reports of the compiled program."""

import functools

import jax.numpy as jnp
import pytest

from benchmarks import gpt
from benchmarks.forced_plans import capture_step, decisions, plan_of
from shardwright.cluster import parse
from shardwright.cost.lifetimes import lifetimes
from shardwright.cost.memory import memory_of
from shardwright.cost.order import combined, depth_first
from shardwright.cost.storage import stored, workspace_bytes
from shardwright.partition.device import Compute, Move
from shardwright.partition.lower import partition
from shardwright.plan.decision import AxisPlan, Decision
from shardwright.run.devices import make_mesh
from shardwright.run.execute import compile_program
from shardwright.search.search import lowered_for
from tests.corpus import check
from tests.run.proof_steps import one_axis, shape, trace


@functools.cache
def _step():
    return capture_step(gpt.Config(vocab=512, width=64, heads=8, hidden=256, layers=3, sequence=64, batch=16))


@pytest.mark.parametrize("scheme", ["dp", "fsdp", "tp", "tp_sp", "fsdp_tp"])
def test_a_transformer_holds_what_was_predicted(scheme):
    s = _step()
    plan = plan_of(s, decisions(s, 8)[scheme], "cpu:8")
    reported = plan.compile().compiled.memory_analysis()
    assert plan.estimate.memory.temp_bytes == pytest.approx(reported.temp_size_in_bytes, rel=0.03)
    assert plan.estimate.memory.argument_bytes == reported.argument_size_in_bytes


def _partitioned(step, *args, names, cut=0, size=4):
    t = trace(step, args, names)
    return t, partition(t.program, t.classes, one_axis(size, (t.dim(names[0], cut),)))


def _temp(t, device, size=4):
    """(predicted, reported by XLA) bytes."""
    predicted = memory_of(t.program, lowered_for(parse(f"cpu:{size}"), device), "cpu").temp_bytes
    run = compile_program(t.program, device, make_mesh({"x": size}))
    return predicted, run.compiled.memory_analysis().temp_size_in_bytes


def test_reductions_that_do_not_wait_for_each_other_are_held_at_once():
    """XLA makes one all-reduce of three: six blocks of [32, 64] at one time, not four."""

    def step(x, a, b, c):
        return tuple(jnp.tanh(x.T @ w).sum(0) for w in (a, b, c))

    w = shape(64, 64)
    t, device = _partitioned(step, shape(64, 32), w, w, w, names=["x", "a", "b", "c"])
    reduced = [op for op in device.block.ops if isinstance(op, Move) and op.kind == "all_reduce"]
    assert len(reduced) == 3 and set(combined(device.block, "cpu").values()) == {reduced[0]}
    predicted, reported = _temp(t, device)
    assert predicted == pytest.approx(6 * 32 * 64 * 4, rel=0.02)
    assert predicted == pytest.approx(reported, rel=0.02)


@pytest.mark.parametrize(("platform", "gathers"), [("cpu", 0), ("gpu", 1), ("tpu", 0)])
def test_gathers_are_one_on_gpu_alone(platform, gathers):
    """Three weights that nothing waits for: one gather on GPU."""

    def step(x, a, b, c):
        return sum(jnp.tanh(x @ w).sum() for w in (a, b, c))

    w = shape(256, 256)
    t = trace(step, (shape(64, 256), w, w, w), ["x", "a", "b", "c"])
    pins = dict.fromkeys("abc", (("x",), ()))
    block = partition(t.program, t.classes, Decision((AxisPlan("x", 4, (t.dim("x", 0),)),), pins)).block
    assert sum(isinstance(op, Move) and op.kind == "all_gather" for op in block.ops) == 3
    leaders = combined(block, platform)
    assert len({lead for op, lead in leaders.items() if op.kind == "all_gather"}) == gathers


def test_reductions_that_wait_stay_apart():
    def step(x):
        return (jnp.tanh(x * (x * x).sum(0)) ** 2).sum(0)

    _, device = _partitioned(step, shape(8, 64), names=["x"])
    first, second = (op for op in device.block.ops if isinstance(op, Move) and op.kind == "all_reduce")
    assert combined(device.block, "cpu") == {first: first, second: second}


def test_what_most_wait_for_runs_first():
    """`wide` is ready first in the program; the walk from the result meets the product with more behind it first."""

    def step(x, w):
        wide = jnp.outer(x[:, 0], jnp.ones(512))
        product = jnp.tanh(x @ w) @ w
        return (product @ product.T @ wide).sum(1) + product.sum(1) + x.sum(1)

    _, device = _partitioned(step, shape(64, 64), shape(64, 64), names=["x", "w"])
    block = device.block
    kept = stored(block)
    ordered = depth_first(block, kept, {})
    assert sorted(map(id, ordered.ops)) == sorted(map(id, block.ops))
    made = set(block.inputs)
    for op in ordered.ops:
        assert all(x in made for x in op.inputs if not hasattr(x, "value"))
        made.update(op.outputs)
    products = [op for op in ordered.ops if isinstance(op, Compute) and op.equation.name == "dot_general"]
    assert products[0].outputs[0].shape == (16, 64)


def test_a_carry_that_is_read_after_its_successor_is_made_is_copied():
    """The loop's weight gradient does not stand before the next carry: XLA copies the carry, and so do we."""
    s = _step()
    (scan,) = (e for e in _controls(s, "dp") if len(e.outputs) > 5 and e.equation.params["reverse"])
    (body,) = scan.bodies
    born, _ = lifetimes(body, stored(body), set(), scan.equation.params)
    carried = body.inputs[scan.equation.params["num_consts"] :][: scan.equation.params["num_carry"]]
    assert [x.shape for x in carried if x in born] == [(2, 64, 64)]


def _controls(s, scheme):
    device = lowered_for(parse("cpu:8"), partition(s.program, s.classes, decisions(s, 8)[scheme]))
    return [op for op in device.block.ops if type(op).__name__ == "Control"]


@pytest.mark.parametrize(("dim", "copied"), [(0, 0), (1, 64 * 64 * 4)])
def test_a_gather_of_a_minor_dim_is_copied(dim, copied):
    _, device = _partitioned(lambda x, w: jnp.tanh(x) @ w, shape(64, 64), shape(64, 64), names=["x", "w"], cut=dim)
    gathers = [op for op in device.block.ops if isinstance(op, Move) and op.kind in ("all_gather", "reduce_scatter")]
    for op in gathers:
        assert workspace_bytes(op) == (copied if op.dim else 0)


def test_bfloat16_is_held_as_float32_on_cpu_alone():
    def step(x, w):
        return jnp.tanh(jnp.tanh(x @ w) @ w).sum()

    t, device = _partitioned(
        step, shape(64, 64, dtype=jnp.bfloat16), shape(64, 64, dtype=jnp.bfloat16), names=["x", "w"]
    )
    cpu, tpu = (memory_of(t.program, device, platform).temp_bytes for platform in ("cpu", "tpu"))
    assert tpu < cpu <= 2 * tpu + 64


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["batch", "state", "two axes"])
@pytest.mark.parametrize("name", ["lstm", "remat", "flax transformer", "accumulation_by_index", "mixed_precision"])
def test_the_corpus_holds_about_what_was_predicted(name, kind, monkeypatch):
    from tests.corpus.catalog import PROGRAMS

    check.small_leaves_are_cut(monkeypatch)
    traced = check.trace(PROGRAMS[name]())
    device = check.partitioned(traced, check.forced(traced)[kind])
    predicted = memory_of(traced.program, check.lowered_for(parse("cpu:8"), device), "cpu").temp_bytes
    run = compile_program(traced.program, device, make_mesh(device.mesh))
    assert 0.85 <= predicted / run.compiled.memory_analysis().temp_size_in_bytes <= 1.4
