"""The outside world of the client: programs and clocks."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any, NoReturn, Protocol

from clusterrun.model.errors import ClusterrunError
from clusterrun.model.frozen import frozen


@frozen
class Completed:
    """A program that ended: its argument list, exit code (negative: the signal) and both streams."""

    argv: tuple[str, ...]
    code: int
    out: str
    err: str
    seconds: float


class ProgramMissing(ClusterrunError):
    """No program of that name is on PATH."""


MOST_NAMED = 60


class ProgramTimeout(ClusterrunError):
    """The program did not end within its limit and was killed with all it had started.

    ``out`` and ``err`` are what it had printed until then.
    """

    out = err = ""


def run(
    argv: Sequence[str],
    timeout: float,
    stdin: str | IO[bytes] = "",
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
) -> Completed:
    """Run ``argv`` (never a shell) and return what it said.

    ``stdin`` is text, or an open file. ``timeout`` is in seconds; past it the program's whole process group
    is killed. Output is decoded as UTF-8 with ``surrogateescape``, so foreign bytes survive. Raises
    ``ProgramMissing`` and ``ProgramTimeout``; a non-zero exit is the caller's to judge.
    """
    began = time.monotonic()
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE if isinstance(stdin, str) else stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=None if env is None else dict(env),
            cwd=cwd,
            start_new_session=True,
            encoding="utf-8",
            errors="surrogateescape",
        )
    except FileNotFoundError as error:
        raise ProgramMissing(f"the program {argv[0]!r} was not found ({error.strerror})") from error
    try:
        out, err = process.communicate(stdin if isinstance(stdin, str) else None, timeout)
    except BaseException as error:
        printed = _end(process)
        if isinstance(error, subprocess.TimeoutExpired):
            late = ProgramTimeout(f"{_named(argv)} gave no answer within {timeout:g} s")
            late.out, late.err = printed
            raise late from error
        raise
    return Completed(tuple(argv), process.returncode, out, err, time.monotonic() - began)


_PR_SET_PDEATHSIG = 1


def start_bound(argv: Sequence[str], env: Mapping[str, str], cwd: str) -> int:
    """Start ``argv``, without input and output, in a session that no key of the terminal reaches; its number.

    When this process dies, even by SIGKILL, the kernel sends the program SIGTERM. Raises ``OSError``.
    """
    import ctypes  # for this alone

    parent, prctl = os.getpid(), ctypes.CDLL(None).prctl

    def bind() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    nowhere = subprocess.DEVNULL
    return subprocess.Popen(
        list(argv),
        stdin=nowhere,
        stdout=nowhere,
        stderr=nowhere,
        env=dict(env),
        cwd=cwd,
        start_new_session=True,
        preexec_fn=bind,  # noqa: PLW1509 (between fork and exec it only asks the kernel)
    ).pid


def text_of(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def foreground(argv: Sequence[str]) -> int:
    """Run ``argv`` with our own streams and terminal; its exit code, 128 and the number for a signal.

    Ctrl-C is the program's to answer; TERM and HUP are passed on to it. Raises ``ProgramMissing``.
    """
    try:
        process = subprocess.Popen(list(argv))
    except FileNotFoundError as error:
        raise ProgramMissing(f"the program {argv[0]!r} was not found ({error.strerror})") from error
    before = {signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN)}
    for number in (signal.SIGTERM, signal.SIGHUP):
        before[number] = signal.signal(number, lambda got, _: process.send_signal(got))
    try:
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def attended(argv: Sequence[str], env: Mapping[str, str], wanted: Callable[[], bool], seconds: float) -> int:
    """Run ``argv`` with our own streams while it is ``wanted``, asked every so many seconds; its exit code.

    It is ended with all it started when it is wanted no more, or when INT, TERM or HUP comes for us.
    """
    stopped: list[int] = []
    try:
        process = subprocess.Popen(list(argv), env=dict(env), start_new_session=True)
    except OSError as error:
        raise ProgramMissing(f"the program {argv[0]!r} cannot be started ({error.strerror})") from error

    def stop(number: int, _: object) -> None:
        stopped.append(number)
        _end(process, signal.SIGTERM)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    while True:
        try:
            code = process.wait(END_SECONDS if stopped else seconds)
            return code if code >= 0 else 128 - code
        except subprocess.TimeoutExpired:
            if stopped:
                _end(process)
            elif not wanted():
                stop(signal.SIGTERM, None)


class Piped:
    """A program in a session of its own that we talk to: handles of its output and its input."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        """Raises ``OSError``."""
        self._process = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=None if env is None else dict(env),
            start_new_session=True,
        )
        assert self._process.stdin and self._process.stdout
        self.incoming, self.outgoing = self._process.stdout.fileno(), self._process.stdin.fileno()

    def end(self, seconds: float) -> int:
        """Its exit code, once its input has ended; it is killed when it takes longer."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.stdin = None  # it is closed, and ``communicate`` would flush it
            _end(self._process)
            return self._process.wait()
        finally:
            self._process.stdout.close()


END_SECONDS = 5.0


def _named(argv: Sequence[str]) -> str:
    """A command as people know it: its first words, without the long ones that only programs read."""
    text = " ".join(argv)
    return text if len(text) <= MOST_NAMED else f"{text[:MOST_NAMED].rpartition(' ')[0] or argv[0]} …"


def become(argv: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    """Turn this process into ``argv``: terminal, signals and exit code are the program's own from here."""
    try:
        os.execvpe(argv[0], list(argv), dict(env))
    except OSError as error:
        raise ProgramMissing(f"the program {argv[0]!r} cannot be started ({error.strerror})") from error


def _end(process: subprocess.Popen[Any], number: int = signal.SIGKILL) -> tuple[str, str]:
    """Send the signal to the program and all it has started. Return what it printed to pipes."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        pass
    out, err = process.communicate()
    return out or "", err or ""


@contextmanager
def notice_if_slow(seconds: float, tell: Callable[[str], None], sentence: str) -> Iterator[None]:
    """Report ``sentence`` if the body takes longer than ``seconds``."""
    late = threading.Timer(seconds, tell, (sentence,))
    late.daemon = True
    late.start()
    try:
        yield
    finally:
        late.cancel()


class Clock(Protocol):
    """Time as an argument: real at the entry points, pushed by hand in tests."""

    def now(self) -> float:
        """Seconds since the epoch, for display and records only."""

    def monotonic(self) -> float:
        """Seconds that never jump, for waiting and limits."""

    def sleep(self, seconds: float) -> None:
        """Return after ``seconds``."""


class RealClock:
    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
