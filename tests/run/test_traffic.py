"""Counted traffic against closed forms, against short texts of each compiler, and against a second counter."""

import functools
import importlib.util
import math
import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from shardwright.run import hlo_text
from shardwright.run.traffic import KINDS, Collective, by_kind, sent_bytes, traffic, unknown_loops

MESH_AXES = {"data": 2, "tensor": 4}
ROWS, COLUMNS, LAYERS = 16, 24, 3  # rows on each device
SECOND_COUNTER = Path(__file__).resolve().parents[3] / "shared" / "tools" / "hlo_traffic.py"

ON_ONE_AXIS = {
    "all_reduce": lambda x, axes: jax.lax.psum(x, axes),
    "all_gather": lambda x, axes: jax.lax.all_gather(x, axes, axis=1, tiled=True),
    "reduce_scatter": lambda x, axes: jax.lax.psum_scatter(x, axes, scatter_dimension=0, tiled=True),
    "all_to_all": lambda x, axes: jax.lax.all_to_all(x, axes, split_axis=0, concat_axis=1, tiled=True),
    "permute": lambda x, axes: jax.lax.ppermute(x, axes, [(0, 1), (1, 0)]),
}


def compiled_text(body) -> str:
    """`body` on each device of a 2 x 4 mesh, compiled here; x_RC comes in split by rows over both axes."""
    mesh = jax.make_mesh((2, 4), ("data", "tensor"), axis_types=(AxisType.Auto,) * 2)
    assert mesh.size == 8
    step = jax.shard_map(body, mesh=mesh, in_specs=P(("data", "tensor")), out_specs=P(), check_vma=False)
    return jax.jit(step).lower(jax.ShapeDtypeStruct((ROWS * 8, COLUMNS), jnp.float32)).compile().as_text()


@functools.cache
def text_of_kind(kind: str, axis: str) -> str:
    return compiled_text(lambda x: ON_ONE_AXIS[kind](x, axis))


def expected_bytes(kind: str, n: int, r: int) -> float:
    """What a ring sends, from r bytes that come in."""
    return {
        "all_reduce": 2 * r * (n - 1) / n,
        "all_gather": r * (n - 1),
        "reduce_scatter": r * (n - 1) / n,
        "all_to_all": r * (n - 1) / n,
        "permute": r,
    }[kind]


@pytest.mark.parametrize("axis", ["data", "tensor"])
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_on_each_axis(kind, axis):
    (row,) = traffic(text_of_kind(kind, axis), MESH_AXES)
    assert (row.kind, row.axes, row.times) == (kind, (axis,), 1)
    assert row.group_size == (8 if kind == "permute" else MESH_AXES[axis])
    assert row.sent_bytes == expected_bytes(kind, MESH_AXES[axis], 4 * ROWS * COLUMNS)
    assert "shard_map" in row.scope
    assert re.fullmatch(r"test_traffic\.py:\d+", row.source)  # the lambda above


def test_both_axes_and_no_mesh():
    text = compiled_text(lambda x: jax.lax.psum(x, ("data", "tensor")))
    (row,) = traffic(text, MESH_AXES)
    assert (row.axes, row.group_size) == (("data", "tensor"), 8)
    (row,) = traffic(text)
    assert row.axes is None
    (row,) = traffic(text, {"data": 2})  # a mesh of other devices
    assert row.axes is None


def test_loops_multiply():
    def body(x):
        def outer(carry, _):
            inner = jax.lax.fori_loop(0, 5, lambda _, y: jnp.sin(jax.lax.psum(y, "tensor")), carry)
            return jax.lax.psum(inner, "data"), None

        return jax.lax.scan(outer, x, length=LAYERS)[0]

    text = compiled_text(body)
    assert unknown_loops(text) == ()
    size = 4 * ROWS * COLUMNS
    times = {row.axes: row.times for row in traffic(text, MESH_AXES)}
    assert times == {("data",): LAYERS, ("tensor",): LAYERS * 5}
    expected = LAYERS * (expected_bytes("all_reduce", 2, size) + 5 * expected_bytes("all_reduce", 4, size))
    assert sent_bytes(traffic(text, MESH_AXES)) == pytest.approx(expected)


def test_combined_collectives_count_all_their_arrays():
    def body(x):
        return jax.lax.psum({"a": x, "b": jnp.sin(x[0]), "c": x.sum()}, "tensor")

    rows = traffic(compiled_text(body), MESH_AXES)
    size = 4 * (ROWS * COLUMNS + COLUMNS + 1)
    assert sum(row.result_bytes for row in rows) == size
    assert by_kind(rows)["all_reduce"][1] == pytest.approx(expected_bytes("all_reduce", 4, size))


