"""A compiled plan over flat arguments, and meshes of attached devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from shardwright.partition.lower import partition
from shardwright.plan.decision import AxisPlan, Decision
from shardwright.program.capture import capture
from shardwright.rules.classes import find_classes
from shardwright.run import devices
from shardwright.run.devices import make_mesh
from shardwright.run.execute import check_arguments, compile_program

SHAPE = (16, 8)


def executable(step, *args, donated=(), pins=None, mesh=None):
    names = ("x", "y", "z")[: len(args)]
    program = capture(step, args, {}, names=names, donated=donated)
    decision = Decision((AxisPlan("d", 8),), {n: tuple(p) for n, p in (pins or {}).items()})
    device = partition(program, find_classes(program), decision)
    return compile_program(program, device, mesh or make_mesh({"d": 8}))


@pytest.fixture(scope="module")
def add():
    """x + y, x donated; x lies by rows, y whole."""
    shape = jax.ShapeDtypeStruct(SHAPE, jnp.float32)
    return executable(lambda x, y: x + y, shape, shape, donated=("x",), pins={"x": (("d",), ()), "y": ((), ())})


def ones(value=1.0):
    return jnp.full(SHAPE, value, jnp.float32)


def test_what_lies_as_planned_is_passed_on(add):
    x = jax.device_put(ones(), add.shardings[0])
    y = jax.device_put(ones(2), add.shardings[1])
    (out,) = add([x, y])
    assert x.is_deleted() and not y.is_deleted()
    assert out.sharding == add.shardings[0] and float(out[0, 0]) == 3


@pytest.mark.parametrize(
    "value",
    [
        ones(),
        np.ones(SHAPE, np.float32),
        np.ones(SHAPE, np.float64),
        jax.device_put(ones(), jax.devices()[5]),
        jax.device_put(ones(), NamedSharding(make_mesh({"a": 2, "b": 2}), P("b", "a"))),
    ],
    ids=["uncommitted", "numpy", "float64", "another device", "another mesh"],
)
def test_what_lies_elsewhere_is_put_there_and_is_gone_if_donated(add, value):
    own = value.copy()
    (out,) = add([own, ones()])
    assert out.sharding == add.shardings[0] and np.array_equal(out, np.full(SHAPE, 2.0))
    if isinstance(own, jax.Array):
        assert own.is_deleted()
    else:
        assert (own == 1).all(), "the caller's NumPy memory is never written"


def test_what_is_not_donated_stays(add):
    y = ones(4)
    add([ones(), y])
    assert not y.is_deleted() and float(y[0, 0]) == 4


def test_what_was_donated_before_is_refused_by_name(add):
    x = ones()
    add([x, ones()])
    with pytest.raises(
        ValueError, match=r"^x has been deleted, .*\(this step donates it\): give what that call returned"
    ):
        add([x, ones()])
    y = ones()
    y.delete()
    with pytest.raises(ValueError, match=r"^y has been deleted, most likely by a call to which it was donated: give"):
        add([ones(), y])


@pytest.mark.parametrize("dtype", ["int2", "int4", "uint4", "float4_e2m1fn", "float8_e4m3fn"])
def test_weights_of_few_bits(dtype):
    scale = executable(
        lambda x, y: x * y.astype(jnp.float32),
        jax.ShapeDtypeStruct(SHAPE, jnp.float32),
        jax.ShapeDtypeStruct(SHAPE, dtype),
        pins={"x": (("d",), ()), "y": ((), ("d",))},
    )
    values = np.random.default_rng(0).integers(0, 2, SHAPE)
    y = jnp.asarray(values, dtype)
    for _ in range(2):  # on one device, then as it lies
        (out,) = scale([ones(3.0), y])
        assert np.array_equal(out, 3.0 * values)
        y = jax.device_put(y, scale.shardings[1])


def test_one_array_donated_and_read(add):
    x = ones()
    (out,) = add([x, x])
    assert np.array_equal(out, np.full(SHAPE, 2.0))
    lying = jax.device_put(ones(), add.shardings[0])
    (out,) = add([lying, lying])
    assert np.array_equal(out, np.full(SHAPE, 2.0))


def test_one_array_donated_twice():
    shape = jax.ShapeDtypeStruct(SHAPE, jnp.float32)
    run = executable(lambda x, y: (x + 1, y + 2), shape, shape, donated=("x", "y"))
    x = ones()
    first, second = run([x, x])
    assert float(first[0, 0]) == 2 and float(second[0, 0]) == 3


def test_python_numbers_and_keys():
    run = executable(lambda x, y: (jax.random.uniform(x, (8,)) * y, x), jax.random.key(0), 2.0)
    values, key = run([jax.random.key(0), 2.0])
    np.testing.assert_allclose(values, jax.jit(lambda k: jax.random.uniform(k, (8,)) * 2.0)(jax.random.key(0)), 1e-6)
    assert key == jax.random.key(0)


def test_compiles_under_another_ambient_mesh():
    with jax.set_mesh(make_mesh({"other": 4, "mesh": 2})):
        run = executable(lambda x: x * 2, jax.ShapeDtypeStruct(SHAPE, jnp.float32), pins={"x": (("d",), ())})
        assert float(run([ones()])[0][0, 0]) == 2


# Arguments


def test_check_arguments_names_every_difference():
    program = capture(lambda x, y: (x, y), ({"a": ones(), "b": jnp.int32(1)}, ones()), {}, names=("x", "y"))
    names = ["x['a']", "x['b']", "y"]
    check_arguments(program, names, [ones(), 1, np.ones(SHAPE)])
    with pytest.raises(ValueError) as info:
        check_arguments(program, ["x['a']", "x['c']", "y"], [ones()[:3], 1.0, ones().astype(jnp.int8)])
    said = str(info.value)
    for line in (
        "x['a'] is float32[3, 8], the plan has float32[16, 8]",
        "x['c'] was given and the plan has no such leaf",
        "x['b'] of the plan was not given",
        "y is int8[16, 8], the plan has float32[16, 8]",
    ):
        assert line in said
    with pytest.raises(ValueError, match=r"x\['b'\] is float32\[\], the plan has int32\[\]"):
        check_arguments(program, names, [ones(), 0.5, ones()])
    with pytest.raises(ValueError, match="y is abstract"):
        check_arguments(program, names, [ones(), 1, jax.ShapeDtypeStruct(SHAPE, jnp.float32)])
    with pytest.raises(ValueError, match="another structure"):
        check_arguments(program, names[::-1], [ones(), 1, ones()])


# Meshes


def test_a_mesh_takes_the_first_devices_in_order():
    mesh = make_mesh({"d": 2, "t": 3})
    assert list(mesh.devices.flat) == jax.devices()[:6] and mesh.axis_names == ("d", "t")
    assert set(mesh.axis_types) == {AxisType.Auto}
    assert list(make_mesh({"d": 2}, jax.devices()[::-1]).devices.flat) == jax.devices()[::-1][:2]


def test_a_mesh_with_too_few_devices():
    with pytest.raises(ValueError, match=r"has 9 devices and 8 \(cpu\) are attached"):
        make_mesh({"d": 9})
    with pytest.raises(ValueError, match="has 2 devices and 0 are given"):
        make_mesh({"d": 2}, [])
    with pytest.raises(ValueError, match="repeat"):
        make_mesh({"d": 2}, [jax.devices()[0]] * 2)


def test_the_hint_is_for_the_platform(monkeypatch):
    class Gpu:
        platform = "gpu"

    with pytest.raises(ValueError, match="plan for 1 devices, or run where 4 are attached"):
        make_mesh({"d": 4}, [Gpu()])
    monkeypatch.setenv("XLA_FLAGS", "")
    with pytest.raises(ValueError, match=r"jax.config.update\('jax_num_cpu_devices', 9\)"):
        make_mesh({"d": 9})


def test_attached_cluster():
    assert devices.attached_cluster(None, None).num_devices == 8
    assert devices.attached_cluster({"d": 3}, None).num_devices == 3
    assert devices.attached_cluster({"d": 2}, jax.devices()[4:6]).name == "cpu:2"
    with pytest.raises(ValueError, match="has 16 devices"):
        devices.attached_cluster({"d": 16}, None)


def test_virtual_devices_are_not_asked_for_once_a_back_end_is_up():
    before = jax.config.jax_num_cpu_devices
    for name in ("cpu:16", "CPU:16", "h100:2x8", None, "cpu:x"):
        devices.start_virtual_devices(name)
    assert jax.config.jax_num_cpu_devices == before
    assert not isinstance(ones().sharding, NamedSharding)
