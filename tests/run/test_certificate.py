"""What a certificate says of itself, from rows made by hand."""

import dataclasses

from shardwright.run.certificate import DIFFERS, EQUAL, UNPROVEN, Certificate, LeafProof


def certificate(*statuses):
    rows = tuple(LeafProof(f"w{i}", "parameter", 0.0, 0.0, True, status) for i, status in enumerate(statuses))
    return Certificate(rows, (), True, 8, {"x": 8}, 3)


def verdict(*statuses):
    return str(certificate(*statuses)).splitlines()[0]


def test_the_verdict_names_what_is_unproven():
    assert verdict(EQUAL, EQUAL) == "the same as on one device: 3 steps on 8 devices (x: 8)"
    said = verdict(EQUAL, UNPROVEN, EQUAL, UNPROVEN)
    assert "2 of 4 leaves" in said and "unproven" in said and "never moved" in said
    assert verdict(EQUAL, UNPROVEN, DIFFERS).startswith("NOT the same as on one device: ")
    captured = dataclasses.replace(certificate(EQUAL, UNPROVEN), captured=False)
    assert str(captured).startswith("NOT the same as on one device: ")


def test_what_is_unproven_is_in_the_json():
    found = certificate(EQUAL, UNPROVEN)
    assert found.ok and found.as_dict()["unproven"] == ["w1"]
