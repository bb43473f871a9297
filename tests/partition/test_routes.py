"""Routes between placements: simulated block by block with NumPy, and against closed forms."""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
import pytest

from shardwright.partition.routes import Step, route
from shardwright.plan.placement import Placement, local_shape, whole

MESH = {"x": 2, "y": 3}
SHAPE = (12, 18)
ITEMSIZE = 1 << 16
"""So large that the latency of a collective is nothing beside its bytes."""


def dims_of_two_axes() -> list[tuple[tuple[str, ...], ...]]:
    """Every way in which x and y may cut a matrix, order on a dim included."""
    found = []
    for x, y in itertools.product((None, 0, 1), repeat=2):
        for order in (("x", "y"), ("y", "x")):
            places = {"x": x, "y": y}
            found.append(tuple(tuple(a for a in order if places[a] == dim) for dim in range(2)))
    return list(dict.fromkeys(found))


def placements(monoid: str = "sum") -> list[Placement]:
    """Every placement of a matrix on two axes, pending sums included."""
    found = []
    for dims in dims_of_two_axes():
        free = [a for a in MESH if not any(a in axes for axes in dims)]
        for count in range(len(free) + 1):
            found += [
                Placement(dims, tuple((a, monoid) for a in pending)) for pending in itertools.combinations(free, count)
            ]
    return found


PLACEMENTS = placements()


def test_every_placement_is_there():
    # 3 · 3 choices of a dim or none for each axis, twice where both are on one dim; then a pending sum instead of none:
    # one for each of the 4 with one axis free, three more where both are.
    assert len(dims_of_two_axes()) == 9 + 2 and len(PLACEMENTS) == 11 + 4 + 3


# A simulation: what each device holds, by the definition of each move


def devices(mesh):
    return [dict(zip(mesh, place, strict=True)) for place in np.ndindex(*mesh.values())]


def block_of(device, axes, mesh):
    return functools.reduce(lambda index, a: index * mesh[a] + device[a], axes, 0)


def cut(value, dims, device, mesh):
    """The device's block of a whole value."""
    for dim, axes in enumerate(dims):
        parts = math.prod(mesh[a] for a in axes)
        size = value.shape[dim] // parts
        start = block_of(device, axes, mesh) * size
        value = np.take(value, range(start, start + size), axis=dim)
    return value


def spread(value, placement, mesh):
    """What each device holds of `value`: its block, or of a pending sum a random share of it."""
    rng = np.random.default_rng(0)
    shares = {}
    for key in itertools.product(*(range(mesh[a]) for a, _ in placement.partial)):
        shares[key] = rng.integers(-50, 50, value.shape)
    shares[key] = value - sum(s for k, s in shares.items() if k != key)
    return [cut(shares[tuple(d[a] for a, _ in placement.partial)], placement.dims, d, mesh) for d in devices(mesh)]


def apply(step: Step, held, at: Placement, mesh):
    """One move on what every device holds."""
    everyone = devices(mesh)

    def group(device):
        others = [a for a in mesh if a not in step.axes]
        same = [i for i, d in enumerate(everyone) if all(d[a] == device[a] for a in others)]
        return sorted(same, key=lambda i: block_of(everyone[i], step.axes, mesh))

    result = []
    for device in everyone:
        members, mine = group(device), block_of(device, step.axes, mesh)
        if step.kind == "all_gather":
            result.append(np.concatenate([held[i] for i in members], axis=step.dim))
        elif step.kind == "all_reduce":
            result.append(sum(held[i] for i in members))
        elif step.kind == "reduce_scatter":
            result.append(np.split(sum(held[i] for i in members), len(members), axis=step.dim)[mine])
        elif step.kind == "all_to_all":
            pieces = [np.split(held[i], len(members), axis=step.dim)[mine] for i in members]
            result.append(np.concatenate(pieces, axis=step.other_dim))
        elif step.kind == "slice":
            result.append(np.split(held[everyone.index(device)], len(members), axis=step.dim)[mine])
        else:
            assert step.kind == "permute"
            wanted = block_of(device, step.target.dims[step.dim], mesh)
            (holder,) = (i for i in members if block_of(everyone[i], at.dims[step.dim], mesh) == wanted)
            result.append(held[holder])
    return result


def reachable(source: Placement, target: Placement) -> bool:
    return set(target.partial) <= set(source.partial)


PAIRS = [(a, b) for a in PLACEMENTS for b in PLACEMENTS if reachable(a, b)]


@pytest.mark.parametrize(("source", "target"), PAIRS, ids=lambda p: f"{p.dims}{[a for a, _ in p.partial]}")
def test_a_route_leads_where_it_says(source, target):
    value = np.random.default_rng(1).integers(-50, 50, SHAPE)
    sent, steps = route(SHAPE, SHAPE, ITEMSIZE, source, target, tuple(MESH.items()))
    held, at = spread(value, source, MESH), source
    for step in steps:
        held, at = apply(step, held, at, MESH), step.target
        assert {h.shape for h in held} == {local_shape(SHAPE, SHAPE, at, MESH)}
    assert at == target
    if not target.partial:
        for device, block in zip(devices(MESH), held, strict=True):
            np.testing.assert_array_equal(block, cut(value, target.dims, device, MESH))
    assert (sent == 0) == all(s.kind == "slice" for s in steps)


