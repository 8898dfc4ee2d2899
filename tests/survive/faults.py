"""Everything that is done to a training, by name; each ends with the weights of an undisturbed one.

A fault gets a ``Ground``: some nodes of the lab that nobody else uses meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.survive.site import LIMIT, Broken, Run, Site, Training, until

SMALL = Training()
RANKS = SMALL.ranks


@dataclass(frozen=True)
class Ground:
    """Nodes of a lab that one fault has for itself."""

    site: Site
    nodes: tuple[str, ...]

    def submit(self, name: str, *options: str, training: Training = SMALL, nodes: int = RANKS) -> Run:
        """Submit a training on this ground, one rank a node."""
        others = [node for node in self.site.lab.nodes if node not in self.nodes]
        keep_off = ("--exclude", ",".join(others)) if others else ()
        return self.site.submit(
            *("--nodes", str(nodes), "--gpus", "0", *keep_off, *options), name=name, training=training
        )

    def slurm(self, *arguments: str) -> str:
        """Run a program of Slurm on the login host."""
        result = self.site.lab.exec(arguments)
        if result.code:
            raise Broken(f"{arguments}: {result.err}")
        return result.out

    def heal(self) -> None:
        """Repair everything, and wait until Slurm knows it."""
        for node in self.nodes:
            self.site.lab.heal(node)
        until(lambda: set(self._states().values()) == {"idle"}, f"idle nodes: {self._states()}", 120)

    def _states(self) -> dict[str, str]:
        return {node: word for node, word in self.site.lab.node_states().items() if node in self.nodes}


def completed(run: Run, names: str = "", attempts: int = 0, budget: int = 20, limit: float = LIMIT) -> None:
    """Check that the run completed with the right weights, names the struck part, and left nothing."""
    message = run.ends(limit)
    if message["state"] != "COMPLETED":
        raise Broken(f"{run.folder.name} is {message['state']}: {message['reason']}; {run.told()}")
    run.same_weights()
    run.laws(budget)
    state = run.state
    assert state is not None
    reasons = [f"{a.reason} {a.failure.why if a.failure else ''}" for a in state.attempts]
    if names and not any(names in reason for reason in reasons):
        raise Broken(f"I5 {run.folder.name}: nobody names {names}: {reasons}")
    if attempts and len(state.attempts) != attempts:
        raise Broken(f"{run.folder.name}: {len(state.attempts)} attempts, not {attempts}: {run.told()}")


RESTARTS = ("--max-restarts", "3")


# --- one process ----------------------------------------------------------------------------------


def killed(ground: Ground, kind: str, place: int) -> None:
    """Kill one process of a node. The node is named."""
    run = ground.submit(f"{kind}{place}", *RESTARTS)
    run.trains()
    node = run.kill(kind, run.nodes()[place]).host
    completed(run, node, attempts=2)


def rank_killed(ground: Ground) -> None:
    killed(ground, "rank", 2)


def agent_killed(ground: Ground) -> None:
    killed(ground, "agent", 2)


def agent_of_the_first_node_killed(ground: Ground) -> None:
    killed(ground, "agent", 0)


def agent_interrupted(ground: Ground) -> None:
    """Send SIGTERM to one agent in a job that nobody cancels: the node is lost.

    The others hold GPUs, which Slurm before 22.05 shares with no step of a new agent.
    """
    run = ground.submit("interrupted", "--requeue", "--gpus", "1", *RESTARTS)
    run.trains()
    node = run.nodes()[2]
    for process in run.find("agent", node)[:1]:
        os.kill(process.process, signal.SIGINT)
    completed(run, f"{node} (node 2) was lost: its agent got SIGINT", attempts=2)


def coordinator_killed(ground: Ground) -> None:
    run = ground.submit("coordinator", *RESTARTS)
    run.trains()
    run.kill("coordinate", number=0)
    completed(run, attempts=2)


def srun_killed(ground: Ground) -> None:
    run = ground.submit("srun", *RESTARTS)
    run.trains()
    run.kill("srun", number=-1)
    completed(run, attempts=2)


def always_crashing(ground: Ground) -> None:
    run = ground.submit("crashing", "--max-restarts", "10", training=Training(more=("crash=3",)))
    message = run.ends()
    if message["state"] != "FAILED" or "no progress" not in message["reason"]:
        raise Broken(f"{message}; {run.told()}")
    run.laws()
    if run.attempt() != 3:
        raise Broken(f"{run.attempt() + 1} attempts, not 4: {run.told()}")


def two_failures_at_once(ground: Ground) -> None:
    run = ground.submit("two", *RESTARTS)
    run.trains()
    nodes = run.nodes()
    run.kill("rank", nodes[1])
    run.kill("agent", nodes[2])
    completed(run, attempts=2)


def failure_during_a_restart(ground: Ground) -> None:
    run = ground.submit("during", *RESTARTS)
    run.trains()
    nodes = run.nodes()
    run.kill("rank", nodes[1])
    until(lambda: run.attempt() >= 1, "the second attempt")
    run.kill("agent", nodes[2])
    completed(run, nodes[2])


# --- a node ---------------------------------------------------------------------------------------


def node_killed_with_a_spare(ground: Ground) -> None:
    run = ground.submit("spare", *RESTARTS, "--spares", "1")
    run.trains()
    node = run.nodes()[2]
    with ground.site.fault("kill", node):
        completed(run, node, attempts=2)


def node_killed_without_a_spare(ground: Ground) -> None:
    run = ground.submit("node", *RESTARTS, "--requeue")
    run.trains()
    node = run.nodes()[2]
    with ground.site.fault("kill", node):
        completed(run, node)


def node_killed_and_nobody_may_go_on(ground: Ground) -> None:
    run = ground.submit("alone", "--max-restarts", "0")
    run.trains()
    node = run.nodes()[2]
    with ground.site.fault("kill", node):
        message = run.ends()
        if message["state"] != "NODE_FAIL" or node not in message["reason"]:
            raise Broken(f"I5 {message}; {run.told()}")
        run.laws()


def first_node_killed_and_requeued(ground: Ground) -> None:
    run = ground.submit("first", *RESTARTS, "--requeue")
    run.trains()
    with ground.site.fault("kill", run.nodes()[0]):
        completed(run)


def first_node_killed_before_anybody_joined(ground: Ground) -> None:
    """Kill the first node before an agent joins. Only Slurm knows that the run began."""
    run = ground.submit("unjoined", *RESTARTS, "--requeue")
    until(lambda: run.find("srun"), "srun")
    with ground.site.fault("kill", run.find("coordinate")[0].host):
        completed(run, limit=420)


def first_node_killed_while_another_is_missed(ground: Ground) -> None:
    """Launch agents again for a lost node. Those of the others outlive the coordinator."""
    run = ground.submit("both", *RESTARTS, "--requeue")
    run.trains()
    first, _, other, _ = run.nodes()
    with ground.site.fault("kill", other):
        until(lambda: "restart 1 of 3" in run.job_output(), "the restart")
        with ground.site.fault("kill", first):
            completed(run, limit=420)


def first_node_killed_and_chained(ground: Ground) -> None:
    run = ground.submit("chain", *RESTARTS, "--requeue", "--requeue-by", "chain", training=Training(steps=80))
    run.trains()
    until((run.folder / "next.json").exists, "the next job is queued, some seconds after the start")
    with ground.site.fault("kill", run.nodes()[0]):
        completed(run)


def node_cut_off_for_a_moment(ground: Ground) -> None:
    run = ground.submit("cut", *RESTARTS, training=Training(steps=80))
    run.trains()
    with ground.site.fault("cut", run.nodes()[2]):
        time.sleep(6)
    completed(run)


def node_cut_off_for_long(ground: Ground) -> None:
    run = ground.submit("cutlong", *RESTARTS, "--requeue")
    run.trains()
    node = run.nodes()[2]
    with ground.site.fault("cut", node):
        until(lambda: run.attempt() >= 1, "another attempt", 120)
    completed(run, node)


def node_frozen(ground: Ground) -> None:
    """Freeze a node. Its ranks continue long after others have taken over."""
    run = ground.submit("frozen", *RESTARTS, "--spares", "1", training=Training(steps=100))
    run.trains()
    node = run.nodes()[2]
    with ground.site.fault("freeze", node):
        until(lambda: run.attempt() >= 1, "another attempt", 120)
    completed(run, node)


# --- the end of a job -----------------------------------------------------------------------------


def requeued_by_an_administrator(ground: Ground) -> None:
    run = ground.submit("admin", "--requeue")
    run.trains()
    ground.slurm("scontrol", "requeue", run.status()["job_id"])
    completed(run, attempts=2)


def preempted(ground: Ground, *by: str) -> None:
    run = ground.submit("preempted", "--requeue", *by)
    run.trains()
    arguments = (
        "sbatch",
        "--parsable",
        "-p",
        "urgent",
        f"-N{len(ground.nodes)}",
        "--exclusive",
        "-o",
        "/dev/null",
    )
    ground.slurm(*arguments, "--wrap", "sleep 5")
    completed(run)


def preempted_and_chained(ground: Ground) -> None:
    preempted(ground, "--requeue-by", "chain")


def time_limit_twice(ground: Ground, *by: str) -> None:
    """Train longer than two jobs of a minute. The last twenty seconds of each are for the notice."""
    long = Training(steps=150, seconds=0.7)
    run = ground.submit("limit", "--time", "1", "--notice", "20", "--requeue", *by, training=long)
    completed(run, limit=600)
    state = run.state
    if state is None or len(state.attempts) < 3:
        raise Broken(f"the time limit was not reached twice: {run.told()}")


def time_limit_twice_chained(ground: Ground) -> None:
    time_limit_twice(ground, "--requeue-by", "chain")


# --- scancel --------------------------------------------------------------------------------------


def cancelled(ground: Ground, run: Run, word: str = "scancel", job_id: str = "") -> None:
    """End it by Slurm's own program or by ours; it stays ended, whatever was to follow."""
    if word == "scancel":
        ground.slurm("scancel", job_id or run.status()["job_id"])
    elif (result := ground.site.types("cancel", run.folder.name)).code:
        raise Broken(f"cancel: {result.err}")
    message = run.ends(60)
    if message["state"] != "CANCELLED":
        raise Broken(f"{run.folder.name} is {message['state']}: {message['reason']}; {run.told()}")
    run.laws()
    if (later := run.status())["state"] != "CANCELLED":
        raise Broken(f"it went on: {later}")


