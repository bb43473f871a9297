"""Bad input: each kind has its own message, with the user's leaf name or source line."""

import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import shardwright as sw
from tests.api.steps import grid, mlp_batch, mlp_state, mlp_step, shapes

STATE, BATCH = shapes(mlp_state()), shapes(mlp_batch())


def refused(match, call, kind=ValueError):
    """The message of the error that `call` raises."""
    with pytest.raises(kind, match=match) as info:
        call()
    return str(info.value)


def here(text):
    """The line number of the only line of this file that ends in the comment `# <text>`."""
    lines = Path(__file__).read_text().splitlines()
    (number,) = [i for i, line in enumerate(lines, start=1) if line.endswith(f"# {text}")]
    return number


# The step


def branches(state, batch):
    if batch.sum() > 0:  # branch on a value
        return state
    return state["up"]


def mismatched(state, batch):
    return batch @ state["down"]  # a wrong product


@pytest.mark.parametrize(
    ("step", "kind", "line"),
    [(branches, "TracerBoolConversionError", "branch on a value"), (mismatched, "TypeError", "a wrong product")],
)
def test_a_step_that_is_not_traceable(step, kind, line):
    said = refused("cannot be traced by jax", lambda: sw.plan(step, STATE, BATCH, cluster="cpu:8"))
    assert f"test_errors.py:{here(line)} ({step.__name__})" in said and kind in said and "static_argnums" in said
    refused("cannot be traced by jax", lambda: sw.jit(step)(mlp_state(), mlp_batch()))


def test_a_step_that_is_no_function():
    refused("is a dict, a function was wanted", lambda: sw.plan(STATE, BATCH, cluster="cpu:8"))
    refused("is a str, a function was wanted", lambda: sw.jit("step"))


def test_a_step_that_returns_something_else():
    step = lambda x: {"loss": x.sum(), "note": "done"}  # noqa: E731
    refused(r"returns a str at out\['note'\]", lambda: sw.plan(step, BATCH, cluster="cpu:8"))
    refused(r"returns a function at out\[1\]", lambda: sw.plan(lambda x: (x, branches), BATCH, cluster="cpu:8"))
    refused(r"returns a ndarray at out\[0\]", lambda: sw.plan(lambda x: [np.array(["a"])], BATCH, cluster="cpu:8"))


def test_a_step_without_arguments_is_a_step():
    plan = sw.plan(lambda: jnp.ones((16, 8)).sum(), cluster="cpu:8")
    assert plan.inputs == () and float(plan.compile()()) == 128
    assert float(sw.jit(lambda: jnp.arange(4.0).sum())()) == 6


def test_a_step_without_results_is_a_step():
    assert sw.jit(lambda x: None)(jnp.ones(8)) is None


def test_arguments_of_another_number_name_the_step():
    wanted = r"mlp_step\(state, batch\) was given arguments that it does not take: .* argument: 'batch'"
    refused(wanted, lambda: sw.plan(mlp_step, STATE, cluster="cpu:8"))


def test_an_array_of_texts():
    refused(
        r"batch\['text'\] is a NumPy array of dtype <U1",
        lambda: sw.plan(lambda batch: batch["x"], {"x": np.ones(8), "text": np.array(["a"])}, cluster="cpu:8"),
    )


# Static and donated arguments


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"static_argnums": 5},
            "static_argnums names argument 5, and the step takes 2 positional arguments: state, batch",
        ),
        ({"static_argnums": -3}, "static_argnums names argument -3"),
        ({"static_argnums": "batch"}, "static_argnums='batch': 'batch' is no position"),
        ({"static_argnums": 1.0}, "1.0 is no position"),
        ({"static_argnames": "bach"}, "static_argnames names 'bach', and the step takes 'batch', 'state'"),
        ({"static_argnames": 1}, "1 is no name"),
        ({"donate_argnums": 2}, "donate_argnums names argument 2"),
        ({"donate_argnames": ("state", "x")}, "donate_argnames names 'x'"),
        ({"static_argnums": 1, "donate_argnums": 1}, "argument 'batch' is both static and donated"),
        ({"static_argnums": 0}, "static argument 'state' is a dict, which cannot be hashed"),
    ],
)
def test_options_that_name_no_argument(options, message):
    refused(message, lambda: sw.plan(mlp_step, STATE, BATCH, cluster="cpu:8", **options))
    refused(message, lambda: sw.jit(mlp_step, **options)(mlp_state(), mlp_batch()))


