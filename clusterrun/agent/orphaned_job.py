"""What an agent does when its coordinator is gone for good: it gives the job back or ends it.

A job with ``--no-kill`` survives the loss of the node of its batch step too: the scheduler removes that
node, and the rest of the job would stand idle until its time limit. So the remaining agents, with no rank
left, ask until the scheduler has noticed; the first of them requeues or cancels the job.
The same where the batch step was killed before it could do so, be it that all its processes were, or
that a node which was silent for a moment has all of the job on it killed when it is heard again. The
scheduler ends the job at once then: what is left of ``KillWait`` after its TERM is the time there is.

A first node that is up again before the scheduler missed it stays in the job, which runs in the eyes of
the scheduler. Then two things together show that nobody coordinates: nothing has written the run's state
for minutes, and the coordinator's host refuses its port. A host that does not answer shows nothing: it may
be this node that is cut off.
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
from clusterrun.model.record import LeftBehind
from clusterrun.runtime.commands import CommandDone, CommandRunner
from clusterrun.runtime.event_loop import EventLoop, steady
from clusterrun.runtime.processes import ended_children
from clusterrun.runtime.stderr import say
from clusterrun.slurm_text import job_row
from clusterrun.slurm_text.exclude_list import excluding

PATIENCE_SECONDS = 900.0
"""Slurm marks a silent node DOWN after some minutes (SlurmdTimeout)."""
ASK_SECONDS = 10.0
STAGGER_SECONDS = 0.5
MOST_STAGGER_SECONDS = 30.0
"""One after the other, so that the others see what the first one did."""
_LIMIT_SECONDS = 8.0
NOBODY_SECONDS = 180.0
"""Without a change of the run's state: a coordinator that dies is begun again, and writes, within 78 s."""
MOST_APART_SECONDS = 45.0
"""Two checks further apart than this prove nothing about the time between: this process was suspended."""
WAITS = "it waits for Slurm to miss the first node, or until nobody has written anything for 3 min"
_CONNECT_SECONDS = 2.0
_STAT = ("stat", "-c", "%i %Y %s")
_WRITE = 'umask 077; printf %s "$1" >"$2.$$" && mv -f "$2.$$" "$2"'
LAST_SECONDS = 4.0
"""After a TERM, which a KILL will follow; also after the end of the shim, where this process outlives it."""
LAST_STAGGER_SECONDS = 0.1
_LAST_ASK_SECONDS = 0.5
_FIELDS = ("State", "Reason", "exit_code", "RestartCnt", "BatchHost", "NodeList")


@frozen
class OrphanedNode:
    """A job whose coordinator is gone, and the node that is left: its number in the allocation, its name.

    ``restarts``: how often the job had been restarted when it began; ``requeue``: it is to be started
    again, not ended; ``resubmit`` is what queues such a job, which says what its user excludes.
    ``coordinator`` is where that listened.
    """

    job_id: str
    restarts: int
    requeue: bool
    node: int
    resubmit: tuple[str, ...] = ()
    name: str = ""
    run_dir: str = ""
    coordinator: tuple[tuple[str, int], ...] = ()


_BATCH_KILLED = ("JobLaunchFailure", "RaisedSignal")
"""Why the job of a killed batch step ended, until Slurm 22.05 and since 23.02 (`RaisedSignal:9(Killed)`)."""
_LOST_STATES = ("COMPLETING", "FAILED", "NODE_FAIL")


class JobRemedy(enum.Enum):
    """What is to be done."""

    WAIT = "the scheduler has noticed nothing yet"
    LEAVE = "the job is being ended, or was given back"
    ACT = "the job stands without its first node, or ended with it"


def left_behind(
    orders: Orders, run_dir: str, place: AgentPlace, coordinator: tuple[tuple[str, int], ...]
) -> OrphanedNode | None:
    """The job of an agent; None without a scheduler, and where the allocation is its user's."""
    job_id, restarts = job_row.job_of(place.environment)
    if not job_id or orders.in_allocation:
        return None
    survival = orders.survival
    ways = (survival.requeue == "requeue", place.node, survival.resubmit)
    return OrphanedNode(job_id, restarts, *ways, place.name, run_dir, coordinator)


def question(left: OrphanedNode) -> tuple[str, ...]:
    return job_row.question(left.job_id, _FIELDS)


def remedy_for(left: OrphanedNode, lines: tuple[str, ...]) -> JobRemedy:
    cells = job_row.cells(lines, _FIELDS)
    if not cells:
        return JobRemedy.WAIT
    state, reason, code, restarts, host, nodes = cells
    if restarts != str(left.restarts):
        return JobRemedy.LEAVE
    if state not in ("RUNNING", "SUSPENDED"):
        killed = reason.partition(":")[0] in _BATCH_KILLED and _signal_of(code) == signal.SIGKILL
        return JobRemedy.ACT if left.requeue and killed and state in _LOST_STATES else JobRemedy.LEAVE
    try:
        return JobRemedy.WAIT if not host or host in expand(nodes) else JobRemedy.ACT
    except BadInput:
        return JobRemedy.WAIT


def runs(lines: tuple[str, ...]) -> bool:
    return (job_row.cells(lines, _FIELDS) or [""])[0] == "RUNNING"


