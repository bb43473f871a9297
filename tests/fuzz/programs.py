"""Random training steps, as data: they can be printed, stored, run and made smaller."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

import shardwright as sw
from tests.fuzz.operations import OPERATIONS, choose, coin, is_float, one_of, rounded

MESHES = (
    {"x": 2},
    {"x": 3},
    {"x": 5},
    {"x": 8},
    {"d": 2, "t": 2},
    {"d": 2, "t": 4},
    {"d": 2, "t": 3},
    {"d": 3, "t": 2},
    {"a": 2, "b": 2, "c": 2},
)
BODIES = ("scan", "while", "cond", "remat", "switch")
LARGEST = 2048
"""Elements of a value."""


@dataclasses.dataclass(frozen=True)
class Step:
    """One operation on values of the pool; its results join the pool."""

    name: str
    args: tuple[int, ...]
    params: dict[str, Any] = dataclasses.field(default_factory=dict)
    bodies: tuple[tuple[Step, ...], ...] = ()


@dataclasses.dataclass(frozen=True)
class Case:
    """A program, and the mesh that its pins speak of.

    Attributes:
      state, batch: shapes of what the step carries, and of what it gets: float64, and int32 for ids.
      steps: what is computed, from the pool [*state, *batch, *ids].
      gradient: whether the state is moved along its gradient, or only read.
    """

    seed: int
    mesh: dict[str, int]
    state: tuple[tuple[int, ...], ...]
    batch: tuple[tuple[int, ...], ...]
    ids: tuple[tuple[int, ...], ...]
    steps: tuple[Step, ...]
    gradient: bool

    def arguments(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Values, the same each time."""
        rng = np.random.default_rng(self.seed)
        state = {f"w{i}": rng.normal(size=s) for i, s in enumerate(self.state)}
        batch = {f"x{i}": rng.normal(size=s) for i, s in enumerate(self.batch)}
        ids = {f"y{i}": rng.integers(-2, 9, s).astype(np.int32) for i, s in enumerate(self.ids)}
        return state, {**batch, **ids}

    def step(self, state: dict[str, Any], batch: dict[str, Any]) -> Any:
        """(state, batch) → (state, results)."""

        def forward(state: dict[str, Any]) -> tuple[Any, list[Any]]:
            pool = [*state.values(), *batch.values()]
            made = run_steps(self.steps, pool)[len(pool) :]
            return sum((jnp.sum(jnp.sin(v + i)) for i, v in enumerate(made) if is_float(v)), jnp.zeros(())), made

        if not self.gradient:
            return {k: v * 0.5 for k, v in state.items()}, forward(state)[1]
        (_, made), slopes = jax.value_and_grad(forward, has_aux=True)(state)
        return jax.tree.map(lambda w, g: w - 0.1 * g, state, slopes), made


def run_steps(steps: Sequence[Step], pool: Sequence[Any]) -> list[Any]:
    """The pool with all results."""
    pool = list(pool)
    for step in steps:
        result = apply(step, [pool[i] for i in step.args])
        pool += result if isinstance(result, tuple | list) else [result]
    return pool


def apply(step: Step, values: Sequence[Any]) -> Any:
    """The results of one operation."""
    if step.name == "pin":
        return sw.pin(values[0], PartitionSpec(*step.params["spec"]))
    if step.name in BODIES:
        return _CONTROL[step.name](step, values)
    return OPERATIONS[step.name].apply(*values, **step.params)


# --- control flow: a body takes a pool of which the first value is carried, and gives that and another ----------------


def _body(steps: Sequence[Step], pool: Sequence[Any], adds: bool = False) -> tuple[Any, Any]:
    first = pool[0]
    last = next(v for v in reversed(run_steps(steps, pool)) if is_float(v))
    fits = len(last.shape) <= first.ndim and all(
        a in (1, b) for a, b in zip(last.shape[::-1], first.shape[::-1], strict=False)
    )
    term = last if fits else jnp.mean(last)
    return first + term / 4 if adds else jnp.tanh(first + term), last


def _scan(step: Step, values: Sequence[Any]) -> tuple[Any, Any]:
    carry, xs, *rest = values
    return lax.scan(
        lambda c, x: _body(step.bodies[0], [c, x, *rest], step.params["adds"]),
        carry,
        xs,
        reverse=step.params["reverse"],
    )


def _while(step: Step, values: Sequence[Any]) -> Any:
    """As often as the values say; reverse-mode differentiation stops here, as it must."""
    first, *rest = map(lax.stop_gradient, values)
    times = (rounded(jnp.sum(first)) % 3 + 1).astype(jnp.int32)
    return lax.fori_loop(0, times, lambda i, c: _body(step.bodies[0], [c, *rest])[0], first)


def _cond(step: Step, values: Sequence[Any]) -> Any:
    which = rounded(jnp.sum(values[0])) > 0
    return lax.cond(which, *(lambda *v, b=b: _body(b, v)[0] for b in step.bodies), *values)


def _switch(step: Step, values: Sequence[Any]) -> Any:
    which = (rounded(jnp.sum(values[0])) % 4).astype(jnp.int32)
    return lax.switch(which, [lambda *v, b=b: _body(b, v)[0] for b in step.bodies], *values)


def _remat(step: Step, values: Sequence[Any]) -> Any:
    policy = step.params["policy"] and getattr(jax.checkpoint_policies, step.params["policy"])
    return jax.checkpoint(lambda *v: _body(step.bodies[0], v), policy=policy)(*values)


