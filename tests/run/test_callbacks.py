"""Callbacks that would hang on virtual CPU devices are warned of, and what the warning says helps."""

import os
import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from shardwright.program.capture import capture
from shardwright.run.callbacks import COPIED_AT_ONCE_BYTES, warn_of_callbacks

EDGE = COPIED_AT_ONCE_BYTES // 4  # elements


def pure(x):
    return jax.pure_callback(lambda v: np.float32(v.sum()), jax.ShapeDtypeStruct((), x.dtype), x)


def report(x):
    jax.debug.callback(lambda v: None, x)
    return x.sum()


def show(x):
    jax.debug.print("{}", x)
    return x.sum()


def said(step, size, num_devices=8):
    """The warning's text, '' for none."""
    program = capture(step, (jax.ShapeDtypeStruct((size,), jnp.float32),), {}, names=["x"])
    devices = jax.devices()[:num_devices]
    assert len(devices) == num_devices
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_callbacks(program, Mesh(np.array(devices), ("x",)))
    return "".join(str(w.message) for w in caught)


@pytest.mark.parametrize("step", [pure, report, show])
def test_large_arguments_are_warned_of_where_no_thread_is_left(step, monkeypatch):
    monkeypatch.setenv("PJRT_NPROC", "2")
    text = said(step, EDGE + 1)
    assert text.startswith(f"{__file__}:") and "may hang" in text
    assert "8 for 8 virtual CPU devices" in text and "PJRT_NPROC=9 in the environment" in text
    assert said(step, EDGE) == ""  # copied at once
    assert said(step, EDGE + 1, num_devices=1) == said(step, EDGE + 1, num_devices=4) == ""  # eight threads for them
    for name, value in {"NPROC": "9", "PJRT_NPROC": "9"}.items():
        monkeypatch.delenv("PJRT_NPROC", raising=False)
        monkeypatch.setenv(name, value)
        assert said(step, EDGE + 1) == ""


def test_a_callback_inside_a_loop_is_found(monkeypatch):
    monkeypatch.setenv("PJRT_NPROC", "8")

    def loop(x):
        return jax.lax.scan(lambda c, _: (c + pure(c), None), x, None, length=2)[0]

    assert "pure_callback may hang" in said(loop, EDGE + 1)


PROGRAM = """
import jax, jax.numpy as jnp, numpy as np, shardwright as sw
jax.config.update("jax_num_cpu_devices", 8)
seen = []
def step(x):
    jax.debug.callback(lambda v: seen.append(np.asarray(v).sum()), x)
    y = jax.pure_callback(lambda v: np.asarray(v) * 2, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
    return (y - x).sum()
x = jnp.ones((1024, 1024))
run = sw.plan(step, x, cluster="cpu:8").compile()
assert len(jax.devices()) == 8
print(float(run(x)))
jax.effects_barrier()
assert seen == [1024 * 1024]
"""


@pytest.mark.slow
@pytest.mark.parametrize("num_threads", [9, 1])
def test_one_thread_more_than_devices_is_enough(num_threads):
    environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "NPROC")}
    environment |= {"PJRT_NPROC": str(num_threads), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=300,
    )
    if num_threads > 8:
        assert done.returncode == 0, done.stderr
        assert float(done.stdout) == 1024 * 1024
    else:
        assert "may hang" in done.stderr and "PJRT_NPROC=9" in done.stderr
