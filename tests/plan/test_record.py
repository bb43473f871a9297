"""The record of a plan: names for ids, checks, differences and pins."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from shardwright import _compat
from shardwright.plan.amounts import bytes_text, flops_text, percent_text, seconds_text
from shardwright.plan.check import check, leaf_differences, problems
from shardwright.plan.decision import AxisPlan, Decision
from shardwright.plan.diff import diff
from shardwright.plan.named import AxisRecord, DecisionRecord, by_id, by_name
from shardwright.plan.pins import parse_pin_spec, resolve_pins
from shardwright.program.ir import Aval, Leaf, Role
from tests.plan.sample import NAMES, decision, estimate, record


def leaf(name, shape, dtype="float32", role=Role.PARAMETER):
    return Leaf(name, Aval(tuple(shape), np.dtype(dtype)), role)


# Decisions by name


@pytest.mark.parametrize(("plain", "named"), [(Decision, DecisionRecord), (AxisPlan, AxisRecord)])
def test_every_field_of_a_decision_is_recorded(plain, named):
    assert [f.name for f in dataclasses.fields(plain)] == [f.name for f in dataclasses.fields(named)]


def test_a_decision_survives_other_numbers_of_its_classes():
    named = by_name(decision(), NAMES)
    assert [a.compute for a in named.axes] == [("batch",), ("state['w'].1",)]
    assert by_id(named, {n: i for i, n in NAMES.items()}) == decision()
    elsewhere = by_id(named, {"state['w'].1": 7, "batch": 5, "state['w'].0": 6, "other": 0})
    assert [a.compute for a in elsewhere.axes] == [(5,), (7,)] and elsewhere.axes[0].store == (6,)
    assert by_name(elsewhere, {5: "batch", 6: "state['w'].0", 7: "state['w'].1"}) == named


def test_an_unknown_class_is_named():
    with pytest.raises(ValueError, match=r"lays 'batch' on mesh axis 'd'.*it has state\['w'\]\.0, .*plan again"):
        by_id(by_name(decision(), NAMES), {"state['w'].0": 0, "state['w'].1": 1})


# Is it for this program


def given(**changes):
    """The sample's leaves, some changed: name → leaf, or None to leave it out."""
    leaves = {
        "state['w']": leaf("state['w']", (512, 1024)),
        "batch['x']": leaf("batch['x']", (64, 512), jnp.bfloat16, Role.BATCH),
    }
    leaves.update(changes)
    return tuple(x for x in leaves.values() if x is not None)


def test_the_same_program_passes():
    check(record(), record().fingerprint, given())
    assert leaf_differences(record().program.inputs, given()) == ()


@pytest.mark.parametrize(
    ("leaves", "said"),
    [
        (given(**{"batch['x']": None}), r"batch\['x'\]: planned as bfloat16\[64, 512\], not given"),
        (given(extra=leaf("extra", (3,))), r"extra: given as float32\[3\], not in the plan"),
        (
            given(**{"state['w']": leaf("state['w']", (512, 2048))}),
            r"planned as float32\[512, 1024\], given as float32\[512, 2048\]",
        ),
        (given(**{"state['w']": leaf("state['w']", (512, 1024), "float16")}), r"given as float16\[512, 1024\]"),
    ],
)
def test_other_arguments_are_listed(leaves, said):
    with pytest.raises(ValueError, match=f"(?s)step's arguments changed:.*{said}.*plan again"):
        check(record(), "ffff", leaves)


def test_another_role_is_no_other_argument():
    leaves = given(**{"state['w']": leaf("state['w']", (512, 1024), role=Role.BATCH)})
    said = r"(?s)the step uses them otherwise:\n  state\['w'\]: planned as parameter, now it is batch\n.*Plan again"
    with pytest.raises(ValueError, match=said) as raised:
        check(record(jax_version=_compat.JAX_VERSION), "ffff", leaves)
    assert "arguments changed" not in str(raised.value)


def test_many_differences_are_counted():
    many = {f"p{i}": leaf(f"p{i}", (2,)) for i in range(20)}
    with pytest.raises(ValueError, match="and 12 more"):
        check(record(), "ffff", given(**many))


def test_another_step_with_the_same_arguments():
    here = record(jax_version=_compat.JAX_VERSION)
    with pytest.raises(ValueError, match=r"the step itself changed.*Plan again"):
        check(here, "ffff", given())
    with pytest.raises(ValueError, match=r"made with jax 0\.0\.1.*Plan again, or use that jax"):
        check(record(jax_version="0.0.1"), "ffff", given())


# Is it consistent


def with_program(**changes):
    return record(programs=(dataclasses.replace(record().program, **changes),))


def with_leaf(**changes):
    w, x = record().program.inputs
    return with_program(inputs=(dataclasses.replace(w, **changes), x))


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (record(num_devices=4), "does not hold 4 devices"),
        (record(programs=()), "0 programs, one wanted"),
        (with_program(mesh=(("d", 4), ("t", 2))), "the decision is for the mesh {d: 2, t: 4}"),
        (with_program(mesh=(("d", 2), ("d", 4))), "repeats an axis"),
        (with_leaf(spec=(("z",), ())), "lies on axes z, and the mesh has d, t"),
        (with_leaf(spec=(("d",), ("d",))), "lies on axes d, d"),
        (with_leaf(spec=((),)), "has 2 dims, 2 names for them and a placement of 1"),
        (with_leaf(role="hero"), "unknown role 'hero'"),
    ],
)
def test_contradictions_are_found(broken, said):
    assert any(said in p for p in problems(broken)), problems(broken)


def test_the_sample_is_consistent():
    assert problems(record()) == ()


# Differences


