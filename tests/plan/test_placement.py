"""Placements: notation, the shape of one device's part, and specs."""

from __future__ import annotations

import pytest
from jax.sharding import PartitionSpec as P

from shardwright.plan.placement import (
    Placement,
    from_spec,
    local_shape,
    notation,
    whole,
    with_dim,
    with_partial,
    without_partial,
)


@pytest.mark.parametrize(
    ("placement", "text"),
    [
        (whole(2), "[I, J]"),
        (Placement((("x",), ())), "[I_x, J]"),
        (Placement((("x", "y"), ())), "[I_xy, J]"),
        (Placement((("y", "x"), ())), "[I_yx, J]"),
        (Placement((("data", "t"), ("p",))), "[I_data.t, J_p]"),
        (Placement(((), ("y",)), (("x", "sum"),)), "[I, J_y] {U_x}"),
        (Placement(((), ()), (("x", "max"), ("y", "sum"))), "[I, J] {max_x} {U_y}"),
    ],
)
def test_notation(placement, text):
    assert notation(["I", "J"], placement) == text


def test_notation_of_a_scalar():
    assert notation([], whole(0)) == "[]"


@pytest.mark.parametrize(
    ("shape", "padded", "dims", "local"),
    [
        ((16, 12), (16, 12), ((), ()), (16, 12)),
        ((16, 12), (16, 12), (("x",), ()), (4, 12)),
        ((16, 12), (16, 12), (("x", "y"), ()), (2, 12)),
        ((16, 12), (16, 12), (("y",), ("x",)), (8, 3)),
        # A dim of 13 in 8 parts is padded to 16; where it is whole it keeps its 13.
        ((13, 12), (16, 12), (("x", "y"), ()), (2, 12)),
        ((13, 12), (16, 12), (("x",), ()), (4, 12)),
        ((13, 12), (16, 12), ((), ("x",)), (13, 3)),
        ((), (), (), ()),
    ],
)
def test_local_shape(shape, padded, dims, local):
    assert local_shape(shape, padded, Placement(dims), {"x": 4, "y": 2}) == local


def test_a_pending_sum_has_the_shape_of_its_dims():
    assert local_shape((8, 8), (8, 8), Placement((("y",), ()), (("x", "sum"),)), {"x": 4, "y": 2}) == (4, 8)


@pytest.mark.parametrize(
    ("spec", "dims"),
    [
        (P(), ((), (), ())),
        (P("x"), (("x",), (), ())),
        (P(None, "x"), ((), ("x",), ())),
        (P(("x", "y"), None, "z"), (("x", "y"), (), ("z",))),
        (("x", None), (("x",), (), ())),
    ],
)
def test_from_spec(spec, dims):
    assert from_spec(spec, 3) == Placement(dims)


@pytest.mark.parametrize("dims", [((), ()), (("x",), ()), (("x", "y"), ()), ((), ("y", "x"))])
def test_a_spec_says_the_same_there_and_back(dims):
    assert from_spec(Placement(dims).spec, 2) == Placement(dims)


def test_questions():
    p = Placement((("x", "z"), ()), (("y", "sum"),))
    assert p.axes == {"x", "z"} and p.dim_of("z") == 0 and p.dim_of("y") is None
    assert p.pending("y") == "sum" and p.pending("x") is None


def test_changes():
    p = with_partial(with_partial(whole(2), "y", "sum"), "x", "max")
    assert p.partial == (("x", "max"), ("y", "sum"))
    assert without_partial(p) == whole(2) and without_partial(p, ("x",)).partial == (("y", "sum"),)
    assert with_dim(p, 1, ("z",)) == Placement(((), ("z",)), p.partial)
