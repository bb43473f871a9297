"""In which order XLA's CPU and GPU back ends run the operations of a block.

They make one of the collectives that do not wait for each other (on CPU the all-reduces alone), then walk depth first
from the results; on CPU because `run.execute` asks for it. Of what an operation reads, that is walked first which has
the most further readers on its way, then what stands for the most bytes (both counted as often as they are met, up to
all there is: see XLA's `DFSMemoryScheduler`). The TPU compiler seeks an order that holds
little in its own way; for it we take the program's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from shardwright.partition.device import DeviceBlock, Move, Op, Slot

Before = Mapping[Op, tuple[Op, ...]]
"""Of each operation that is not fused those that compute what it reads, itself or through fusions."""


def depth_first(block: DeviceBlock, kept: Collection[Slot], leaders: Mapping[Op, Op]) -> DeviceBlock:
    """`block` with its operations in the order that the walk leaves them.

    Those that are fused (none of whose results is in `kept`) stand before the first that reads them. Collectives that
    are one (`leaders`: see `combined`) stand together.
    """
    before = _before(block, kept, leaders)
    made = {s: leaders.get(op, op) for op in block.ops for s in op.outputs}
    results = list(dict.fromkeys(made[s] for s in block.outputs if isinstance(s, Slot) and s in made))
    turns = _walk(before, results, _weights(block, kept, before, results))
    first: dict[Slot, int] = {}
    placed: list[tuple[int, int, Op]] = []
    for i, op in reversed(list(enumerate(block.ops))):
        lead = leaders.get(op, op)
        turn = turns[lead] if lead in turns else min((first[s] for s in op.outputs if s in first), default=len(turns))
        for x in op.inputs:
            if isinstance(x, Slot):
                first[x] = min(first.get(x, turn), turn)
        placed.append((turn, i, op))
    return DeviceBlock(block.inputs, tuple(op for *_, op in sorted(placed, key=lambda p: p[:2])), block.outputs)


COMBINED = {"cpu": ("all_reduce",), "gpu": ("all_reduce", "all_gather", "reduce_scatter")}
"""Kinds of collectives that each platform's compiler combines."""


def combined(block: DeviceBlock, platform: str) -> dict[Op, Op]:
    """Each collective, and the first of those that it is one with: of its kind, and none waits for another."""
    kinds = COMBINED.get(platform)
    if kinds is None:
        return {}
    waits: dict[Slot, frozenset[Op]] = {}
    behind: dict[Op, frozenset[Op]] = {}
    last: dict[object, Op] = {}
    leaders: dict[Op, Op] = {}
    for op in block.ops:
        upstream = frozenset[Op]().union(*(waits.get(x, frozenset()) for x in op.inputs if isinstance(x, Slot)))
        if isinstance(op, Move) and op.kind in kinds:
            kind = (op.kind, op.axes, op.monoid, op.outputs[0].aval.dtype)
            lead = last.get(kind)
            if lead is None or lead in upstream or any(lead in behind[u] for u in upstream):
                lead = last[kind] = op
            leaders[op] = lead
            behind[lead] = behind.get(lead, frozenset()) | upstream
            upstream |= {lead}
        waits.update((s, upstream) for s in op.outputs)
    return leaders


def _before(block: DeviceBlock, kept: Collection[Slot], leaders: Mapping[Op, Op]) -> Before:
    beneath: dict[Slot, dict[Op, None]] = {}
    before: dict[Op, tuple[Op, ...]] = {}
    for op in block.ops:
        read = {b: None for x in op.inputs if isinstance(x, Slot) for b in beneath.get(x, ())}
        fused = bool(op.outputs) and not any(s in kept for s in op.outputs)
        lead = leaders.get(op, op)
        if not fused:
            before[lead] = (*before.get(lead, ()), *(b for b in read if b not in before.get(lead, ())))
        beneath.update((s, read if fused else {lead: None}) for s in op.outputs)
    return before


def _weights(
    block: DeviceBlock, kept: Collection[Slot], before: Before, results: Collection[Op]
) -> dict[Op, tuple[int, int]]:
    """For each operation: readers beyond the first, and bytes, of itself and all before it (so often as it is met)."""
    readers: dict[Op, int] = dict.fromkeys(results, 1)
    for found in before.values():
        for b in found:
            readers[b] = readers.get(b, 0) + 1
    weights: dict[Op, tuple[int, int]] = {}
    most = len(before) + len(block.inputs)
    total = 0
    for op in _post_order(before, [*results, *before], list):
        found = before[op]
        own = sum(s.bytes for s in op.outputs if s in kept)
        total += own
        met = [weights[b] for b in found if b in weights]
        extra = max(readers.get(op, 0) - 1, 0) + sum(w[0] for w in met)
        weights[op] = min(extra, most), min(own + sum(w[1] for w in met), total)
    return weights


def _walk(before: Before, results: Collection[Op], weights: Mapping[Op, tuple[int, int]]) -> dict[Op, int]:
    """Each operation's turn. The walk starts from `results` and from what nobody reads."""
    index = {op: i for i, op in enumerate(before)}

    def by_weight(ops: Iterable[Op]) -> list[Op]:
        return sorted(ops, key=lambda op: (weights[op], -index[op]), reverse=True)

    unread = set(before).difference(*before.values())
    return {op: turn for turn, op in enumerate(_post_order(before, by_weight(unread.union(results)), by_weight))}


def _post_order(before: Before, roots: Sequence[Op], in_turn: Callable[[Iterable[Op]], Iterable[Op]]) -> list[Op]:
    """What `roots` wait for, then they themselves; `in_turn` says which of several goes first."""
    order: list[Op] = []
    stack = [(op, False) for op in reversed(roots)]
    opened: set[Op] = set()
    while stack:
        op, walked = stack.pop()
        if walked:
            order.append(op)
        elif op not in opened:
            opened.add(op)
            stack.append((op, True))
            stack.extend((b, False) for b in reversed([*in_turn(b for b in before[op] if b not in opened)]))
    return order
