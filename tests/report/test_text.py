"""A plan as text: every figure of it in its place, at most 100 columns, from the record alone."""

from __future__ import annotations

import dataclasses

import pytest

from shardwright.plan.files import load, save
from shardwright.plan.record import CollectiveRecord, LeafRecord
from shardwright.report.recording import record_of
from shardwright.report.sources import short_classes, short_source
from shardwright.report.text import WIDTH, plan_text
from shardwright.report.warnings import warnings_of
from tests.plan.sample import record
from tests.report.planned import PLANS, mlp, mlp_args, planned


def recorded(plan):
    p = planned(mlp, mlp_args(), **plan)
    warnings = warnings_of(p.program, p.device, p.estimate)
    return p, record_of(
        p.program,
        p.classes,
        p.decision,
        p.device,
        p.estimate,
        cluster="cpu:8",
        memory_limit_bytes=10**9,
        warnings=warnings,
    )


def line(text, start):
    """The only line that starts so, with single spaces."""
    lines = (" ".join(x.split()) for x in text.splitlines())
    (found,) = (x for x in lines if x.startswith(start))
    return found


def test_the_sample_in_full():
    text = plan_text(record())
    assert text.splitlines()[0] == "Plan of 'step' for cpu:8: mesh d=2 × t=4, 8 devices"
    assert line(text, "least") == "least seconds within 4.00 MB a device"
    assert line(text, "predicted") == (
        "predicted step 12.5 ms = compute 6.00 ms + communication 6.50 ms; 2.50 Gflop a device"
    )
    assert "axis d of 2  cuts batch (64); at rest, and where none of these occurs, w.0 (512)" in text
    assert line(text, "axis t") == "axis t of 4 cuts w.1 (1024)"
    assert line(text, "pinned") == "pinned batch['x'] on (d, free)"
    # 512 × 1024 × 4 bytes, an eighth of it on a device; bfloat16 has two bytes.
    assert line(text, "parameter [") == "parameter [w.0_d, w.1_t] 262 kB 2.10 MB state['w']"
    assert line(text, "batch [") == "batch [batch_d, 512] 32.8 kB 65.5 kB batch['x']"
    assert line(text, "Memory") == "Memory of one device: 3.00 MB of 4.00 MB (75 %)"
    assert line(text, "temporary") == "temporary 2.73 MB 91 %"
    assert line(text, "Collectives") == "Collectives: each device sends 394 kB in a step, 6.50 ms"
    assert line(text, "Warnings") == "Warnings: 1"
    assert "fallback: model.py:30: 'sort' runs whole on every device. Pin its operand." in text
    assert line(text, "d=8") == "d=8: batch: 20.0 ms a step, 2.00 MB a device, 5.00 MB sent. slower"
    assert line(text, "t=8") == "t=8: state['w'].1: not priced. batch does not divide"
    assert line(text, "note") == "note: traced in two parts"


def test_collectives_of_one_line_and_kind_are_one_row_the_largest_first():
    rows = [" ".join(x.split()) for x in plan_text(record()).splitlines() if "model.py:12" in x or "(inside jax)" in x]
    assert rows == [
        "all_gather d 3 263 kB 4.50 ms model.py:12 dot_general, add",
        "reduce_scatter d 1 131 kB 2.00 ms (inside jax) mul",
    ]


def test_a_plan_over_its_limit_says_so():
    assert "OVER THE LIMIT" in plan_text(record(memory_limit_bytes=1000)) and "OVER" not in plan_text(record())


def test_no_section_stands_empty():
    e = dataclasses.replace(record().estimate, collectives=(), bytes_sent=0.0)
    text = plan_text(record(estimate=e, warnings=(), searched=(), notes=()))
    assert "Collectives: none" in text
    assert not any(word in text for word in ("Warnings", "Not taken", "note:"))


