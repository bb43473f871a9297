"""Names of leaves folded: what stands for several, and where long ones are broken."""

import pytest

from shardwright.report.folding import filled, folded


def linen(layers, *before):
    return [f"state{b}['Dense_{i}']['kernel']" for b in before for i in layers]


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        (["w"], ["w"]),
        (["x", "y"], ["x", "y"]),
        (["s[0]['wq']", "s[0]['wk']", "loss"], ["s[0]['wq', 'wk']", "loss"]),
        (linen(range(1, 5), ".params"), ["state.params['Dense_1…4']['kernel']"]),
        (linen(range(4), ".opt[0].mu", ".opt[0].nu"), ["state.opt[0].{mu,nu}['Dense_0…3']['kernel']"]),
        ([f"st['layers'][{i}]['bias'].value" for i in (0, 1, 2, 5)], ["st['layers'][{0…2,5}]['bias'].value"]),
        ([f"m.layers[{i}].weight" for i in range(9, 12)], ["m.layers[9…11].weight"]),
        ([f"m[{i}].{k}.w" for i in range(2) for k in "qkv"], ["m[0…1].{q,k,v}.w"]),
        (["p['mlp/~/linear_1']['w']", "p['mlp/~/linear_2']['w']"], ["p['mlp/~/linear_1…2']['w']"]),
        (["a['x']", "a.x"], ["a['x']", "a.x"]),  # a key is no attribute
        (["a['b'].c", "a['b']"], ["a['b'].c", "a['b']"]),
        (["a['it''s [odd']", "b["], ["a['it''s [odd']", "b["]),
    ],
)
def test_folded(names, wanted):
    found = folded(names)
    assert [f.name for f in found] == wanted
    assert sum(f.count for f in found) == len(names)


def test_many_keys_are_counted():
    (found,) = folded([f"state['{a}{b}']" for a in "abcde" for b in "xyz"])
    assert found.count == 15 and found.name.endswith("'dz' and 3 more]")


def test_lines_break_between_names_and_inside_only_what_is_longer_than_a_line():
    assert list(filled(["aaaa", "bbbb", "cccc"], 11)) == ["aaaa, bbbb,", "cccc"]
    assert list(filled(["x", "state['encoder_block']['kernel'].value"], 27)) == [
        "x,",
        "state['encoder_block']",
        "['kernel'].value",
    ]
    assert list(filled(["y" * 25], 10)) == ["y" * 10, "y" * 10, "y" * 5]
    assert list(filled([], 10)) == []
