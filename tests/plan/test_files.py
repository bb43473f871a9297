"""Plan files: the same bytes, whole or not at all, and a clear word on every kind of bad file."""

from __future__ import annotations

import copy
import dataclasses
import json
import os

import pytest

from shardwright.plan.files import load, save, to_json
from shardwright.plan.record import VERSION, LeafRecord
from tests.plan.sample import decision, record


def test_a_plan_survives_its_file(tmp_path):
    path = tmp_path / "plan.json"
    save(record(), path)
    assert load(path) == record()
    assert load(str(path)).mesh == decision().mesh


def test_a_file_has_the_same_bytes_whatever_order_things_came_in(tmp_path):
    memory = record().estimate.memory
    turned = dataclasses.replace(memory, by_role=dict(reversed(memory.by_role.items())))
    program = dataclasses.replace(record().program, classes=dict(reversed(record().program.classes.items())))
    other = record(estimate=dataclasses.replace(record().estimate, memory=turned), programs=(program,))
    assert to_json(other) == to_json(record())
    save(record(), tmp_path / "a.json")
    save(load(tmp_path / "a.json"), tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes() == to_json(record()).encode()


def test_keys_are_sorted_and_numbers_exact(tmp_path):
    data = json.loads(to_json(record()))
    assert list(data) == sorted(data) and data["version"] == VERSION
    save(record(estimate=dataclasses.replace(record().estimate, seconds=0.1 + 0.2)), tmp_path / "plan.json")
    assert load(tmp_path / "plan.json").estimate.seconds == 0.1 + 0.2


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "plan.json"
    save(record(), path)
    old = path.read_bytes()

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        save(record(cluster="cpu:2"), path)
    assert path.read_bytes() == old and os.listdir(tmp_path) == ["plan.json"]


def test_what_json_cannot_hold_is_not_written(tmp_path):
    with pytest.raises(ValueError, match="inf cannot be written"):
        save(record(estimate=dataclasses.replace(record().estimate, seconds=float("inf"))), tmp_path / "plan.json")
    assert os.listdir(tmp_path) == []


def test_no_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none.json")


def changed(change):
    data = copy.deepcopy(json.loads(to_json(record())))
    change(data)
    return json.dumps(data).encode()


def without(*keys):
    def change(data):
        for key in keys[:-1]:
            data = data[key]
        del data[keys[-1]]

    return changed(change)


def with_value(value, *keys):
    def change(data):
        for key in keys[:-1]:
            data = data[key]
        data[keys[-1]] = value

    return changed(change)


BAD = {
    "empty": (b"", "cannot be read as JSON .it is empty"),
    "cut off": (to_json(record()).encode()[:500], "cannot be read as JSON .*damaged or cut off.*Plan again"),
    "binary": (b"\x93NUMPY\x01\x00\xff\xfe", "cannot be read as JSON"),
    "text": (b"mesh = {d: 2}", "cannot be read as JSON"),
    "a list": (b"[1, 2]", "is not a plan: .* holds a list"),
    "an empty object": (b"{}", "is not a plan: .* an empty object"),
    "another JSON": (b'{"model": 1, "b": 2}', "is not a plan: .* the keys b, model.*Give a file that Plan.save wrote"),
    "another format": (b'{"format": "other plan"}', "holds \"format\": 'other plan'"),
    "newer": (with_value(VERSION + 1, "version"), f"version {VERSION + 1}, written by shardwright 0.1.0.*Upgrade"),
    "no version": (without("version"), "version is None, a number from 1 on"),
    "bad version": (with_value(True, "version"), "version is True"),
    "a missing key": (without("cluster"), "not a whole plan of version 1: plan lacks cluster.*Plan again"),
    "a missing inner key": (
        without("programs", 0, "inputs", 1, "spec"),
        r"plan\.programs\[0\]\.inputs\[1\] lacks spec",
    ),
    "an unknown key": (with_value(1, "programs", 0, "colour"), r"plan\.programs\[0\] has unknown colour"),
    "a wrong type": (with_value("8", "num_devices"), r"plan\.num_devices is str, int wanted"),
    "a bool for a number": (with_value(True, "num_devices"), r"plan\.num_devices is bool, int wanted"),
    "an object for a list": (with_value({}, "notes"), r"plan\.notes is dict, a list wanted"),
    "a list for an object": (with_value([], "estimate"), r"plan\.estimate is list, an object wanted"),
    "a pair of three": (with_value([["d", 2, 3]], "programs", 0, "mesh"), r"mesh\[0\] holds 3 values, 2 wanted"),
    "null": (with_value(None, "estimate", "seconds"), r"plan\.estimate\.seconds is NoneType, float wanted"),
    "a contradiction": (with_value(4, "num_devices"), "contradicts itself.*does not hold 4 devices.*Plan again"),
}


@pytest.mark.parametrize(("content", "said"), BAD.values(), ids=BAD.keys())
def test_bad_files(tmp_path, content, said):
    path = tmp_path / "plan.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=said) as caught:
        load(path)
    assert str(path) in str(caught.value)


def test_a_whole_number_of_seconds_is_a_float(tmp_path):
    path = tmp_path / "plan.json"
    path.write_bytes(with_value(1, "estimate", "seconds"))
    found = load(path).estimate.seconds
    assert found == 1.0 and type(found) is float


def test_dims_without_a_pin_stay_free(tmp_path):
    save(record(), tmp_path / "plan.json")
    assert load(tmp_path / "plan.json").program.decision.pins == {"batch['x']": (("d",), None)}


def test_odd_names_survive(tmp_path):
    odd = LeafRecord("state['größe \"1\"']", (), "float32", "scalar", (), ())
    program = dataclasses.replace(record().program, outputs=(odd,))
    save(record(programs=(program,)), tmp_path / "plan.json")
    assert load(tmp_path / "plan.json").program.outputs == (odd,)
