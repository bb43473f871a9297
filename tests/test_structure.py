"""The house rules that a machine can check: who may import whom, sizes, names.

Each test walks all the files and lists every breach at once. The walkers themselves are tested on short sources below
the rules, so that a walker that sees nothing does not pass for a clean house.
"""

import ast
import functools
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "shardwright"

# Lowest first. A room may import any room on a level below its own, and itself; never a neighbor on its level. So
# `cost`, `search` and `run` may read `partition` (what is priced is what is run), and everything above `rules` may
# read the rules.
LEVELS = (
    {"_compat"},
    {"program", "cluster"},
    {"rules"},
    {"ops", "plan"},
    {"partition", "rewrite"},
    {"cost"},
    {"search", "report", "run", "train"},
    {"_plan"},
    {"_api"},
    {"__init__"},
    {"cli"},
    {"__main__"},
)
LEVEL_OF = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 80
MAX_PUBLIC_NAMES = 30
BAG_NAMES = {"util", "utils", "helper", "helpers", "common", "manager", "managers"}
VERSION_NAMES = {"__version__", "__version_info__", "version"}
PRIVATE_DOOR = "shardwright/_compat.py"
WORKPLACE_PATH = re.compile(r"(?<![\w.~)\]}-])/" + r"work(?![\w-])")


# The rules


def test_imports_run_one_way():
    breaches = []
    for path in package_files():
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        package = ("shardwright", *parts[:-1])
        breaches += [f"{name(path)}:{breach}" for breach in import_breaches(parts[0], package, text_of(path))]
    assert not breaches, report(breaches)


def test_only_compat_touches_private_jax():
    breaches = [
        f"{name(path)}:{line}: {dotted} (go through {PRIVATE_DOOR})"
        for path in python_files()
        if name(path) != PRIVATE_DOOR
        for line, dotted in private_jax(text_of(path))
    ]
    assert not breaches, report(breaches)


def test_files_and_functions_stay_short():
    breaches = []
    for path in package_files():
        source = text_of(path)
        num_lines = len(source.splitlines())
        if num_lines > MAX_FILE_LINES:
            breaches.append(f"{name(path)}: {num_lines} lines, {MAX_FILE_LINES} at most")
        breaches += [
            f"{name(path)}:{line}: {function} has {length} lines, {MAX_FUNCTION_LINES} at most"
            for line, function, length in function_lengths(source)
            if length > MAX_FUNCTION_LINES
        ]
    assert not breaches, report(breaches)


def test_no_module_is_a_bag():
    breaches = [name(path) for path in python_files() if is_bag(path.relative_to(ROOT))]
    assert not breaches, report([f"{breach}: name a module for what it is" for breach in breaches])


def test_no_text_names_the_workplace():
    breaches = [
        f"{name(path)}:{number}: {line.strip()[:100]}"
        for path in repository_files()
        for number, line in enumerate(text_of(path).splitlines(), start=1)
        if WORKPLACE_PATH.search(line)
    ]
    assert not breaches, report(breaches)


def test_public_names_are_few():
    face = PACKAGE / "__init__.py"
    if not face.exists():
        pytest.skip("shardwright/__init__.py does not exist yet")
    names = public_names(text_of(face))
    assert len(names) <= MAX_PUBLIC_NAMES, f"{len(names)} public names, {MAX_PUBLIC_NAMES} at most: {sorted(names)}"


# The walkers


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def report(breaches: list[str]) -> str:
    return "\n".join(["", *breaches])


def package_files() -> list[Path]:
    files = [path for path in python_files() if PACKAGE in path.parents]
    assert files, f"no Python file was found under {PACKAGE}"
    return files


def python_files() -> list[Path]:
    return [path for path in repository_files() if path.suffix == ".py"]


@functools.cache
def repository_files() -> tuple[Path, ...]:
    """What git keeps or would keep: tracked files and new ones that are not ignored."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    paths = (ROOT / entry for entry in sorted(set(listed.split("\0"))) if entry)
    return tuple(path for path in paths if path.is_file())


def text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:  # a binary file holds no text
        return ""


def import_breaches(room: str, package: tuple[str, ...], source: str) -> Iterator[str]:
    """'line: why' for each import in `source`, a module of `room` in `package`, that the order forbids."""
    if room not in LEVEL_OF:
        yield f"1: {room} is in no level of tests/test_structure.py"
        return
    for line, other in imported_rooms(package, source):
        if other not in LEVEL_OF:
            yield f"{line}: {other} is in no level of tests/test_structure.py"
        elif other != room and LEVEL_OF[other] >= LEVEL_OF[room]:
            yield f"{line}: {room} imports {other}, which is not below it"


def imported_rooms(package: tuple[str, ...], source: str) -> Iterator[tuple[int, str]]:
    """(line, room) for each import of our own package, wherever it stands; `__init__` for the package's own face."""
    for line, dotted in imported_names(package, source):
        parts = dotted.split(".")
        if parts[0] != "shardwright":
            continue
        # `from shardwright import X` is room X if there is one and the face if not.
        is_room = len(parts) > 1 and (parts[1] in LEVEL_OF or len(parts) > 2)
        yield line, parts[1] if is_room else "__init__"


