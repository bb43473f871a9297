"""One way of running the GPT step on a mesh, whoever wrote it, and how to hand it to a compiler."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from benchmarks import gpt
from shardwright.run.devices import abstract_mesh
from shardwright.run.targets import Lowerable

Specs = Mapping[str, PartitionSpec]


@dataclasses.dataclass(frozen=True)
class Variant:
    """A step on whole arrays, with where each array lies.

    Attributes:
        step: (state, tokens) -> (state, loss), as in `gpt.py`.
        in_shardings: of (state, tokens).
        out_shardings: of (state, loss).
    """

    step: Callable[..., Any]
    in_shardings: Any
    out_shardings: Any


Builder = Callable[[gpt.Config, Mesh | AbstractMesh], Variant]


def state_specs(c: gpt.Config, params: Specs, slots: Specs) -> tuple[Any, Any]:
    """Specs of (parameters, optimizer state); a slot lies as `slots` says of its parameter, a counter is whole."""
    _, opt = gpt.abstract_arguments(c)[0]

    def slot(path: Any, leaf: Any) -> PartitionSpec:
        del leaf
        keys = [getattr(key, "key", None) for key in path]
        return next((slots[key] for key in keys if key in slots), PartitionSpec())

    return dict(params), jax.tree_util.tree_map_with_path(slot, opt)


def named(mesh: Mesh | AbstractMesh, specs: Any) -> Any:
    """The specs of a tree as shardings on `mesh`."""
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs, is_leaf=lambda x: isinstance(x, PartitionSpec))


def by_hand(local_step: Callable[..., Any], mesh: Mesh | AbstractMesh, state: Any, tokens: PartitionSpec) -> Variant:
    """A variant from the program of one device. Its collectives are its own: nothing is inferred from replication."""
    in_specs, out_specs = (state, tokens), (state, PartitionSpec())
    step = jax.shard_map(local_step, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
    return Variant(step, named(mesh, in_specs), named(mesh, out_specs))


def jitted(variant: Variant) -> Any:
    """The variant ready to run or lower, its state donated."""
    return jax.jit(
        variant.step,
        in_shardings=variant.in_shardings,
        out_shardings=variant.out_shardings,
        donate_argnums=0,
    )


def lowerable(build: Builder, c: gpt.Config, mesh_axes: Mapping[str, int]) -> Lowerable:
    """The variant as a flat program for `shardwright.run.targets.compile_ahead`."""
    arguments = gpt.abstract_arguments(c)
    avals, tree = jax.tree.flatten(arguments)
    abstract = build(c, abstract_mesh(mesh_axes))

    def make_fn(mesh: Mesh | AbstractMesh) -> Callable[..., Any]:
        step = build(c, mesh).step
        return lambda *flat: tuple(jax.tree.leaves(step(*jax.tree.unflatten(tree, flat))))

    specs = [
        tuple(sharding.spec for sharding in jax.tree.leaves(each))
        for each in (abstract.in_shardings, abstract.out_shardings)
    ]
    num_state = len(jax.tree.leaves(arguments[0]))
    return Lowerable(make_fn, tuple(avals), specs[0], specs[1], mesh_axes, tuple(range(num_state)))
