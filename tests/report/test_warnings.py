"""Warnings: each kind on a program that has it, and silence on ordinary plans."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from shardwright.partition.device import COLLECTIVES, Move, walk
from shardwright.report.warnings import warnings_of
from tests.report.planned import PLANS, floats, mlp, mlp_args, planned

BATCH = {"x": [("x", 0)]}
EIGHT = {"x": 8}


def warned(p):
    return warnings_of(p.program, p.device, p.estimate)


# Ordinary plans


@pytest.mark.parametrize("name", PLANS)
def test_ordinary_plans_of_a_perceptron_are_silent(name):
    p = planned(mlp, mlp_args(), **PLANS[name])
    assert any(isinstance(op, Move) and op.kind in COLLECTIVES for op, _ in walk(p.device.block))
    assert warned(p) == ()


LAYERS, WIDTH, HEADS, HEAD, HIDDEN, VOCABULARY, SEQUENCE, ROWS = 2, 128, 8, 16, 512, 512, 64, 16


def transformer(params, tokens):
    """One step of gradient descent on a causal language model."""

    def norm(x):
        return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)

    def layer(x, w):
        q, k, v = (jnp.einsum("bsd,dhk->bshk", norm(x), w[n]) for n in ("wq", "wk", "wv"))
        scores = jnp.einsum("bshk,bthk->bhst", q, k) * HEAD**-0.5
        seen = jnp.tril(jnp.ones((SEQUENCE, SEQUENCE), bool))
        mixed = jnp.einsum("bhst,bthk->bshk", jax.nn.softmax(jnp.where(seen, scores, -1e9)), v)
        x = x + jnp.einsum("bshk,hkd->bsd", mixed, w["wo"])
        return x + jax.nn.gelu(norm(x) @ w["w1"]) @ w["w2"], None

    def loss(params):
        layers = {n: w for n, w in params.items() if n != "emb"}
        x, _ = jax.lax.scan(layer, params["emb"][tokens[:, :-1]], layers)
        chances = jax.nn.log_softmax(norm(x) @ params["emb"].T)
        return -jnp.take_along_axis(chances, tokens[:, 1:, None], -1).mean()

    value, gradient = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient), value


def transformer_args():
    shapes = {
        "emb": (VOCABULARY, WIDTH),
        "wq": (LAYERS, WIDTH, HEADS, HEAD),
        "wk": (LAYERS, WIDTH, HEADS, HEAD),
        "wv": (LAYERS, WIDTH, HEADS, HEAD),
        "wo": (LAYERS, HEADS, HEAD, WIDTH),
        "w1": (LAYERS, WIDTH, HIDDEN),
        "w2": (LAYERS, HIDDEN, WIDTH),
    }
    tokens = jax.ShapeDtypeStruct((ROWS, SEQUENCE + 1), jnp.int32)
    return {"params": {n: floats(*s) for n, s in shapes.items()}, "tokens": tokens}


TOKENS, WIDE = ("tokens", 0), ("params['w1']", 1)
TENSOR = [("params['wq']", 2), ("params['w1']", 2), ("params['emb']", 0)]


@pytest.mark.parametrize(
    ("mesh", "compute", "store"),
    [
        (EIGHT, {"x": [TOKENS]}, {}),
        (EIGHT, {"x": [TOKENS]}, {"x": [WIDE]}),
        (EIGHT, {"x": TENSOR}, {}),
        ({"d": 2, "t": 4}, {"d": [TOKENS], "t": TENSOR}, {"d": [WIDE]}),
    ],
    ids=["data parallel", "fsdp", "tensor parallel", "fsdp and tensor parallel"],
)
def test_ordinary_plans_of_a_transformer_are_silent(mesh, compute, store):
    p = planned(transformer, transformer_args(), mesh, compute, store)
    assert p.estimate.bytes_sent > 0 and warned(p) == ()


# Fallbacks


def opaque(x):
    return jax.pure_callback(lambda a: a, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def test_a_primitive_without_a_rule_is_told_with_its_price():
    p = planned(lambda x: opaque(x @ x) * 2, {"x": floats(8, 128, 128)}, EIGHT, BATCH)
    (w,) = [w for w in warned(p) if w.kind == "fallback"]
    # 8 × 128 × 128 floats are gathered, of which a device sends 7/8.
    assert w.bytes == 8 * 128 * 128 * 4 * 7 / 8 and w.seconds > 0
    assert "'pure_callback'" in w.message and "whole on every device" in w.message and "459 kB" in w.message
    assert w.source.startswith("test_warnings.py:") and "rule for 'pure_callback'" in w.remedy
    assert str(w) == f"{w.source}: {w.message}. {w.remedy}"


def test_a_primitive_without_a_rule_is_told_even_if_nothing_moves():
    p = planned(lambda x, s: (x * 2, opaque(s)), {"x": floats(64, 64), "s": floats(4, 4)}, EIGHT, BATCH)
    (w,) = warned(p)
    assert w.kind == "fallback" and w.bytes == 0


@pytest.mark.parametrize(("columns", "effect"), [(64, "cut along another dim instead"), (63, "whole on every device")])
def test_a_dim_that_cannot_be_cut_is_told(columns, effect):
    p = planned(lambda x: jnp.cumsum(jnp.sin(x), 0), {"x": floats(4096, columns)}, EIGHT, BATCH)
    (w,) = warned(p)
    assert w.kind == "fallback" and "'cumsum'" in w.message and effect in w.message and w.bytes > 0


# Gathers


def test_a_pin_that_gathers_activations_is_told():
    mesh = Mesh(np.array(jax.devices()), ("x",), axis_types=(AxisType.Auto,))

    def step(w, x):
        h = jax.lax.with_sharding_constraint(jnp.tanh(x @ w), NamedSharding(mesh, P(None, None)))
        return (h @ w).sum()

    p = planned(step, {"w": floats(256, 256), "x": floats(1024, 256)}, EIGHT, BATCH)
    (w,) = [w for w in warned(p) if w.kind == "gather"]
    assert w.bytes == 1024 * 256 * 4 * 7 / 8 and "[1024, 256]" in w.message and "P.UNCONSTRAINED" in w.remedy


def test_a_result_that_must_be_whole_is_told():
    # 60 rows do not divide by 8, so they leave whole.
    p = planned(lambda w, x: jnp.tanh(x @ w), {"w": floats(64, 4096), "x": floats(60, 64)}, EIGHT, BATCH)
    (w,) = [w for w in warned(p) if w.kind == "gather"]
    assert "the result out is made whole" in w.message and "pins={'out'" in w.remedy


def test_a_gather_for_a_product_that_is_cut_is_not_told():
    """All pairs of rows: each device needs every row, and no work is done twice."""
    p = planned(lambda x: (x @ x.T).sum(), {"x": floats(1024, 256)}, EIGHT, BATCH)
    gathers = [op for op, _ in walk(p.device.block) if isinstance(op, Move) and op.kind == "all_gather"]
    assert gathers and warned(p) == ()


# Repeated work


HALF_IDLE = {"d": 2, "t": 4}, {"d": [("x", 0)]}


def test_heavy_work_that_is_not_cut_is_told():
    step = {"w": floats(256, 256), "v": floats(256, 255), "x": floats(64, 256)}
    p = planned(lambda w, v, x: ((x @ w).sum(), (w @ v).sum()), step, EIGHT, BATCH)
    (w,) = warned(p)
    # x @ w is cut in 8: 64·256·256 / 8 products a device, beside 256·256·255 for w @ v, of which 7/8 are repeated.
    share = (256 * 256 * 255 * 7 / 8) / (256 * 256 * 255 + 64 * 256 * 256 / 8)
    assert w.kind == "redundant" and "'dot_general' is not cut on axis x" in w.message
    assert f"{100 * share:.0f} %" in w.message


def test_an_axis_that_cuts_nothing_is_told():
    p = planned(lambda w, x: x @ w, {"w": floats(512, 511), "x": floats(512, 512)}, *HALF_IDLE)
    (w,) = warned(p)
    assert w.kind == "redundant" and "not cut on axis t: 75 %" in w.message
    assert w.seconds == pytest.approx(0.75 * p.estimate.compute_seconds)


def test_repeated_work_of_a_tiny_program_is_not_told():
    """To share it would take collectives of about the same time."""
    assert warned(planned(lambda w, x: x @ w, {"w": floats(64, 63), "x": floats(64, 64)}, *HALF_IDLE)) == ()


# Padding


@pytest.mark.parametrize(("rows", "is_told"), [(5, True), (6, True), (7, False), (8, False), (13, True), (15, False)])
def test_padding_is_told_from_a_fifth(rows, is_told):
    """Over 4 devices 5 rows become 8 (60 % more), 6 become 8 (33 %), 7 become 8 (14 %), 13 become 16 (23 %)."""
    p = planned(lambda w, x: (x @ w).sum(), {"w": floats(64, 64), "x": floats(rows, 64)}, {"x": 4}, BATCH)
    told = [w for w in warned(p) if w.kind == "padding"]
    assert bool(told) == is_told
    if told:
        padded = -(-rows // 4) * 4
        assert (
            f"a dim of {rows} is cut on axis x and padded to {padded}: {100 * (padded / rows - 1):.0f} %"
            in told[0].message
        )


def test_the_most_expensive_comes_first():
    def step(x, y):
        return opaque(x + 1), opaque(y + 1)

    p = planned(step, {"x": floats(8, 32, 32), "y": floats(8, 128, 128)}, EIGHT, {"x": [("x", 0), ("y", 0)]})
    bytes_ = [w.bytes for w in warned(p)]
    assert len(bytes_) >= 1 and bytes_ == sorted(bytes_, reverse=True)


@pytest.mark.parametrize(("words", "is_told"), [(1001, True), (1000, False)])
def test_state_that_no_axis_divides_is_told(words, is_told):
    def step(w, ids):
        gradient = jax.grad(lambda w: jnp.mean((w["table"][ids] @ w["up"]) ** 2))(w)
        return jax.tree.map(lambda p, g: p - 0.1 * g, w, gradient)

    args = {"w": {"table": floats(words, 63), "up": floats(63, 512)}, "ids": jax.ShapeDtypeStruct((64,), jnp.int32)}
    p = planned(step, args, EIGHT, {"x": [("ids", 0)]}, {"x": [("w['table']", 0), ("w['up']", 1)]})
    found = [w for w in warned(p) if w.kind == "whole"]
    assert len(found) == is_told
    for w in found:
        assert "w['table'], float32[1001, 63], lies whole on axis x: no dim of it divides into 8 parts" in w.message
        assert "252 kB of each device" in w.message and "multiple of 8" in w.remedy
