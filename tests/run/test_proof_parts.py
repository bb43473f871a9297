"""The parts of a proof, without compiling: the range of ids, what is made up, how far apart results are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from shardwright.partition.device import Slot
from shardwright.plan.placement import Placement
from shardwright.program.ir import Aval, Role
from shardwright.run.compare import distance, noise, relative_errors
from shardwright.run.id_ranges import id_ranges
from shardwright.run.inputs import Inputs
from shardwright.run.placing import put
from tests.run import proof_steps
from tests.run.proof_steps import shape, trace


def _ranges(fn, *args):
    program = trace(fn, args, [f"a{i}" for i in range(len(args))]).program
    return {program.inputs[i].name: n for i, n in id_ranges(program).items()}


_IDS = shape(6, dtype=jnp.int32)


@pytest.mark.parametrize(
    ("fn", "args", "expected"),
    [
        (lambda x, i: x[i], (shape(30, 2), _IDS), {"a1": 30}),
        (lambda x, i: x[i] + x[i[::-1] + 0].sum(), (shape(30, 2), _IDS), {"a1": 30}),
        (lambda x, i: x[jnp.arange(6), i], (shape(6, 9), _IDS), {"a1": 9}),
        (lambda x, i: jnp.take_along_axis(x, i[:, None], 1), (shape(6, 7), _IDS), {"a1": 7}),
        (lambda i: jax.nn.one_hot(i, 11), (_IDS,), {"a0": 11}),
        (lambda x, i: x.at[i].add(1.0), (shape(8), _IDS), {"a1": 8}),
        (lambda x, i: jax.lax.dynamic_slice_in_dim(x, i, 3), (shape(8), shape(dtype=jnp.int32)), {"a1": 6}),
        (lambda x, i: jax.lax.scan(lambda c, j: (c + x[j], None), 0.0, i)[0], (shape(5), _IDS), {"a1": 5}),
        (lambda x, y, i: x[i].sum() + y[i].sum(), (shape(30), shape(20), _IDS), {"a2": 20}),
        (lambda x, i: x * i.astype(jnp.float32), (shape(6), _IDS), {}),
    ],
)
def test_ids_take_the_size_that_they_index(fn, args, expected):
    assert _ranges(fn, *args) == expected


def test_made_up_arguments():
    m = proof_steps.mlp(batch=12, labels=10)
    inputs = Inputs(m.program, m.made_up)
    first, second, other = inputs.at(0), inputs.at(1), inputs.other(0)
    for leaf, a, b, c in zip(m.program.inputs, first, second, other, strict=True):
        assert a.shape == leaf.aval.shape and a.dtype == leaf.aval.dtype
        assert (leaf.role is Role.BATCH) == (not np.array_equal(a, b)) == (not np.array_equal(a, c))
        if leaf.role is Role.OPTIMIZER:
            assert (a > 0).all() and a.max() < 0.01
    x, y = first[-2:]
    assert len(np.unique(x, axis=0)) == 12 and set(y) == set(range(10)), "rows differ, and every id occurs"


def test_given_rows_are_reordered_together():
    m = proof_steps.mlp(batch=12)
    given = m.made_up
    given[-2:] = np.arange(12)[:, None] * np.ones((12, 64)), np.arange(12) % 10
    x, y = Inputs(m.program, given).at(1)[-2:]
    assert sorted(x[:, 0]) == list(range(12)) and list(x[:, 0]) != list(range(12))
    np.testing.assert_array_equal(x[:, 0] % 10, y)


def _mesh():
    return Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("d", "t"))


def test_padded_parts_are_laid_and_compared_without_their_padding():
    slot = Slot(Aval((5, 2), np.dtype(np.float32)), Placement((("d", "t"), ())), (2, 2))
    value = np.arange(10, dtype=np.float32).reshape(5, 2)
    laid = put(value, slot, _mesh())
    assert laid.shape == (8, 2) and len(laid.sharding.device_set) == 4
    found = distance(laid, value)
    assert found.squared == 0 and found.bitwise and found.size == 10
    assert distance(laid + 1, value).squared == 10


def test_every_copy_counts():
    mesh = _mesh()
    parts = [jax.device_put(np.float32(1 + (i == 3)), d) for i, d in enumerate(mesh.devices.flat)]
    value = jax.make_array_from_single_device_arrays((), NamedSharding(mesh, P()), parts)
    assert float(value) == 1, "the first device's copy is right"
    assert distance(value, np.float32(1)[()] * np.ones((), np.float32)).squared == 1


def _error(value, want, role_of_size_one=1.0, moved=0.0):
    leaves = [
        distance(jnp.asarray(v), np.asarray(w, np.float32))
        for v, w in ((value, want), (role_of_size_one, role_of_size_one))
    ]
    return relative_errors(leaves, ["parameter"] * 2, [moved, 0.0])[0]


def test_error_in_closed_form():
    assert _error(np.float32([3, 4.5]), [3, 4]) == pytest.approx(0.1)
    # a leaf that is zero is measured against the root mean square of its role, here √(1 / 2)
    assert _error(np.float32([1e-12]), [0]) == pytest.approx(1e-12 / (1e-6 * 0.5**0.5), rel=1e-6)
    # what changing arguments in the last bit explains is below the limit, but only while it is small beside the role
    assert _error(np.float32([1e-12]), [0], moved=1e-13) < 1e-9
    assert _error(np.float32([1e-3]), [0], moved=1.0) > 1e-9
    assert _error(np.float32([np.inf, 1]), [np.inf, 1]) == 0
    assert _error(np.float32([np.nan]), [np.nan]) == np.inf
    assert noise(jnp.float32([1, 2]), np.float32([1, 4])) == 2
