"""What a mesh axis gets of the network, in closed form."""

from __future__ import annotations

import dataclasses
import math

import pytest

from shardwright.cluster import Cluster, Link, axis_links, group_link, parse

INNER, OUTER = 100.0, 30.0


def nodes(num_nodes: int, node_size: int) -> Cluster:
    total = num_nodes * node_size
    links = (Link("node", node_size, INNER, 1e-6), Link("network", total, OUTER, 1e-5, call_seconds=1e-4))
    return Cluster("nodes", parse("cpu:1").device, total, links)


def torus(*dims: int, wrap_multiple: int, cores: int = 1) -> Cluster:
    total = cores * math.prod(dims)
    links = (Link("chip", cores, INNER, 1e-6),) if cores > 1 else ()
    links += (Link("ici", total, 1.0, 1e-6),)
    return Cluster("torus", parse("cpu:1").device, total, links, torus=dims, wrap_multiple=wrap_multiple)


def rates(link: Link) -> tuple[float, float, float]:
    assert link.all_to_all_bytes_per_second is not None
    assert link.permute_bytes_per_second is not None
    return link.bytes_per_second, link.all_to_all_bytes_per_second, link.permute_bytes_per_second


def test_the_last_axis_holds_the_neighbors():
    links = axis_links(nodes(2, 8), {"data": 2, "model": 8})
    assert list(links) == ["data", "model"]
    assert links["model"].name == "node"
    assert rates(links["model"]) == (INNER, INNER, INNER)
    assert links["data"].name == "network"
    assert rates(links["data"]) == (OUTER, OUTER, OUTER)
    assert links["data"].call_seconds == 1e-4
    assert links["model"].call_seconds == 0


def test_members_of_a_node_share_the_way_out():
    # Four members in each node: a ring leaves on four links; of 7 peers 4 are outside.
    link = axis_links(nodes(2, 4), {"all": 8})["all"]
    assert link.name == "network"
    assert rates(link) == pytest.approx((min(INNER, 4 * OUTER), OUTER * 7 / 4, OUTER))
    # Two in each node, two nodes.
    link = axis_links(nodes(2, 4), {"outer": 4, "inner": 2})["outer"]
    assert rates(link) == pytest.approx((2 * OUTER, OUTER * 3 / 2, OUTER))


def test_a_group_that_straddles_nodes_gets_one_link():
    # Groups of 3 along nodes of 4: some cross a boundary with a single member on one side.
    cluster = nodes(3, 4)
    links = axis_links(cluster, {"rows": 4, "columns": 3})
    assert links["columns"].name == "network"
    assert links["columns"].bytes_per_second == OUTER


def test_axes_of_size_one_and_axes_together():
    cluster = nodes(2, 8)
    mesh = {"data": 2, "idle": 1, "model": 8}
    assert axis_links(cluster, mesh)["idle"] == cluster.links[0]
    assert group_link(cluster, mesh, ("model", "data")) == axis_links(cluster, {"all": 16})["all"]
    assert group_link(cluster, {"a": 2, "b": 4, "c": 2}, ("a", "c")).bytes_per_second == 2 * OUTER


def test_errors():
    with pytest.raises(ValueError, match=r"product is 16"):
        axis_links(nodes(2, 8), {"data": 4})
    with pytest.raises(ValueError, match="'nope'"):
        group_link(nodes(2, 8), {"data": 16}, ("nope",))


def test_virtual_devices_get_one_share_each_whatever_the_axis():
    cluster = parse("cpu:8")
    for link in axis_links(cluster, {"a": 2, "b": 4}).values():
        assert rates(link) == (cluster.links[0].bytes_per_second,) * 3


# W = 1 byte a second for each link and direction.


