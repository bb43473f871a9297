"""Proofs compile four programs each; the tests compile them with little optimization."""

import contextlib

import jax
import pytest


@contextlib.contextmanager
def few_optimizations():
    """Inside, XLA compiles with little optimization; afterwards nothing that was compiled so is left to be used."""
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", False)
        jax.clear_caches()


@pytest.fixture
def quick_compiles():
    with few_optimizations():
        yield
