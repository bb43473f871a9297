"""How long one collective takes: the alpha-beta model, bytes ÷ bandwidth plus a latency for each step.

With n devices in the group, r the bytes of one device's result, α the latency of a step and B the bytes per second that
a device sends in one direction:

    seconds = call + steps · α + sent bytes / B

Sent bytes are those of a bandwidth-optimal algorithm (a ring; recursive halving and doubling sends as many):

- all_gather: every device passes on all shards but one, each r/n bytes: r·(n-1)/n;
- reduce_scatter: the same in reverse on an input of n·r bytes: (n·r)·(n-1)/n = r·(n-1);
- all_reduce: a reduce_scatter of r bytes into r/n, then an all_gather of it: 2·r·(n-1)/n;
- all_to_all: a device keeps 1/n of its r bytes: r·(n-1)/n;
- permute: everything: r.

Steps are the fewest over the algorithms that send these bytes, as libraries choose by size (Thakur, Rabenseifner and
Gropp, "Optimization of Collective Communication Operations in MPICH", 2005, sections 4.1 to 4.5):

- all_gather, reduce_scatter: min(ring n-1, recursive doubling or halving ceil(log2 n));
- all_reduce: both in turn, min(2·(n-1), 2·ceil(log2 n)), which is what a pair of trees takes, too;
- all_to_all: pairwise n-1 steps with r·(n-1)/n bytes, or Bruck's ceil(log2 n) steps with r/2 bytes each: whichever
  takes less time;
- permute: one.
"""

from __future__ import annotations

import math

from shardwright.cluster import Link

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute")


def sent_bytes(kind: str, result_bytes: float, group: int) -> float:
    """Bytes that one device sends in a bandwidth-optimal collective.

    Args:
        kind: One of `KINDS`.
        result_bytes: Bytes of the result on one device.
        group: Devices that take part; one device sends nothing.

    Returns:
        Bytes.

    Raises:
        ValueError: An unknown kind, or a group of less than one device.
    """
    _check(kind, group)
    if group == 1:
        return 0.0
    match kind:
        case "all_reduce":
            return 2 * result_bytes * (group - 1) / group
        case "reduce_scatter":
            return float(result_bytes * (group - 1))
        case "permute":
            return float(result_bytes)
        case _:
            return result_bytes * (group - 1) / group


def collective_seconds(kind: str, result_bytes: float, group: int, link: Link) -> float:
    """Seconds of one collective; 0 for a group of one device, which XLA drops.

    Args:
        kind: One of `KINDS`.
        result_bytes: Bytes of the result on one device.
        group: Devices that take part.
        link: What the group gets of the network (`cluster.axis_links` or `cluster.group_link`).

    Returns:
        Seconds.

    Raises:
        ValueError: An unknown kind, or a group of less than one device.
    """
    sent = sent_bytes(kind, result_bytes, group)
    if group == 1:
        return 0.0
    doublings = math.ceil(math.log2(group))  # never more than the ring's group - 1
    match kind:
        case "all_reduce":
            moving = 2 * doublings * link.latency_seconds + sent / link.bytes_per_second
        case "all_to_all":
            rate = link.all_to_all_bytes_per_second or link.bytes_per_second
            pairwise = (group - 1) * link.latency_seconds + sent / rate
            bruck = doublings * (link.latency_seconds + result_bytes / 2 / rate)
            moving = min(pairwise, bruck)
        case "permute":
            moving = link.latency_seconds + sent / (link.permute_bytes_per_second or link.bytes_per_second)
        case _:
            moving = doublings * link.latency_seconds + sent / link.bytes_per_second
    return link.call_seconds + moving


def _check(kind: str, group: int) -> None:
    if kind not in KINDS:
        raise ValueError(f"Unknown collective {kind!r}. Name one of {', '.join(KINDS)}.")
    if group < 1:
        raise ValueError(f"A collective over {group} devices is impossible. Give the number that take part, from 1 on.")
