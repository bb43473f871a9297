"""The only file that may touch jax's private modules or ask jax its version."""

from __future__ import annotations

import contextlib
import os
import re
import traceback as _traceback
from collections.abc import Collection, Iterable
from typing import Any

import jax
import numpy as np
from jax._src import config as _config
from jax._src import core as _core
from jax._src import debugging as _debugging
from jax._src import source_info_util as _source_info
from jax._src import xla_bridge as _xla_bridge
from jax._src.lax import lax as _lax

JAX_VERSION: str = jax.__version__
_NEW_PRIMITIVES = (
    "acospi", "asinpi", "atan2pi", "atanpi", "cospi", "exp2m1", "fma", "fmuladd", "log2", "log2p1", "one_minus_square",
    "polynomial", "sinpi", "tanpi",
)  # fmt: skip
MISSING_PRIMITIVES = frozenset(name for name in _NEW_PRIMITIVES if not hasattr(jax.lax, f"{name}_p"))
"""Those of jax 0.12 that the installed one does not have."""
_JAX = os.path.dirname(jax.__file__) + os.sep
# Files, notebooks' cells among them, and what is typed at a prompt; not code that is frozen or made at run time.
_WRITTEN = re.compile(r"\.py$|^<(stdin|python-input|ipython-input)[^<>]*>(-\d+)?$")


def key_shape_and_dtype(aval: Any) -> tuple[tuple[int, ...], Any]:
    """Shape and dtype of an abstract value; keys keep their extended dtype."""
    return tuple(int(d) for d in aval.shape), aval.dtype


def is_extended(dtype: Any) -> bool:
    """Whether `dtype` is one of jax's extended dtypes (PRNG keys)."""
    return jax.dtypes.issubdtype(dtype, jax.dtypes.extended)


def source_line(source_info: Any) -> str:
    """'file.py:12 (function)' of the innermost frame that is neither jax's nor an installed package's.

    Where all frames are a package's, the innermost of those; '' where there are none.
    """
    if source_info is None:
        return ""
    own = None
    for frame in _source_info.user_frames(source_info.traceback):
        own = own or frame
        if "site-packages" not in frame.file_name:
            own = frame
            break
    return f"{own.file_name}:{own.start_line} ({own.function_name})" if own else ""


def hide_frames(file: str) -> None:
    """Source lines of equations name the caller of the functions in `file`, not these."""
    _source_info.register_exclusion(file)


def user_line(traceback: Any, but: str) -> str:
    """'file.py:12 (function)' of the innermost frame of a traceback that is the user's.

    That is one which is not jax's, not under `but`, and not an installed package's unless all are.
    """
    frames = [
        f
        for f in _traceback.extract_tb(traceback)
        if _WRITTEN.search(f.filename) and not f.filename.startswith((_JAX, but))
    ]
    own = [f for f in frames if "site-packages" not in f.filename] or frames
    return f"{own[-1].filename}:{own[-1].lineno} ({own[-1].name})" if own else ""


def name_scope(source_info: Any) -> str:
    """The name-scope path that jax recorded, transformations included."""
    return str(source_info.name_stack) if source_info is not None else ""


@contextlib.contextmanager
def source_context(source_info: Any):
    """Equations bound inside carry `source_info`'s frame and name scope into the compiled program."""
    if source_info is None:
        yield
        return
    with _source_info.user_context(source_info.traceback, name_stack=source_info.name_stack):
        yield


def inner_jaxprs(params: Any) -> list[Any]:
    """Every (closed) jaxpr among an equation's params."""
    return list(_core.jaxprs_in_params(params))


def counted_params(primitive: Any, params: Any) -> dict[str, Any]:
    """An equation's params; a scan's with `num_consts` and `num_carry`, which jax from 0.12 on keeps as two trees."""
    counted = dict(params)
    if primitive.name == "scan" and "ft_in" in counted:
        consts, carry, _ = counted.pop("ft_in").unpack()
        del counted["ft_out"]
        counted.update(num_consts=len(list(consts)), num_carry=len(list(carry)))
    return counted


def empty_name_stack() -> Any:
    """The name-scope path of the outermost level."""
    return _source_info.NameStack()


def has_effects(primitive: Any, params: Any) -> bool:
    """Whether an equation does something beside computing its results (prints, callbacks, state)."""
    return any(jaxpr.effects for jaxpr in inner_jaxprs(params)) or primitive.name in _EFFECTFUL