class Silence:
    """How long nobody has written the run's state, by the clock of this process."""

    def __init__(self) -> None:
        self._mark: str | None = None
        self._since = self._looked_at = float("-inf")

    def seen_unchanged_for(self, steady: float, mark: str | None) -> float:
        """``mark`` changes with each state that is written; None: it cannot be looked at now."""
        apart, self._looked_at = steady - self._looked_at, steady
        if mark is None or mark != self._mark or apart > MOST_APART_SECONDS:
            self._mark, self._since = mark, steady
        return steady - self._since


def refuses(places: tuple[tuple[str, int], ...]) -> bool:
    """Whether the host of a coordinator refuses its port; also true where no address is known.

    A port that accepts, or a host that does not answer, means that there may be a coordinator.
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
    """The first node, where it had been taken out of a job whose batch step was killed on it; else empty.

    Its own daemon takes the job for a running one still: started there again the job would be held.
    """
    state, *_, host, nodes = job_row.cells(lines, _FIELDS) or [""] * len(_FIELDS)
    try:
        return host if host and state != "RUNNING" and host not in expand(nodes) else ""
    except BadInput:
        return ""


def _signal_of(code: str) -> int:
    """The signal that ended the batch step: of a wait status, or of ``code:signal``."""
    number = code.rpartition(":")[2]
    if not number.isdecimal():
        return 0
    return int(number) if ":" in code else int(number) & 0x7F


class OrphanedJob:
    """The questions of one agent that is left behind.

    ``renew`` tells the shim how long this process may live (steady clock).
    """

    def __init__(
        self, left: OrphanedNode, environment: Mapping[str, str], shim: int, renew: Callable[[float], None]
    ) -> None:
        self._left, self._shim, self._renew = left, shim, renew
        self._silence = Silence()
        self._loop = EventLoop()
        self._commands = CommandRunner(self._loop, environment)
        self._over = self._hurried = self._waits = False
        self._loop.catch((*contract.TERMINATE_SIGNALS, signal.SIGCHLD), self._signalled)
        self._loop.watch(shim, self._on_shim_ended)

    def run(self) -> None:
        """Wait until the job is taken care of, or give it back; ends soon after a TERM or its shim's end."""
        until = steady() + PATIENCE_SECONDS
        self._renew(until + ASK_SECONDS)
        if not self._hurried:
            self._loop.after(min(STAGGER_SECONDS * self._left.node, MOST_STAGGER_SECONDS), self._ask)
        while not self._over and steady() < until:
            self._loop.wait(until)
        if not self._over:
            self._write(f"it waited {PATIENCE_SECONDS / 60:g} min for that, and ended")
            self._commands.finish(_LIMIT_SECONDS)
        self._commands.finish(0.0)

    def skip_turn(self) -> None:
        """Give up this agent's turn unless it is among the first: little time is left."""
        if self._hurried:
            return
        self._hurried = True
        turn = LAST_STAGGER_SECONDS * self._left.node
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

    def _ask(self) -> None:
        self._commands.run(question(self._left), _LIMIT_SECONDS, self._on_answer)

    def _on_answer(self, done: CommandDone) -> None:
        means = JobRemedy.WAIT if done.why else remedy_for(self._left, done.lines)
        if means is JobRemedy.WAIT and not self._hurried and not done.why and runs(done.lines):
            if not self._waits:
                self._waits = True
                self._write(WAITS)
            self._look()
        elif means is JobRemedy.WAIT:
            self._ask_again()
        elif means is JobRemedy.LEAVE:
            self._leave()
        else:
            self._give_back(came_back(done.lines), "the job stood without its coordinator")

    def _look(self) -> None:
        """Does anybody coordinate the run? The file system may not answer: a child looks."""
        paths = RunPaths(self._left.run_dir)
        self._commands.run((*_STAT, paths.orders, paths.state), _LIMIT_SECONDS, self._on_look)

    def _on_look(self, done: CommandDone) -> None:
        seen = [line for line in done.lines if line and line[0].isdigit()]
        silent = self._silence.seen_unchanged_for(steady(), None if not seen else " / ".join(seen[1:]))
        if silent < NOBODY_SECONDS or self._hurried or not refuses(self._left.coordinator):
            self._ask_again()
            return
        words = f"no coordinator has written anything for {silent:.0f} s"
        if self._left.coordinator:
            words += f", and its host refuses port {self._left.coordinator[-1][1]}"
        self._give_back("", words)

    def _write(self, why: str, done: bool = False) -> None:
        """Write for `status` what happens to the job, in a child as above."""
        word = json.dumps(encode(LeftBehind(self._left.job_id, self._left.name, time.time(), why, done)))
        path = RunPaths(self._left.run_dir).left
        self._commands.run(("sh", "-c", _WRITE, "sh", word, path), _LIMIT_SECONDS, lambda done: None)

    def _give_back(self, host: str, why: str) -> None:
        say(f"clusterrun: job {self._left.job_id} is given back: {why}")
        self._write(why, done=True)
        left = self._left
        argv = ("scontrol", "requeue", left.job_id) if left.requeue else ("scancel", left.job_id)
        words = excluding(left.resubmit, (host,)) if host and left.requeue else ""

        def given(done: CommandDone) -> None:
            if done.why or not words:
                self._ask_again()
                return
            update = ("scontrol", "update", f"JobId={left.job_id}", f"ExcNodeList={words}")
            self._commands.run(update, _LIMIT_SECONDS, lambda done: self._ask_again())

        self._commands.run(argv, _LIMIT_SECONDS, given)

    def _ask_again(self) -> None:
        self._loop.after(_LAST_ASK_SECONDS if self._hurried else ASK_SECONDS, self._ask)
