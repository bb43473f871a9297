"""Programs compiled ahead of time, in a process of their own: what must survive the journey, and what can go wrong.

`cpu:8` needs no more than jax and is held to what this process compiles. The TPU and GPU compilers are asked where they
are installed (here, or where SHARDWRIGHT_TPU_PYTHON and SHARDWRIGHT_GPU_PYTHON point).
"""

import dataclasses
import functools
import inspect
import json
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from shardwright import cluster
from shardwright.plan import cache
from shardwright.run import ahead_child, targets
from shardwright.run.devices import COMPILER_OPTIONS
from shardwright.run.target_names import child_environment, parse_target
from shardwright.run.targets import AheadError, Failure, Lowerable, compile_ahead
from shardwright.run.traffic import sent_bytes, traffic

pytest.importorskip(
    "flatbuffers", reason='jax writes exported programs with flatbuffers: pip install "shardwright[dev]"'
)

WIDTH, BATCH, LAYERS = 256, 64, 3
AXES = {"data": 2, "tensor": 4}
REAL_TARGETS = ["tpu-v5p:2x2x2", "h100:1x8", "a100-40g:1x8", "a100-80g:1x8", "h200:1x8", "b200:1x8"]


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHARDWRIGHT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def make_fn(mesh):
    """A step on stacked weights w_LDF, split by D over `tensor`, gathered in a loop; noise from a key, unused input."""

    def local(w, x, key, unused):
        del unused

        def layer(y, w_shard):
            return jnp.tanh(y @ jax.lax.all_gather(w_shard, "tensor", axis=0, tiled=True)), None

        y, _ = jax.lax.scan(layer, x + jax.random.normal(key, x.shape), w)
        grad = jax.lax.psum_scatter(x.T @ y, "tensor", scatter_dimension=0, tiled=True)
        return w - jax.lax.psum(grad, "data"), jax.lax.pmean(y.sum(), ("data", "tensor"))

    specs = (P(None, "tensor"), P("data"), P(), P())
    return jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=(P(None, "tensor"), P()), check_vma=False)


def lowerable(donate=(0,), axes=AXES, width=WIDTH):
    avals = (
        jax.ShapeDtypeStruct((LAYERS, width, width), jnp.float32),
        jax.ShapeDtypeStruct((BATCH, width), jnp.float32),
        jax.eval_shape(lambda: jax.random.key(0)),
        jax.ShapeDtypeStruct((8,), jnp.float32),
    )
    return Lowerable(make_fn, avals, (P(None, "tensor"), P("data"), P(), P()), (P(None, "tensor"), P()), axes, donate)


def compiled_here(program: Lowerable):
    mesh = jax.make_mesh((2, 4), tuple(program.mesh_axes), axis_types=(AxisType.Auto,) * 2)
    assert mesh.size == 8
    named = functools.partial(NamedSharding, mesh)
    step = jax.jit(
        program.make_fn(mesh),
        in_shardings=tuple(named(spec) for spec in program.in_specs),
        out_shardings=tuple(named(spec) for spec in program.out_specs),
        donate_argnums=program.donate,
        keep_unused=True,
    )
    return step.lower(*program.avals).compile(COMPILER_OPTIONS["cpu"])


def ahead_or_skip(program, target):
    try:
        return compile_ahead(program, target)
    except AheadError as error:
        if error.failure is Failure.NOT_INSTALLED:
            pytest.skip(str(error))
        raise


def lines_of_collectives():
    """Where `make_fn` has a collective, as 'test_targets.py:12'."""
    text, start = inspect.getsourcelines(make_fn)
    calls = ("all_gather", "psum_scatter", "psum", "pmean")
    return {f"test_targets.py:{start + i}" for i, line in enumerate(text) if any(f"lax.{c}(" in line for c in calls)}


WEIGHT_SHARD_BYTES = 4 * LAYERS * WIDTH * WIDTH // 4
STEP_SENT_BYTES = (
    LAYERS * 3 / 4 * 4 * WIDTH * WIDTH  # gathers in the loop
    + 3 / 4 * 4 * WIDTH * WIDTH  # the gradient's reduce-scatter over tensor
    + 2 * 1 / 2 * 4 * WIDTH * WIDTH / 4  # and all-reduce over data
    + 2 * 7 / 8 * 4  # the loss
)


