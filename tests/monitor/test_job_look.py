"""A look at real processes that look like the ranks of a job, and one without the right to read stacks."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterrun import proc
from clusterrun.diagnosis.job_looks import NOT_INSTALLED, JobLook
from clusterrun.diagnosis.job_worlds import JobHistory, diagnose_looks, worlds_of
from clusterrun.diagnosis.stacks import ENDED_PYTHON, Doing
from clusterrun.diagnosis.verdict import Verdict
from clusterrun.model.document import decode

ROOT = Path(__file__).resolve().parents[2]
JOB = "990077"
PATH = os.pathsep.join((os.path.dirname(sys.executable), os.defpath))
WAITS = """
import time
def step():
    open("up", "w").close()
    time.sleep(600)
step()
"""
LOOK = """
import json, sys
sys.path.insert(0, sys.argv[1])
from clusterrun.model.document import encode_set
from clusterrun.monitor.job_look import JobLooker
print(json.dumps(encode_set(JobLooker(sys.argv[2], "n1", "9", sys.argv[3]).look(0.3))))
"""


@pytest.fixture
def script() -> str:
    return WAITS


@pytest.fixture
def devices() -> str:
    return ""


@pytest.fixture(params=[()])
def waits(request: pytest.FixtureRequest, tmp_path: Path, script: str, devices: str) -> Iterator[int]:
    """Yield a rank without torch that sleeps in ``step``, started by the parameter."""
    names = {"SLURM_JOB_ID": JOB, "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}
    names["SLURMD_NODENAME"] = "n1"
    (tmp_path / "train.py").write_text(script)
    torch = tmp_path / "site-packages" / "torch" / "distributed"
    torch.mkdir(parents=True)
    (torch / "distributed_c10d.py").write_text("import time\ndef all_reduce():\n    time.sleep(600)\n")
    argv = [*request.param, sys.executable, "train.py"]
    names["CUDA_VISIBLE_DEVICES"] = devices
    with subprocess.Popen(argv, env={**os.environ, **names}, cwd=tmp_path) as rank:
        until = time.monotonic() + 60
        while not (tmp_path / "up").exists() and rank.poll() is None and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(0.2)
        pid = next(iter(proc.below(rank.pid, 1)), rank.pid) if request.param else rank.pid
        yield pid
        for child in proc.below(pid):
            os.kill(child, signal.SIGKILL)
        rank.kill()


NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child")


def look(*before: str, path: str = PATH) -> JobLook:
    argv = [*before, sys.executable, "-c", LOOK, str(ROOT), JOB, path]
    answer = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True)
    return decode(JobLook, json.loads(answer.stdout))


@pytest.mark.parametrize(
    "waits",
    [(), pytest.param(NAMESPACE, marks=pytest.mark.skipif(os.geteuid() != 0, reason="it makes a namespace"))],
    indirect=True,
)
@pytest.mark.skipif(shutil.which("py-spy", path=PATH) is None, reason="py-spy is not installed")
def test_a_sleeping_rank_is_seen_with_its_line_and_is_not_stopped_for_native_frames(waits: int) -> None:
    result = look()
    (rank,) = result.ranks
    stacks = rank.snapshot.stacks
    assert (rank.snapshot.process.pid, rank.snapshot.location.frame.rpartition(" ")[2]) == (waits, "step")
    if proc.waiting_in(waits):  # else the kernel does not say where it sleeps
        assert (stacks.native, rank.snapshot.problem, result.problems) == ((), "", ())


ASKS = """
import os
reader, writer = os.pipe()
os.dup2(reader, 0)
def step():
    open("up", "w").close()
    input()
step()
"""


@pytest.mark.parametrize("script", [ASKS])
@pytest.mark.skipif(shutil.which("py-spy", path=PATH) is None, reason="py-spy is not installed")
def test_a_read_of_the_standard_input_is_seen(waits: int) -> None:
    if not proc.content(f"/proc/{waits}/syscall"):
        pytest.skip("the kernel does not show calls")
    (rank,) = look().ranks
    assert [wait.kind for wait in rank.snapshot.stacks.waits] == ["input"]


HOLDS = """
import ctypes, threading, time
def hold():
    time.sleep(0.5)
    open("up", "w").close()
    ctypes.PyDLL(None).sleep(600)
threading.Thread(target=hold, daemon=True).start()
while True:
    time.sleep(0.01)
"""


@pytest.mark.parametrize("script", [HOLDS, HOLDS.replace("PyDLL", "CDLL")])
@pytest.mark.skipif(shutil.which("py-spy", path=PATH) is None, reason="py-spy is not installed")
def test_a_thread_that_keeps_the_lock_of_the_interpreter_is_seen(waits: int, script: str) -> None:
    until = time.monotonic() + 60
    keeps, held = "PyDLL" in script, ["PyDLL" not in script]
    # The thread that asks for the lock runs now and then.
    while held != [keeps] and time.monotonic() < until:
        (rank,) = look().ranks
        held = [thread.holds_lock for thread in rank.snapshot.stacks.threads]
    if held != [keeps] and not any(proc.waiting_in(pid) for pid in proc.pids()):
        pytest.skip("the kernel does not say where a process sleeps")
    assert held == [keeps]


READS = """
import socket
server = socket.create_server(("127.0.0.1", 0))
with socket.create_connection(server.getsockname()) as peer:
    peer.settimeout(%s)
    def step():
        with open("up", "w") as file: file.write(str(server.getsockname()[1]))
        peer.makefile("rb").read(1)
    step()
