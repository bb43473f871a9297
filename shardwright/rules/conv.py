"""Convolutions and reductions over windows.

A spatial dim can be cut without an exchange of halos where no two windows share an element, and each device then holds
the windows of its own block: pooling and patches (stride at least as large as the window), 1 × 1 kernels, and the
gradients of all these. Other spatial dims are whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from shardwright.program.ir import Equation
from shardwright.rules.row import Factors, FactorsBuilder, Local, Row, bind_with

# --- convolution ----------------------------------------------------------------------------------------------------


def _conv_factors(equation: Equation) -> Factors:
    """Batch, out-features, in-features (a sum), groups and the spatial dims whose windows are apart.

    Without groups: lhs [n, c], rhs [o, c] -> [n, o], a matrix product in these dims.
    With g feature groups: lhs [n, g·c], rhs [g·o, c] -> [n, g·o]: the groups are cut, the major part of three dims.
    With g batch groups (the kernel's gradient of the former): lhs [g·n, c], rhs [g·o, c] -> [n, g·o].
    """
    p = equation.params
    lhs, rhs, out = p["dimension_numbers"]
    lhs_shape, rhs_shape = (a.aval.shape for a in equation.invars)
    features, batches = p["feature_group_count"], p["batch_group_count"]
    b = FactorsBuilder(equation)
    contracted: dict[int, str] = {}
    if batches == 1:
        b.link(lhs_shape[lhs[0]], {0: lhs[0]}, {0: out[0]})
    if features == 1:
        contracted[b.link(lhs_shape[lhs[1]], {0: lhs[1], 1: rhs[1]}, {})] = "sum"
    if batches > 1:
        b.link(batches, {0: lhs[0], 1: rhs[0]}, {0: out[1]})
    elif features > 1:
        b.link(features, {0: lhs[1], 1: rhs[0]}, {0: out[1]})
    else:
        b.link(rhs_shape[rhs[0]], {1: rhs[0]}, {0: out[1]})
    for k, (i, j, o) in enumerate(zip(lhs[2:], rhs[2:], out[2:], strict=True)):
        apart, taps = _windows_apart(p, k, lhs_shape[i], rhs_shape[j]), _taps_apart(p, k, lhs_shape[i], rhs_shape[j])
        if taps:
            contracted[b.link(taps, {0: i, 1: j}, {})] = "sum"
        elif apart:
            b.link(apart, {0: i}, {0: o})
    return b.build(contracted)


def disjoint_windows(
    size: int, window: int, stride: int, padding: Sequence[int], holes: int = 1, spread: int = 1
) -> int:
    """How many blocks of `stride` elements hold one window each, 0 where windows overlap, meet padding or end early.

    Args:
      size: elements of the dim.
      window: elements of one window.
      stride: distance of two windows.
      padding: elements added before and after.
      holes: distance at which the elements are laid out (base dilation).
      spread: distance of the elements that one window takes (window dilation).
    """
    reach = (window - 1) * spread + 1
    low, high = padding
    in_bounds = low == 0 and reach - stride <= high < reach  # the last window ends before what is added or taken off
    return size // stride if holes == 1 and in_bounds and reach <= stride and size % stride == 0 else 0


def _windows_apart(p: Any, k: int, size: int, window: int) -> int:
    """Number of elements or blocks of spatial dim k that have their results for themselves, or 0.

    Either windows are apart, or (the operand's gradient of such a convolution) elements are: laid out `holes` apart,
    each reaches the first `reach` ≤ `holes` results of its own block of `holes`.
    """
    stride, holes, spread = p["window_strides"][k], p["lhs_dilation"][k], p["rhs_dilation"][k]
    reach = (window - 1) * spread + 1
    if stride == 1 and reach <= holes and tuple(p["padding"][k]) == (reach - 1, holes - 1):
        return size
    return disjoint_windows(size, window, stride, p["padding"][k], holes, spread)


def _taps_apart(p: Any, k: int, size: int, window: int) -> int:
    """Number of blocks of spatial dim k in which the kernel's elements meet operand's of their own, or 0.

    So it is in the kernel's gradient of a convolution with windows apart: result r < spread is the sum over w of
    kernel[w] · operand[w · spread + r]. If elements were apart, blocks of the kernel meet one element each:
    result r is the sum over i of kernel[i · holes + low - r · stride] · operand[i].
    """
    low, high = p["padding"][k]
    stride, holes, spread = p["window_strides"][k], p["lhs_dilation"][k], p["rhs_dilation"][k]
    if spread == 1 and holes > 1 and window == size * holes:
        last = (1 - holes + low + high) // stride * stride
        return size if size > 1 and last <= low < holes else 0
    apart = stride == 1 and holes == 1 and low == 0 and -spread < high <= 0 and size == window * spread
    return window if apart and window > 1 else 0


def _conv_local(equation: Equation, values: Sequence[Any], local: Local) -> list[Any]:
    """The same convolution over this block's groups."""
    lhs, rhs, _ = equation.params["dimension_numbers"]
    params = dict(equation.params, out_sharding=None)
    x, kernel = values
    for name, dim in (("batch_group_count", lhs[0]), ("feature_group_count", lhs[1])):
        factor = local.factors.operands[0][dim]
        if params[name] > 1 and factor is not None:
            params[name] = local.blocks[factor]
            x, kernel = _zero_padding(x, dim, factor, local), _zero_padding(kernel, rhs[0], factor, local)
    return bind_with(equation, [x, kernel], params)


def _zero_padding(x: Any, dim: int, factor: int, local: Local) -> Any:
    """`x` with zeros for groups beyond the last.

    A group's result should not depend on another group, but XLA may expand the groups into one convolution with zeros
    between them, and 0 · NaN is NaN.
    """
    size, block = local.factors.sizes[factor], local.blocks[factor]
    if block * local.parts[factor] == size:
        return x
    group = local.offset(factor) + jnp.arange(x.shape[dim]) // (x.shape[dim] // block)
    inside = jnp.expand_dims(group < size, [d for d in range(x.ndim) if d != dim])
    return jnp.where(inside, x, jnp.zeros((), x.dtype))


def _conv_flops(equation: Equation) -> float:
    """2 · (elements of the result) · (in-features of a group) · (kernel's spatial elements that meet no hole)."""
    rhs = equation.params["dimension_numbers"][1]
    shape = equation.invars[1].aval.shape
    met = math.prod(shape[d] for d in rhs[2:]) / math.prod(equation.params["lhs_dilation"])
    return 2.0 * equation.outvars[0].aval.size * shape[rhs[1]] * met


def _in_each(equation: Equation) -> tuple[frozenset[int], ...]:
    del equation
    return (frozenset({0}), frozenset({1}))


# --- reductions over windows ----------------------------------------------------------------------------------------


def _window_factors(equation: Equation, full: int) -> Factors:
    """Free where windows are apart: blocks of `stride` elements in some arrays, one element in the others.

    Args:
      equation: the equation.
      full: an operand that has the elements of the windows, as opposed to one for each window.
    """
    p, shape = equation.params, equation.invars[full].aval.shape
    b = FactorsBuilder(equation)
    arrays = [i for i, a in enumerate(equation.invars) if a.aval.ndim == len(shape)]  # the others: initial values
    ones = (1,) * len(shape)
    for dim, size in enumerate(shape):
        window, stride, padding = p["window_dimensions"][dim], p["window_strides"][dim], p["padding"][dim]
        holes, spread = p.get("base_dilation", ones)[dim], p.get("window_dilation", ones)[dim]
        if blocks := disjoint_windows(size, window, stride, padding, holes, spread):
            b.link(blocks, dict.fromkeys(arrays, dim), dict.fromkeys(range(len(equation.outvars)), dim))
    return b.build()


def _reduce_factors(equation: Equation) -> Factors:
    return _window_factors(equation, 0)


def _select_factors(equation: Equation) -> Factors:
    """Operands: the source of what is scattered or gathered, then the array whose windows select."""
    return _window_factors(equation, 1)


def _window_flops(equation: Equation) -> float:
    """One operation for each element of each window; where the windows are is the smaller array."""
    atoms = (*equation.invars, *equation.outvars)
    rank = len(equation.params["window_dimensions"])
    windows = min(a.aval.size for a in atoms if a.aval.ndim == rank)
    return float(windows * math.prod(equation.params["window_dimensions"]))


def _in_first(equation: Equation) -> tuple[frozenset[int], ...]:
    del equation
    return (frozenset({0}),)


_REDUCTION = Row(_reduce_factors, flops=_window_flops)
_SELECTION = Row(_select_factors, linear=_in_first, flops=_window_flops)

ROWS: dict[str, Row] = {
    "conv_general_dilated": Row(_conv_factors, _conv_local, _in_each, _conv_flops),
    "reduce_window_sum": Row(_reduce_factors, linear=_in_first, flops=_window_flops),
    **dict.fromkeys(("reduce_window_max", "reduce_window_min", "reduce_window"), _REDUCTION),
    **dict.fromkeys(("select_and_scatter_add", "select_and_gather_add"), _SELECTION),
}
