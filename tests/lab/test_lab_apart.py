"""Another user's program in a lab has a session and a terminal of its own; no lab is needed to see that."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from clusterrun.lab.apart import run_in_own_session

APART = "import sys; from clusterrun.lab import apart; sys.exit(apart.run_in_own_session(sys.argv[1:], {}))"
LOOK = """
import os, sys
print("session", os.getsid(0) == os.getpid(), "terminal", os.ttyname(0), "size", *os.get_terminal_size())
print("ready", flush=True)
print("typed", sys.stdin.readline().strip(), flush=True)
sys.exit(3)
"""


def at_a_terminal(*argv: str, typed: bytes = b"", limit: float = 60.0) -> tuple[str, str, int]:
    """Return a program's output on a new terminal, the terminal's name, and the exit code."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 33, 77, 0, 0))
    name = os.ttyname(theirs)
    arguments = ["setsid", "--ctty", sys.executable, *argv]
    child = subprocess.Popen(arguments, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    output, end = b"", time.monotonic() + limit
    while time.monotonic() < end and select.select([ours], [], [], limit)[0]:
        try:
            output += os.read(ours, 4096)
        except OSError:  # nobody holds the other end any more
            break
        if b"ready" in output and typed:
            os.write(ours, typed)
            typed = b""
    code = child.wait(limit)
    os.close(ours)
    return output.decode(), name, code


def test_a_command_from_a_terminal_gets_its_own_terminal_and_the_input() -> None:
    output, name, code = at_a_terminal("-c", APART, sys.executable, "-c", LOOK, typed=b"hello\n")
    assert "session True" in output and f"terminal {name}\r" not in output and "size 77 33" in output
    assert ("typed hello" in output, code) == (True, 3)


@pytest.mark.parametrize("script, code", [("exit 7", 7), ("kill -TERM $$", 143)])
def test_a_command_without_a_terminal_has_its_own_session_and_returns_its_exit_code(
    script: str, code: int, tmp_path: Path
) -> None:
    path = tmp_path / "told"
    script = f"ps -o sid= -p $$ > {path}; echo $$ >> {path}; {script}"
    assert run_in_own_session(["sh", "-c", script], dict(os.environ)) == code
    session, pid = path.read_text().split()
    assert session == pid
