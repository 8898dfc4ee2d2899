"""Starts and reaps programs: the only place of the nodes' tower that forks and executes; decides nothing.

Must run in a process with one thread: the parent-death signal is tied to the thread that forks.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import time

from clusterrun.model.errors import ClusterrunError
from clusterrun.model.frozen import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_EXEC_SECONDS = 5.0
_NOT_EXECUTED = 127
_libc = ctypes.CDLL(None, use_errno=True)


class NotStarted(ClusterrunError):
    """A program could not be executed."""


@frozen
class Program:
    """What to execute: strings are exact bytes (surrogate escapes), descriptors are those of this process.

    ``death_signal`` reaches the program when the process that started it dies; ``session`` gives
    it a session of its own; ``open_files`` is the soft limit it gets (0: as this process has it).
    """

    argv: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    cwd: str
    stdin: int
    stdout: int
    stderr: int
    death_signal: int
    session: bool = True
    open_files: int = 0


@frozen
class Ended:
    """A child that ended: its exit code, or the negative number of the signal that ended it."""

    pid: int
    code: int


def become_subreaper() -> bool:
    """Make orphans below this process its children; False where the kernel refuses."""
    return bool(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def die_with_parent(parent: int, number: int) -> None:
    """Ask for signal ``number`` when ``parent`` (which must be the parent) dies; exits if it already has."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(_NOT_EXECUTED)


def outlive_parent() -> None:
    """Take ``die_with_parent`` back."""
    _libc.prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0)


def start_all(programs: Sequence[Program]) -> list[int]:
    """Start every program and return their process ids, in order.

    Raises ``NotStarted`` with the reason of the first that could not be executed; the others may
    live then. An execution that takes longer than 5 s (a slow file system) counts as started: its
    failure would show as exit code 127.
    """
    started: list[int] = []
    reports: list[int] = []
    try:
        for program in programs:
            pid, report = _fork(program)
            started.append(pid)
            reports.append(report)
        until = time.monotonic() + _EXEC_SECONDS
        for program, report in zip(programs, reports):
            _check(program, report, until)
    except OSError as error:
        raise NotStarted(
            f"no process could be started: {error.strerror}", "see ulimit -u on this node"
        ) from error
    finally:
        for report in reports:
            os.close(report)
    return started


def _fork(program: Program) -> tuple[int, int]:
    readable, writable = os.pipe2(os.O_CLOEXEC)
    parent = os.getpid()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            _become(program, parent, writable)
    except OSError:
        os.close(readable)
        raise
    finally:
        # Only the parent gets here: the child has become the program, or ended.
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(writable)
    return pid, readable


def _become(program: Program, parent: int, report: int) -> None:
    """In the child: become the program, or report why not and end. Never returns."""
    stage = b"c"
    try:
        die_with_parent(parent, program.death_signal)
        os.chdir(os.fsencode(program.cwd))
        stage = b"p"
        if program.session:
            os.setsid()
        _settle_descriptors(program, report)
        _settle_signals()
        if program.open_files:
            hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            resource.setrlimit(resource.RLIMIT_NOFILE, (program.open_files, hard))
        argv = [os.fsencode(word) for word in program.argv]
        environment = {os.fsencode(name): os.fsencode(value) for name, value in program.environment}
        os.execvpe(argv[0], argv, environment)
    except BaseException as error:  # noqa: BLE001 (nothing may unwind into the parent's code)
        code = getattr(error, "errno", None) or 0
        os.write(report, stage + str(code).encode() + b" " + repr(error).encode("utf-8", "replace")[:400])
    finally:
        os._exit(_NOT_EXECUTED)


def _settle_descriptors(program: Program, report: int) -> None:
    # First out of the way of 0, 1, 2, which may themselves be among the sources.
    sources = [os.dup(fd) for fd in (program.stdin, program.stdout, program.stderr)]
    for target, source in enumerate(sources):
        os.dup2(source, target, inheritable=True)
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd > 2 and fd != report:
            try:
                os.close(fd)
            except OSError:
                pass


def _settle_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        # Python itself ignores SIGPIPE and SIGXFSZ; an ignored signal stays ignored in what is executed.
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            try:
                signal.signal(number, signal.SIG_DFL)
            except OSError:
                pass
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _check(program: Program, report: int, until: float) -> None:
    poll = select.poll()
    poll.register(report, select.POLLIN)
    if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
        return
    said = os.read(report, 1024)
    if said:
        raise _not_started(program, said)


def _not_started(program: Program, said: bytes) -> NotStarted:
    code, _, detail = said[1:].decode("utf-8", "replace").partition(" ")
    reason = os.strerror(int(code)) if int(code) else detail
    if said[:1] == b"c":
        return NotStarted(
            f"the directory {program.cwd!r} cannot be entered: {reason}",
            "submit from a directory that the compute nodes share",
        )
    return NotStarted(f"the program {program.argv[0]!r} cannot be executed: {reason}", _remedy(int(code)))


def _remedy(code: int) -> str:
    import errno

    return {
        errno.ENOENT: "check that it exists on this node too (a --setup line may be missing)",
        errno.EACCES: "make it executable: chmod +x",
        errno.ENOEXEC: "its first line must name an interpreter (#!/bin/sh), or it is for another machine",
        errno.E2BIG: "arguments and environment together are larger than the system takes",
    }.get(code, "try to start it by hand on this node")


def ended_children() -> Iterator[Ended]:
    """Take every child that has ended, adopted orphans included; blocks never."""
    while True:
        try:
            # A look first, then the taking of exactly that process: never somebody else's exit code.
            seen = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if seen is None:
                return
            os.waitid(os.P_PID, seen.si_pid, os.WEXITED)
        except ChildProcessError:
            return
        code = seen.si_status if seen.si_code == os.CLD_EXITED else -seen.si_status
        yield Ended(seen.si_pid, code)
