"""The laws of starting, ending and sweeping real processes."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from socket import create_server

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterrun import proc
from clusterrun.model.frozen import replace
from clusterrun.monitor.process_sample import awaited_lock, most_grown, polled_lock
from clusterrun.runtime import commands
from clusterrun.runtime.kill_tree import KillTarget, below, marked, send, sweep
from clusterrun.runtime.processes import NotStarted, ProcessEnd, Program, ended_children, start_all
from tests.coordinator.runs import until

ENVIRONMENT = (("PATH", "/usr/bin:/bin"),)
ECHO = "import os, sys; os.write(1, b'\\0'.join(map(os.fsencode, sys.argv[1:] + [os.environ['X']])))"


@pytest.fixture
def null() -> Iterator[int]:
    fd = os.open(os.devnull, os.O_RDWR)
    yield fd
    os.close(fd)


def program(null: int, *argv: str, stdout: int = -1, cwd: str = "/", **environment: str) -> Program:
    pairs = (*ENVIRONMENT, *environment.items())
    return Program(argv, pairs, cwd, null, null if stdout < 0 else stdout, null, signal.SIGKILL)


STRANGERS: set[int] = set()
"""Children that were there before the test, of other tests in this process."""


@pytest.fixture(autouse=True)
def strangers() -> None:
    STRANGERS.update(process.pid for process in proc.descendants(os.getpid()))


def ends(count: int) -> dict[int, int]:
    result: dict[int, int] = {}

    def look() -> bool:
        result.update({child.pid: child.code for child in ended_children() if child.pid not in STRANGERS})
        return len(result) >= count

    until(look, f"{count} children ended")
    return result


def test_exit_codes_and_signals_are_distinguished_and_assigned_to_their_child(null: int) -> None:
    scripts = ["exit 0", "exit 7", "exit 137", "kill -9 $$", "kill -15 $$"]
    pids = start_all([program(null, "sh", "-c", script) for script in scripts])
    result = ends(5)
    assert [result[pid] for pid in pids] == [0, 7, 137, -9, -15]


@pytest.mark.parametrize("argv, cwd, message, remedy", [
    ("no-such", "/", "the program 'no-such' cannot be executed: No such file or directory", "--setup"),
    ("no-such", "/", "the program 'no-such' cannot be executed: No such file or directory", "PATH=/usr"),
    ("/", "/", "the program '/' cannot be executed: Permission denied", "chmod +x"),
    ("true", "/no-such", "the directory '/no-such' cannot be entered: No such file or directory", "share"),
])  # fmt: skip
def test_a_program_that_cannot_be_executed_is_named_with_a_remedy(
    null: int, argv: str, cwd: str, message: str, remedy: str
) -> None:
    with pytest.raises(NotStarted) as caught:
        start_all([program(null, argv, cwd=cwd)])
    assert caught.value.seen == message and remedy in caught.value.remedy
    assert list(ends(1).values()) == [127]


def test_the_first_of_several_that_cannot_be_executed_is_named_and_the_others_run(null: int) -> None:
    argvs = [("sh", "-c", "exit 3"), ("no-such-a",), ("sh", "-c", "exit 4"), ("no-such-b",)]
    with pytest.raises(NotStarted) as caught:
        start_all([program(null, *argv) for argv in argvs])
    assert caught.value.seen == "the program 'no-such-a' cannot be executed: No such file or directory"
    assert sorted(ends(4).values()) == [3, 4, 127, 127]


HOSTILE = st.text(
    st.characters(min_codepoint=1, exclude_categories=("Cs",))
    | st.sampled_from(" '\"\\$`\n\t(){}*?;&|<>~#!-=\udc80\udcff\u202e"),
    max_size=20,
)


@given(st.lists(HOSTILE, max_size=8), HOSTILE)
@settings(max_examples=60, deadline=None)
def test_arguments_and_values_arrive_byte_for_byte(arguments: list[str], value: str) -> None:
    readable, writable = os.pipe()
    null = os.open(os.devnull, os.O_RDWR)
    argv = (sys.executable, "-I", "-S", "-c", ECHO, *arguments)
    start_all([program(null, *argv, stdout=writable, X=value)])
    os.close(writable)
    with open(readable, "rb") as file:
        arrived = file.read().split(b"\0")
    os.close(null)
    assert ends(1) and arrived == [os.fsencode(word) for word in [*arguments, value]]


def test_a_child_dies_with_the_process_that_started_it() -> None:
    script = (
        "import os, signal, sys, time; from clusterrun.runtime.processes import Program, start_all;"
        "n = os.open('/dev/null', os.O_RDWR);"
        "e = (('PATH', '/bin:/usr/bin'),);"
        "p = start_all([Program(('sleep', '300'), e, '/', n, n, n, signal.SIGKILL)]);"
        "print(p[0], flush=True); time.sleep(300)"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=os.getcwd())
    assert parent.stdout
    pid = int(parent.stdout.readline())
    assert proc.find(pid)
    parent.kill()
    parent.communicate()
    until(lambda: proc.find(pid) is None or proc.find(pid).state in "ZX", "the child dead")  # type: ignore[union-attr]


def test_a_name_with_spaces_and_parentheses_is_read_right() -> None:
    rename = "ctypes.CDLL(None).prctl(15, b'a) R 1 (b', 0, 0, 0)"
    script = f"import ctypes, time; {rename}; print(flush=True); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    try:
        assert child.stdout and child.stdout.readline()
        process = proc.find(child.pid)
        assert process and (process.name, process.parent) == ("a) R 1 (b", os.getpid())
    finally:
        child.kill()
        child.communicate()


LOCKS = "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.{call}(f, fcntl.LOCK_EX); print(); input()"


@pytest.mark.parametrize("call", ["flock", "lockf"])
def test_the_holder_of_a_file_lock_that_a_process_waits_for_is_reported(call: str, tmp_path: Path) -> None:
    file = tmp_path / "data set.lock"
    pipe = subprocess.PIPE
    command = [sys.executable, "-S", "-c", LOCKS.format(call=call), str(file)]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as holder:
        assert holder.stdout and holder.stdout.readline() == b"\n"
        with subprocess.Popen(command, stdin=pipe, stdout=pipe) as waiter:
            until(lambda: awaited_lock(waiter.pid) != (0, ""), "the other one waits")
            assert awaited_lock(waiter.pid) == (holder.pid, str(file))
            assert awaited_lock(holder.pid) == (0, "")
            holder.communicate(b"\n")
            waiter.communicate(b"\n")


@pytest.mark.parametrize(("call", "kind"), [("flock", "EX"), ("lockf", "EX"), ("flock", "SH")])
def test_the_holder_of_a_lock_that_a_process_polls_for_is_reported(
    call: str, kind: str, tmp_path: Path
) -> None:
    file = tmp_path / "runs.db"
    source = LOCKS.format(call=call).replace("'a'", "'a+'").replace("LOCK_EX", f"LOCK_{kind}")
    command = [sys.executable, "-S", "-c", source, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout and holder.stdout.readline() == b"\n"
        expected = (holder.pid, str(file)) if kind == "EX" else (0, "")
        assert polled_lock(os.getpid()) == (0, "")
        assert polled_lock(os.getpid(), str(file)) == expected
        with open(file):
            assert polled_lock(os.getpid()) == expected
        assert polled_lock(holder.pid) == (0, "")
        holder.communicate(b"\n")


def test_a_file_is_reported_whose_lock_a_process_of_another_node_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = proc.content
    monkeypatch.setattr(proc, "content", lambda path: b"" if path == "/proc/locks" else content(path))
    file = tmp_path / "data set.lock"
    command = [sys.executable, "-S", "-c", LOCKS.format(call="flock"), str(file)]
    with open(file, "w") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as waiter:
            until(lambda: awaited_lock(waiter.pid) == (0, str(file)), "it waits")
            fcntl.flock(holder, fcntl.LOCK_UN)
            waiter.communicate(b"\n")


def test_both_ways_to_find_descendants_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    child = subprocess.Popen(["/bin/sh", "-c", "sleep 600 & sleep 601 & echo; wait"], stdout=subprocess.PIPE)
    try:
        assert child.stdout and child.stdout.readline()
        listed = {process.pid for process in proc.descendants(os.getpid())}
        assert len(listed) >= 3
        with monkeypatch.context() as patch:
            patch.setattr(os.path, "exists", lambda path: False)
            assert {process.pid for process in proc.descendants(os.getpid())} == listed
            assert {process.pid for process in proc.children(os.getpid())} <= listed
            assert set(proc.below(os.getpid())) == listed
    finally:
        sweep(lambda: [p for p in proc.descendants(child.pid) if p.state != "Z"], lambda: None, 30.0)
        child.kill()
        child.communicate()


FORKER = (
    "import os, signal, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "print(flush=True)\n"
    "for _ in range(400):\n"
    "    if os.fork() == 0:\n"
    "        os.setsid()\n"
    "        time.sleep(0.002)\n"
    "        if os.fork() == 0: time.sleep(300)\n"
    "        os._exit(0)\n"
    "    time.sleep(0.001)\n"
)


def test_a_program_that_forks_while_it_is_killed_does_not_escape() -> None:
    mark = KillTarget("forker-test", 3, "here")
    environment = {**os.environ, "CLUSTERRUN_STEP": "forker-test.3", "CLUSTERRUN_NODE_NAME": "here"}
    child = subprocess.Popen([sys.executable, "-c", FORKER], stdout=subprocess.PIPE, env=environment)
    assert child.stdout and child.stdout.readline()
    until(lambda: len(marked(mark)) > 10, "many processes")
    assert sweep(lambda: marked(mark), lambda: child.poll() and None, 60.0) == ()
    assert marked(mark) == []
    child.communicate()


@pytest.mark.parametrize("target, is_marked", [
    (KillTarget("run-a", 2, "n1"), True),
    (KillTarget("run-a", 5, "n1"), True),
    (KillTarget("run-a", 1, "n1"), False),
    (KillTarget("run-b", 2, "n1"), False),
    (KillTarget("run-a", 2, "n2"), False),
    (KillTarget("run", 2, "n1"), False),
])  # fmt: skip
def test_only_processes_of_this_run_node_and_epoch_are_marked(target: KillTarget, is_marked: bool) -> None:
    environment = {"CLUSTERRUN_STEP": "run-a.2", "CLUSTERRUN_NODE_NAME": "n1", "PATH": os.environ["PATH"]}
    child = subprocess.Popen(["sleep", "600"], env=environment)
    try:
        until(lambda: proc.environment(child.pid).get("CLUSTERRUN_STEP"), "the program executed")
        assert (child.pid in [process.pid for process in marked(target)]) == is_marked
    finally:
        child.kill()
        child.wait()


def test_an_unkillable_process_is_named_in_bounded_time() -> None:
    """An uninterruptible wait is played by a process that is found again and again, and never hit."""
    child = subprocess.Popen(["sleep", "600"])
    pid = child.pid
    process = proc.find(pid)
    assert process
    stubborn = proc.Process(pid, process.name, "D", process.parent, process.session, process.started + 1)
    (message,) = sweep(lambda: [stubborn], lambda: None, 0.2)
    assert message.startswith(f"{pid} ") and child.poll() is None
    child.kill()
    child.wait()


def test_a_signal_never_reaches_another_process_that_got_the_number_since() -> None:
    child = subprocess.Popen(["sleep", "600"])
    process = proc.find(child.pid)
    assert process
    send(proc.Process(child.pid, "sleep", "S", 1, 1, process.started - 1), signal.SIGKILL)
    assert child.poll() is None
    send(process, signal.SIGKILL)
    assert child.wait() == -9
    assert child.pid not in [process.pid for process in below(os.getpid())]


def test_reaping_returns_nothing_without_ended_children() -> None:
    assert list(ended_children()) == []
    assert ProcessEnd(1, 0) == ProcessEnd(1, 0)


def test_the_position_in_written_files_is_read_and_not_in_files_that_are_read(tmp_path: Path) -> None:
    written, read = tmp_path / "checkpoint.pt", tmp_path / "data.bin"
    read.write_bytes(b"x" * 10)
    with written.open("wb", 0) as file, read.open("rb") as source:
        source.read(5)
        before = proc.written_files(os.getpid())
        file.write(b"x" * 5000)
        after = proc.written_files(os.getpid())
    assert (before[str(written)], after[str(written)]) == (0, 5000)
    assert str(read) not in after
    assert most_grown(before, {str(written): 5000}) == (str(written), 5000)
    assert most_grown({"/a": 9}, {"/a": 9, "/b": 0}) == ("", 0)
    assert str(written) not in proc.written_files(os.getpid())


def test_a_program_gets_the_processors_that_it_is_bound_to(null: int) -> None:
    cpu = min(os.sched_getaffinity(0))
    script = f'test "$(grep Cpus_allowed_list /proc/self/status | cut -f2)" = {cpu}'
    (pid,) = start_all([replace(program(null, "sh", "-c", script), cpus=frozenset({cpu}))])
    assert ends(1) == {pid: 0}


def test_a_command_is_killed_even_if_it_does_not_lead_a_session_yet() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    commands._kill(child.pid)
    assert child.wait(60) == -signal.SIGKILL


FORK = """
import multiprocessing, os, signal, threading
lock = {lock}
lock.acquire()
pid = os.fork()
if not pid:
    lock.acquire()
