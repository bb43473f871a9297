"""The demo's recipe with a stand-in planner: plain data parallelism by `jax.jit`, and a prover that believes it."""

import dataclasses
import io
import types

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from shardwright.train import recipe, transformer

pytestmark = pytest.mark.slow  # five programs are compiled

MODEL = transformer.Config(width=16, layers=2, heads=2, hidden=32, sequence=16, warmup_steps=2, num_steps=12)


@dataclasses.dataclass(frozen=True, eq=False)
class DataParallel:
    step: object
    args: tuple
    mesh_devices: int
    memory: int | None

    mesh = property(lambda self: {"d": self.mesh_devices})

    @property
    def estimate(self):
        peak = types.SimpleNamespace(peak_bytes=3_000_000)
        return types.SimpleNamespace(memory=peak, bytes_sent=1e6 * (self.mesh_devices - 1))

    def __str__(self):
        return f"a stand-in plan for {self.mesh_devices} devices"

    def save(self, path):
        path.write_text("{}")

    def compile(self):
        whole, split = self._shardings()
        jitted = jax.jit(self.step, donate_argnums=0, in_shardings=(whole, split), out_shardings=(whole, whole))
        compiled = jitted.lower(*self.args).compile()

        def fn(state, batch):
            return compiled(state, jax.device_put(batch, split))

        fn.compiled = compiled
        return fn

    def init(self, init_fn, *args):
        return jax.jit(init_fn, out_shardings=self._shardings()[0])(*args)

    def _shardings(self):
        mesh = jax.make_mesh((self.mesh_devices,), ("d",))
        return NamedSharding(mesh, P()), NamedSharding(mesh, P("d"))


def planner(step, *args, cluster, memory=None, donate_argnums):
    assert donate_argnums == 0
    return DataParallel(step, args, int(cluster.removeprefix("cpu:")), memory)


def prover(plan, step, state, batch, *, steps):
    assert steps == 3 and batch.shape == (8, 17)
    assert isinstance(jax.tree.leaves(state)[0], np.ndarray)  # the proof cannot donate what training still needs
    return types.SimpleNamespace(ok=True)


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    (folder / "text").mkdir()
    for i in range(4):
        (folder / "text" / f"{i}.txt").write_text("def f(x):\n    return x + 1\n" * 20)
    options = recipe.Options(
        memory="300kB",
        model=MODEL,
        batch=8,
        data=str(folder / "text"),
        plan_file=folder / "plan.json",
        num_sample_bytes=30,
    )
    said, stream = [], io.StringIO()
    result = recipe.run_demo(planner, prover, options, count_sent=lambda text: 5e6, say=said.append, stream=stream)
    return result, "\n".join(said), stream.getvalue(), options


def test_the_model_learns_and_is_proven(demo):
    result, *_ = demo
    assert result.ok and result.num_devices == 8 and len(result.losses) == MODEL.num_steps
    assert result.after.held_out_loss < result.before.held_out_loss - 0.5
    assert result.before.sample.startswith("def ") and result.before.sample != result.after.sample


def test_the_budget_is_shown_beside_what_one_device_needs(demo):
    result, said, *_ = demo
    assert result.one_device.reported_peak_bytes > result.budget_bytes == 300_000
    assert "One device cannot meet it" in said
    assert result.planned.reported_peak_bytes < result.one_device.reported_peak_bytes


def test_the_story_holds_plan_samples_and_progress(demo):
    _, said, progress_lines, options = demo
    assert "a stand-in plan for 8 devices" in said and options.plan_file.exists()
    assert said.index("Before training") < said.index("After training")
    assert f"{MODEL.num_steps}/{MODEL.num_steps}" in progress_lines
