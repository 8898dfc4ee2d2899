"""An agent that lost its coordinator acts on the scheduler's answer: Slurm 20.11 to 26.05."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from clusterrun.agent.orphaned_job import (
    JobRemedy,
    OrphanedNode,
    Silence,
    came_back,
    orphaned_node,
    refuses,
    remedy_for,
)
from clusterrun.agent.rank_environment import AgentPlace
from clusterrun.model.document import encode
from clusterrun.model.frozen import replace
from clusterrun.model.orders import Orders
from clusterrun.model.record import OrphanReport
from clusterrun.runs.run_documents import read_document
from tests.coordinator.runs import ROOT, until
from tests.coordinator.tapes import ORDERS

LEFT = OrphanedNode("14", 0, True, 1)


@pytest.mark.parametrize(
    "line, means",
    [
        ("RUNNING|None|0|0|n0001|n[0001-0002]|", JobRemedy.WAIT),
        ("RUNNING|None|0|0|n0001|n0002|", JobRemedy.ACT),
        ("RUNNING|None|0|0|n0001|n[0002-0009],n0011|", JobRemedy.ACT),
        ("RUNNING|None|0|1|n0003|n[0003-0004]|", JobRemedy.LEAVE),
        ("COMPLETING|None|36608|0|n0001|n0002|", JobRemedy.LEAVE),
        ("COMPLETING|None|9|0|n0001|n0002|", JobRemedy.LEAVE),
        ("COMPLETING|TimeLimit|0|0|n0001|n0002|", JobRemedy.LEAVE),
        ("COMPLETING|JobLaunchFailure|9|0|n0001|n[0001-0002]|", JobRemedy.ACT),
        ("FAILED|JobLaunchFailure|0:9|0|n0001|n[0001-0002]|", JobRemedy.ACT),
        ("FAILED|JobLaunchFailure|256|0|n0001|n[0001-0002]|", JobRemedy.LEAVE),
        ("CANCELLED|JobLaunchFailure|9|0|n0001|n[0001-0002]|", JobRemedy.LEAVE),
        ("PENDING|BeginTime|9|1|||", JobRemedy.LEAVE),
        ("RUNNING|None|0|0||n0002|", JobRemedy.WAIT),
        ("RUNNING|None|0|0|n0001|n[|", JobRemedy.WAIT),
        ("", JobRemedy.WAIT),
    ],
)
def test_a_job_is_requeued_only_if_the_scheduler_took_its_first_node_out(line: str, means: JobRemedy) -> None:
    assert remedy_for(LEFT, (line, "")) is means


RECORDED = sorted((ROOT / "tests" / "recorded").glob("*/job-ends.txt"))
ACTED_UPON = ("killed", "came back")


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.parent.name)
def test_a_killed_batch_step_is_recognised_on_each_release_and_only_that_job_is_requeued(path: Path) -> None:
    rows = [row.split("\t") for row in path.read_text().splitlines()]
    ended = [(what, line) for what, line in rows if not line.startswith(("RUNNING|", "SUSPENDED|"))]
    assert {what for what, _ in ended} >= {"killed", "cancelled", "terminated", "requeued", "failed"}
    assert {(what, line): remedy_for(LEFT, (line, "")) for what, line in ended} == {
        (what, line): JobRemedy.ACT if what in ACTED_UPON else JobRemedy.LEAVE for what, line in ended
    }
    assert {came_back((line, "")) for what, line in ended if what == "came back"} <= {"n0001"}


def test_a_chain_job_with_a_killed_batch_step_ends_and_the_next_job_continues() -> None:
    line = "COMPLETING|JobLaunchFailure|9|0|n0001|n[0001-0002]|"
    assert remedy_for(OrphanedNode("14", 0, False, 1), (line, "")) is JobRemedy.LEAVE


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
def test_a_first_node_that_returned_is_excluded_from_the_job_it_believes_in(line: str, host: str) -> None:
    assert came_back((line, "")) == host


def test_there_is_no_job_without_a_scheduler_or_in_the_users_own_allocation() -> None:
    environment = {"SLURM_JOB_ID": "14", "SLURM_RESTART_COUNT": "2"}
    place, where = AgentPlace(3, "n3", environment), (("10.0.0.1", 7),)
    assert orphaned_node(ORDERS, "/run", replace(place, environment={}), where) is None
    assert orphaned_node(replace(ORDERS, in_allocation=True), "/run", place, where) is None
    assert orphaned_node(ORDERS, "/run", place, where) == OrphanedNode(
        "14", 2, False, 3, (), "n3", "/run", where
    )


@pytest.mark.parametrize(
    "looks, silent",
    [
        ([(0, "a"), (10, "a"), (20, "a")], 20.0),
        ([(0, "a"), (10, "b"), (20, "b")], 10.0),
        ([(0, ""), (10, ""), (20, "")], 20.0),  # it was never written
        ([(0, "a"), (10, None), (20, "a"), (30, "a")], 10.0),  # for a while it could not be looked at
        ([(0, "a"), (3600, "a"), (3610, "a")], 10.0),  # this process stood still meanwhile
        ([(0, "a"), (10, "b"), (20, "a")], 0.0),
    ],
)
def test_silence_is_counted_only_over_looks_in_a_row_that_saw_the_same(looks: list, silent: float) -> None:
    silence = Silence()
    assert [silence.seen_unchanged_for(float(at), mark) for at, mark in looks][-1] == silent


def a_port_that_refuses() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def test_only_a_host_that_answers_shows_that_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = ("127.0.0.1", a_port_that_refuses())
    unreachable = ("240.0.0.1", 9)
    connect = socket.create_connection

    def connected(place: tuple[str, int], seconds: float) -> socket.socket:
        if place == unreachable:
            raise TimeoutError
        return connect(place, seconds)

    monkeypatch.setattr(socket, "create_connection", connected)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        opened = ("127.0.0.1", listener.getsockname()[1])
        assert not refuses((opened,)) and not refuses((closed, opened))
    assert refuses((closed,)) and refuses((closed, unreachable)) and refuses(())
    assert not refuses((unreachable,))


CODE = """
import os, sys
from clusterrun.agent import orphaned_job
orphaned_job.ASK_SECONDS = 0.1
shim, living = os.pipe()
print("here", flush=True)
where = ("n0002", os.environ.get("RUN_DIR", "/nowhere"))
left = orphaned_job.OrphanedNode("14", 0, sys.argv[1] == "requeue", 0, (), *where, ())
orphaned_job.OrphanedJob(left, dict(os.environ), shim, lambda until: None).run()
"""


def stand_ins(folder: Path, squeue: str) -> Path:
    """Make programs of a scheduler, and return the file that records their calls."""
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


def orphaned(folder: Path, squeue: str, word: str) -> tuple[subprocess.Popen[bytes], Path]:
    """Start an agent that is left behind. Stand-ins act for a scheduler that lost the first node."""
    called = stand_ins(folder, squeue)
    environment = {"PATH": f"{folder}:{os.defpath}", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-c", CODE, word], env=environment), called


@pytest.mark.parametrize("word, deed", [("requeue", "scontrol requeue 14"), ("end", "scancel 14")])
def test_the_job_is_requeued_only_once(tmp_path: Path, word: str, deed: str) -> None:
    state = f"$([ -e {tmp_path}/done ] && echo COMPLETING || echo RUNNING)"
    squeue = f'echo "{state}|None|0|0|n0001|n0002|"'
    process, called = orphaned(tmp_path, squeue, word)
    assert process.wait(60) == 0
    assert [line for line in called.read_text().splitlines() if "squeue" not in line] == [deed]


def test_an_agent_reports_that_it_lives_before_its_turn_to_act(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    stand_ins(tmp_path, "echo 'RUNNING|None|0|0|n0001|n[0001-0002]|'")
    environment = {"PATH": f"{tmp_path}:{os.defpath}", "PYTHONPATH": str(ROOT)}
    code = CODE.replace('"requeue", 0, ()', '"requeue", 60, ()')
    process = subprocess.Popen(
        [sys.executable, "-c", code, "requeue"], env={**environment, "RUN_DIR": str(tmp_path / "run")}
    )
    until(lambda: (tmp_path / "run" / "left.json").exists(), "a report", 15)
    process.kill()
    process.wait(60)
    report = read_document(OrphanReport, str(tmp_path / "run" / "left.json"))
    assert report is not None and (report.node, report.released) == ("n0002", False)


def test_an_agent_that_waits_ends_by_a_term(tmp_path: Path) -> None:
    process, called = orphaned(tmp_path, "echo 'RUNNING|None|0|0|n0001|n[0001-0002]|'", "requeue")
    until(lambda: called.read_text().count("squeue") >= 2, "two questions")
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert "scontrol" not in called.read_text()


BLIND = (
    CODE.replace("SECONDS = 0.1", "SECONDS = 0.1; orphaned_job.NOBODY_SECONDS = float(sys.argv[2])")
    .replace(", ())", ", ((('127.0.0.1', int(sys.argv[3])),) if sys.argv[3] else ()))")
)  # fmt: skip


def unseen(folder: Path, word: str, seconds: float, port: object) -> tuple[subprocess.Popen[bytes], Path]:
    """Start an agent without a coordinator in a job that still runs. ``run`` holds the run's state."""
    state = f"$([ -e {folder}/done ] && echo COMPLETING || echo RUNNING)"
    called = stand_ins(folder, f'echo "{state}|None|0|0|n0001|n[0001-0002]|"')
    run = folder / "run"
    run.mkdir(mode=0o700)
    for name in ("orders.json", "state.json"):
        (run / name).write_text("{}")
    environment = {"PATH": f"{folder}:{os.defpath}", "PYTHONPATH": str(ROOT), "RUN_DIR": str(run)}
    argv = [sys.executable, "-c", BLIND, word, str(seconds), str(port)]
    return subprocess.Popen(argv, env=environment, stderr=subprocess.PIPE), called