def test_cpu_is_what_this_process_compiles():
    ahead = compile_ahead(lowerable(), "cpu:8")
    here = compiled_here(lowerable())
    stats = here.memory_analysis()
    assert ahead.memory.argument_bytes == stats.argument_size_in_bytes
    assert ahead.memory.output_bytes == stats.output_size_in_bytes
    assert ahead.memory.alias_bytes == stats.alias_size_in_bytes == WEIGHT_SHARD_BYTES
    assert ahead.memory.temp_bytes == stats.temp_size_in_bytes
    rows = traffic(here.as_text(), AXES)
    assert [(row.kind, row.axes, row.times) for row in rows] == [
        (row.kind, row.axes, row.times) for row in ahead.collectives
    ]
    assert sent_bytes(ahead.collectives) == pytest.approx(STEP_SENT_BYTES)
    # Scopes and lines are the user's, without a trace of the journey.
    assert all("call_exported" not in row.scope for row in ahead.collectives)
    assert any("while/body" in row.scope for row in ahead.collectives)
    assert {row.source for row in ahead.collectives} == {row.source for row in rows} == lines_of_collectives()


def test_peak_counts_shared_memory_once():
    memory = targets.Memory(argument_bytes=100, output_bytes=70, alias_bytes=60, temp_bytes=5)
    assert memory.peak_bytes == 115


def test_nothing_donated_nothing_aliased():
    assert compile_ahead(lowerable(donate=()), "cpu:8").memory.alias_bytes == 0


@pytest.mark.parametrize("target", REAL_TARGETS)
def test_real_compilers(target):
    ahead = ahead_or_skip(lowerable(), target)
    assert ahead.memory.alias_bytes == WEIGHT_SHARD_BYTES
    # Each argument arrives as its shard; the compilers may pad small ones.
    arguments = WEIGHT_SHARD_BYTES + 4 * BATCH * WIDTH // 2
    assert arguments <= ahead.memory.argument_bytes <= arguments + 4096
    assert ahead.memory.temp_bytes > 0
    assert {row.source for row in ahead.collectives} == lines_of_collectives()
    kinds = {(row.kind, row.axes, row.times) for row in ahead.collectives}
    assert ("all_gather", ("tensor",), LAYERS) in kinds
    assert ("all_reduce", ("data",), 1) in kinds
    # The TPU compiler gathers in bfloat16 where a matrix product rounds to it anyhow.
    assert STEP_SENT_BYTES / 2 <= sent_bytes(ahead.collectives) <= STEP_SENT_BYTES * 1.01
    assert ahead_or_skip(lowerable(donate=()), target).memory.alias_bytes == 0


def test_too_large_for_the_device():
    with pytest.raises(AheadError) as raised:
        ahead_or_skip(lowerable(width=65536), "tpu-v5e:2x4")
    assert raised.value.failure is Failure.OUT_OF_MEMORY


def test_mesh_axis_that_is_part_of_a_torus_dimension():
    ahead = ahead_or_skip(lowerable(axes={"data": 2, "tensor": 8}), "tpu-v5e:4x4")
    assert {row.axes for row in ahead.collectives} >= {("data",), ("tensor",)}


def test_stored_results_are_used_again(monkeypatch):
    first = compile_ahead(lowerable(), "cpu:8")
    assert list((cache.folder() / "ahead").glob("*.json.gz"))  # where the plans are
    monkeypatch.setattr(subprocess, "run", None)  # a second child would fail
    assert compile_ahead(lowerable(), "cpu:8") == first
    with pytest.raises(TypeError):
        compile_ahead(lowerable(width=WIDTH * 2), "cpu:8")
    with pytest.raises(TypeError):  # the same step on other lines, which the stored result does not name
        compile_ahead(dataclasses.replace(lowerable(), lines=("train.py:7 (step)",)), "cpu:8")


def test_another_number_of_devices():
    with pytest.raises(AheadError, match="the target has 4 devices") as raised:
        compile_ahead(lowerable(), "cpu:4")
    assert raised.value.failure is Failure.OTHER_DEVICES


@pytest.mark.parametrize(
    ("target", "variable", "extra"),
    [("tpu-v4:2x2x2", "SHARDWRIGHT_TPU_PYTHON", "tpu"), ("h100:1x8", "SHARDWRIGHT_GPU_PYTHON", "gpu")],
)
def test_missing_compiler_names_the_extra(target, variable, extra, monkeypatch, tmp_path):
    bare = tmp_path / "python"  # an interpreter without packages
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    monkeypatch.setenv(variable, str(bare))
    with pytest.raises(AheadError) as raised:
        compile_ahead(lowerable(), target)
    assert raised.value.failure is Failure.NOT_INSTALLED
    assert f'pip install "shardwright[{extra}]"' in str(raised.value)


