"""The examples as a user runs them: each in a process of its own, which asks for eight devices itself."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent.parent
SAYS = {
    "mlp": ["step 40", "Plan of 'train_step' for cpu:8", "The weights lie on 8 devices."],
    "program": ["Plan of 'train_step' for h100:2x8"],
    "equinox_cnn": ["8 devices", "an ordinary equinox module"],
    "flax_transformer": ["step 60", "8 devices"],
}
QUICK = "mlp"


def test_every_example_is_run():
    assert set(SAYS) == {file.stem for file in (ROOT / "examples").glob("*.py")}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n != QUICK)) for n in SAYS])
def test_an_example_runs(name, tmp_path):
    hidden = ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")
    environment = {k: v for k, v in os.environ.items() if k not in hidden}
    environment |= {"PYTHONPATH": str(ROOT), "SHARDWRIGHT_CACHE": str(tmp_path), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / f"{name}.py")]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for words in SAYS[name]:
        assert words in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", ["small", "large"])
def test_the_program_is_one_for_the_command_line(name, tmp_path):
    command = [sys.executable, "-m", "shardwright.cli", "plan", str(ROOT / "examples" / f"program.py:{name}")]
    options = ["--cluster", "h100:2x8", "--donate", "0", "--output", "plan.json"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, *options], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "for h100:2x8" in done.stdout and (tmp_path / "plan.json").is_file()
