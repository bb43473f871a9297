"""Random programs on random meshes under random decisions compute what one device computes; and the fuzzer bites."""

import jax
import pytest

from shardwright.partition.device import Control, walk
from tests.fuzz import check
from tests.fuzz.faults import FAULTS, planted
from tests.fuzz.programs import draw_case

PROGRAMS = 64
SHARE = 8
"""Programs a test: a failure names few."""


@pytest.fixture(autouse=True)
def _quickly():
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.mark.parametrize("first", range(0, PROGRAMS, SHARE))
def test_programs_in_simulation(first):
    for seed in range(first, first + SHARE):
        found = check.failure(draw_case(seed))
        assert found is None, f"{found}\n{check.shrink(draw_case(seed))}"


@pytest.mark.parametrize("seed", [3, 11, 27])
def test_programs_in_xla(seed):
    check.check(draw_case(seed), check.in_xla)


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_found(name):
    def run(traced, device):
        changed = planted(device, FAULTS[name])
        if all(a is b for (a, _), (b, _) in zip(plain(device), plain(changed), strict=True)):
            return traced.wanted  # it has no place for the fault
        return check.in_simulation(traced, changed)

    def plain(device):
        return [(op, times) for op, times in walk(device.block) if not isinstance(op, Control)]

    assert any(check.failure(draw_case(seed), run) for seed in range(40)), f"40 programs do not show that {name}"


def test_programs_are_made_smaller():
    """To what fails alone: a program that breaks at every reduction keeps one step."""
    case = next(
        c for c in map(draw_case, range(50)) if any(s.name == "reduction" for s in c.steps) and len(c.steps) > 4
    )

    def run(traced, device):
        assert not any(s.name == "reduction" for s in traced.case.steps), "a reduction"
        return traced.wanted

    small = check.shrink(case, run)
    assert [s.name for s in small.steps].count("reduction") == 1 and len(small.steps) < len(case.steps)
    assert not small.gradient
