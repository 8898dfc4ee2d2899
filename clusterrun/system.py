"""Run programs and read clocks for the client."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import IO, Any, NoReturn, Protocol

from clusterrun.model.errors import ClusterrunError
from clusterrun.model.frozen import frozen


@frozen
class Completed:
    """A program that ended."""

    argv: tuple[str, ...]
    code: int  # negative: the signal
    out: str
    err: str
    seconds: float


class ProgramMissing(ClusterrunError):
    """No program of that name is on PATH."""


# Characters of a command in messages.
MOST_NAMED = 60


class ProgramTimeout(ClusterrunError):
    """The program did not end within its limit and was killed with its process group.

    ``out`` and ``err`` hold its output until then.
    """

    out = err = ""


def run(
    argv: Sequence[str],
    timeout: float,
    stdin: str | IO[bytes] = "",
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
) -> Completed:
    """Run ``argv`` without a shell, and return its exit code and output.

    ``stdin`` is text, or an open file. After ``timeout`` seconds the program's process group is killed.
    Output is decoded as UTF-8 with ``surrogateescape``, so that foreign bytes survive. An exit code other
    than 0 raises nothing. Raise ``ProgramMissing`` and ``ProgramTimeout``.
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
    """Start ``argv`` without input and output in a session of its own. Return its process number.

    The kernel sends the program SIGTERM when this process dies, even by SIGKILL. Raise ``OSError``.
    """
    import ctypes  # only this function needs it

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
    """Return the content of a file; '' if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def foreground(argv: Sequence[str], env: Mapping[str, str] | None = None, own_session: bool = False) -> int:
    """Run ``argv`` on our streams and terminal. Return its exit code; 128 plus the number for a signal.

    The program handles Ctrl-C. TERM and HUP are passed on to it. A program in a session of its own gets them
    with its process group, and INT too. Raise ``ProgramMissing``.
    """
    try:
        process = subprocess.Popen(list(argv), env=env, start_new_session=own_session)
    except FileNotFoundError as error:
        raise ProgramMissing(f"the program {argv[0]!r} was not found ({error.strerror})") from error
    pass_on = partial(os.killpg, process.pid) if own_session else process.send_signal
    before = {signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN)}
    for number in (signal.SIGTERM, signal.SIGHUP, *((signal.SIGINT,) if own_session else ())):
        handler = signal.signal(number, lambda received, _: pass_on(received))
        before.setdefault(number, handler)
    try:
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def attended(
    argv: Sequence[str], env: Mapping[str, str], is_wanted: Callable[[], bool], seconds: float
) -> int:
    """Run ``argv`` on our streams while ``is_wanted()`` is true; it is called every ``seconds``.

    Return its exit code. The program and its process group end if it is no longer wanted, or if this process
    gets INT, TERM or HUP.
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
            elif not is_wanted():
                stop(signal.SIGTERM, None)


class Piped:
    """A program in a session of its own, with pipes to its output and its input."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        """Start the program. Raise ``OSError``."""
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
        """Close the program's input and return its exit code. Kill it after ``seconds``."""
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


# A program gets this long to end after TERM, before it is killed.
END_SECONDS = 5.0


def _named(argv: Sequence[str]) -> str:
    """Return the first words of a command, up to ``MOST_NAMED`` characters."""
    text = " ".join(argv)
    return text if len(text) <= MOST_NAMED else f"{text[:MOST_NAMED].rpartition(' ')[0] or argv[0]} …"


def become(argv: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    """Replace this process by ``argv``, which then owns terminal, signals and exit code."""
    try:
        os.execvpe(argv[0], list(argv), dict(env))
    except OSError as error:
        raise ProgramMissing(f"the program {argv[0]!r} cannot be started ({error.strerror})") from error


def _end(process: subprocess.Popen[Any], number: int = signal.SIGKILL) -> tuple[str, str]:
    """Send the signal to the program and all it has started. Return what it printed to pipes."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
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
    """Time as an argument. Entry points pass a real clock, tests pass one that they set."""

    def now(self) -> float:
        """Return the seconds since the epoch, for display and records only."""

    def monotonic(self) -> float:
        """Return the seconds of a clock that never jumps, for waiting and limits."""

    def sleep(self, seconds: float) -> None:
        """Return after ``seconds``."""


class RealClock:
    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
