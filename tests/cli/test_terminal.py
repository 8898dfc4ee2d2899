"""On a terminal there are colours and tables that fit; with NO_COLOR there is no escape sequence at all."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest

from tests.cli.conftest import CommandLine


def on_terminal(
    context: CommandLine, *args: str, columns: int = 120, errors: bool = False, **environment: str
) -> str:
    """Return the output of ``clusterrun args`` on a terminal. ``errors``: stderr is a terminal too."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "clusterrun", *args],
        cwd=context.folder,
        env={**context.environment, "TERM": "xterm", **environment},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs if errors else subprocess.DEVNULL,
    )
    os.close(theirs)
    observed = b""
    try:
        while data := os.read(ours, 4096):
            observed += data
    except OSError:
        pass  # the other side of a terminal was closed: this is how its end is told
    finally:
        os.close(ours)
        process.wait(60)
    return observed.decode().replace("\r\n", "\n")


def test_logs_have_the_colour_of_their_rank(ended: CommandLine) -> None:
    assert on_terminal(ended, "logs", "--rank", "1") == "\x1b[33mlocal-0 r1\x1b[0m | rank 1 of 6\n"


@pytest.mark.parametrize(
    "args", [("logs", "--rank", "1"), ("status",), ("status", "last"), ("config", "show")]
)
@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_no_escape_sequence_is_printed_without_colours(
    ended: CommandLine, args: tuple[str, ...], environment: dict[str, str]
) -> None:
    assert "\x1b" not in on_terminal(ended, *args, **environment)


@pytest.mark.parametrize("columns", [52, 64, 80, 200])
def test_a_table_fits_the_terminal_and_keeps_ids_whole(ended: CommandLine, columns: int) -> None:
    lines = re.sub(r"\x1b\[[0-9;]*m", "", on_terminal(ended, "status", columns=columns)).splitlines()
    assert max(map(len, lines)) <= columns
    assert re.match(r"\d{8}-\d{6}-\w{4}-train\b", lines[1])
