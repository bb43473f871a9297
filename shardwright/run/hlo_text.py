"""Reads the text of a compiled XLA program: computations, instructions, sizes of types, trip counts, device groups.

Written against what the CPU, GPU and TPU compilers print. Only instructions that communicate or call other
computations are kept; the rest of a program may be large and is of no use here.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping

import numpy as np

COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation, taken apart."""

    name: str
    type_text: str  # 'f32[8,4]{1,0}', or a tuple '(f32[8], s32[])'
    opcode: str
    rest: str  # operands and attributes


@dataclasses.dataclass(frozen=True)
class Module:
    """The computations of one compiled program.

    Attributes:
        entry: name of the computation that runs.
        num_devices: devices that the program was compiled for.
        computations: name -> the instructions that communicate or call.
        constants: name -> integer constants that the computation holds, for the trip counts of loops.
    """

    entry: str
    num_devices: int
    computations: Mapping[str, tuple[Instruction, ...]]
    constants: Mapping[str, tuple[int, ...]]


_HEADER = re.compile(r"^(ENTRY\s+)?%?([\w.\-]+)\s.*\{\s*$|^(ENTRY\s+)?%?([\w.\-]+)\{\s*$")
_ASSIGNED = re.compile(r"^\s+(?:ROOT\s+)?%?([\w.\-]+)\s*=\s*(.*)$")
_OPCODE = re.compile(r"([\w\-]+)\(")
_CONSTANT = re.compile(r"=\s*[su](?:32|64)\[\]\S*\s+constant\((\d+)\)")
_CALLS = re.compile(
    r"\b(?:body|condition|to_apply|calls|branch_computations|called_computations|true_computation|false_computation)"
    r"=(?:\{([^}]*)\}|%?([\w.\-]+))"
)
_OF_INTEREST = re.compile("|".join([*(f" {kind}(?:-start)?\\(" for kind in COLLECTIVES), _CALLS.pattern]))


def parse(text: str) -> Module:
    """The computations of a compiled program's text (`compiled.as_text()`)."""
    entry, current = "", ""
    kept: dict[str, list[Instruction]] = {}
    constants: dict[str, list[int]] = {}
    for line in text.splitlines():
        if line.startswith("}"):
            current = ""
        elif not line.startswith(" "):
            header = _HEADER.match(line)
            if header and not line.startswith("HloModule"):
                current = header.group(2) or header.group(4)
                kept[current], constants[current] = [], []
                entry = current if line.startswith("ENTRY") else entry
        elif current:
            constants[current] += [int(value) for value in _CONSTANT.findall(line)]
            if _OF_INTEREST.search(line) and (instruction := _instruction(line)):
                kept[current].append(instruction)
    return Module(
        entry,
        _num_devices(text),
        {name: tuple(instructions) for name, instructions in kept.items()},
        {name: tuple(values) for name, values in constants.items()},
    )


def _num_devices(text: str) -> int:
    head = text[: text.find("\n")]
    counts = [re.search(rf"\b{word}=(\d+)", head) for word in ("num_partitions", "replica_count")]
    return math.prod(int(count.group(1)) for count in counts if count)


def _instruction(line: str) -> Instruction | None:
    assigned = _ASSIGNED.match(line)
    if not assigned:
        return None
    name, rest = assigned.groups()
    end = _closing(rest) + 1 if rest.startswith("(") else rest.find(" ")
    type_text, rest = rest[:end], rest[end:].lstrip()
    opcode = _OPCODE.match(rest)
    return Instruction(name, type_text, opcode.group(1) if opcode else "", rest)


def _closing(text: str) -> int:
    """Position of the bracket that closes the one at the start of `text`."""
    depth = 0
    for position, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if depth == 0:
            return position
    return len(text) - 1


def called(instruction: Instruction) -> tuple[str, ...]:
    """Names of the computations that an instruction runs, a loop's body and condition among them."""
    found = _CALLS.findall(instruction.rest)
    return tuple(name.strip().lstrip("%") for listed, single in found for name in (listed or single).split(","))


def trip_count(loop: Instruction, module: Module) -> int | None:
    """Turns of a while loop, or None where the text does not tell.

    The CPU and GPU compilers print the count. The TPU compiler does not; there the condition of a counted loop
    compares the counter, from zero, with the one integer constant that it holds.
    """
    printed = re.search(r'known_trip_count[^0-9]*?"?n"?\s*[:=]\s*"?(\d+)', loop.rest)
    if printed:
        return int(printed.group(1))
    condition = re.search(r"\bcondition=%?([\w.\-]+)", loop.rest)
    constants = module.constants.get(condition.group(1), ()) if condition else ()
    return constants[0] if len(constants) == 1 else None


