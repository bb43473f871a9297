"""The table as a whole: no primitive twice, and none missing from the programs that people train."""

import importlib
import pkgutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

import shardwright.rules
from shardwright.program.flatten import flatten
from shardwright.program.ir import walk
from shardwright.rules import elementwise, table
from shardwright.rules.row import Row
from tests.rules.harness import equations

_DESCENDED_INTO = {"scan", "while", "cond"}


def test_the_table_holds_every_row_once():
    found: dict[str, Row] = {}
    for module in pkgutil.iter_modules(shardwright.rules.__path__, "shardwright.rules."):
        rows = getattr(importlib.import_module(module.name), "ROWS", {})
        for name, row in rows.items():
            assert isinstance(row, Row)
            assert found.setdefault(name, row) is row, f"{name} has two rows"
    assert found == table.ROWS


_WITHOUT_A_ROW = {
    "descended into": _DESCENDED_INTO,
    "inlined": {"call", "closed_call", "custom_jvp_call", "custom_vjp_call", "eval_jaxpr", "jit", "remat2"},
    "moves a value where the user says": {"sharding_constraint"},
    "only in regions that are manual already": {
        "all_gather", "all_to_all", "axis_index", "pmax", "pmin", "ppermute", "psum", "ragged_all_to_all"},
    "references and tokens": {"after_all", "create_token", "get", "swap"},
    "only on the way from other primitives": {"custom_lin", "select_and_scatter"},
    "not known yet: computed whole, and reported": {"custom_linear_solve", "device_put", "stage"},
}  # fmt: skip


def test_every_public_primitive_has_a_row_or_a_reason():
    public = jax.extend.core.primitives
    names = {getattr(public, name).name for name in dir(public) if name.endswith("_p")}
    assert len(names) > 150
    assert names - set(table.ROWS) <= set().union(*_WITHOUT_A_ROW.values()), "write a row, or say above why not"


def test_row_is_found_by_primitive():
    (equation,) = equations(lambda x: jnp.sin(x), 1.0)
    assert table.row(equation) is elementwise.ROWS["sin"]
    (equation,) = equations(lambda x: lax.scan(lambda c, _: (c * 2, None), x, length=3)[0], 1.0)
    assert equation.name == "scan" and table.row(equation) is None


def test_control_flow_has_no_rows():
    assert not _DESCENDED_INTO & set(table.ROWS)


def _step(loss):
    """A training step: loss, gradients, clipping and AdamW."""
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))

    def step(params, batch, key):
        value, grads = jax.value_and_grad(loss)(params, batch, key)
        updates, _ = optimizer.update(grads, optimizer.init(params), params)
        return optax.apply_updates(params, updates), value

    return step


def _language_model(params, tokens, key):
    """Embedding, causal attention in a scan of layers with dropout and remat, cross entropy."""
    x = params["embedding"][tokens]

    @jax.checkpoint
    def layer(carry, w):
        x, key = carry
        key, drop = jax.random.split(key)
        q, k, v = (x @ w[i] for i in range(3))
        scores = jnp.einsum("btd,bsd->bts", q, k) / np.sqrt(x.shape[-1])
        mask = jnp.tril(jnp.ones(scores.shape[1:], bool))
        x = x + jax.nn.softmax(jnp.where(mask, scores, -1e9)) @ v
        kept = jax.random.bernoulli(drop, 0.9, x.shape)
        return (jnp.where(kept, jax.nn.gelu(x @ w[3]), 0), key), None

    (x, _), _ = lax.scan(layer, (x, key), params["layers"])
    logits = jax.nn.log_softmax(x @ params["embedding"].T)
    return -jnp.take_along_axis(logits, jnp.roll(tokens, -1, 1)[..., None], -1).mean()


def _image_model(params, images, key):
    """Convolutions (grouped and not), batch normalization, pooling, noise."""
    x = lax.conv_general_dilated(images, params["first"], (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    x = (x - x.mean((0, 1, 2))) * lax.rsqrt(x.var((0, 1, 2)) + 1e-5)
    x = jax.nn.relu(x) + 0.1 * jax.random.normal(key, x.shape)
    x = lax.conv_general_dilated(
        x, params["second"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=4
    )
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return jnp.square(x.mean((1, 2)) @ params["head"]).mean()


def _expert_model(params, x, key):
    """Top-2 routing by sorting, and a product with ragged groups."""
    gates, experts = lax.top_k(jax.nn.softmax(x @ params["router"]), 2)
    order = jnp.argsort(experts.reshape(-1))
    sizes = jnp.bincount(experts.reshape(-1), length=3)
    hidden = lax.ragged_dot(jnp.repeat(x, 2, 0)[order], params["experts"], sizes)
    out = jnp.zeros_like(hidden).at[order].set(hidden).reshape(-1, 2, x.shape[-1])
    noise = jax.random.categorical(key, out[:, 0]).astype(x.dtype)
    return ((out * gates[..., None]).sum((1, 2)) + noise).var()


def _shapes(**shapes):
    return {name: jax.ShapeDtypeStruct(shape, np.float32) for name, shape in shapes.items()}


_TOKENS = jax.ShapeDtypeStruct((4, 8), np.int32)
_PROGRAMS = {
    "language model": (_language_model, _shapes(embedding=(32, 16), layers=(3, 4, 16, 16)), _TOKENS),
    "image model": (
        _image_model,
        _shapes(first=(3, 3, 3, 8), second=(3, 3, 2, 12), head=(12, 5)),
        jax.ShapeDtypeStruct((4, 16, 16, 3), np.float32),
    ),
    "mixture of experts": (
        _expert_model,
        _shapes(router=(6, 3), experts=(3, 6, 6)),
        jax.ShapeDtypeStruct((10, 6), np.float32),
    ),
}


@pytest.mark.parametrize("name", _PROGRAMS)
def test_no_primitive_of_a_training_step_lacks_a_row(name):
    loss, params, batch = _PROGRAMS[name]
    key = jax.eval_shape(lambda: jax.random.key(0))
    block = flatten(jax.make_jaxpr(_step(loss))(params, batch, key))
    met = {e.name for e in walk(block)}
    assert len(met) > 30
    assert met - set(table.ROWS) <= _DESCENDED_INTO
