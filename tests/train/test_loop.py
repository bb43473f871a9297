import io
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from shardwright.train import loop, progress


def counting_step(state, batch):
    return state + batch.shape[0], {"loss": jnp.float32(state)}


def endless(batch=2, sequence=4):
    return itertools.repeat(np.zeros((batch, sequence + 1), np.int32))


def test_every_step_is_reported_once_in_order():
    reports = []
    run = loop.run(counting_step, 0, endless(), num_steps=5, watch=reports.append)
    assert run.state == 10 and run.losses == (0.0, 2.0, 4.0, 6.0, 8.0)
    assert run.num_steps == 5 and run.tokens == 5 * 2 * 4
    assert [r.step for r in reports] == [1, 2, 3, 4, 5]
    assert [r.ended for r in reports] == [False] * 4 + [True]


def test_metrics_are_fetched_while_the_next_step_runs():
    events = []

    class Loss:
        def __init__(self, step):
            self.step = step

        def __float__(self):
            events.append(f"fetch {self.step}")
            return 0.0

    def step(state, batch):
        events.append(f"run {state}")
        return state + 1, {"loss": Loss(state)}

    loop.run(step, 0, endless(), num_steps=3, watch=lambda p: None)
    assert events == ["run 0", "run 1", "fetch 0", "run 2", "fetch 1", "fetch 2"]


def test_a_time_limit_ends_the_run_after_at_least_one_step():
    reports = []
    run = loop.run(counting_step, 0, endless(), num_steps=5, limit_seconds=0.0, watch=reports.append)
    assert run.num_steps == 1 and reports[-1].ended


def test_bad_losses_and_lengths_are_clear_errors():
    def step(state, batch):
        return state + 1, {"loss": float("nan") if state == 2 else 1.0}

    with pytest.raises(ValueError, match="loss of step 3 is nan"):
        loop.run(step, 0, endless(), num_steps=9, watch=lambda p: None)
    with pytest.raises(ValueError, match="at least one step"):
        loop.run(step, 0, endless(), num_steps=0, watch=lambda p: None)


def test_a_donating_step_on_eight_devices_runs_and_compiles_once():
    mesh = jax.make_mesh((8,), ("x",))
    sharded, whole = NamedSharding(mesh, P("x")), NamedSharding(mesh, P())

    def step(state, batch):
        return state + 1.0, {"loss": (state * batch[:, :1]).sum()}

    fn = jax.jit(step, donate_argnums=0, in_shardings=(sharded, whole), out_shardings=(sharded, whole))
    ones = itertools.repeat(np.ones((8, 2), np.int32))
    run = loop.run(fn, jax.device_put(jnp.ones((8, 4)), sharded), ones, num_steps=20, watch=lambda p: None)
    assert run.losses == tuple(32.0 * (i + 1) for i in range(20))
    assert len(run.state.sharding.device_set) == 8 and fn._cache_size() == 1


class Terminal(io.StringIO):
    def isatty(self):
        return True


def report(step, ended=False):
    return progress.Progress(step, 100, 3.25, 5120.4, 1.0, ended)


def test_a_terminal_gets_one_bar_redrawn():
    stream = Terminal()
    watch = progress.watch_on(stream)
    for step in (1, 50, 100):
        watch(report(step, ended=step == 100))
    first, half, full = stream.getvalue().removesuffix("\n").split("\r")[1:]
    assert "step   1/100  loss 3.250  5,120 tokens/s" in first
    assert half.startswith("[############............]") and full.startswith("[" + "#" * 24 + "]")
    assert stream.getvalue().count("\n") == 1


def test_a_pipe_gets_a_line_now_and_then():
    now = 0.0
    stream = io.StringIO()
    watch = progress.watch_on(stream, clock=lambda: now)
    for step in range(1, 31):
        watch(report(step, ended=step == 30))
        now += 1.0
    assert [line.split()[1] for line in stream.getvalue().splitlines()] == ["1/100", "11/100", "21/100", "30/100"]
    assert "\r" not in stream.getvalue()
