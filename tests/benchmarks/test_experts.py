"""The experts compute what the one-device step computes, and the hand-written ones send what their closed forms say."""

import functools
import importlib.util
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from benchmarks import gpt
from benchmarks.experts import fsdp, split, tensor_sequence, variant, zero1
from benchmarks.experts.constrained import constrained
from shardwright.run.devices import abstract_mesh
from shardwright.run.traffic import by_kind, sent_bytes, traffic

SMALL = gpt.Config(vocab=128, width=64, layers=3, hidden=192, heads=8, sequence=32, batch=16)
BY_HAND = {"zero1": zero1, "fsdp": fsdp, "tensor_sequence": tensor_sequence}
# One expert is run by the quick tests too.
QUICK_FIRST = ["fsdp", *(pytest.param(name, marks=pytest.mark.slow) for name in BY_HAND if name != "fsdp")]
ONE_AXIS = ("propagated", "dp", "zero1", "fsdp", "tp", "tp_sp")
TWO_AXES = ("dp_tp", "fsdp_tp")
OTHER_STEP = Path(__file__).resolve().parents[3] / "shared" / "experts" / "gpt.py"


def mesh_of(n: int):
    assert n > 1
    return jax.make_mesh((n,), ("x",), axis_types=(AxisType.Auto,), devices=jax.devices()[:n])


@functools.cache
def rows_of(name: str, config: gpt.Config, n: int):
    built = BY_HAND[name].build(config, mesh_of(n))
    text = variant.jitted(built).lower(*gpt.abstract_arguments(config)).compile().as_text()
    return traffic(text, {"x": n})


def check_traffic(name, config, n):
    rows = rows_of(name, config, n)
    assert sent_bytes(rows) == pytest.approx(BY_HAND[name].closed_form_bytes(config, n), rel=0.05)
    assert {row.axes for row in rows} == {("x",)}


@pytest.mark.parametrize("name", QUICK_FIRST)
def test_traffic_is_the_closed_form(name):
    check_traffic(name, SMALL, 8)


@pytest.mark.slow
@pytest.mark.parametrize("n", [2, 4, 8])
@pytest.mark.parametrize("remat", [False, True])
@pytest.mark.parametrize("name", BY_HAND)
def test_traffic_is_the_closed_form_at_full_size(name, remat, n):
    check_traffic(name, gpt.Config(remat=remat), n)


def test_fsdp_gathers_in_both_loops():
    kinds = by_kind(rows_of("fsdp", SMALL, 8))
    num_weights, layers = len(gpt.shapes(SMALL)) - 1, SMALL.layers
    assert kinds["all_gather"][0] == 2 * num_weights * layers + 1
    assert kinds["reduce_scatter"][0] == num_weights * layers + 1


def two_steps(step, place, config):
    """State and losses after two steps on seeded batches; `place` lays (state, tokens) where the step wants them."""
    params = gpt.init(jax.random.key(0), config)
    state, losses = (params, gpt.OPTIMIZER.init(params)), []
    for seed in (1, 2):
        shape = (config.batch, config.sequence + 1)
        tokens = jax.random.randint(jax.random.key(seed), shape, 0, config.vocab)
        state, loss = step(*place((state, tokens)))
        losses.append(loss)
    return jax.device_get((state, losses))


@functools.cache
def on_one_device():
    config = gpt.Config(**{**vars(SMALL), "dtype": jnp.float64})
    step, _ = gpt.program(config)
    return two_steps(jax.jit(step), lambda arguments: arguments, config)


def check_equality(build, config):
    with jax.enable_x64(True):
        config = gpt.Config(**{**vars(config), "dtype": jnp.float64})
        built = build(config)
        num_devices = {len(sharding.device_set) for sharding in jax.tree.leaves(built.in_shardings)}
        assert num_devices == {8}
        place = functools.partial(jax.device_put, device=built.in_shardings)
        found = two_steps(variant.jitted(built), place, config)
        wanted = on_one_device()
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)
    assert all(leaf.dtype == np.float64 for leaf in jax.tree.leaves(found[0][0]))


