"""Start and reap programs and forked children; the only module on nodes that forks and executes.

The process must have one thread, because the parent-death signal is tied to the thread that forks.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress

from clusterrun.model import contract
from clusterrun.model.errors import ClusterrunError
from clusterrun.model.frozen import frozen

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_EXEC_SECONDS = 5.0
# Enough for 1,250 agents and for NCCL in a large job. Some programs visit every possible descriptor.
_OPEN_FILES = 65536
# The soft limit that systems set for old programs. Every other limit was set on purpose.
USUAL_OPEN_FILES = 1024
_NOT_EXECUTED = 127
_CAUGHT = (*contract.OUTSIDE_SIGNALS, signal.SIGCHLD)
_ALL_SIGNALS = signal.valid_signals()
# Signals that Python changed when it started (SIGPIPE and SIGXFSZ ignored, SIGINT caught). The search is
# slow, so it is made once.
_CHANGED_BY_PYTHON = [number for number in _ALL_SIGNALS if signal.getsignal(number) != signal.SIG_DFL]
_libc = ctypes.CDLL(None, use_errno=True)


def raise_open_files() -> int:
    """Raise this process's soft limit of open files, as far as the hard limit allows. Return the earlier one.

    NCCL in a large job, and data loaders, need more than the usual soft limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < enough:
        with suppress(ValueError, OSError):  # a sandbox may forbid it
            resource.setrlimit(resource.RLIMIT_NOFILE, (enough, hard))
    return soft


class NotStarted(ClusterrunError):
    """A program could not be executed."""


@frozen
class Program:
    """A program to execute in its own session. Strings are exact bytes (surrogate escapes)."""

    argv: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    cwd: str
    stdin: int  # descriptors of this process
    stdout: int
    stderr: int
    death_signal: int  # sent to the program when this process dies; 0: none
    open_files: int = 0  # soft limit; 0: that of this process
    cpus: frozenset[int] = frozenset()  # processors that it may use; empty: those of this process
    ignores_term: bool = False  # ignore a TERM that a scheduler sends to all descendants of this process


@frozen
class ProcessEnd:
    """A child that ended: its exit code, or the negative number of the signal that ended it."""

    pid: int
    code: int


