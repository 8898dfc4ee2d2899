"""The house's laws: who may import whom, what a start loads, how large a function may grow."""

from __future__ import annotations

import ast
import re
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "clusterrun"

NODES, DESK, GROUND, APART = "nodes", "desk", "ground", "apart"
ROOMS = {
    "model": (GROUND, 1),
    "preflight": (NODES, 2),
    "agent": (NODES, 3),
    # What the desk itself stands on.
    "disk": (DESK, 1.5),
    "settings": (DESK, 1.5),
    "system": (DESK, 1.5),
    "profiles": (DESK, 2),
    "store": (DESK, 2),
    "script": (DESK, 2),
    "logs": (DESK, 2),
    "snapshot": (DESK, 2),
    "slurm": (DESK, 3),
    "local": (DESK, 3),
    "judge": (DESK, 3.5),
    "backends": (DESK, 4),
    "inquiry": (DESK, 4),
    # The verbs, and what they share.
    "desk": (DESK, 4.2),
    "submission": (DESK, 4.4),
    "waiting": (DESK, 4.4),
    "cancelling": (DESK, 4.4),
    "listening": (DESK, 4.6),
    "workflow": (DESK, 5),
    "cli": (DESK, 6),
    "lab": (APART, 0),
    "training": (APART, 0),
}
"""Tower and floor of every room; a room is a folder or a file right under the package."""
APART_MAY_USE = {"lab": {"model", "system"}, "training": {"model"}}
MAY_USE_WHAT_IS_APART = {"cli": {"lab"}}
"""The only door: the command line opens the lab, in a subcommand (and `python -m` may open any command)."""

PYTHON_39_ROOMS = ("model", "preflight", "agent")
ONE_IMPORTER = {
    "click": ("cli/",),
    "rich": ("cli/",),
    "jinja2": ("script/render.py",),
    "submitit": ("backends/",),
    "torch": ("training/",),
    "psutil": ("cli/", "backends/"),
    "tomli": ("profiles.py",),
    "subprocess": ("system.py", "agent/process.py", "lab/"),
}
ENTRY_POINTS = ("cli/", "agent/main.py", "desk.py", "backends/local.py", "lab/", "training/")
"""Where a process starts, or a user's own program comes in: there the environment may be read.

The local backend is among them because submitit writes its own variables into this very process.
"""

PUBLIC = ("__init__.py", "training/__init__.py")
"""What users import from: here stand their names."""

LONGEST_FUNCTION = 40
LONGEST_FILE = 300


@dataclass(frozen=True)
class Module:
    """One source file: where it stands and what it holds."""

    path: Path

    @property
    def place(self) -> str:
        return self.path.relative_to(PACKAGE if self.path.is_relative_to(PACKAGE) else ROOT).as_posix()

    @property
    def room(self) -> str:
        return self.place.split("/")[0].removesuffix(".py")

    @property
    def tree(self) -> ast.Module:
        return tree_of(self.path)

    @property
    def imports(self) -> Iterator[str]:
        """The full name of every module imported anywhere in the file, at the top or lazily."""
        package = ["clusterrun", *self.place.split("/")[:-1]]
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                above = package[: len(package) - node.level + 1] if node.level else []
                module = ".".join([*above, *filter(None, [node.module])])
                yield module
                yield from (f"{module}.{alias.name}" for alias in node.names)

    @property
    def rooms_used(self) -> set[str]:
        names = (name.split(".") for name in self.imports)
        used = {name[1] for name in names if name[0] == "clusterrun" and len(name) > 1}
        return (used & ROOMS.keys()) - {self.room}


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def in_package() -> list[Module]:
    return [Module(path) for path in sorted(PACKAGE.rglob("*.py"))]


def product() -> list[Module]:
    """All that is shipped: the package and what ranks run."""
    return in_package() + [Module(path) for path in sorted((ROOT / "jobs").rglob("*.py"))]


def allowed(room: str, used: str) -> bool:
    """Whether one room may import another."""
    if ROOMS[room][0] == APART:
        return used in APART_MAY_USE[room]
    if ROOMS[used][0] == APART:
        return used in MAY_USE_WHAT_IS_APART.get(room, set())
    (tower, floor), (other_tower, other_floor) = ROOMS[room], ROOMS[used]
    return other_floor < floor and other_tower in (tower, GROUND)


