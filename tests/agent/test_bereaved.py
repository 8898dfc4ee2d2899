"""What an agent makes of the scheduler's word once its coordinator is gone: Slurm 20.11 to 26.05."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from clusterrun.agent.bereaved import Left, Means, came_back, left_behind, meaning
from clusterrun.model.document import encode
from clusterrun.model.orders import Orders
from tests.agent.runs import ROOT, until

LEFT = Left("14", 0, True, 1)


@pytest.mark.parametrize(
    "line, means",
    [
        ("RUNNING|None|0|0|n0001|n[0001-0002]|", Means.WAIT),
        ("RUNNING|None|0|0|n0001|n0002|", Means.ACT),
        ("RUNNING|None|0|0|n0001|n[0002-0009],n0011|", Means.ACT),
        ("RUNNING|None|0|1|n0003|n[0003-0004]|", Means.LEAVE),
        ("COMPLETING|None|36608|0|n0001|n0002|", Means.LEAVE),
        ("COMPLETING|None|9|0|n0001|n0002|", Means.LEAVE),
        ("COMPLETING|TimeLimit|0|0|n0001|n0002|", Means.LEAVE),
        ("COMPLETING|JobLaunchFailure|9|0|n0001|n[0001-0002]|", Means.ACT),
        ("FAILED|JobLaunchFailure|0:9|0|n0001|n[0001-0002]|", Means.ACT),
        ("FAILED|JobLaunchFailure|256|0|n0001|n[0001-0002]|", Means.LEAVE),
        ("CANCELLED|JobLaunchFailure|9|0|n0001|n[0001-0002]|", Means.LEAVE),
        ("PENDING|BeginTime|9|1|||", Means.LEAVE),
        ("RUNNING|None|0|0||n0002|", Means.WAIT),
        ("RUNNING|None|0|0|n0001|n[|", Means.WAIT),
        ("", Means.WAIT),
    ],
)
def test_a_job_is_given_back_only_when_the_scheduler_took_its_first_node_out(line: str, means: Means) -> None:
    assert meaning(LEFT, (line, "")) is means


RECORDED = sorted((ROOT / "tests" / "recorded").glob("*/job-ends.txt"))
ACTED_UPON = ("killed", "came back")


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.parent.name)
def test_each_release_names_a_killed_batch_step_in_its_own_words_and_only_that_job_is_given_back(
    path: Path,
) -> None:
    rows = [row.split("\t") for row in path.read_text().splitlines()]
    ended = [(what, line) for what, line in rows if not line.startswith(("RUNNING|", "SUSPENDED|"))]
    assert {what for what, _ in ended} >= {"killed", "cancelled", "terminated", "requeued", "failed"}
    assert {(what, line): meaning(LEFT, (line, "")) for what, line in ended} == {
        (what, line): Means.ACT if what in ACTED_UPON else Means.LEAVE for what, line in ended
    }
    assert {came_back((line, "")) for what, line in ended if what == "came back"} <= {"n0001"}


def test_a_job_of_a_chain_whose_batch_step_was_killed_is_over_and_the_next_one_goes_on() -> None:
    line = "COMPLETING|JobLaunchFailure|9|0|n0001|n[0001-0002]|"
    assert meaning(Left("14", 0, False, 1), (line, "")) is Means.LEAVE


@pytest.mark.parametrize(
    "line, host",
    [
        ("COMPLETING|JobLaunchFailure|9|0|n0001|n[0002-0003]|", "n0001"),
        ("COMPLETING|JobLaunchFailure|9|0|n0001|n[0001-0003]|", ""),
        ("RUNNING|None|0|0|n0001|n[0002-0003]|", ""),
        ("COMPLETING|JobLaunchFailure|9|0|n0001|n[|", ""),
        ("", ""),
    ],
)
def test_a_first_node_that_was_taken_out_and_came_back_is_kept_off_the_job_it_believes_in(
    line: str, host: str
) -> None:
    assert came_back((line, "")) == host


def test_without_a_scheduler_there_is_no_job() -> None:
    assert left_behind({}, True, 1) is None
    environment = {"SLURM_JOB_ID": "14", "SLURM_RESTART_COUNT": "2"}
    assert left_behind(environment, False, 3) == Left("14", 2, False, 3)


CODE = """
import os, sys
from clusterrun.agent import bereaved
bereaved.ASK_SECONDS = 0.1
shim, living = os.pipe()
print("here", flush=True)
left = bereaved.Left("14", 0, sys.argv[1] == "requeue", 0)
bereaved.Vigil(left, dict(os.environ), shim, lambda until: None).keep()
"""


def stand_ins(folder: Path, squeue: str) -> Path:
    """Programs of a scheduler, and the file that says how they were called."""
    called = folder / "called"
    called.touch()
    for name, body in (
        ("squeue", squeue),
        ("scontrol", f"touch {folder}/done"),
        ("scancel", f"touch {folder}/done"),
    ):
        (folder / name).write_text(f'#!/bin/sh\n{body}\necho "{name} $*" >>{called}\n')
        (folder / name).chmod(0o755)
    return called


def bereaved(folder: Path, squeue: str, word: str) -> tuple[subprocess.Popen[bytes], Path]:
    """An agent left behind, with stand-ins for the programs of a scheduler that lost the first node."""
    called = stand_ins(folder, squeue)
    environment = {"PATH": f"{folder}:{os.defpath}", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-c", CODE, word], env=environment), called


@pytest.mark.parametrize("word, deed", [("requeue", "scontrol requeue 14"), ("end", "scancel 14")])
def test_the_job_is_given_back_once_and_then_left(tmp_path: Path, word: str, deed: str) -> None:
    state = f"$([ -e {tmp_path}/done ] && echo COMPLETING || echo RUNNING)"
    squeue = f'echo "{state}|None|0|0|n0001|n0002|"'
    process, called = bereaved(tmp_path, squeue, word)
    assert process.wait(60) == 0
    assert [line for line in called.read_text().splitlines() if "squeue" not in line] == [deed]


def test_an_agent_that_waits_ends_by_a_term(tmp_path: Path) -> None:
    process, called = bereaved(tmp_path, "echo 'RUNNING|None|0|0|n0001|n[0001-0002]|'", "requeue")
    until(lambda: called.read_text().count("squeue") >= 2, "two questions")
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert "scontrol" not in called.read_text()


HURRIED = (
    CODE.replace(".keep()", "")
    .replace("bereaved.Vigil", "vigil = bereaved.Vigil")
    .replace('"requeue", 0)', '"requeue", int(sys.argv[2]))')
)
KILLED = "COMPLETING|JobLaunchFailure|9|0|n0001|n[0001-0002]|"


@pytest.mark.parametrize("how", ["vigil.hurry()", "os.close(living)"])
def test_an_agent_whose_job_is_being_ended_gives_it_back_at_once(tmp_path: Path, how: str) -> None:
    called = stand_ins(tmp_path, f"echo '{KILLED}'")
    environment = {"PATH": f"{tmp_path}:{os.defpath}", "PYTHONPATH": str(ROOT)}
    for node in (1, 1000):  # the second one has no turn any more
        command = [sys.executable, "-c", f"{HURRIED}\n{how}\nvigil.keep()", "requeue", str(node)]
        assert subprocess.run(command, env=environment, timeout=60).returncode == 0
        if node == 1:
            assert "scontrol requeue 14" in called.read_text()
            called.write_text("")
    assert called.read_text() == ""


UNINVITED = """
import os, sys
from clusterrun.agent import bereaved, guarded
from clusterrun.model.paths import RunPaths
bereaved.ASK_SECONDS = guarded._INVITATION_SECONDS = 0.1
shim, living = os.pipe()
lease = os.open(os.devnull, os.O_WRONLY)
guarded.serve(RunPaths(sys.argv[1]), 0, "n0002", {**os.environ, "SLURM_JOB_ID": "14"}, lease, shim)
"""


def test_an_agent_that_never_hears_of_its_launcher_gives_the_job_back_too(tmp_path: Path) -> None:
    orders = Orders("run-x", "x", 2, 1, 0, 1, ("true",), "/", launch=("srun",))
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    (folder / "orders.json").write_text(json.dumps(encode(orders)))
    (folder / "orders.json").chmod(0o600)
    state = f"$([ -e {tmp_path}/done ] && echo COMPLETING || echo RUNNING)"
    called = stand_ins(tmp_path, f'echo "{state}|None|0|0|n0001|n0002|"')
    environment = {"PATH": f"{tmp_path}:{os.defpath}", "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", UNINVITED, str(folder)],
        env=environment,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin and process.stderr
    with process.stdin, process.stderr:
        assert process.wait(60) == 1
        said = process.stderr.read()
    assert b"nothing was heard of the launcher" in said
    assert [line for line in called.read_text().splitlines() if "squeue" not in line] == ["scancel 14"]