def test_part_of_an_axis():
    pairs = [[0, 1], [2, 3]]
    text = compiled_text(lambda x: jax.lax.all_gather(x, "tensor", axis_index_groups=pairs, tiled=True))
    (row,) = traffic(text, MESH_AXES)
    assert (row.axes, row.group_size) == (("tensor",), 2)


GPU_TEXT = """\
HloModule jit_step, is_scheduled=true, num_partitions=8

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  ROOT %add.1 = f32[] add(%a, %a)
}

%body.1 (p: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {
  %ags = ((f32[8,4]{1,0}, bf16[2]{0}), (f32[32,4]{1,0}, /*index=1*/bf16[8]{0})) all-gather-start(%p.1, %p.2), \
channel_id=1, replica_groups=[2,4]<=[8], dimensions={0}, use_global_device_ids=true, metadata={op_name="a/b"}
  %agd = (f32[32,4]{1,0}, bf16[8]{0}) all-gather-done(%ags)
  %rss = ((f32[32,4]{1,0}), f32[16,4]{1,0}) reduce-scatter-start(%x), replica_groups=[4,2]<=[2,4]T(1,0), \
dimensions={0}, to_apply=%add
  %rsd = f32[16,4]{1,0} reduce-scatter-done(%rss)
}

ENTRY %main (p: f32[8,4]) -> f32[8,4] {
  %while.1 = (s32[], f32[8,4]{1,0}) while(%tuple), condition=%cond.1, body=%body.1, \
backend_config={"known_trip_count":{"n":"6"}}
  %ars = (f32[8,4]{1,0}, f32[]) all-reduce-start(%y, %z), replica_groups={}, to_apply=%add
  %ard = (f32[8,4]{1,0}, f32[]) all-reduce-done(%ars)
  %cps = (f32[8,4]{1,0}, f32[8,4]{1,0}, u32[], u32[]) collective-permute-start(%w), \
source_target_pairs={{0,4},{4,0},{1,5},{5,1}}
  ROOT %cpd = f32[8,4]{1,0} collective-permute-done(%cps)
}
"""


def test_gpu_text():
    rows = traffic(GPU_TEXT, MESH_AXES)
    assert rows == (
        Collective("all_gather", 4 * 128 + 2 * 8, 4, 6, ("tensor",), scope="a/b"),
        Collective("reduce_scatter", 4 * 64, 2, 6, ("data",)),
        Collective("all_reduce", 4 * 32 + 4, 8, 1, ("data", "tensor")),
        Collective("permute", 4 * 32, 8, 1, ("data",)),
    )


TPU_TEXT = """\
HloModule jit_step, is_scheduled=true, num_partitions=8

%fused_start (p: bf16[4]) -> bf16[16] {
  ROOT %ag.1 = bf16[16]{0:T(8)(2,1)} all-gather(%p), channel_id=7, replica_groups=mesh['a'=2,'b'=4] {'b'}, \
dimensions={0}, frontend_attributes={chain_id="3"}
}

%async_collective_fusion.1 (p: bf16[4]) -> bf16[16] {
  %ag.2 = bf16[16]{0:T(8)(2,1)S(1)} all-gather(%p), channel_id=7, replica_groups=mesh['a'=2,'b'=4] {'b'}, \
dimensions={0}, frontend_attributes={chain_id="3"}
}

%fused_done (p: bf16[4]) -> bf16[16] {
  ROOT %ag.3 = bf16[16]{0:T(8)(2,1)} all-gather(%p), channel_id=7, replica_groups=mesh['a'=2,'b'=4] {'b'}, \
dimensions={0}, frontend_attributes={chain_id="3"}
}

%all-reduce-scatter.2 (p: f32[64]) -> f32[16] {
  %ar = f32[64]{0:T(128)} all-reduce(%p), channel_id=8, replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%add
  ROOT %slice = f32[16]{0:T(128)} dynamic-slice(%ar, %c), dynamic_slice_sizes={16}
}

%cond (p: (s32[], bf16[4])) -> pred[] {
  %limit = s32[]{:T(128)} constant(5)
  ROOT %less = pred[]{:T(512)} compare(%counter, %limit), direction=LT
}

%body (p: (s32[], bf16[4])) -> (s32[], bf16[4]) {
  %async-collective-start.1 = bf16[16]{0} fusion(%p.1), kind=kCustom, calls=%fused_start
  %fusion.9 = bf16[16]{0} fusion(%p.1), kind=kOutput, calls=%async_collective_fusion.1
  %async-collective-done.1 = bf16[16]{0} fusion(%fusion.9), kind=kCustom, calls=%fused_done
}

ENTRY %main (p: bf16[4]) -> f32[16] {
  %while.1 = (s32[]{:T(128)}, bf16[4]{0}) while(%tuple), condition=%cond, body=%body, metadata={op_name="while"}
  %while.2 = (s32[]{:T(128)}, bf16[4]{0}) while(%while.1), condition=%cond, body=%body
  %while.3 = (s32[]{:T(128)}, f32[4]{0}) while(%while.2), condition=%unseen, body=%nothing
  ROOT %fusion.1 = f32[16]{0:T(128)} fusion(%x), kind=kCustom, calls=%all-reduce-scatter.2
}
"""


