import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest

import shardwright as sw
from shardwright import cluster
from shardwright.cli import devices, facts, main
from shardwright.cli.outcome import Exit

SUBCOMMANDS = ("train", "plan", "compile", "prove", "clusters")

PROGRAM = """
import jax, jax.numpy as jnp
print("the file is loaded")

def train_step(state, batch):
    def loss(w):
        return ((jnp.tanh(batch @ w["up"]) @ w["down"]) ** 2).mean()
    value, grads = jax.value_and_grad(loss)(state)
    return jax.tree.map(lambda w, g: w - 0.1 * g, state, grads), value

def program():
    state = {"up": jax.ShapeDtypeStruct((16, 64), jnp.float32), "down": jax.ShapeDtypeStruct((64, 16), jnp.float32)}
    return train_step, (state, jax.ShapeDtypeStruct((32, 16), jnp.float32))
"""


@pytest.fixture(autouse=True)
def _same_process(monkeypatch, tmp_path):
    """The command line may change the process that it owns; here it runs inside the tests' own."""
    monkeypatch.setenv("XLA_FLAGS", os.environ["XLA_FLAGS"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def program(tmp_path):
    (tmp_path / "cli_program.py").write_text(PROGRAM)
    yield "cli_program.py:program"
    sys.modules.pop("cli_program", None)


def outcome(capsys, *arguments):
    code = main.main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("arguments", [(), *((name,) for name in SUBCOMMANDS)])
def test_help_names_every_option_and_exit_code(capsys, arguments):
    with pytest.raises(SystemExit) as exit_info:
        main.main([*arguments, "--help"])
    text = capsys.readouterr().out
    assert exit_info.value.code == 0
    assert all(f"\n  {code.value}  " in text for code in Exit)
    wanted = ("--json", "example: shardwright ") if arguments else SUBCOMMANDS
    assert all(word in text for word in wanted)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "SUBCOMMAND"),
        (("fly",), "invalid choice: 'fly'"),
        (("plan",), "FILE.py:NAME"),
        (("plan", "a.py:f", "--mesh", "d=two"), "write axes and sizes as d=2,t=4"),
        (("plan", "a.py:f", "--pin", "w"), "is not LEAF=SPEC"),
        (("plan", "a.py:f", "--objective", "beauty"), "invalid choice: 'beauty'"),
        (("plan", "a.py:f", "--donate", "state"), "is not a list of positions"),
        (("prove", "a.py:f", "--steps", "0"), "is not a whole number from 1 on"),
        (("train", "--seconds", "-1"), "is not a number of seconds above zero"),
    ],
)
def test_bad_usage_exits_with_2(capsys, arguments, message):
    with pytest.raises(SystemExit) as exit_info:
        main.main(arguments)
    assert exit_info.value.code == Exit.BAD_INPUT
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("subcommand", ["plan", "compile", "prove"])
def test_a_file_that_is_not_there_exits_with_2(capsys, subcommand):
    code, out, err = outcome(capsys, subcommand, "nowhere.py:f")
    assert code == Exit.BAD_INPUT and out == ""
    assert f"shardwright {subcommand}: error: there is no file 'nowhere.py'" in err


def test_errors_are_one_json_object_too(capsys):
    code, out, _ = outcome(capsys, "plan", "nowhere.py:f", "--json")
    assert code == Exit.BAD_INPUT
    assert json.loads(out)["error"]["kind"] == "bad_input"


def test_plan_refuses_bad_places_and_pins_before_it_starts(capsys, program, tmp_path):
    for output, said in ((tmp_path, "that is a directory"), (tmp_path / "none" / "plan.json", "is no directory")):
        code, _, err = outcome(capsys, "plan", program, "--cluster", "cpu:8", "--output", str(output))
        assert code == Exit.BAD_INPUT and said in err
    pins = ["--mesh", "d=8", "--pin", "state=P('d')", "--pin", "state=P()"]
    code, _, err = outcome(capsys, "plan", program, "--cluster", "cpu:8", *pins)
    assert code == Exit.BAD_INPUT and "--pin names state twice" in err


