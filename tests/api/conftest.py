"""Every test of the public API has a plan cache of its own, and compiles with little optimization."""

import jax
import pytest


@pytest.fixture(autouse=True)
def plan_cache(tmp_path, monkeypatch):
    """The folder of the cache, empty at first."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("SHARDWRIGHT_CACHE", str(folder))
    return folder


@pytest.fixture(autouse=True, scope="package")
def _quick_compiles():
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
