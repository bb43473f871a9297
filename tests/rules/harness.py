"""The suite that every row of the rule table joins by one table row: a function, its arguments, how its dims relate.

`check` evaluates a traced function equation by equation and, for each equation that has a row, plays the devices
without any mesh. For every factor that may be cut, and every pair of them, it cuts the operands into equal blocks as
the partitioner does, calls `Row.local` for each device, joins the results and compares with the whole equation. The
tail of the last block holds garbage (NaN, extreme integers), so a row that lets padding into a result fails.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from shardwright import _compat
from shardwright.program.flatten import flatten
from shardwright.program.ir import Atom, Equation, Literal, Var
from shardwright.rules.row import Dims, Factors, Row, bind_with
from shardwright.rules.table import ROWS
from tests.rules.simulation import as_array, simulate


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
    env: dict[Var, Any] = dict(zip(block.invars, map(as_array, jax.tree.leaves(args)), strict=True))
    checked = []

    def read(atom: Atom) -> Any:
        return as_array(atom.value) if isinstance(atom, Literal) else env[atom]

    for equation in block.equations:
        values = [read(a) for a in equation.invars]
        results = [as_array(r) for r in bind_with(equation, values, equation.params)]
        env.update(zip(equation.outvars, results, strict=True))
        if equation.name in ROWS and only in (None, equation.name):
            check_equation(ROWS[equation.name], equation, values, results)
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


def _cuts(factors: Factors) -> Iterator[tuple[int, ...]]:
    """Nothing cut; each factor that may be cut in 3 and in up to 8; each pair in 2 × 3, the last one alone in 2."""

    def parts(cut: dict[int, int]) -> tuple[int, ...]:
        return tuple(cut.get(f, 1) for f in range(len(factors.sizes)))

    yield parts({})
    free = [f for f, size in enumerate(factors.sizes) if f not in factors.blocked and size > 1]
    for f in free:
        for n in sorted({3, min(factors.sizes[f], 8)}):
            yield parts({f: n})
    for f, g in itertools.combinations(free, 2):
        yield parts({f: 2, g: 3})
    if free:
        yield parts({free[-1]: 2})


def _compare(whole: Any, got: Any, *, exact: bool, scale: float = 0) -> None:
    assert whole.dtype == got.dtype and whole.shape == got.shape, f"{got.dtype}{got.shape}"
    if exact or not _inexact(whole.dtype) or not whole.size:
        np.testing.assert_array_equal(whole, got)
        return
    precision = 1e-6 if jax.numpy.finfo(whole.dtype).eps < 1e-6 else 1e-2
    scale = np.max(np.abs(whole), where=np.isfinite(whole), initial=scale)
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
    """f(x + y, rest) = f(x, rest) + f(y, rest) for each group that the row says is linear.

    Each element v becomes c · v + (1 - c) · v with c one of -1, 0 and 2, which no floating-point format rounds.
    """
    rng = np.random.default_rng(0)
    for group in row.linear(equation):
        assert group <= set(range(len(values)))
        if any(values[i].dtype == np.bool_ or _compat.is_extended(values[i].dtype) for i in group):
            continue
        weights = [rng.choice([-1, 0, 2], v.shape) for v in values]
        pairs = list(enumerate(zip(values, weights, strict=True)))
        first = [v * w.astype(v.dtype) if i in group else v for i, (v, w) in pairs]
        rest = [v * (1 - w).astype(v.dtype) if i in group else v for i, (v, w) in pairs]
        terms = [bind_with(equation, v, equation.params) for v in (values, first, rest)]
        for whole, x, y in zip(*terms, strict=True):
            whole, x, y = map(as_array, (whole, x, y))
            finite = np.isfinite(whole) if _inexact(whole.dtype) else np.ones(whole.shape, bool)
            scale = np.max(np.abs(x), where=finite, initial=0)
            _compare(whole[finite], (x + y)[finite], exact=False, scale=scale)
