"""Start the sidecar processes of this node, exchange lines with them, and end each with its descendants.

Each has two pipes for JSON lines in and out, both bounded, so that the agent never waits.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping

from clusterrun import proc
from clusterrun.agent import rank_environment
from clusterrun.agent.rank_environment import AgentPlace
from clusterrun.model import contract
from clusterrun.model.orders import Orders
from clusterrun.model.paths import RunPaths
from clusterrun.model.phrases import code_in_words
from clusterrun.model.world import Lineage, run_environment
from clusterrun.protocol.messages import AskSidecar, SidecarEnded, SidecarSaid
from clusterrun.runtime.event_loop import READABLE, WRITABLE, EventLoop
from clusterrun.runtime.kill_tree import below, sweep
from clusterrun.runtime.processes import NotStarted, ProcessEnd, Program, start_all
from clusterrun.runtime.run_files import log_or_nothing
from clusterrun.runtime.stderr import say

LONGEST_LINE = 1_000_000
_MOST_UNREAD = 4 * 1024 * 1024
_READ = 64 * 1024
_LAST_READS = 64
_PAUSE = 0.1


class Sidecar:
    """A running sidecar and the pipes to it."""

    def __init__(self, loop: EventLoop, pid: int, epoch: int, pipes: tuple[int, int]) -> None:
        self.pid, self.epoch, self._loop = pid, epoch, loop
        self._questions, self._answers = pipes
        self._unread = bytearray()
        self._half = bytearray()
        self._open = True
        for pipe in pipes:
            os.set_blocking(pipe, False)

    def open(
        self, heard: Callable[[int, str], None], broke: Callable[[str], None], clear: Callable[[], bool]
    ) -> None:
        """Begin to listen.

        ``heard(number, body)`` is called with each answer, ``broke(why)`` once if an answer is invalid.
        ``clear()`` returns whether the agent can take more answers now. If not, the pipe fills up and the
        sidecar waits.
        """
        self._heard, self._broke, self._clear = heard, broke, clear
        self._loop.watch(self._answers, lambda mask: self._listen())

    def ask(self, number: int, body: str) -> None:
        if not self._open:
            return
        self._unread += json.dumps({"number": number, "body": body}).encode() + b"\n"
        self._hand_over(WRITABLE)
        if self._open and len(self._unread) > _MOST_UNREAD:
            self._break("does not read its requests")

    def _hand_over(self, mask: int) -> None:
        try:
            while self._unread:
                del self._unread[: os.write(self._questions, self._unread)]
        except BlockingIOError:
            self._loop.watch(self._questions, self._hand_over, WRITABLE)
            return
        except OSError:  # it no longer reads; its end is reported separately
            self._unread.clear()
        self._loop.forget(self._questions)

    def _listen(self) -> None:
        if not self._open:
            return
        if self._clear():
            self._read()
            return
        self._loop.forget(self._answers)

        def listen_again() -> None:
            if self._open:
                self._loop.watch(self._answers, lambda mask: self._listen(), READABLE)
                self._listen()

        self._loop.after(_PAUSE, listen_again)

    def _read(self) -> bool:
        """Read once from the pipe, and return False if it is empty or closed."""
        try:
            data = os.read(self._answers, _READ)
        except BlockingIOError:
            return False
        if not data:
            self._loop.forget(self._answers)
            return False
        *lines, rest = data.split(b"\n")
        for line in lines:
            whole_line, self._half = bytes(self._half) + line, bytearray()
            if not self._open or not self._answer(whole_line):
                return self._open
        self._half += rest
        if len(self._half) > LONGEST_LINE:
            self._break(f"sent a line of more than {LONGEST_LINE:,} bytes")
        return self._open

    def _answer(self, line: bytes) -> bool:
        try:
            message = json.loads(line)
            number, body = message["number"], message["body"]
        except (ValueError, KeyError, TypeError, RecursionError):
            number = body = None
        if type(number) is not int or not isinstance(body, str) or abs(number) >= 2**63:
            self._break(f"sent an invalid answer: {line[:80].decode('utf-8', 'backslashreplace')!r}")
        # The encoded size counts: a larger frame would break the link to the coordinator.
        elif max(len(line), len(json.dumps(body))) > LONGEST_LINE:
            self._break(f"sent a line of more than {LONGEST_LINE:,} bytes")
        else:
            self._heard(number, body)
        return self._open

    def _break(self, why: str) -> None:
        self.close()
        self._broke(why)

    def last_words(self) -> None:
        """Read the remaining output of an ended sidecar, within a limit of a few pipe capacities."""
        for _ in range(_LAST_READS):
            if not self._open or not self._read():
                return

    def stop_asking(self) -> None:
        """Close its standard input. Its remaining answers are still read."""
        if self._open and self._questions >= 0:
            self._loop.forget(self._questions)
            os.close(self._questions)
            self._unread.clear()
            self._questions = -1

    def close(self) -> None:
        """Close the pipes; the caller ends the process."""
        if self._open:
            self._open = False
            for pipe in (self._questions, self._answers):
                if pipe >= 0:
                    self._loop.forget(pipe)
                    os.close(pipe)


def started(
    loop: EventLoop, epoch: int, log: int, program_for: Callable[[tuple[int, int, int]], Program]
) -> Sidecar:
    """Start the program that ``program_for`` returns for the descriptors of its input, output and ``log``.

    Raise ``NotStarted`` or ``OSError``.
    """
    fds = [log]
    try:
        fds += os.pipe2(os.O_CLOEXEC)
        fds += os.pipe2(os.O_CLOEXEC)
        _, questions, ours, theirs, answers = fds
        pid = start_all([program_for((questions, answers, log))])[0]
        fds = [questions, answers, log]
    finally:
        for fd in fds:
            os.close(fd)
    return Sidecar(loop, pid, epoch, (ours, theirs))


class SidecarProcesses:
    """The sidecars of this node.

    ``happened`` takes the events, ``reap`` collects ended children, ``clear`` is as in ``Sidecar.open``.
    ``ranks`` returns the process ids of the newest ranks of this node, by rank.
    """

    def __init__(self, orders: Orders, paths: RunPaths, place: AgentPlace, loop: EventLoop) -> None:
        self.happened: Callable[[SidecarSaid | SidecarEnded], None]
        self.reap: Callable[[], None]
        self.clear: Callable[[], bool]
        self.ranks: Callable[[], Mapping[int, int]]
        self._orders, self._paths, self._place = orders, paths, place
        self._loop = loop
        self._living: dict[str, Sidecar] = {}

    def ask(self, message: AskSidecar) -> None:
        if message.sidecar not in self._living:
            self.start(message.epoch, message.sidecar)
        if message.sidecar in self._living:
            self._living[message.sidecar].ask(message.number, message.body)

    def start(self, epoch: int, name: str) -> None:
        """Start a sidecar. A program that cannot be executed is reported as ended."""
        self.end(name)
        try:
            # The pre-flight reports a run directory that is not writable.
            log = log_or_nothing(self._paths.attempt(epoch).sidecar_log(self._place.node, name))
            sidecar = started(self._loop, epoch, log, lambda fds: self._program(epoch, name, fds))
        except (NotStarted, OSError) as error:
            why = f"{error.seen}; {error.remedy}" if isinstance(error, NotStarted) else str(error.strerror)
            self.happened(SidecarEnded(epoch, name, why))
            return
        self._living[name] = sidecar
        sidecar.open(
            lambda number, body: self.happened(SidecarSaid(epoch, name, number, body)),
            lambda why: self._gone(name, sidecar.pid, why),
            self.clear,
        )
        if name == contract.OBSERVER:
            sidecar.ask(0, json.dumps({"ranks": self.ranks(), "epoch": epoch}))

    def _program(self, epoch: int, name: str, descriptors: tuple[int, int, int]) -> Program:
        place, paths = self._place, self._paths
        command = ("examine",) if name == contract.EXAMINER else ("observe", str(place.node))
        argv = (sys.executable, "-I", "-S", paths.agent, command[0], paths.run_dir, *command[1:], place.name)
        lineage = Lineage(self._orders.run_id, self._orders.run_name, paths.run_dir, epoch, 0)
        environment = {
            **rank_environment.inherited(place.environment, self._orders),
            **run_environment(lineage),
        }
        environment |= {contract.NODE_NAME_VARIABLE: place.name, contract.COMPANION_VARIABLE: name}
        return Program(argv, tuple(environment.items()), "/", *descriptors, death_signal=signal.SIGKILL)

    def reaped(self, child: ProcessEnd) -> None:
        for name, sidecar in list(self._living.items()):
            if sidecar.pid == child.pid:
                sidecar.last_words()
                self._gone(name, child.pid, code_in_words(child.code))

    def _gone(self, name: str, pid: int, why: str) -> None:
        sidecar = self._living.get(name)
        if sidecar is not None and sidecar.pid == pid:
            self.end(name)
            self.happened(SidecarEnded(sidecar.epoch, name, f"the {name} {why}"))

    def end(self, name: str) -> None:
        """Kill the sidecar and all processes that it started. Return when they ended, but not too late."""
        sidecar = self._living.pop(name, None)
        if sidecar is None:
            return
        sidecar.close()
        for process in sweep(lambda: _kin(sidecar.pid, name), self.reap, contract.TEARDOWN_SECONDS):
            say(f"{self._place.name}: process {process} of the {name} cannot be killed")

    def end_all(self) -> None:
        for name in list(self._living):
            self.end(name)


def _kin(pid: int, name: str) -> list[proc.Process]:
    """Return a sidecar and all processes that it started, including daemons, which stay below this agent."""
    direct = {process.pid for process in proc.descendants(pid)} | {pid}
    return [
        process
        for process in below(os.getpid())
        if process.pid in direct
        or process.session == pid
        or proc.environment(process.pid).get(contract.COMPANION_VARIABLE) == name
    ]
