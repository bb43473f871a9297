"""Proofs compile four programs each; the tests compile them with little optimization."""

import jax
import pytest


@pytest.fixture
def quick_compiles():
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
