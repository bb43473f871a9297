"""What only a fresh process can show: virtual devices asked for in time, and what is not imported."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

HEAD = """
import os, sys
import numpy as np
import jax, jax.numpy as jnp
import shardwright as sw
step = lambda w, x: (w - 0.1 * (x.T @ (x @ w)), (x @ w).sum())
w, x = np.ones((64, 64), np.float32), np.ones((32, 64), np.float32)
"""


def run(program, **environment):
    """The output of a program in a process of its own, where jax has seen no device yet."""
    inherited = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "SHARDWRIGHT_CACHE")}
    command = [sys.executable, "-W", "error", "-c", HEAD + program]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**inherited, "JAX_PLATFORMS": "cpu", **environment}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_cpu_8_starts_eight_virtual_devices():
    out = run("""
plan = sw.plan(step, w, x, cluster="cpu:8")
assert len(jax.devices()) == 8
print(len(plan.compile()(w, x)[0].sharding.device_set))
""")
    assert out.split() == ["8"]


def test_jit_starts_them_before_its_first_argument_is_made(tmp_path):
    out = run(
        """
run = sw.jit(step, cluster="cpu:4")
w, loss = run(jnp.ones((64, 64)), jnp.ones((32, 64)))
print(len(jax.devices()), len(w.sharding.device_set))
""",
        SHARDWRIGHT_CACHE=str(tmp_path),
    )
    assert out.split() == ["4", "4"]


def test_with_a_back_end_up_the_error_gives_the_line_and_the_line_helps():
    out = run("""
assert len(jax.devices()) == 1
plan = sw.plan(step, w, x, cluster="cpu:8")
try:
    plan.compile()
except ValueError as error:
    print(error)
""")
    line = out[out.index("jax.config.update") : out.index(" before the first use")]
    assert line == "jax.config.update('jax_num_cpu_devices', 8)"
    out = run(f"""
{line}
assert len(jax.devices()) == 8
print(len(sw.plan(step, w, x, cluster="cpu:8").compile()(w, x)[0].sharding.device_set))
""")
    assert out.split() == ["8"]


def test_a_larger_number_that_the_user_has_set_stays():
    out = run("""
jax.config.update("jax_num_cpu_devices", 6)
plan = sw.plan(step, w, x, cluster="cpu:2")
print(len(jax.devices()), len(plan.compile()(w, x)[0].sharding.device_set))
""")
    assert out.split() == ["6", "2"]


def test_a_loaded_plan_starts_its_devices(tmp_path):
    run(f"sw.plan(step, w, x, cluster='cpu:8').save({str(tmp_path / 'plan.json')!r})")
    out = run(f"""
plan = sw.load_plan({str(tmp_path / "plan.json")!r}, step, w, x)
print(len(plan.compile()(w, x)[0].sharding.device_set))
""")
    assert out.split() == ["8"]


def test_planning_for_other_hardware_starts_nothing():
    out = run("""
shapes = jax.ShapeDtypeStruct((64, 64), jnp.float32), jax.ShapeDtypeStruct((32, 64), jnp.float32)
sw.plan(step, *shapes, cluster="h100:2x8")
from jax.extend.backend import get_backend
print(jax.config.jax_num_cpu_devices)
""")
    assert out.split() == ["-1"]


def test_the_cache_serves_another_process(tmp_path):
    program = """
import shardwright._plan as inner
search, found = inner.search, []
inner.search = lambda *args, **kwargs: found.append(1) or search(*args, **kwargs)
run = sw.jit(step, cluster="cpu:8", verbose=False)
print(len(found) + len(run(w, x)) - 2 + len(found), run.plan.mesh)
"""
    first = run(program, SHARDWRIGHT_CACHE=str(tmp_path))
    second = run(program, SHARDWRIGHT_CACHE=str(tmp_path))
    assert first.split()[0] == "1" and second.split()[0] == "0"
    assert first.split()[1:] == second.split()[1:]


def test_no_framework_is_imported_unless_the_user_does():
    run("""
sw.jit(step, cluster="cpu:2", cache=False)(w, x)
loaded = {name.split(".")[0] for name in sys.modules}
assert not loaded & {"flax", "equinox", "haiku"}, loaded
""")