def imported_names(package: tuple[str, ...], source: str) -> Iterator[tuple[int, str]]:
    """(line, absolute dotted name) for each name that an import statement or `import_module` brings in."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            stem = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{stem}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and called(node) in {"import_module", "__import__"}:
            yield from ((node.lineno, text) for text in literal_arguments(node))


def private_jax(source: str) -> Iterator[tuple[int, str]]:
    """(line, dotted name) for each use of a private module of jax or of its version."""
    tree = ast.parse(source)
    imported = list(imported_names((), source))
    yield from ((line, dotted) for line, dotted in imported if is_private_jax(dotted))
    # Every name under which jax or a module of jax is known here, with what it stands for.
    aliases = {
        alias.asname or alias.name.split(".")[0]: alias.name if alias.asname else alias.name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            root, *rest = dotted_name(node).split(".")
            dotted = ".".join([aliases.get(root, ""), *rest])
            # The innermost private attribute only: `jax._src.core.x` is one use, not three.
            if is_private_jax(dotted) and not is_private_jax(dotted.rpartition(".")[0]):
                yield node.lineno, dotted
        elif isinstance(node, ast.Call) and called(node) == "version":
            yield from ((node.lineno, f'version("{text}")') for text in literal_arguments(node) if is_jax(text))


def is_jax(dotted: str) -> bool:
    return dotted.split(".")[0] in {"jax", "jaxlib"}


def is_private_jax(dotted: str) -> bool:
    inner = dotted.split(".")[1:]
    private = any(part.startswith("_") and not part.startswith("__") for part in inner)
    return is_jax(dotted) and (private or (bool(inner) and inner[0] in VERSION_NAMES))


def dotted_name(node: ast.expr) -> str:
    """'a.b.c' of a chain of attributes on a name; its root is empty where the chain starts from anything else."""
    if isinstance(node, ast.Attribute):
        return f"{dotted_name(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def called(node: ast.Call) -> str:
    return dotted_name(node.func).rpartition(".")[2]


def literal_arguments(node: ast.Call) -> list[str]:
    return [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]


def function_lengths(source: str) -> Iterator[tuple[int, str, int]]:
    """(line, name, number of lines) of each function, docstring and nested functions included, decorators not."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name, node.end_lineno - node.lineno + 1


def is_bag(path: Path) -> bool:
    return any(word in BAG_NAMES for part in path.with_suffix("").parts for word in part.lower().split("_"))


def public_names(source: str) -> set[str]:
    """The names without an underscore that a module binds at its top."""
    names: set[str] = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}
    assert "*" not in names, "a star import hides what is public"
    return {each for each in names if not each.startswith("_")}


# The walkers, tested


@pytest.mark.parametrize(
    ("room", "source", "num_breaches"),
    [
        ("cost", "from shardwright.partition.emit import f", 0),
        ("cost", "from shardwright import _compat, rules", 0),
        ("cost", "from .links import f", 0),
        ("cli", "import shardwright as sw", 0),
        ("cost", "import numpy, shardwrights", 0),
        ("cost", "import shardwright.search.exact", 1),
        ("cost", "from shardwright import search, run", 2),
        ("cost", "from shardwright import search_result", 1),
        ("cost", "from ..search import exact", 1),
        ("cost", "from .. import search", 1),
        ("cost", "def f():\n    from shardwright.search import exact", 1),
        ("cost", "import importlib\nimportlib.import_module('shardwright.search')", 1),
        ("cost", "from shardwright.attic import f", 1),
        ("search", "from shardwright.run import compile", 1),
        ("partition", "from shardwright.rewrite import pad", 1),
        ("rules", "import shardwright", 1),
        ("attic", "", 1),
    ],
)
def test_import_walker(room, source, num_breaches):
    assert len(list(import_breaches(room, ("shardwright", room), source))) == num_breaches


@pytest.mark.parametrize(
    ("source", "num_uses"),
    [
        ("import jax\njax.numpy.ones(3)\njax.__doc__", 0),
        ("from jax.extend.core import Primitive", 0),
        ("import numpy\nnumpy._core.x\nnumpy.__version__", 0),
        ("import jax._src.core", 1),
        ("import jax._src.core as c\nc.x", 1),
        ("from jax._src import core", 1),
        ("from jax import _src", 1),
        ("from jax import __version__", 1),
        ("import jax\njax._src.core.Jaxpr", 1),
        ("import jax as j\nj.__version__", 1),
        ("import jax.interpreters.mlir as m\nm._private", 1),
        ("import jaxlib\njaxlib._jax", 1),
        ("import importlib.metadata\nimportlib.metadata.version('jax')", 1),
    ],
)
def test_private_jax_walker(source, num_uses):
    assert len(list(private_jax(source))) == num_uses


def test_other_walkers():
    nested = "class A:\n    @property\n    def f(self):\n        def g():\n            pass\n        return g\n"
    assert sorted(function_lengths(nested)) == [(3, "f", 4), (4, "g", 2)]
    assert is_bag(Path("shardwright/cost/mesh_utils.py")) and is_bag(Path("shardwright/common/x.py"))
    assert not is_bag(Path("shardwright/plan/community.py"))
    face = "from __future__ import annotations\nfrom a.b import C as C, _d\nimport e.f\ng: int = 1\nh, _i = 1, 2\n"
    assert public_names(face) == {"C", "e", "g", "h"}
    place = "/" + "work"
    assert all(WORKPLACE_PATH.search(text) for text in (f"see {place}/a", f"`{place}`", f'"{place}/shared"'))
    assert not any(WORKPLACE_PATH.search(text) for text in (f"net{place}/a", f"{place}ers/a", f"https://a.b{place}/c"))
