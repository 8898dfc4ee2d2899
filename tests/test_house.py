"""The house's laws: who may import whom, what a start loads, how long a function may be."""

from __future__ import annotations

import ast
import re
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "clusterrun"

NODES, DESK, GROUND, APART = "nodes", "desk", "ground", "apart"
ROOMS = {
    "model": (GROUND, 1),
    "atomic_file": (GROUND, 1.1),
    "proc": (GROUND, 1.2),
    "diagnosis": (GROUND, 1.5),
    "preflight": (NODES, 2),
    "watch": (NODES, 2),
    "agent": (NODES, 3),
    "system": (DESK, 1.5),
    "config": (DESK, 2),
    "reports": (DESK, 2),
    "runs": (DESK, 2),
    "script": (DESK, 2),
    "logs": (DESK, 2),
    "slurm": (DESK, 3),
    "local": (DESK, 3),
    "backends": (DESK, 4),
    "verbs": (DESK, 5),
    "workflow": (DESK, 6),
    "bench": (DESK, 6.5),
    "cli": (DESK, 7),
    "lab": (APART, 0),
    "training": (APART, 0),
    "prelude": (APART, 0),
}
"""Tower and floor of every room; a room is a folder or a file right under the package."""
APART_MAY_USE = {"lab": {"model", "system", "atomic_file"}, "training": {"model"}, "prelude": set()}
MAY_USE_WHAT_IS_APART = {"cli": {"lab"}}
"""The only door: the command line opens the lab, in a subcommand (and `python -m` may open any command)."""

PYTHON_39_ROOMS = (
    "model",
    "atomic_file",
    "proc",
    "diagnosis",
    "preflight",
    "watch",
    "agent",
    "prelude",
    "training",
)
ONE_IMPORTER = {
    "click": ("cli/",),
    "rich": ("cli/",),
    "jinja2": ("script/render.py",),
    "submitit": ("backends/",),
    "torch": ("training/", "preflight/warm/"),
    "psutil": ("cli/", "backends/"),
    "matplotlib": ("bench/plot.py",),
    "tomli": ("config/profiles.py",),
    "subprocess": (
        "system.py",
        "agent/process.py",
        "preflight/children.py",
        "preflight/programs.py",
        "watch/children.py",
        "lab/",
    ),
}
ENTRY_POINTS = (
    "cli/",
    "agent/main.py",
    "preflight/surroundings.py",
    "verbs/desk.py",
    "backends/local.py",
    "lab/",
    "training/",
    "prelude/",
)
"""Where a process starts, or a user's own program comes in: there the environment may be read.

A pre-flight check runs in a process of its own, and the environment may be what it examines.
The local backend is among them because submitit writes its own variables into this very process.
"""

PUBLIC = ("__init__.py", "training/__init__.py")
"""What users import from: here stand their names."""

LONGEST_FUNCTION = 40


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


def findings(modules: list[Module], look: Callable[[Module], object]) -> dict[str, object]:
    """What looking at each module found, by its place; modules with nothing to say are left out."""
    found = {module.place: look(module) for module in modules}
    return {place: what for place, what in found.items() if what}


def in_rooms(*rooms: str) -> list[Module]:
    return [module for module in in_package() if module.room in rooms]


def test_every_room_has_its_place_in_the_house():
    found = {module.room for module in in_package()} - {"__init__", "__main__"}
    assert found - ROOMS.keys() == set()


def test_a_room_imports_from_lower_floors_of_its_own_tower_only():
    modules = [module for module in in_rooms(*ROOMS) if module.path.name != "__main__.py"]
    strays = findings(modules, lambda one: [used for used in one.rooms_used if not allowed(one.room, used)])
    assert strays == {}


