"""The sidecar processes of this node: starts them, passes lines on, ends each with all below it.

Each has two pipes: JSON lines in and out, both bounded, so that the agent never waits.
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
from clusterrun.model.world import Lineage, run_environment
from clusterrun.protocol.messages import AskSidecar, SidecarEnded, SidecarSaid
from clusterrun.runtime.event_loop import READABLE, WRITABLE, EventLoop
from clusterrun.runtime.exit_status import code_in_words
from clusterrun.runtime.kill_tree import below, sweep
from clusterrun.runtime.processes import NotStarted, ProcessEnd, Program, start_all
from clusterrun.runtime.run_files import log_or_nothing
from clusterrun.runtime.stderr import say

_KILL_SECONDS = 3.0
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

        ``heard(number, body)`` is called with what it says, ``broke(why)`` once where it does not keep to
        the form; ``clear()`` says whether more can be heard now: where it is False, the pipe fills up
        and the sidecar waits.
        """
        self._heard, self._broke, self._clear = heard, broke, clear
        self._loop.watch(self._answers, lambda mask: self._listen())

    def ask(self, number: int, body: str) -> None:
        if not self._open:
            return
        self._unread += json.dumps({"number": number, "body": body}).encode() + b"\n"
        self._hand_over(WRITABLE)
        if self._open and len(self._unread) > _MOST_UNREAD:
            self._break("reads nothing of what it is asked")

    def _hand_over(self, mask: int) -> None:
        try:
            while self._unread:
                del self._unread[: os.write(self._questions, self._unread)]
        except BlockingIOError:
            self._loop.watch(self._questions, self._hand_over, WRITABLE)
            return
        except OSError:  # it reads no more; its end is heard of by itself
            self._unread.clear()
        self._loop.forget(self._questions)

    def _listen(self) -> None:
        if not self._open:
            return
        if self._clear():
            self._read()
            return
        self._loop.forget(self._answers)
        self._loop.after(_PAUSE, self._listen_again)

    def _listen_again(self) -> None:
        if self._open:
            self._loop.watch(self._answers, lambda mask: self._listen(), READABLE)
            self._listen()

    def _read(self) -> bool:
        """Take in what there is, one piece of it; False when there is no more for now."""
        try:
            data = os.read(self._answers, _READ)
        except BlockingIOError:
            return False
        if not data:
            self._loop.forget(self._answers)
            return False
        self._take(data)
        return self._open

    def _take(self, data: bytes) -> None:
        *lines, rest = data.split(b"\n")
        for line in lines:
            whole, self._half = bytes(self._half) + line, bytearray()
            if not self._open or not self._answer(whole):
                return
        self._half += rest
        if len(self._half) > LONGEST_LINE:
            self._break(f"said more than {LONGEST_LINE:,} bytes in one line")

    def _answer(self, line: bytes) -> bool:
        try:
            said = json.loads(line)
            number, body = said["number"], said["body"]
        except (ValueError, KeyError, TypeError, RecursionError):
            number = body = None
        if type(number) is not int or not isinstance(body, str) or abs(number) >= 2**63:
            self._break(f"said what is no answer: {line[:80].decode('utf-8', 'backslashreplace')!r}")
        # As it travels on; a frame has a limit, and what is beyond it would cost the link.
        elif max(len(line), len(json.dumps(body))) > LONGEST_LINE:
            self._break(f"said more than {LONGEST_LINE:,} bytes in one line")
        else:
            self._heard(number, body)
        return self._open

    def _break(self, why: str) -> None:
        self.close()
        self._broke(why)

    def last_words(self) -> None:
        """Read what an ended sidecar had written, but no more than a pipe holds a few times."""
        for _ in range(_LAST_READS):
            if not self._open or not self._read():
                return

    def stop_asking(self) -> None:
        """Its standard input ends; what it still says is heard."""
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
    loop: EventLoop, epoch: int, log: int, made: Callable[[tuple[int, int, int]], Program]
) -> Sidecar:
    """Start what ``made`` makes of the descriptors of its input, its output and its ``log``.

    Raises ``NotStarted`` and ``OSError``.
    """
    fds = [log]
    try:
        fds += os.pipe2(os.O_CLOEXEC)
        fds += os.pipe2(os.O_CLOEXEC)
        _, questions, ours, theirs, answers = fds
        pid = start_all([made((questions, answers, log))])[0]
        fds = [questions, answers, log]
    finally:
        for fd in fds:
            os.close(fd)
    return Sidecar(loop, pid, epoch, (ours, theirs))


class SidecarProcesses:
    """``happened`` takes the events, ``reap`` collects ended children, ``clear`` is as in ``Sidecar.open``.

    ``ranks`` tells rank and process id of every rank that was started here last.
    """

    def __init__(self, orders: Orders, paths: RunPaths, place: AgentPlace, loop: EventLoop) -> None:
        self.happened: Callable[[SidecarSaid | SidecarEnded], None]
        self.reap: Callable[[], None]
        self.clear: Callable[[], bool]
        self.ranks: Callable[[], Mapping[int, int]]
        self._orders, self._paths, self._place = orders, paths, place
        self._loop = loop
        self._living: dict[str, Sidecar] = {}

    def ask(self, order: AskSidecar) -> None:
        if order.sidecar not in self._living:
            self.start(order.epoch, order.sidecar)
        if order.sidecar in self._living:
            self._living[order.sidecar].ask(order.number, order.body)

    def start(self, epoch: int, name: str) -> None:
        """Start it; a program that cannot be executed has ended."""
        self.end(name)
        try:
            # A run directory that cannot be written is for the pre-flight to find.
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
        here, paths = self._place, self._paths
        words = ("examine",) if name == contract.EXAMINER else ("observe", str(here.node))
        argv = (sys.executable, "-I", "-S", paths.agent, words[0], paths.run_dir, *words[1:], here.name)
        lineage = Lineage(self._orders.run_id, self._orders.run_name, paths.run_dir, epoch, 0)
        own = {**rank_environment.inherited(here.environment, self._orders), **run_environment(lineage)}
        own |= {contract.NODE_NAME_VARIABLE: here.name, contract.COMPANION_VARIABLE: name}
        return Program(argv, tuple(own.items()), "/", *descriptors, death_signal=signal.SIGKILL)

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
        """Kill it, where it lives, and all that it started; returns when they are gone, or after 3 s."""
        sidecar = self._living.pop(name, None)
        if sidecar is None:
            return
        sidecar.close()
        for words in sweep(lambda: _kin(sidecar.pid, name), self.reap, _KILL_SECONDS):
            say(f"{self._place.name}: process {words} of the {name} cannot be killed")

    def end_all(self) -> None:
        for name in list(self._living):
            self.end(name)


def _kin(pid: int, name: str) -> list[proc.Process]:
    """A sidecar and all that it started, daemons included: they stay below this agent."""
    direct = {process.pid for process in proc.descendants(pid)} | {pid}
    return [
        process
        for process in below(os.getpid())
        if process.pid in direct
        or process.session == pid
        or proc.environment(process.pid).get(contract.COMPANION_VARIABLE) == name
    ]
