"""The rules of the code: which package may import which, what a start loads, how long a function may be."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "clusterrun"

SHARED, NODES, CLIENT, APART = "shared", "nodes", "client", "apart"
LAYERS = {
    "model": (SHARED, 1),
    "atomic_file": (SHARED, 1.1),
    "proc": (SHARED, 1.2),
    "slurm_text": (SHARED, 1.3),
    "container_runtimes": (SHARED, 1.4),
    "notify": (SHARED, 1.5),
    "diagnosis": (SHARED, 1.5),
    "runtime": (NODES, 1.6),
    "preflight": (NODES, 2),
    "monitor": (NODES, 2),
    "protocol": (NODES, 3),
    "agent": (NODES, 4),
    "coordinator": (NODES, 4),
    "node": (NODES, 5),
    "system": (CLIENT, 1.5),
    "shipped": (CLIENT, 1.5),
    "config": (CLIENT, 2),
    "reports": (CLIENT, 2),
    "runs": (CLIENT, 2),
    "script": (CLIENT, 2),
    "logs": (CLIENT, 2),
    "slurm": (CLIENT, 3),
    "local": (CLIENT, 3),
    "operations": (CLIENT, 5),
    "api": (CLIENT, 6),
    "executor": (CLIENT, 6.3),
    "remote": (CLIENT, 6.5),
    "bench": (CLIENT, 6.5),
    "rehearse": (CLIENT, 6.5),
    "cli": (CLIENT, 7),
    "lab": (APART, 0),
    "training": (APART, 0),
    "rank_hooks": (APART, 0),
}
"""Side and layer of every package; a package is a folder or a file right under clusterrun/."""
APART_MAY_USE = {
    "lab": {"model", "atomic_file", "proc", "system"},
    "training": {"model"},
    "rank_hooks": set(),
}
MAY_USE_WHAT_IS_APART = {"cli": {"lab"}, "executor": {"training"}, "monitor": {"rank_hooks"}}
"""Only the command line opens the lab, in a subcommand (and `python -m` may open any command).

A look at a foreign rank reads its source as the prelude does.

A function's ranks run `training/function.py`, and the executor reads what it writes.
"""
PURE = (
    "coordinator/*.py",
    "diagnosis/*.py",
    "diagnosis/rules/*.py",
    "slurm_text/*.py",
    "preflight/causes/*.py",
    "preflight/session/*.py",
)
"""What decides: it neither waits, nor opens, nor starts anything, nor reads a clock."""
DOES = {
    "socket",
    "subprocess",
    "selectors",
    "select",
    "time",
    "threading",
    "multiprocessing",
    "fcntl",
    "mmap",
}

ON_NODES = (
    *(name for name, (side, _) in LAYERS.items() if side in (SHARED, NODES)),
    "rank_hooks",
    "training",
)
ONE_IMPORTER = {
    "click": ("cli/",),
    "rich": ("cli/",),
    "jinja2": ("script/render.py", "reports/html.py"),
    "submitit": ("local/start_run.py", "executor.py", "training/function.py"),
    "cloudpickle": ("executor.py",),
    "torch": ("training/", "preflight/torch_worker/"),
    "psutil": ("cli/",),
    "tree_sitter": ("script/shell_grammar.py",),
    "tree_sitter_bash": ("script/shell_grammar.py",),
    "matplotlib": ("bench/plot.py", "bench/sweep_plot.py"),
    "mcp": ("cli/mcp.py",),
    "pydantic": ("cli/mcp.py",),
    "tomli": ("config/profiles.py",),
    "subprocess": (
        "system.py",
        "runtime/processes.py",
        "preflight/node/forked_call.py",
        "preflight/probes/run_program.py",
        "monitor/external_tools.py",
        "notify/deliver.py",
        "lab/",
    ),
}
ENTRY_POINTS = (
    "cli/",
    "node/main.py",
    "preflight/probes/process_context.py",
    "operations/context.py",
    "local/start_run.py",
    "lab/",
    "training/",
    "rank_hooks/",
)
"""Modules at which a process or a user's program starts. They may read the environment.

