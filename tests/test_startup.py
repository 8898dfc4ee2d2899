"""Modules that are loaded at a start: every TAB starts the command line, and 1,250 agents start at once."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HEAVY = {
    *("torch", "numpy", "jinja2", "submitit", "rich", "psutil", "asyncio", "cloudpickle"),
    *("mcp", "pydantic", "hydra", "omegaconf", "matplotlib"),
}
# Modules that an agent does not load. Each costs milliseconds, and 1,250 agents start at once.
HEAVY_ON_NODES = HEAVY | {
    *("subprocess", "threading", "multiprocessing", "concurrent.futures", "ssl", "logging", "tempfile"),
    *("typing", "dataclasses", "inspect", "pathlib", "argparse", "shutil", "random", "datetime", "email"),
}
REPORT = "import sys, atexit; atexit.register(lambda: print(*sys.modules, sep='\\n', file=sys.stderr)); "


def loaded(code: str, home: Path, *flags: str, python: str = sys.executable, **variables: str) -> set[str]:
    """Run the code. Return the loaded modules."""
    environment = {
        "PATH": os.defpath,
        "HOME": str(home),
        "CLUSTERRUN_HOME": str(home),
        "PYTHONPATH": str(ROOT),
        **variables,
    }
    command = [python, *flags, "-c", REPORT + code]
    run = subprocess.run(
        command, env=environment, cwd=home, capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stderr
    return set(run.stderr.split("\n"))


def needs(path: str) -> None:
    if not (ROOT / "clusterrun" / path).exists():
        pytest.skip(f"clusterrun/{path} is not in this build")


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["--version"], ["status"], ["status", "--json"], ["submit", "--help"], ["logs", "--help"]],
)
def test_the_command_line_starts_without_heavy_libraries(arguments, tmp_path) -> None:
    needs("cli/main.py")
    code = f"from clusterrun.cli.main import main; main({arguments!r})"
    assert loaded(code, tmp_path) & HEAVY == set()


def test_listing_runs_imports_nothing_of_other_commands(tmp_path) -> None:
    code = "from clusterrun.cli.main import main; main(['status'])"
    others = {"dataclasses", "difflib", "fnmatch", "unicodedata", "hashlib", "tempfile", "random"}
    assert loaded(code, tmp_path) & others == set()


def test_a_command_for_another_machine_loads_no_heavy_library(tmp_path) -> None:
    """Its ssh answers every question with yes, and runs nothing."""
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text("#!/bin/sh\nexit 0\n")
    ssh.chmod(0o755)
    code = (
        "import os, json; from clusterrun.config.profiles import HostEntry; "
        "from clusterrun.remote import client_there, connection; "
        "ours = connection._place(HostEntry('there', 'there'), os.environ); open(ours.socket, 'w').close(); "
        "known = {'mark': client_there._mark(ours), 'prefix': 'exec clusterrun'}; "
        "from clusterrun.runs.private_files import write_whole; "
        "write_whole(ours.path('client'), json.dumps(known)); "
        "from clusterrun.cli.main import main; main(['--host', 'there', 'status'])"
    )
    result = loaded(code, tmp_path, PATH=f"{ssh.parent}:{os.defpath}")
    assert result & (HEAVY | {"tarfile", "importlib.metadata", "tempfile"}) == set()
    assert "clusterrun.cli.host" in result


def test_a_submission_to_slurm_imports_one_heavy_library(tmp_path) -> None:
    """Its Slurm is an ``sbatch`` that accepts every job, and no other program."""
    sbatch = tmp_path / "sbatch"
    sbatch.write_text("#!/bin/sh\ncat > /dev/null\necho 4711\n")
    sbatch.chmod(0o755)
    (tmp_path / "slurm.conf").write_text("ClusterName=test\n")
    slurm = {"PATH": f"{tmp_path}:{os.defpath}", "SLURM_CONF": str(tmp_path / "slurm.conf")}
    tokens = ["submit", "--nodes", "2", "--cluster", "slurm", "--json", "true"]
    code = f"from clusterrun.cli.main import main; main({tokens!r})"
    assert loaded(code, tmp_path, **slurm) & HEAVY == {"jinja2"}  # which renders the script
    (orders,) = tmp_path.glob("runs/*/orders.json")
    assert orders.stat().st_size


def test_importing_the_package_loads_nothing_of_it(tmp_path) -> None:
    results = {name for name in loaded("import clusterrun", tmp_path) if name.startswith("clusterrun")}
    assert results == {"clusterrun"}


def on_nodes(*packages: str) -> list[str]:
    files = [file for part in packages for file in (ROOT / "clusterrun" / part).rglob("*.py")]
    names = (file.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".") for file in files)
    return sorted(name.removesuffix(".__init__") for name in names if not name.endswith("__main__"))


def pythons() -> list[str]:
    """Return every Python of this machine from 3.9 on."""
    results = {}
    for minor in range(9, 20):
        program = shutil.which(f"python3.{minor}")
        installed = sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python"))
        if installed or program:
            results[minor] = str(installed[0] if installed else program)
    return list(results.values()) or [sys.executable]


@pytest.mark.parametrize("python", pythons())
def test_an_agent_loads_on_a_bare_python_and_nothing_heavy_with_it(python, tmp_path) -> None:
    names = on_nodes("model", "slurm_text", "runtime", "protocol", "agent", "coordinator", "node")
    names.remove("clusterrun.coordinator.hang_monitor")  # with the first ranks that are watched
    result = loaded(importing(names), tmp_path, "-I", "-S", python=python)
    assert result & HEAVY_ON_NODES == set()
    companions = {name for name in result if re.match(r"clusterrun\.(preflight|monitor|diagnosis)", name)}
    assert companions == set(), "companions load what they need in processes of their own"


ON_THE_WAY_TO_RANKS = (
    "node.main",
    "agent.shim",
    "agent.start",
    "monitor.rank_instrumentation",
    "monitor.oom",
)
"""Modules that an agent has loaded when its ranks start in a run without a pre-flight, with their imports."""
MOST_MODULES = 53
MOST_BYTES = 246_000
# Modules that only other programs of the nodes load.
FOR_OTHERS = {"zipfile", "zlib", "importlib.util"}


def test_an_agent_loads_few_modules_before_its_ranks_start(tmp_path) -> None:
    """64 agents on two processors: each module more is seen in the launch, each kilobyte too."""
    names = [f"clusterrun.{name}" for name in ON_THE_WAY_TO_RANKS]
    result = loaded(importing(names), tmp_path, "-I", "-S")
    own = sorted(name for name in result if name.split(".")[0] == "clusterrun")
    places = [ROOT / name.replace(".", "/") for name in own]
    files = [place / "__init__.py" if place.is_dir() else place.with_suffix(".py") for place in places]
    assert result & FOR_OTHERS == set()
    assert len(own) <= MOST_MODULES, own
    assert sum(file.stat().st_size for file in files) <= MOST_BYTES


def test_a_coordinator_without_a_check_loads_nothing_of_it(tmp_path) -> None:
    result = loaded(
        importing(["clusterrun.coordinator.io.start_coordinator", "clusterrun.coordinator.io.supervisor"]),
        tmp_path,
        "-I",
        "-S",
    )
    assert {name for name in result if re.match(r"clusterrun\.(preflight|diagnosis|monitor)", name)} == set()


@pytest.mark.parametrize("python", pythons())
def test_companions_import_on_a_bare_python(python, tmp_path) -> None:
    names = [name for name in on_nodes("diagnosis", "preflight", "monitor") if ".torch_worker" not in name]
    assert loaded(importing(names), tmp_path, "-I", "-S", python=python) & HEAVY == set()


def importing(names: list[str]) -> str:
    imports = f"import importlib; [importlib.import_module(name) for name in {names!r}]"
    return f"sys.path.insert(0, {str(ROOT)!r}); {imports}"