def test_other_jax_is_refused():
    request = {"platform": "cpu", "compat": targets._compat.__file__, "jax_version": "0.0.1"}
    with pytest.raises(ahead_child.Refused, match=r"0\.0\.1") as raised:
        ahead_child.check_installed(request)
    assert raised.value.kind in Failure.__members__


def test_a_child_that_dies_is_reported(monkeypatch, tmp_path):
    dying = tmp_path / "python"
    dying.write_text("#!/bin/sh\necho last words >&2\nexit 3\n")
    dying.chmod(0o755)
    monkeypatch.setenv("SHARDWRIGHT_CPU_PYTHON", str(dying))
    with pytest.raises(AheadError, match="last words") as raised:
        compile_ahead(lowerable(), "cpu:8")
    assert raised.value.failure is Failure.CRASH


@pytest.mark.parametrize(
    ("name", "platform", "topology"),
    [
        ("tpu-v5p:2x2x2", "tpu", {"topology_name": "v5p:2x2x2"}),
        ("tpu-v5e:4x4", "tpu", {"topology_name": "v5e:4x4"}),
        ("tpu-7x:2x2x1", "tpu", {"topology_name": "tpu7x:2x2x1"}),
        ("h100:1x8", "cuda", {"topology_name": "h100", "topology": "1x1x8"}),
        ("a100-80g:4x2x8", "cuda", {"topology_name": "a100-80g", "topology": "4x2x8"}),
        ("cpu:3", "cpu", {"num_devices": "3"}),
    ],
)
def test_target_names(name, platform, topology):
    target = parse_target(name)
    assert target.platform == platform
    assert dict(target.topology) | topology == dict(target.topology)


@pytest.mark.parametrize("name", ["tpu-v9:2x2", "v5p:2x2x2", "tpu-v5p", "h100:8", "h100:0x8", "cpu:2x4", "x:1x8", ""])
def test_unknown_targets(name):
    with pytest.raises(ValueError, match="the targets are"):
        parse_target(name)


def test_every_cluster_is_a_target_or_its_error_says_why():
    shapes = {"cpu": "8", "tpu-v2": "4x4", "tpu-v3": "4x4", "tpu-v5e": "4x4", "tpu-v6e": "4x4"}
    shapes |= {"tpu-v4": "2x2x2", "tpu-v5p": "2x2x2", "tpu-7x": "2x2x2"}
    refused = {}
    for machine in cluster.names():
        target = f"{machine}:{shapes.get(machine, '1x8')}"
        try:
            parsed = parse_target(target)
        except ValueError as error:
            refused[machine] = str(error)
            continue
        if parsed.platform == "cuda":
            config = parsed.topology["target_config"]
            assert "gpu_device_info {" in config and cluster.parse(target).device.platform == "gpu"
            memory_bytes = int(re.search(r"device_memory_size: (\d+)", config)[1])
            # What a device reports is within a twelfth of what its vendor says.
            assert abs(memory_bytes / cluster.parse(target).device.memory_bytes - 1) < 1 / 12
    assert set(refused) == {"v100-16g", "v100-32g"}
    for machine, said in refused.items():
        assert f"{machine} can be planned for" in said and "CUDA 13" in said and "h200:HOSTSxGPUS" in said


def test_child_environment(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=x --xla_force_host_platform_device_count=8")
    monkeypatch.setenv("PYTHONPATH", "y")
    monkeypatch.delenv("SHARDWRIGHT_TPU_PYTHON", raising=False)
    tpu = child_environment(parse_target("tpu-v5e:2x4"))
    assert (tpu["XLA_FLAGS"], tpu["JAX_PLATFORMS"], tpu["PYTHONPATH"]) == ("--xla_dump_to=x", "cpu", "y")
    monkeypatch.setenv("SHARDWRIGHT_GPU_PYTHON", "/other/python")
    gpu = child_environment(parse_target("h100:1x8"))
    assert "JAX_PLATFORMS" not in gpu and "PYTHONPATH" not in gpu
    assert "device_count=2" in child_environment(parse_target("cpu:2"))["XLA_FLAGS"]
    json.dumps(tpu)