A pre-flight check runs in a process of its own, and the environment may be what it examines.
`local/start_run.py` is among them because submitit reads its variables from this very process.
"""

# Modules that rename files without ``atomic_file``, each with its reason. ``agent/orphaned_job.py`` renames
# in a shell, because the folder may be on a server that does not answer.
RENAMES = {
    "atomic_file.py": "the one way to write a file whole",
    "training/files.py": "a checkpoint streams, and the checksum of what was streamed is its name",
    "training/post.py": "the folder training/ may be copied beside a script, without the rest of the package",
    "lab/roots.py": "a folder that was filled",
    "runs/removal.py": "a folder that is about to be removed",
}

# Modules that users import from.
PUBLIC = ("__init__.py", "training/__init__.py")


@dataclass(frozen=True)
class Module:
    """One source file: where it stands and what it holds."""

    path: Path

    @property
    def place(self) -> str:
        return self.path.relative_to(PACKAGE if self.path.is_relative_to(PACKAGE) else ROOT).as_posix()

    @property
    def package(self) -> str:
        return self.place.split("/")[0].removesuffix(".py")

    @property
    def tree(self) -> ast.Module:
        return tree_of(self.path)

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        return tuple(ast.walk(self.tree))

    @cached_property
    def imports(self) -> tuple[str, ...]:
        """Return the full name of every module that the file imports, at the top or lazily."""
        return tuple(self._imports())

    def _imports(self) -> Iterator[str]:
        above = ["clusterrun", *self.place.split("/")[:-1]]
        for node in self.nodes:
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = above[: len(above) - node.level + 1] if node.level else []
                module = ".".join([*base, *filter(None, [node.module])])
                yield module
                yield from (f"{module}.{alias.name}" for alias in node.names)

    @property
    def packages_used(self) -> set[str]:
        names = (name.split(".") for name in self.imports)
        used = {name[1] for name in names if name[0] == "clusterrun" and len(name) > 1}
        return (used & LAYERS.keys()) - {self.package}


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@cache
def in_package() -> list[Module]:
    return [Module(path) for path in sorted(PACKAGE.rglob("*.py"))]


def product() -> list[Module]:
    """Return everything that is shipped: the package and the files that ranks run."""
    apart = (path for name in ("jobs", "hydra_plugins") for path in (ROOT / name).rglob("*.py"))
    return in_package() + [Module(path) for path in sorted(apart)]


def allowed(package: str, used: str) -> bool:
    """Return whether one package may import another."""
    if LAYERS[package][0] == APART:
        return used in APART_MAY_USE[package]
    if LAYERS[used][0] == APART:
        return used in MAY_USE_WHAT_IS_APART.get(package, set())
    (side, layer), (other_side, other_layer) = LAYERS[package], LAYERS[used]
    return other_layer < layer and other_side in (side, SHARED)


def findings(modules: list[Module], look: Callable[[Module], object]) -> dict[str, object]:
    """Return the findings of ``look`` by module. Modules without a finding are left out."""
    results = {module.place: look(module) for module in modules}
    return {place: what for place, what in results.items() if what}


def in_packages(*packages: str) -> list[Module]:
    return [module for module in in_package() if module.package in packages]


def test_every_package_has_its_layer() -> None:
    result = {module.package for module in in_package()} - {"__init__", "__main__"}
    assert result - LAYERS.keys() == set()


def test_contributing_draws_the_same_layers() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1:-1] for line in text.splitlines() if re.match(r"\| [0-9]", line)]
    drawn = {
        package: (side, float(layer))
        for layer, *cells in rows
        for side, cell in zip((SHARED, NODES, CLIENT), cells, strict=True)
        for package in re.findall("`(.*?)`", cell)
    }
    assert drawn == {package: place for package, place in LAYERS.items() if place[0] != APART}
    (apart,) = re.findall(r"^Outside of the layers .*?first\)", text, re.MULTILINE | re.DOTALL)
    assert set(re.findall("`(.*?)`", apart)) == {name for name, (side, _) in LAYERS.items() if side == APART}


def test_a_package_imports_from_lower_layers_of_its_own_side_only() -> None:
    modules = [module for module in in_packages(*LAYERS) if module.path.name != "__main__.py"]
    strays = findings(
        modules, lambda entry: [used for used in entry.packages_used if not allowed(entry.package, used)]
    )
    assert strays == {}


# The folders inside a package, lowest first. A folder imports from lower folders and from files beside them.
FOLDERS = {"preflight": ("probes", "causes", "checks", "node", "torch_worker", "session")}


def test_a_folder_of_a_package_imports_from_lower_folders_only() -> None:
    def upward_imports(module: Module) -> list[str]:
        folders = FOLDERS[module.package]
        folder = module.place.split("/")[1]
        imported = (name.split(".") for name in module.imports)
        used = {name[2] for name in imported if name[1:2] == [module.package] and len(name) > 3}
        if folder not in folders:
            return []
        return sorted(other for other in used & set(folders) if folders.index(other) > folders.index(folder))

    assert findings(in_packages(*FOLDERS), upward_imports) == {}


@pytest.mark.parametrize(
    ("package", "used", "may"),
    [
        ("cli", "api", True),
        ("api", "cli", False),
        ("slurm", "operations", False),
        ("script", "runs", False),
        ("coordinator", "preflight", True),
        ("agent", "coordinator", False),
        ("coordinator", "agent", False),
        ("node", "agent", True),
        ("agent", "slurm", False),
        ("local", "agent", False),
        ("model", "system", False),
        ("lab", "system", True),
        ("lab", "slurm", False),
        ("cli", "lab", True),
        ("api", "training", False),
    ],
)
def test_these_imports_are_allowed_and_these_are_not(package, used, may) -> None:
    assert allowed(package, used) is may


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Types count too: what only a checker imports ties two files together for a reader as well."""
    modules = {f"clusterrun.{value.place[:-3].replace('/', '.')}": value for value in in_package()}
    uses = {name: {used for used in value.imports if used in modules} for name, value in modules.items()}
    while free := [name for name, used in uses.items() if not used & uses.keys() - {name}]:
        for name in free:
            del uses[name]
    assert uses == {}


