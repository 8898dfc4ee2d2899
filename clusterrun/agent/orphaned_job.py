"""Requeue or cancel a job whose coordinator is gone for good, from one of its agents.

A job with ``--no-kill`` survives the loss of the node of its batch step too. The scheduler removes that node,
and the rest of the job would stay idle until its time limit. The remaining agents, with no rank left, ask
until the scheduler has noticed. The first of them requeues or cancels the job.

The agents do the same if the batch step was killed before it could do so: all its processes were killed, or
the scheduler killed the job on a node that was silent for a moment. The scheduler ends the job at once in
this case, so only the rest of ``KillWait`` after its TERM remains.

A first node that is up again before the scheduler missed it stays in the job, which the scheduler considers
running. Two facts together show that there is no coordinator: the run's state has not been written for
minutes, and the coordinator's host refuses its port. A host that does not answer proves nothing, because this
node may be cut off.
"""

from __future__ import annotations

import enum
import json
import signal
import socket
import time
from collections.abc import Callable, Mapping

from clusterrun.agent.rank_environment import AgentPlace
from clusterrun.model import contract
from clusterrun.model.document import encode
from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import frozen
from clusterrun.model.hostlist import expand
from clusterrun.model.orders import Orders
from clusterrun.model.paths import RunPaths
from clusterrun.model.record import OrphanReport
from clusterrun.runtime.commands import CommandDone, CommandRunner
from clusterrun.runtime.event_loop import EventLoop, steady
from clusterrun.runtime.processes import ended_children
from clusterrun.runtime.stderr import say
from clusterrun.slurm_text import job_row
from clusterrun.slurm_text.exclude_list import excluding

# Slurm marks a silent node DOWN after some minutes (SlurmdTimeout).
PATIENCE_SECONDS = 900.0
ASK_SECONDS = 10.0
STAGGER_SECONDS = 0.5
# The agents ask one after the other, so that each sees what an earlier one did.
MOST_STAGGER_SECONDS = 30.0
# The first report comes before a coordinator that lives calls this node dead, so it cannot wait for long.
WITNESS_STAGGER_SECONDS = 0.01
_LIMIT_SECONDS = 8.0
# Limit without a change of the run's state. A coordinator that dies is restarted, and writes, within 78 s.
NOBODY_SECONDS = 180.0
# Two checks further apart prove nothing about the time between, because this process was suspended.
MOST_APART_SECONDS = 45.0
WAITS = "it waits for Slurm to miss the first node, or until nobody has written anything for 3 min"
_CONNECT_SECONDS = 2.0
_STAT = ("stat", "-c", "%i %Y %s")
_WRITE = 'umask 077; printf %s "$1" >"$2.$$" && mv -f "$2.$$" "$2"'
# Limit after a TERM, which a KILL follows. It also applies after the end of the shim, if this process
# outlives it.
LAST_SECONDS = 4.0
LAST_STAGGER_SECONDS = 0.1
_LAST_ASK_SECONDS = 0.5
_FIELDS = ("State", "Reason", "exit_code", "RestartCnt", "BatchHost", "NodeList")


@frozen
class OrphanedNode:
    """A job whose coordinator is gone, and a node that is left."""

    job_id: str
    restarts: int  # restarts of the job before this agent began
    requeue: bool  # requeue the job instead of cancelling it
    node: int  # number in the allocation
    resubmit: tuple[str, ...] = ()  # the command that submits such a job, with the user's excluded nodes
    name: str = ""  # name of the node
    run_dir: str = ""
    coordinator: tuple[tuple[str, int], ...] = ()  # addresses and ports where it listened


# Reasons of a job whose batch step was killed, until Slurm 22.05 and since 23.02
# (`RaisedSignal:9(Killed)`).
_BATCH_KILLED = ("JobLaunchFailure", "RaisedSignal")
_LOST_STATES = ("COMPLETING", "FAILED", "NODE_FAIL")


class JobRemedy(enum.Enum):
    """The action for an orphaned job."""

    WAIT = "the scheduler has not noticed the loss yet"
    LEAVE = "the job is being ended, or was requeued"
    ACT = "the job is idle without its first node, or ended with it"