@pytest.mark.parametrize("word, deed", [("requeue", "scontrol requeue 14"), ("end", "scancel 14")])
@pytest.mark.parametrize("is_port_known", [True, False])
def test_a_job_without_a_coordinator_is_requeued_though_the_scheduler_misses_nothing(
    tmp_path: Path, word: str, deed: str, is_port_known: bool
) -> None:
    port = a_port_that_refuses() if is_port_known else ""
    process, called = unseen(tmp_path, word, 0.5, port)
    text = process.communicate(timeout=60)[1].decode()
    assert process.returncode == 0
    assert [line for line in called.read_text().splitlines() if "squeue" not in line] == [deed]
    assert "job 14 is given back: no coordinator has written anything for" in text
    assert (f"refuses port {port}" in text) is is_port_known
    remaining = read_document(OrphanReport, str(tmp_path / "run" / "left.json"))
    assert remaining is not None
    assert (remaining.job_id, remaining.node, remaining.released) == ("14", "n0002", True)
    assert remaining.why in text
    assert (tmp_path / "run" / "left.json").stat().st_mode & 0o777 == 0o600


def test_a_job_is_not_touched_while_its_coordinator_is_alive_or_its_host_does_not_answer(
    tmp_path: Path,
) -> None:
    stats = {"writes": "echo 1 1 1; date +%s%N", "silent": "exit 1"}  # silent: its file system
    for case in ("writes", "listens", "silent"):
        folder = tmp_path / case
        folder.mkdir()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1] if case == "listens" else a_port_that_refuses()
            if case in stats:
                (folder / "stat").write_text(f"#!/bin/sh\n{stats[case]}\n")
                (folder / "stat").chmod(0o755)
            process, called = unseen(folder, "requeue", 0.3, port)
            until(lambda called=called: called.read_text().count("squeue") >= 10, "ten questions")
        process.kill()
        process.communicate(timeout=60)
        assert "scontrol" not in called.read_text(), case


