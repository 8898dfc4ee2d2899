"""Disturbances of the soak and the matrix, by name. Each strikes, heals, and returns its target."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.survive.site import Broken, Run, Site

AWAY = (1.0, 5.0, 25.0, 45.0)
"""Seconds that something is stopped or cut off: shorter and longer than any patience."""


@dataclass(frozen=True)
class Disturbance:
    """Something that is done to a run now."""

    site: Site
    run: Run
    chance: random.Random

    def node(self) -> str:
        """Choose one of the nodes that train, including the first."""
        return self.chance.choice(self.run.nodes())

    def seconds(self) -> float:
        """Draw the duration."""
        return self.chance.choice(AWAY)


def killed(kind: str) -> Callable[[Disturbance], str]:
    """Return a disturbance that kills a rank or an agent of one of the nodes."""
    return lambda what: what.run.kill(kind, what.node()).host


def coordinator_killed(what: Disturbance) -> str:
    return what.run.kill("coordinate").host


def launcher_killed(what: Disturbance) -> str:
    return what.run.kill("srun", number=-1).host


def stopped(kind: str) -> Callable[[Disturbance], str]:
    """Return a disturbance that stops one process for a while."""

    def strike(what: Disturbance) -> str:
        processes = what.run.find(kind)
        if not processes:
            raise Broken(f"no {kind}")
        victim = what.chance.choice(processes)
        os.kill(victim.process, signal.SIGSTOP)
        time.sleep(what.seconds())
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim.process, signal.SIGCONT)
        return victim.host

    return strike


def broken(kind: str, **details: str) -> Callable[[Disturbance], str]:
    """Return a disturbance that breaks something on one of the nodes for a while."""

    def strike(what: Disturbance) -> str:
        node = what.node()
        with what.site.fault(kind, node, **details):
            time.sleep(what.seconds())
        return node

    return strike


def node_cut_one_way(what: Disturbance) -> str:
    """Cut the packets from the first node, or those to it, but not both."""
    first, node = what.run.nodes()[0], what.run.nodes()[-1]
    way = (first, node) if what.chance.random() < 0.5 else (node, first)
    with what.site.fault("cut", way[0], to=way[1]):
        time.sleep(what.seconds())
    return node


def controller_away(what: Disturbance) -> str:
    with what.site.fault("controller"):
        time.sleep(what.chance.choice([2.0, 10.0, 30.0]))
    return "ctl"


def requeued(what: Disturbance) -> str:
    job = what.run.status()["job_id"]
    result = what.site.lab.exec(["scontrol", "requeue", job])
    if result.code:
        raise Broken(result.err)
    return what.run.nodes()[0]


def preempted(what: Disturbance) -> str:
    size = str(len(what.site.lab.nodes) // 2)
    command = ["sbatch", "-p", "urgent", f"-N{size}", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 5"]
    result = what.site.lab.exec(command)
    if result.code:
        raise Broken(result.err)
    return "urgent"


def disk_full(what: Disturbance) -> str:
    """Fill the file system of the checkpoints on the node of rank 0."""
    node, name = what.run.nodes()[0], what.run.folder.name.split("-", 3)[3]
    folder = what.site.folder / name / "kept"
    with what.site.fault("disk-full", node, path=str(folder)):
        time.sleep(what.seconds())
    return node


def checkpoint_damaged(what: Disturbance) -> str:
    """Damage the newest checkpoint and kill a rank, so that the file is read."""
    name = what.run.folder.name.split("-", 3)[3]
    newest = max(Path(what.site.folder, name, "kept").glob("step-*.pt"), default=None)
    if newest is None:
        raise Broken("no checkpoint yet")
    newest.write_bytes(newest.read_bytes()[:-3] + b"bad")
    return killed("rank")(what)


def run_directory_gone(what: Disturbance) -> str:
    away = Path(f"{what.run.folder}.away")
    what.site.patrol.forget(what.run)
    os.rename(what.run.folder, away)
    try:
        time.sleep(what.chance.choice([1.0, 5.0, 10.0]))
    finally:
        shutil.rmtree(what.run.folder, ignore_errors=True)
        os.rename(away, what.run.folder)
        what.site.patrol.watch(what.run)
    return "home"


def two_at_once(what: Disturbance) -> str:
    nodes = what.run.nodes()
    what.run.kill("rank", nodes[-1])
    what.run.kill("agent", nodes[0])
    return f"{nodes[-1]} {nodes[0]}"


ALL: dict[str, Callable[[Disturbance], str]] = {
    "rank killed": killed("rank"),
    "agent killed": killed("agent"),
    "coordinator killed": coordinator_killed,
    "srun killed": launcher_killed,
    "rank stopped": stopped("rank"),
    "agent stopped": stopped("agent"),
    "coordinator stopped": stopped("coordinate"),
    "node cut off": broken("cut"),
    "node cut one way": node_cut_one_way,
    "node frozen": broken("freeze"),
    "node killed": broken("kill"),
    "slurmd killed": broken("kill", process="slurmd"),
    "controller away": controller_away,
    "requeued": requeued,
    "preempted": preempted,
    "disk full": disk_full,
    "checkpoint damaged": checkpoint_damaged,
    "run directory gone": run_directory_gone,
    "two at once": two_at_once,
}
