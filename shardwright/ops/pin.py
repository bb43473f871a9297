"""`pin`: the user's word, inside a step, on where a value lies.

A primitive of its own and not `jax.lax.with_sharding_constraint`, because it needs no mesh, no devices and no context:
the spec names axes of the mesh that the step is planned for. On one device, and wherever a step is run without a plan,
it is the identity.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import PartitionSpec

from shardwright import _compat
from shardwright.program.signature import WrongUse, is_array

Spec = tuple[tuple[str, ...] | None, ...]
"""For each dim its mesh axes, () for whole, None for free."""

pin_p = Primitive("pin")
_compat.hide_frames(__file__)


def pin(x: Any, spec: Any) -> jax.Array:
    """Says where `x` lies at this place of a step that is planned.

    The gradient that flows back through it is pinned alike. Under `jax.vmap` the new dim is free.

    Args:
      x: an array.
      spec: a `PartitionSpec` over axes of the plan's mesh. None is whole, `P.UNCONSTRAINED` is free; dims that are not
        named are whole.

    Returns:
      `x`.

    Raises:
      ValueError: `spec` is no `PartitionSpec`, names an axis twice or more dims than `x` has.

    >>> import jax, shardwright as sw
    >>> from jax.sharding import PartitionSpec as P
    >>> jax.jit(lambda x: sw.pin(x, P("d", None)) + 1)(jax.numpy.zeros((2, 2))).sum()
    Array(4., dtype=float32)
    """
    if not isinstance(spec, PartitionSpec | tuple | list):
        raise WrongUse(
            f"pin: the spec {spec!r} is a {type(spec).__name__}, a PartitionSpec was wanted, as P('d', None)"
        )
    if not is_array(x):
        raise WrongUse(f"pin: the value is a {type(x).__name__}, an array was wanted; pin each array of it by itself")
    x = jnp.asarray(x)
    entries = tuple(_entry(e, spec) for e in spec)
    if len(entries) > x.ndim:
        raise WrongUse(f"pin: {spec} names {len(entries)} dims, and the value has {x.ndim}: {list(x.shape)}")
    named = [a for axes in entries if axes for a in axes]
    twice = sorted({a for a in named if named.count(a) > 1})
    if twice:
        raise WrongUse(f"pin: {spec} names mesh axis {', '.join(map(repr, twice))} twice; an axis cuts one dim")
    return pin_p.bind(x, spec=entries + ((),) * (x.ndim - len(entries)))


def _entry(entry: Any, spec: Any) -> tuple[str, ...] | None:
    if entry is None:
        return ()
    if entry is PartitionSpec.UNCONSTRAINED:
        return None
    axes = (entry,) if isinstance(entry, str) else entry
    if not isinstance(axes, tuple | list) or not all(isinstance(a, str) for a in axes):
        raise WrongUse(f"pin: {spec} holds {entry!r}, the name of a mesh axis was wanted, as P('d', None)")
    return tuple(axes)


def _batched(values: tuple[Any], dims: tuple[int], *, spec: Spec) -> tuple[Any, int]:
    (x,), (dim,) = values, dims
    return pin_p.bind(x, spec=(*spec[:dim], None, *spec[dim:])), dim


def _transposed(cotangent: Any, x: Any, *, spec: Spec) -> list[Any]:
    del x
    return [pin_p.bind(cotangent, spec=spec)]


pin_p.def_impl(lambda x, *, spec: x)
pin_p.def_abstract_eval(lambda x, *, spec: x)
ad.deflinear2(pin_p, _transposed)
batching.primitive_batchers[pin_p] = _batched
mlir.register_lowering(pin_p, lambda context, x, *, spec: [x])