def is_ordered(params: Any) -> bool:
    """Whether an equation's effect must come in order with others."""
    return bool(params.get("ordered", False)) or isinstance(params.get("effect"), _debugging.OrderedDebugEffect)


def bind(primitive: Any, values: Any, params: dict[str, Any]) -> Any:
    """Binds a primitive with an equation's params; primitives that take functions get them built from the params."""
    bound = primitive.get_bind_params(params)
    if isinstance(bound, tuple):  # older jax: (functions, params)
        functions, rest = bound
        return primitive.bind(*functions, *values, **rest)
    return primitive.bind(*values, **bound)


_EFFECTFUL = frozenset({"debug_callback", "debug_print", "io_callback", "run_state", "check"})
optimization_barrier = jax.make_jaxpr(jax.lax.optimization_barrier)(0.0).eqns[0].primitive


def expanded(primitive: Any, params: Any) -> Any:
    """The closed jaxpr that jax 0.12.1's `call_hi_primitive` stands for; None for any other primitive."""
    if primitive.name != "call_hi_primitive":
        return None
    high = params["_prim"]
    leaves = jax.tree_util.tree_leaves
    avals = [abstract(a.shape, a.dtype, a.weak_type) for a in high.in_avals_flat]
    return jax.make_jaxpr(lambda *flat: leaves(high.expand(*jax.tree_util.tree_unflatten(high.in_tree, flat))))(*avals)


def abstract(shape: tuple[int, ...], dtype: Any, weak_type: bool = False) -> Any:
    """A shaped, typed placeholder for tracing."""
    return jax.ShapeDtypeStruct(shape, dtype, weak_type=weak_type)


def type_of(x: Any) -> tuple[Any, ...]:
    """Shape, dtype and whether the dtype is weak: with these a trace is the same."""
    if isinstance(x, jax.Array):
        return x.shape, x.dtype, x.aval.weak_type if hasattr(x.aval, "weak_type") else False
    like = abstract_like(x)
    return like.shape, like.dtype, like.weak_type


def unconstrained_dims(params: Any) -> Collection[int]:
    """Of a sharding constraint the dims that it leaves free, where its spec does not say so (jax up to 0.12.0)."""
    return params.get("unconstrained_dims", ())


def weakly_typed(x: Any) -> Any:
    """`x` with a weak dtype: arithmetic with it takes the other operand's."""
    return _lax._convert_element_type(x, x.dtype, weak_type=True)


def abstract_like(x: Any) -> Any:
    """What is traced for `x`: its shape and dtype, never its sharding."""
    weak = getattr(x, "weak_type", None)
    if weak is None:
        weak = getattr(getattr(x, "aval", None), "weak_type", is_python_number(x) and not isinstance(x, bool))
    return jax.ShapeDtypeStruct(jax.numpy.shape(x), dtype_of(x), weak_type=bool(weak))


def is_python_number(x: Any) -> bool:
    """Whether `x` is a number of Python's own; NumPy's scalars, some of which are subclasses, have a dtype."""
    return isinstance(x, (bool, int, float, complex)) and not isinstance(x, np.generic)


def trace_context() -> Any:
    """What of jax's configuration a trace depends on, hashable."""
    return _config.trace_context()


def dtype_of(x: Any) -> Any:
    """The dtype jax gives `x`: an array's own (keys keep theirs), a Python number's default."""
    found = getattr(x, "dtype", None)
    if found is not None and is_extended(found):
        return found
    return jax.dtypes.canonicalize_dtype(found) if found is not None else jax.dtypes.result_type(x)


def takes_ahead_of_time(dtypes: Iterable[Any]) -> bool:
    """Whether a program compiled ahead of time takes arrays of these dtypes.

    Before 0.12 jax compares the layout of an array of 2 or 4 bits, which does not say so, with the compiled program's,
    which does, and refuses the call.
    """
    return jax.__version_info__ >= (0, 12) or all(is_extended(d) or jax.dtypes.itemsize_bits(d) >= 8 for d in dtypes)


def backend_is_up() -> bool:
    """Whether jax has already started a back end, after which the number of virtual devices is fixed."""
    return bool(_xla_bridge.backends_are_initialized())
