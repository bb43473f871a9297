"""What each leaf of a step's arguments is to training, told from what the results depend on."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from shardwright import _compat
from shardwright.program.ir import Aval, Block, Equation, Role, Var
from shardwright.program.signature import argument_of


def influences(block: Block, target: Sequence[Any]) -> set[Var]:
    """The variables of `block` on which any of `target` depends (whole equations, so an over-estimate inside loops)."""
    live = {a for a in target if isinstance(a, Var)}
    for eqn in reversed(block.equations):
        if live.intersection(eqn.outvars):
            live.update(a for a in eqn.invars if isinstance(a, Var))
    return live


_KEY = re.compile(r"(^|[\W_])(key|rng|prng|seed)s?([\W_]|$)", re.IGNORECASE)
_MODEL = re.compile(r"^(params?|variables|model|state|weights|train_state|parameters)$", re.IGNORECASE)
_FROZEN = re.compile(r"^(\w+_)?(frozen|pretrained|backbone|teacher|base|params?|parameters)(_\w+)?$", re.IGNORECASE)


def find_roles(block: Block, paths: Sequence[str], carried: Sequence[int | None]) -> list[Role]:
    """The role of each input of `block`.

    Args:
      block: the program.
      paths: name of each input.
      carried: for each result the input that it replaces, or None.
    """
    state = {i for i in carried if i is not None}
    parameters = _parameters(block, carried, state)
    has_model = not state and any(_MODEL.match(argument_of(p)) for p in paths)
    return [
        _role(i, p, v.aval, state, parameters, has_model)
        for i, (p, v) in enumerate(zip(paths, block.invars, strict=True))
    ]


def _role(i: int, path: str, aval: Aval, state: set[int], parameters: set[int], has_model: bool) -> Role:
    if _compat.is_extended(aval.dtype) or (aval.dtype == np.uint32 and aval.shape[-1:] == (2,) and _KEY.search(path)):
        return Role.KEY
    if not aval.shape:
        return Role.SCALAR
    if i in state:
        return Role.PARAMETER if i in parameters else Role.OPTIMIZER
    if has_model and _MODEL.match(argument_of(path)):
        return Role.PARAMETER
    if state and _is(aval, np.floating) and _FROZEN.match(argument_of(path)):
        return Role.PARAMETER
    return Role.BATCH


def _parameters(block: Block, carried: Sequence[int | None], state: set[int]) -> set[int]:
    """The carried leaves that the loss depends on; those that are arrays count, a counter tells nothing.

    Of the results that depend on the batch and on state, the loss is one that depends on least state: others may read
    optimizer slots too (the norm of an update). One that reads a part of the model (an auxiliary loss) depends on
    less: a leaf that another result depends on, and the new value of every leaf found so far, one of them of another
    shape, is a parameter as well, for so does the gradient. Without such a result, a carried leaf is a parameter if a
    carried leaf of another shape depends on it; where that is true of none, all are.
    """
    arrays = sum(1 << i for i in state if block.invars[i].aval.shape and _is(block.invars[i].aval, np.inexact))
    batch = sum(1 << i for i, v in enumerate(block.invars) if i not in state and v.aval.shape)
    depends = _dependence(block)
    results = [
        depends(a) & arrays
        for a, i in zip(block.outvars, carried, strict=True)
        if i is None and depends(a) & arrays and (depends(a) & batch or not batch) and _is(a.aval, np.floating)
    ]
    news = {i: depends(a) & arrays for a, i in zip(block.outvars, carried, strict=True) if i is not None}
    shapes = [v.aval.shape for v in block.invars]
    if not results:
        return {k for k in state if any(new >> k & 1 and shapes[i] != shapes[k] for i, new in news.items())} or state
    loss = min(results, key=int.bit_count)
    found = {i for i in state if loss >> i & 1}
    return found | {
        k
        for k in state - found
        if any(result >> k & 1 for result in results)
        and all(news[i] >> k & 1 for i in found)
        and any(shapes[i] != shapes[k] for i in found)
    }


def _dependence(block: Block) -> Callable[[Any], int]:
    """A function of an atom: the inputs of `block` on which it depends, as the bits of an integer."""
    known: dict[Any, int] = {}
    _flow(block, [1 << i for i in range(len(block.invars))], known)
    return lambda atom: known.get(atom, 0)


def _flow(block: Block, masks: Sequence[int], known: dict[Any, int]) -> list[int]:
    """What each result of `block` depends on.

    Of a loop the first turn counts: where a step makes several updates by a scan, the first loss depends on parameters
    alone, and later ones on the slots that the first update has read.
    """
    known.update(zip(block.invars, masks, strict=True))
    for eqn in block.equations:
        inputs = [known.get(a, 0) for a in eqn.invars]
        results = _FLOW[eqn.name](eqn, inputs, known) if eqn.blocks else [_union(inputs)] * len(eqn.outvars)
        known.update(zip(eqn.outvars, results, strict=True))
    return [known.get(a, 0) for a in block.outvars]


def _union(masks: Iterable[int]) -> int:
    return functools.reduce(operator.or_, masks, 0)


def _scan_flow(eqn: Equation, inputs: list[int], known: dict[Any, int]) -> list[int]:
    return _flow(eqn.blocks[0], inputs, known)


def _while_flow(eqn: Equation, inputs: list[int], known: dict[Any, int]) -> list[int]:
    test, consts = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    return [a | b for a, b in zip(_flow(eqn.blocks[1], inputs[test:], known), inputs[test + consts :], strict=True)]


def _cond_flow(eqn: Equation, inputs: list[int], known: dict[Any, int]) -> list[int]:
    branches = [_flow(block, inputs[1:], known) for block in eqn.blocks]
    return [inputs[0] | _union(masks) for masks in zip(*branches, strict=True)]


_FLOW = {"scan": _scan_flow, "while": _while_flow, "cond": _cond_flow}


def _is(aval: Aval, kind: Any) -> bool:
    return bool(jax.dtypes.issubdtype(aval.dtype, kind))
