import sys

import pytest

from shardwright.cli import load


@pytest.fixture(autouse=True)
def _same_path_and_modules(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(tmp_path, source, name="program_file.py"):
    path = tmp_path / name
    path.write_text(source)
    return str(path)


def test_a_step_and_its_arguments_are_loaded(tmp_path):
    write(tmp_path, "SCALE = 3\n", "beside_it.py")
    file = write(tmp_path, "import beside_it\ndef make():\n    return (lambda x: x * beside_it.SCALE), [2]\n")
    loaded = load.load(f"{file}:make")
    assert loaded.args == (2,) and loaded.step(*loaded.args) == 6


def test_dataclasses_of_the_file_work_as_in_a_script(tmp_path):
    source = """
from __future__ import annotations
import dataclasses, typing
@dataclasses.dataclass
class Config:
    kind: typing.ClassVar[int] = 1
    width: int = 2
def make():
    return max, (Config().width,)
"""
    assert load.load(f"{write(tmp_path, source)}:make").args == (2,)


def test_a_file_named_like_a_loaded_module_does_not_replace_it(tmp_path):
    json = sys.modules["json"]
    load.load(write(tmp_path, "def make():\n    return max, (1,)\n", "json.py") + ":make")
    assert sys.modules["json"] is json


@pytest.mark.parametrize(
    ("source", "name", "message"),
    [
        ("x = 1", "make", r"there is no make in .*: it defines no functions"),
        ("def maker(): pass", "make", r"there is no make .*did you mean maker\?"),
        ("def other(): pass", "make", r"it defines other"),
        ("make = 3", "make", r"make .* is a int, not a function"),
        ("x = 1\ny = x / 0", "make", r"cannot be loaded: line 2: ZeroDivisionError"),
        ("def make(:\n", "make", r"cannot be loaded: line 1 of program_file.py: SyntaxError"),
        ("import nowhere_at_all", "make", r"line 1: ModuleNotFoundError: No module named 'nowhere_at_all'"),
        ("def make():\n    raise KeyError('lr')", "make", r"calling make\(\) failed: line 2: KeyError: 'lr'"),
        ("def make(config): pass", "make", r"calling make\(\) failed: TypeError: .*config"),
        ("def make(): return 1", "make", r"returned a int; it has to return \(step, args\)"),
        ("def make(): return 1, 2, 3", "make", r"returned a tuple of 3"),
        ("def make(): return 1, (2,)", "make", r"a step that is a int, not a function"),
        ("def make(): return max, 2", "make", r"args as a int; wanted a tuple"),
    ],
)
def test_what_cannot_be_loaded_says_why(tmp_path, source, name, message):
    with pytest.raises(load.LoadError, match=message):
        load.load(f"{write(tmp_path, source)}:{name}")


@pytest.mark.parametrize("spec", ["train.py", ":make", "train.py:"])
def test_a_spec_without_its_parts_is_refused(spec):
    with pytest.raises(load.LoadError, match=r"does not name a step: write FILE.py:NAME"):
        load.load(spec)


def test_missing_and_other_files_are_refused(tmp_path):
    with pytest.raises(load.LoadError, match="there is no file"):
        load.load(f"{tmp_path}/nowhere.py:make")
    with pytest.raises(load.LoadError, match=r"is not a \.py file"):
        load.load(write(tmp_path, "", "notes.txt") + ":make")
