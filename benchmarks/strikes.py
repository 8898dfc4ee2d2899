"""Faults of the matrix: the action, its target, and the repair."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.cells import PROCESS_FAULTS, WAITING, Cell
from clusterrun.lab.processes import LabProcess
from tests.survive.faults import Ground
from tests.survive.site import Run, until
from tests.survive.trainer import GREEDY

Heal = Callable[[], object]
MEMORY = Path("/sys/fs/cgroup/memory")
LEFT_BYTES = 256 << 20
"""Memory of a job that is short of it. It suffices for a rank that does not allocate more."""
LOSS = "0.2"
KINDS: dict[str, tuple[str, dict[str, str]]] = {
    "cut": ("cut", {}),
    "slow": ("slow", {"rate": "64kbit"}),
    "slurmd": ("kill", {"process": "slurmd"}),
    "wrong": ("clock", {"offset": "1h"}),
    "power": ("kill", {}),
}
"""Faults of the lab's that need no more than a host, by the first word of their name."""


class Missed(Exception):
    """The run was faster than who was to disturb it."""


def strike(ground: Ground, run: Run, cell: Cell, healing: contextlib.ExitStack) -> tuple[str, ...]:
    """Do it, and return the hosts struck; what lasts for a time heals then, the rest at the end."""
    if cell.fault in PROCESS_FAULTS:
        victim = process(run, cell.victim)
        hosts, heal = (victim.host,), process_struck(run, victim, cell.fault)
    else:
        hosts, heal = host_struck(ground, run, cell)
    if cell.phase == "queued":
        ground.slurm("scontrol", "release", run.status()["job_id"])
    seconds = [int(word) for word in cell.fault.split() if word.isdigit()]
    if not seconds:
        healing.callback(heal)
        return hosts
    try:
        time.sleep(seconds[0])
    finally:
        heal()
    return hosts


# --- a process ------------------------------------------------------------------------------------


def process(run: Run, who: str) -> LabProcess:
    """Return the process to strike. The spare's agent is the one on a node without a rank."""
    if who == "coordinator":
        return max(there(run, "coordinate"), key=lambda p: p.inner)  # below the one that keeps it
    if who == "srun":
        return min(there(run, "srun"), key=lambda p: p.inner)  # above its helper
    if who == "rank":
        return there(run, "rank")[-1]
    agents = there(run, "agent")
    busy = {p.host for p in run.find("rank")}
    idle = [p for p in agents if p.host not in busy]
    return (idle or agents)[-1] if who == "spare" else agents[-1]


def there(run: Run, kind: str) -> Sequence[LabProcess]:
    """Wait for processes of a kind and return them. Raise ``Missed`` if the run ends first."""
    processes: Sequence[LabProcess] = until(lambda: run.find(kind) or (run.over() and (None,)), kind)
    if None in processes:
        raise Missed(f"{run.folder.name} ended before it was struck")
    return processes


def process_struck(run: Run, victim: LabProcess, fault: str) -> Heal:
    """Kill it, stop it or leave it short of something; what lets it go on."""
    if fault == "out of memory":
        return short_of_memory(run, victim)
    if fault.startswith("no files"):
        return short_of_files(victim.process)
    kill = fault == "killed"
    send(victim, signal.SIGKILL if kill else signal.SIGSTOP)
    return lambda: None if kill else send(victim, signal.SIGCONT)


def send(victim: LabProcess, number: int) -> None:
    """Signal it, if it still lives."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(victim.process, number)


def short_of_files(pid: int) -> Heal:
    """Forbid the process any further open file."""
    try:
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{pid}/fd")), before[1]))
    except (ProcessLookupError, FileNotFoundError):
        return lambda: None

    def heal() -> None:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)

    return heal


def short_of_memory(run: Run, victim: LabProcess) -> Heal:
    """Limit the memory on the process's node, and let it allocate too much."""
    group = MEMORY / f"{run.site.lab.name}-{victim.process}"
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text(str(LEFT_BYTES))
    for process in run.processes():
        if process.host == victim.host:
            with contextlib.suppress(ProcessLookupError):
                (group / "cgroup.procs").write_text(str(process.process))
    send(victim, GREEDY)
    return lambda: until(lambda: removed(group), f"{group} is empty")


def removed(group: Path) -> bool:
    """Return whether a control group is empty, and so removed."""
    with contextlib.suppress(OSError):
        group.rmdir()
    return not group.exists()


# --- a host ---------------------------------------------------------------------------------------


def host_struck(ground: Ground, run: Run, cell: Cell) -> tuple[tuple[str, ...], Heal]:
    """Strike the host's network, disk, clock, power or slurmd. Return the hosts, and the repair."""
    lab, word = ground.site.lab, cell.fault.split()[0]
    host = place(ground, run, cell)
    if word == "lossy":
        return (host,), lossy(ground, host)
    if word in ("unheard", "deaf"):
        other = neighbour(run, host)
        sender, receiver = (host, other) if word == "unheard" else (other, host)
        lab.fault("cut", sender, to=receiver)
        return (host, other), lambda: lab.heal(sender)
    kind, details = KINDS.get(
        word, ("read-only" if word == "read-only" else "disk-full", {"path": str(run.folder)})
    )
    lab.fault(kind, host, **details)
    return (host,), lambda: lab.heal(host)


def place(ground: Ground, run: Run, cell: Cell) -> str:
    """Return the host to strike; for a waiting job a host that it will probably get."""
    if cell.phase not in WAITING and cell.victim == "rank" and not run.find("rank"):
        first = process(run, "coordinator").host
        return until(lambda: [p.host for p in run.find("agent") if p.host != first], "an agent")[0]
    if cell.phase not in WAITING:
        return process(run, cell.victim).host
    return waiting_for(ground, run)[{"coordinator": 0, "rank": 1, "spare": -1}[cell.victim]]


def waiting_for(ground: Ground, run: Run) -> Sequence[str]:
    """Return the nodes of a waiting job: those of its last start, or the first of the ground."""
    state = run.state
    return (*state.attempts[-1].nodes, *state.spares) if state else ground.nodes[: run.training.ranks + 1]


def neighbour(run: Run, host: str) -> str:
    """Return the coordinator's host; for the coordinator itself another host."""
    first = process(run, "coordinator").host
    if host != first:
        return first
    return until(lambda: [p.host for p in run.find("agent") if p.host != first], "another agent")[0]


def lossy(ground: Ground, host: str) -> Heal:
    """Drop a random share of the packets to the host."""
    rule = ("INPUT", "-m", "statistic", "--mode", "random", "--probability", LOSS, "-j", "DROP")

    def change(how: str) -> None:
        result = ground.site.lab.exec(["/usr/sbin/iptables", how, *rule], host=host)
        assert not result.code, result.err

    change("-A")
    return lambda: change("-D")
