import argparse

import pytest
from jax.sharding import PartitionSpec as P

from shardwright.cli import options


def test_mesh_keeps_the_order_of_its_axes():
    assert list(options.mesh("t=4, d=2").items()) == [("t", 4), ("d", 2)]


@pytest.mark.parametrize("text", ["", "d", "d=", "d=0", "d=-1", "2=d", "d=2,,t=4", "d=2,d=4", "d=2.5"])
def test_bad_meshes(text):
    with pytest.raises(argparse.ArgumentTypeError):
        options.mesh(text)


@pytest.mark.parametrize(
    ("text", "leaf", "spec"),
    [
        ("state[0]['emb']=P('t')", "state[0]['emb']", P("t")),
        ("batch = P('d', None)", "batch", P("d", None)),
        ("w=P(('d', 't'), P.UNCONSTRAINED, None)", "w", P(("d", "t"), P.UNCONSTRAINED, None)),
        ("out[1]=P()", "out[1]", P()),
        ("a['x=y']=P('t')", "a['x=y']", P("t")),
    ],
)
def test_pins(text, leaf, spec):
    assert options.pin(text) == (leaf, spec)


@pytest.mark.parametrize("text", ["w", "=P('t')", "w=1", "w=", "w=P('d', 'd')", "w=P(print())"])
def test_bad_pins(text):
    with pytest.raises(argparse.ArgumentTypeError):
        options.pin(text)


def test_numbers():
    assert options.argnums("0, 2") == (0, 2) and options.count("3") == 3 and options.seconds("1.5") == 1.5
    for reader, text in [
        (options.argnums, "0,"),
        (options.argnums, "state"),
        (options.count, "0"),
        (options.seconds, "0"),
        (options.seconds, "nan"),
        (options.seconds, "soon"),
    ]:
        with pytest.raises(argparse.ArgumentTypeError):
            reader(text)
