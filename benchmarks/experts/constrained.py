"""Experts that state layouts and leave the partitioning to XLA.

    constrained(Config(), mesh)["fsdp"]       # one axis 'x', or axes 'd' (data) and 't' (tensor)

Each says where parameters and optimizer slots lie at rest, where weights lie when a layer uses them, and where the
activations lie; `propagated` says only where the state lies, which is what a user does who fills in `in_shardings`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks import gpt
from benchmarks.experts.variant import Specs, Variant, named, state_specs

WHOLE: Specs = {name: P() for name in ("emb", "wq", "wk", "wv", "wo", "w1", "w2")}

# Every parameter and its slots over all of 'x', along the dim of the model's width (emb: the vocabulary).
SPLIT: Specs = {
    "emb": P("x"),
    "wq": P(None, "x"),
    "wk": P(None, "x"),
    "wv": P(None, "x"),
    "wo": P(None, None, None, "x"),
    "w1": P(None, "x"),
    "w2": P(None, None, "x"),
}


def tensor_specs(axis: str, width_axis: str | None = None) -> Specs:
    """Megatron's: heads, hidden units and vocabulary on `axis`; the width on another axis, at rest, if one is given."""
    inward = P(None, width_axis, axis)
    return {
        "emb": P(axis, width_axis),
        "wq": inward,
        "wk": inward,
        "wv": inward,
        "wo": P(None, axis, None, width_axis),
        "w1": inward,
        "w2": P(None, axis, width_axis),
    }


def constrained(c: gpt.Config, mesh: Mesh | AbstractMesh) -> Mapping[str, Variant]:
    """Name -> variant, for the axes that the mesh has."""
    build = functools.partial(_build, c, mesh)
    if tuple(mesh.axis_names) == ("x",):
        tensor = tensor_specs("x")
        return {
            "propagated": build(SPLIT, SPLIT, None, P("x"), P("x")),
            "dp": build(WHOLE, WHOLE, WHOLE, P("x"), P("x")),
            "zero1": build(WHOLE, SPLIT, WHOLE, P("x"), P("x")),
            "fsdp": build(SPLIT, SPLIT, WHOLE, P("x"), P("x")),
            "tp": build(tensor, tensor, tensor, P(), P()),
            "tp_sp": build(tensor, tensor, tensor, P(None, "x"), P()),
        }
    if tuple(mesh.axis_names) == ("d", "t"):
        tensor, both = tensor_specs("t"), tensor_specs("t", "d")
        return {
            "dp_tp": build(tensor, tensor, tensor, P("d"), P("d")),
            "fsdp_tp": build(both, both, tensor, P("d"), P("d")),
        }
    raise ValueError(f"the experts are written for axes ('x',) or ('d', 't'), not {mesh.axis_names}")


def _build(
    c: gpt.Config,
    mesh: Mesh | AbstractMesh,
    at_rest: Specs,
    slots: Specs,
    in_use: Specs | None,
    activations: P,
    tokens: P,
) -> Variant:
    """One expert; without `in_use` nothing inside the step is stated."""

    def constrain(x: jax.Array, spec: P) -> jax.Array:
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec))

    def pin(name: str, x: jax.Array) -> jax.Array:
        if name == "act":
            return constrain(x, activations)
        # Inside the loop over layers the stacked dim is gone.
        return constrain(x, in_use[name] if name == gpt.EMBEDDING else P(*in_use[name][1:]))

    def store(name: str, x: jax.Array) -> jax.Array:
        return constrain(x, slots[name])

    step = gpt.make_step(c) if in_use is None else gpt.make_step(c, pin, store)
    state = named(mesh, state_specs(c, at_rest, slots))
    return Variant(step, (state, named(mesh, tokens)), (state, named(mesh, P())))
