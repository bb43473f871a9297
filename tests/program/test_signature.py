"""A call taken apart, and put together again inside the step."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardwright.program.signature import (
    Options,
    StepError,
    argument_name,
    argument_of,
    bind_call,
    is_array,
    make_options,
    restore,
)

X = jnp.ones((4, 2))


def bind(step, *args, options=None, **kwargs):
    return bind_call(step, args, kwargs, options or Options())


def leaf_names(call):
    return [
        argument_name(path, call.names) for path, _ in jax.tree_util.tree_leaves_with_path((call.args, call.kwargs))
    ]


def run(call):
    """The step's result, computed from the call's arrays alone."""
    arrays = jax.tree.leaves(call.step(*call.args, **call.kwargs))
    return restore(call.extra, arrays)


# Names


def test_leaves_are_named_by_argument_and_path():
    def step(state, *rest, scale, **more):
        return state, rest, scale, more

    call = bind(step, {"w": [X, (X,)]}, X, X, scale=2.0, extra={"k": X})
    assert leaf_names(call) == ["state['w'][0]", "state['w'][1][0]", "rest0", "rest1", "extra['k']", "scale"]
    assert [argument_of(name) for name in leaf_names(call)] == ["state", "state", "rest0", "rest1", "extra", "scale"]


def test_names_without_a_signature():
    assert bind(max, X, X).names == ("arg0", "arg1")
    assert bind(functools.partial(lambda a, b, c: c, X), X, X).names == ("b", "c")

    class Callable:
        def __call__(self, state, batch):
            return state

    assert bind(Callable(), X, X).names == ("state", "batch")


def test_names_skip_static_arguments():
    call = bind(lambda n, x: x, 3, X, options=make_options(static_argnums=0))
    assert call.names == ("x",) and leaf_names(call) == ["x"]


# Options


def test_options_from_what_users_write():
    assert make_options(1, "a", (0, 2), ["b", "c"]) == Options((1,), ("a",), (0, 2), ("b", "c"))
    assert make_options(None, None, None, None) == Options()
    for wrong in ({"static_argnums": "0"}, {"static_argnames": 0}, {"donate_argnums": True}, {"donate_argnums": [1.0]}):
        with pytest.raises(ValueError, match=r"argn.*is no (position|name)"):
            make_options(**wrong)


def step_of_three(a, b=X, *, c=None):
    return a, b, c


@pytest.mark.parametrize(
    ("options", "args", "kwargs", "donated"),
    [
        ({"donate_argnums": 0}, (X,), {}, ("a",)),
        ({"donate_argnums": (0, 1)}, (X, X), {}, ("a", "b")),
        ({"donate_argnums": 1}, (X,), {"b": X}, ("b",)),
        ({"donate_argnums": -1}, (X, X), {}, ("b",)),
        ({"donate_argnames": "c"}, (X,), {"c": X}, ("c",)),
        ({"donate_argnames": "b"}, (X, X), {}, ("b",)),
    ],
)
def test_donation_by_position_and_by_name(options, args, kwargs, donated):
    assert bind_call(step_of_three, args, kwargs, make_options(**options)).donated == donated


@pytest.mark.parametrize(
    "options", [{"static_argnums": 2}, {"static_argnums": -3}, {"donate_argnums": 7}, {"static_argnames": "d"}]
)
def test_options_that_the_step_does_not_have(options):
    with pytest.raises(ValueError, match="and the step takes"):
        bind_call(step_of_three, (X, X), {}, make_options(**options))


def test_star_arguments_take_any_position_or_name():
    call = bind(lambda *xs: xs, X, X, options=make_options(static_argnums=(5,), donate_argnums=1))
    assert call.donated == ("xs1",)
    bind(lambda **named: named, x=X, options=make_options(donate_argnames="y"))


# Static parts


def test_leaves_that_are_not_arrays_stay_out_and_come_back():
    def step(tree, x):
        assert tree["f"] is jnp.sin and tree["name"] == "net"
        return {"f": tree["f"], "y": tree["f"](x), "none": None, "w": tree["w"]}

    call = bind(step, {"f": jnp.sin, "name": "net", "w": X, "none": None}, X)
    assert leaf_names(call) == ["tree['w']", "x"]
    result = run(call)
    assert result["f"] is jnp.sin and result["none"] is None
    assert jnp.array_equal(result["y"], jnp.sin(X))


@pytest.mark.parametrize("value", [True, 1, 2.5, 1j, np.float32(1), np.ones(2), jnp.ones(2), jax.random.key(0)])
def test_what_is_an_array(value):
    assert is_array(value) and is_array(jax.eval_shape(lambda: jnp.ones(2)))


@pytest.mark.parametrize("value", ["a", jnp.sin, object(), None, jnp.float32])
def test_what_is_none(value):
    assert not is_array(value)


class Module(eqx.Module):
    w: jax.Array
    rate: float
    flag: bool
    f: object


def test_numbers_inside_an_equinox_module_are_static():
    module = Module(X, 0.5, True, jnp.sin)
    call = bind(lambda module, rate: (module, rate), {"inner": module}, 0.5)
    assert leaf_names(call) == ["module['inner'].w", "rate"]
    result = run(call)
    assert result[0]["inner"].rate == 0.5 and result[0]["inner"].flag is True and result[0]["inner"].f is jnp.sin


def test_static_parts_tell_calls_apart():
    def static(*args, **kwargs):
        return bind(lambda x, f: x, *args, **kwargs).static

    assert static(X, "a") == static(X + 1, "a") and hash(static(X, "a")) == hash(static(X, "a"))
    assert static(X, "a") != static(X, "b")
    assert static(X, jnp.sin) != static(X, jnp.cos)
    unhashable = [object(), object()]
    assert static(X, unhashable[0]) != static(X, unhashable[1])
    options = make_options(static_argnums=1)
    # equal hashes, equal values of two types
    assert static(X, -1, options=options) != static(X, -2, options=options)
    assert static(X, 1, options=options) != static(X, 1.0, options=options)
    assert static(X, 1, options=options) != static(X, True, options=options)


def test_static_arguments_must_be_hashable_and_are_not_donated():
    with pytest.raises(ValueError, match="static argument 'f' is a list, which cannot be hashed"):
        bind(lambda x, f: x, X, [1], options=make_options(static_argnames="f"))
    with pytest.raises(ValueError, match="'x' is both static and donated"):
        bind(lambda x: x, X, options=make_options(static_argnums=0, donate_argnames="x"))


# What is refused


def test_a_text_among_the_results():
    call = bind(lambda x: {"a": [x, "note"]}, X)
    with pytest.raises(StepError, match=r"a str at out\['a'\]\[1\]"):
        run(call)


def test_an_array_of_texts():
    with pytest.raises(StepError, match=r"batch\['name'\] is a NumPy array of dtype <U1"):
        bind(lambda batch: batch, {"name": np.array(["a"]), "x": X})


def test_what_cannot_be_called():
    with pytest.raises(StepError, match="the step is a list, a function was wanted"):
        bind([], X)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (np.zeros(4, [("a", np.float32), ("b", np.int32)]), "which holds no numbers"),
        (np.zeros(4, "V4"), "which holds no numbers"),
        (np.array(["a"]), "which holds no numbers"),
        (np.zeros(4, np.longdouble), "of dtype float128, which jax does not have"),
        (2**40, "1099511627776, which int32 does not hold; give a float"),
        (-(2**31) - 1, "-2147483649, which int32 does not hold"),
    ],
)
def test_what_jax_cannot_hold_is_refused_by_name(value, why):
    with pytest.raises(StepError, match=rf"^state\['w'\]\[1\] is .*{why}"):
        bind(lambda state: state, {"w": [X, value]})


def test_the_largest_integers_and_small_floats_are_taken():
    bind(lambda *values: values, 2**31 - 1, -(2**31), jnp.zeros(2, jnp.bfloat16), np.zeros(2, jnp.float8_e4m3fn))


@pytest.mark.parametrize("module", ["jax", "flax.nnx"])  # objects of nnx are looked for once it is imported
def test_a_dict_whose_keys_do_not_sort_is_refused_by_name(module):
    pytest.importorskip(module)
    with pytest.raises(StepError, match=r"^state is no pytree that jax takes apart: .* The keys of a dict must sort"):
        bind(lambda state, x: x, {"w": X, 1: X}, X)


def test_a_mutable_array_among_the_arguments_is_refused_by_name():
    with pytest.raises(StepError, match=r"^state\['count'\] is a mutable array \(jax.new_ref\); pass its value"):
        bind(lambda state, x: x, {"count": jax.new_ref(X)}, X)
