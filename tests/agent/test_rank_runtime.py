"""The laws of a whole run on this machine: real coordinator, shims, agents and ranks, no scheduler."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing as closed
from pathlib import Path
from typing import Any

import pytest

from clusterrun import proc
from clusterrun.agent.rank_environment import hidden_gpus
from clusterrun.model.orders import Survival
from clusterrun.model.record import Failure
from clusterrun.model.states import Phase, State
from clusterrun.model.world import Lineage, Meeting, World, node_environment, rank_environment
from clusterrun.protocol.bootstrap import Timeouts
from clusterrun.runtime.network import held_port
from tests.coordinator.runs import Run, pythons, runs, until

Make = Callable[..., Run]
UP = "echo up; exec sleep 600"
SHOW = "import json, os, sys; json.dump(dict(os.environ), sys.stdout)"
QUICK = Timeouts(heartbeat=0.3, lease=3.0, lost=2.0, kill=1.0, state=1.0, join=20.0)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    with runs(tmp_path) as maker:
        yield maker


def sh(script: str) -> list[str]:
    return ["/bin/sh", "-c", script]


def test_every_rank_gets_the_whole_environment_and_no_misleading_variable(make: Make) -> None:
    run = make([sys.executable, "-c", SHOW], environment=(("MINE", "1"), ("OMP_NUM_THREADS", "7")))
    run.environment |= {
        "SLURM_NTASKS": "2",
        "SLURM_PROCID": "0",
        "SLURM_JOB_ID": "77",
        "PET_NNODES": "9",
        "RANK": "5",
    }
    assert run.ended().state is State.COMPLETED
    result = [json.loads(run.output(rank)) for rank in range(4)]
    world = World(("local-0", "local-1"), 2)
    meeting = Meeting("127.0.0.1", int(result[0]["MASTER_PORT"]))
    lineage = Lineage(run.orders.run_id, "a name", str(run.folder), 0, 0)
    for rank, environment in enumerate(result):
        expected = rank_environment(world, rank, meeting, lineage, run.paths.attempt(0).error(rank))
        assert {name: environment[name] for name in expected} == expected
        assert environment["MINE"] + environment["OMP_NUM_THREADS"] + environment["SLURM_JOB_ID"] == "1777"
        assert environment["GLOO_SOCKET_IFNAME"] == "lo"
        assert not {"PET_NNODES", "CLUSTERRUN_NODE"} & set(environment)


INSIDE = {  # what the agent's own task of a step over three nodes, one of them a spare, has
    "SLURM_JOB_ID": "77",
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "2",
    "SLURM_NTASKS": "3",
    "SLURM_NNODES": "3",
    "SLURM_NODELIST": "n[1-3]",
    "SLURM_JOB_NODELIST": "n[1-3]",
    "SLURM_STEP_NODELIST": "n[1-3]",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_TASK_PID": "1",
    "SLURM_CPUS_PER_TASK": "8",
    "SLURM_SUBMIT_DIR": "/",  # by srun of Slurm 20.11, where srun itself runs
    "CLUSTERRUN_SUBMIT_DIR": "/home/me",
}


@pytest.mark.parametrize("per_node", [False, True])
def test_every_process_gets_the_variables_that_srun_sets_for_a_task(make: Make, per_node: bool) -> None:
    run = make([sys.executable, "-c", SHOW], per_node=per_node, environment=(("SLURM_NPROCS", "mine"),))
    run.environment |= INSIDE
    assert run.ended().state is State.COMPLETED
    nodes, each = 2, 1 if per_node else 2
    for task in range(nodes * each):
        result = json.loads(run.output(task))
        assert {name: value for name, value in result.items() if name.startswith("SLURM_")} == {
            "SLURM_JOB_ID": "77",
            "SLURM_JOB_NODELIST": "n[1-3]",
            "SLURM_SUBMIT_DIR": "/home/me",
            "SLURM_PROCID": str(task),
            "SLURM_LOCALID": str(task % each),
            "SLURM_NODEID": str(task // each),
            "SLURM_GTIDS": str(task) if per_node else ("0,1", "2,3")[task // 2],
            "SLURM_NTASKS": str(nodes * each),
            "SLURM_NPROCS": "mine",
            "SLURM_NTASKS_PER_NODE": str(each),
            "SLURM_TASKS_PER_NODE": f"{each}(x2)",
            "SLURM_NNODES": "2",
            "SLURM_NODELIST": "local-[0-1]",
            "SLURM_STEP_NUM_TASKS": str(nodes * each),
            "SLURM_STEP_NUM_NODES": "2",
            "SLURM_STEP_TASKS_PER_NODE": f"{each}(x2)",
            "SLURM_STEP_NODELIST": "local-[0-1]",
            "SLURM_CPUS_PER_TASK": str(2 // each),
        }


def test_a_run_without_slurm_finds_nothing_of_slurm(make: Make) -> None:
    run = make([sys.executable, "-c", SHOW])
    assert run.ended().state is State.COMPLETED
    assert not [name for name in json.loads(run.output(0)) if name.startswith("SLURM_")]


def test_a_launcher_per_node_gets_its_variables_and_no_rank_number(make: Make) -> None:
    run = make([sys.executable, "-c", SHOW], per_node=True)
    run.environment |= {"RANK": "5", "LOCAL_RANK": "5", "WORLD_SIZE": "9"}
    assert run.ended().state is State.COMPLETED
    world = World(("local-0", "local-1"), 2)
    for node in range(2):
        environment = json.loads(run.output(node))
        meeting = Meeting("127.0.0.1", int(environment["MASTER_PORT"]))
        expected = node_environment(
            world, node, meeting, Lineage(run.orders.run_id, "a name", str(run.folder), 0, 0)
        )
        assert {name: environment[name] for name in expected} == expected
        assert not {"RANK", "LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"} & set(environment)


def test_ranks_have_empty_input_own_sessions_default_signals_and_no_descriptor_of_ours(make: Make) -> None:
    look = (
        "import os; s = open('/proc/self/status').read(); g = lambda k: s.split(k + ':')[1].split()[0];"
        "fds = sorted(int(f) for f in os.listdir('/proc/self/fd'))[:-1];"
        # Python itself ignores SIGPIPE (13) and SIGXFSZ (25); what posix_spawn started (as make does)
        # has the C library's own two (32, 33) ignored for ever.
        "ignored = int(g('SigIgn'), 16) & ~(1 << 12) & ~(1 << 24) & ~(3 << 31);"
        "print(os.read(0, 1), os.getsid(0) == os.getpid(), ignored, int(g('SigBlk'), 16), fds, os.getcwd())"
    )
    run = make([sys.executable, "-I", "-S", "-c", look], nodes=1)
    assert run.ended().state is State.COMPLETED
    assert run.output(1).decode().split("\n")[0] == f"b'' True 0 0 [0, 1, 2] {run.orders.cwd}"


@pytest.mark.parametrize(("limit", "is_kept"), [(1024, False), (700, True), (2048, True)])
def test_ranks_keep_a_limit_of_open_files_that_somebody_chose(make: Make, limit: int, is_kept: bool) -> None:
    earlier = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, earlier[1]))
    try:
        run = make(sh("ulimit -S -n"), nodes=1)
        assert run.ended().state is State.COMPLETED
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, earlier)
    assert (int(run.output(0)) == limit) is is_kept


def test_the_first_failure_is_reported_with_output_and_traceback_and_ends_the_others(make: Make) -> None:
    document = '{"message": {"message": "E", "extraInfo": {"py_callstack": "Traceback: boom"}}}'
    script = (
        f"test $RANK = 2 || exec sleep 300; echo '{document}' > $TORCHELASTIC_ERROR_FILE; seq 30 >&2; exit 3"
    )
    run = make(sh(script))
    state = run.ended()
    assert (state.state, state.phase, state.exit_code) == (State.FAILED, Phase.ENDED, 3)
    failure = state.failure
    assert failure == Failure(
        2, "local-1", 3, failure.at if failure else 0.0, "rank 2 on local-1 exited with code 3",
        tuple(str(i) for i in range(11, 31)), "Traceback: boom",
    )  # fmt: skip
    assert state.started_at and failure and state.started_at <= failure.at <= state.ended_at  # type: ignore[operator]


def test_a_rank_killed_by_a_signal_gives_128_and_the_signal(make: Make) -> None:
    run = make(sh("test $RANK = 1 && kill -SEGV $$; exec sleep 600"))
    state = run.ended()
    assert (state.state, state.exit_code, state.failure and state.failure.code) == (State.FAILED, 139, -11)


def test_a_restart_is_a_new_attempt_with_its_own_files_and_number(make: Make) -> None:
    run = make(
        sh("echo $CLUSTERRUN_ATTEMPT $TORCHELASTIC_RESTART_COUNT; test $CLUSTERRUN_ATTEMPT = 1"),
        max_restarts=1,
    )
    state = run.ended()
    assert [(a.epoch, a.outcome) for a in state.attempts] == [(0, "FAILED"), (1, "COMPLETED")]
    assert [run.output(3, epoch=epoch) for epoch in (0, 1)] == [b"0 0\n", b"1 1\n"]


@pytest.mark.parametrize("command, cwd, message", [
    (["no-such-program"], "", "the program 'no-such-program' cannot be executed: No such file or directory"),
    (["no/no"], "/usr", "the program 'no/no' in /usr cannot be executed: No such file or directory"),
    (["./no"], "/usr", "the program '/usr/./no' cannot be executed: No such file or directory"),
    (["/etc/passwd"], "", "the program '/etc/passwd' cannot be executed: Permission denied"),
    (["true"], "/no/such/dir", "the directory '/no/such/dir' cannot be entered: No such file or directory"),
])  # fmt: skip
def test_ranks_that_cannot_start_are_reported_by_node_with_the_reason(
    make: Make, command: list[str], cwd: str, message: str
) -> None:
    run = make(command)
    if cwd:
        document = json.loads(Path(run.paths.orders).read_text())
        Path(run.paths.orders).write_text(json.dumps({**document, "cwd": cwd}))
    state = run.ended()
    assert state.state is State.FAILED and message in state.reason and "local-" in state.reason


SLOW_TEE = 'exec > >(while IFS= read -r line; do sleep 0.01; echo "$line"; done) 2>&1; seq 40; '


@pytest.mark.parametrize("code", [0, 3])
def test_output_that_a_filter_of_a_rank_holds_back_is_not_lost(make: Make, code: int) -> None:
    run = make(["/bin/bash", "-c", f"{SLOW_TEE} exit {code}"], nodes=1)
    assert run.ended().exit_code == code
    assert run.output(0).split() == [b"%d" % number for number in range(1, 41)]
    assert run.left() == []


def test_a_child_of_a_rank_may_finish_after_exit_code_0_and_is_killed_after_a_failure(
    make: Make, tmp_path: Path
) -> None:
    for code, seconds, results in ((0, 1, ["0", "1"]), (3, 300, [])):
        folder = tmp_path / f"done-{code}"
        folder.mkdir()
        script = f"(sleep {seconds}; touch {folder}/$RANK) >/dev/null 2>&1 & exit {code}"
        run = make(sh(script), nodes=1)
        assert run.ended().exit_code == code
        assert run.left() == []
        assert sorted(os.listdir(folder)) == results


def test_a_daemon_of_a_rank_gets_a_term_when_the_run_ends(make: Make, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    daemon = f"(trap 'sleep 0.5; touch {saved}; exit' TERM; echo up; while :; do sleep 0.05; done) &"
    run = make(sh(daemon), nodes=1, ranks=1)
    run.start()
    run.running(1)
    run.coordinator.send_signal(signal.SIGTERM)
    run.wait()
    assert saved.exists()
    assert run.left() == []


def test_a_program_in_a_shell_script_gets_the_term_that_ends_the_shell_and_may_save(
    make: Make, tmp_path: Path
) -> None:
    saved = tmp_path / "saved"
    program = f"trap 'sleep 0.5; touch {saved}; exit' TERM; echo up; while :; do sleep 0.05; done"
    run = make(["/bin/bash", "-c", '/bin/bash -c "$0"; echo after', program], nodes=1, ranks=1)
    run.start()
    run.running(1)
    run.coordinator.send_signal(signal.SIGTERM)
    run.wait()
    assert (saved.exists(), run.output(0), run.state().state) == (True, b"up\n", State.CANCELLED)
    assert run.left() == []


SAVES = """
import os, signal, subprocess, sys, time
def on_signal(number, frame):
    line = " ".join([*sys.argv[1:], "got", signal.Signals(number).name])
    os.write(1, f"{line}\\n".encode())  # at once: program and worker share the file
    if number == signal.SIGTERM:
        sys.exit()
