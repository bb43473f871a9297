"""The one-device evaluator: on one device it is the step, bit for bit."""

import jax
import numpy as np
import pytest

from shardwright.program.evaluate import evaluate
from shardwright.run.inputs import Inputs
from tests.run import proof_steps

_STEPS = {
    "mlp": proof_steps.mlp,
    "transformer": proof_steps.transformer,
    "bfloat16": proof_steps.bfloat16_dropout,
    "lstm": proof_steps.lstm,
}


@pytest.mark.parametrize("name", _STEPS)
def test_is_the_step(name):
    traced = _STEPS[name]()
    values = Inputs(traced.program, traced.made_up).at(0)
    got = jax.jit(lambda *x: evaluate(traced.program.block, x))(*values)
    want = jax.jit(traced.flat_step)(*values)
    for leaf, a, b in zip(traced.program.outputs, got, want, strict=True):
        assert a.dtype == b.dtype == leaf.aval.dtype
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b), err_msg=leaf.name)