# Arguments of a compiled plan


@pytest.fixture(scope="module")
def plan():
    return sw.plan(mlp_step, STATE, BATCH, mesh={"d": 2, "t": 4}, pins={"state['up']": P("d", "t")})


@pytest.fixture(scope="module")
def fn(plan):
    return plan.compile()


def test_arguments_that_do_not_match_the_plan(fn):
    state, batch = mlp_state(), mlp_batch()
    said = refused("not those that were planned", lambda: fn(state, batch[:16]))
    assert "batch is float32[16, 64], the plan has float32[32, 64]" in said and "plan again" in said
    said = refused("not those that were planned", lambda: fn(state, jnp.ones((32, 64), jnp.int32)))
    assert "batch is int32[32, 64], the plan has float32[32, 64]" in said
    said = refused("not those", lambda: fn({"up": state["up"]}, batch))
    assert "state['down'] of the plan was not given" in said
    said = refused("not those", lambda: fn({**state, "bias": batch}, batch))
    assert "state['bias'] was given and the plan has no such leaf" in said
    said = refused("not those", lambda: fn(STATE, batch))
    assert "state['up'] is abstract" in said
    refused("another structure", lambda: fn(tuple(state.values()) and _Pairs(state), batch))
    # numbers of another dtype are not rounded in silence
    refused(r"batch is int32\[32, 64\]", lambda: fn(state, np.ones((32, 64), np.int64)))


@jax.tree_util.register_pytree_with_keys_class
class _Pairs:
    """The same leaves under the same names in another structure."""

    def __init__(self, items):
        self.items = dict(items)

    def tree_flatten_with_keys(self):
        return [(jax.tree_util.DictKey(k), self.items[k]) for k in sorted(self.items)], None

    @classmethod
    def tree_unflatten(cls, aux, children):
        return cls(zip(["down", "up"], children, strict=True))


def test_a_static_argument_that_was_not_planned():
    plan = sw.plan(lambda x, n: x * n, jnp.ones(8), 2, static_argnums=1)
    fn = plan.compile()
    assert float(fn(jnp.ones(8), 2)[0]) == 2
    refused("static argument.*is not the one that was planned", lambda: fn(jnp.ones(8), 3))
    refused("another structure|static argument", lambda: fn(np.ones(8, np.float32), 3))


def test_prove_with_other_arguments(plan):
    refused(
        r"another program.*\n.*batch: planned as float32\[32, 64\], given as float32\[16, 64\]",
        lambda: sw.prove(plan, mlp_step, STATE, jax.ShapeDtypeStruct((16, 64), jnp.float32)),
    )


# Another program


def test_a_plan_for_another_program(plan, tmp_path):
    plan.save(tmp_path / "plan.json")
    load = lambda step, *args: sw.load_plan(tmp_path / "plan.json", step, *args)  # noqa: E731
    other = lambda state, batch: mlp_step(state, 2 * batch)  # noqa: E731
    said = refused("for another program", lambda: load(other, STATE, BATCH))
    assert "the step itself changed" in said
    said = refused("for another program", lambda: load(mlp_step, STATE, jax.ShapeDtypeStruct((8, 64), jnp.float32)))
    assert "batch: planned as float32[32, 64], given as float32[8, 64]" in said
    refused("for another program", lambda: sw.prove(plan, other, STATE, BATCH))


# Plan files


def test_corrupt_and_newer_plan_files(plan, tmp_path):
    file = tmp_path / "plan.json"
    plan.save(file)
    whole = json.loads(file.read_text())
    for content, message in [
        ("", "it is empty"),
        (file.read_text()[:-100], "damaged or cut off"),
        ("[]", "is not a plan"),
        (json.dumps({**whole, "version": 99}), "a plan of version 99.*Upgrade shardwright"),
        (json.dumps({**whole, "num_devices": 5}), r"contradicts itself.*does not hold 5 devices"),
        (json.dumps({k: v for k, v in whole.items() if k != "estimate"}), "is not a whole plan.*estimate"),
    ]:
        (tmp_path / "bad.json").write_text(content)
        said = refused(message, lambda: sw.load_plan(tmp_path / "bad.json"))
        assert "bad.json" in said
        refused(message, lambda: sw.load_plan(tmp_path / "bad.json", mlp_step, STATE, BATCH))
    refused("none.json", lambda: sw.load_plan(tmp_path / "none.json"), FileNotFoundError)


