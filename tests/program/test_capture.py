"""What `capture` says of a step that cannot be traced."""

import jax
import jax.numpy as jnp
import pytest

from shardwright.program.capture import capture

STEP = """
def step(x):
    if x.sum() > 0:
        return x
    return -x
"""


@pytest.mark.parametrize(
    "file",
    [
        "train.py",
        "<stdin>",  # Python's prompt
        "<stdin>-3",
        "<python-input-7>",  # the same, from Python 3.13 on
        "<ipython-input-4-0123456789ab>",
        "/tmp/ipykernel_1234/3216549870.py",  # a cell of a notebook
    ],
)
def test_the_line_at_fault_is_told_wherever_the_step_was_written(file):
    namespace = {}
    exec(compile(STEP, file, "exec"), namespace)
    x = jax.ShapeDtypeStruct((4,), jnp.float32)
    with pytest.raises(ValueError, match="cannot be traced") as raised:
        capture(namespace["step"], (x,), {}, names=["x"])
    assert f"at {file}:3 (step)" in str(raised.value)