HURRIED = (
    CODE.replace(".run()", "")
    .replace("orphaned_job.OrphanedJob(", "job = orphaned_job.OrphanedJob(")
    .replace('"requeue", 0, ()', '"requeue", int(sys.argv[2]), ()')
)
KILLED = "COMPLETING|JobLaunchFailure|9|0|n0001|n[0001-0002]|"


@pytest.mark.parametrize("how", ["job.skip_turn()", "os.close(living)"])
def test_an_agent_whose_job_is_ending_requeues_it_at_once(tmp_path: Path, how: str) -> None:
    called = stand_ins(tmp_path, f"echo '{KILLED}'")
    environment = {"PATH": f"{tmp_path}:{os.defpath}", "PYTHONPATH": str(ROOT)}
    for node in (1, 1000):  # the second one has no turn any more
        command = [sys.executable, "-c", f"{HURRIED}\n{how}\njob.run()", "requeue", str(node)]
        assert subprocess.run(command, env=environment, timeout=60).returncode == 0
        if node == 1:
            assert "scontrol requeue 14" in called.read_text()
            called.write_text("")
    assert called.read_text() == ""


UNINVITED = """
import os, sys
from clusterrun.agent import orphaned_job, start
from clusterrun.model.paths import RunPaths
orphaned_job.ASK_SECONDS = start._INVITATION_SECONDS = 0.1
shim, living = os.pipe()
lease = os.open(os.devnull, os.O_WRONLY)
start.serve(RunPaths(sys.argv[1]), 0, "n0002", {**os.environ, "SLURM_JOB_ID": "14"}, lease, shim)
"""


@pytest.mark.parametrize("inside, deeds", [(False, ["scancel 14"]), (True, [])])
def test_an_agent_that_never_hears_of_its_launcher_gives_the_job_back_unless_it_is_an_allocation_of_the_users(
    tmp_path: Path, inside: bool, deeds: list[str]
) -> None:
    orders = Orders("run-x", "x", 2, 1, 0, 1, ("true",), "/", launch=("srun",), in_allocation=inside)
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
        message = process.stderr.read()
    assert b"the launcher that started this agent" in message
    requested = called.read_text().splitlines() if called.exists() else []
    assert [line for line in requested if "squeue" not in line] == deeds
