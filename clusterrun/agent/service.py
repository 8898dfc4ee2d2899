"""Run the agent: feed events to its state machine and carry out the actions."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress

from clusterrun import proc
from clusterrun.agent import actions, events
from clusterrun.agent.agent import Agent
from clusterrun.agent.rank_processes import RankProcesses
from clusterrun.agent.sidecar_processes import SidecarProcesses
from clusterrun.model import contract
from clusterrun.model.frozen import Any, frozen
from clusterrun.protocol import messages
from clusterrun.protocol.client import Joined
from clusterrun.protocol.codec import Encoder, WireError
from clusterrun.protocol.connection import Connection
from clusterrun.runtime import machine_events
from clusterrun.runtime.event_loop import EventLoop, steady
from clusterrun.runtime.kill_tree import below, send
from clusterrun.runtime.machine_driver import MachineDriver
from clusterrun.runtime.network import held_port
from clusterrun.runtime.overload import OverloadMeter
from clusterrun.runtime.run_files import RETRY_SECONDS
from clusterrun.runtime.stderr import say

# Seconds between looks at the size of the ranks' logs: short for the first seconds after a start.
_EAGER_SECONDS = 10.0
_EAGER_LOOK = 0.2
_CALM_LOOK = 1.0
# Limit for sending the last messages.
_FAREWELL_SECONDS = 1.0
# Opening the ranks' logs is retried for this time if the file system fails.
_LOG_SECONDS = 30.0
# Seconds between looks: whether the shim is stopped, and whether leftover processes have ended.
_SHIM_LOOK = 2.0
_LEFTOVER_LOOK = 0.02
_LEFTOVER_LONGEST_LOOK = 0.5
# After this time job.out names the processes that a node waits for.
_LEFTOVER_NOTE_SECONDS = 2.0
# Seconds between looks while the shim is stopped.
_STOPPED_LOOK = 0.2
# Heartbeats that estimate the coordinator's time, and the round trip of its first message in seconds.
_SAMPLES = 8
_UNKNOWN_ROUND_TRIP = 10.0


@frozen
class ShimLink:
    """The agent's ends of the pipes to its shim."""

    lease: int  # the shim reads lines from it
    ended: int  # readable when the shim has ended

    def tell(self, line: str) -> None:
        """Send a line to the shim. A shim that no longer reads must not block the agent."""
        with suppress(BlockingIOError, BrokenPipeError):
            os.write(self.lease, line.encode() + b"\n")


class RemoteClock:
    """The coordinator's time by heartbeats. The shortest recent round trip bounds the error best."""

    def __init__(self, wall: float, steady: float) -> None:
        self._samples = [(_UNKNOWN_ROUND_TRIP, wall - steady)]
        self._sent: dict[int, float] = {}

    def asked(self, beat: int, steady: float) -> None:
        self._sent[beat] = steady

    def answered(self, beat: int, wall: float, steady: float) -> None:
        sent = self._sent.pop(beat, None)
        if sent is None:
            return
        for older in [number for number in self._sent if number < beat]:
            del self._sent[older]
        round_trip = steady - sent
        self._samples.append((round_trip, wall + round_trip / 2 - steady))
        del self._samples[:-_SAMPLES]

    def wall(self, steady: float) -> float:
        """Return the coordinator's time now, in seconds since the epoch."""
        return steady + min(self._samples)[1]