def scancel_while_queued(ground: Ground) -> None:
    cancelled(ground, ground.submit("queued", "--sbatch", "hold", "--requeue"))


def scancel_while_starting(ground: Ground) -> None:
    run = ground.submit("starting", "--requeue", *RESTARTS)
    until(lambda: run.state, "its first word")
    cancelled(ground, run)


def scancel_in_training(ground: Ground) -> None:
    run = ground.submit("training", "--requeue", *RESTARTS)
    run.trains()
    cancelled(ground, run)


def scancel_of_a_chain(ground: Ground) -> None:
    """Cancel a job of a chain. The job that waits for its end ends too."""
    run = ground.submit("chained", "--requeue", "--requeue-by", "chain", *RESTARTS)
    run.trains()
    cancelled(ground, run)


def cancel_of_a_chain(ground: Ground) -> None:
    run = ground.submit("chained2", "--requeue", "--requeue-by", "chain", *RESTARTS)
    run.trains()
    cancelled(ground, run, "cancel")


def scancel_in_a_checkpoint(ground: Ground) -> None:
    run = ground.submit("saving", "--requeue", training=Training(more=("slow=3",)))
    run.trains(6)
    cancelled(ground, run)


def scancel_in_a_restart(ground: Ground) -> None:
    run = ground.submit("again", "--requeue", *RESTARTS)
    run.trains()
    job_id = run.status()["job_id"]
    run.kill("rank", run.nodes()[1])
    time.sleep(0.3)  # it is over within a second
    cancelled(ground, run, job_id=job_id)


