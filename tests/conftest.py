"""Eight virtual CPU devices under every test, asked for before jax is imported."""

import os
import tempfile

NUM_DEVICES = 8
_DEVICE_FLAG = "--xla_force_host_platform_device_count"

_other_flags = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if not flag.startswith(_DEVICE_FLAG)]
os.environ["XLA_FLAGS"] = " ".join([*_other_flags, f"{_DEVICE_FLAG}={NUM_DEVICES}"])
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("SHARDWRIGHT_CACHE", tempfile.mkdtemp(prefix="shardwright-tests-"))  # not the user's own

import jax  # noqa: E402  (after the environment, on purpose)
import pytest  # noqa: E402


@pytest.fixture(scope="session", autouse=True)
def _eight_devices():
    """On one device every sharding is right, so no test may run there."""
    devices = jax.devices()
    assert len(devices) == NUM_DEVICES and {d.platform for d in devices} == {"cpu"}, (
        f"the tests need {NUM_DEVICES} CPU devices and found {devices}: was jax started before tests/conftest.py?"
    )