_CONTROL: dict[str, Callable[[Step, Sequence[Any]], Any]] = {
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    "switch": _switch,
    "remat": _remat,
}


# --- drawing ----------------------------------------------------------------------------------------------------------


def draw_case(seed: int) -> Case:
    """The program of this number."""
    with jax.enable_x64(True):
        return _draw(seed)


def _draw(seed: int) -> Case:
    rng = np.random.default_rng(seed)
    mesh = choose(rng, MESHES)
    sizes = [int(n) for n in rng.choice([1, 2, 3, 4, 5, 6, 7, 8, 12], 4)]
    if rng.random() < 0.03:
        sizes[0] = 0

    def shape(least: int, most: int) -> tuple[int, ...]:
        return tuple(choose(rng, sizes) for _ in range(int(rng.integers(least, most + 1))))

    state = tuple(shape(1, 3) for _ in range(int(rng.integers(1, 4))))
    batch = tuple(shape(1, 4) for _ in range(int(rng.integers(1, 3))))
    ids = tuple(shape(0, 2) for _ in range(int(rng.integers(0, 2))))
    avals = [jax.ShapeDtypeStruct(s, np.float64) for s in (*state, *batch)]
    avals += [jax.ShapeDtypeStruct(s, np.int32) for s in ids]
    steps = draw_steps(rng, avals, int(rng.integers(1, 13)), mesh)
    return Case(seed, mesh, state, batch, ids, steps, gradient=bool(rng.random() < 0.6))


def draw_steps(
    rng: np.random.Generator, pool: Sequence[Any], count: int, mesh: dict[str, int] | None, depth: int = 0
) -> tuple[Step, ...]:
    """Steps that the pool's shapes allow."""
    pool, steps = list(pool), []
    for _ in range(count * 3):
        if len(steps) == count:
            break
        step = _draw_step(rng, pool, mesh, depth)
        if step is None:
            continue
        made = _shapes(step, [pool[i] for i in step.args])
        if made is None:
            continue
        pool += made
        steps.append(step)
    return tuple(steps)


def _draw_step(rng: np.random.Generator, pool: Sequence[Any], mesh: dict[str, int] | None, depth: int) -> Step | None:
    kind = rng.random()
    if kind < 0.12 and depth < 2:
        return _draw_control(rng, pool, choose(rng, BODIES), depth)
    if kind < 0.16 and mesh:
        return _draw_pin(rng, pool, mesh)
    name = choose(rng, [*OPERATIONS, "layer", "layer", "einsum", "einsum", "unary", "binary", "binary", "reduction"])
    drawn = OPERATIONS[name].draw(rng, pool)
    return None if drawn is None else Step(name, *drawn)


def _draw_control(rng: np.random.Generator, pool: Sequence[Any], name: str, depth: int) -> Step | None:
    first = one_of(pool, rng, is_float)
    if first is None:
        return None
    args, params = [first], {}
    if name == "scan":
        along = one_of(pool, rng, lambda x: is_float(x) and len(x.shape) >= 1 and x.shape[0] <= 8)
        if along is None:
            return None
        args.append(along)
        params["reverse"], params["adds"] = coin(rng), coin(rng)
    if name == "remat":
        params["policy"] = choose(rng, [None, "dots_saveable", "everything_saveable"])
    args += [int(i) for i in rng.choice(len(pool), min(len(pool), 2), replace=False)]
    inner = [pool[i] for i in args]
    if name == "scan":
        inner[1] = jax.ShapeDtypeStruct(inner[1].shape[1:], inner[1].dtype)
    count = {"cond": 2, "switch": 3}.get(name, 1)
    bodies = tuple(draw_steps(rng, inner, int(rng.integers(1, 5)), None, depth + 1) for _ in range(count))
    if params.get("adds"):  # what is added must not read what it is added to, or no sum can wait
        inner[0] = jax.ShapeDtypeStruct((), np.bool_)
        bodies = (draw_steps(rng, inner, int(rng.integers(1, 5)), None, depth + 1),)
    return Step(name, tuple(args), params, bodies)


def _draw_pin(rng: np.random.Generator, pool: Sequence[Any], mesh: dict[str, int]) -> Step | None:
    i = one_of(pool, rng, lambda x: is_float(x) and len(x.shape) >= 1)
    return None if i is None else Step("pin", (i,), {"spec": draw_spec(rng, pool[i].shape, mesh)})


def draw_spec(rng: np.random.Generator, shape: Sequence[int], mesh: dict[str, int]) -> tuple[str | None, ...]:
    """Axes for some of the dims that they divide."""
    spec: list[str | None] = [None] * len(shape)
    for axis, size in mesh.items():
        able = [d for d, n in enumerate(shape) if n and n % size == 0 and spec[d] is None]
        if able and rng.random() < 0.7:
            spec[choose(rng, able)] = axis
    return tuple(spec)


def _shapes(step: Step, avals: Sequence[Any]) -> list[Any] | None:
    """What the step makes, or None where it cannot be, or is too large."""
    try:
        made = jax.eval_shape(lambda *v: apply(step, v), *avals)
    except (TypeError, ValueError, ZeroDivisionError, IndexError, NotImplementedError, StopIteration):
        return None  # a window larger than its operand and the like: no program
    made = list(made) if isinstance(made, tuple | list) else [made]
    return made if all(int(np.prod(x.shape)) <= LARGEST and len(x.shape) <= 5 for x in made) else None