def test_a_torus_dim_is_a_ring_or_a_line():
    ring = axis_links(torus(4, 4, 4, wrap_multiple=4), {"z": 4, "y": 4, "x": 4})
    for link in ring.values():
        assert rates(link) == pytest.approx((2, 3 / 4 * 8 / 4, 1))
        assert link.latency_seconds == pytest.approx(1e-6)  # 2 hops in 2 steps
    line = axis_links(torus(4, 4, wrap_multiple=16), {"y": 4, "x": 4})
    for link in line.values():
        assert rates(link) == pytest.approx((1, 3 / 4 * 4 / 4, 1))
        assert link.latency_seconds == pytest.approx(1.5e-6)  # 3 hops in 2 steps


def test_an_axis_over_several_dims_uses_the_links_of_all():
    links = axis_links(torus(4, 4, 4, wrap_multiple=4), {"data": 4, "model": 16})
    assert rates(links["model"]) == pytest.approx((4, 15 / 16 * 8 / 4, 1))
    everything = axis_links(torus(4, 4, 4, wrap_multiple=4), {"all": 64})["all"]
    assert rates(everything) == pytest.approx((6, 63 / 64 * 8 / 4, 1))


def test_an_axis_over_a_part_of_a_dim():
    links = axis_links(torus(16, wrap_multiple=16), {"outer": 4, "inner": 4})
    assert rates(links["inner"]) == pytest.approx((1, 3 / 4 * 4 / 4, 1))  # a piece of a ring is a line
    assert rates(links["outer"]) == pytest.approx((2 / 4, 3 / 4 * 8 / (4 * 4), 1 / 4))  # four rings share the links


def test_the_first_torus_dim_varies_fastest():
    links = axis_links(torus(2, 8, wrap_multiple=8), {"outer": 8, "inner": 2})
    assert links["outer"].bytes_per_second == 2  # 8 wraps
    assert links["inner"].bytes_per_second == 1


def test_three_dims_wrap_together_and_two_each_alone():
    assert axis_links(torus(4, 4, 2, wrap_multiple=4), {"z": 2, "y": 4, "x": 4})["x"].bytes_per_second == 1
    assert axis_links(torus(8, 16, wrap_multiple=16), {"y": 16, "x": 8})["y"].bytes_per_second == 2
    assert axis_links(torus(8, 16, wrap_multiple=16), {"y": 16, "x": 8})["x"].bytes_per_second == 1


def test_two_devices_a_chip():
    cluster = torus(4, 4, wrap_multiple=4, cores=2)
    links = axis_links(cluster, {"y": 4, "x": 4, "core": 2})
    assert links["core"].name == "chip"
    assert links["core"].bytes_per_second == INNER
    assert links["x"].bytes_per_second == 2  # a device's own share of the links
    both = axis_links(cluster, {"y": 4, "x_core": 8})["x_core"]
    assert both.bytes_per_second == 2 * 2  # both devices of a chip drive their shares
    # r·(n-1)/n bytes at this rate must take r·8/8 (8 members' data over a ring of 4 with W = 1 a device).
    seconds_for_one_byte = (7 / 8) / both.all_to_all_bytes_per_second
    assert seconds_for_one_byte == pytest.approx(4 / 8)


def test_slices_over_the_data_center_network():
    inner = torus(4, 4, wrap_multiple=4)
    cluster = dataclasses.replace(
        inner, num_devices=32, links=(inner.links[0], Link("dcn", 32, 0.25, 1e-4)), name="two slices"
    )
    links = axis_links(cluster, {"slice": 2, "y": 4, "x": 4})
    assert links["slice"].name == "dcn"
    assert links["slice"].bytes_per_second == 0.25
    assert links["x"].bytes_per_second == 2
    assert axis_links(cluster, {"all": 32})["all"].bytes_per_second == min(4, 16 * 0.25)


def test_published_psum_over_a_v6e_pod():
    """235.8 GB/s over 256 chips: tpu-recipes, microbenchmarks/trillium/collectives (the one point it is fitted to)."""
    link = axis_links(parse("tpu-v6e:16x16"), {"all": 256})["all"]
    assert link.bytes_per_second == pytest.approx(235.7595e9, rel=0.02)