def test_deciding_modules_do_nothing_else() -> None:
    files = {path for pattern in PURE for path in PACKAGE.glob(pattern)}
    modules = [Module(path) for path in sorted(files)]
    assert findings(modules, lambda entry: {name.split(".")[0] for name in entry.imports} & DOES) == {}
    upward = findings(
        [entry for entry in modules if entry.place.startswith("coordinator/")],
        lambda entry: [name for name in entry.imports if name.startswith("clusterrun.coordinator.io")],
    )
    assert upward == {}


SAME_STEM = {"__init__", "__main__", "actions", "events"}
"""`actions` and `events` are what a state machine takes and gives, one pair for each machine."""


def test_a_file_name_exists_once_on_each_side() -> None:
    """A command in cli/ bears the name of its operation, and what stands apart has names of its own."""
    for side in (NODES, CLIENT):
        observed: dict[str, str] = {}
        for entry in in_package():
            if (
                entry.path.stem in SAME_STEM
                or entry.package not in LAYERS
                or LAYERS[entry.package][0] not in (side, SHARED)
            ):
                continue
            other = observed.setdefault(entry.path.stem, entry.place)
            pair = {entry.place.split("/")[0], other.split("/")[0]}
            assert other == entry.place or pair == {"cli", "operations"}, (other, entry.place)


def test_a_class_name_exists_once_in_the_package() -> None:
    result: dict[str, list[str]] = {}
    for entry in in_package():
        for node in entry.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                result.setdefault(node.name, []).append(entry.place)
    assert {name: places for name, places in result.items() if len(places) > 1} == {}


def test_a_library_has_one_importer() -> None:
    def strays(module: Module) -> list[str]:
        tops = {name.split(".")[0] for name in module.imports}
        return [
            name
            for name, packages in ONE_IMPORTER.items()
            if name in tops and not module.place.startswith(packages)
        ]

    assert findings(in_package(), strays) == {}


def test_nothing_but_the_standard_library_and_the_named_libraries_is_imported() -> None:
    def unknown(module: Module) -> set[str]:
        newer = "_sha2"  # in the standard library since 3.12
        preludes = {
            "clusterrun_code_copy",
            "clusterrun_prelude",
            "clusterrun_rehearsal",
            "sitecustomize",
        }  # by the names that a rank's Python finds them by
        allowed = {"clusterrun", "typing_extensions", newer, *preludes, *sys.stdlib_module_names}
        bare = module.package in ON_NODES and not module.place.startswith(
            ("preflight/torch_worker/", "training/")
        )
        libraries = set() if bare else set(ONE_IMPORTER)
        libraries |= {"apprise"} if module.place == "notify/deliver.py" else set()  # if it is installed
        return {name.split(".")[0] for name in module.imports} - allowed - libraries

    assert findings(in_package(), unknown) == {}


def test_a_file_is_written_whole_in_one_place() -> None:
    def renames(module: Module) -> bool:
        calls = (node.func for node in module.nodes if isinstance(node, ast.Call))
        return any(
            ast.unparse(func) in ("os.rename", "os.renames", "os.replace", "shutil.move")
            or (isinstance(func, ast.Attribute) and func.attr == "rename")
            for func in calls
        )

    assert findings(in_package(), renames).keys() == RENAMES.keys()