@pytest.mark.parametrize(
    ("room", "used", "may"),
    [
        ("cli", "workflow", True),
        ("workflow", "cli", False),
        ("slurm", "backends", False),
        ("script", "runs", False),
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


def test_a_library_has_one_importer():
    def strays(module: Module) -> list[str]:
        tops = {name.split(".")[0] for name in module.imports}
        return [
            name
            for name, rooms in ONE_IMPORTER.items()
            if name in tops and not module.place.startswith(rooms)
        ]

    assert findings(in_package(), strays) == {}


def test_nothing_but_the_standard_library_and_the_named_libraries_is_imported():
    def unknown(module: Module) -> set[str]:
        newer = "_sha2"  # in the standard library since 3.12
        preludes = {"clusterrun_prelude", "sitecustomize"}  # by the names that a rank's Python finds them by
        known = {"clusterrun", "typing_extensions", newer, *preludes, *sys.stdlib_module_names}
        bare = module.room in PYTHON_39_ROOMS and not module.place.startswith(
            ("preflight/warm/", "training/")
        )
        libraries = set() if bare else set(ONE_IMPORTER)
        return {name.split(".")[0] for name in module.imports} - known - libraries

    assert findings(in_package(), unknown) == {}


def test_the_environment_is_read_at_the_entry_points_only():
    words = {"environ", "environb", "getenv"}

    def reads(module: Module) -> list[str]:
        attributes = (node for node in ast.walk(module.tree) if isinstance(node, ast.Attribute))
        return [
            f"line {node.lineno}"
            for node in attributes
            if node.attr in words and ast.unparse(node.value) == "os"
        ] + [name for name in module.imports if name in {f"os.{word}" for word in words}]

    elsewhere = [module for module in in_package() if not module.place.startswith(ENTRY_POINTS)]
    assert findings(elsewhere, reads) == {}


def test_what_runs_on_nodes_is_python_39():
    for module in in_rooms(*PYTHON_39_ROOMS):
        ast.parse(module.path.read_text(encoding="utf-8"), str(module.path), feature_version=(3, 9))
    matches = findings(
        in_rooms(*PYTHON_39_ROOMS),
        lambda one: [node.lineno for node in ast.walk(one.tree) if isinstance(node, ast.Match)],
    )
    assert matches == {}


def test_an_init_file_holds_nothing_but_public_names():
    silent = [one for one in in_package() if one.path.name == "__init__.py" and one.place not in PUBLIC]
    assert findings(silent, lambda one: one.tree.body[ast.get_docstring(one.tree) is not None :]) == {}


def test_a_module_opens_with_a_sentence():
    def unlike_a_sentence(module: Module) -> str:
        opening = (ast.get_docstring(module.tree) or "nothing").split("\n\n")[0]
        return "" if re.match(r"\S.*[.:]\Z", opening, re.DOTALL) else opening

    named = [module for module in product() if module.path.name != "__init__.py"]
    assert findings(named, unlike_a_sentence) == {}


def test_no_function_grows_too_long():
    long = findings(product(), lambda one: [found for found in functions(one) if found[1] > LONGEST_FUNCTION])
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


def test_no_shell_is_started():
    def shells(module: Module) -> list[int]:
        calls = [node for node in ast.walk(module.tree) if isinstance(node, ast.Call)]
        words = [call.lineno for call in calls for word in call.keywords if word.arg == "shell"]
        methods = [call for call in calls if isinstance(call.func, ast.Attribute)]
        names = {"popen", "getoutput", "getstatusoutput"}
        return words + [call.lineno for call in methods if ast.unparse(call.func).split(".")[-1] in names]

    assert findings(product(), shells) == {}


def test_nothing_is_unpickled():
    def codes(module: Module) -> set[str]:
        # Bytecode of our own sources, in our own file: none else writes it, and none else reads it.
        bytecode = ("script/pack.py", "agent/bytecode.py", "watch/dressing.py")
        unsafe = {"pickle", "shelve"} | ({"marshal"} if module.place not in bytecode else set())
        return {name.split(".")[0] for name in module.imports} & unsafe

    assert findings(product(), codes) == {}


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