_ARRAY = re.compile(r"\b(pred|[a-z]+(\d+)[a-z0-9]*)\[([0-9,]*)\]")


def type_bytes(type_text: str) -> float:
    """Bytes of an array type, or of all arrays of a tuple type."""
    total = 0.0
    for name, bits, dims in _ARRAY.findall(type_text):
        # A type's first number is its width in bits (f8e4m3fn, s4, c64); a pred takes a byte.
        item = 1.0 if name == "pred" else int(bits) / 8
        total += item * math.prod(int(dim) for dim in dims.split(",") if dim)
    return total


def tuple_parts(type_text: str) -> tuple[str, ...]:
    """The outermost parts of a tuple type: '((a, b), c)' -> ('(a, b)', 'c'); none for an array type."""
    if not type_text.startswith("("):
        return ()
    parts, depth, start = [], 0, 1
    for position, character in enumerate(type_text):
        depth += (character in "([{") - (character in ")]}")
        if (character == "," and depth == 1) or depth == 0:
            parts.append(type_text[start:position].strip())
            start = position + 1
        if depth == 0:
            break
    return tuple(parts)


_LISTED = re.compile(r"replica_groups=\{(\{[0-9,{} ]*\})\}")
_IOTA = re.compile(r"replica_groups=\[(\d+),(\d+)\]<=\[([0-9,]+)\](?:T\(([0-9,]+)\))?")
_MESH = re.compile(r"replica_groups=mesh\[([^\]]*)\]([^{]*)\{([^}]*)\}")
_PAIRS = re.compile(r"source_target_pairs=\{([0-9,{} ]*)\}")


def device_groups(attributes: str, num_devices: int) -> tuple[int, np.ndarray | None]:
    """Which devices a collective joins.

    Args:
        attributes: an instruction's text from its operands on.
        num_devices: of the program.

    Returns:
        The size of a group (of a permutation: num_devices), and the groups, int [groups, size], or pairs of source and
        target, int [pairs, 2]; None where the text gives the size but not the members in a form known here.

    Raises:
        ValueError: not even the size can be read.
    """
    if pairs := _PAIRS.search(attributes):
        return num_devices, np.array([int(n) for n in re.findall(r"\d+", pairs.group(1))], int).reshape(-1, 2)
    if listed := _LISTED.search(attributes):
        rows = [[int(n) for n in row.split(",") if n.strip()] for row in re.findall(r"\{([0-9, ]*)\}", listed.group(1))]
        is_even = len({len(row) for row in rows}) == 1
        return len(rows[0]), np.array(rows, int) if is_even else None
    if iota := _IOTA.search(attributes):
        num_groups, size, dims, order = iota.groups()
        ids = np.arange(int(num_groups) * int(size)).reshape([int(dim) for dim in dims.split(",")])
        ids = ids.transpose([int(dim) for dim in order.split(",")]) if order else ids
        return int(size), ids.reshape(int(num_groups), int(size))
    if mesh := _MESH.search(attributes):
        return _mesh_groups(*mesh.groups())
    if re.search(r"replica_groups=(?!\{\})", attributes):
        raise ValueError(f"cannot read the device groups of the collective {attributes[:300]!r}")
    return num_devices, np.arange(num_devices)[None]  # no groups: one of everybody


def _mesh_groups(mesh_text: str, order_text: str, axes_text: str) -> tuple[int, np.ndarray | None]:
    """mesh['a'=2,'b'=4] {'b'}: devices in row-major order, a group along each axis named.

    'b':(2)2 is the part of 'b' of size 2 below its major part of size 2.
    """
    sizes = {axis: int(size) for axis, size in re.findall(r"'([^']+)'=(\d+)", mesh_text)}
    parts: dict[str, list[int]] = {axis: [size] for axis, size in sizes.items()}  # major to minor
    joined: list[tuple[str, int]] = []  # (axis, which part)
    for axis, major, size in re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", axes_text):
        if major:
            parts[axis] = [int(major), int(size), sizes[axis] // (int(major) * int(size))]
        joined.append((axis, 1 if major else 0))
    group_size = math.prod(parts[axis][part] for axis, part in joined)
    if order_text.strip():
        return group_size, None
    dims = [(axis, part) for axis in parts for part in range(len(parts[axis]))]
    order = [each for each in dims if each not in joined] + joined
    ids = np.arange(math.prod(sizes.values())).reshape([parts[axis][part] for axis, part in dims])
    return group_size, ids.transpose([dims.index(each) for each in order]).reshape(-1, group_size)