@pytest.mark.parametrize("name", QUICK_FIRST)
def test_by_hand_equals_one_device(name):
    check_equality(lambda config: BY_HAND[name].build(config, mesh_of(8)), SMALL)


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_HAND)
def test_by_hand_with_remat_equals_one_device(name):
    config = gpt.Config(**{**vars(SMALL), "remat": True})
    check_equality(lambda config: BY_HAND[name].build(config, mesh_of(8)), config)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*ONE_AXIS, *TWO_AXES])
def test_constrained_equals_one_device(name):
    mesh = mesh_of(8)
    if name in TWO_AXES:
        mesh = jax.make_mesh((2, 4), ("d", "t"), axis_types=(AxisType.Auto,) * 2)
    check_equality(lambda config: constrained(config, mesh)[name], SMALL)


def test_constrained_are_all_there():
    assert tuple(constrained(SMALL, abstract_mesh({"x": 8}))) == ONE_AXIS
    assert tuple(constrained(SMALL, abstract_mesh({"d": 2, "t": 4}))) == TWO_AXES
    with pytest.raises(ValueError, match="axes"):
        constrained(SMALL, abstract_mesh({"y": 8}))


def test_state_is_cut_as_each_expert_says():
    mesh = abstract_mesh({"x": 8})
    (params, opt), _ = gpt.abstract_arguments(SMALL)
    for name, module in BY_HAND.items():
        in_params, in_opt = module.build(SMALL, mesh).in_shardings[0]
        assert jax.tree.structure(in_opt) == jax.tree.structure(opt)
        is_cut = [sharding.is_fully_replicated is False for sharding in in_params.values()]
        assert is_cut == [name != "zero1"] * len(params)
        slots = [s for s, leaf in zip(jax.tree.leaves(in_opt), jax.tree.leaves(opt), strict=True) if leaf.ndim]
        assert len(slots) == 2 * len(params) and not any(slot.is_fully_replicated for slot in slots)


def test_cuts_leave_a_dim_for_the_lanes():
    assert split.cut_dims(gpt.Config(), 8) == {"emb": 0, "wq": 2, "wk": 2, "wv": 2, "wo": 1, "w1": 1, "w2": 1}
    assert split.cut_dims(gpt.Config(), 16)["wq"] == 3  # 8 heads do not divide, and cutting the width leaves 16, 8, 32
    with pytest.raises(ValueError, match="multiple of 7"):
        split.cut_dims(gpt.Config(), 7)
    with pytest.raises(ValueError, match="batch of 6"):
        split.cut_dims(gpt.Config(batch=6), 8)
    with pytest.raises(ValueError, match="heads"):
        tensor_sequence.build(gpt.Config(), abstract_mesh({"x": 16}))


def test_lowerable_donates_the_state():
    low = variant.lowerable(fsdp.build, SMALL, {"x": 8})
    assert len(low.avals) == len(low.in_specs) == len(low.out_specs) == len(low.donate) + 1
    assert low.donate == tuple(range(len(low.donate)))
    results = jax.eval_shape(low.make_fn(abstract_mesh({"x": 8})), *low.avals)
    assert [leaf.shape for leaf in results[:-1]] == [aval.shape for aval in low.avals[:-1]]


@pytest.mark.slow
def test_same_program_as_the_other_checkout():
    if not OTHER_STEP.exists():
        pytest.skip("shared/experts/gpt.py is not beside this checkout")
    spec = importlib.util.spec_from_file_location("other_gpt", OTHER_STEP)
    other = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = other
    spec.loader.exec_module(other)
    sizes = vars(SMALL)
    ours, theirs = gpt.init(jax.random.key(3), SMALL), other.init(jax.random.key(3), other.Config(**sizes))
    assert list(ours) == list(theirs)
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name])
    assert jax.tree.structure(gpt.program(SMALL)[1]) == jax.tree.structure(other.program(other.Config(**sizes))[1])
    tokens = jax.random.randint(jax.random.key(4), (SMALL.batch, SMALL.sequence + 1), 0, SMALL.vocab)
    loss = jax.jit(gpt.loss, static_argnums=2)(ours, tokens, SMALL)
    np.testing.assert_allclose(loss, other.loss(theirs, tokens, other.Config(**sizes)), rtol=1e-6)
