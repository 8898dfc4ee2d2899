"""The recipes in packaging/ say what setup.cfg says: version, Python, dependencies, licence."""

from __future__ import annotations

import ast
import configparser
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from clusterrun.model.contract import VERSION

ROOT = Path(__file__).resolve().parents[1]
PACKAGING = ROOT / "packaging"


def setup() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def needed() -> dict[str, str]:
    """Return the lowest version of each dependency by its name."""
    lines = setup()["options"]["install_requires"].split("\n")
    result = (re.fullmatch(r"([\w-]+)>=([\d.]+)(?:;.*)?", line.strip()) for line in lines if line.strip())
    return {entry[1]: entry[2] for entry in result if entry}


def lowest_python() -> str:
    return setup()["options"]["python_requires"].removeprefix(">=")


def test_the_list_of_requirements_is_complete() -> None:
    assert len(needed()) == len([x for x in setup()["options"]["install_requires"].split("\n") if x.strip()])
    assert needed()["tomli"] == "2"


def test_the_recipe_for_conda() -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML comes with the extra docs")
    recipe = yaml.safe_load((PACKAGING / "conda/recipe.yaml").read_text(encoding="utf-8"))
    assert recipe["context"] == {"version": VERSION, "python_min": lowest_python()}
    run = recipe["requirements"]["run"]
    assert {line.partition(" >=")[::2] for line in run[1:]} == set(needed().items())
    assert run[0] == "python >=${{ python_min }}"
    assert recipe["build"]["noarch"] == "python"
    (script,) = setup()["options.entry_points"]["console_scripts"].strip().split("\n")
    assert recipe["build"]["python"]["entry_points"] == [script]
    assert recipe["about"]["license"] == setup()["metadata"]["license"]
    assert (PACKAGING / "conda" / recipe["source"]["path"] / "setup.cfg").exists()


def calls(tree: ast.AST, name: str) -> list[ast.Call]:
    result = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return [node for node in result if isinstance(node.func, ast.Name) and node.func.id == name]


def test_the_recipe_for_spack() -> None:
    path = PACKAGING / "spack/packages/py_clusterrun/package.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert [node.name for node in tree.body if isinstance(node, ast.ClassDef)] == ["PyClusterrun"]
    assert [ast.literal_eval(call.args[0]) for call in calls(tree, "version")] == [VERSION]
    assert f"py-clusterrun@{VERSION}" in (ast.get_docstring(tree) or "")
    assert f"py-clusterrun@{VERSION}" in (ROOT / "docs/install.md").read_text(encoding="utf-8")
    messages = [ast.literal_eval(call.args[0]).rstrip(":").split("@") for call in calls(tree, "depends_on")]
    building = setup_requires()
    expected = {"python": lowest_python(), "py-setuptools": building}
    assert dict(messages) == {**expected, **{f"py-{name}": version for name, version in needed().items()}}


def setup_requires() -> str:
    result = re.search(r"setuptools>=(\d+)", (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert result is not None
    return result[1]


def at_least(version: str, lowest: str) -> bool:
    return [int(part) for part in version.split(".")] >= [int(part) for part in lowest.split(".")]


def test_the_recipe_for_easybuild() -> None:
    (path,) = (PACKAGING / "easybuild").glob("*.eb")
    messages: dict[str, Any] = {}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), messages)
    kind = messages["toolchain"]
    assert path.name == f"{messages['name']}-{VERSION}-{kind['name']}-{kind['version']}.eb"
    assert (messages["name"], messages["version"]) == ("clusterrun", VERSION)
    ((_, python),) = messages["dependencies"]
    assert at_least(python, lowest_python())
    versions = {name.lower(): version for name, version, *_ in messages["exts_list"]}
    required = {
        name: lowest for name, lowest in needed().items() if name != "tomli"
    }  # it is for older Pythons
    assert {name: low for name, low in required.items() if not at_least(versions[name], low)} == {}
    assert messages["exts_list"][-1] == ("clusterrun", VERSION)


def test_the_module_files_are_equal() -> None:
    lua, tcl = (
        (PACKAGING / "module" / name).read_text(encoding="utf-8") for name in ("clusterrun.lua", "clusterrun")
    )
    for text in (lua, tcl):
        assert f"/opt/clusterrun/{VERSION}" in text
        assert f"Version: {VERSION}" in text
        assert "PARTITION" in text
    assert tcl.startswith("#%Module")
    assert lua.count("(") == lua.count(")")


def test_the_tcl_module_puts_the_programs_on_the_path() -> None:
    tclsh = shutil.which("tclsh")
    if tclsh is None:
        pytest.skip("there is no tclsh")
    stand_ins = "proc module-whatis args {}\nproc prepend-path args { puts $args }\nproc setenv args {}\n"
    text = stand_ins + (PACKAGING / "module/clusterrun").read_text(encoding="utf-8") + "\nModulesHelp\n"
    result = subprocess.run([tclsh], input=text, capture_output=True, text=True, timeout=60, check=False)
    assert result.stdout == f"PATH /opt/clusterrun/{VERSION}/bin\n"
    assert result.stderr.startswith("clusterrun: PyTorch training")
