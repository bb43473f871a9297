"""Plans by name: what each textbook scheme is as a decision, made into a plan without any search.

step = capture_step(gpt.Config())
forced_plans(step, "cpu:8")["fsdp"].compile()

python -m benchmarks.forced_plans --devices 8      # what they are predicted to cost, as JSON

dp        the batch is cut
zero1     and each device updates its share of the parameters' width, with its share of the slots
fsdp      and parameters lie cut by width between steps
tp        heads, hidden units and vocabulary are cut
tp_sp     and the sequence, where none of them occurs
dp_tp     two axes: dp on the first, tp_sp on the second
fsdp_tp   two axes: fsdp on the first, tp_sp on the second
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from benchmarks import gpt, models
from shardwright._plan import Plan, build
from shardwright.cluster import parse
from shardwright.plan.decision import AxisPlan, Decision
from shardwright.program.capture import capture
from shardwright.program.ir import Program, Role, Var
from shardwright.program.signature import Call, Options, bind_call, make_options
from shardwright.report.recording import record_of
from shardwright.report.warnings import warnings_of
from shardwright.rules.classes import Classes, find_classes

AXIS, DATA_AXIS, TENSOR_AXIS = "x", "d", "t"
OPTIMIZER_ALONE = frozenset({Role.OPTIMIZER})


@dataclasses.dataclass(frozen=True, eq=False)
class CapturedStep:
    """The GPT's step, traced once for any number of plans."""

    config: gpt.Config
    step: Any
    arguments: tuple[Any, ...]
    options: Options
    call: Call
    program: Program
    classes: Classes


@dataclasses.dataclass(frozen=True)
class NamedClasses:
    """The ids of the classes that the schemes cut."""

    batch: int
    width: int
    hidden: int
    heads: int
    vocabulary: int
    sequence: int


def capture_step(c: gpt.Config, optimizer: Any = gpt.OPTIMIZER) -> CapturedStep:
    """Traces the GPT step of these sizes, its state donated."""
    step, arguments = gpt.program(c, optimizer)
    options = make_options((), (), 0, ())
    call = bind_call(step, arguments, {}, options)
    program = capture(call.step, call.args, call.kwargs, names=call.names, donated=call.donated)
    return CapturedStep(c, step, arguments, options, call, program, find_classes(program))


def named_classes(step: CapturedStep) -> NamedClasses:
    """The GPT's classes, told by the leaves that have them."""
    leaves = {
        leaf.name: step.classes.of[v] for leaf, v in zip(step.program.inputs, step.program.block.invars, strict=True)
    }
    return NamedClasses(
        batch=leaves["tokens"][0],
        width=leaves["state[0]['w1']"][1],
        hidden=leaves["state[0]['w1']"][2],
        heads=leaves["state[0]['wq']"][2],
        vocabulary=leaves["state[0]['emb']"][0],
        sequence=_sequence(step),
    )


def _sequence(step: CapturedStep) -> int:
    """Dim 1 of what the first loop over layers carries, [B, S, D]."""
    c = step.config
    (scan, *_) = (e for e in step.program.block.equations if e.name == "scan")
    first = scan.params["num_consts"]
    (carried,) = (
        v
        for v in scan.blocks[0].invars[first : first + scan.params["num_carry"]]
        if isinstance(v, Var) and v.aval.shape == (c.batch, c.sequence, c.width)
    )
    return step.classes.of[carried][1]


def decisions(step: CapturedStep, n: int) -> dict[str, Decision]:
    """Name -> decision of each scheme on `n` devices; those of two axes only where `n` is even and more than 2."""
    k = named_classes(step)
    tensor = (k.heads, k.hidden, k.vocabulary)
    state = (k.width, *tensor)

    def on_one_axis(**lists: Any) -> Decision:
        return Decision((AxisPlan(AXIS, n, **lists),))

    found = {
        "dp": on_one_axis(compute=(k.batch,)),
        "zero1": on_one_axis(compute=(k.batch,), store=state, rest=OPTIMIZER_ALONE),
        "fsdp": on_one_axis(compute=(k.batch,), store=state),
        "tp": on_one_axis(compute=tensor),
        "tp_sp": on_one_axis(compute=(*tensor, k.sequence)),
    }
    if n % 2 == 0 and n > 2:
        inner = AxisPlan(TENSOR_AXIS, n // 2, (*tensor, k.sequence))
        found["dp_tp"] = Decision((AxisPlan(DATA_AXIS, 2, (k.batch,)), inner))
        found["fsdp_tp"] = Decision((AxisPlan(DATA_AXIS, 2, (k.batch,), state), inner))
    return found


def plan_of(step: CapturedStep, decision: Decision, cluster: str) -> Plan:
    """The plan that a decision is, without a search."""
    where = parse(cluster)
    t = build(step.step, step.options, step.call, step.program, step.classes, decision, where, None)
    record = record_of(
        t.program,
        t.classes,
        decision,
        t.device,
        t.price,
        cluster=where.name,
        memory_limit_bytes=where.device.memory_bytes,
        warnings=warnings_of(t.program, t.device, t.price),
    )
    return Plan(record, t)


def forced_plans(step: CapturedStep, cluster: str) -> dict[str, Plan]:
    """Name -> plan of each scheme over all devices of the cluster."""
    n = parse(cluster).num_devices
    return {name: plan_of(step, decision, cluster) for name, decision in decisions(step, n).items()}


def predicted(plan: Plan) -> dict[str, Any]:
    """What a plan is predicted to cost, and what it was warned of."""
    e = plan.estimate
    by_kind: dict[str, list[float]] = {}
    for row in e.collectives:
        total = by_kind.setdefault(f"{row.kind} {row.axis}", [0, 0.0])
        total[0] += row.times
        total[1] += row.bytes
    return {
        "mesh": dict(plan.mesh),
        "peak_bytes": e.memory.peak_bytes,
        "temp_bytes": e.memory.temp_bytes,
        "sent_bytes": e.bytes_sent,
        "seconds": e.seconds,
        "collectives": {name: {"times": times, "bytes": size} for name, (times, size) in by_kind.items()},
        "warnings": [str(w) for w in plan.warnings],
    }


def main() -> None:
    options = models.parser(__doc__, "default", "deep")
    options.add_argument("--devices", type=int, default=models.VIRTUAL_DEVICES)
    asked = options.parse_args()
    found: dict[str, Mapping[str, Any]] = {}
    for model in models.chosen(asked):
        models.progress(model)
        plans = forced_plans(capture_step(models.MODELS[model]), f"cpu:{asked.devices}")
        found[model] = {name: predicted(plan) for name, plan in plans.items()}
    models.report(found)


if __name__ == "__main__":
    main()
