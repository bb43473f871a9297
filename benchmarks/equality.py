"""Plans by name against one device after 5 steps, on 2 to 8 virtual CPU devices.

    python -m benchmarks.equality --devices 2 --devices 3

For each plan of `forced_plans.py` and each number of devices (sizes that do not divide among them):

- the certificate in float64 with AdamW: the mathematics is the same, `cert.ok`;
- in float32 with SGD: the error of no state leaf is above 1e-5;
- in float32 with AdamW: the error over the whole state, in L2, is at most 2e-5. Adam divides small gradients by their
  own rounding, so single leaves of it show the optimizer and not the plan.

The relative error of a leaf is ‖a − b‖₂ / ‖b‖₂, that of the state the same over all leaves at once.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import optax

import shardwright as sw
from benchmarks import gpt, measured, models
from benchmarks.forced_plans import CapturedStep, capture_step, forced_plans

STEPS = 5
DEVICES = (2, 3, 4, 5, 6, 8)
SGD = optax.sgd(0.1, momentum=0.9)
SGD_LEAF_LIMIT, ADAMW_STATE_LIMIT = 1e-5, 2e-5


@functools.cache
def captured(model: str, optimizer: Any) -> CapturedStep:
    return capture_step(models.MODELS[model], optimizer)


@functools.cache
def one_device(model: str, optimizer: Any) -> list[np.ndarray]:
    """The state's leaves after all steps on one device."""
    step, c = jax.jit(captured(model, optimizer).step), models.MODELS[model]
    state, _ = measured.values(c, optimizer)
    for k in range(STEPS):
        state, _ = step(state, tokens_of(c, k))
    return host_leaves(state)


def tokens_of(c: gpt.Config, k: int) -> jax.Array:
    """The batch of step `k`."""
    return jax.random.randint(jax.random.key(100 + k), (c.batch, c.sequence + 1), 0, c.vocab)


def host_leaves(state: Any) -> list[np.ndarray]:
    return [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(state)]


def by_plan(model: str, plan: sw.Plan, optimizer: Any) -> list[np.ndarray]:
    """The same by a plan."""
    fn, c = plan.compile(), models.MODELS[model]
    state, _ = measured.values(c, optimizer)
    for k in range(STEPS):
        state, _ = fn(state, tokens_of(c, k))
    assert len({d for x in jax.tree.leaves(state) for d in x.sharding.device_set}) > 1
    return host_leaves(state)


def drift(got: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> dict[str, float]:
    """Relative errors: over the whole state, and of the worst leaf."""
    apart = [float(np.linalg.norm(a - b)) for a, b in zip(got, wanted, strict=True)]
    sizes = [float(np.linalg.norm(b)) for b in wanted]
    leaves = [x / y if y else x for x, y in zip(apart, sizes, strict=True)]
    return {"state_l2": float(np.linalg.norm(apart) / np.linalg.norm(sizes)), "worst_leaf": max(leaves)}


def of_plan(model: str, name: str, cluster: str) -> dict[str, Any]:
    """All three claims for one plan."""
    adamw = captured(model, gpt.OPTIMIZER)
    plan = forced_plans(adamw, cluster)[name]
    certificate = sw.prove(plan, adamw.step, *adamw.arguments, steps=STEPS)
    with_adamw = drift(by_plan(model, plan, gpt.OPTIMIZER), one_device(model, gpt.OPTIMIZER))
    by_sgd = by_plan(model, forced_plans(captured(model, SGD), cluster)[name], SGD)
    with_sgd = drift(by_sgd, one_device(model, SGD))
    return {
        "certificate_ok": certificate.ok,
        "float64_max_relative_error": certificate.max_relative_error,
        "unproven": list(certificate.unproven),
        "changes": list(certificate.changes),
        "float32_sgd": with_sgd,
        "float32_adamw": with_adamw,
        "ok": certificate.ok
        and with_sgd["worst_leaf"] <= SGD_LEAF_LIMIT
        and with_adamw["state_l2"] <= ADAMW_STATE_LIMIT,
    }


def main() -> None:
    options = models.parser(__doc__, "default")
    options.add_argument("--devices", type=int, action="append", help=f"default: {DEVICES}")
    options.add_argument("--plan", action="append", help="names of plans; default: all")
    asked = options.parse_args()
    models.start_virtual_devices()
    found: dict[str, Any] = {}
    for model in models.chosen(asked):
        for n in asked.devices or DEVICES:
            cluster = f"cpu:{n}"
            for name in forced_plans(captured(model, gpt.OPTIMIZER), cluster):
                if asked.plan and name not in asked.plan:
                    continue
                row = of_plan(model, name, cluster)
                found.setdefault(model, {}).setdefault(cluster, {})[name] = row
                models.progress(f"{model} {cluster} {name}: {_in_short(row)}")
    models.report(found)


def _in_short(row: dict[str, Any]) -> str:
    return (
        f"{'ok' if row['ok'] else 'DIFFERS'}, float64 {row['float64_max_relative_error']:.1e}, "
        f"SGD leaf {row['float32_sgd']['worst_leaf']:.1e}, AdamW state {row['float32_adamw']['state_l2']:.1e}"
    )


if __name__ == "__main__":
    main()
