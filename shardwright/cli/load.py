"""Loads the user's step: FILE.py:NAME, where NAME() returns `(step, args)`."""

from __future__ import annotations

import dataclasses
import difflib
import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

FORM = "FILE.py:NAME, where NAME is a function without arguments that returns (step, args)"


class LoadError(ValueError):
    """What the user named cannot be loaded; the message says what to do."""


@dataclasses.dataclass(frozen=True)
class Loaded:
    """A step and the arguments to plan it for, arrays or `jax.ShapeDtypeStruct`s."""

    step: Callable[..., Any]
    args: tuple[Any, ...]


def load(spec: str) -> Loaded:
    """Runs the file and calls the function in it.

    Args:
        spec: FILE.py:NAME.

    Raises:
        LoadError: No such file or name, an error in the user's file (with its line), or another kind of result.
    """
    file, separator, name = spec.rpartition(":")
    if not separator or not file or not name:
        raise LoadError(f"{spec!r} does not name a step: write {FORM}")
    path = Path(file)
    if not path.is_file():
        raise LoadError(f"there is no file {file!r}: write {FORM}")
    module = _run_file(path)
    maker = _find(module, name, file)
    try:
        result = maker()
    except Exception as error:
        raise LoadError(f"{spec}: calling {name}() failed: {_where(error, path)}") from error
    return _check(result, spec)


def _run_file(path: Path) -> ModuleType:
    if path.suffix != ".py":
        raise LoadError(f"{str(path)!r} is not a .py file: write {FORM}")
    path = path.resolve()
    # By its own name pickles and dataclasses find it again; a file named like a loaded module must not replace that.
    name = path.stem if path.stem not in sys.modules else f"{path.stem} ({path})"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # there is a loader for every .py file
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))  # as for a script: the modules beside it can be imported
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise LoadError(f"{path.name} cannot be loaded: {_where(error, path)}") from error
    return module


def _find(module: ModuleType, name: str, file: str) -> Callable[[], Any]:
    found = vars(module).get(name)
    if callable(found):
        return found
    if found is not None:
        raise LoadError(f"{name} in {file} is a {type(found).__name__}, not a function: write {FORM}")
    functions = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
    near = difflib.get_close_matches(name, functions, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"it defines {', '.join(functions) or 'no functions'}"
    raise LoadError(f"there is no {name} in {file}: {hint}")


def _check(result: Any, spec: str) -> Loaded:
    if not isinstance(result, tuple) or len(result) != 2:
        got = f"a tuple of {len(result)}" if isinstance(result, tuple) else f"a {type(result).__name__}"
        raise LoadError(f"{spec} returned {got}; it has to return (step, args)")
    step, args = result
    if not callable(step):
        raise LoadError(f"{spec} returned (step, args) with a step that is a {type(step).__name__}, not a function")
    if not isinstance(args, tuple | list):
        raise LoadError(f"{spec} returned args as a {type(args).__name__}; wanted a tuple, even for one argument: (x,)")
    return Loaded(step, tuple(args))


def _where(error: Exception, path: Path) -> str:
    """The error in one line, with the last line of the user's file that it passed through."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"line {error.lineno} of {Path(error.filename).name}: SyntaxError: {error.msg}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).resolve() == path.resolve()]
    line = f"line {frames[-1].lineno}: " if frames else ""
    return f"{line}{type(error).__name__}: {error}"
