"""Small steps, partitioned by a decision that a test writes down."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from shardwright.cluster import parse
from shardwright.cost.estimate import Estimate, estimate
from shardwright.partition.device import DeviceProgram
from shardwright.partition.lower import partition
from shardwright.plan.decision import AxisPlan, Decision
from shardwright.program.capture import capture
from shardwright.program.ir import Program
from shardwright.rules.classes import Classes, find_classes


@dataclasses.dataclass(frozen=True)
class Planned:
    program: Program
    classes: Classes
    decision: Decision
    device: DeviceProgram
    estimate: Estimate


def floats(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def planned(step: Any, args: dict[str, Any], mesh: dict[str, int], compute: dict[str, list], store=None) -> Planned:
    """`step` of the named `args`. `compute` and `store`: axis → (leaf name, dim) of each class that it cuts."""
    program = capture(step, tuple(args.values()), {}, names=list(args))
    classes = find_classes(program)
    of = {leaf.name: classes.of[v] for leaf, v in zip(program.inputs, program.block.invars, strict=True)}

    def ids(listed):
        return tuple(of[name][dim] for name, dim in listed)

    store = store or {}
    axes = [AxisPlan(a, n, ids(compute.get(a, [])), ids(store.get(a, []))) for a, n in mesh.items()]
    decision = Decision(tuple(axes))
    device = partition(program, classes, decision)
    priced = estimate(program, device, parse(f"cpu:{math.prod(mesh.values())}"))
    return Planned(program, classes, decision, device, priced)


WIDTH, HIDDEN = 256, 512


def mlp(w, x):
    """One step of gradient descent on a two-layer perceptron; weights, and the loss."""

    def loss(w):
        return jnp.mean((jnp.tanh(x @ w["a"]) @ w["b"]) ** 2)

    value, gradient = jax.value_and_grad(loss)(w)
    return jax.tree.map(lambda p, g: p - 0.1 * g, w, gradient), value


def mlp_args(batch: int = 64) -> dict[str, Any]:
    return {"w": {"a": floats(WIDTH, HIDDEN), "b": floats(HIDDEN, WIDTH)}, "x": floats(batch, WIDTH)}


BATCH, IN, MIDDLE = ("x", 0), ("w['a']", 0), ("w['a']", 1)
PLANS: dict[str, dict[str, Any]] = {
    "data parallel": {"mesh": {"x": 8}, "compute": {"x": [BATCH]}},
    "fsdp": {"mesh": {"x": 8}, "compute": {"x": [BATCH]}, "store": {"x": [IN]}},
    "tensor parallel": {"mesh": {"x": 8}, "compute": {"x": [MIDDLE]}},
    "two axes": {
        "mesh": {"d": 2, "t": 4},
        "compute": {"d": [BATCH], "t": [MIDDLE]},
        "store": {"d": [IN]},
    },
}
