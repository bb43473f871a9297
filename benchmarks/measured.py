"""What a compiled step takes: memory and traffic as XLA reports them, and seconds, two programs in turn.

facts_of(compiled, {"x": 8})["peak_bytes"]
paired(runner(a, ...), runner(b, ...), rounds=21).median_ratio
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks import gpt
from shardwright.run.targets import Memory
from shardwright.run.traffic import sent_bytes, traffic

Runner = Callable[[], float]  # runs one step to its end; the loss


def memory_of(compiled: Any) -> Memory:
    """Memory of one device, as the compiler of the attached devices lays it out."""
    m = compiled.memory_analysis()
    return Memory(
        m.argument_size_in_bytes,
        m.output_size_in_bytes,
        m.alias_size_in_bytes,
        m.temp_size_in_bytes,
    )


def facts_of(compiled: Any, mesh_axes: Mapping[str, int]) -> dict[str, float]:
    """Bytes of one device: peak, temporaries, arguments, and what it sends in one step."""
    return memory_facts(memory_of(compiled), sent_bytes(traffic(compiled.as_text(), mesh_axes)))


def memory_facts(memory: Memory, sent: float) -> dict[str, float]:
    """The same for a program that was compiled anywhere."""
    return {
        "peak_bytes": memory.peak_bytes,
        "argument_bytes": memory.argument_bytes,
        "temp_bytes": memory.temp_bytes,
        "sent_bytes": sent,
    }


def values(c: gpt.Config, optimizer: Any = gpt.OPTIMIZER) -> tuple[Any, jax.Array]:
    """A (state, tokens) to run from; always the same."""
    params = gpt.init(jax.random.key(0), c)
    tokens = jax.random.randint(jax.random.key(1), (c.batch, c.sequence + 1), 0, c.vocab)
    return (params, optimizer.init(params)), tokens


def runner(step: Callable[..., Any], state: Any, tokens: Any) -> Runner:
    """A step that feeds its state back. `state` must be the runner's own: it is donated."""
    held = [state]

    def run() -> float:
        held[0], loss = step(held[0], tokens)
        jax.block_until_ready(held[0])
        return float(loss)

    return run


def fresh(tree: Any) -> Any:
    """A copy that may be donated."""
    return jax.tree.map(jnp.copy, tree)


def seconds_of(run: Runner) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


@dataclasses.dataclass(frozen=True)
class Paired:
    """Seconds of two programs that ran in turn, A B A B: a machine that drifts slows both."""

    a: tuple[float, ...]
    b: tuple[float, ...]

    @property
    def ratios(self) -> list[float]:
        return [x / y for x, y in zip(self.a, self.b, strict=True)]

    @property
    def median_ratio(self) -> float:
        """Of A to B."""
        return statistics.median(self.ratios)

    def as_dict(self) -> dict[str, Any]:
        low, _, high = statistics.quantiles(self.ratios, n=4) if len(self.ratios) > 1 else (self.ratios[0],) * 3
        return {
            "rounds": len(self.a),
            "median_ratio": self.median_ratio,
            "quartiles": [low, high],
            "median_seconds": [statistics.median(self.a), statistics.median(self.b)],
        }


def paired(a: Runner, b: Runner, rounds: int) -> Paired:
    """Times `rounds` runs of each in turn, after one of each to warm up."""
    a(), b()
    times = [(seconds_of(a), seconds_of(b)) for _ in range(rounds)]
    return Paired(tuple(x for x, _ in times), tuple(y for _, y in times))


def medians(runners: Mapping[str, Runner], rounds: int) -> dict[str, float]:
    """Name -> median seconds, all in turn, after one run of each to warm up."""
    for run in runners.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in runners}
    for _ in range(rounds):
        for name, run in runners.items():
            times[name].append(seconds_of(run))
    return {name: statistics.median(each) for name, each in times.items()}


def budgets_of(peaks: Sequence[float]) -> dict[str, int]:
    """Three memory limits from the peaks of what there is to beat: all fit, half of them, only the smallest."""
    ordered = sorted(peaks)
    return {"loose": int(ordered[-1]), "middle": int(ordered[(len(ordered) - 1) // 2]), "tightest": int(ordered[0])}
