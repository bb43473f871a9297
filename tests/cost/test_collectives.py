"""Bytes and seconds of collectives against closed forms, a simulated ring and published measurements."""

from __future__ import annotations

import math

import pytest

from shardwright.cluster import Link, axis_links, parse
from shardwright.cost.collectives import KINDS, collective_seconds, sent_bytes

PLAIN = Link("plain", 64, bytes_per_second=10.0, latency_seconds=0.5)


def ring_bytes(shard_bytes: float, group: int) -> list[float]:
    """What each device of a ring sends until all of them hold all shards: a simulation, shard by shard."""
    held = [{device} for device in range(group)]
    last = list(range(group))
    sent = [0.0] * group
    while any(len(shards) < group for shards in held):
        moved = [last[(device - 1) % group] for device in range(group)]
        for device in range(group):
            held[device].add(moved[device])
            sent[(device - 1) % group] += shard_bytes
        last = moved
    return sent


@pytest.mark.parametrize("group", [2, 3, 4, 7, 8, 16])
def test_sent_bytes_of_a_ring(group):
    r = 840.0
    assert ring_bytes(r / group, group) == pytest.approx([sent_bytes("all_gather", r, group)] * group)
    assert sent_bytes("reduce_scatter", r / group, group) == pytest.approx(sent_bytes("all_gather", r, group))
    assert sent_bytes("all_reduce", r, group) == pytest.approx(
        sent_bytes("reduce_scatter", r / group, group) + sent_bytes("all_gather", r, group)
    )


def test_sent_bytes_closed_forms():
    assert sent_bytes("all_reduce", 100, 4) == 150
    assert sent_bytes("all_gather", 100, 4) == 75
    assert sent_bytes("reduce_scatter", 100, 4) == 300
    assert sent_bytes("all_to_all", 100, 4) == 75
    assert sent_bytes("permute", 100, 4) == 100


@pytest.mark.parametrize("kind", KINDS)
def test_one_device_sends_nothing(kind):
    assert sent_bytes(kind, 100, 1) == 0
    assert collective_seconds(kind, 100, 1, PLAIN) == 0


@pytest.mark.parametrize("group", [2, 5, 8, 64])
def test_seconds_closed_forms(group):
    steps = math.ceil(math.log2(group))
    share = (group - 1) / group
    seconds = {kind: collective_seconds(kind, 1000, group, PLAIN) for kind in KINDS}
    assert seconds["all_reduce"] == pytest.approx(2 * steps * 0.5 + 2 * 1000 * share / 10)
    assert seconds["all_gather"] == pytest.approx(steps * 0.5 + 1000 * share / 10)
    assert seconds["reduce_scatter"] == pytest.approx(steps * 0.5 + 1000 * (group - 1) / 10)
    assert seconds["permute"] == pytest.approx(0.5 + 100)


def test_all_to_all_takes_the_faster_algorithm():
    # Small: Bruck's log2(n) steps; large: pairwise, n-1 steps and fewer bytes.
    assert collective_seconds("all_to_all", 1, 8, PLAIN) == pytest.approx(3 * (0.5 + 0.5 / 10))
    assert collective_seconds("all_to_all", 1e6, 8, PLAIN) == pytest.approx(7 * 0.5 + 1e6 * 7 / 8 / 10)


def test_a_call_counts_once_and_kinds_have_their_rates():
    link = Link("odd", 8, 10.0, 0.0, 2.0, all_to_all_bytes_per_second=5.0, permute_bytes_per_second=1.0)
    assert collective_seconds("all_reduce", 80, 8, link) == pytest.approx(2 + 140 / 10)
    assert collective_seconds("all_to_all", 80, 8, link) == pytest.approx(2 + 70 / 5)
    assert collective_seconds("permute", 80, 8, link) == pytest.approx(2 + 80 / 1)


@pytest.mark.parametrize("kind", KINDS)
def test_more_bytes_take_longer(kind):
    times = [collective_seconds(kind, size, 8, PLAIN) for size in (0, 1, 10, 1e3, 1e6)]
    assert times == sorted(times)
    assert len(set(times)) == len(times)


def test_errors():
    with pytest.raises(ValueError, match="all_reduce, all_gather"):
        sent_bytes("broadcast", 1, 2)
    with pytest.raises(ValueError, match="0 devices"):
        collective_seconds("permute", 1, 0, PLAIN)


@pytest.mark.parametrize(
    ("group", "mebibytes", "microseconds"),
    [(2, 1, 44.21), (2, 64, 404.7), (2, 1024, 5442.8), (4, 4, 77.32), (8, 1, 92.79), (8, 64, 579.9), (8, 1024, 8193.0)],
)
def test_published_all_reduces_on_a100s(group, mebibytes, microseconds):
    """nccl-tests on an A100 node: VIA-Research/vTrain, trace/a100. The catalog is fitted to the whole table."""
    link = axis_links(parse(f"a100-80g:1x{group}"), {"x": group})["x"]
    predicted = collective_seconds("all_reduce", mebibytes * 2**20, group, link)
    assert predicted == pytest.approx(microseconds * 1e-6, rel=0.3)