@pytest.mark.parametrize(("source", "target"), PAIRS, ids=lambda p: f"{p.dims}{[a for a, _ in p.partial]}")
def test_a_route_is_never_dearer_than_reducing_and_gathering_everything(source, target):
    sent, _ = route(SHAPE, SHAPE, ITEMSIZE, source, target, tuple(MESH.items()))
    whole_bytes = math.prod(SHAPE) * ITEMSIZE
    reduced = [a for a, _ in source.partial if target.pending(a) is None]
    # An all-reduce over n devices sends 2(n-1)/n of what a device holds, a gather (n-1)/n of the whole value.
    bound = sum(2 * whole_bytes * (MESH[a] - 1) / MESH[a] for a in reduced)
    gathered = math.prod(MESH[a] for a in source.axes)
    assert sent <= bound + whole_bytes * (gathered - 1) / gathered + 1e-9


@pytest.mark.parametrize(("source", "target"), [(a, b) for a, b in PAIRS if len(a.axes) == len(b.axes) == 2])
def test_between_full_cuts_no_piece_is_larger_than_a_device_holds(source, target):
    _, steps = route(SHAPE, SHAPE, ITEMSIZE, source, target, tuple(MESH.items()))
    assert all(math.prod(local_shape(SHAPE, SHAPE, s.target, MESH)) == math.prod(SHAPE) // 6 for s in steps)
    assert {s.kind for s in steps} <= {"all_to_all", "permute"}


# Closed forms


def kinds(source, target, shape=(16, 16), mesh=(("x", 4),)):
    sent, steps = route(shape, shape, ITEMSIZE, source, target, mesh)
    return sent, [(s.kind, s.axes) for s in steps]


def P(*dims, **partial):
    return Placement(tuple(tuple(d) for d in dims), tuple(sorted(partial.items())))


WHOLE = 16 * 16 * ITEMSIZE


@pytest.mark.parametrize(
    ("source", "target", "sent", "steps"),
    [
        (P("", "", x="sum"), P("x", ""), WHOLE * 3 / 4, [("reduce_scatter", ("x",))]),
        (P("", "", x="sum"), P("", ""), WHOLE * 2 * 3 / 4, [("all_reduce", ("x",))]),
        (P("", "", x="max"), P("", ""), WHOLE * 2 * 3 / 4, [("all_reduce", ("x",))]),
        (P("", "", x="max"), P("x", ""), WHOLE * 2 * 3 / 4, [("all_reduce", ("x",)), ("slice", ("x",))]),
        (P("x", ""), P("", "x"), WHOLE / 4 * 3 / 4, [("all_to_all", ("x",))]),
        (P("x", ""), P("", ""), WHOLE * 3 / 4, [("all_gather", ("x",))]),
        (P("", ""), P("", "x"), 0, [("slice", ("x",))]),
        (P("x", ""), P("x", ""), 0, []),
    ],
)
def test_closed_forms_on_one_axis(source, target, sent, steps):
    assert kinds(source, target) == (sent, steps)


@pytest.mark.parametrize(
    ("source", "target", "sent", "steps"),
    [
        # Both axes at once: one collective over 8 devices.
        (P("xy", ""), P("", ""), WHOLE * 7 / 8, [("all_gather", ("x", "y"))]),
        (P("", "", x="sum", y="sum"), P("", ""), WHOLE * 2 * 7 / 8, [("all_reduce", ("x", "y"))]),
        # Another order on the same dim: every block moves whole.
        (P("xy", ""), P("yx", ""), WHOLE / 8, [("permute", ("x", "y"))]),
        # What is pending on x and cut on y: the sum first, on pieces.
        (P("y", "", x="sum"), P("y", "x"), WHOLE / 2 * 3 / 4, [("reduce_scatter", ("x",))]),
        (P("y", "", x="sum"), P("yx", ""), WHOLE / 2 * 3 / 4, [("reduce_scatter", ("x",))]),
        (
            P("y", "", x="sum"),
            P("xy", ""),
            WHOLE / 2 * 3 / 4 + WHOLE / 8,
            [("reduce_scatter", ("x",)), ("permute", ("x", "y"))],
        ),
        # The major axis leaves the dim: to the front by a permute, then an all-to-all; no gather.
        (P("xy", ""), P("y", "x"), WHOLE / 8 * (1 + 3 / 4), [("permute", ("x", "y")), ("all_to_all", ("x",))]),
    ],
)
def test_closed_forms_on_two_axes(source, target, sent, steps):
    assert kinds(source, target, mesh=(("x", 4), ("y", 2))) == (sent, steps)


def test_two_axes_that_meet_on_one_dim_meet_in_pieces():
    """XLA gathers here, at last the whole 16x16x16 (openxla/xla#15207); pieces of an eighth suffice."""
    shape, mesh = (16, 16, 16), {"x": 4, "y": 2}
    source, target = P("y", "", "x"), P("", "xy", "")
    sent, steps = route(shape, shape, ITEMSIZE, source, target, tuple(mesh.items()))
    held = 16**3 * ITEMSIZE // 8
    assert [s.kind for s in steps] == ["all_to_all", "all_to_all"]
    assert all(math.prod(local_shape(shape, shape, s.target, mesh)) * ITEMSIZE == held for s in steps)
    assert sent == held * 3 / 4 + held * 1 / 2


def test_a_size_that_does_not_divide_is_gathered_before_it_is_cut_elsewhere():
    _, steps = route((12, 5), (12, 5), 4, P("x", ""), P("", ""), (("x", 4),))
    assert [s.kind for s in steps] == ["all_gather"]
    _, padded = route((12, 5), (12, 8), 4, P("x", ""), P("", "x"), (("x", 4),))
    assert [s.kind for s in padded] == ["all_to_all"]


def test_whole_needs_no_route():
    assert route((4, 4), (4, 4), 4, whole(2), whole(2), (("x", 4),)) == (0, ())
