"""The suite that every row of the rule table joins by one table row: a function, its arguments, how its dims relate.

`check` evaluates a traced function equation by equation and, for each equation that has a row, plays the devices without
any mesh. For every factor that may be cut, and every pair of them, it cuts the operands into equal blocks as the
partitioner does, calls `Row.local` for each device, puts the results together and compares with the whole equation. The
tail of the last block holds garbage (NaN, extreme integers), so a row that lets padding into a result fails.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

import shardwright.rules
from shardwright import _compat
from shardwright.program.flatten import flatten
from shardwright.program.ir import Atom, Equation, Literal, Var
from shardwright.rules.row import Dims, Factors, Local, Row, bind_with, identity

_COMBINE = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum,
            "and": np.bitwise_and, "or": np.bitwise_or}
_COMPILER_OPTIONS = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def all_rows() -> dict[str, Row]:
    """Every row of every file of `shardwright.rules`; no primitive may have two."""
    rows: dict[str, Row] = {}
    for module in pkgutil.iter_modules(shardwright.rules.__path__, "shardwright.rules."):
        if module.name.endswith((".classes", ".table")):
            continue
        for name, row in getattr(importlib.import_module(module.name), "ROWS", {}).items():
            assert rows.setdefault(name, row) is row, f"{name} has two rows"
    return rows


def equations(fn: Callable, *args: Any) -> tuple[Equation, ...]:
    """What `fn(*args)` traces to."""
    return flatten(jax.make_jaxpr(fn)(*args)).equations


def check(fn: Callable, *args: Any, only: str | None = None) -> list[Equation]:
    """Checks every equation that `fn(*args)` traces to and that has a row, as the module says.

    Args:
      fn: a function of arrays.
      *args: its arguments, concrete.
      only: the one primitive to check; all if None.

    Returns:
      The equations checked, in order.

    Raises:
      AssertionError: where a row does not keep what it claims, or where no equation has a row.
    """
    block = flatten(jax.make_jaxpr(fn)(*args))
    env: dict[Var, Any] = dict(zip(block.invars, map(_array, jax.tree.leaves(args)), strict=True))
    rows, checked = all_rows(), []

    def read(atom: Atom) -> Any:
        return _array(atom.value) if isinstance(atom, Literal) else env[atom]

    for equation in block.equations:
        values = [read(a) for a in equation.invars]
        results = [_array(r) for r in bind_with(equation, values, equation.params)]
        env.update(zip(equation.outvars, results, strict=True))
        if equation.name in rows and only in (None, equation.name):
            check_equation(rows[equation.name], equation, values, results)
            checked.append(equation)
    assert checked, f"no row, or not the wanted one, for {[e.name for e in block.equations]}"
    return checked


def check_equation(row: Row, equation: Equation, values: Sequence[Any], results: Sequence[Any]) -> None:
    """Checks one row on one equation with concrete operands and results."""
    factors = row.factors(equation)
    _check_form(factors, equation)
    assert row.flops(equation) >= 0
    _check_linear(row, equation, values)
    for parts in _cuts(factors):
        try:
            got = simulate(row, equation, factors, values, parts)
            for whole, joined in zip(results, got, strict=True):
                _compare(whole, joined, exact=row.flops(equation) == 0)
        except Exception as error:
            raise AssertionError(f"{equation.name}: {notation(factors)} cut into {parts} parts") from error


def notation(factors: Factors) -> str:
    """Factors as letters in order of appearance, '.' for a whole dim: 'ab,bc->ac | sum b | blocked c | masked b'."""
    letters: dict[int, str] = {}

    def show(dims: Dims) -> str:
        return "".join("." if f is None else letters.setdefault(f, chr(ord("a") + len(letters))) for f in dims)

    def named(ids: Any) -> str:
        return "".join(sorted(letters[f] for f in ids))

    text = f"{','.join(map(show, factors.operands))}->{','.join(map(show, factors.results))}"
    for monoid in dict.fromkeys(factors.contracted.values()):
        text += f" | {monoid} {named(f for f, m in factors.contracted.items() if m == monoid)}"
    text += f" | blocked {named(factors.blocked)}" if factors.blocked else ""
    return text + (f" | masked {named(factors.masked)}" if factors.masked else "")


def letter_sizes(factors: Factors) -> tuple[int, ...]:
    """Sizes of the factors in the order of their letters in `notation`."""
    shown = dict.fromkeys(f for dims in (*factors.operands, *factors.results) for f in dims if f is not None)
    return tuple(factors.sizes[f] for f in shown)


def simulate(row: Row, equation: Equation, factors: Factors, values: Sequence[Any], parts: Sequence[int]) -> list[Any]:
    """The equation's results, computed on prod(parts) devices and put together again."""
    blocks = tuple(-(-size // n) for size, n in zip(factors.sizes, parts, strict=True))
    shapes = tuple(_local_shape(v.aval.shape, dims, factors, blocks)
                   for v, dims in zip(equation.outvars, factors.results, strict=True))

    @functools.partial(jax.jit, compiler_options=_COMPILER_OPTIONS)
    def on_device(place: Any, *operands: Any) -> list[Any]:
        return row.local(equation, operands, Local(factors, tuple(parts), blocks, shapes, lambda f: place[f]))

    devices = list(itertools.product(*map(range, parts)))
    padded = [_pad(v, dims, factors, parts, blocks) for v, dims in zip(values, factors.operands, strict=True)]
    local: dict[tuple[int, ...], list[Any]] = {}
    for place in devices:
        operands = [_cut(v, dims, parts, place) for v, dims in zip(padded, factors.operands, strict=True)]
        out = on_device(np.array((*place, 0), np.int32), *operands)
        local[place] = [_array(r) for r in out]
        assert [np.shape(r) for r in out] == list(shapes), f"{[np.shape(r) for r in out]} is not {shapes}"
    return [_join({place: out[i] for place, out in local.items()}, v, dims, factors, parts)
            for i, (v, dims) in enumerate(zip(equation.outvars, factors.results, strict=True))]


def _array(value: Any) -> Any:
    return value if _compat.is_extended(getattr(value, "dtype", np.dtype(int))) else np.asarray(value)


def _cuts(factors: Factors) -> Iterator[tuple[int, ...]]:
    """Nothing cut; each factor that may be cut in 2, 3 and (if it is small) all its elements; each pair in 2 × 3."""
    def parts(cut: dict[int, int]) -> tuple[int, ...]:
        return tuple(cut.get(f, 1) for f in range(len(factors.sizes)))

    yield parts({})
    free = [f for f, size in enumerate(factors.sizes) if f not in factors.blocked and size > 1]
    for f in free:
        for n in sorted({2, 3, min(factors.sizes[f], 8)}):
            yield parts({f: n})
    for f, g in itertools.combinations(free, 2):
        yield parts({f: 2, g: 3})


def _local_shape(shape: Sequence[int], dims: Dims, factors: Factors, blocks: Sequence[int]) -> tuple[int, ...]:
    return tuple(n if f is None else n // factors.sizes[f] * blocks[f] for n, f in zip(shape, dims, strict=True))


def _pad(value: Any, dims: Dims, factors: Factors, parts: Sequence[int], blocks: Sequence[int]) -> Any:
    """`value` with every cut dim filled up to whole blocks: identities where contracted and not masked, else garbage."""
    for dim, f in enumerate(dims):
        missing = 0 if f is None else value.shape[dim] // factors.sizes[f] * (blocks[f] * parts[f] - factors.sizes[f])
        if missing:
            shape = (*value.shape[:dim], missing, *value.shape[dim + 1:])
            if f in factors.contracted and f not in factors.masked:
                tail = np.full(shape, identity(factors.contracted[f], value.dtype))
            else:
                tail = _garbage(shape, value.dtype)
            value = np.concatenate([value, tail], dim)
    return value


def _garbage(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """What padding may hold at the worst: NaN; for integers both plausible and extreme ones."""
    if np.issubdtype(dtype, np.integer):
        info = np.iinfo(dtype)
        return np.resize(np.array([1, info.max, 0, info.min], dtype), shape)
    return np.full(shape, True if dtype == np.bool_ else np.nan, dtype)


def _cut(value: Any, dims: Dims, parts: Sequence[int], place: Sequence[int]) -> Any:
    for dim, f in enumerate(dims):
        if f is not None and parts[f] > 1:
            block = value.shape[dim] // parts[f]
            value = value[(slice(None),) * dim + (slice(place[f] * block, (place[f] + 1) * block),)]
    return value


def _join(local: dict[tuple[int, ...], Any], var: Var, dims: Dims, factors: Factors, parts: Sequence[int]) -> Any:
    """One result from every device's part: contracted factors combined, cut dims laid end to end, padding dropped.

    Devices that differ only in factors that the result does not have, and that are not contracted, must agree.
    """
    for f in reversed(range(len(parts))):  # each round folds the last coordinate of the devices' places
        groups: dict[tuple[int, ...], list[Any]] = {}
        for place in sorted(local):
            groups.setdefault(place[:f], []).append(local[place])
        local = {place: _fold(group, f, dims, factors) for place, group in groups.items()}
    return local[()][tuple(slice(n) for n in var.aval.shape)]


def _fold(group: list[Any], f: int, dims: Dims, factors: Factors) -> Any:
    if len(group) == 1:
        return group[0]
    if f in factors.contracted:
        total = group[0]
        for other in group[1:]:
            total = _COMBINE[factors.contracted[f]](total, other)
        return total
    if f in dims:
        return np.concatenate(group, dims.index(f))
    for other in group[1:]:
        np.testing.assert_array_equal(group[0], other)
    return group[0]


def _compare(whole: Any, got: Any, *, exact: bool) -> None:
    assert whole.dtype == got.dtype and whole.shape == got.shape, f"{got.dtype}{got.shape}"
    if exact or not _inexact(whole.dtype) or not whole.size:
        np.testing.assert_array_equal(whole, got)
        return
    precision = 1e-6 if jax.numpy.finfo(whole.dtype).eps < 1e-6 else 1e-2
    scale = np.max(np.abs(whole), where=np.isfinite(whole), initial=0)
    np.testing.assert_allclose(got, whole, rtol=precision, atol=precision * scale)


def _inexact(dtype: Any) -> bool:
    return jax.dtypes.issubdtype(dtype, np.inexact)


def _check_form(factors: Factors, equation: Equation) -> None:
    """Dims and factors fit: multiples of their factor, no factor that only operands have unless contracted."""
    for atoms, table in ((equation.invars, factors.operands), (equation.outvars, factors.results)):
        for atom, dims in zip(atoms, table, strict=True):
            assert atom.aval.ndim == len(dims)
            named = [f for f in dims if f is not None]
            assert len(named) == len(set(named)), "one factor on two dims"
            for size, f in zip(atom.aval.shape, dims, strict=True):
                assert f is None or size % factors.sizes[f] == 0, f"{size} is no multiple of {factors.sizes[f]}"
    used = {f for dims in factors.operands for f in dims} - {None}
    made = {f for dims in factors.results for f in dims} - {None}
    assert used | made == set(range(len(factors.sizes))), "a factor without a dim"
    assert not made & set(factors.contracted), "a contracted factor in a result"
    assert used - made <= set(factors.contracted) | factors.blocked, "a factor lost on the way to the results"
    assert factors.masked <= set(factors.contracted)


def _check_linear(row: Row, equation: Equation, values: Sequence[Any]) -> None:
    """f(x + y, rest) = f(x, rest) + f(y, rest) for each group that the row says is linear."""
    rng = np.random.default_rng(0)
    for group in row.linear(equation):
        assert group <= set(range(len(values)))
        if any(values[i].dtype == np.bool_ or _compat.is_extended(values[i].dtype) for i in group):
            continue
        first = [(rng.uniform(-4, 4, v.shape)).astype(v.dtype) if i in group else v for i, v in enumerate(values)]
        second = [v - x if i in group else v for i, (v, x) in enumerate(zip(values, first, strict=True))]
        terms = [bind_with(equation, v, equation.params) for v in (values, first, second)]
        for whole, x, y in zip(*terms, strict=True):
            whole, x, y = map(_array, (whole, x, y))
            finite = np.isfinite(whole) if _inexact(whole.dtype) else np.ones(whole.shape, bool)
            _compare(whole[finite], (x + y)[finite].astype(whole.dtype), exact=False)
