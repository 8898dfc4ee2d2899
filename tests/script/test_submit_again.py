"""The line that `status` gives for a run that has ended asks for the same run again."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clusterrun.cli.submit import submit
from clusterrun.cli.submit_options import settled, to_spec
from clusterrun.model.frozen import fields, replace
from clusterrun.model.option_table import CONFIGURABLE, Option
from clusterrun.model.spec import Cluster, JobSpec, OnUnfit
from clusterrun.script.submit_again import line

HERE = "/somewhere else"
SPECIAL: dict[str, Any] = {
    "min_nodes": 2,
    "template": "/t.j2",
    "gpu_type": "h100",
    "environment": (("TOKEN", "secret"), ("HOME", "/h")),
    "cluster": Cluster.LOCAL,
    "mount": ("/data:/data:ro", "/scratch"),
    "preflight_limit": (("slow_fail", 0.4), ("xid_hours", 12.0)),
    "on_unfit": OnUnfit.RESUBMIT,
}
"""A value of each field that is not written as the table's row says."""
PLAIN = {"text": "a 'b' c", "switch": True, "list": ("a=1", "b c"), "time": 5400, "seconds": 90}


def value_of(option: Option) -> Any:
    """Return a value that is not the default."""
    if option.choices:
        return next(choice for choice in reversed(option.choices) if choice != option.default)
    return PLAIN[option.kind] if option.kind in PLAIN else int(str(option.default)) + 3


EVERY = {
    **{o.field: value_of(o) for o in CONFIGURABLE.values() if o.field in JobSpec.__annotations__},
    **SPECIAL,
}
NOT_TYPED = {"command", "cwd", "after", "alone", "all_pairs", "table", "burn"}
IMAGE = {"container": "/images/train.sif"}
ALONE = {
    "gpu_type": {"gpus": 8},
    "min_nodes": {"nodes": 4},
    "numa_binding": {"gpus": 8},
    "gpus_from": {"gpus": 8},
    "requeue_by": {"requeue": True},
    "mount": IMAGE,
    "container_runtime": IMAGE,
}
"""Other options that a field needs."""


def read(typed: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> JobSpec:
    """Return the spec that ``clusterrun submit`` makes of the line."""
    monkeypatch.chdir(folder)
    for name in [name for name in os.environ if name.startswith("CLUSTERRUN_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    monkeypatch.setenv("TOKEN", "secret")
    monkeypatch.setenv("HOME", "/h")
    tokens = shlex.split(typed.partition(" && ")[2] or typed)
    assert tokens[:2] == ["clusterrun", "submit"]
    provided = submit.make_context("submit", tokens[2:]).params
    for name in ("dry_run", "as_json", "after", "profile"):
        provided.pop(name)
    return to_spec(provided.pop("command"), settled(provided, None))


def test_every_field_is_tried() -> None:
    assert set(EVERY) == set(JobSpec.__annotations__) - NOT_TYPED


@pytest.mark.parametrize("field", EVERY)
def test_a_field_that_was_set_is_set_again(
    field: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spec = JobSpec(("train.py", "--lr", "a b"), HERE, **{**ALONE.get(field, {}), field: EVERY[field]})
    created = replace(read(line(spec), monkeypatch, tmp_path), cwd=HERE)
    assert fields(created) == fields(spec)


def test_unrequested_options_are_not_in_the_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    planned = {"name": "train", "python": sys.executable, "cluster": Cluster.SLURM}
    assert line(JobSpec(("train.py",), HERE, max_restarts=0, **planned)) == (
        "cd '/somewhere else' && clusterrun submit train.py"
    )
    monkeypatch.chdir(tmp_path)
    spares = JobSpec(("-m", "pkg.mod"), str(tmp_path), spares=1, max_restarts=3)
    assert line(spares) == "clusterrun submit --spares 1 -m pkg.mod"


def test_a_run_that_waited_for_others_waits_for_them_again() -> None:
    again = line(JobSpec(("train.py",), HERE, after=("17", "18_4")))
    assert again.endswith(" --after 17 --after 18_4 train.py")


def test_a_secret_is_not_shown_and_a_check_is_a_check() -> None:
    assert "secret" not in line(JobSpec(("train.py",), HERE, environment=(("TOKEN", "secret"),)))
    check = JobSpec(("check",), HERE, nodes=4, alone=True, preflight="quick", all_pairs=True, burn=60)
    assert line(check).endswith(" && clusterrun check --nodes 4 --level quick --all-pairs --burn 60s")
    assert line(JobSpec(("check",), HERE, alone=True, table=True)).endswith(" check --table")


def test_bytes_and_control_characters_are_written_so_that_bash_reads_them() -> None:
    command = ("echo", "caf\udce9", "it's\ta \\", "two\nlines")
    typed = line(JobSpec(command, os.getcwd())).removeprefix("clusterrun submit ")
    assert typed.replace("\n", "").isprintable()
    argv = ["bash", "-c", f"printf '%s\\0' {typed}"]
    printed = subprocess.run(argv, capture_output=True, check=True, timeout=60).stdout
    assert printed.decode("utf-8", "surrogateescape").split("\0")[:-1] == list(command)


@pytest.mark.parametrize(
    "spec, options",
    [
        (JobSpec(("true",), HERE, preflight="quick", requeue=True, requeue_by="requeue"), "--requeue"),
        (JobSpec(("true",), HERE, requeue=False), "--no-requeue"),
        (JobSpec(("true",), HERE, nodes=2, preflight="quick"), "--nodes 2 --preflight quick"),
        (JobSpec(("true",), HERE, time=120, notice=60, requeue_by="chain"), "--time 2m --requeue-by chain"),
    ],
)
def test_values_that_follow_from_other_options_are_not_in_the_line(spec: JobSpec, options: str) -> None:
    assert line(replace(spec, python=sys.executable)).endswith(f"clusterrun submit {options} true")