"""


ENDS = """
import ctypes, psutil
libc = ctypes.CDLL(None)
ctypes.pythonapi.Py_AtExit(ctypes.cast(libc.pause, ctypes.c_void_p))
open("up", "w").close()
"""


@pytest.mark.parametrize("script", [ENDS])
@pytest.mark.skipif(shutil.which("py-spy", path=PATH) is None, reason="py-spy is not installed")
def test_a_process_that_runs_on_after_the_end_of_its_interpreter_is_seen(waits: int) -> None:
    (rank,) = look().ranks
    assert rank.snapshot.stacks.main == (ENDED_PYTHON,)


@pytest.mark.parametrize("script", [READS % "None", READS % "600"])
@pytest.mark.skipif(shutil.which("py-spy", path=PATH) is None, reason="py-spy is not installed")
def test_the_peer_of_a_read_is_seen(waits: int, tmp_path: Path) -> None:
    if not proc.content(f"/proc/{waits}/syscall"):
        pytest.skip("the kernel does not show calls")
    (rank,) = look().ranks
    (wait,) = rank.snapshot.stacks.waits
    assert (wait.kind, wait.holder) == ("read", f"127.0.0.1:{(tmp_path / 'up').read_text()}")


@pytest.mark.parametrize("devices", ["0,1", "NoDevFiles"])
def test_the_gpus_of_a_node_are_read_if_the_job_has_any(waits: int, tmp_path: Path, devices: str) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 0, 93, 100, 81559, 300, 40, GPU-1\n")
    program.chmod(0o755)
    assert bool(look(path=str(tmp_path)).gpus) is (devices == "0,1")


EVENTS = """
import threading
def step():
    open("up", "w").close()
    threading.Event().wait()
step()
"""


SERVES = """
import socketserver
server = socketserver.TCPServer(("127.0.0.1", 0), None)
open("up", "w").close()
server.serve_forever()
"""


@pytest.mark.parametrize(("script", "kind"), [(EVENTS, "event"), (SERVES, "request")])
@pytest.mark.skipif(shutil.which("py-spy", path=PATH) is None, reason="py-spy is not installed")
def test_a_wait_for_another_thread_or_a_client_is_seen(waits: int, kind: str) -> None:
    (rank,) = look().ranks
    assert [wait.kind for wait in rank.snapshot.stacks.waits] == [kind]


LAUNCHES = """
import multiprocessing, sys, time
sys.path.insert(0, "site-packages/torch/distributed")
from distributed_c10d import all_reduce
def train(rank, world):
    if rank == 0:
        all_reduce()
    time.sleep(600)
processes = [multiprocessing.Process(target=train, args=(rank, 2), daemon=True) for rank in (0, 1)]
for process in processes: process.start()
open("up", "w").close()
for process in processes: process.join()
"""


@pytest.mark.parametrize("script", [LAUNCHES])
@pytest.mark.skipif(shutil.which("py-spy", path=PATH) is None, reason="py-spy is not installed")
def test_ranks_that_a_script_starts_by_multiprocessing_are_seen_in_its_place(waits: int) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        (world,) = worlds_of([look()], True)
        if len(world.ranks) == 2 and world.ranks[1].location.line:
            break
    assert [rank.location.doing for rank in world.ranks] == [Doing.COLLECTIVE, Doing.USER]
    assert {rank.process.pid for rank in world.ranks} == {child.pid for child in proc.children(waits)}


SPAWNS = """
import os, sys
os.mkdir("site-packages/torch/multiprocessing")
with open("site-packages/torch/multiprocessing/spawn.py", "w") as file:
    file.write('''
import multiprocessing
def _wrap(fn, i):
    fn(i)
def start_processes(fn, nprocs):
    processes = [multiprocessing.Process(target=_wrap, args=(fn, i), daemon=True) for i in range(nprocs)]
    for process in processes: process.start()
    processes[1].join()
    open("up", "w").close()
    processes[0].join()
''')
sys.path[:0] = ["site-packages/torch/distributed", "site-packages/torch/multiprocessing"]
from distributed_c10d import all_reduce
from spawn import start_processes
def train(rank):
    if rank == 0:
        all_reduce()
start_processes(train, 2)
"""


@pytest.mark.parametrize("script", [SPAWNS])
@pytest.mark.skipif(shutil.which("py-spy", path=PATH) is None, reason="py-spy is not installed")
def test_a_spawned_rank_that_has_ended_is_counted_by_the_process_that_started_it(waits: int) -> None:
    (world,) = worlds_of([look()], True)
    assert [(rank.rank, rank.state) for rank in world.ranks] == [(0, "S"), (1, "")]


def test_the_state_and_the_install_command_are_shown_without_py_spy(waits: int, tmp_path: Path) -> None:
    empty = tmp_path / "python"
    result = look(path=str(empty))
    (rank,) = result.ranks
    if rank.snapshot.stacks.main:
        pytest.skip("py-spy is beside the interpreter")
    assert rank.snapshot.problem == NOT_INSTALLED
    diagnosis = diagnose_looks([result], (), JobHistory()).diagnosis
    assert (diagnosis.verdict, diagnosis.remedy[:11]) == (Verdict.UNDETERMINED, "pip install")


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="it takes root's rights away"
)
@pytest.mark.skipif(shutil.which("py-spy", path=PATH) is None, reason="py-spy is not installed")
def test_a_step_without_the_permission_names_it_and_shows_the_state(waits: int) -> None:
    rights = ("setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace")
    result = look(*rights)
    (problem,) = result.problems
    assert "CAP_SYS_PTRACE" in problem
    diagnosis = diagnose_looks([result], (), JobHistory()).diagnosis
    assert diagnosis.verdict is Verdict.UNDETERMINED and problem in diagnosis.message
    assert any(line.startswith("rank 0: no stack; state S") for line in diagnosis.evidence)
