"""Names, shapes, files and sizes: what they give, and what the errors say."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import jax
import pytest

from shardwright.cluster import Cluster, attached, memory, names, parse, peak_flops_per_second, to_toml
from shardwright.cluster.catalog import parts

SHAPES = {"host": "8", "nodes": "2x8", "torus2": "4x8", "torus3": "4x4x8"}


def example(name: str) -> str:
    part = parts()[name]
    return f"{name}:{SHAPES[part.shape + (str(len(part.largest)) if part.shape == 'torus' else '')]}"


@pytest.mark.parametrize(
    ("text", "num_devices", "sizes", "torus"),
    [
        ("cpu:8", 8, [8], ()),
        ("h100:4x8", 32, [8, 32], ()),
        ("h100:1x8", 8, [8], ()),
        ("h100:4x1", 4, [4], ()),
        ("h100:1x1", 1, [1], ()),
        ("A100-80G:2x16", 32, [16, 32], ()),
        ("tpu-v5p:4x4x8", 128, [128], (4, 4, 8)),
        ("tpu-v5e:16x16", 256, [256], (16, 16)),
        ("tpu-v3:4x4", 32, [2, 32], (4, 4)),  # two devices a chip
        ("tpu-7x:2x2x1", 8, [2, 8], (2, 2, 1)),
    ],
)
def test_shapes(text, num_devices, sizes, torus):
    cluster = parse(text)
    assert cluster.num_devices == num_devices
    assert [link.size for link in cluster.links] == sizes
    assert cluster.torus == torus
    assert cluster.name == text.lower()


def test_parse_is_deterministic_and_passes_clusters_through():
    cluster = parse("h100:2x8")
    assert parse(cluster) is cluster
    assert parse("h100:2x8") == cluster
    assert hash(parse("h100:2x8")) == hash(cluster)
    assert parse("h100:4x8") != cluster


def test_virtual_devices_share_the_host():
    one, eight = parse("cpu:1"), parse("cpu:8")
    for dtype, rate in one.device.flops_per_second.items():
        assert eight.device.flops_per_second[dtype] * 8 == pytest.approx(rate)
    assert eight.device.memory_bytes_per_second * 8 == pytest.approx(one.device.memory_bytes_per_second)
    assert eight.links[0].bytes_per_second * 8 == pytest.approx(one.links[0].bytes_per_second)
    assert eight.links[0].call_seconds == pytest.approx(8 * one.links[0].call_seconds)
    assert eight.device.launch_seconds == pytest.approx(8 * one.device.launch_seconds)
    assert eight.device.memory_bytes == one.device.memory_bytes  # stated for each device


@pytest.mark.parametrize("name", names())
def test_every_part_is_plausible_and_has_sources(name):
    cluster = parse(example(name))
    assert cluster.num_devices > 1
    device = cluster.device
    assert device.source
    assert all(link.source for link in cluster.links)
    assert min(device.flops_per_second.values()) > 1e9
    assert {"float32", "bfloat16"} <= set(device.flops_per_second)
    assert 0 < device.matmul_efficiency <= 1
    assert 0 < device.memory_efficiency <= 1
    assert device.memory_bytes >= 1e9
    assert all(link.bytes_per_second < device.memory_bytes_per_second for link in cluster.links)


@pytest.mark.parametrize("name", names())
def test_toml_round_trip(name, tmp_path):
    cluster = parse(example(name))
    path = tmp_path / "mine.toml"
    path.write_text(to_toml(cluster), "utf-8")
    assert parse(path) == cluster
    assert parse(str(path)) == cluster


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("h10:2x8", ["'h10:2x8'", "Did you mean h100", "tpu-v5p", "path"]),
        ("zebra:8", ["Known names", "cpu", "path"]),
        ("cpu", ["cpu:N", "cpu:8 is"]),
        ("cpu:", ["cpu:N"]),
        ("cpu:8x2", ["impossible", "cpu:N"]),
        ("cpu:0", ["at least 1", "cpu:N"]),
        ("cpu:99999", ["8192"]),
        ("h100:8", ["h100:NxM", "2 nodes of 8"]),
        ("h100:2x9", ["9 is more than 8", "GPUs in a node"]),
        ("h100:2x-8", ["h100:NxM"]),
        ("tpu-v5p:4x4", ["tpu-v5p:AxBxC"]),
        ("tpu-v5p:4x6x4", ["6 chips", "multiples of 4"]),
        ("tpu-v5p:28x28x28", ["impossible", "8960"]),
        ("tpu-v5e:32x4", ["more than 16"]),
        ("no/such.toml", ["no cluster file", "no/such.toml"]),
    ],
)
def test_errors_say_what_to_do(text, said):
    with pytest.raises(ValueError) as error:
        parse(text)
    for part in said:
        assert part in str(error.value)


MINE = """
num_devices = 16
[device]
name = "box"
platform = "gpu"
memory_bytes = 80_000_000_000
memory_bytes_per_second = 3.0e12
matmul_efficiency = 0.8
memory_efficiency = 0.9
launch_seconds = 3e-6
[device.flops_per_second]
bfloat16 = 1e15
[[links]]
name = "inner"
size = 8
bytes_per_second = 4.0e11
efficiency = 0.5
latency_seconds = 0
[[links]]
name = "outer"
size = 16
bytes_per_second = 5e10
latency_seconds = 1e-5
"""


def test_a_file_of_ones_own(tmp_path):
    path = tmp_path / "rack.toml"
    path.write_text(MINE, "utf-8")
    cluster = parse(path)
    assert isinstance(cluster, Cluster)
    assert cluster.name == "rack.toml"
    assert cluster.links[0].bytes_per_second == 2e11
    assert cluster.links[1].bytes_per_second == 5e10


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("num_devices = 16", "", "`num_devices` is missing"),
        ("launch_seconds = 3e-6", "", "`device.launch_seconds` is missing"),
        ("bfloat16 = 1e15", "", "`device.flops_per_second`"),
        ("bfloat16 = 1e15", "bfloat16 = -1", "`device.flops_per_second.bfloat16` is -1"),
        ("size = 16", "", "`links[1].size` is missing"),
        ("bytes_per_second = 5e10", "", "`links[1].bytes_per_second` is missing"),
        ("size = 16", "size = 12", "[8, 12] for `num_devices` = 16"),
        ("size = 16", "size = 16.5", "whole number"),
        ("latency_seconds = 1e-5", "latency = 1e-5", "unknown key `latency`"),
        ("matmul_efficiency = 0.8", "matmul_efficiency = 80", "in (0, 1]"),
        ('platform = "gpu"', 'platform = "npu"', "cpu, gpu, tpu"),
        ("num_devices = 16", "num_devices = 16\ntorus = [4, 4]", "'ici'"),
        ("num_devices = 16", "num_devices = 16\ntorus = 4", "such as [4, 4]"),
        ("num_devices = 16", "num_devices = ", "not TOML"),
        ("num_devices = 16", 'num_devices = "16"', "`num_devices` is '16'"),
    ],
)
def test_a_wrong_file_names_the_key(tmp_path, old, new, said):
    assert MINE.count(old) == 1
    path = tmp_path / "rack.toml"
    path.write_text(MINE.replace(old, new), "utf-8")
    with pytest.raises(ValueError) as error:
        parse(path)
    assert "rack.toml" in str(error.value)
    assert said in str(error.value)


def test_attached_cpu():
    assert attached(jax.devices("cpu")) == parse(f"cpu:{len(jax.devices('cpu'))}")


def gpu(node: int, kind: str = "NVIDIA H100 80GB HBM3"):
    return SimpleNamespace(platform="gpu", device_kind=kind, process_index=node)


def chip(*coords: int, kind: str = "TPU v5 lite"):
    return SimpleNamespace(platform="tpu", device_kind=kind, process_index=0, coords=coords)


def test_attached_accelerators():
    assert attached([gpu(i // 8) for i in range(16)]) == parse("h100:2x8")
    one_process_each = [SimpleNamespace(**vars(gpu(i)), slice_index=i // 8) for i in range(16)]
    assert attached(one_process_each) == parse("h100:2x8")
    assert attached([chip(x, y, 0) for y in range(4) for x in range(2)]) == parse("tpu-v5e:2x4")
    cores = [chip(x, y, 0, kind="TPU v3") for y in range(2) for x in range(2) for _ in range(2)]
    assert attached(cores) == parse("tpu-v3:2x2")


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        ([], "0 kinds"),
        ([gpu(0), gpu(0, "NVIDIA H200")], "2 kinds"),
        ([gpu(0, "NVIDIA GeForce")], "cluster="),
        ([gpu(0), gpu(0), gpu(1)], "[1, 2]"),
        ([chip(0, 0, 0), chip(1, 1, 0)], "2x2"),
    ],
)
def test_attached_refuses(devices, said):
    with pytest.raises(ValueError) as error:
        attached(devices)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("size", "num_bytes"),
    [
        ("80GB", 80 * 10**9),
        ("80GiB", 80 * 2**30),
        ("80 gib", 80 * 2**30),
        ("1.5KiB", 1536),
        ("0.5TB", 5 * 10**11),
        ("250MB", 250 * 10**6),
        ("64B", 64),
        ("123", 123),
        (2**33, 2**33),
        (1e9, 10**9),
    ],
)
def test_memory(size, num_bytes):
    assert memory(size) == num_bytes
    assert type(memory(size)) is int


@pytest.mark.parametrize("size", ["", "80G", "GB", "-3GB", "0GB", "1iB", "many", 0, -1, 0.2, float("nan"), True, None])
def test_memory_refuses(size):
    with pytest.raises(ValueError, match="80GiB"):
        memory(size)


def test_a_dtype_without_a_figure_is_as_slow_as_the_slowest():
    device = dataclasses.replace(parse("cpu:1").device, flops_per_second={"bfloat16": 4e12, "float32": 1e12})
    assert peak_flops_per_second(device, "bfloat16") == 4e12
    assert peak_flops_per_second(device, "int32") == 1e12
    assert peak_flops_per_second(device, "float64") == 0.5e12
    assert peak_flops_per_second(device, "bool") == 1e12
