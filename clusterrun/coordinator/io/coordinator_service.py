"""Run the coordinator: turn system events into coordinator events, and carry out its actions."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress

from clusterrun.coordinator import actions, events
from clusterrun.coordinator.coordinator import Coordinator
from clusterrun.coordinator.io.launcher import Launch, Launcher
from clusterrun.coordinator.io.run_directory import ReportFiles, RunLog, StateWriter
from clusterrun.coordinator.io.supervisor import LIFE_SECONDS, SupervisorNews
from clusterrun.coordinator.recovery import first_claim
from clusterrun.model import contract
from clusterrun.model.frozen import Any
from clusterrun.model.overloads import REPORT_SECONDS
from clusterrun.model.paths import RunPaths
from clusterrun.protocol.messages import Ack, StartRanks
from clusterrun.protocol.server import Server
from clusterrun.runtime import machine_events, run_files
from clusterrun.runtime.event_loop import EventLoop, steady
from clusterrun.runtime.machine_driver import MachineDriver
from clusterrun.runtime.overload import OverloadMeter
from clusterrun.runtime.processes import ended_children
from clusterrun.slurm_text.job_row import own_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from clusterrun.coordinator.io.event_hook import EventHook
    from clusterrun.coordinator.io.scheduler import Scheduler
    from clusterrun.runtime.commands import CommandDone, CommandRunner

# Retry for this long to claim an attempt if the file system fails.
_CLAIM_SECONDS = 300.0
_CANCEL_LOOK = 1.0
_ASKS_LOOK = 0.5
_OVERLOAD_LOOK = REPORT_SECONDS
_SUPERSEDED_LOOK = 2.0
_REFUSALS_TOLD = 60.0
_LAUNCHER_SECONDS = 5.0
_LINKS_SECONDS = 4.0
# A file server that comes back may report for a while that the directory does not exist.
_GONE_SECONDS = 60.0


class CoordinatorService:
    """One run on this machine. ``run`` returns the exit code of the job."""

    def __init__(
        self,
        machine: Coordinator,
        paths: RunPaths,
        launch: Launch,
        listener: socket.socket,
        supervisor: SupervisorNews | None = None,
    ) -> None:
        self._loop = EventLoop()
        self._supervisor = supervisor
        self._orders, self._environment = launch.orders, launch.environment
        self._began_wall = time.time() - (steady() - supervisor.began if supervisor else 0.0)
        self._paths = paths
        self._driver = driver = MachineDriver(self._loop, machine, _now)
        happened = self._happened = driver.happened
        self._launcher = Launcher(self._loop, launch, happened)
        self._server = Server(self._loop, listener, launch.bootstrap)
        self._log = RunLog(paths)
        self._note = self._log.note
        self._server.joined = lambda link, hello: happened(events.AgentJoined(link, hello))
        self._server.heard = lambda link, message: happened(events.MessageCame(link, message))
        self._server.left = lambda link, why: happened(events.AgentLeft(link, why))
        self._state_writer = StateWriter(self._loop, paths, self._note)
        # This event precedes all others that arrived during a suspension: no action may follow from those.
        self._state_writer.superseded = lambda epoch: driver.first_of_all(events.Superseded(epoch))
        self._driver.woke = self._state_writer.doubt
        self._reports = ReportFiles(launch.orders, paths, self._note)
        self._cancel_watch = CancelWatch(self._reports, self._state_writer)
        self._slurm: Scheduler | None = None
        self._looks: CommandRunner | None = None
        self._hooks: EventHook | None = None
        self._overload = OverloadMeter()
        self._reapers = [self._launcher.reaped]
        self._refusals_told = 0

    def _send(self, action: actions.Send) -> None:
        # Another coordinator may have taken over while this process was suspended.
        if type(action.message) is StartRanks and self._state_writer.taken_over(action.message.epoch):
            return
        if type(action.message) is Ack and not self._state_writer.knows():
            return  # an acknowledgement would let ranks live that another coordinator may count as dead
        self._server.send(action.link, action.message)

    def run(self) -> int:
        self._happened(machine_events.Tick())
        self._loop.catch((*contract.OUTSIDE_SIGNALS, signal.SIGCHLD), self._signalled)
        # The job is over for the scheduler if its first process ends.
        if self._supervisor is not None:
            if self._orders.max_restarts or self._orders.survival.requeue:
                self._supervisor.allow_restart()
            self._loop.every(LIFE_SECONDS, self._supervisor.lives)
            descriptor = self._supervisor.supervisor_fd

            def ended(mask: int) -> None:
                self._loop.forget(descriptor)
                self._happened(events.SupervisorGone())

            self._loop.watch(descriptor, ended)
        self._loop.every(_CANCEL_LOOK, self._look_for_cancel)
        self._loop.every(_OVERLOAD_LOOK, self._look_for_overload)
        if self._orders.watch.on:
            self._loop.every(_ASKS_LOOK, self._look_for_asks)
        self._loop.every(_SUPERSEDED_LOOK, self._state_writer.check_takeover)
        self._loop.every(_REFUSALS_TOLD, self._tell_refusals)
        for action in self._driver.actions():
            _CARRY_OUT.get(type(action), CoordinatorService._to_scheduler)(self, action)
        self._state_writer.finish(self._cancel_watch.is_run_deleted)
        if self._slurm:
            self._slurm.finish()
        if self._hooks:
            self._hooks.finish()
        self._close()
        return self._driver.exit_code or 0

    def _to_scheduler(self, action: Any) -> None:
        if isinstance(action, actions.AskJob):
            self._look_for_cancel()  # the client writes that file before it calls the scheduler
        if self._slurm is None:  # load it when it is first needed, which is after the launch
            from clusterrun.coordinator.io.scheduler import Scheduler
            from clusterrun.coordinator.slurm_job import SlurmJob
            from clusterrun.slurm_text.job_row import job_of

            job = SlurmJob(*job_of(self._environment), self._began_wall)
            note, happened = self._note, self._happened
            self._slurm = Scheduler(self._commands(), job, self._orders, self._reports, note, happened)
        self._slurm.carry_out(action)

    def _commands(self) -> CommandRunner:
        from clusterrun.runtime.commands import CommandRunner

        runner = CommandRunner(self._loop, self._environment)
        self._reapers.append(runner.reaped)
        return runner

    def _announce(self, action: actions.Announce) -> None:
        if self._hooks is None:
            from clusterrun.coordinator.io.event_hook import EventHook

            self._hooks = EventHook(self._loop, self._orders, self._paths, self._environment, self._note)
            self._reapers.append(self._hooks.reaped)
        self._hooks.announce(action)

    def _close(self) -> None:
        self._server.close()
        until = steady() + _LAUNCHER_SECONDS
        if self._launcher.alive:
            self._launcher.end()
        while self._launcher.alive and steady() < until + _LAUNCHER_SECONDS:
            if steady() > until:
                self._launcher.kill()
            self._loop.wait(steady() + 0.1)
        self._tell_refusals()
        self._log.close()

    def _signalled(self, number: int) -> None:
        if number in contract.TERMINATE_SIGNALS:
            self._look_for_cancel()  # the file may hold the ranks' time limit, and was written first
        if number != signal.SIGCHLD:
            self._happened(machine_events.SignalCame(number))
            return
        for child in ended_children():
            for reaped in self._reapers:
                reaped(child)

    def _look_at_launcher(self, action: actions.LookAtLauncher) -> None:
        question = self._launcher.links_question(action.names)
        if not question:
            return
        self._looks = self._looks or self._commands()

        def on_links(answer: CommandDone) -> None:
            if not answer.why:  # without an answer no node is blamed
                from clusterrun.coordinator.io.launcher_links import SETTLED

                names = tuple(line for line in answer.lines if line not in ("", SETTLED))
                self._happened(events.LauncherReached(names, SETTLED in answer.lines))

        self._looks.run(question, _LINKS_SECONDS, on_links)

    def _look_for_asks(self) -> None:
        for name, body in self._reports.asks():
            self._happened(events.ClientAsked(name, body))

    def _look_for_overload(self) -> None:
        if seconds := self._overload.seconds():
            self._happened(events.Overloaded(seconds))

    def _look_for_cancel(self) -> None:
        request = self._cancel_watch.look()
        if request is None:
            return
        if self._cancel_watch.is_run_deleted:
            self._note("the run directory was deleted, and with it the run: ending all ranks")
        self._happened(request)

    def _tell_refusals(self) -> None:
        if fresh := self._server.refused - self._refusals_told:
            self._refusals_told = self._server.refused
            self._note(f"{fresh} connections were refused, the last one: {self._server.last_refusal}")

    def _claim(self, action: actions.ClaimEpoch, until: float = 0.0) -> None:
        try:
            highest = run_files.highest_attempt(self._paths)
            state = run_files.read_state(self._paths) if action.after < 0 <= highest else None
            epoch = self._claimed(action.after, highest)
        except OSError as error:
            # Retry for ``_CLAIM_SECONDS`` if the file system fails. Then report ``ClaimFailed``.
            why = f"no attempt can be begun: {run_files.in_words(error)}"
            if (until and steady() >= until) or not run_files.may_pass(error):
                self._happened(events.ClaimFailed(why))
            else:
                if not until:
                    self._note(f"{why}; it is tried again for {_CLAIM_SECONDS:g} s")
                until = until or steady() + _CLAIM_SECONDS
                self._loop.after(run_files.RETRY_SECONDS, lambda: self._claim(action, until))
            return
        if epoch < 0:
            self._happened(events.Superseded(action.after + 1))
            return
        self._state_writer.epoch = epoch
        self._state_writer.keep_room()
        self._log.begin(epoch)
        if action.after >= 0:
            self._happened(events.EpochClaimed(epoch))
            return
        with suppress(OSError):
            state = run_files.read_state(self._paths) or state  # the previous coordinator may have written it
        self._reports.arrive(own_id(self._environment))
        dead = (self._supervisor.dead_since, self._supervisor.dead) if self._supervisor else (None, None)
        # This event precedes later ones: an end that comes first would erase the attempts from the record.
        self._driver.first_of_all(first_claim(epoch, state, *dead))

    def _claimed(self, after: int, highest: int) -> int:
        """Claim an attempt and return its number; -1 if another coordinator holds ``after + 1``."""
        epoch = after + 1 if after >= 0 else highest + 1
        while not run_files.claim_attempt(self._paths, epoch):
            if after >= 0:
                return -1
            epoch += 1
        return epoch


class CancelWatch:
    """The file of `cancel` and the run directory, as they were at the last look."""

    def __init__(self, reports: ReportFiles, state_writer: StateWriter) -> None:
        self._reports, self._state_writer = reports, state_writer
        self._mark: tuple[int, int] | None = None  # of the file of `cancel`
        self._gone_since: float | None = None  # since when the run directory is missing
        self._has_reported = False

    def look(self) -> events.CancelAsked | None:
        """Return a new request to end the run. The deletion of the run directory is reported once."""
        before, mark = self._mark, self._reports.cancel_mark()
        self._mark = mark or before
        if mark is not None and mark != before:
            return events.CancelAsked(self._reports.cancel_kill_wait())
        if self._mark or self._has_reported:
            return None
        missing = not self._state_writer.has_a_place()
        self._gone_since = (self._gone_since or steady()) if missing else None
        self._has_reported = self.is_run_deleted
        return events.CancelAsked() if self._has_reported else None

    @property
    def is_run_deleted(self) -> bool:
        """Return whether the run directory has been missing for so long that it will not come back."""
        return self._gone_since is not None and steady() - self._gone_since >= _GONE_SECONDS


def _now() -> machine_events.Now:
    return machine_events.Now(steady(), time.time())


# All other actions go to the scheduler.
_CARRY_OUT: dict[type, Callable[[CoordinatorService, Any], object]] = {
    actions.Send: CoordinatorService._send,
    actions.DropLink: lambda self, action: self._server.drop(action.link),
    actions.ClaimEpoch: CoordinatorService._claim,
    actions.LaunchAgents: lambda self, action: self._launcher.start(action.without),
    actions.EndLauncher: lambda self, action: self._launcher.end(),
    actions.LookAtLauncher: CoordinatorService._look_at_launcher,
    actions.SaveState: lambda self, action: self._state_writer.save(action.state),
    actions.SaveReport: lambda self, action: self._reports.report(action),
    actions.SaveBeside: lambda self, action: self._reports.beside(action),
    actions.ReadProgress: lambda self, action: self._happened(self._reports.progress(action.epoch)),
    actions.WriteNotice: lambda self, action: self._reports.notice(action),
    actions.Announce: CoordinatorService._announce,
    machine_events.Note: lambda self, action: self._note(action.text),
    actions.Finish: lambda self, action: self._driver.end(action.code),
}
