"""All that is shipped runs on Python 3.9: by its grammar, by what it evaluates, and loaded by a real one."""

from __future__ import annotations

import ast
import configparser
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_startup import pythons

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = sorted(
    path for name in ("clusterrun", "hydra_plugins", "jobs") for path in (ROOT / name).rglob("*.py")
)
TYPES = {"None", "str", "int", "float", "bool", "bytes", "tuple", "list", "dict", "set", "object", "Path"}
# Newer names of the standard library. No name of this package is the same.
NEWER = {"pairwise", "aiter", "anext", "bit_count", "file_digest", "assert_never", "StrEnum", "batched"}
WITHOUT_ALL = """
import importlib, importlib.machinery, sys, types

sys.path[:0] = sys.argv[1:3]

class Kind(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything

class Anything(metaclass=Kind):
    def __class_getitem__(cls, item): return cls
    def __init__(self, *args, **named): pass
    def __init_subclass__(cls, **named): pass
    def __call__(self, *args, **named): return self
    def __getattr__(self, name): return self
    def __iter__(self): return iter(())

class Library(types.ModuleType):
    __path__ = []
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in LIBRARIES:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
    def create_module(self, spec): return Library(spec.name)
    def exec_module(self, module): pass

LIBRARIES = set("click rich jinja2 markupsafe submitit psutil torch numpy matplotlib tomli".split())
LIBRARIES |= {"hydra", "omegaconf", "tree_sitter", "tree_sitter_bash"}
sys.meta_path.insert(0, Finder())
failed = []
for name in sys.argv[3:]:
    try:
        importlib.import_module(name)
    except Exception as error:
        failed.append(f"{name}: {type(error).__name__}: {error}")
print("\\n".join(failed))
"""
"""Loads modules with a stand-in for every library, since a bare Python has none."""


def names() -> list[str]:
    """Return the names of all modules but those that run when they are loaded."""
    places = [path.relative_to(ROOT) for path in SHIPPED]
    result = (place.with_suffix("").as_posix().replace("/", ".") for place in places)
    dotted = [name.removesuffix(".__init__").removeprefix("jobs.") for name in result]
    at_once = ("__main__", "rank_hooks", "jobs.allreduce", "standins")
    return [name for name in dotted if not any(word in name for word in at_once)]


def evaluated(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield every node except annotations, which nobody evaluates."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        left_out = [getattr(node, name, None) for name in ("annotation", "returns")]
        waiting += [child for child in ast.iter_child_nodes(node) if child not in left_out]


def too_new(node: ast.AST) -> str:
    """Return the syntax or function in ``node`` that Python 3.9 lacks; '' if there is none."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        arguments = {ast.unparse(side) for side in (node.left, node.right)}
        return f"a union that is evaluated: {ast.unparse(node)}" if arguments & TYPES else ""
    if isinstance(node, ast.Call):
        keys = {keyword.arg for keyword in node.keywords}
        newer = "slots" in keys or "kw_only" in keys or ("strict" in keys and ast.unparse(node.func) == "zip")
        return f"a newer argument: {ast.unparse(node)}" if newer else ""
    if isinstance(node, ast.Match):
        return "match"
    name = node.attr if isinstance(node, ast.Attribute) else node.name if isinstance(node, ast.alias) else ""
    return f"{name} came later" if name in NEWER else ""


def test_every_file_is_python_39() -> None:
    results = []
    for path in SHIPPED:
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path), feature_version=(3, 9))
        results += [f"{path}:{n.lineno}: {why}" for n in evaluated(tree) if (why := too_new(n))]
    assert results == []


@pytest.mark.parametrize(
    "text",
    [
        "Value = str | int",
        "zip(a, b, strict=True)",
        "isinstance(x, int | str)",
        "from itertools import pairwise",
    ],
)
def test_syntax_that_python_39_lacks_is_detected(text: str) -> None:
    assert any(too_new(node) for node in evaluated(ast.parse(text)))


def test_an_annotation_may_contain_newer_syntax() -> None:
    tree = ast.parse("def f(a: str | None = None) -> int | None: ...\nb: str | int = 1")
    assert not any(too_new(node) for node in evaluated(tree))


@pytest.mark.parametrize("python", pythons(), ids=lambda path: "-".join(re.findall(r"3\.\d+", path)[:1]))
def test_every_module_loads_in_every_installed_python(python: str, tmp_path: Path) -> None:
    command = [python, "-I", "-B", "-c", WITHOUT_ALL, str(ROOT), str(ROOT / "jobs"), *names()]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False)
    assert (result.returncode, result.stdout.strip(), result.stderr) == (0, "", "")


def test_the_package_states_its_python_versions() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    assert setup["options"]["python_requires"] == ">=3.9"
    assert "Programming Language :: Python :: 3.9" in setup["metadata"]["classifiers"]