for number in (signal.SIGUSR2, signal.SIGTERM):
    signal.signal(number, on_signal)
if "worker" not in sys.argv:
    subprocess.Popen([sys.executable, __file__, "worker"])  # as a data-loader starts its workers
print("up", flush=True)
while True:
    time.sleep(0.05)
"""


@pytest.mark.parametrize(
    "script",
    [
        "{0}; echo after",
        "trap 'echo mine' USR2 EXIT\n{0}",
        "({0} | cat) 2>&1",
        "bash -c '{0}; true'",
        "timeout 600 {0}; echo after",
        "exec {1} -c \"import subprocess; subprocess.run(['{1}', '{2}'])\"",
        "exec {1} -c \"import subprocess; subprocess.run('env A=1 {0}; true', shell=True)\"",
    ],
)
def test_the_program_of_a_shell_script_gets_signals_and_its_own_children_get_none(
    make: Make, tmp_path: Path, script: str
) -> None:
    """Plain srun signals it too. It need not be started with ``exec``."""
    saves = tmp_path / "saves.py"
    saves.write_text(SAVES)
    command = script.format(f"{sys.executable} {saves}", sys.executable, saves)
    run = make(["/bin/bash", "-c", command], nodes=1, ranks=1)
    run.start()
    run.running(1)
    until(lambda: run.output(0).count(b"up\n") == 2, "the program and its worker")
    run.coordinator.send_signal(signal.SIGUSR2)
    until(lambda: b"got SIGUSR2" in run.output(0).splitlines(), "the program that heard of it")
    run.coordinator.send_signal(signal.SIGTERM)
    run.wait()
    lines = run.output(0).splitlines()
    # A worker that outlives its program is a leftover: it gets the TERM then.
    assert (lines.count(b"got SIGUSR2"), lines.count(b"worker got SIGUSR2")) == (1, 0)
    assert (lines.count(b"got SIGTERM"), lines.count(b"worker got SIGTERM")) == (1, 1)
    assert run.state().state is State.CANCELLED
    assert run.left() == []


WAITS_FOR_SIGNALS = """
import signal, sys
signals = {signal.SIGUSR2, signal.SIGTERM}
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
print("up", flush=True)
while True:
    number = signal.sigwait(signals)
    print("got", signal.Signals(number).name, flush=True)
    if number == signal.SIGTERM:
        sys.exit()