# --- a job that stands still ----------------------------------------------------------------------


def suspended(ground: Ground, seconds: float = 30.0) -> None:
    """Suspend the job for longer than any lease: status shows it, no step is taken, the run continues."""
    run = ground.submit("suspended", "--max-restarts", "0", training=Training(steps=80))
    run.trains()
    job = run.status()["job_id"]
    ground.slurm("scontrol", "suspend", job)
    time.sleep(4)
    step = run.step()
    time.sleep(seconds)
    status = run.status()
    if "suspended by Slurm" not in status["reason"] or status["state"] != "RUNNING" or run.step() != step:
        raise Broken(f"step {step}, then {run.step()}, and status says {status}")
    ground.slurm("scontrol", "resume", job)
    completed(run, attempts=1)


# --- disks ----------------------------------------------------------------------------------------


def disk_full_at_a_checkpoint(ground: Ground) -> None:
    """Fill the disk at some checkpoints. The training continues, and older checkpoints are whole."""
    run = ground.submit("full", *RESTARTS, training=Training(steps=60, more=("fill=600000",)))
    run.trains()
    nodes = run.nodes()
    with ground.site.fault("disk-full", nodes[0], path=str(ground.site.folder / "full" / "kept")):
        run.trains(run.step() + 12)
    run.kill("rank", nodes[1])
    completed(run, nodes[1])


def checkpoint_damaged(ground: Ground) -> None:
    run = ground.submit("damaged", *RESTARTS)
    run.trains(12)
    newest = max((ground.site.folder / "damaged" / "kept").glob("step-*.pt"))
    newest.write_bytes(newest.read_bytes()[:-7] + b"damaged")
    run.kill("rank", run.nodes()[1])
    completed(run)