def test_the_environment_is_read_at_the_entry_points_only() -> None:
    arguments = {"environ", "environb", "getenv"}

    def reads(module: Module) -> list[str]:
        attributes = (node for node in module.nodes if isinstance(node, ast.Attribute))
        return [
            f"line {node.lineno}"
            for node in attributes
            if node.attr in arguments and ast.unparse(node.value) == "os"
        ] + [name for name in module.imports if name in {f"os.{word}" for word in arguments}]

    elsewhere = [module for module in in_package() if not module.place.startswith(ENTRY_POINTS)]
    assert findings(elsewhere, reads) == {}


def test_an_init_file_holds_nothing_but_public_names() -> None:
    silent = [
        entry for entry in in_package() if entry.path.name == "__init__.py" and entry.place not in PUBLIC
    ]
    assert findings(silent, lambda entry: entry.tree.body[ast.get_docstring(entry.tree) is not None :]) == {}


def test_a_module_opens_with_a_sentence() -> None:
    def unlike_a_sentence(module: Module) -> str:
        opening = (ast.get_docstring(module.tree) or "nothing").split("\n\n")[0]
        return "" if re.match(r"\S.*[.:]\Z", opening, re.DOTALL) else opening

    named = [module for module in product() if module.path.name != "__init__.py"]
    assert findings(named, unlike_a_sentence) == {}


def test_no_shell_is_started() -> None:
    def shells(module: Module) -> list[int]:
        calls = [node for node in module.nodes if isinstance(node, ast.Call)]
        arguments = [call.lineno for call in calls for word in call.keywords if word.arg == "shell"]
        methods = [call for call in calls if isinstance(call.func, ast.Attribute)]
        names = {"popen", "getoutput", "getstatusoutput"}
        return arguments + [call.lineno for call in methods if ast.unparse(call.func).split(".")[-1] in names]

    assert findings(product(), shells) == {}


def test_nothing_is_unpickled() -> None:
    def codes(module: Module) -> set[str]:
        # Bytecode of our own sources, in our own file: none else writes it, and none else reads it.
        bytecode = ("script/pack.py", "runtime/zip_bytecode.py", "monitor/rank_instrumentation.py")
        # A function is a pickle: in the user's own run directory, opened where nobody else can write it.
        functions = ("executor.py",)
        # torch writes its flight records as a pickle. This reader refuses every class and function.
        plain = ("diagnosis/flight_dump.py",)
        unsafe = {"shelve"} | ({"pickle"} if module.place not in (*functions, *plain) else set())
        unsafe |= {"marshal"} if module.place not in bytecode else set()
        return {name.split(".")[0] for name in module.imports} & unsafe

    assert findings(product(), codes) == {}


SOURCES = (".py", ".md", ".cfg", ".toml", ".txt", ".j2", ".sh", ".yml", ".yaml", "")
NOT_OURS = {".git", ".venv", "build", "dist", "recorded", "golden", "__pycache__", "clusterrun.egg-info"}


def sources() -> Iterator[Path]:
    """Yield every text file of the project."""
    for path in sorted(ROOT.rglob("*")):
        inside = path.relative_to(ROOT)
        hidden = any(part.startswith(".") and part != ".ci" for part in inside.parts)
        if path.is_file() and path.suffix in SOURCES and not hidden and not NOT_OURS & set(inside.parts):
            yield path


def test_no_file_has_a_todo_or_a_path_of_the_machine_that_wrote_it() -> None:
    unfinished = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b")
    results = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sources()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if unfinished.search(line) or re.search(re.escape(str(ROOT)) + r"(?!\w)", line)
    ]
    assert results == []


def test_only_convert_needs_the_parser_for_shell_scripts() -> None:
    """It is an extra, which a cluster or a fresh environment may lack."""
    block = "import sys; sys.modules.update(tree_sitter=None, tree_sitter_bash=None); "
    modules = ("cli.submit", "cli.convert", "operations.submit", "operations.convert", "api", "script.plan")
    code = block + "import " + ", ".join(f"clusterrun.{module}" for module in modules)
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_benchmark_finds_what_it_imports() -> None:
    # Scripts that hang on purpose need frameworks which the tests do not install.
    paths = sorted((ROOT / "benchmarks").glob("*.py"))
    names = [path.stem for path in paths if not path.stem.startswith(("__", "hanging_"))]
    code = f"import importlib\nfor name in {names}: importlib.import_module('benchmarks.' + name)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=120)