class AgentService:
    """One agent. ``got_end_signal``: it got TERM or INT."""

    def __init__(
        self,
        loop: EventLoop,
        joined: Joined,
        machine: Agent,
        rank_processes: RankProcesses,
        sidecars: SidecarProcesses,
        shim: ShimLink,
    ) -> None:
        self._loop, self._machine, self._rank_processes = loop, machine, rank_processes
        self._sidecars = sidecars
        self._end = joined.end
        self._early = joined.early
        self._link = Connection(loop, joined.connection)
        self._clock = RemoteClock(joined.end.wall, steady())
        self._encoder = Encoder()
        self._shim = shim
        self.got_end_signal = False
        self._port: socket.socket | None = None
        self._spawned_at = 0.0
        self._awaited: actions.AwaitLeftovers | None = None
        self._halted: dict[int, proc.Process] = {}
        self._overload = OverloadMeter()
        self._driver = MachineDriver(loop, machine, self._now)
        rank_processes.stranger = sidecars.reaped
        rank_processes.changed = self._reap
        rank_processes.wanted = lambda: machine.wants_ranks
        sidecars.happened = self._driver.happened
        sidecars.reap = self._reap
        sidecars.clear = self._link.drained
        sidecars.ranks = lambda: rank_processes.living

    def run(self) -> int:
        self._loop.catch((*contract.OUTSIDE_SIGNALS, signal.SIGCHLD), self._signalled)
        self._loop.watch(self._shim.ended, lambda mask: self._on_shim_ended())
        self._loop.every(_SHIM_LOOK, self._stop_with_shim)
        self._link.open(self._received, self._disconnected)
        self._driver.happened(events.Welcomed())
        self._driver.happened(*map(events.Told, self._early))
        for action in self._driver.actions():
            _CARRY_OUT[type(action)](self, action)
        self._sidecars.end_all()
        until = steady() + _FAREWELL_SECONDS
        while not self._link.drained() and steady() < until:
            self._loop.wait(until)
        self._link.close()
        return self._driver.exit_code or 0

    def _now(self) -> machine_events.Now:
        now = steady()
        return machine_events.Now(now, self._clock.wall(now))

    def _received(self, data: bytes) -> None:
        try:
            received = self._end.receive(data)
        except WireError as error:
            self._link.close()
            self._disconnected(error.seen)
            return
        for message in received:
            if isinstance(message, messages.Ack):
                self._clock.answered(message.beat, message.wall, steady())
            self._driver.happened(events.Told(message))

    def _disconnected(self, why: str) -> None:
        self._link.close()
        self._driver.happened(events.Disconnected(why))

    def _signalled(self, number: int) -> None:
        if number == signal.SIGCHLD:
            self._reap()
        else:
            self.got_end_signal = self.got_end_signal or number in contract.TERMINATE_SIGNALS
            self._driver.happened(machine_events.SignalCame(number))

    def _reap(self) -> None:
        self._driver.happened(*self._rank_processes.reap(self._now().wall))

    def _on_shim_ended(self) -> None:
        self._loop.forget(self._shim.ended)
        self._rank_processes.whole_lineage = False
        self._driver.happened(events.ShimLost())

    def _stop_with_shim(self) -> None:
        """Stop if the shim is stopped: with proctrack/linuxproc and pgid Slurm suspends only the shim."""
        while (shim := proc.find(os.getppid())) and shim.stopped:
            for process in below(os.getpid()):
                if not process.stopped:
                    send(process, signal.SIGSTOP)
                    self._halted[process.pid] = process
            time.sleep(_STOPPED_LOOK)

    def _renew(self, action: actions.RenewLease) -> None:
        self._shim.tell(f"until {action.until!r}")
        for process in self._halted.values():
            send(process, signal.SIGCONT)
        self._halted.clear()

    def _tell(self, action: actions.Tell) -> None:
        if isinstance(action.message, messages.Beat):
            self._clock.asked(action.message.number, steady())
            if seconds := self._overload.seconds():
                self._link.send(self._end.seal(self._encoder.body(messages.NodeOverloaded(seconds))))
        self._link.send(self._end.seal(self._encoder.body(action.message)))

    def _hold_port(self, action: messages.ReservePort) -> None:
        try:
            self._port = held_port()
            self._driver.happened(messages.PortReserved(action.epoch, self._port.getsockname()[1]))
        except OSError as error:
            self._driver.happened(messages.PortReserved(action.epoch, 0, error.strerror or str(error)))

    def _release_port(self) -> None:
        if self._port:
            self._port.close()
            self._port = None

    def _claim_mark(self) -> None:
        # Only from now on this agent owns all processes with the run's mark. A second agent that is rejected
        # on this node must not have the first agent's ranks swept.
        self._shim.tell(f"run {self._rank_processes.run_id}")

    def _spawn(self, action: messages.StartRanks) -> None:
        self._spawned_at = steady()
        self._claim_mark()
        if self._rank_processes.per_node:
            self._release_port()  # launchers check that it is free, or bind it
        self._start_ranks(action)

    def _start_ranks(self, action: messages.StartRanks) -> None:
        in_time = steady() < self._spawned_at + _LOG_SECONDS
        started = self._rank_processes.spawn(action, again=in_time and self._machine.wants_ranks)
        if started is None:
            self._loop.after(RETRY_SECONDS, lambda: self._start_ranks(action))
            return
        self._driver.happened(*started)
        began = self._spawned_at

        def look() -> None:
            # A newer start has its own watch.
            if self._spawned_at == began and self._rank_processes.note_growth(self._now().wall):
                self._loop.after(_EAGER_LOOK if steady() - began < _EAGER_SECONDS else _CALM_LOOK, look)

        look()

    def _pass_on(self, action: messages.AskSidecar) -> None:
        self._claim_mark()
        self._sidecars.ask(action)

    def _await_leftovers(self, action: actions.AwaitLeftovers) -> None:
        self._sidecars.end_all()
        self._awaited = action
        began, pause, noted = steady(), _LEFTOVER_LOOK, False

        def look() -> None:
            nonlocal pause, noted
            if self._awaited is not action:
                return
            leftovers = self._rank_processes.leftovers(action.filters_only)
            if not leftovers:
                self._awaited = None
                self._driver.happened(events.LeftoversEnded(action.epoch))
                return
            if not noted and steady() > began + _LEFTOVER_NOTE_SECONDS:
                noted = True
                names = ", ".join(f"{process.name} ({process.pid})" for process in leftovers[:5])
                node = self._rank_processes.node_name
                say(f"{node}: all ranks have ended; these processes may finish: {names}")
            self._loop.after(pause, look)
            pause = min(2 * pause, _LEFTOVER_LONGEST_LOOK)

        look()

    def _end_leftovers(self, action: actions.EndLeftovers) -> None:
        leftovers = self._rank_processes.leftovers()
        others = [process for process in leftovers if not proc.reads_pipe(process.pid)]
        self._rank_processes.cut = tuple(f"{process.name} ({process.pid})" for process in others[:5])
        for process in others:
            if process.pid not in self._rank_processes.termed:
                send(process, signal.SIGTERM)
                send(process, signal.SIGCONT)

    def _sweep(self, action: actions.Sweep) -> None:
        self._awaited = None
        self._sidecars.end_all()
        self._driver.happened(*self._rank_processes.sweep(action.epoch, self._now().wall))


_CARRY_OUT: dict[type, Callable[[AgentService, Any], object]] = {
    actions.Tell: AgentService._tell,
    messages.ReservePort: AgentService._hold_port,
    actions.ReleasePort: lambda self, action: self._release_port(),
    messages.StartRanks: AgentService._spawn,
    messages.AskSidecar: AgentService._pass_on,
    actions.StartSidecar: lambda self, action: self._sidecars.start(action.epoch, action.sidecar),
    messages.EndSidecar: lambda self, action: self._sidecars.end(action.sidecar),
    messages.SignalRanks: lambda self, action: self._driver.happened(self._rank_processes.signal(action)),
    actions.AwaitLeftovers: AgentService._await_leftovers,
    actions.EndLeftovers: AgentService._end_leftovers,
    actions.TerminateRanks: lambda self, action: self._rank_processes.terminate(action.only_unreached),
    actions.Sweep: AgentService._sweep,
    actions.RenewLease: AgentService._renew,
    machine_events.Note: lambda self, action: say(action.text),
    actions.Exit: lambda self, action: self._driver.end(action.code),
}
