import dataclasses
import json
import math

from shardwright.train import closing


@dataclasses.dataclass(frozen=True)
class Certificate:
    ok: bool
    max_relative_error: float
    unproven: tuple[str, ...] = ()

    def as_dict(self):
        rows = [{"name": "state['params']['up']", "error": self.max_relative_error}]
        return {"ok": self.ok, "max_relative_error": self.max_relative_error, "rows": rows}


RESULT = closing.DemoResult(
    cluster="cpu:8",
    num_devices=8,
    budget_bytes=40_000_000,
    one_device=closing.Figures(200e6, 178.7e6, 0.0, 0.0),
    planned=closing.Figures(36e6, 38.1e6, 7e6, 6.9e6),
    before=closing.Model(5.01, "before"),
    after=closing.Model(2.16, "after"),
    losses=(5.0, 4.0, 2.1),
    seconds=2.0,
    tokens_per_second=5120.0,
    certificate=Certificate(True, 2e-15),
    plan_file="demo-plan.json",
)


def test_facts_are_json():
    facts = json.loads(json.dumps(closing.facts(RESULT), allow_nan=False))
    assert facts["ok"] and facts["plan"] == "demo-plan.json" and facts["budget_bytes"] == 40e6
    assert facts["peak_bytes"]["one_device"] == {"predicted": 200e6, "reported": 178.7e6}
    assert facts["sent_bytes"]["planned"] == {"predicted": 7e6, "reported": 6.9e6}
    assert facts["held_out_loss"] == {"before": 5.01, "after": 2.16}
    assert facts["steps"] == 3
    assert facts["certificate"]["rows"] == [{"name": "state['params']['up']", "error": 2e-15}]


def test_numbers_that_json_lacks_are_text():
    facts = closing.certificate_facts(Certificate(False, math.nan))
    assert facts["max_relative_error"] == facts["rows"][0]["error"] == "nan"


def test_the_table_puts_predicted_beside_reported():
    lines = closing.table(RESULT).splitlines()
    assert lines[1].split() == ["predicted", "XLA", "reports", "predicted", "XLA", "reports"]
    assert lines[2].split()[4:] == ["200", "MB", "179", "MB", "36.0", "MB", "38.1", "MB"]
    assert lines[3].split()[-8:] == ["0", "B", "0", "B", "7.00", "MB", "6.90", "MB"]
    assert "38.1 MB a device by XLA, within the budget of 40.0 MB" in lines[5]
    assert "5.01 to 2.16 nats a byte in 3 steps" in lines[6]
    assert "the same mathematics as on one device, largest" in lines[7]
    unproven = dataclasses.replace(RESULT, certificate=Certificate(True, 2e-15, ("bias", "scale")))
    assert "as on one device, 2 leaves unproven, largest" in closing.table(unproven)


def test_a_budget_that_is_not_kept_and_a_proof_that_fails_are_said():
    bad = dataclasses.replace(RESULT, budget_bytes=38_000_000, certificate=Certificate(False, 1.0))
    assert not bad.ok
    assert "NOT within the budget" in closing.table(bad) and "NOT PROVEN" in closing.table(bad)
