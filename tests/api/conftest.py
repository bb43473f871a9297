"""Every test of the public API has a plan cache of its own."""

import pytest


@pytest.fixture(autouse=True)
def plan_cache(tmp_path, monkeypatch):
    """The folder of the cache, empty at first."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("SHARDWRIGHT_CACHE", str(folder))
    return folder
