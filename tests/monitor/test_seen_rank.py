"""The evidence that a node reports about a rank."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clusterrun import proc
from clusterrun.diagnosis.evidence import RankSnapshot, ThreadWait
from clusterrun.diagnosis.job_looks import RankName
from clusterrun.diagnosis.spied_process import SpiedFrame, SpiedProcess
from clusterrun.diagnosis.stacks import STORE_WAIT, ThreadPlace
from clusterrun.model.frozen import replace
from clusterrun.monitor import seen_rank
from clusterrun.monitor.job_processes import RankProcess
from clusterrun.monitor.rank_look import RankLook
from clusterrun.monitor.stack_reader import StackReader


def seen(folder: Path, source: str, native: tuple[str, ...] = ()) -> RankSnapshot:
    """Return rank 1 of 2, which is in the last line of the script ``source``."""
    (folder / "train.py").write_text(f"comm = MPI.COMM_WORLD\n{source}\n")
    (folder / "main.py").write_text("comm = MPI.COMM_WORLD\nimport train\n")
    look = RankLook(RankProcess(RankName("RANK", 1, 2), os.getpid(), {}))
    number = source.count("\n") + 2
    frames = (f"{folder}/train.py:{number} <module>", f"{folder}/main.py:2 <module>")
    look.first = SpiedProcess(main=frames, native=native, script=tuple(map(SpiedFrame, frames)))
    return seen_rank.seen_rank(look, "n1", 1.0, StackReader(""), proc.TcpTables()).snapshot


@pytest.fixture(autouse=True)
def _mpi4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen_rank, "loads", lambda pid, part: part == b"/mpi4py/")


@pytest.mark.parametrize("native", [(), ("poll", "PMPI_Recv")])
def test_a_rank_in_mpi_shows_its_peer_with_and_without_native_frames(
    native: tuple[str, ...], tmp_path: Path
) -> None:
    rank = seen(tmp_path, "comm.Recv(x, source=comm.rank - 1)", native)
    assert (rank.location.operation, rank.call.name, rank.call.peer) == ("MPI_Recv", "recv", 0)


@pytest.mark.parametrize(
    ("line", "block"), [("comm.Barrier()", "if rank == 1"), ("comm.recv()", ""), ("row.Barrier()", "")]
)
def test_a_call_of_all_ranks_that_one_rank_makes_is_in_a_block(line: str, block: str, tmp_path: Path) -> None:
    rank = seen(tmp_path, f"row = comm.Split(0)\nif rank == 1:\n    {line}")
    assert rank.stacks.block.rpartition(": ")[2] == block


def test_a_library_s_wait_of_unknown_kind_in_a_block_of_one_rank_may_be_for_all(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("if rank == 0:\n    save(model.state_dict())\n")
    look = RankLook(RankProcess(RankName("RANK", 0, 2), os.getpid(), {}))
    inner = "/venv/lib/python3.11/site-packages/torch/_ops.py:5 __call__"
    frame = f"{script}:2 <module>"
    look.first = SpiedProcess((inner, frame), ("c10d::Work::wait",), script=(SpiedFrame(frame),))
    rank = seen_rank.seen_rank(look, "n1", 1.0, StackReader(""), proc.TcpTables()).snapshot
    assert rank.stacks.block == f"{script}:2 <module>: if rank == 0"


def test_a_rank_in_the_backward_pass_shows_its_place_in_the_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("for x in loader:\n    loss(x).backward()\n")
    look = RankLook(RankProcess(RankName("RANK", 1, 2), os.getpid(), {}))
    engine = "/venv/lib/python3.11/site-packages/torch/autograd/graph.py:979 _engine_run_backward"
    frame = f"{tmp_path}/train.py:2 <module>"
    look.first = SpiedProcess(main=(engine, frame), script=(SpiedFrame(frame),))
    rank = seen_rank.seen_rank(look, "n1", 1.0, StackReader(""), proc.TcpTables()).snapshot
    assert rank.stacks.position[1:] == ("line 1", "turn ?", "line 2")


@pytest.mark.parametrize(
    ("waits_in", "switches", "is_held"),
    [("futex_do_wait", 9, True), ("futex_do_wait", 1, False), ("", 9, False)],
)
def test_a_thread_holds_the_lock_of_the_interpreter_if_the_main_thread_sleeps_and_asks_for_it(
    waits_in: str, switches: int, is_held: bool
) -> None:
    look = RankLook(RankProcess(RankName("RANK", 1, 2), os.getpid(), {}))
    look.before = replace(look.before, waits_in=waits_in, switches=1)
    look.after = replace(look.before, switches=switches)
    holder = ThreadPlace("/home/me/train.py:60 watch", "/home/me/train.py:63 watch", holds_lock=True)
    look.first = SpiedProcess(main=("/home/me/train.py:9 step",), threads=(holder,))
    rank = seen_rank.seen_rank(look, "n1", 1.0, StackReader(""), proc.TcpTables()).snapshot
    assert [thread.holds_lock for thread in rank.stacks.threads] == [is_held]


@pytest.mark.parametrize(
    ("condition", "waits", "is_of_all"),
    [
        ("int(self.store.add(name, 0)) < 2", True, False),
        ("int(self.store.add(name, 0)) < self.world", True, True),
        ("int(self.store.add(name, 0)) < tries", True, False),
        ("not os.path.exists(name)", False, False),
        ("0 < queue.add(1)", False, False),
    ],
)
def test_a_loop_that_asks_a_store_waits_for_other_ranks(
    condition: str, waits: bool, is_of_all: bool, tmp_path: Path
) -> None:
    rank = seen(tmp_path, f"while {condition}:\n    time.sleep(0.2)")
    assert (rank.location.operation == STORE_WAIT, rank.call.name == "store") == (waits, waits)
    assert rank.call.is_of_all == is_of_all
    assert rank.stacks.loop == condition


@pytest.mark.parametrize(("inner", "kind"), [("_base.py:451 result", "pool"), ("queue.py:171 get", "result")])
def test_a_thread_of_a_pool_that_waits_for_a_task_while_all_others_do_too_finds_no_free_thread(
    inner: str, kind: str
) -> None:
    folder = "/usr/lib/python3.11/concurrent/futures"
    waiting = (f"{folder}/_base.py:451 result", "/home/me/train.py:15 read", f"{folder}/thread.py:58 run")
    look = RankLook(RankProcess(RankName("RANK", 1, 2), os.getpid(), {}))
    look.first = SpiedProcess(
        main=("/home/me/train.py:23 batch",),
        threads=(ThreadPlace(waiting[1], waiting[1]),),
        others=(waiting, (f"{folder}/{inner}", "/home/me/train.py:9 load", waiting[2])),
    )
    rank = seen_rank.seen_rank(look, "n1", 1.0, StackReader(""), proc.TcpTables()).snapshot
    assert [thread.waits for thread in rank.stacks.threads] == [kind]


@pytest.mark.parametrize(
    ("line", "holder"),
    [
        ("db.execute(insert, row)", 7),
        ("while not locked(file, LOCK_EX | LOCK_NB):\n    time.sleep(1)", 7),
        ("while not flag.exists():\n    time.sleep(1)", 0),
        ("time.sleep(60)", 0),
        ("robot.step", 0),
    ],
)
def test_a_sleep_of_native_code_or_of_a_loop_for_a_lock_may_poll_for_the_lock_of_a_file(
    line: str, holder: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proc, "waiting_in", lambda pid: "hrtimer_nanosleep")
    monkeypatch.setattr(seen_rank, "polled_lock", lambda pid, path: (7, "/scratch/runs.db"))
    assert seen(tmp_path, line).process.lock_holder == holder


@pytest.mark.parametrize(
    ("waits_in", "inner", "is_read"),
    [
        ("poll_schedule_timeout", "/usr/lib/python3.11/subprocess.py:1209 communicate", True),
        ("do_wait", "/home/me/train.py:9 evaluate", True),
        ("futex_do_wait", "/home/me/train.py:9 evaluate", False),
    ],
)
def test_the_stack_of_a_python_program_that_a_rank_waits_for_is_read(
    waits_in: str, inner: str, is_read: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = SpiedProcess(main=("/home/me/evaluate.py:9 main",))
    monkeypatch.setattr(StackReader, "read", lambda reader, pids: dict.fromkeys(pids, program))
    look = RankLook(RankProcess(RankName("RANK", 1, 2), os.getpid(), {}))
    look.first = SpiedProcess(main=(inner, "/home/me/train.py:40 <module>"))
    look.after = replace(look.before, waits_in=waits_in)
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as child:
        rank = seen_rank.seen_rank(look, "n1", 1.0, StackReader(""), proc.TcpTables()).snapshot
        stacks = {process.pid: process.stack for process in rank.process.children}
        child.communicate(b"\n")
    assert stacks[child.pid] == (program.main if is_read else ())


@pytest.mark.parametrize(("switches", "is_held"), [(5, True), (9, False)])
def test_a_thread_that_wakes_up_does_not_wait_for_its_own_lock(
    switches: int, is_held: bool, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text("with LOCK:\n    work()\nLOCK = Lock()\n")
    look = RankLook(RankProcess(RankName("RANK", 1, 2), os.getpid(), {}))
    look.before = replace(look.before, waits_in="futex_do_wait", switches=5)
    look.after = replace(look.before, switches=switches)
    frames = (f"{script}:1 handle", f"{script}:2 <module>")
    look.first = SpiedProcess(main=frames, script=tuple(map(SpiedFrame, frames)))
    rank = seen_rank.seen_rank(look, "n1", 1.0, StackReader(""), proc.TcpTables()).snapshot
    assert rank.stacks.waits == ((ThreadWait("lock", *frames, number=0),) if is_held else ())


def test_a_program_that_reads_a_pipe_of_its_rank_waits_for_the_rank() -> None:
    look = RankLook(RankProcess(RankName("RANK", 1, 2), os.getpid(), {}))
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        until = time.monotonic() + 60
        while "pipe" not in proc.waiting_in(child.pid) and time.monotonic() < until:
            time.sleep(0.01)
        rank = seen_rank.seen_rank(look, "n1", 1.0, StackReader(""), proc.TcpTables()).snapshot
        child.communicate()
    assert [program.waits_for_rank for program in rank.process.children if program.pid == child.pid] == [True]
