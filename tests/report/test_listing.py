"""The per-device program as text."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import pytest

from shardwright.partition.device import COLLECTIVES, Move, walk
from shardwright.report.listing import dtype_text, program_text
from shardwright.report.prices import prices
from tests.report.planned import PLANS, floats, mlp, mlp_args, planned

NAMES = re.compile(r"\b([a-z]{1,3}): ")


def listed(p, **options):
    return program_text(p.program, p.classes, p.device, p.estimate, **options)


def statement(text, operation):
    """The only line with this operation, without its comment."""
    (found,) = (x for x in text.splitlines() if f"= {operation}(" in x)
    return found.split("  #")[0].strip()


@pytest.mark.parametrize("name", PLANS)
def test_every_operation_has_a_line_and_every_value_a_name_of_its_own(name):
    p = planned(mlp, mlp_args(), **PLANS[name])
    text = listed(p)
    lines = text.splitlines()
    operations = [x for x in lines if " = " in x]
    assert len(operations) == sum(1 for _ in walk(p.device.block))
    defined = [n for x in lines for n in NAMES.findall(x.split("  #")[0])]
    assert len(defined) == len(set(defined)) == len(operations) + len(p.program.inputs)
    assert listed(p) == text


def test_lines_say_shapes_cuts_bytes_and_places():
    p = planned(mlp, mlp_args(), **PLANS["two axes"])
    text = listed(p)
    num_operations = sum(1 for _ in walk(p.device.block))  # 28; derivatives take fewer in newer jax
    assert text.splitlines()[0] == (
        f"# Runs on each of 8 devices, mesh d=2 × t=4. Operations: {num_operations}, sent by collectives: 311 kB in 5."
    )
    assert "input a: f32[128,128]  # w['a'] on (d, t)" in text
    # w['a'], 256 × 512 floats: half of its part on t is sent by each of the two devices of d.
    assert re.search(r"d: f32\[256,128\] = all_gather\(a, axis=d, dim=0\)  # 65\.5 kB  planned\.py:\d+", text)
    assert re.fullmatch(r"\w: f32\[128,128\] = reduce_scatter\(\w, axis=d, dim=0\)", statement(text, "reduce_scatter"))
    assert "h: f32[32,256] {U_t} = dot_general(f, b, cut=(batch/d, a.1/t))" in text
    assert re.search(r"^output \w+  # out\[0\]\['a'\] on \(d, t\)$", text, re.MULTILINE)


@pytest.mark.parametrize("name", PLANS)
def test_printed_bytes_are_priced_bytes(name):
    p = planned(mlp, mlp_args(), **PLANS[name])
    found = prices(p.device, p.estimate)
    moves = [op for op, _ in walk(p.device.block) if isinstance(op, Move) and op.kind in COLLECTIVES]
    assert list(found) == moves and len(moves) > 0
    assert sum(c.bytes for c in found.values()) == p.estimate.bytes_sent


def test_folding_hides_elementwise_operations_and_nothing_else():
    p = planned(mlp, mlp_args(), **PLANS["two axes"])
    full, folded = listed(p), listed(p, fold=True)
    kept = ("dot_general(", "all_gather(", "all_reduce(", "reduce_scatter(", "reduce_sum(")
    assert [sum(k in x for x in folded.splitlines()) for k in kept] == [
        sum(k in x for x in full.splitlines()) for k in kept
    ]
    assert "tanh(" in full and "tanh(" not in folded and "… 2 elementwise operations (e)" in folded
    hidden = sum(int(n) - 1 for n in re.findall(r"… (\d+) elementwise", folded))
    assert len(folded.splitlines()) == len(full.splitlines()) - hidden
    for x in folded.splitlines():  # what an operation reads has been shown before
        if " = " in x and "dot_general(" in x:
            arguments = re.findall(r"dot_general\((\w+), (\w+)", x)[0]
            assert all(re.search(rf"\b{a}: ", folded[: folded.index(x)]) for a in arguments)


def scanned(w, x):
    def layer(h, w):
        return jnp.tanh(h @ w), h.sum()

    return jax.lax.scan(layer, x, w)


def test_a_loop_shows_its_turns():
    args = {"params": floats(3, 64, 64), "x": floats(16, 64)}
    p = planned(scanned, args, {"x": 8}, {"x": [("x", 0)]})
    text = listed(p)
    assert re.search(r"^scan, 3 turns:  # test_listing\.py:\d+$", text, re.MULTILINE)
    assert re.search(r"^  carried    \w+: f32\[2,64\] = b$", text, re.MULTILINE)
    assert re.search(r"^  each turn  \w+: f32\[64,64\] = a\[turn\]$", text, re.MULTILINE)
    assert re.search(r"^  next turn  \w+ = \w+$", text, re.MULTILINE)
    assert re.search(r"^last \w+: f32\[2,64\] = \w+$", text, re.MULTILINE)
    assert re.search(r"^stacked \w+: f32\[3\].* = \w+ of every turn$", text, re.MULTILINE)


def test_a_sharded_weight_is_gathered_in_every_turn():
    args = {"params": floats(3, 256, 256), "x": floats(16, 256)}
    p = planned(scanned, args, {"x": 8}, {"x": [("x", 0)]}, {"x": [("params", 1)]})
    # 256 × 256 floats, of which a device sends 7/8: 229 kB in each of three turns.
    assert re.search(
        r"^  \w+: f32\[256,256\] = all_gather\(\w+, axis=x, dim=0\)  # 229 kB, 3 times  ", listed(p), re.MULTILINE
    )


def test_while_and_cond():
    def step(n, x):
        n, x = jax.lax.while_loop(lambda c: c[0] < 5, lambda c: (c[0] + 1, jnp.sin(c[1]) * x), (n, x))
        return jax.lax.cond(n > 0, lambda x: x + 1, lambda x: x * 2, x)

    p = planned(step, {"n": jax.ShapeDtypeStruct((), jnp.int32), "x": floats(16, 64)}, {"x": 8}, {"x": [("x", 0)]})
    text = listed(p)
    for pattern in (
        "while:  #",
        "  condition:$",
        "    go on if f$",
        "  body:$",
        "    next turn d = ",
        "one of, by ",
        "  case 1:$",
    ):
        assert re.search(f"^.*{pattern}", text, re.MULTILINE), f"{pattern} in\n{text}"
    assert "    f: bool[] = lt(d, 5)" in text


@pytest.mark.parametrize(
    ("dtype", "text"),
    [
        ("float32", "f32"),
        ("bfloat16", "bf16"),
        ("int8", "i8"),
        ("uint32", "u32"),
        ("bool", "bool"),
        ("complex64", "c64"),
        ("key<fry>", "key<fry>"),
    ],
)
def test_dtypes(dtype, text):
    assert dtype_text(dtype) == text