def test_the_package_runs_as_a_module():
    found = subprocess.run([sys.executable, "-m", "shardwright", "--help"], capture_output=True, text=True, check=True)
    assert "usage: " in found.stdout and "prove" in found.stdout


def test_train_refuses_bad_places_before_it_starts(capsys):
    code, _, err = outcome(capsys, "train", "--output", "no/such/demo.json")
    assert code == Exit.BAD_INPUT and "there is no directory no/such" in err


def test_train_refuses_a_missing_text_before_it_starts(capsys):
    code, _, err = outcome(capsys, "train", "--data", "nowhere")
    assert code == Exit.BAD_INPUT and "--data nowhere: no such directory" in err


def test_a_saved_plan_and_options_that_it_decides_exclude_each_other(capsys, program):
    both = ("--plan", "plan.json", "--memory", "1GB", "--objective", "bytes", "--cluster", "cpu:8")
    code, _, err = outcome(capsys, "compile", program, *both)
    assert code == Exit.BAD_INPUT
    assert "--plan plan.json already decides --memory and --objective" in err


def test_a_saved_plan_and_another_cluster_exclude_each_other(capsys, program):
    code, _, err = outcome(capsys, "compile", program, "--plan", "plan.json", "--cluster", "h100:1x8")
    assert code == Exit.BAD_INPUT and "--plan plan.json already decides --cluster" in err


@pytest.mark.parametrize("subcommand", ["compile", "prove"])
def test_a_saved_plan_that_is_none_exits_with_2(capsys, program, tmp_path, subcommand):
    code, _, err = outcome(capsys, subcommand, program, "--plan", "plan.json")
    assert code == Exit.BAD_INPUT and "error: plan.json: there is no such file" in err
    (tmp_path / "plan.json").write_text("{")
    code, _, err = outcome(capsys, subcommand, program, "--plan", "plan.json")
    assert code == Exit.BAD_INPUT and "plan.json cannot be read as JSON" in err


def test_our_own_errors_and_infeasible_ones_have_their_own_codes(capsys, monkeypatch):
    def fail(error):
        def run(chosen):
            raise error

        monkeypatch.setattr(main.clusters, "run", run)
        return outcome(capsys, "clusters", "--json")

    code, out, err = fail(sw.InfeasibleError("12 MB are missing"))
    assert code == Exit.INFEASIBLE and "infeasible: 12 MB are missing" in err
    assert json.loads(out)["error"] == {"kind": "infeasible", "message": "12 MB are missing"}
    code, out, err = fail(AssertionError("oh"))
    assert code == Exit.INTERNAL and "Traceback" in err
    assert fail(KeyboardInterrupt())[0] == 130


def test_clusters_lists_the_catalog(capsys):
    code, out, _ = outcome(capsys, "clusters")
    assert code == 0 and set(cluster.names()) <= set(out.split())
    code, out, _ = outcome(capsys, "clusters", "--json")
    assert json.loads(out) == {"names": cluster.names()}


def test_clusters_shows_one(capsys, tmp_path):
    code, out, _ = outcome(capsys, "clusters", "h100:2x8", "--json")
    shown = json.loads(out)
    assert code == 0 and shown["num_devices"] == 16 and shown["device"]["memory_bytes"] == 80e9
    code, out, _ = outcome(capsys, "clusters", "h100:2x8")
    (tmp_path / "mine.toml").write_text(out)
    assert cluster.parse(str(tmp_path / "mine.toml")).num_devices == 16
    code, _, err = outcome(capsys, "clusters", "h1000:1")
    assert code == Exit.BAD_INPUT and "Did you mean h100" in err


def test_virtual_devices_are_asked_for_in_place_of_an_earlier_number(monkeypatch):
    monkeypatch.setattr(jax.config, "update", lambda name, value: None)
    monkeypatch.setenv("XLA_FLAGS", "--xla_a=1 --xla_force_host_platform_device_count=2 --xla_b=2")
    for other in (None, "h100:1x8", "cpu:0", "cpu:x"):
        devices.ask_for_virtual_devices(other)
        assert "count=2" in os.environ["XLA_FLAGS"]
    devices.ask_for_virtual_devices("cpu:6")
    assert os.environ["XLA_FLAGS"] == "--xla_a=1 --xla_b=2 --xla_force_host_platform_device_count=6"