def test_a_plan_whose_classes_the_program_lacks(plan, tmp_path):
    plan.save(tmp_path / "plan.json")
    text = (tmp_path / "plan.json").read_text()
    data = json.loads(text)
    data["programs"][0]["decision"]["axes"][0]["compute"] = ["nonsense"]
    (tmp_path / "plan.json").write_text(json.dumps(data))
    said = refused(
        "lays 'nonsense' on mesh axis 'd'", lambda: sw.load_plan(tmp_path / "plan.json", mlp_step, STATE, BATCH)
    )
    assert "plan again" in said


# Devices


def test_more_devices_than_attached():
    plan = sw.plan(mlp_step, STATE, BATCH, cluster="cpu:16")
    said = refused("has 16 devices and 8 .cpu. are attached", plan.compile)
    assert "--xla_force_host_platform_device_count=16" in said
    refused("has 16 devices and 8", lambda: plan.init(mlp_state))
    refused("has 16 devices and 8", lambda: sw.prove(plan, mlp_step, STATE, BATCH))
    refused("has 16 devices and 8", lambda: sw.plan(mlp_step, STATE, BATCH, mesh={"d": 16}))
    refused("has 16 devices and 8", lambda: sw.jit(mlp_step, cluster="cpu:16")(mlp_state(), mlp_batch()))


def test_devices_that_do_not_fill_the_mesh(plan):
    refused("has 8 devices and 3 .cpu. are given", lambda: plan.compile(devices=jax.devices()[:3]))
    refused("the given ones repeat", lambda: plan.compile(devices=jax.devices()[:4] * 2))


