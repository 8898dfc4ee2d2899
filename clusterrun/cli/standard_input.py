"""Read the standard input of a submitting command if the ranks need it."""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import select
import stat
import termios
import time

from clusterrun.cli.error_output import say
from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import replace
from clusterrun.model.paths import RunPaths
from clusterrun.model.spec import JobSpec
from clusterrun.script.interpreter_calls import LIMITERS, reads_input

INHERITED = "-"
# A pipe that nobody writes to never ends: a cron job or a CI runner may leave one.
END_SECONDS = 60.0
_QUIET_SECONDS = 2.0
_MAX_SIZE = 64 * 1024 * 1024
_CHUNK = 1024 * 1024
_FILE_REMEDY = "name a file: --input FILE"


def with_input(spec: JobSpec) -> JobSpec:
    """Return ``spec`` with ``--input -`` if its command would read a program from standard input.

    Raises ``BadInput`` if there is no standard input that could be passed on.
    """
    if not spec.input and reads_input(spec.command):
        spec = replace(spec, input=INHERITED)
    if spec.input != INHERITED:
        if not spec.input and was_redirected():
            say("standard input is left alone: ranks do not get it (--input - passes it on)")
        return spec
    try:
        is_terminal = os.isatty(0)
        os.fstat(0)
    except OSError:
        raise BadInput("ranks are to read standard input, and it is closed", _FILE_REMEDY) from None
    if is_terminal:
        message = (
            f"{spec.command[0]} would read from standard input, and a terminal cannot be passed to ranks"
        )
        raise BadInput(
            message, f"give it a script, pipe one in (submit {spec.command[0]} <script), or {_FILE_REMEDY}"
        )
    return spec


def files(spec: JobSpec) -> tuple[tuple[str, bytes], ...]:
    """Return the files of the run directory that hold what ``spec`` asks for: all of standard input.

    Raises ``BadInput`` if it is empty, too large, or does not end in time.
    """
    if spec.input != INHERITED:
        return ()
    content = bytearray()
    began, noted = time.monotonic(), False
    poll = select.poll()
    poll.register(0, select.POLLIN)
    while True:
        waited = time.monotonic() - began
        if waited > END_SECONDS:
            raise BadInput(
                f"standard input did not end within {END_SECONDS:g} s", f"</dev/null, or {_FILE_REMEDY}"
            )
        if waited > _QUIET_SECONDS and not noted:
            noted = True
            say(f"reading standard input to its end, for at most {END_SECONDS:g} s")
        if not poll.poll(1000 * _QUIET_SECONDS / 4):
            continue
        chunk = os.read(0, _CHUNK)
        if not chunk:
            break
        content += chunk
        if len(content) > _MAX_SIZE:
            raise BadInput("standard input is larger than 64 MiB", _FILE_REMEDY)
    if not content:
        message = f"standard input is empty, and {spec.command[0]} would read nothing else"
        raise BadInput(message, f"give it a script, or {_FILE_REMEDY}")
    return ((os.path.basename(RunPaths("").input), bytes(content)),)


def was_redirected() -> bool:
    """Return whether standard input is a file or a pipe of this command alone, with something left to read.

    The input of a loop or of a script belongs to the shell too, so the user did not mean it for this command.
    """
    try:
        status = os.fstat(0)
        if stat.S_ISREG(status.st_mode):
            has_data = os.lseek(0, 0, os.SEEK_CUR) < status.st_size
        elif stat.S_ISFIFO(status.st_mode):
            waiting = array.array("i", [0])
            fcntl.ioctl(0, termios.FIONREAD, waiting)
            has_data = waiting[0] > 0
        else:
            return False
    except OSError:
        return False
    return has_data and not _is_callers(status)


def _is_callers(status: os.stat_result) -> bool:
    """Return whether the process that typed this command has the same standard input."""
    import psutil  # loaded only if there is an input to ask about

    with contextlib.suppress(OSError, psutil.Error):
        caller = psutil.Process().parent()
        # A program such as ``timeout`` stays between the shell and this command.
        while caller is not None and caller.name() in LIMITERS:
            caller = caller.parent()
        return caller is not None and os.path.samestat(status, os.stat(f"/proc/{caller.pid}/fd/0"))
    return False


def path() -> str:
    """Return the path of the file that is standard input, as the user may type it; '' for a pipe."""
    path = os.path.realpath("/proc/self/fd/0")
    return os.path.relpath(path) if os.path.isfile(path) else ""