def test_much_of_everything_is_capped_and_fits():
    rows = tuple(
        CollectiveRecord(
            "reduce_scatter", "data+tensor", 1e9 / (i + 1), 10**6, 0.1, f"{'deep' * 9}.py:{i}", "w" * 70, (8,), "f"
        )
        for i in range(40)
    )
    leaves = tuple(
        LeafRecord(
            f"state[0]['{'block' * 9}_{i}']['k']", (8 * i + 8, 64), "float32", "parameter", ("batch", "batch"), ((), ())
        )
        for i in range(60)
    )
    program = dataclasses.replace(record().program, inputs=leaves)
    e = dataclasses.replace(record().estimate, collectives=rows)
    warnings = tuple(dataclasses.replace(record().warnings[0], message="long words " * 40) for _ in range(3))
    searched = record().searched * 9
    text = plan_text(record(programs=(program,), estimate=e, warnings=warnings, searched=searched))
    assert max(map(len, text.splitlines())) <= WIDTH == 100
    assert "24 more lines" in text and "and 37 more placements" in text and "and 12 more" in text


@pytest.mark.parametrize("name", PLANS)
def test_a_real_plan_prints_the_same_from_its_file(name, tmp_path):
    p, made = recorded(PLANS[name])
    save(made, tmp_path / "plan.json")
    text = plan_text(load(tmp_path / "plan.json"))
    assert text == plan_text(made) and max(map(len, text.splitlines())) <= WIDTH
    assert load(tmp_path / "plan.json") == made
    assert made.estimate.bytes_sent == p.estimate.bytes_sent > 0 and made.num_devices == 8
    assert "test_text.py" not in text and "planned.py:" in text


def test_a_record_holds_where_leaves_lie():
    _, made = recorded(PLANS["two axes"])
    lies = {leaf.name: leaf.spec for leaf in made.program.inputs}
    assert lies == {"w['a']": (("d",), ("t",)), "w['b']": (("t",), ()), "x": (("d",), ())}
    assert {leaf.name: leaf.spec for leaf in made.program.outputs}["out[0]['a']"] == (("d",), ("t",))
    assert sorted(made.program.classes.values()) == [64, 256, 512]


# Names and places


@pytest.mark.parametrize(
    ("line", "short"),
    [
        ("/home/me/model.py:12:3 (loss.<locals>.layer)", "model.py:12"),
        ("model.py:12 (loss)", "model.py:12"),
        ("C:\\me\\model.py:12:3 (f)", "model.py:12"),
        ("<stdin>:1:0 (<lambda>)", "<stdin>:1"),
        ("", ""),
        ("unknown", "unknown"),
    ],
)
def test_short_source(line, short):
    assert short_source(line) == short


def test_short_classes():
    names = ["batch", "tokens.1", "state[0]['emb'].1", "state.params['a']['kernel'].0", "state.params['b']['kernel'].0"]
    assert list(short_classes(names).values()) == ["batch", "tokens.1", "emb.1", "a.kernel.0", "b.kernel.0"]
    assert short_classes(["state['w'].1", "state['w'].1'2"]) == {"state['w'].1": "w.1", "state['w'].1'2": "w.1'2"}
    assert list(short_classes(["ws[0].1", "ws[1].0"]).values()) == ["ws.0.1", "ws.1.0"]  # never a bare number
    boxed = ["state[0]['layers'][1]['kernel'].value.0", "state[0]['layers'][2]['kernel'].value.0", "m['emb'].value.1"]
    assert list(short_classes(boxed).values()) == ["layers.1.kernel.0", "layers.2.kernel.0", "emb.1"]
    assert short_classes(["x['a.b'].1", "x['a']['b'].1"]) == {n: n for n in ("x['a.b'].1", "x['a']['b'].1")}


def test_repeated_layers_are_one_line_of_the_leaves():
    w, *_ = record().program.inputs
    layers = tuple(dataclasses.replace(w, name=f"state.params['Dense_{i}']['kernel']") for i in range(6))
    long = tuple(
        dataclasses.replace(w, name=f"state.opt_state[0].{m}['a_layer_of_a_long_name_{i}']['kernel']", role="optimizer")
        for m in ("mu", "nu")
        for i in range(6)
    )
    text = plan_text(record(programs=(dataclasses.replace(record().program, inputs=(*layers, *long), outputs=()),)))
    lines = text[text.index("Leaves:") :].split("\n\n")[0].splitlines()
    assert [line.split()[-1] for line in lines[1:]] == [
        "state.params['Dense_0…5']['kernel']",
        "MB",
        "state.opt_state[0].{mu,nu}['a_layer_of_a_long_name_0…5']['kernel']",
    ]
    assert max(map(len, lines)) <= WIDTH