def test_the_line_that_makes_virtual_devices(plan, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")
    said = refused("8 devices and 2", lambda: plan.compile(devices=jax.devices()[:2]))
    assert "jax.config.update('jax_num_cpu_devices', 8)" in said


def test_an_unknown_cluster_or_target(plan):
    refused("Unknown cluster 'h10:2x8'. Did you mean h100", lambda: sw.plan(mlp_step, STATE, BATCH, cluster="h10:2x8"))
    refused("Unknown cluster", lambda: sw.jit(mlp_step, cluster="h10:2x8")(mlp_state(), mlp_batch()))
    refused("h10:1x8", lambda: plan.compile(target="h10:1x8"))


# Memory


@pytest.mark.parametrize("memory", ["80XB", "", "-1GB", "0", 0, -5, "GB", [1], True])
def test_a_memory_that_does_not_parse(memory):
    refused("memory size", lambda: sw.plan(mlp_step, STATE, BATCH, cluster="cpu:8", memory=memory))
    refused("memory size", lambda: sw.jit(mlp_step, memory=memory))


def test_a_budget_that_cannot_be_met_names_the_nearest_that_works():
    make = lambda memory: sw.plan(mlp_step, STATE, BATCH, cluster="cpu:8", memory=memory, donate_argnums=0)  # noqa: E731
    said = refused("no plan for cpu:8 fits 10.0 kB", lambda: make("10kB"), sw.InfeasibleError)
    nearest = int(re.search(r"memory=(\d+)", said)[1])
    assert "(10000 bytes)" in said and f"({nearest} bytes)" in said
    with pytest.raises(sw.InfeasibleError) as info:
        make("10kB")
    assert info.value.nearest_bytes == nearest
    assert make(nearest).estimate.memory.peak_bytes <= nearest
    refused("no plan", lambda: make(nearest - 1), sw.InfeasibleError)


def test_s29_a_pin_that_breaks_the_budget_is_named_with_its_bytes():
    """alpa#829, ColossalAI#3964: the solver said infeasible and nothing else."""
    table = jax.ShapeDtypeStruct((1024, 64), jnp.float32)
    step = lambda table, ids: (table - 0.1 * jax.grad(lambda t: jnp.square(t[ids]).sum())(table), ids.sum())  # noqa: E731
    make = lambda memory, **pins: sw.plan(  # noqa: E731
        step, table, jax.ShapeDtypeStruct((64,), jnp.int32), mesh={"d": 8}, memory=memory, donate_argnums=0, pins=pins
    )
    assert make("200kB").estimate.memory.peak_bytes <= 200_000
    said = refused("no plan", lambda: make("200kB", table=P(None, None)), sw.InfeasibleError)
    assert "The pin on table keeps 262 kB (262144 bytes) whole on every device" in said
    nearest = int(re.search(r"memory=(\d+)", said)[1])
    assert nearest >= 262144 and make(nearest, table=P(None, None)).inputs[0] == P(None, None)


# Mesh and pins


@pytest.mark.parametrize(
    ("mesh", "message"),
    [
        ({"d": 3}, r"mesh, \{'d': 3\}, has 3 devices and the cluster cpu:8 has 8"),
        ({"d": 4, "t": 4}, "has 16 devices and the cluster cpu:8 has 8"),
        ({"d": 0, "t": 8}, "axis 'd' has the size 0"),
        ({"d": 2.5}, "axis 'd' has the size 2.5"),
        ({"d": True}, "axis 'd' has the size True"),
        ({1: 8}, "1 is no name of an axis"),
        ({}, "has no axes"),
        (8, "is a int; give axis → size"),
        ((2, 4), "is a tuple; give axis → size"),
    ],
)
def test_a_mesh_that_is_none(mesh, message):
    refused(message, lambda: sw.plan(mlp_step, STATE, BATCH, cluster="cpu:8", mesh=mesh))


@pytest.mark.parametrize(
    ("pins", "message"),
    [
        ({"state['Up']": P("d")}, r"""no leaf "state\['Up'\]". Did you mean "state\['up'\]\""""),
        ({"params": P("d")}, "no leaf 'params'"),
        ({"state['up']": P("x")}, r"the mesh {'d': 2, 't': 4} has no axis 'x'"),
        ({"state['up']": P("d", "t", None)}, "names 3 dims, the leaf has 2"),
        ({"state['up']": P("d", "d")}, "names mesh axis d twice"),
        ({"state['up']": 3}, "is a int, a PartitionSpec was wanted"),
        ({"out[1]": P("d")}, "names 1 dims, the leaf has 0"),
        ({"state['up']": P("d"), "out[0]['up']": P("t")}, r"out\[0\]\['up'\] replaces state\['up'\] in the next step"),
        (["state"], r"pins=\['state'\] is a list; give leaf name → PartitionSpec"),
    ],
)
def test_pins_that_contradict_the_step_or_the_mesh(pins, message):
    refused(message, lambda: sw.plan(mlp_step, STATE, BATCH, cluster="cpu:8", mesh={"d": 2, "t": 4}, pins=pins))


def test_a_pin_that_does_not_divide():
    x = jax.ShapeDtypeStruct((10, 4), jnp.float32)
    refused(
        r"pins\['x'\].*dim 0 of \[10, 4\] does not divide into 8 parts",
        lambda: sw.plan(lambda x: x * 2, x, cluster="cpu:8", mesh={"d": 8}, pins={"x": P("d")}),
    )


def test_pins_that_name_axes_take_a_mesh():
    said = refused(
        "so the mesh must be given", lambda: sw.plan(mlp_step, STATE, BATCH, cluster="cpu:8", pins={"batch": P("d")})
    )
    assert "pins['batch']" in said and "mesh={'d': 2}" in said
    whole = sw.plan(mlp_step, STATE, BATCH, cluster="cpu:8", pins={"state['up']": P()})
    assert whole.inputs[0]["up"] == P(None, None)


def inner_pin(x):
    return sw.pin(x, P("rows")) * 2  # pinned inside


def test_a_pin_in_the_step_to_an_axis_that_the_mesh_lacks():
    x = jax.ShapeDtypeStruct((16, 4), jnp.float32)
    line = f"test_errors.py:{here('pinned inside')}"
    said = refused(
        "the step pins a value to mesh axis 'rows'", lambda: sw.plan(inner_pin, x, cluster="cpu:8", mesh={"d": 8})
    )
    assert line in said and "{'d': 8}" in said
    said = refused("so the mesh must be given", lambda: sw.plan(inner_pin, x, cluster="cpu:8"))
    assert line in said and "mesh={'rows': 2}" in said
    mesh = grid(columns=8)
    outer = lambda x: jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P("columns"))) * 2  # noqa: E731
    refused("test_errors.py.*mesh axis 'columns'", lambda: sw.plan(outer, x, cluster="cpu:8", mesh={"d": 8}))


