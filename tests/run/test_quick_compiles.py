"""The fixture of the proofs' tests leaves no trace in those that come later."""

import jax
import jax.numpy as jnp

from tests.run.conftest import few_optimizations


def test_what_was_compiled_with_few_optimizations_is_not_kept():
    traces = []

    @jax.jit
    def step(x):
        traces.append(x)
        return x + 1

    x = jnp.ones(3)
    with few_optimizations():
        assert step(x)[0] == step(x)[0] == 2 and len(traces) == 1
    assert step(x)[0] == 2 and len(traces) == 2
