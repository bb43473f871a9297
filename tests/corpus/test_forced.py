"""Every program of the corpus under every usual kind of plan."""

import pytest

from tests.corpus import check
from tests.corpus.catalog import OPTIMIZED, PROGRAMS

KINDS = ("batch", "state", "parameter 0", "parameter 1", "parameter 2", "two axes")
QUICK = {
    ("mlp", "two axes"),
    ("state_only", "state"),
    ("mixed_leaves", "batch"),
    ("odd_results", "batch"),
    ("remat", "parameter 0"),
    ("accumulation", "batch"),
    ("branches", "state"),
    ("loops", "batch"),
    ("segments", "batch"),
    ("grouped_query", "parameter 0"),
    ("equinox mlp", "state"),
    ("lamb", "state"),
    ("adafactor", "state"),
}


def cases(names, kinds):
    """A case for each pair; all but the quick ones are slow."""
    for name in names:
        for kind in kinds:
            yield pytest.param(name, kind, marks=() if (name, kind) in QUICK else pytest.mark.slow)


@pytest.mark.parametrize(
    ("name", "kind"), [*cases(PROGRAMS, KINDS), *cases(OPTIMIZED, ("batch", "state", "parameter 0"))]
)
def test_forced(name, kind, monkeypatch):
    check.small_leaves_are_cut(monkeypatch)
    traced = check.trace({**PROGRAMS, **OPTIMIZED}[name]())
    decision = check.forced(traced)[kind]
    device = check.partitioned(traced, decision)
    check.holds(traced, device)
