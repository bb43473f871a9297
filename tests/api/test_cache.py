"""Plans on disk: taken when everything is the same, never trusted."""

import json
import os

import jax
import pytest
from jax.sharding import PartitionSpec as P

import shardwright as sw
from shardwright import _plan
from tests.api.steps import assert_close, mlp_batch, mlp_state, mlp_step


@pytest.fixture(autouse=True)
def searches(monkeypatch):
    """How often was searched: a list with an entry for each."""
    found = []
    search = _plan.search
    monkeypatch.setattr(_plan, "search", lambda *args, **kwargs: found.append(1) or search(*args, **kwargs))
    return found


class _NotCompiled:
    """In the place of a compiled step: most tests here ask for plans alone."""

    def run(self, call, values, extra):
        return None, None


def run(*batches, step=mlp_step, **options):
    """The plan of a fresh `sw.jit` after its first call (and others); nothing is compiled."""
    jitted = sw.jit(step, **{"mesh": {"d": 2, "t": 4}, "donate_argnums": 0, "verbose": False, **options})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sw.Plan, "compile", lambda plan: _NotCompiled())
        for batch in batches or [mlp_batch()]:
            jitted(mlp_state(), batch)
    return jitted.plan


def test_the_second_run_does_not_search(searches, plan_cache, capsys):
    first = run(pins={"state['up']": P("d", "t")})
    assert len(searches) == 1
    (file,) = (plan_cache / "plans").iterdir()
    assert sw.load_plan(file).record == first.record
    second = run(pins={"state['up']": P("d", "t")})
    assert len(searches) == 1 and second.record == first.record
    assert capsys.readouterr().err == ""


def test_whatever_a_plan_is_made_from_makes_another(searches):
    run()
    for number, options in enumerate(
        [
            {"memory": "1GB"},
            {"objective": "memory"},
            {"pins": {"batch": P("d")}},
            {"pins": {"batch": P("t")}},
            {"cluster": "cpu:8", "step": lambda state, batch: mlp_step(state, 2 * batch)},
        ],
        start=2,
    ):
        run(**options)
        assert len(searches) == number
    run(cluster="cpu:8")  # the attached devices, by name
    assert len(searches) == 6


def test_donation_and_devices_are_part_of_the_key(searches):
    run()
    run(donate_argnums=())
    run(mesh={"t": 4, "d": 2})
    run(mesh={"d": 4})
    assert len(searches) == 4


def test_of_another_version_of_the_package_or_of_jax(searches, monkeypatch):
    run()
    monkeypatch.setattr(_plan, "package_version", lambda: "99.0")
    run()
    monkeypatch.setattr(_plan._compat, "JAX_VERSION", "99.0")
    run()
    assert len(searches) == 3


def test_new_shapes_are_kept_too(searches):
    for _ in range(2):
        run(mlp_batch(), mlp_batch(size=16))
    assert len(searches) == 2


def _edit(file, change):
    data = json.loads(file.read_text())
    change(data)
    file.write_text(json.dumps(data))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda file: file.write_text(file.read_text()[:500]), "damaged or cut off"),
        (lambda file: file.write_text(""), "it is empty"),
        (lambda file: file.write_bytes(b"\xff\xfe\x00"), "cannot be read as JSON"),
        (lambda file: _edit(file, lambda d: d.update(version=99)), "version 99"),
        (lambda file: _edit(file, lambda d: d.update(fingerprint="0" * 32)), "for another program"),
        (lambda file: _edit(file, _other_decision), "contradicts itself"),
        (lambda file: _edit(file, _other_price), "costs something else than it says"),
        (lambda file: _edit(file, _unknown_class), "lays 'nonsense'"),
    ],
)
def test_a_damaged_file_is_replaced_with_a_message(searches, plan_cache, capsys, damage, said):
    first = run()
    (file,) = (plan_cache / "plans").iterdir()
    good = file.read_bytes()
    damage(file)
    assert run().record == first.record
    message = capsys.readouterr().err
    assert said in message and str(file) in message and "will be replaced" in message
    assert len(searches) == 2 and file.read_bytes() == good


def _other_decision(data):
    axes = data["programs"][0]["decision"]["axes"]
    for axis in axes:
        axis["compute"], axis["store"] = [], []


def _other_price(data):
    data["estimate"]["flops"] += 1


def _unknown_class(data):
    data["programs"][0]["decision"]["axes"][0]["compute"] = ["nonsense"]


def test_it_can_be_turned_off(searches, plan_cache):
    for _ in range(2):
        run(cache=False)
    assert len(searches) == 2 and not plan_cache.exists()


def test_a_folder_that_cannot_be_written_is_no_error(searches, tmp_path, monkeypatch, capsys):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("SHARDWRIGHT_CACHE", str(blocked))
    run()
    assert "the plan is not cached" in capsys.readouterr().err
    assert len(searches) == 1


def test_the_default_folder(searches, tmp_path, monkeypatch):
    monkeypatch.delenv("SHARDWRIGHT_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    run()
    assert len(os.listdir(tmp_path / ".cache" / "shardwright" / "plans")) == 1


def test_plan_itself_never_reads_or_writes(searches, plan_cache):
    for _ in range(2):
        sw.plan(mlp_step, mlp_state(), mlp_batch())
    assert len(searches) == 2 and not plan_cache.exists()


def test_a_cached_plan_trains(searches):
    run()
    jitted = sw.jit(mlp_step, mesh={"d": 2, "t": 4}, donate_argnums=0, verbose=False)
    state, expected = mlp_state(), mlp_state()
    for seed in range(2):
        state, _ = jitted(state, mlp_batch(seed))
        expected, _ = jax.jit(mlp_step)(expected, mlp_batch(seed))
    assert_close(state, expected)
    assert len(searches) == 1