def test_tpu_text():
    """A chain over three fusions is one gather in each of two loops; the fused all-reduce is a reduce-scatter."""
    gather = Collective("all_gather", 2 * 16, 4, 5, ("tensor",))
    scatter = Collective("reduce_scatter", 4 * 16, 4, 1, ("tensor",))
    assert traffic(TPU_TEXT, MESH_AXES) == (gather, gather, scatter)
    assert unknown_loops(TPU_TEXT) == ("while.3",)


@pytest.mark.parametrize(
    ("attributes", "size", "groups"),
    [
        ("replica_groups={{0,2},{1,3}}, x=1", 2, [[0, 2], [1, 3]]),
        ("replica_groups=[2,2]<=[4], x=1", 2, [[0, 1], [2, 3]]),
        ("replica_groups=[2,2]<=[2,2]T(1,0), x=1", 2, [[0, 2], [1, 3]]),
        ("replica_groups=mesh['a'=2,'b'=2] {'a'}, x=1", 2, [[0, 2], [1, 3]]),
        ("replica_groups=mesh['a'=2,'b'=2] {'b','a'}, x=1", 4, [[0, 2, 1, 3]]),
        ("replica_groups=mesh['a'=4] {'a':(1)2}, x=1", 2, [[0, 2], [1, 3]]),
        ("replica_groups=mesh['a'=4] {'a':(2)2}, x=1", 2, [[0, 1], [2, 3]]),
        ("replica_groups={}, x=1", 4, [[0, 1, 2, 3]]),
        ("replica_groups={{0,1},{2}}, x=1", 2, None),
        ("replica_groups=mesh['a'=2,'b'=2], order=[3,2,1,0] {'a'}", 2, None),
        ("source_target_pairs={{0,1},{2,3}}", 4, [[0, 1], [2, 3]]),
    ],
)
def test_device_groups(attributes, size, groups):
    found_size, found = hlo_text.device_groups(attributes, 4)
    assert found_size == size
    if groups is None:
        assert found is None
    else:
        np.testing.assert_array_equal(found, groups)


def test_unreadable_groups_are_an_error():
    with pytest.raises(ValueError, match="device groups"):
        hlo_text.device_groups("replica_groups=<new form>", 4)


@pytest.mark.parametrize(
    ("type_text", "size"),
    [
        ("f32[2,3]{1,0}", 24),
        ("pred[5]", 5),
        ("s4[6]", 3),
        ("f8e4m3fn[7]", 7),
        ("bf16[]", 2),
        ("(c128[2], token[], u32[]{:S(2)})", 36),
    ],
)
def test_type_bytes(type_text, size):
    assert hlo_text.type_bytes(type_text) == size


@functools.cache
def second_counter():
    if not SECOND_COUNTER.exists():
        pytest.skip("the second counter, shared/tools/hlo_traffic.py, is not beside this checkout")
    spec = importlib.util.spec_from_file_location("second_counter", SECOND_COUNTER)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("axis", ["data", "tensor"])
@pytest.mark.parametrize("kind", KINDS)
def test_second_counter_agrees_on_each_kind(kind, axis):
    text = text_of_kind(kind, axis)
    assert sent_bytes(traffic(text)) == pytest.approx(second_counter().sent_bytes(second_counter().traffic(text)))


def test_second_counter_agrees_on_gpu_text():
    theirs = second_counter().sent_bytes(second_counter().traffic(GPU_TEXT))
    assert math.isclose(sent_bytes(traffic(GPU_TEXT)), theirs)


def test_second_counter_counts_a_chain_in_each_fusion():
    """The one place where the two differ: it counts an overlapped collective of the TPU's as often as it is printed."""
    ours = sent_bytes(row for row in traffic(TPU_TEXT) if row.kind == "all_gather")
    theirs = sum(row.sent_bytes for row in second_counter().traffic(TPU_TEXT) if row.kind == "all-gather")
    assert theirs == 3 * ours
