"""The laws of the packed program: one file, every supported Python, the same bytes for the same sources."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from clusterrun.script.pack import agent_program
from tests.coordinator.runs import pythons


def run(python: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([python, "-I", "-S", *arguments], capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(agent_program(str(tmp_path_factory.mktemp("cache"))))


@pytest.mark.parametrize("python", pythons())
def test_the_program_starts_under_every_supported_python(python: str, program: Path) -> None:
    result = run(python, str(program))
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("usage: agent.pyz coordinate RUN_DIR | agent RUN_DIR\n")


@pytest.mark.parametrize("python", pythons())
def test_every_module_of_the_program_can_be_loaded_without_site_packages(python: str, program: Path) -> None:
    names = [
        name[:-3].replace("/", ".") for name in zipfile.ZipFile(program).namelist() if name.endswith(".py")
    ]
    # Modules of the torch worker run under the ranks' own Python, which has torch.
    bare = [name for name in names if not name.endswith("__main__") and ".torch_worker." not in name]
    modules = [name.removesuffix(".__init__") for name in bare]
    result = run(
        python, "-c", f"import sys; sys.path.insert(0, {str(program)!r}); import {', '.join(modules)}"
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_bytecode_is_used_by_the_packing_version_and_ignored_by_others(program: Path) -> None:
    load = (
        f"import sys, zipimport; sys.path.insert(0, {str(program)!r});"
        "import clusterrun.runtime.zip_bytecode as b;"
        f"b.use(zipimport.zipimporter({str(program)!r})); import clusterrun.model.paths as p;"
        "print(sys.hexversion, type(p.__loader__).__name__, p.__file__)"
    )
    for python in {*pythons(), sys.executable}:
        version, loader, file = run(python, "-c", load).stdout.split()
        own = version == str(sys.hexversion)
        assert (loader, file) == (
            "Bytecode" if own else "zipimporter",
            f"{program}/clusterrun/model/paths.py",
        )


def test_the_source_of_bytecode_can_be_read(program: Path) -> None:
    """A traceback shows lines; ranks get the prelude's text."""
    ask = (
        f"import sys, zipimport; sys.path.insert(0, {str(program)!r});"
        "import clusterrun.runtime.zip_bytecode as b;"
        f"b.use(zipimport.zipimporter({str(program)!r})); "
        "import linecache, clusterrun.monitor as m, clusterrun.model.paths as p;"
        " print(linecache.getline(p.__file__, 1, vars(p)), end='');"
        "print(m.__loader__.get_data(m.__file__))"
    )
    result = run(sys.executable, "-c", ask)
    first, content = [(Path("clusterrun") / n).read_text() for n in ("model/paths.py", "monitor/__init__.py")]
    assert (result.stdout, result.stderr) == (first.partition("\n")[0] + f"\n{content.encode()!r}\n", "")


def test_late_imports_work_after_the_program_was_deleted(program: Path, tmp_path: Path) -> None:
    copy = tmp_path / "agent.pyz"
    copy.write_bytes(program.read_bytes())
    load = (
        f"import os, sys, zipimport; sys.path.insert(0, {str(copy)!r});"
        f"import clusterrun.runtime.zip_bytecode as b; b.use(zipimport.zipimporter({str(copy)!r}));"
        f"os.unlink({str(copy)!r}); import clusterrun.model.phrases as e; print(e.code_in_words(1))"
    )
    result = run(sys.executable, "-c", load)
    assert (result.stdout, result.stderr) == ("exited with code 1\n", "")


def test_the_same_sources_give_the_same_bytes_and_are_packed_once(program: Path, tmp_path: Path) -> None:
    other = Path(agent_program(str(tmp_path / "other")))
    assert (other.name, other.read_bytes()) == (program.name, program.read_bytes())
    before = program.stat().st_mtime_ns
    assert agent_program(str(program.parent)) == str(program) and program.stat().st_mtime_ns == before
    assert [path.name for path in program.parent.iterdir()] == [program.name]
    assert oct(program.stat().st_mode & 0o777) == "0o600"


def test_an_old_python_is_refused_with_a_plain_message(tmp_path: Path) -> None:
    """The first module must be readable by Python 3.6; the version is faked, because none is at hand."""
    main = Path("clusterrun/node/__main__.py").read_text()
    compile(main, "main", "exec", dont_inherit=True)
    assert "annotations" not in main and 'f"' not in main
    faked = tmp_path / "faked.py"
    faked.write_text("import sys\nsys.version_info = (3, 6, 8)\n" + main)
    result = run(sys.executable, str(faked))
    assert result.returncode == 1
    assert result.stderr.startswith(f"clusterrun: Python 3.9 or newer is needed on {os.uname().nodename}; ")
    assert "--python PATH" in result.stderr


def test_threads_that_pack_at_the_same_time_write_a_complete_program(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as crowd:
        paths = set(crowd.map(lambda _: agent_program(str(tmp_path)), range(4)))
    path = Path(*paths)
    assert zipfile.ZipFile(path).testzip() is None
    assert [result.name for result in tmp_path.iterdir()] == [path.name]
