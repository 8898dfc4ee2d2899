"""Start, stop and await a lab's daemons on its hosts; knows how each daemon shows that it runs."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clusterrun import proc
from clusterrun.lab.conf import PORTS
from clusterrun.lab.namespaces import LabError, as_caller, enter, wait_for
from clusterrun.lab.place import LabPlace, LabState
from clusterrun.lab.processes import processes
from clusterrun.lab.spec import CONTROLLER

START_SECONDS = 60.0
# Seconds for which a daemon may still be the shell that starts it.
EARLY_SECONDS = 1.0
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def environment(place: LabPlace) -> dict[str, str]:
    """Return the environment of a daemon. It has no variable of the caller."""
    return {
        "PATH": f"{place.programs}:{PATH}",
        "SLURM_CONF": str(place.slurm_conf),
        "HOME": "/root",
        "LANG": "C.UTF-8",
    }


def slurmd_service(place: LabPlace, node: str) -> dict[str, Any]:
    """Return a node's slurmd as a service for `boot.py`."""
    return {
        "argv": [*as_caller(), "slurmd", "-D"],
        "log": str(place.log / f"slurmd.{node}.out"),
        "environment": environment(place),
    }


def start_slurmd(place: LabPlace, state: LabState, node: str) -> None:
    """Start a node's slurmd again. It registers by itself."""
    service = slurmd_service(place, node)
    start(place, state, node, service["argv"][len(as_caller()) :], f"slurmd.{node}.out")


def start(place: LabPlace, state: LabState, host: str, argv: Sequence[str], log: str) -> None:
    """Start a daemon that stays in the foreground, as a child of the host's process 1."""
    shell = 'log=$1; shift; setsid "$@" </dev/null >>"$log" 2>&1 &'
    path = str(place.log / log)
    subprocess.run(
        [*enter(state.processes[host], state.root), *as_caller(), "sh", "-c", shell, "sh", path, *argv],
        env=environment(place),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        cwd="/",
        check=True,
        timeout=START_SECONDS,
    )


def start_controller(place: LabPlace, state: LabState) -> None:
    """Start slurmctld; returns when it listens."""
    start(place, state, CONTROLLER, ["slurmctld", "-D"], "slurmctld.out")
    await_port(place, state, "slurmctld")


def start_munge(place: LabPlace, state: LabState) -> None:
    """Start the one munged of the lab; returns when it answers."""
    path = place.run / "munge.socket"
    # The kernel divides processors between sessions, and every task has a session. Among thousands of them
    # munged would not answer in time, so its session gets a higher weight if that is allowed.
    argv = [
        *("sh", "-c", '{ echo -15 >/proc/self/autogroup; } 2>/dev/null; exec "$@"', "sh"),
        "munged",
        "--foreground",
        "--force",
        "--num-threads=10",
        f"--socket={path}",
        f"--key-file={place.conf / 'munge.key'}",
        f"--pid-file={place.run / 'munged.pid'}",
        f"--log-file={place.log / 'munged.log'}",
        f"--seed-file={place.run / 'munged.seed'}",
    ]
    start(place, state, CONTROLLER, argv, "munged.out")
    if not wait_for(lambda: _connects(path), START_SECONDS):
        raise LabError("munged did not start", tail(place.log / "munged.out"))


def _connects(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as line:
        try:
            line.connect(str(path))
        except OSError:
            return False
    return True


def await_port(place: LabPlace, state: LabState, daemon: str, port: int = 0) -> None:
    """Return when a daemon of the controller host listens. Raises ``LabError`` with its last words."""
    first, began = state.processes[CONTROLLER], time.monotonic()

    def listens_or_died() -> bool:
        early = time.monotonic() - began < EARLY_SECONDS
        return _listens(first, port or PORTS[daemon]) or not (early or _runs(first, daemon))

    wait_for(listens_or_died, START_SECONDS)
    if not _listens(first, port or PORTS[daemon]):
        last_lines = tail(place.log / f"{daemon}.log") or tail(place.log / f"{daemon}.out")
        raise LabError(f"{daemon} did not start", last_lines)


def controller_listens(state: LabState) -> bool:
    """Return whether slurmctld listens. Slurm's own commands wait long for one that does not."""
    return _listens(state.processes[CONTROLLER], PORTS["slurmctld"])


def _runs(first: int, daemon: str) -> bool:
    return any(p.name == daemon for p in processes({CONTROLLER: first}))


def _listens(process: int, port: int) -> bool:
    return any(port == listening for _, listening in proc.TcpTables().listeners(process).values())


def tail(path: Path, lines: int = 5) -> str:
    """Return the last lines of a log, '' if there is none."""
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""


def caller_environment(place: LabPlace, programs: str) -> dict[str, str]:
    """Return the caller's own environment with the variables of a Slurm host."""
    # Inside a job of another cluster its variables would steer this one's srun.
    outer = "SLURM_JOB_ID" in os.environ
    mine = {key: value for key, value in os.environ.items() if not (outer and key.startswith("SLURM_"))}
    path = f"{programs}:{place.programs}:{mine.get('PATH', '')}:{PATH}"
    return {**mine, "SLURM_CONF": str(place.slurm_conf), "PATH": path}