def each(modules: list[Module]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("module", modules, ids=lambda module: module.place)


def test_every_room_has_its_place_in_the_house():
    found = {module.room for module in in_package()} - {"__init__", "__main__"}
    assert found - ROOMS.keys() == set()


@each([module for module in in_package() if module.path.name != "__main__.py" and module.room != "__init__"])
def test_a_room_imports_from_lower_floors_of_its_own_tower_only(module):
    assert [used for used in sorted(module.rooms_used) if not allowed(module.room, used)] == []


@pytest.mark.parametrize(
    ("room", "used", "may"),
    [
        ("cli", "workflow", True),
        ("workflow", "cli", False),
        ("slurm", "backends", False),
        ("script", "store", False),
        ("agent", "preflight", True),
        ("agent", "slurm", False),
        ("backends", "agent", False),
        ("model", "system", False),
        ("lab", "system", True),
        ("lab", "slurm", False),
        ("cli", "lab", True),
        ("workflow", "training", False),
    ],
)
def test_the_stairs_are_those_of_the_drawing(room, used, may):
    assert allowed(room, used) is may


@each(in_package())
def test_a_library_has_one_importer(module):
    tops = {name.split(".")[0] for name in module.imports}
    strays = [
        name for name, rooms in ONE_IMPORTER.items() if name in tops and not module.place.startswith(rooms)
    ]
    assert strays == []


@each(in_package())
def test_nothing_but_the_standard_library_and_the_named_libraries_is_imported(module):
    known = sys.stdlib_module_names | ONE_IMPORTER.keys() | {"clusterrun"}
    if module.room in PYTHON_39_ROOMS:
        known = sys.stdlib_module_names | {"clusterrun"}
    typing_only = {"typing_extensions"}
    assert {name.split(".")[0] for name in module.imports} - known - typing_only == set()


@each([module for module in in_package() if not module.place.startswith(ENTRY_POINTS)])
def test_the_environment_is_read_at_the_entry_points_only(module):
    words = {"environ", "environb", "getenv"}
    reads = [
        f"line {node.lineno}"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute) and node.attr in words and ast.unparse(node.value) == "os"
    ]
    assert not {f"os.{word}" for word in words} & set(module.imports)
    assert reads == []


@each([module for module in in_package() if module.room in PYTHON_39_ROOMS])
def test_what_runs_on_nodes_is_python_39(module):
    ast.parse(module.path.read_text(encoding="utf-8"), feature_version=(3, 9))
    assert not any(isinstance(node, ast.Match) for node in ast.walk(module.tree))


@each([module for module in in_package() if module.path.name == "__init__.py"])
def test_an_init_file_holds_nothing_but_public_names(module):
    if module.place not in PUBLIC:
        told = ast.get_docstring(module.tree) is not None
        assert module.tree.body[told:] == []


@each([module for module in product() if module.path.name != "__init__.py"])
def test_a_module_opens_with_a_sentence(module):
    text = ast.get_docstring(module.tree) or ""
    assert re.match(r"\S.*[.:]\Z", text.split("\n\n")[0], re.DOTALL), f"it opens with {text[:80]!r}"


@each(product())
def test_no_file_and_no_function_grows_too_long(module):
    assert len(module.path.read_text(encoding="utf-8").splitlines()) <= LONGEST_FILE
    long = {name: lines for name, lines in functions(module) if lines > LONGEST_FUNCTION}
    assert long == {}


def test_most_functions_are_small():
    lengths = [lines for module in product() for _, lines in functions(module)]
    assert statistics.median(lengths) <= 10
    assert statistics.quantiles(lengths, n=10)[-1] <= 25


def functions(module: Module) -> Iterator[tuple[str, int]]:
    """Name and length in lines of every function, its docstring not counted."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            lines = node.end_lineno - node.lineno + 1
            first = node.body[0]
            if ast.get_docstring(node, clean=False) is not None and first.end_lineno is not None:
                lines -= first.end_lineno - first.lineno + 1
            yield node.name, lines


@each(product())
def test_nothing_is_named_for_nothing_in_particular(module):
    names = {module.path.stem} | {
        node.name for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef | ast.FunctionDef)
    }
    assert [name for name in names if re.search(r"(?i)(^|_)utils?($|_)|helper|manager", name)] == []


@each(product())
def test_no_shell_is_started_and_nothing_is_pickled(module):
    calls = [node for node in ast.walk(module.tree) if isinstance(node, ast.Call)]
    shells = [call.lineno for call in calls for word in call.keywords if word.arg == "shell"]
    assert shells == []
    codes = {"pickle", "shelve"} if module.place == "script/pack.py" else {"pickle", "shelve", "marshal"}
    assert {name.split(".")[0] for name in module.imports} & codes == set()
    called = {call.func.attr for call in calls if isinstance(call.func, ast.Attribute)}
    assert called & {"popen", "getoutput", "getstatusoutput"} == set()


SOURCES = (".py", ".md", ".cfg", ".toml", ".txt", ".j2", ".sh", ".yml", ".yaml", "")
NOT_OURS = {".git", ".venv", "build", "dist", "recorded", "golden", "__pycache__", "clusterrun.egg-info"}


def sources() -> Iterator[Path]:
    """Every text file of the project."""
    for path in sorted(ROOT.rglob("*")):
        inside = path.relative_to(ROOT)
        hidden = any(part.startswith(".") and part != ".ci" for part in inside.parts)
        if path.is_file() and path.suffix in SOURCES and not hidden and not NOT_OURS & set(inside.parts):
            yield path


def test_nothing_is_left_to_be_done_and_no_file_knows_where_it_was_written():
    unfinished = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sources()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if unfinished.search(line) or re.search(re.escape(str(ROOT)) + r"(?!\w)", line)
    ]
    assert found == []
