"""Find the processes of a lab's hosts by namespace, from outside, and signal them."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

# Searches for new processes before a host counts as a fork bomb.
ROUNDS = 50


@dataclass(frozen=True)
class LabProcess:
    """A process on a host: ``process`` is its id on this machine, ``inner`` the one it sees itself."""

    host: str
    process: int
    inner: int
    name: str
    command: str


def processes(hosts: dict[str, int]) -> tuple[LabProcess, ...]:
    """Return every process of these hosts (name → process 1), whoever started it."""
    members = []
    for host, process, is_inside in _members(hosts):
        if is_inside:
            with contextlib.suppress(OSError):
                members.append(_process(host, process))
    return tuple(members)


def waiting_outside(hosts: dict[str, int]) -> tuple[int, ...]:
    """Return the processes (`nsenter`) that joined a host's network and wait outside for a process in it.

    A process of these stops itself when its child is stopped, and it alone reaps the child.
    """
    return tuple(process for _, process, is_inside in _members(hosts) if not is_inside)


def _members(hosts: dict[str, int]) -> Iterator[tuple[str, int, bool]]:
    """Host and id of every process in the hosts' networks, and whether it is a process of the host."""
    host_by_network: dict[str, str] = {}
    for name, first in hosts.items():
        with contextlib.suppress(OSError):  # switched off this very moment
            host_by_network.update({_namespace(first, "net"): name} if first else {})
    own_namespace = _namespace(os.getpid(), "pid")
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                host = host_by_network.get(_namespace(int(entry), "net"))
                if host is not None:
                    yield host, int(entry), _namespace(int(entry), "pid") != own_namespace


def _process(host: str, number: int) -> LabProcess:
    status = Path(f"/proc/{number}/status").read_text(errors="replace")
    command = (
        Path(f"/proc/{number}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    )
    name = status.split("\n", 1)[0].partition("\t")[2]
    match = re.search(r"^NSpid:.*\s(\d+)$", status, re.MULTILINE)
    return LabProcess(host, number, int(match.group(1)) if match else number, name, command)


def _namespace(process: int, kind: str) -> str:
    return os.readlink(f"/proc/{process}/ns/{kind}")


def chosen(candidates: Iterable[LabProcess], selector: str) -> tuple[LabProcess, ...]:
    """Return the processes that match ``selector``: an id on the host, a name, or part of the command."""
    if selector.isdigit():
        return tuple(p for p in candidates if p.inner == int(selector))
    named = tuple(p for p in candidates if p.name == selector)
    return named or tuple(p for p in candidates if selector in p.command)


def send(targets: Iterable[LabProcess], number: signal.Signals) -> None:
    """Signal the processes; those that have ended are skipped."""
    for process in targets:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.process, number)


def resume(process: int) -> None:
    """Send SIGCONT to a process of this machine, unless it has gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGCONT)


def stop_all(host: str, first: int) -> None:
    """Send SIGSTOP to every process of a host, and again until no new one appears."""
    stopped: set[int] = set()
    for _ in range(ROUNDS):
        fresh = [p for p in processes({host: first}) if p.process not in stopped]
        if not fresh:
            return
        send(fresh, signal.SIGSTOP)
        stopped |= {p.process for p in fresh}