def orphaned_node(
    orders: Orders, run_dir: str, place: AgentPlace, coordinator: tuple[tuple[str, int], ...]
) -> OrphanedNode | None:
    """Return the job of an agent; None without a scheduler, or if the user owns the allocation."""
    job_id, restarts = job_row.job_of(place.environment)
    if not job_id or orders.in_allocation:
        return None
    return OrphanedNode(
        job_id=job_id,
        restarts=restarts,
        requeue=orders.survival.requeue == "requeue",
        node=place.node,
        resubmit=orders.survival.resubmit,
        name=place.name,
        run_dir=run_dir,
        coordinator=coordinator,
    )


def question(orphan: OrphanedNode) -> tuple[str, ...]:
    return job_row.question(orphan.job_id, _FIELDS)


def remedy_for(orphan: OrphanedNode, lines: tuple[str, ...]) -> JobRemedy:
    cells = job_row.cells(lines, _FIELDS)
    if not cells:
        return JobRemedy.WAIT
    state, reason, code, restarts, host, nodes = cells
    if restarts != str(orphan.restarts):
        return JobRemedy.LEAVE
    if state not in ("RUNNING", "SUSPENDED"):
        killed = reason.partition(":")[0] in _BATCH_KILLED and _signal_of(code) == signal.SIGKILL
        return JobRemedy.ACT if orphan.requeue and killed and state in _LOST_STATES else JobRemedy.LEAVE
    try:
        return JobRemedy.WAIT if not host or host in expand(nodes) else JobRemedy.ACT
    except BadInput:
        return JobRemedy.WAIT


def runs(lines: tuple[str, ...]) -> bool:
    return (job_row.cells(lines, _FIELDS) or [""])[0] == "RUNNING"


class Silence:
    """Measures how long the run's state has not been written, by the clock of this process."""

    def __init__(self) -> None:
        self._mark: str | None = None
        self._since = self._looked_at = float("-inf")

    def seen_unchanged_for(self, now: float, mark: str | None) -> float:
        """Return the seconds without a change of ``mark``, which changes whenever the state is written.

        ``mark`` is None if the state cannot be read ``now``.
        """
        apart, self._looked_at = now - self._looked_at, now
        if mark is None or mark != self._mark or apart > MOST_APART_SECONDS:
            self._mark, self._since = mark, now
        return now - self._since


def refuses(places: tuple[tuple[str, int], ...]) -> bool:
    """Return whether the host of a coordinator refuses its port. Return True if there is no address.

    If a port accepts or a host does not answer, there may be a coordinator.
    """
    refusals = 0
    for address, port in places:
        try:
            with socket.create_connection((address, port), _CONNECT_SECONDS):
                return False
        except ConnectionRefusedError:
            refusals += 1
        except OSError:
            pass
    return bool(refusals) or not places


def came_back(lines: tuple[str, ...]) -> str:
    """Return the first node if it was removed from a job whose batch step was killed on it; else ''.

    Its slurmd still considers the job running, so a restart of the job on this node would be held.
    """
    state, *_, host, nodes = job_row.cells(lines, _FIELDS) or [""] * len(_FIELDS)
    try:
        return host if host and state != "RUNNING" and host not in expand(nodes) else ""
    except BadInput:
        return ""


def _signal_of(code: str) -> int:
    """Return the signal that ended the batch step, from a wait status or from ``code:signal``."""
    number = code.rpartition(":")[2]
    if not number.isdecimal():
        return 0
    return int(number) if ":" in code else int(number) & 0x7F


