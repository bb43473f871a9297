"""Why candidates lost."""

from __future__ import annotations

import dataclasses

import pytest

from shardwright.plan.decision import AxisPlan, Decision
from shardwright.program.ir import Role
from shardwright.report.candidates import decision_text, searched_of
from tests.report.planned import PLANS, mlp, mlp_args, planned

TAKEN = planned(mlp, mlp_args(), **PLANS["data parallel"])
LOST = planned(mlp, mlp_args(), **PLANS["tensor parallel"])
LIMIT = 10**9


def priced(seconds=1.0, peak_bytes=1000):
    e = TAKEN.estimate
    return dataclasses.replace(e, seconds=seconds, memory=dataclasses.replace(e.memory, peak_bytes=peak_bytes))


def searched(price, taken, **options):
    options = {"limit_bytes": LIMIT, **options}
    return searched_of([(LOST.decision, price)], (TAKEN.decision, taken), TAKEN.classes, **options)


@pytest.mark.parametrize(
    ("price", "options", "feasible", "reason"),
    [
        (priced(1.25), {}, True, "25 % slower"),
        (priced(0.5, LIMIT + 2000), {}, False, "Does not fit: 2.00 kB over the limit"),
        (priced(1.0, 1500), {"objective": "memory"}, True, "50 % more memory"),
        (priced(), {"objective": "bytes"}, True, "No better by bytes"),
        (priced(0.5), {}, True, "Better by seconds, not by all that the search weighs"),
    ],
)
def test_reasons(price, options, feasible, reason):
    (found,) = searched(price, priced(), **options)
    assert (found.feasible, found.reason, found.seconds) == (feasible, reason, price.seconds)
    assert found.text == "x=8: a.1"


def test_bytes_are_compared():
    rows = TAKEN.estimate.collectives
    more = dataclasses.replace(TAKEN.estimate, collectives=rows + rows)
    (found,) = searched(more, TAKEN.estimate, objective="bytes")
    assert found.reason == "100 % more sent" and found.bytes_sent == 2 * TAKEN.estimate.bytes_sent


def test_the_plan_itself_and_repetitions_are_left_out():
    tried = [(TAKEN.decision, priced()), (LOST.decision, priced(2)), (LOST.decision, priced(3))]
    found = searched_of(tried, (TAKEN.decision, priced()), TAKEN.classes, limit_bytes=LIMIT)
    assert [c.seconds for c in found] == [2]
    assert searched_of(tried, (TAKEN.decision, priced()), TAKEN.classes, limit_bytes=LIMIT, count=0) == ()


def test_text_of_a_decision():
    names = {0: "batch", 1: "width", 2: "heads"}
    axes = (AxisPlan("d", 2, (0,), (1,), frozenset({Role.OPTIMIZER})), AxisPlan("t", 4, (2,)), AxisPlan("u", 2))
    assert decision_text(Decision(axes), names) == "d=2: batch, at rest width (optimizer) | t=4: heads | u=2: nothing"
    assert decision_text(Decision((), partial_carries=False), names) == (
        "one device; accumulators reduced in every turn"
    )
