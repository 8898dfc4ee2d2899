"""Ranks use the Python of the environment that --setup prepares, unless --python names another."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import CommandLine, Said

TELL = "import os, sys; print(os.path.dirname(os.path.dirname(sys.executable)), *sys.argv[1:], flush=True)\n"


@pytest.fixture
def context(clusterrun: CommandLine) -> CommandLine:
    """Make a folder with ``tell.py``, which prints its Python's prefix, and an environment ``my env``."""
    (clusterrun.folder / "tell.py").write_text(TELL)
    environment(clusterrun.folder / "my env")
    return clusterrun


def environment(folder: Path) -> Path:
    """Make a virtual environment as ``python -m venv`` does, with a file to source."""
    (folder / "bin").mkdir(parents=True)
    (folder / "pyvenv.cfg").write_text(f"home = {os.path.dirname(sys.executable)}\n")
    (folder / "bin/python").symlink_to(sys.executable)
    (folder / "bin/python3").symlink_to("python")
    where = shlex.quote(str(folder))
    lines = (f"export VIRTUAL_ENV={where}", 'export PATH="$VIRTUAL_ENV/bin:$PATH"')
    (folder / "bin/activate").write_text("\n".join(lines) + "\n")
    return folder


def told(completed: Said) -> str:
    assert completed.code == 0, completed
    return completed.out.partition(" | ")[2].rstrip("\n")


def shown(context: CommandLine) -> str:
    lines = context("status", "last").out.splitlines()
    return next(line for line in lines if line.startswith("python")).removeprefix("python").strip()


def test_an_environment_that_setup_activates_is_that_of_the_ranks(context: CommandLine) -> None:
    result = context("submit", "-f", "--setup", "source 'my env/bin/activate'", "tell.py", "a b")
    folder = context.folder / "my env"
    version = ".".join(map(str, sys.version_info[:2]))
    line = f"{folder}/bin/python (Python {version}, which the setup of the job put first on PATH)"
    assert (told(result), shown(context)) == (f"{folder} a b", line)
    assert "ranks use the Python that the setup puts first on PATH, else " in result.err
    (run_dir,) = Path(context.environment["CLUSTERRUN_HOME"], "runs").iterdir()
    assert (run_dir / "job.out").read_text().startswith(f"clusterrun: ranks run in {line}\n")


def test_the_check_looks_at_the_environment_that_setup_activates(context: CommandLine) -> None:
    result = context("check", "--cluster", "local", "--setup", "source 'my env/bin/activate'")
    assert (result.code, shown(context).startswith(f"{context.folder}/my env/bin/python ")) == (0, True)


@pytest.mark.parametrize("setup", ["export SEED=1", "export PATH=/bin:/usr/bin"])
def test_setup_lines_without_a_python_keep_the_planned_python(context: CommandLine, setup: str) -> None:
    result = context("submit", "-f", "--setup", setup, "tell.py")
    why = "the one clusterrun runs in; the setup of the job puts no other one first on PATH"
    assert (told(result), shown(context)) == (sys.prefix, f"{sys.executable} ({why})")


def test_option_python_wins_over_a_python_of_setup_lines(context: CommandLine) -> None:
    environment(context.folder / "other")
    options = ("--setup", "source 'my env/bin/activate'", "--python", "other/bin/python")
    result = context("submit", "-f", *options, "tell.py")
    assert (told(result), shown(context)) == (
        str(context.folder / "other"),
        f"{context.folder}/other/bin/python (named by --python)",
    )


def test_a_program_is_the_command_as_typed_in_the_environment_of_setup(context: CommandLine) -> None:
    result = context("submit", "-f", "--setup", "source 'my env/bin/activate'", "python", "tell.py")
    assert (told(result), shown(context)) == (str(context.folder / "my env"), "python (as the command says)")


def test_a_python_that_the_command_names_gets_no_notice_of_another_one(context: CommandLine) -> None:
    context.environment["VIRTUAL_ENV"] = str(context.folder / "my env")
    context.environment["PATH"] = f"{context.folder}/my env/bin:{context.environment['PATH']}"
    result = context("submit", "-f", "python", "tell.py")
    assert (told(result), "ranks use" in result.err) == (str(context.folder / "my env"), False)
    assert "ranks use" in context("submit", "--dry-run", "tell.py").err


def test_a_python_that_is_too_old_ends_the_job_before_any_rank(context: CommandLine) -> None:
    old = context.folder / "old/bin"
    old.mkdir(parents=True)
    (old / "python").write_text("#!/bin/sh\necho 3 6\n")
    (old / "python").chmod(0o755)
    result = context("submit", "-f", "--setup", f"PATH={old}:$PATH", "tell.py")
    why = f"the setup of the job puts {old}/python first on PATH, Python 3.6: ranks need 3.9 or newer"
    assert (
        result.code,
        f"  ended before any rank: {why}; name another one with --python\n" in result.err,
    ) == (1, True)


def test_a_dry_run_shows_the_python_of_ranks_and_the_reason(context: CommandLine) -> None:
    plain = context("submit", "--dry-run", "tell.py").err
    assert f"ranks run in {sys.executable} (the one clusterrun runs in)\n" in plain
    prepared = context("submit", "--dry-run", "--json", "--setup", "module load python", "tell.py")
    assert json.loads(prepared.out)["python"] == {
        "path": sys.executable,
        "why": "the one clusterrun runs in",
        "by_setup": True,
    }
    assert "ranks use the Python that the setup puts first on PATH, else " in prepared.err


def test_a_template_that_keeps_no_path_gets_a_warning_about_the_python_of_its_setup(
    context: CommandLine,
) -> None:
    text = "#!/bin/bash\n{{ directives | sbatch }}\n{{ setup | lines }}\n"
    (context.folder / "bare.j2").write_text(
        text + "exec {{ python }} -I -S {{ agent }} coordinate {{ run_dir }}\n"
    )
    context.environment["CLUSTERRUN_CLUSTER"] = "slurm"
    programs = context.folder.parent / "bin"
    programs.mkdir()
    for name in ("sbatch", "sinfo"):
        (programs / name).write_text("#!/bin/sh\nexit 1\n")
        (programs / name).chmod(0o755)
    conf = context.folder / "slurm.conf"
    conf.write_text("ClusterName=c\nSlurmctldHost=h\n")
    context.environment["SLURM_CONF"] = str(conf)
    result = context("submit", "--dry-run", "--template", "bare.j2", "--setup", "true", "tell.py")
    assert result.code == 0, result
    assert (
        "the template does not export CLUSTERRUN_PATH_BEFORE_SETUP, see clusterrun help templates"
        in result.err
    )