"""
IGNORES_SIGNALS = """
import os, signal
for number in (signal.SIGUSR2, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
if os.fork():
    os.wait()
    print("parent", flush=True)
    os._exit(0)
os.setsid()
"""


@pytest.mark.parametrize(
    "script, after",
    [(WAITS_FOR_SIGNALS, b""), (IGNORES_SIGNALS + SAVES.replace('"worker"', '"-c"'), b"parent\n")],
)
def test_signals_reach_a_waiting_program_and_a_child_of_one_that_ignores_them(
    make: Make, script: str, after: bytes
) -> None:
    run = make([sys.executable, "-c", script], nodes=1, ranks=1)
    run.start()
    run.running(1)
    until(lambda: run.output(0) == b"up\n", "the program")
    run.coordinator.send_signal(signal.SIGUSR2)
    until(lambda: b"SIGUSR2" in run.output(0), "the program that heard of it")
    run.coordinator.send_signal(signal.SIGTERM)
    run.wait()
    lines = run.output(0).replace(b"-c ", b"")
    assert lines == b"up\ngot SIGUSR2\ngot SIGTERM\n" + after
    assert run.left() == []


def test_each_rank_reads_the_whole_input(make: Make, tmp_path: Path) -> None:
    (tmp_path / "input").write_text("one\ntwo\n")
    run = make(["/bin/cat"], input=f"{tmp_path}/input")
    assert run.ended().state is State.COMPLETED
    assert [run.output(rank) for rank in range(4)] == [b"one\ntwo\n"] * 4
    ended = make(["/bin/cat"], input=f"{tmp_path}/gone")
    assert f"a file cannot be opened: {tmp_path}/gone: No such file" in ended.ended().reason


STREAMS = "echo 1; echo 2 > /dev/stderr; echo 3 > /dev/stdout; echo 4 | tee /dev/stderr; echo 5"


def test_ranks_with_pipes_append_where_they_open_their_own_output_by_name(make: Make) -> None:
    run = make(sh(STREAMS), pipes_output=True)
    assert run.ended().state is State.COMPLETED
    for rank in range(4):
        assert (run.output(rank), run.output(rank, "err")) == (b"1\n3\n4\n5\n", b"2\n4\n")
    assert run.left() == []


@pytest.mark.parametrize("victim", ["rank", "agent", "shim", "coordinator"])
def test_a_kill_leaves_no_process_and_the_run_ends(make: Make, victim: str) -> None:
    run = make(sh(f"sleep 400 & (setsid sleep 500 &) ; {UP}"))
    run.start(QUICK)
    ranks = [process for process in run.running(4) if process.parent in run.agents()]
    pid = {
        "rank": ranks[0].pid,
        "agent": run.agents()[0],
        "shim": run.shims()[0],
        "coordinator": run.coordinating(),
    }[victim]
    os.kill(pid, signal.SIGKILL)
    if victim == "agent":
        until(lambda: len(run.marked()) <= 6, "the ranks of the killed agent dead")
    run.wait()
    until(lambda: not run.left(), "nothing left")
    if victim != "coordinator":
        assert run.state().state in (State.FAILED, State.NODE_FAIL)


def test_a_frozen_agent_loses_its_node_when_the_lease_runs_out(make: Make) -> None:
    run = make(sh(UP))
    run.start(QUICK)
    run.running(4)
    agent = run.agents()[0]
    os.kill(agent, signal.SIGSTOP)
    until(lambda: not proc.find(agent), "the frozen agent and its ranks killed by the shim")
    run.wait()
    assert run.state().state is State.NODE_FAIL and "local-" in run.state().reason


@pytest.mark.parametrize("way", ["file", "TERM"])
def test_a_cancel_ends_stopped_and_stubborn_ranks_within_the_grace_time(make: Make, way: str) -> None:
    run = make(
        sh("trap '' TERM; test $RANK = 1 && kill -STOP $$; echo up; while :; do sleep 1; done"), grace=1.0
    )
    run.start()
    run.running(3)
    if way == "file":
        Path(run.paths.cancel).touch()
    else:
        run.coordinator.terminate()
    run.wait()
    assert run.state().state is State.CANCELLED
    assert run.marked() == []


def test_a_rank_that_ends_itself_at_the_signal_gets_the_time(make: Make) -> None:
    run = make(sh("trap 'echo saved; exit 0' TERM; echo up; while :; do sleep 0.1; done"))
    run.start()
    run.running(4)
    run.coordinator.terminate()
    run.wait()
    assert [run.output(rank) for rank in range(4)] == [b"up\nsaved\n"] * 4


NOTICED = """
import os, signal, sys, time
def noticed(*_):
    print("noticed", flush=True)
    sys.exit(0)
rank = int(os.environ["RANK"])
if rank % 2 == 0:
    signal.signal(signal.SIGUSR2, noticed)
if os.fork() == 0:
    signal.signal(signal.SIGUSR2, lambda *_: print("child", flush=True))
else:
    print("up", flush=True)
while not os.path.exists(os.environ["CLUSTERRUN_RUN_DIR"] + "/go"):
    time.sleep(0.05)
"""


def test_a_notice_reaches_the_ranks_that_catch_it_and_no_other_process(make: Make) -> None:
    run = make([sys.executable, "-c", NOTICED])
    run.start()
    run.running(4)
    run.coordinator.send_signal(signal.SIGUSR2)
    until(lambda: run.output(0) == run.output(2) == b"up\nnoticed\n", "two ranks that heard of it")
    (run.folder / "go").touch()
    assert run.wait() == 0
    assert [run.output(rank) for rank in (1, 3)] == [b"up\n"] * 2
    assert run.state().state is State.COMPLETED


@pytest.mark.parametrize("requeue", ["", "chain"])
def test_a_signal_to_a_job_step_ends_ranks_that_do_not_catch_it_unless_it_is_a_notice(
    make: Make, requeue: str
) -> None:
    run = make(
        [sys.executable, "-c", NOTICED.replace("SIGUSR2", "SIGUSR1")], survival=Survival(requeue=requeue)
    )
    run.start()
    run.running(4)
    below = proc.descendants(run.coordinator.pid)
    parents = {run.coordinator.pid, *(p.pid for p in below if p.parent == run.coordinator.pid)}
    tasks = [p.pid for p in below if p.parent in parents and b"\0agent\0" in command_of(p.pid)]
    for task in tasks:
        os.kill(task, signal.SIGUSR1)
    # Shim and agent both pass it on, as Slurm signals both: a rank may hear of it twice before it has ended.
    heard = (b"up\nnoticed\n", b"up\nnoticed\nnoticed\n")
    until(lambda: run.output(0) in heard and run.output(2) in heard, "two ranks that heard of it")
    if requeue:
        (run.folder / "go").touch()
    run.wait()
    assert [run.output(rank) for rank in (1, 3)] == [b"up\n"] * 2
    assert (len(tasks) >= 2, run.state().state) == (True, State.COMPLETED if requeue else State.FAILED)
    assert requeue or "SIGUSR1" in run.state().reason


def test_processes_that_a_rank_left_and_hid_are_ended(make: Make) -> None:
    seconds = 10**6 + os.getpid()  # no other sleep on this machine is this one
    hidden = (
        "import os\nif os.fork() == 0:\n os.setsid()\n if os.fork(): os._exit(0)\n"
        f" os.execve('/bin/sleep', ['a b) c', '{seconds}'], {{}})\nos._exit(3)"
    )
    run = make([sys.executable, "-c", hidden])
    # After exit code 0 the daemon would have a minute.
    assert run.ended().state is State.FAILED
    assert not [p for p in proc.processes() if str(seconds).encode() in command_of(p.pid)]


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""  # it ended in between


def test_a_state_that_cannot_be_written_is_noted_and_ends_no_run(make: Make) -> None:
    run = make(sh("sleep 1"))
    (run.folder / "state.json").mkdir()
    (run.folder / "state.json" / "x").touch()
    run.start()
    until(lambda: (run.folder / "attempts" / "000" / "00003.out").exists(), "ranks")
    (run.folder / "state.json" / "x").unlink()
    (run.folder / "state.json").rmdir()
    assert run.wait() == 0 and run.state().state is State.COMPLETED
    assert b"the state cannot be written (Is a directory)" in run.words


def test_a_higher_attempt_ends_the_older_coordinator_and_its_state_is_not_overwritten(make: Make) -> None:
    run = make(sh(UP))
    run.start()
    run.running(4)
    (run.folder / "attempts" / "001").mkdir(mode=0o700)
    (run.folder / "state.json").write_text("theirs")
    run.wait()
    assert (run.folder / "state.json").read_text() == "theirs"
    until(lambda: not run.left(), "nothing left")


def test_no_secret_is_in_arguments_environment_or_files(make: Make) -> None:
    run = make(sh(UP))
    run.start()
    processes = [p.pid for p in run.running(4)] + run.agents() + run.shims()
    texts = [Path(f"/proc/{pid}/{name}").read_bytes() for pid in processes for name in ("cmdline", "environ")]
    texts += [path.read_bytes() for path in run.folder.rglob("*") if path.is_file()]
    assert not [text for text in texts if b'"secret": "' in text]
    modes = {oct(path.stat().st_mode & 0o777) for path in run.folder.rglob("*") if path.name[0].isdigit()}
    assert modes == {"0o700", "0o600"}
    run.coordinator.terminate()
    run.wait()


@pytest.mark.parametrize("spoil, message", [
    (lambda run: Path(run.paths.orders).unlink(), "orders.json cannot be read on"),
    (lambda run: Path(run.paths.orders).write_text("{"), "orders.json is not"),
    (lambda run: edit(run, format=99), "format 99 is newer than this program reads (1)"),
    (lambda run: run.folder.chmod(0o777), "may be written by, somebody else"),
])  # fmt: skip
def test_an_impossible_start_is_reported_in_plain_lines(
    make: Make, spoil: Callable[[Run], Any], message: str
) -> None:
    run = make(["true"])
    spoil(run)
    run.start()
    assert run.wait() == 1 or True
    text = run.words.decode()
    assert message in text


def edit(run: Run, **changes: Any) -> None:
    path = Path(run.paths.orders)
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_frozen_agent_whose_shim_is_killed_wakes_up_and_leaves_no_process(make: Make) -> None:
    run = make(sh(f"(setsid sleep 500 &) ; {UP}"))
    run.start(QUICK)
    run.running(4)
    agent, shim = run.agents()[0], run.shims()[0]
    os.kill(agent, signal.SIGSTOP)
    os.kill(shim, signal.SIGKILL)
    until(lambda: not proc.find(agent), "the agent gone")
    run.wait()
    assert run.marked() == []


def test_a_frozen_coordinator_loses_every_node_when_the_lease_runs_out(make: Make) -> None:
    run = make(sh(UP))
    run.start(QUICK)
    run.running(4)
    os.kill(run.coordinating(), signal.SIGSTOP)
    until(lambda: not run.marked(), "every rank dead")
    os.kill(run.coordinating(), signal.SIGCONT)
    run.wait()
    assert run.state().state.ended and run.state().state is not State.COMPLETED


def test_each_simulated_node_sees_its_own_share_of_the_devices(make: Make) -> None:
    run = make(sh("echo $CUDA_VISIBLE_DEVICES"))
    edit(run, gpus_per_node=2)
    run.environment["CUDA_VISIBLE_DEVICES"] = "4,5,6,7"
    assert run.ended().state is State.COMPLETED
    assert [run.output(rank) for rank in range(4)] == [b"4,5\n", b"4,5\n", b"6,7\n", b"6,7\n"]


def test_unrequested_gpus_are_hidden_from_ranks_unless_the_user_names_them(make: Make) -> None:
    for mine, observed in (("", b"\n"), ("3", b"3\n")):
        run = make(sh("echo $CUDA_VISIBLE_DEVICES"))
        edit(run, hide_gpus=True, environment=[["CUDA_VISIBLE_DEVICES", mine]] if mine else [])
        run.environment["CUDA_VISIBLE_DEVICES"] = "4,5,6,7"
        assert run.ended().state is State.COMPLETED
        assert {run.output(rank) for rank in range(4)} == {observed}


@pytest.mark.parametrize(
    "files, more",
    [
        ((), {}),
        (("/dev/nvidia0",), {}),
        (("/dev/kfd", "/dev/dri"), {"HIP_VISIBLE_DEVICES": "-1", "ZE_AFFINITY_MASK": "1024"}),
        (("/dev/dri",), {"ZE_AFFINITY_MASK": "1024"}),
    ],
)
def test_gpus_are_hidden_by_the_variables_of_their_makers(
    files: tuple[str, ...], more: dict[str, str]
) -> None:
    assert hidden_gpus(lambda path: path in files) == {"CUDA_VISIBLE_DEVICES": "", **more}


@pytest.mark.parametrize("python", pythons())
def test_a_whole_run_works_under_every_supported_python(make: Make, python: str) -> None:
    run = make(sh("test $RANK != 3 || exit 9; sleep 60"))
    run.coordinator = subprocess.Popen(
        [python, "-I", "-S", run.paths.agent, "coordinate", run.paths.run_dir], stderr=subprocess.PIPE
    )
    assert run.wait() == 9
    assert run.state().reason == "rank 3 on local-1 exited with code 9"


def test_a_second_start_of_the_run_keeps_the_lineage_of_the_first(make: Make) -> None:
    run = make(sh("exit $((3 - $CLUSTERRUN_ATTEMPT * 3))"))
    assert [run.ended().state, run.ended().state] == [State.FAILED, State.COMPLETED]
    assert [(a.epoch, a.outcome) for a in run.state().attempts] == [(0, "FAILED"), (1, "COMPLETED")]
    assert sorted(path.name for path in (run.folder / "attempts").iterdir()) == ["000", "001"]


def test_a_start_that_finds_the_run_cancelled_keeps_the_record_and_starts_no_rank(make: Make) -> None:
    run = make(sh("exit 3"))
    assert run.ended().state is State.FAILED
    Path(run.paths.cancel).touch()
    state = run.ended()
    assert (state.state, state.epoch) == (State.CANCELLED, 1)
    assert [(a.epoch, a.outcome, a.nodes != ()) for a in state.attempts] == [
        (0, "FAILED", True), (1, "CANCELLED", False)
    ]  # fmt: skip


@pytest.mark.parametrize("launch, output", [
    (("no-such-srun",), "the program 'no-such-srun' cannot be executed: No such file or directory"),
    (("/bin/sh", "-c", "echo srun: error: no >&2; exit 1"), "srun: error: no"),
    (("/bin/sh", "-c", "{python} -I -S {program} agent /no/dir"), "/no/dir cannot be reached on"),
])  # fmt: skip
def test_a_run_whose_agents_cannot_start_ends_with_the_launchers_message(
    make: Make, launch: tuple[str, ...], output: str
) -> None:
    run = make(["true"])
    edit(run, launch=[word.format(python=sys.executable, program=run.paths.agent) for word in launch])
    state = run.ended()
    message = state.reason + "".join(state.failure.last_lines if state.failure else ())
    assert state.state is State.FAILED and output in message


def test_the_beginning_and_the_end_of_a_long_launcher_output_are_stored(make: Make) -> None:
    run = make(["true"])
    edit(run, launch=["/bin/sh", "-c", "seq 3000 >&2; exit 9"])
    reason = run.ended().reason
    assert "1 / 2 / 3" in reason and "2999 / 3000" in reason and len(reason) < 300
    assert len(run.words.splitlines()) < 1100


def test_a_standard_error_on_a_full_disk_ends_no_run(make: Make) -> None:
    run = make(sh("echo fine"))
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-I", "-S", run.paths.agent, "coordinate", run.paths.run_dir]
        run.coordinator = subprocess.Popen(command, stderr=full)
    assert run.wait() == 0 and run.state().state is State.COMPLETED


def test_a_launcher_per_node_finds_its_port_free(make: Make) -> None:
    take = "import os, socket; s = socket.socket(); s.bind(('', int(os.environ['MASTER_PORT']))); s.listen()"
    run = make([sys.executable, "-c", take], nodes=1, per_node=True)
    assert run.ended().state is State.COMPLETED, run.output(0, "err")


def test_an_attempt_that_cannot_begin_is_reported_in_plain_lines(make: Make) -> None:
    run = make(["true"])
    (run.folder / "attempts").touch()
    run.start()
    assert run.wait() == 1
    assert b"Traceback" not in run.words and b"Not a directory" in run.words


TROUBLED = """
import errno, os, sys
from clusterrun.node import main
make, trouble = os.mkdir, sys.argv[2]
def mkdir(path, mode=0o777):
    if path.endswith("001") and os.path.exists(trouble):
        raise OSError(int(sys.argv[3]), os.strerror(int(sys.argv[3])), path)
    make(path, mode)
os.mkdir = mkdir
sys.exit(main.coordinate(sys.argv[1]))
"""


@pytest.mark.parametrize("number", [errno.EACCES, errno.ESTALE])
def test_an_attempt_that_cannot_begin_for_a_while_begins_later(make: Make, number: int) -> None:
    """The call is made to fail, because a file system that fails on demand is not at hand."""
    run = make(sh('[ "$CLUSTERRUN_ATTEMPT" = 1 ] || exit 3'), max_restarts=1)
    trouble = run.folder / "trouble"
    trouble.touch()
    arguments = [str(run.folder), str(trouble), str(number)]
    run.kept = False
    run.coordinator = subprocess.Popen(
        [sys.executable, "-c", TROUBLED, *arguments], stderr=subprocess.PIPE, env=run.environment
    )
    log = run.folder / "attempts" / "000" / "coordinator.log"
    until(lambda: log.exists() and "it is tried again" in log.read_text(), "a first try")
    assert f"attempts/001: {os.strerror(number)} on " in log.read_text()
    trouble.unlink()
    assert run.wait() == 0, run.words
    state = run.state()
    assert [a.outcome for a in state.attempts] == ["FAILED", "COMPLETED"]
    assert state.attempts[0].failure is not None and state.attempts[0].failure.code == 3


TCP_STORE = (
    "import sys, datetime, torch.distributed as d\n"
    "port, limit = int(sys.argv[1]), datetime.timedelta(seconds=9)\n"
    "for libuv in (True, False):\n"
    "    s = d.TCPStore('127.0.0.1', port, 1, True, limit, use_libuv=libuv)\n"
    "    c = d.TCPStore('127.0.0.1', port, 1, False, limit, use_libuv=libuv)\n"
    "    c.set('a', 'b'); print(s.get('a')); del c, s\n"
)


def test_only_a_store_that_may_reuse_the_held_port_can_bind_it() -> None:
    pytest.importorskip("torch")
    with closed(held_port()) as holder:
        port = holder.getsockname()[1]
        with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
            stranger.bind(("", port))
        result = subprocess.run(
            [sys.executable, "-c", TCP_STORE, str(port)], capture_output=True, text=True, timeout=120
        )
    assert (result.returncode, result.stdout) == (0, "b'b'\nb'b'\n"), result.stderr