print(pid, flush=True)
input()
os.kill(pid, signal.SIGKILL)
"""


@pytest.mark.parametrize(
    ("lock", "is_own"), [("threading.Lock()", True), ("multiprocessing.get_context('fork').Lock()", False)]
)
def test_a_fork_that_waits_for_a_lock_of_threads_differs_from_one_that_other_processes_release(
    lock: str, is_own: bool
) -> None:
    argv = [sys.executable, "-c", FORK.format(lock=lock)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        try:
            until(
                lambda: proc.waiting_in(pid).startswith("futex") and proc.waits_for_own_thread(pid) is is_own,
                "the wait of the fork",
            )
        finally:
            parent.communicate("\n", timeout=60)


def test_processes_of_one_network_namespace_share_one_read_of_its_sockets() -> None:
    tables = proc.TcpTables()
    with create_server(("127.0.0.1", 0)) as early:
        before = tables.listeners(os.getpid())
        assert ("127.0.0.1", early.getsockname()[1]) in before.values()
        with create_server(("127.0.0.1", 0)) as late:
            assert tables.listeners(os.getppid()) == before
            place = ("127.0.0.1", late.getsockname()[1])
            assert place in proc.TcpTables().listeners(os.getpid()).values()


def test_open_files_are_raised_to_the_hard_limit_and_the_earlier_limit_is_returned() -> None:
    code = (
        "import resource as r; from clusterrun.runtime.processes import raise_open_files; "
        "r.setrlimit(r.RLIMIT_NOFILE, (100, 300)); print(raise_open_files(), r.getrlimit(r.RLIMIT_NOFILE))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "100 (300, 300)\n"
