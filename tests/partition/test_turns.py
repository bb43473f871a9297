"""What must not run at the same time on CPU devices waits: see shardwright/partition/turns.py."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import shardwright as sw
from shardwright.partition.device import COLLECTIVES, Control, Move, Slot, walk
from shardwright.partition.lower import partition
from shardwright.partition.turns import in_turn

WIDTH, ROWS, TURNS = 48, 24, 12


def recurrent(weights, x, *, independent):
    """A loop that gathers in each turn, and a gather that nothing makes wait for it, or that waits by itself."""

    def turn(h, x):
        return jnp.tanh(sw.pin(h, P(None, None)) @ weights["inner"] + sw.pin(x, P(None, "x"))), h.sum()

    h, sums = jax.lax.scan(turn, x[0], x)
    other = weights["outer"] if independent else weights["outer"] * h.mean()
    return sw.pin(jnp.sin(other), P(None, None)) @ sw.pin(h, P(None, None)).T, sums


def arguments():
    rng = np.random.default_rng(0)
    weights = {"inner": rng.normal(size=(WIDTH, WIDTH)) / 7, "outer": rng.normal(size=(WIDTH, WIDTH))}
    return jax.tree.map(np.float32, weights), rng.normal(size=(TURNS, ROWS, WIDTH)).astype(np.float32)


PINS = {"weights['inner']": P(None, "x"), "weights['outer']": P("x"), "x": P(None, None, "x")}


def planned(independent):
    step = functools.partial(recurrent, independent=independent)
    return step, sw.plan(step, *arguments(), cluster="cpu:8", mesh={"x": 8}, pins=PINS)


def communicates(op):
    if isinstance(op, Control):
        return any(communicates(inner) for body in op.bodies for inner in body.ops)
    return isinstance(op, Move) and op.kind in COLLECTIVES


def unordered(block):
    """Pairs of communicating operations of one block, a loop among them, of which neither waits for the other."""
    behind, seen, found = {}, [], []
    for op in block.ops:
        upstream = set().union(*(behind.get(x, set()) for x in op.inputs if isinstance(x, Slot)))
        if isinstance(op, Control):
            for body in op.bodies:
                found += unordered(body)
        if communicates(op):
            found += [(other, op) for other in seen if other not in upstream and {type(other), type(op)} & {Control}]
            seen.append(op)
            upstream = upstream | {op}
        behind.update((s, upstream) for s in op.outputs)
    return found


@pytest.mark.parametrize("independent", [True, False])
def test_loops_and_collectives_are_ordered(independent):
    _, plan = planned(independent)
    t = plan.traced
    plain = partition(t.program, t.classes, t.decision)
    assert any(isinstance(op, Control) and communicates(op) for op, _ in walk(plain.block))
    assert bool(unordered(plain.block)) == independent
    ordered = in_turn(plain)
    assert not unordered(ordered.block)
    waits = [op for op, _ in walk(ordered.block) if isinstance(op, Move) and op.kind == "wait"]
    assert bool(waits) == independent
    assert not any(
        isinstance(op, Move) and op.kind == "wait" for op, _ in walk(in_turn(ordered).block) if op not in waits
    )
    assert [op.kind for op, _ in walk(t.device.block) if isinstance(op, Move)].count("wait") == len(waits)


def test_the_compiler_keeps_the_wait():
    """In the compiled text each collective reads what the loop made, or the loop what the collective made."""
    _, plan = planned(independent=True)
    text = plan.compile().compiled.as_text()
    entry = text[text.index("ENTRY") :]
    lines = {
        line.split(" = ")[0].strip().removeprefix("ROOT ").lstrip("%"): line
        for line in entry.splitlines()
        if " = " in line
    }

    def upstream(name, seen):
        if name not in seen and name in lines:
            seen.add(name)
            operands = lines[name].split(" = ")[1].split(", metadata=")[0]
            for other in lines:
                if f"%{other}" in operands.replace(",", " ").replace(")", " ").replace("(", " ").split():
                    upstream(other, seen)
        return seen

    (loop,) = [name for name, line in lines.items() if " while(" in line]
    gathers = [name for name, line in lines.items() if " all-gather(" in line]
    assert len(gathers) >= 2
    for name in gathers:
        assert loop in upstream(name, set()) or name in upstream(loop, set()), f"{name} runs beside {loop}"


def test_many_runs_agree():
    step, plan = planned(independent=True)
    fn, args = plan.compile(), arguments()
    wanted = jax.jit(step)(*args)
    for _ in range(10):
        for got, want in zip(fn(*args), wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4)


# What a branch passes through, and loops of keys alone


def gradient(w, x):
    return jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)


def update_or_keep(state, x, ok):
    a, b = state
    a = jax.lax.cond(ok, lambda w: w - gradient(w, x), lambda w: w, a)
    return a, b - gradient(b, x)


def update_either(state, x, ok):
    a, b = state
    a = jax.lax.cond(ok, lambda w: w - gradient(w, x), lambda w: w, a)
    return a, jax.lax.cond(ok, lambda w: w, lambda w: w - gradient(w, x), b)


def draws_of_a_loop(state, x, ok):
    def turn(key, row):
        key = jax.random.split(jax.random.fold_in(key, jnp.sum(row > 0)))[0]
        return key, None

    key, _ = jax.lax.scan(turn, jax.random.key(0), x)
    other, _ = jax.lax.scan(turn, jax.random.key(1), x)
    return jax.tree.map(lambda w: w + jax.random.normal(key, w.shape) * jax.random.normal(other, w.shape), state)


@pytest.mark.parametrize("ok", [True, False])
@pytest.mark.parametrize("step", [update_or_keep, update_either, draws_of_a_loop])
def test_branches_that_keep_and_loops_of_keys(step, ok):
    rng = np.random.default_rng(0)
    state = tuple(rng.normal(size=(8, 8)).astype(np.float32) for _ in range(2))
    x = rng.normal(size=(64, 8)).astype(np.float32)
    pins = {"x": P(None, "x")} if step is draws_of_a_loop else {"x": P("x")}
    plan = sw.plan(step, state, x, ok, cluster="cpu:8", mesh={"x": 8}, pins=pins)
    if step is not draws_of_a_loop:
        assert any(isinstance(op, Move) and op.kind == "wait" for op in plan.traced.device.block.ops)
    for got, wanted in zip(plan.compile()(state, x, ok), jax.jit(step)(state, x, ok), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
