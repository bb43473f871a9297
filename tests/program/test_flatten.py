"""Calls are inlined, dead code goes, and what is left computes the same."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardwright.program.evaluate import evaluate
from shardwright.program.flatten import flatten
from shardwright.program.ir import walk


def flat(fn, *args):
    return flatten(jax.make_jaxpr(fn)(*args))


def names(block):
    return [e.name for e in walk(block)]


def assert_same(fn, *args):
    block = flat(fn, *args)
    results = jax.jit(lambda *values: evaluate(block, values))(*args)
    for a, b in zip(results, jax.tree.leaves(jax.jit(fn)(*args)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
    return block


MATRIX = jax.random.normal(jax.random.key(0), (6, 6)) + 6 * jnp.eye(6)


@pytest.mark.parametrize(
    "fn",
    [
        lambda a: jax.nn.relu(jax.nn.silu(a)),
        lambda a: jnp.where(a > 0, a, 0),
        jax.grad(lambda a: jax.nn.gelu(a).sum()),
        jax.grad(lambda a: jax.checkpoint(lambda b: jnp.sin(b) ** 2)(a).sum()),
    ],
)
def test_calls_are_inlined(fn):
    block = assert_same(fn, MATRIX)
    assert not {"jit", "pjit", "custom_jvp_call", "custom_vjp_call", "remat2", "checkpoint"} & set(names(block))


def test_a_linear_solve_is_its_solver():
    block = assert_same(jax.grad(lambda a: jnp.linalg.solve(a, jnp.ones((6, 2))).sum()), MATRIX)
    assert "custom_linear_solve" not in names(block) and "triangular_solve" in names(block)


def test_a_move_to_no_device_in_particular_is_nothing():
    assert names(assert_same(lambda a: jax.device_put(a) + 1, MATRIX)) == ["add"]


def test_recomputation_stays_behind_a_barrier():
    block = flat(jax.grad(lambda a: jax.checkpoint(lambda b: jnp.sin(jnp.sin(b)))(a).sum()), MATRIX)
    order = names(block)
    assert order.count("optimization_barrier") == 1
    assert order.index("optimization_barrier") < order.index("cos")


def test_dead_code_goes():
    block = assert_same(lambda a: (jnp.sin(a), jnp.cos(a) * 3)[0], MATRIX)
    assert names(block) == ["sin"]


def test_a_scan_loses_what_nobody_reads():
    def step(a):
        def turn(carry, x):
            used, unused = carry
            return (used + x.sum(), unused * 2), (jnp.sin(x), jnp.cos(x))

        (used, _), (sines, _) = jax.lax.scan(turn, (0.0, 1.0), a)
        return used, sines

    block = assert_same(step, MATRIX)
    (scan,) = [e for e in block.equations if e.name == "scan"]
    assert scan.params["num_carry"] == 1 and len(scan.outvars) == 2 and "cos" not in names(block)


def test_a_carry_that_another_carry_reads_stays():
    def step(a):
        def turn(carry, x):
            seen, hidden = carry
            return (seen + hidden, hidden * x.mean()), None

        (seen, _), _ = jax.lax.scan(turn, (0.0, 1.0), a)
        return seen

    block = assert_same(step, MATRIX)
    (scan,) = [e for e in block.equations if e.name == "scan"]
    assert scan.params["num_carry"] == 2


def test_effects_stay():
    block = flat(lambda a: [jax.debug.print("{}", a.sum()), a + 1][1], MATRIX)
    assert any("debug" in n for n in names(block))


def test_equal_equations_become_one():
    def fn(a):
        first, second = jnp.sin(a).sum(0), jnp.sin(a).sum(0)
        return first * second + jnp.sin(a).sum(1)

    order = names(assert_same(fn, MATRIX))
    assert [order.count(name) for name in ("sin", "reduce_sum", "mul")] == [1, 2, 1]


def test_equal_values_of_dims_that_no_operand_has_stay_apart():
    """Two scalings by one rate, two counters, two draws: one is over rows, the other over columns."""

    def fn(a, rate, key):
        rows, columns = (rate * jax.lax.broadcasted_iota(jnp.float32, (6, 6), 0) for _ in range(2))
        noise, more = (jax.random.bits(key, (6, 6)) for _ in range(2))
        return a * rows, a.T * columns, a + noise, a.T + more

    block = flatten(jax.make_jaxpr(fn)(MATRIX, 0.1, jax.random.key(0)))
    for name in ("iota", "random_bits", "mul"):
        assert names(block).count(name) == {"iota": 2, "random_bits": 2, "mul": 4}[name]


def test_equal_equations_inside_a_loop_become_one():
    fn = lambda a: jax.lax.fori_loop(0, 3, lambda i, x: jnp.sin(x) + jnp.sin(x), a)  # noqa: E731
    assert names(assert_same(fn, MATRIX)).count("sin") == 1


def test_prints_are_never_equal():
    def fn(a):
        for _ in range(2):
            jax.debug.print("{}", a.sum())
        return a

    order = names(flat(fn, MATRIX))
    assert order.count("reduce_sum") == 1
    assert sum("debug" in name for name in order) == 2


def test_recomputation_is_not_equal_to_what_it_repeats():
    fn = jax.grad(lambda a: jax.checkpoint(lambda b: jnp.sin(jnp.sin(b)))(a).sum())
    assert names(assert_same(fn, MATRIX)).count("sin") >= 1
    unrolled = jax.value_and_grad(lambda a: jax.checkpoint(lambda b: jnp.sin(jnp.sin(b)))(a).sum())
    assert names(assert_same(unrolled, MATRIX)).count("sin") == 3


def test_reversing_a_dim_of_size_one_is_nothing():
    assert names(assert_same(lambda a: jax.lax.rev(a[:1], (0,)) + 1, MATRIX)) == ["slice", "add"]
