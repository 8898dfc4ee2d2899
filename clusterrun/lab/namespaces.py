"""Ask `boot.py` for namespaces, enter them and end them; knows nothing of Slurm."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from clusterrun import proc
from clusterrun.lab.place import LabPlace
from clusterrun.lab.processes import resume
from clusterrun.model.errors import ClusterrunError

BOOT = str(Path(__file__).with_name("boot.py"))
# Longest time in seconds without a report while hosts are being made.
HOST_SECONDS = 120.0
END_SECONDS = 60.0
_CREDENTIALS = struct.Struct("3i")


class LabError(ClusterrunError):
    """The lab could not carry out a request."""


class Boot:
    """A running `boot.py`; ``inside`` is the argument list that enters an existing lab first."""

    def __init__(self, inside: Sequence[str] = ()) -> None:
        self._reports, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._reports.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        with theirs:
            self._process = subprocess.Popen(
                [*inside, sys.executable, "-I", "-S", BOOT, str(theirs.fileno())],
                stdin=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(theirs.fileno(),),
                text=True,
                env={**os.environ, "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"},
            )

    def __enter__(self) -> Boot:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(HOST_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reports.close()

    def ask(self, request: dict[str, Any], count: int) -> Iterator[tuple[str, int]]:
        """Send one request. Yield host and id of each of the ``count`` processes 1 that were made."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the reason is read below
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        for _ in range(count):
            yield self._receive()

    def _receive(self) -> tuple[str, int]:
        self._reports.settimeout(HOST_SECONDS)
        try:
            data, ancillary, _, _ = self._reports.recvmsg(4096, socket.CMSG_SPACE(_CREDENTIALS.size))
        except TimeoutError:
            data, ancillary = b"", []
        if not data:
            self._process.kill()
            assert self._process.stderr is not None
            raise LabError("a host of the lab could not be made", self._process.stderr.read().strip()[-500:])
        report = json.loads(data)
        if report["error"]:
            raise LabError(f"a host of the lab could not be made: {report['error']}")
        process: int = _CREDENTIALS.unpack(ancillary[0][2][: _CREDENTIALS.size])[0]
        return report["host"], process


def enter(process: int, root: str = "") -> list[str]:
    """Return the argument list that runs a program inside the namespaces of a process 1."""
    argv = ["nsenter", "--target", str(process), "--mount", "--uts", "--ipc", "--net", "--pid"]
    if os.geteuid() != 0:
        argv += ["--user", "--preserve-credentials"]
    return [*argv, "--root", "--wd", "--"] if root else [*argv, "--"]


def as_caller() -> list[str]:
    """Return the arguments after those of `enter` for programs that run as the caller.

    Without root the lab's own user namespace calls the caller root, so that it may make networks;
    Slurm would then try to drop groups, which such a root may not. One more namespace gives the
    caller back the own name.
    """
    if os.geteuid() == 0:
        return []
    return ["unshare", "--user", f"--map-user={os.geteuid()}", f"--map-group={os.getegid()}", "--"]


def started_at(process: int) -> int:
    """Return when a process started, in kernel ticks, or 0. Id and start time identify a process."""
    entry = proc.find_alive(process)
    return entry.started if entry else 0


def first_processes(place: LabPlace) -> list[tuple[str, int]]:
    """Return host and process 1 of each host of the lab in that folder, also of a lab that ended half-way.

    The lab itself is `keeper`.
    """
    labels = ((process, *label_of(process)) for process in _own_processes())
    return [(host, process) for process, host, folder in labels if folder == str(place.folder)]


def label_of(process: int) -> tuple[str, str]:
    """Return the host whose process 1 this is, and its lab's folder; ('', '') for any other process."""
    arguments = proc.text(f"/proc/{process}/cmdline").split("\0")
    is_first = arguments[:1] == ["clusterrun-lab"] and len(arguments) > 3
    return (arguments[-3], arguments[-2]) if is_first else ("", "")


def _own_processes() -> Iterator[int]:
    for process in proc.pids():
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{process}").st_uid == os.geteuid():
                yield process


def end(keeper: int, waiting: Sequence[int] = ()) -> None:
    """Kill the process 1 of a lab or a host, and with it all its processes; returns when all are gone.

    ``waiting``: processes that wait outside for some of these; they are continued if they are stopped,
    because the kernel waits until they have collected their children.
    """
    try:
        handle = os.pidfd_open(keeper)
    except ProcessLookupError:
        return
    try:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        for process in waiting:
            resume(process)
        # The kernel ends a keeper only after all processes of its namespaces have been collected.
        if not select.select([handle], [], [], END_SECONDS)[0]:
            raise LabError(
                f"the lab's processes did not end within {END_SECONDS:g} s of SIGKILL",
                "one of them hangs in the kernel (state D in `ps`); `lab down` again when it is gone",
            )
    finally:
        os.close(handle)


def wait_for(condition: Callable[[], object], seconds: float, pause: float = 0.005) -> bool:
    """Ask ``condition()`` until it is true; False when ``seconds`` have passed."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(pause)
        pause = min(pause * 1.2, 0.25)
    return True