def test_specs_are_json():
    spec = jax.sharding.PartitionSpec
    assert facts.spec_facts(({"w": spec("t", None, ("d", "t"))}, spec())) == {
        "[0]['w']": [["t"], None, ["d", "t"]],
        "[1]": [],
    }


def test_plan_prints_saves_and_reports(capsys, program):
    code, out, err = outcome(
        capsys, "plan", program, "--cluster", "cpu:8", "--donate", "0", "--json", "--output", "plan.json", "--program"
    )
    found = json.loads(out)
    assert code == 0, err
    assert "the file is loaded" in err and "Planning ..." in err
    assert found["file"] == "plan.json" and os.path.exists("plan.json") and found["program"]
    assert found["peak_bytes"] > 0 and found["seconds"] > 0
    assert len(jax.devices()) == 8


def test_mesh_and_pins_reach_the_planner(capsys, program):
    arguments = (
        "plan",
        program,
        "--cluster",
        "cpu:8",
        "--mesh",
        "d=2,t=4",
        "--pin",
        "state['up']=P(None, 't')",
        "--json",
    )
    code, out, err = outcome(capsys, *arguments)
    assert code == 0, err
    found = json.loads(out)
    assert found["mesh"] == {"d": 2, "t": 4}
    assert [None, ["t"]] in found["inputs"].values()


def test_a_budget_that_nothing_meets_exits_with_3(capsys, program):
    code, out, err = outcome(capsys, "plan", program, "--cluster", "cpu:8", "--memory", "1kB", "--json")
    assert code == Exit.INFEASIBLE, err
    assert json.loads(out)["error"]["kind"] == "infeasible"


def test_a_memory_text_that_is_none_exits_with_2(capsys, program):
    code, _, err = outcome(capsys, "plan", program, "--cluster", "cpu:8", "--memory", "much")
    assert code == Exit.BAD_INPUT and "much" in err


def test_compile_reports_what_the_compiler_sees(capsys, program):
    code, out, err = outcome(
        capsys, "compile", program, "--cluster", "cpu:8", "--donate", "0", "--text", "program.txt", "--json"
    )
    assert code == 0, err
    found = json.loads(out)
    assert found["peak_bytes"] > 0 and found["predicted"]["peak_bytes"] > 0
    assert "HloModule" in Path("program.txt").read_text()


@pytest.mark.slow
def test_a_saved_plan_is_proven_in_a_process_of_its_own(program):
    environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_PLATFORMS")}
    environment["PYTHONPATH"] = os.path.dirname(os.path.dirname(os.path.abspath(sw.__file__)))

    def shardwright(*arguments):
        command = [sys.executable, "-m", "shardwright.cli", *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=environment)

    made = shardwright("plan", program, "--cluster", "cpu:4", "--donate", "0", "--output", "plan.json")
    assert made.returncode == 0, made.stderr
    proven = shardwright("prove", program, "--plan", "plan.json", "--json")  # the plan says how many devices
    assert proven.returncode == Exit.OK, proven.stderr
    certificate = json.loads(proven.stdout)
    assert certificate["ok"] and certificate["max_relative_error"] <= 1e-9 and certificate["rows"]


def test_an_interrupted_run_ends_at_once(tmp_path):
    program = Path(__file__).parents[2] / "examples" / "program.py"
    command = [sys.executable, "-m", "shardwright", "prove", f"{program}:small", "--cluster", "cpu:8"]
    environment = {**os.environ, "SHARDWRIGHT_CACHE": str(tmp_path), "XLA_FLAGS": ""}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        said = b""
        while b"Proving" not in said:  # the back end is at work from here on
            said += process.stderr.read1()
            assert process.poll() is None, said
        while process.poll() is None:  # Python drops an interrupt that falls into a callback of its own
            time.sleep(1)
            process.send_signal(signal.SIGINT)
        said += process.stderr.read()
    assert process.returncode == Exit.INTERRUPTED and said.endswith(b"\ninterrupted\n"), said