def file_system_in_trouble(ground: Ground, place: int) -> None:
    """Refuse writes to the attempts' folder on one node, or on all, while the ranks start again."""
    run = ground.submit(f"trouble{place}", *RESTARTS)
    run.trains()
    nodes = run.nodes()
    with contextlib.ExitStack() as troubles:
        for node in nodes[place:] if place >= 0 else nodes:
            where = str(run.folder / "attempts")
            troubles.enter_context(ground.site.fault("read-only", node, path=where))
        run.kill("rank", nodes[1])
        until(lambda: "is tried again" in run.job_output() or run.attempt() >= 1, "a second try")
        time.sleep(4)
    completed(run, nodes[1], attempts=2)


def file_system_in_trouble_everywhere(ground: Ground) -> None:
    file_system_in_trouble(ground, -1)


def file_system_in_trouble_for_ranks_alone(ground: Ground) -> None:
    file_system_in_trouble(ground, 2)


def run_directory_gone(ground: Ground) -> None:
    run = ground.submit("gone", *RESTARTS, training=Training(steps=80))
    run.trains()
    away = Path(f"{run.folder}.away")
    ground.site.patrol.forget(run)
    os.rename(run.folder, away)
    time.sleep(10)
    shutil.rmtree(run.folder, ignore_errors=True)
    os.rename(away, run.folder)
    ground.site.patrol.watch(run)
    completed(run, attempts=1)


# --- the controller: one fault for everybody, so these runs share it -------------------------------


def controller_away(ground: Ground, seconds: float = 15.0) -> None:
    """Stop the controller while one run starts, one trains, one ends. All end well."""
    short = Training(ranks=2, steps=int(5 * seconds), seconds=0.2)
    begun = ground.submit("away", nodes=2, training=short)
    begun.trains()
    ending = ground.submit("ending", nodes=2, training=Training(ranks=2, steps=15))
    ending.trains(3)
    starting = ground.submit("early", nodes=2, training=short)
    with ground.site.fault("controller"):
        time.sleep(seconds)
    for run in (begun, ending, starting):
        completed(run, attempts=1)


Fault = Callable[[Ground], Any]
FAULTS: dict[str, Fault] = {
    fault.__name__: fault
    for fault in (
        node_killed_without_a_spare,
        first_node_killed_before_anybody_joined,
        first_node_killed_and_requeued,
        first_node_killed_while_another_is_missed,
        first_node_killed_and_chained,
        node_cut_off_for_long,
        node_frozen,
        node_killed_with_a_spare,
        node_killed_and_nobody_may_go_on,
        requeued_by_an_administrator,
        coordinator_killed,
        agent_of_the_first_node_killed,
        agent_killed,
        agent_interrupted,
        srun_killed,
        rank_killed,
        two_failures_at_once,
        failure_during_a_restart,
        node_cut_off_for_a_moment,
        run_directory_gone,
        suspended,
        disk_full_at_a_checkpoint,
        file_system_in_trouble_everywhere,
        file_system_in_trouble_for_ranks_alone,
        checkpoint_damaged,
        always_crashing,
        scancel_of_a_chain,
        cancel_of_a_chain,
        scancel_while_queued,
        scancel_while_starting,
        scancel_in_training,
        scancel_in_a_checkpoint,
        scancel_in_a_restart,
    )
}
"""Faults that need no lab of their own. The longest come first."""


class Grounds:
    """A lab cut into grounds, and faults run on them, several at once; each one's outcome can be awaited."""

    def __init__(self, site: Site, size: int, at_once: int) -> None:
        self.site = site
        names = site.lab.nodes
        self._free = [Ground(site, names[n : n + size]) for n in range(0, at_once * size, size)]
        self._some = threading.Condition()

    def run(self, fault: Fault) -> str:
        """Return the failure of a fault's test; '' if it passed."""
        with self._some:
            self._some.wait_for(lambda: self._free)
            ground = self._free.pop()
        try:
            fault(ground)
        except Exception as error:  # noqa: BLE001  handed to whoever asks for the outcome
            return f"{type(error).__name__}: {error}"
        finally:
            self._back(ground)
        return ""

    def _back(self, ground: Ground) -> None:
        jobs = ground.slurm("squeue", "-h", "-o", "%i", "-w", ",".join(ground.nodes)).split()
        if jobs:
            ground.slurm("scancel", *jobs)
        with contextlib.suppress(Broken):
            ground.heal()
        with self._some:
            self._free.append(ground)
            self._some.notify()
