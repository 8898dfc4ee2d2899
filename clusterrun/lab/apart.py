"""Run a program in a session of its own: another user's program must not type into our terminal (TIOCSTI).

A process whose controlling terminal it is can put characters into its input, and so run commands as the
user who reads it afterwards. The program gets a session of its own and, from a terminal, a new terminal.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Mapping, Sequence

CHUNK_BYTES = 1 << 16


def run_in_own_session(argv: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run ``argv`` in a session of its own. Return its exit code, or 128 plus the signal's number."""
    with contextlib.ExitStack() as undo:
        if os.isatty(0) and os.isatty(1):
            # Pass on what is typed and shown until nobody holds the terminal.
            master_fd, slave_fd = pty.openpty()
            undo.callback(os.close, master_fd)

            def resize(*_: object) -> None:
                fcntl.ioctl(
                    master_fd,
                    termios.TIOCSWINSZ,
                    fcntl.ioctl(0, termios.TIOCGWINSZ, struct.pack("4H", 0, 0, 0, 0)),
                )

            resize()
            _handle(signal.SIGWINCH, resize, undo)
            command = ["setsid", "--ctty", *argv]
            stderr = slave_fd if os.isatty(2) else None
            child = subprocess.Popen(command, env=environment, stdin=slave_fd, stdout=slave_fd, stderr=stderr)
            os.close(slave_fd)
            with _raw():
                _relay(master_fd)
        else:
            child = subprocess.Popen(argv, env=environment, start_new_session=True)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                _handle(number, lambda got, _: os.killpg(child.pid, got), undo)
        code = child.wait()
    return code if code >= 0 else 128 - code


@contextlib.contextmanager
def _raw() -> Iterator[None]:
    """Pass every key of the caller's terminal on as it is."""
    before = termios.tcgetattr(0)
    tty.setraw(0)
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


def _relay(terminal: int) -> None:
    sources = [0, terminal]
    while True:
        for source in select.select(sources, [], [])[0]:
            try:
                data = os.read(source, CHUNK_BYTES)
            except OSError:  # nobody holds the other end any more
                data = b""
            if not data and source == terminal:
                return
            if not data:
                sources.remove(source)
            _write(terminal if source == 0 else sys.stdout.fileno(), data)


def _write(target: int, data: bytes) -> None:
    while data:
        data = data[os.write(target, data) :]


def _handle(number: int, handler: Callable[..., object], undo: contextlib.ExitStack) -> None:
    undo.callback(signal.signal, number, signal.signal(number, handler))
