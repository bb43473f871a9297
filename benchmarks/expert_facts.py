"""Peak memory and sent bytes of every expert of the GPT step, as XLA's compilers report them; no such device is needed.

    python -m benchmarks.expert_facts cpu:8 tpu-v5p:2x2x2 h100:1x8 [--remat]

Prints a Markdown table a target. MB are decimal, of one device, in one step; the last column is the closed form of a
hand-written expert's traffic, by ring.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping

from benchmarks import gpt
from benchmarks.experts import fsdp, tensor_sequence, variant, zero1
from benchmarks.experts.constrained import constrained
from shardwright.run.devices import abstract_mesh
from shardwright.run.targets import compile_ahead
from shardwright.run.traffic import sent_bytes

NUM_DEVICES = 8
MESHES = ({"x": NUM_DEVICES}, {"d": 2, "t": 4})
BY_HAND = {"zero1": zero1, "fsdp": fsdp, "tensor_sequence": tensor_sequence}


def programs(c: gpt.Config) -> Iterator[tuple[str, variant.Builder, Mapping[str, int], float | None]]:
    """(name, builder, mesh axes, closed form of sent bytes) of each expert."""
    for name, module in BY_HAND.items():
        yield f"{name} by hand", module.build, MESHES[0], module.closed_form_bytes(c, NUM_DEVICES)
    for axes in MESHES:
        for name in constrained(c, abstract_mesh(axes)):
            yield name, lambda c, mesh, name=name: constrained(c, mesh)[name], axes, None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="+")
    parser.add_argument("--remat", action="store_true")
    asked = parser.parse_args()
    c = gpt.Config(remat=asked.remat)
    for target in asked.targets:
        print(f"\n{target}{', remat' if c.remat else ''}\n")
        print("| expert | peak MB | argument MB | temp MB | sent MB | closed form MB |\n|---|---|---|---|---|---|")
        for name, build, axes, closed_form in programs(c):
            ahead = compile_ahead(variant.lowerable(build, c, axes), target)
            memory = ahead.memory
            sizes = (memory.peak_bytes, memory.argument_bytes, memory.temp_bytes, sent_bytes(ahead.collectives))
            cells = [f"{size / 1e6:.1f}" for size in sizes]
            cells.append("" if closed_form is None else f"{closed_form / 1e6:.1f}")
            print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
