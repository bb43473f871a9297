"""The training loop: it keeps the devices busy and says how far it is.

The metrics of step n are fetched while step n + 1 runs, so the host never waits for a step it could already have
queued behind. The loop knows nothing of plans: a step is any function `(state, batch) -> (state, metrics)`.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from shardwright.train.progress import Progress, Watch

Step = Callable[[Any, np.ndarray], tuple[Any, dict[str, Any]]]


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """What a training loop leaves.

    Attributes:
        state: After the last step.
        losses: One a step.
        tokens: Trained on, all steps together.
        seconds: From the first step's dispatch to the last step's end.
    """

    state: Any
    losses: tuple[float, ...]
    tokens: int
    seconds: float

    @property
    def num_steps(self) -> int:
        """Steps that were run."""
        return len(self.losses)

    @property
    def tokens_per_second(self) -> float:
        """Over the whole run."""
        return self.tokens / self.seconds


def run(
    step: Step,
    state: Any,
    batches: Iterator[np.ndarray],
    *,
    num_steps: int,
    watch: Watch,
    limit_seconds: float = math.inf,
) -> Run:
    """Trains for `num_steps` steps, or until `limit_seconds` have gone by; at least one step is run.

    Args:
        step: `(state, batch) -> (state, metrics)`; `metrics["loss"]` is a scalar. It may donate the state.
        state: What the first step is given.
        batches: int32 [batch, sequence + 1] each.
        num_steps: At least 1.
        watch: Told of each step.
        limit_seconds: No step begins later than this.

    Raises:
        ValueError: A loss is not finite, or `num_steps` is below 1.
    """
    if num_steps < 1:
        raise ValueError(f"num_steps is {num_steps}; a run has at least one step")
    losses: list[float] = []
    tokens, started = 0, time.perf_counter()

    def arrive(metrics: dict[str, Any], ended: bool) -> None:
        losses.append(_finite(float(metrics["loss"]), len(losses) + 1))
        seconds = time.perf_counter() - started
        done_tokens = tokens * len(losses) // dispatched
        watch(Progress(len(losses), num_steps, losses[-1], done_tokens / seconds, seconds, ended))

    dispatched, waiting = 0, None
    while dispatched < num_steps and (dispatched == 0 or time.perf_counter() - started < limit_seconds):
        batch = next(batches)
        state, metrics = step(state, batch)
        dispatched, tokens = dispatched + 1, tokens + batch.shape[0] * (batch.shape[1] - 1)
        if waiting is not None:
            arrive(waiting, ended=False)
        waiting = metrics
    assert waiting is not None  # num_steps >= 1
    arrive(waiting, ended=True)
    return Run(state, tuple(losses), tokens, time.perf_counter() - started)


def _finite(loss: float, step: int) -> float:
    if not math.isfinite(loss):
        raise ValueError(f"the loss of step {step} is {loss}: lower the learning rate or the gradient's clipping norm")
    return loss
