"""What classes of dims are called: after the batch, a vocabulary, or the largest parameter that has them."""

import jax
import jax.numpy as jnp

from shardwright.program.capture import capture
from shardwright.rules.classes import find_classes


def names(step, **args):
    """Leaf name → names of its dims' classes."""
    program = capture(step, tuple(args.values()), {}, names=list(args))
    classes = find_classes(program)
    every = [c.name for c in classes.all]
    assert len(set(every)) == len(every)
    leaves = zip(program.inputs, program.block.invars, strict=True)
    return {leaf.name: tuple(every[c] for c in classes.of[var]) for leaf, var in leaves}


def floats(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def descend(loss, w, *rest):
    value, gradient = jax.value_and_grad(loss)(w, *rest)
    return jax.tree.map(lambda p, g: p - 0.1 * g, w, gradient), value


def test_the_largest_parameter_lends_its_name():
    def loss(w, x):
        h = jnp.tanh(x @ w["kernel"] + w["a_bias"]) * w["a_scale"]
        return jnp.mean((h @ w["out"]) ** 2)

    w = {"a_bias": floats(512), "a_scale": floats(512), "kernel": floats(256, 512), "out": floats(512, 16)}
    found = names(lambda w, x: descend(loss, w, x), w=w, x=floats(64, 256))
    assert found["w['a_scale']"] == found["w['a_bias']"] == ("w['kernel'].1",)
    assert found["w['kernel']"] == ("w['kernel'].0", "w['kernel'].1")
    assert found["w['out']"] == ("w['kernel'].1", "w['out'].1")
    assert found["x"] == ("batch", "w['kernel'].0")  # a feature dim of the batch is the parameter's


def test_a_dim_that_no_parameter_has_is_the_batchs():
    def loss(w, x):
        return jnp.mean(jnp.tanh(x @ w))

    found = names(lambda w, x: descend(loss, w, x), w=floats(32, 16), x=floats(8, 24, 32))
    assert found["x"] == ("batch", "x.1", "w.0")


def test_ids_index_a_vocabulary():
    def loss(w, ids):
        return jnp.mean(w["emb"][ids] @ w["out"])

    w = {"emb": floats(96, 32), "out": floats(32, 48)}
    found = names(lambda w, ids: descend(loss, w, ids), w=w, ids=jax.ShapeDtypeStruct((8, 12), jnp.int32))
    assert found["w['emb']"] == ("vocabulary", "w['emb'].1")
    assert found["ids"][0] == "batch"