def become_subreaper() -> bool:
    """Make orphans below this process its children. Return False if the kernel refuses."""
    return bool(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def set_process_name(name: bytes) -> None:
    """Give this process a name, as ``ps`` and ``/proc`` show it; at most 15 bytes."""
    _libc.prctl(_PR_SET_NAME, name, 0, 0, 0)


def on_parents_death(parent: int, number: int) -> None:
    """Get signal ``number`` when ``parent``, which must be the parent, dies. Exit if it has died already."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(_NOT_EXECUTED)


def start_all(programs: Sequence[Program]) -> list[int]:
    """Start every program and return their process ids, in order.

    Raise ``NotStarted`` with the reason of the first program that could not be executed. The others may
    run then. An execution that takes longer than 5 s (a slow file system) counts as started. Its failure
    would show as exit code 127.
    """
    # The descriptors that children would inherit. Python's own descriptors are closed on exec.
    foreign = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the descriptor of the listing itself
            if int(name) > 2 and os.get_inheritable(int(name)):
                foreign.append(int(name))
    prepared = [_PreparedProgram(program, foreign) for program in programs]
    reports, report = os.pipe2(os.O_CLOEXEC)
    try:
        # No work between two forks: memory that is touched in between is copied again.
        started = []
        parent = os.getpid()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _ALL_SIGNALS)
        try:
            for number, program in enumerate(prepared):
                pid = os.fork()
                if pid == 0:
                    _become(program, parent, report, number)
                started.append(pid)
        finally:
            # Only the parent reaches this line. A child has become its program, or has ended.
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.close(report)
    except OSError as error:
        message = f"no process could be started: {error.strerror}"
        raise NotStarted(message, "see ulimit -u on this node") from error
    else:
        _check(programs, reports)
    finally:
        os.close(reports)
    return started


class _PreparedProgram:
    """A program, prepared as far as possible before the fork: memory touched after the fork is copied."""

    def __init__(self, program: Program, foreign: list[int]) -> None:
        self.program = program
        self.cwd = os.fsencode(program.cwd)
        self.argv = [os.fsencode(word) for word in program.argv]
        self.environment = {os.fsencode(name): os.fsencode(value) for name, value in program.environment}
        self.execute = os.execve if b"/" in self.argv[0] else os.execvpe
        self.foreign = foreign


def _become(prepared: _PreparedProgram, parent: int, report: int, number: int) -> None:
    """Become the program in the child, or report the reason and end. Never return."""
    stage, program = b"c", prepared.program
    try:
        on_parents_death(parent, program.death_signal)
        os.chdir(prepared.cwd)
        stage = b"p"
        os.setsid()
        # Duplicate first, since sources may themselves be descriptors 0, 1 and 2.
        sources = [os.dup(fd) for fd in (program.stdin, program.stdout, program.stderr)]
        for target, source in enumerate(sources):
            os.dup2(source, target, inheritable=True)
        for fd in prepared.foreign:
            os.close(fd)
        signal.set_wakeup_fd(-1)
        # Ignored signals would stay ignored in the program. Handlers of this process must not run before it.
        for handled in (*_CHANGED_BY_PYTHON, *_CAUGHT):
            signal.signal(handled, signal.SIG_DFL)
        if program.ignores_term:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if program.open_files:
            hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            resource.setrlimit(resource.RLIMIT_NOFILE, (program.open_files, hard))
        if program.cpus:
            os.sched_setaffinity(0, program.cpus)
        prepared.execute(prepared.argv[0], prepared.argv, prepared.environment)
    except BaseException as error:  # noqa: BLE001 (nothing may unwind into the parent's code)
        code = getattr(error, "errno", None) or 0
        detail = repr(error).encode("utf-8", "replace")[:400]
        os.write(report, b"%d %b %d %b\0" % (number, stage, code, detail))
    finally:
        os._exit(_NOT_EXECUTED)


def _check(programs: Sequence[Program], reports: int) -> None:
    """Wait, within a limit, until every program is executed. Raise ``NotStarted`` for the first failure."""
    received = b""
    until = time.monotonic() + _EXEC_SECONDS
    poll = select.poll()
    poll.register(reports, select.POLLIN)
    while poll.poll(max(0.0, until - time.monotonic()) * 1000):
        data = os.read(reports, 65536)
        if not data:
            break
        received += data
    if received:
        reported = (line.split(b" ", 3) for line in received.split(b"\0")[:-1])
        number, stage, code, detail = min(reported, key=lambda fields: int(fields[0]))
        reason = os.strerror(int(code)) if int(code) else detail.decode("utf-8", "replace")
        program = programs[int(number)]
        if stage == b"c":
            message = f"the directory {program.cwd!r} cannot be entered: {reason}"
            remedy = "was it moved since the submission (--snapshot runs a copy), or is it on no shared file "
            raise NotStarted(message, f"{remedy}system?")
        import errno

        name = program.argv[0]
        path = "" if "/" in name else f", or replace PATH={dict(program.environment).get('PATH')}"
        interpreter = "its first line must name an interpreter (#!/bin/sh), or it is for another machine"
        remedy = {
            errno.ENOENT: "check that it, and the interpreter in its first line, exist on this node too (a "
            f"--setup line may be missing{path})",
            errno.EACCES: "make it executable: chmod +x",
            errno.ENOEXEC: interpreter,
            errno.E2BIG: "arguments and environment together are larger than the system takes",
        }.get(int(code), "try to start it by hand on this node")
        is_relative = "/" in name and not os.path.isabs(name)
        place = f" in {program.cwd}" if is_relative and program.cwd else ""
        raise NotStarted(f"the program {name!r}{place} cannot be executed: {reason}", remedy)


def ended_children() -> Iterator[ProcessEnd]:
    """Reap every child that has ended, adopted orphans included; never blocks."""
    while True:
        try:
            # Peek first, then reap exactly that process: never somebody else's exit code.
            status = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if status is None:
                return
            os.waitid(os.P_PID, status.si_pid, os.WEXITED)
        except ChildProcessError:
            return
        code = status.si_status if status.si_code == os.CLD_EXITED else -status.si_status
        yield ProcessEnd(status.si_pid, code)


def fork(body: Callable[[], None]) -> int:
    """Run ``body`` in a child and then end the child, without unwinding into the code of this process.

    Call it from the main thread. Raise ``OSError`` if no process can be created.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            on_parents_death(parent, signal.SIGKILL)
            os.setsid()
            body()
            code = 0
        finally:
            os._exit(code)
    return pid


def exit_with(body: Callable[[], int]) -> None:
    """End a forked child with the code that ``body`` returns, without unwinding into its parent's code."""
    code = 1
    try:
        code = body()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:  # noqa: BLE001 (a bug of ours: it is shown, and the parent sees a failure)
        sys.excepthook(*sys.exc_info())
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:  # a disk behind them may be full
            os._exit(code)


def close_all_but(spared: Collection[int]) -> None:
    """Close all descriptors except ``spared``.

    A child in a D-state must hold no port or pipe of this process.
    """
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in spared:
            with suppress(OSError):  # the descriptor of the listing itself
                os.close(int(name))
