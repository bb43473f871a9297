"""What the demo found, as data, as a table and as JSON."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from shardwright.plan.amounts import bytes_text

_TITLE_WIDTH, _COLUMN_WIDTH = 26, 15


@dataclasses.dataclass(frozen=True)
class Figures:
    """What one program costs one device.

    Attributes:
        predicted_peak_bytes: Memory, by the planner.
        reported_peak_bytes: Memory, by XLA.
        predicted_sent_bytes: Sent to other devices in one step, by the planner.
        reported_sent_bytes: The same, counted in XLA's compiled program.
    """

    predicted_peak_bytes: float
    reported_peak_bytes: float
    predicted_sent_bytes: float
    reported_sent_bytes: float


@dataclasses.dataclass(frozen=True)
class Model:
    """The model at one moment of its training: its held-out loss in nats a byte, and a text that it wrote."""

    held_out_loss: float
    sample: str


@dataclasses.dataclass(frozen=True, eq=False)
class DemoResult:
    """Everything that the demo found.

    Attributes:
        cluster: What was planned for.
        num_devices: Of the plan's mesh.
        budget_bytes: The memory of one device that the plan had to meet.
        one_device: The unplanned step.
        planned: The plan's step.
        before: The fresh model.
        after: The trained model.
        losses: One a step.
        seconds: Of training.
        tokens_per_second: Over the training.
        certificate: What the prover returned: `ok`, `unproven`, `max_relative_error` and `as_dict()`.
        plan_file: Where the plan was saved.
    """

    cluster: str
    num_devices: int
    budget_bytes: int
    one_device: Figures
    planned: Figures
    before: Model
    after: Model
    losses: tuple[float, ...]
    seconds: float
    tokens_per_second: float
    certificate: Any
    plan_file: str

    @property
    def ok(self) -> bool:
        """Whether the plan was proven to compute what one device computes."""
        return bool(self.certificate.ok)


def peak_bytes(compiled: Any) -> int:
    """Memory of one device by XLA: argument + output − alias + temp bytes of a `jax.stages.Compiled`."""
    m = compiled.memory_analysis()
    return m.argument_size_in_bytes + m.output_size_in_bytes - m.alias_size_in_bytes + m.temp_size_in_bytes


def table(result: DemoResult) -> str:
    """Returns the closing table: one device against the plan, predicted beside what XLA reports."""
    columns = (result.one_device, result.planned)
    heads = ["one device, unplanned", f"plan for {result.num_devices} devices"]
    rows = [
        ("memory of one device", [(f.predicted_peak_bytes, f.reported_peak_bytes) for f in columns]),
        ("sent by one device a step", [(f.predicted_sent_bytes, f.reported_sent_bytes) for f in columns]),
    ]
    lines = [" " * _TITLE_WIDTH + "".join(f"{h:>{2 * _COLUMN_WIDTH}}" for h in heads)]
    lines.append(" " * _TITLE_WIDTH + f"{'predicted':>{_COLUMN_WIDTH}}{'XLA reports':>{_COLUMN_WIDTH}}" * len(columns))
    for title, pairs in rows:
        cells = "".join(f"{bytes_text(x):>{_COLUMN_WIDTH}}" for pair in pairs for x in pair)
        lines.append(f"{title:<{_TITLE_WIDTH}}{cells}")
    return "\n".join([*lines, "", *_verdicts(result)])


def facts(result: DemoResult) -> dict[str, Any]:
    """Returns the result as JSON types."""
    return {
        "ok": result.ok,
        "plan": result.plan_file,
        "cluster": result.cluster,
        "num_devices": result.num_devices,
        "budget_bytes": result.budget_bytes,
        "peak_bytes": {n: _pair(f, "peak_bytes") for n, f in _programs(result)},
        "sent_bytes": {n: _pair(f, "sent_bytes") for n, f in _programs(result)},
        "held_out_loss": {"before": result.before.held_out_loss, "after": result.after.held_out_loss},
        "sample": {"before": result.before.sample, "after": result.after.sample},
        "steps": len(result.losses),
        "losses": [round(x, 4) for x in result.losses],
        "seconds": round(result.seconds, 3),
        "tokens_per_second": round(result.tokens_per_second, 1),
        "certificate": certificate_facts(result.certificate),
    }


def certificate_facts(certificate: Any) -> dict[str, Any]:
    """Returns `certificate.as_dict()` as JSON, which has neither NaN nor infinity: they are written as text."""
    return {name: _finite(value) for name, value in certificate.as_dict().items()}


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _programs(result: DemoResult) -> tuple[tuple[str, Figures], ...]:
    return ("one_device", result.one_device), ("planned", result.planned)


def _pair(figures: Figures, name: str) -> dict[str, float]:
    return {who: getattr(figures, f"{who}_{name}") for who in ("predicted", "reported")}


def _verdicts(result: DemoResult) -> list[str]:
    budget, peak = result.budget_bytes, result.planned.reported_peak_bytes
    kept = "within" if peak <= budget else "NOT within"
    unproven = f", {len(result.certificate.unproven)} leaves unproven" if result.certificate.unproven else ""
    fall = f"{result.before.held_out_loss:.2f} to {result.after.held_out_loss:.2f} nats a byte"
    return [
        f"memory       {bytes_text(peak)} a device by XLA, {kept} the budget of {bytes_text(budget)}; "
        f"unplanned it is {bytes_text(result.one_device.reported_peak_bytes)}",
        f"learning     held-out loss {fall} in {len(result.losses)} steps, {result.tokens_per_second:,.0f} tokens/s",
        f"certificate  {'the same mathematics as on one device' if result.ok else 'NOT PROVEN'}{unproven}, "
        f"largest relative error {result.certificate.max_relative_error:.1e} in float64",
    ]
