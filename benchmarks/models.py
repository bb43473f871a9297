"""The sizes of the GPT step that claims are made for, and what every script here does first."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

import jax

from benchmarks import gpt

MODELS = {
    "default": gpt.Config(),
    "deep": gpt.Config(layers=12, width=512, hidden=2048, batch=8),
    "large": gpt.Config(
        vocab=32768, width=2048, layers=16, hidden=8192, heads=16, sequence=1024, batch=8, remat=True
    ),  # 0.87 B parameters
    # Small enough that a script's every line runs in seconds.
    "tiny": gpt.Config(vocab=128, width=64, layers=3, hidden=192, heads=8, sequence=32, batch=16),
}
VIRTUAL_DEVICES = 8
_DEVICE_FLAG = "xla_force_host_platform_device_count"


def parser(doc: str, *models: str) -> argparse.ArgumentParser:
    """A script's options: which models, and `--quick` for the tiny one alone."""
    made = argparse.ArgumentParser(description=doc.splitlines()[0])
    made.add_argument("--model", action="append", choices=MODELS, help=f"default: {', '.join(models)}")
    made.add_argument("--quick", action="store_true", help="a tiny model, to see that the script runs")
    made.set_defaults(models=models)
    return made


def chosen(asked: argparse.Namespace) -> list[str]:
    """The names of the models that the options ask for."""
    return ["tiny"] if asked.quick else asked.model or list(asked.models)


def start_virtual_devices(count: int = VIRTUAL_DEVICES) -> None:
    """Makes the process one of `count` CPU devices; to be called before anything runs."""
    if _DEVICE_FLAG not in os.environ.get("XLA_FLAGS", ""):
        jax.config.update("jax_num_cpu_devices", count)
    found = len(jax.devices("cpu"))
    assert found >= count, f"{count} virtual devices are needed and there are {found}"


def progress(*words: Any) -> None:
    """One line for whoever waits."""
    print(*words, file=sys.stderr, flush=True)


def report(result: Any) -> None:
    """The script's result, as JSON on standard output."""
    json.dump(result, sys.stdout, indent=1)
    print(flush=True)