class OrphanedJob:
    """The watch of one remaining agent over its job.

    ``renew`` tells the shim how long this process may live (steady clock).
    """

    def __init__(
        self, orphan: OrphanedNode, environment: Mapping[str, str], shim: int, renew: Callable[[float], None]
    ) -> None:
        self._orphan, self._shim, self._renew = orphan, shim, renew
        self._silence = Silence()
        self._loop = EventLoop()
        self._commands = CommandRunner(self._loop, environment)
        self._over = self._hurried = self._waits = False
        self._loop.catch((*contract.TERMINATE_SIGNALS, signal.SIGCHLD), self._signalled)
        self._loop.watch(shim, self._on_shim_ended)

    def run(self) -> None:
        """Wait until the job is taken care of, or requeue or cancel it.

        Return soon after a TERM or the shim's end.
        """
        until = steady() + PATIENCE_SECONDS
        self._renew(until + ASK_SECONDS)
        if not self._hurried:
            self._loop.after(min(WITNESS_STAGGER_SECONDS * self._orphan.node, 1.0), self._witness)
            self._loop.after(min(STAGGER_SECONDS * self._orphan.node, MOST_STAGGER_SECONDS), self._ask)
        while not self._over and steady() < until:
            self._loop.wait(until)
        if not self._over:
            self._write(f"it waited {PATIENCE_SECONDS / 60:g} min for that, and ended")
            self._commands.finish(_LIMIT_SECONDS)
        self._commands.finish(0.0)

    def skip_turn(self) -> None:
        """Skip this agent's turn unless it is among the first, because little time is left."""
        if self._hurried:
            return
        self._hurried = True
        turn = LAST_STAGGER_SECONDS * self._orphan.node
        self._loop.after(min(turn, LAST_SECONDS), self._ask if turn < LAST_SECONDS else self._leave)
        self._loop.after(LAST_SECONDS, self._leave)

    def _leave(self) -> None:
        self._over = True

    def _on_shim_ended(self, mask: int) -> None:
        self._loop.forget(self._shim)
        self.skip_turn()

    def _signalled(self, number: int) -> None:
        for child in ended_children():
            self._commands.reaped(child)
        if number in contract.TERMINATE_SIGNALS:
            self.skip_turn()

    def _witness(self) -> None:
        """Report that this node lives and reaches Slurm. Its coordinator may be alive but out of reach."""

        def on_answer(answer: CommandDone) -> None:
            if not answer.why and runs(answer.lines) and not self._waits:
                self._waits = True
                self._write(WAITS)

        if not self._hurried:
            self._commands.run(question(self._orphan), _LIMIT_SECONDS, on_answer)

    def _ask(self) -> None:
        self._commands.run(question(self._orphan), _LIMIT_SECONDS, self._on_answer)

    def _on_answer(self, answer: CommandDone) -> None:
        means = JobRemedy.WAIT if answer.why else remedy_for(self._orphan, answer.lines)
        if means is JobRemedy.WAIT and not self._hurried and not answer.why and runs(answer.lines):
            if not self._waits:
                self._waits = True
                self._write(WAITS)
            self._look()
        elif means is JobRemedy.WAIT:
            self._ask_again()
        elif means is JobRemedy.LEAVE:
            self._leave()
        else:
            self._release(came_back(answer.lines), "the job had no coordinator")

    def _look(self) -> None:
        """Check for a coordinator. A child reads the files, because the file system may not answer."""
        paths = RunPaths(self._orphan.run_dir)
        self._commands.run((*_STAT, paths.orders, paths.state), _LIMIT_SECONDS, self._on_look)

    def _on_look(self, answer: CommandDone) -> None:
        lines = [line for line in answer.lines if line and line[0].isdigit()]
        silent = self._silence.seen_unchanged_for(steady(), None if not lines else " / ".join(lines[1:]))
        if silent < NOBODY_SECONDS or self._hurried or not refuses(self._orphan.coordinator):
            self._ask_again()
            return
        why = f"no coordinator has written anything for {silent:.0f} s"
        if self._orphan.coordinator:
            why += f", and its host refuses port {self._orphan.coordinator[-1][1]}"
        self._release("", why)

    def _write(self, why: str, is_released: bool = False) -> None:
        """Write the state of the job for `status`, in a child as above."""
        record = OrphanReport(self._orphan.job_id, self._orphan.name, time.time(), why, is_released)
        path = RunPaths(self._orphan.run_dir).orphan_report
        command = ("sh", "-c", _WRITE, "sh", json.dumps(encode(record)), path)
        self._commands.run(command, _LIMIT_SECONDS, lambda answer: None)

    def _release(self, host: str, why: str) -> None:
        orphan = self._orphan
        say(f"clusterrun: job {orphan.job_id} is given back: {why}")
        self._write(why, is_released=True)
        argv = ("scontrol", "requeue", orphan.job_id) if orphan.requeue else ("scancel", orphan.job_id)
        excluded = excluding(orphan.resubmit, (host,)) if host and orphan.requeue else ""

        def on_released(answer: CommandDone) -> None:
            if answer.why or not excluded:
                self._ask_again()
                return
            update = ("scontrol", "update", f"JobId={orphan.job_id}", f"ExcNodeList={excluded}")
            self._commands.run(update, _LIMIT_SECONDS, lambda answer: self._ask_again())

        self._commands.run(argv, _LIMIT_SECONDS, on_released)

    def _ask_again(self) -> None:
        self._loop.after(_LAST_ASK_SECONDS if self._hurried else ASK_SECONDS, self._ask)