def test_a_plan_does_not_differ_from_itself():
    same = diff(record(), record())
    assert not same and str(same) == "the plans are the same"


def test_a_difference_names_what_differs_and_nothing_else():
    w, x = record().program.inputs
    moved = dataclasses.replace(w, spec=((), ("t",)))
    axes = record().program.decision.axes
    other = dataclasses.replace(
        record().program.decision, axes=(dataclasses.replace(axes[0], store=()), axes[1]), pins={}
    )
    changed = record(
        memory_limit_bytes=8_000_000,
        estimate=estimate(0.025, 3_500_000),
        programs=(dataclasses.replace(record().program, inputs=(moved, x), decision=other),),
    )
    found = diff(record(), changed)
    assert [(c.what, c.before, c.after) for c in found.leaves] == [
        ("state['w']", "float32[512_d, 1024_t]", "float32[512, 1024_t]")
    ]
    assert [c.what for c in found.classes] == ["d store", "pin batch['x']"] and found.classes[
        0
    ].before == "state['w'].0"
    assert [(c.what, c.before, c.after) for c in found.setting] == [("memory limit", "4.00 MB", "8.00 MB")]
    assert {c.what: (c.before, c.after) for c in found.estimate} == {
        "seconds": ("12.5 ms", "25.0 ms"),
        "compute": ("6.00 ms", "18.5 ms"),
        "peak memory": ("3.00 MB", "3.50 MB"),
        "memory of temporary": ("2.73 MB", "3.23 MB"),
    }
    assert not found.program
    text = str(found)
    assert "float32[512_d, 1024_t] → float32[512, 1024_t]" in text and "state['w'].0 → (none)" in text


def test_leaves_of_one_plan_alone_are_shown():
    w, x = record().program.inputs
    other = record(fingerprint="another", programs=(dataclasses.replace(record().program, inputs=(w,)),))
    found = diff(record(), other)
    assert found.program and [(c.what, c.after) for c in found.leaves] == [(x.name, "")]


# Pins


@pytest.mark.parametrize(
    ("given", "pin"),
    [
        (P("t"), (("t",),)),
        (P(None, "t"), ((), ("t",))),
        (P(("d", "t"), None), (("d", "t"), ())),
        (P(P.UNCONSTRAINED, "t"), (None, ("t",))),
        (P(), ()),
        ((None, "t"), ((), ("t",))),
        ("P(None, 't')", ((), ("t",))),
        ('PartitionSpec(("d","t"), None)', (("d", "t"), ())),
        (" P(P.UNCONSTRAINED, 'd') ", (None, ("d",))),
        ("jax.sharding.PartitionSpec('d')", (("d",),)),
        ("P()", ()),
    ],
)
def test_pins_are_read(given, pin):
    assert parse_pin_spec(given) == pin


@pytest.mark.parametrize(
    "given",
    [
        "t",
        "P(t)",
        "P('t'",
        "Q('t')",
        "P('t', x=1)",
        "P(__import__('os'))",
        3,
        None,
        (("t", 1),),
        P("t", "t"),
        "P(3)",
        "",
        "f(1)('t')",
    ],
)
def test_what_is_no_pin_is_refused(given):
    with pytest.raises(ValueError, match=r"pin.*Write for example P\('d'\)"):
        parse_pin_spec(given)


LEAVES = (leaf("state[0]['emb']", (1024, 256)), leaf("state[0]['bias']", (17,)), leaf("out[1]", (), role=Role.RESULT))


def test_pins_are_resolved_to_every_dim():
    found = resolve_pins({"state[0]['emb']": P("t"), "out[1]": P()}, LEAVES, {"d": 2, "t": 4})
    assert found == {"state[0]['emb']": (("t",), ()), "out[1]": ()}
    assert resolve_pins({"state[0]['emb']": P(None, P.UNCONSTRAINED)}, LEAVES, {"t": 4}) == {
        "state[0]['emb']": ((), None)
    }


@pytest.mark.parametrize(
    ("pins", "said"),
    [
        ({"state[0]['enb']": P("t")}, r"no leaf \"state\[0\]\['enb'\]\".*Did you mean \"state\[0\]\['emb'\]\""),
        ({"state[0]['emb']": P("z")}, r"mesh \{'d': 2, 't': 4\} has no axis 'z'.*pin to 'd', 't'"),
        ({"state[0]['emb']": P("t", None, "d")}, "names 3 dims, the leaf has 2"),
        ({"state[0]['bias']": P("t")}, r"dim 0 of \[17\] does not divide into 4 parts"),
    ],
)
def test_pins_that_contradict_are_refused(pins, said):
    with pytest.raises(ValueError, match=said):
        resolve_pins(pins, LEAVES, {"d": 2, "t": 4})


# Amounts


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (bytes_text(0), "0 B"),
        (bytes_text(999), "999 B"),
        (bytes_text(999.6), "1.00 kB"),
        (bytes_text(999_600), "1.00 MB"),
        (bytes_text(80e9), "80.0 GB"),
        (bytes_text(123_456_789), "123 MB"),
        (bytes_text(5e18), "5000 PB"),
        (seconds_text(0), "0 s"),
        (seconds_text(3600), "3600 s"),
        (seconds_text(0.99999), "1.00 s"),
        (seconds_text(0.000999), "999 µs"),
        (seconds_text(3e-9), "3.00 ns"),
        (seconds_text(float("inf")), "unknown"),
        (flops_text(3.2e12), "3.20 Tflop"),
        (percent_text(0), "0 %"),
        (percent_text(0.0004), "<0.1 %"),
        (percent_text(0.0999), "10 %"),
        (percent_text(1.5), "150 %"),
    ],
)
def test_amounts(text, wanted):
    assert text == wanted