def test_a_bare_spec_without_a_mesh_is_not_traceable():
    step = lambda x: jax.lax.with_sharding_constraint(x, P("d")) * 2  # noqa: E731
    refused("cannot be traced.*non-empty mesh", lambda: sw.plan(step, BATCH, cluster="cpu:8", mesh={"d": 8}))


def test_inputs_that_lie_on_another_mesh_are_moved_and_noted():
    x = jax.device_put(jnp.ones((16, 4)), NamedSharding(grid(rows=4), P("rows")))
    plan = sw.plan(lambda x: x * 2, x, mesh={"d": 8})
    assert plan.record.notes == ("x lies on the mesh {'rows': 4} and is moved to that of the plan.",)
    mesh = grid(rows=4)
    step = lambda x: jax.lax.with_sharding_constraint(x * 2, NamedSharding(mesh, P("rows")))  # noqa: E731
    said = refused("has 4 devices and the cluster cpu:8 has 8", lambda: sw.plan(step, BATCH, cluster="cpu:8"))
    assert "the mesh of with_sharding_constraint at" in said and "test_errors.py" in said


def test_like_and_another_mesh(plan):
    refused(
        "differs from the mesh of the plan to be like",
        lambda: sw.plan(mlp_step, STATE, BATCH, like=plan, mesh={"d": 8}),
    )
    refused("like={'d': 8} is a dict, a Plan was wanted", lambda: sw.plan(mlp_step, STATE, BATCH, like={"d": 8}))


# The rest


def test_an_unknown_objective():
    refused(
        "objective='speed': it is one of 'seconds', 'memory', 'bytes'",
        lambda: sw.plan(mlp_step, STATE, BATCH, objective="speed"),
    )
    refused("objective='speed'", lambda: sw.jit(mlp_step, objective="speed"))


def test_errors_are_value_errors():
    assert issubclass(sw.InfeasibleError, ValueError)


@pytest.mark.parametrize(
    ("why", "given"),
    [
        (r"^pins: 3 is a int, a leaf's name was wanted", {"pins": {3: P("x")}}),
        (r"^pins\['x'\]: The pin None is a NoneType, a PartitionSpec was wanted", {"pins": {"x": None}}),
        (r"^pins\['x'\]: The pin .* names mesh axis x twice", {"pins": {"x": P("x", "x")}}),
        (r"^mesh={1: 8}: 1 is no name of an axis", {"mesh": {1: 8}}),
        (r"^mesh={'': 8}: '' is no name of an axis", {"mesh": {"": 8}}),
    ],
)
def test_pins_and_meshes_that_cannot_be_read(why, given):
    refused(why, lambda: sw.plan(lambda x: x * 2, jnp.ones((8, 8)), **{"mesh": {"x": 8}, **given}))


def test_a_keyword_that_the_step_does_not_have_is_named():
    refused("it has no 'bacth'", lambda: sw.plan(lambda x, batch: x * batch, jnp.ones(8), bacth=jnp.ones(8)))


def test_what_is_no_device_no_function_and_no_file(tmp_path):
    plan = sw.plan(lambda x: x * 2, jnp.ones(8), cluster="cpu:8")
    refused("'c' is no device; give some of jax.devices()", lambda: plan.compile(devices="cpu"))
    refused("init was given 'x', a str; a function was wanted", lambda: plan.init("x"))
    refused("the init function returns no arrays", lambda: plan.init(lambda: None))
    with pytest.raises(FileNotFoundError, match="there is no such file; give the path"):
        sw.load_plan(tmp_path / "none.json")
