"""What a plan depends on is in the fingerprint."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from shardwright.program.capture import capture

TABLE, IDS = jnp.ones((8, 4)), jnp.arange(3)


def fingerprint(step, *args):
    return capture(step, args, {}, names=["a", "b"]).fingerprint


def test_the_same_step_has_the_same():
    assert fingerprint(lambda a, b: a[b], TABLE, IDS) == fingerprint(lambda a, b: a[b], TABLE, IDS)


def test_the_mode_of_a_lookup_counts():
    clip = fingerprint(lambda a, b: a.at[b].get(mode="clip"), TABLE, IDS)
    assert clip != fingerprint(lambda a, b: a.at[b].get(mode="fill"), TABLE, IDS)


def test_the_precision_of_a_product_counts():
    low = fingerprint(lambda a, b: a.T @ a, TABLE, IDS)
    assert low != fingerprint(lambda a, b: jax.lax.dot(a.T, a, precision="highest"), TABLE, IDS)


def test_a_constant_counts():
    assert fingerprint(lambda a, b: a * 2.0, TABLE, IDS) != fingerprint(lambda a, b: a * 3.0, TABLE, IDS)
