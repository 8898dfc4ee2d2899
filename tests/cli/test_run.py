"""`run` takes the options of the command line, and those of a configuration that do not belong to a job."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from clusterrun.cli.run import QUEUED_OPTIONS, of_the_allocation, refuse_job_options, run
from clusterrun.cli.submit_options import to_spec
from clusterrun.config.settings import Source, settle
from clusterrun.model.errors import BadInput
from tests.cli.conftest import ROOT, CommandLine


@pytest.mark.parametrize(
    "provided, named",
    [
        ({"time": "5m", "requeue": True}, "--time, --requeue are options"),
        ({"avoid_bad": False}, "--avoid-bad is an option"),
        ({"sbatch": ("exclusive",)}, "--sbatch is an option"),
        ({"sbatch": (), "nodes": 2, "preflight": "off", "time": None}, ""),
    ],
)
def test_options_of_queued_jobs_are_refused_by_name(provided: dict[str, Any], named: str) -> None:
    if not named:
        refuse_job_options(provided)
        return
    with pytest.raises(BadInput, match=f"^{named}"):
        refuse_job_options(provided)


def test_run_ignores_allocation_settings_of_submit_and_uses_those_of_ranks() -> None:
    file = Source(
        "clusterrun.toml", (("nodes", 8), ("partition", "gpu"), ("env", ("A=1",)), ("follow", False))
    )
    settings = of_the_allocation(settle([Source("command line", (("gpus", 2),)), file]), {"gpus"})
    values = {name: settings[name].value for name in ("nodes", "partition", "env", "gpus", "follow")}
    assert values == {"nodes": 1, "partition": "", "env": ("A=1",), "gpus": 2, "follow": False}


@pytest.mark.parametrize(
    ("chosen", "requeue"),
    [((), None), ((("requeue", False),), False), ((("requeue", True),), True)],
)
def test_the_site_decides_on_a_requeue_unless_the_user_does(
    chosen: tuple[tuple[str, bool], ...], requeue: bool | None
) -> None:
    assert to_spec(("t.py",), settle([Source("command line", chosen)])).requeue is requeue


def test_the_help_shows_no_option_that_is_refused(clusterrun: CommandLine) -> None:
    text = clusterrun("run", "--help-all").out
    options = {option.name: option for option in run.params if isinstance(option, click.Option)}
    assert all(name.replace("-", "_") in options for name in QUEUED_OPTIONS)
    assert [name for name in QUEUED_OPTIONS if f"--{name} " in text] == []
    assert all(f"--{name} " in text for name in ("nodes", "gpus", "preflight", "max-restarts", "env"))


def test_alloc_is_salloc_with_the_options_that_sbatch_would_get(tmp_path: Path) -> None:
    for name in ("sbatch", "salloc"):
        (tmp_path / name).write_text('#!/bin/sh\nprintf "%s\\n" "$@"; env | grep ^SLURM_JOB_ID; exit 7\n')
        (tmp_path / name).chmod(0o755)
    (tmp_path / "slurm.conf").write_text("ClusterName=test\n")
    environment = {
        "PATH": f"{tmp_path}:{os.defpath}",
        "SLURM_CONF": str(tmp_path / "slurm.conf"),
        "HOME": str(tmp_path),
        "PYTHONPATH": str(ROOT),
        "SLURM_JOB_ID": "41",
        "CLUSTERRUN_SETUP": "x",
    }
    arguments = ["alloc", "--nodes", "2", "--gpus", "h100:8", "--cpus-per-rank", "3", "-t", "2h", "-p", "gpu"]
    arguments += ["--sbatch", "comment=mine", "--sbatch", "nice=10", "sh", "-c", "echo $x"]
    result = subprocess.run(
        [sys.executable, "-m", "clusterrun", *arguments],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (result.returncode, result.stdout.splitlines()) == (
        7,
        [
            *("--job-name=interactive", f"--chdir={tmp_path}", "--nodes=2", "--ntasks-per-node=1"),
            *("--cpus-per-task=24", "--no-kill", "--time=02:00:00", "--partition=gpu"),
            *("--gpus-per-node=h100:8", "--nice=10", "sh", "-c", "echo $x"),
        ],
    )
