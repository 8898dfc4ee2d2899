"""The sidecar processes of this node: starts them, passes lines on, ends each with all below it."""

from __future__ import annotations

import json
import os
import signal
import sys

from clusterrun import proc
from clusterrun.agent import rank_environment
from clusterrun.agent.events import SidecarGone, SidecarSpoke
from clusterrun.agent.sidecar_io import Sidecar
from clusterrun.model import contract
from clusterrun.model.frozen import frozen
from clusterrun.model.world import Lineage, run_environment
from clusterrun.runtime.exit_status import code_in_words
from clusterrun.runtime.kill_tree import below, sweep
from clusterrun.runtime.processes import NotStarted, Program, start_all
from clusterrun.runtime.run_files import open_log
from clusterrun.runtime.stderr import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from clusterrun.agent.actions import PassOn
    from clusterrun.model.orders import Orders
    from clusterrun.model.paths import RunPaths
    from clusterrun.runtime.event_loop import EventLoop
    from clusterrun.runtime.processes import ProcessEnd

_KILL_SECONDS = 3.0


@frozen
class SidecarPlace:
    """Where sidecars stand: the node's number in the allocation, its name, what it was started with."""

    node: int
    name: str
    environment: Mapping[str, str]


class SidecarProcesses:
    """``happened`` takes the events, ``reap`` collects ended children, ``clear`` is as in ``Sidecar``.

    ``ranks`` tells rank and process id of every rank that was started here last.
    """

    def __init__(self, orders: Orders, paths: RunPaths, place: SidecarPlace, loop: EventLoop) -> None:
        self.happened: Callable[[SidecarSpoke | SidecarGone], None]
        self.reap: Callable[[], None]
        self.clear: Callable[[], bool]
        self.ranks: Callable[[], Mapping[int, int]]
        self._orders, self._paths, self._place = orders, paths, place
        self._loop = loop
        self._living: dict[str, Sidecar] = {}

    def ask(self, order: PassOn) -> None:
        """Pass a question on; a sidecar that does not run is started first."""
        if order.sidecar not in self._living:
            self.start(order.epoch, order.sidecar)
        if order.sidecar in self._living:
            self._living[order.sidecar].ask(order.number, order.body)

    def start(self, epoch: int, name: str) -> None:
        """Start it; a program that cannot be executed has ended."""
        self.end(name)
        fds: list[int] = []
        try:
            fds += os.pipe2(os.O_CLOEXEC)
            fds += os.pipe2(os.O_CLOEXEC)
            fds.append(self._log(epoch, name))
            questions, ours, theirs, answers, log = fds
            pid = start_all([self._program(epoch, name, (questions, answers, log))])[0]
        except (NotStarted, OSError) as error:
            _close(fds)
            self.happened(SidecarGone(epoch, name, _in_words(error)))
            return
        _close((questions, answers, log))
        sidecar = self._living[name] = Sidecar(self._loop, pid, epoch, (ours, theirs))
        sidecar.open(
            lambda number, body: self.happened(SidecarSpoke(epoch, name, number, body)),
            lambda why: self._broke(name, pid, why),
            self.clear,
        )
        if name == contract.OBSERVER:
            sidecar.ask(0, json.dumps({"ranks": self.ranks(), "epoch": epoch}))

    def _log(self, epoch: int, name: str) -> int:
        try:
            return open_log(self._paths.attempt(epoch).sidecar_log(self._place.node, name))
        except OSError:  # a run directory that cannot be written is for the examiner to find
            return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)

    def _program(self, epoch: int, name: str, descriptors: tuple[int, int, int]) -> Program:
        here, paths = self._place, self._paths
        words = {
            contract.EXAMINER: ("examine", paths.run_dir, here.name),
            contract.OBSERVER: ("observe", paths.run_dir, str(here.node), here.name),
        }[name]
        lineage = Lineage(self._orders.run_id, self._orders.run_name, paths.run_dir, epoch, 0)
        own = {
            **rank_environment.inherited(here.environment, self._orders),
            **run_environment(lineage),
            contract.NODE_NAME_VARIABLE: here.name,
            contract.COMPANION_VARIABLE: name,
        }
        return Program(
            argv=(sys.executable, "-I", "-S", paths.agent, *words),
            environment=tuple(own.items()),
            cwd="/",
            stdin=descriptors[0],
            stdout=descriptors[1],
            stderr=descriptors[2],
            death_signal=signal.SIGKILL,
        )

    # --- ends ---

    def reaped(self, child: ProcessEnd) -> None:
        """A child of the agent that is no rank ended."""
        for name, sidecar in list(self._living.items()):
            if sidecar.pid == child.pid:
                sidecar.last_words()
                self._gone(name, child.pid, code_in_words(child.code))

    def _broke(self, name: str, pid: int, why: str) -> None:
        if name in self._living and self._living[name].pid == pid:
            self._gone(name, pid, why)

    def _gone(self, name: str, pid: int, why: str) -> None:
        sidecar = self._living.get(name)
        if sidecar is not None and sidecar.pid == pid:
            self.end(name)
            self.happened(SidecarGone(sidecar.epoch, name, f"the {name} {why}"))

    def end(self, name: str) -> None:
        """Kill it, where it lives, and all that it started; returns when they are gone, or after 3 s."""
        sidecar = self._living.pop(name, None)
        if sidecar is None:
            return
        sidecar.close()
        for words in sweep(lambda: _kin(sidecar.pid, name), self.reap, _KILL_SECONDS):
            say(f"{self._place.name}: process {words} of the {name} cannot be killed")

    def end_all(self) -> None:
        """Kill all of them."""
        for name in list(self._living):
            self.end(name)


def _kin(pid: int, name: str) -> list[proc.Process]:
    """A sidecar and what it started, wherever that has fled to: below this agent it stays."""
    direct = {process.pid for process in proc.descendants(pid)} | {pid}
    return [
        process
        for process in below(os.getpid())
        if process.pid in direct
        or process.session == pid
        or proc.environment(process.pid).get(contract.COMPANION_VARIABLE) == name
    ]


def _close(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)


def _in_words(error: NotStarted | OSError) -> str:
    return f"{error.seen}; {error.remedy}" if isinstance(error, NotStarted) else str(error.strerror)
