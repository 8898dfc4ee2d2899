"""A coordinator process with its launcher: carries out what a coordinator's machine orders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterrun.coordinator import actions, events
from clusterrun.model import contract
from clusterrun.protocol import messages as msg
from clusterrun.runtime import machine_events

from .actors import Actor
from .kernel import Node
from .network import DOWN, UP, Closed, Link

if TYPE_CHECKING:
    from .agent_actor import AgentActor
    from .world import World


class CoordinatorActor(Actor):
    """A coordinator process with its launcher."""

    def __init__(self, world: World, number: int, hosts: list[Node], dead_since: float | None = None) -> None:
        super().__init__(world, f"coordinator{number}", hosts[0], world.make_coordinator(number, hosts))
        self.number = number
        self.dead_since = dead_since
        self.dead: int | None = None
        self.asked_at: float | None = None
        self.answered_at = float("-inf")
        self.hosts = hosts
        self.links: dict[int, Link] = {}
        self.agents: list[AgentActor] = []
        self.states: list[Any] = []
        self.exit_code: int | None = None
        self.launched = False
        self.launches = 0
        self.launcher_lives = False
        self.older: list[int] = []
        self.ended_launcher = False
        self.coming = 0
        self.told_superseded = False
        self.reports: list[Any] = []
        self.reported: dict[int, bool] = {}
        self.handed_over = False
        self.dropped: dict[int, bool] = {}
        self.job: Any = None
        self.next_job: Any = None
        self.restarts = 0
        self.cancelled = self.knows_next = False
        hosts[0].coordinators.append(self)

    def _step(self, event: Any) -> None:
        ends = isinstance(event, machine_events.SignalCame) and event.number in contract.TERMINATE_SIGNALS
        if self.asked_at is None and (ends or isinstance(event, events.CancelAsked)):
            self.asked_at = self.world.clock.now
        super()._step(event)

    def _show(self, event: Any, now: machine_events.Now) -> None:
        self.told_superseded |= isinstance(event, events.Superseded)
        super()._show(event, now)

    def woke(self) -> None:
        """Look for another coordinator that has taken over."""
        mine = max(
            (epoch for epoch, number in self.world.claims.items() if number == self.number), default=-1
        )
        newest = max(self.world.claims, default=-1)
        if 0 <= mine < newest and not self.told_superseded:
            self._step(events.Superseded(newest))

    def carry_out(self, action: Any) -> None:
        self._carry[type(action)](self, action)

    def _send(self, action: actions.Send) -> None:
        if isinstance(action.message, msg.StartRanks) and max(self.world.claims) > action.message.epoch:
            return  # the runtime looks for another's attempt before ranks start
        self.world.watch.coordinator_sent(self, action)
        link = self.links.get(action.link)
        if link is not None:
            link.send(DOWN, action.message)

    def _drop(self, action: actions.DropLink) -> None:
        link = self.links.pop(action.link, None)
        if link is not None:
            link.close(UP, "dropped by the coordinator")

    def _claim(self, action: actions.ClaimEpoch) -> None:
        if self.world.slurm is not None and action.after < 0:
            self.world.claim(self, action.after)  # nothing else is heard before
            if self.cancelled:
                self.feed(events.CancelAsked())
            return
        self.world.clock.after(self.world.disk(), self.feed, lambda: self.world.claim(self, action.after))

    def _launch(self, action: actions.LaunchAgents) -> None:
        for agent in self.tasks():
            by_link = self.machine._membership.by_link
            member = by_link.get(agent.link.number) if agent.link is not None else None
            is_present = agent.alive and member is not None and member.present
            if is_present and f"n{agent.node.index}" not in action.without:
                self.world.watch.fail(f"{self.name} launches an agent beside {agent.name}")
        if self.launcher_lives:
            self.older.append(self.launches)
        self.launched = self.launcher_lives = True
        self.launches += 1
        self.world.launch(self, action.without)

    def _end_launcher(self, action: actions.EndLauncher) -> None:
        self.ended_launcher = True
        self.world.end_launcher(self)

    def tasks(self) -> list[AgentActor]:
        """Return the agents of all running launchers."""
        return [agent for agent in self.agents if agent.launch in (self.launches, *self.older)]

    def newest_tasks(self) -> list[AgentActor]:
        """Return the agents of the newest launch."""
        return [agent for agent in self.agents if agent.launch == self.launches]

    def end_launchers(self) -> None:
        """End all launchers."""
        self.launcher_lives, self.older = False, []

    def agent_ended(self) -> None:
        """End srun if all its tasks have ended."""
        before = len(self.older)
        living = {agent.launch for agent in self.agents if agent.alive}
        self.older = [launch for launch in self.older if launch in living]
        ended = self.launcher_lives and not self.coming and self.launches not in living
        self.launcher_lives = self.launcher_lives and not ended
        if ended or (before and not self.older and not self.launcher_lives):
            event = events.LauncherEnded(0, ("all tasks ended",), True, bool(self.older), self.launches)
            self.world.clock.after(0.05, self.feed, event)

    def _save(self, action: actions.SaveState) -> None:
        self.world.watch.saved(self, action.state)
        self.states.append(action.state)
        self.world.clock.after(self.world.disk(), self.world.write_state, self, action.state)

    def _read_progress(self, action: actions.ReadProgress) -> None:
        step = self.world.program.step(self.number, action.epoch)
        if not self.world.mute():
            self.world.watch.progress_told(self, step)
            run = self.world.program.runs.get((self.number, action.epoch))
            stopping = run is not None and run.stopping and step >= 0
            self.world.clock.after(0.001, self.feed, events.Progressed(action.epoch, step, -1, stopping))

    def _report(self, action: actions.SaveReport) -> None:
        self.world.watch.reported(self, action)
        self.reports.append(action.report)

    def _resubmit(self, action: actions.Resubmit) -> None:
        self.world.clock.after(5 * self.world.process_chance.random(), self._queue, action.excluded)

    def _queue(self, excluded: tuple[str, ...]) -> None:
        """Queue a job as sbatch does. The new job may start before the answer arrives."""
        if not self.alive:
            return
        queued = self.world.succeed(self, excluded)
        answer = (
            events.Resubmitted("77") if queued else events.Resubmitted("", "the program exited with code 1")
        )
        self.world.clock.after(0.1, self.feed, answer)

    def _ask_job(self, action: actions.AskJob) -> None:
        """Let the scheduler answer within seconds. It does not know here what the user did."""
        if self.world.slurm is not None:
            self.world.slurm.ask(self)
            return
        self.world.clock.after(3 * self.world.process_chance.random(), self.feed, events.JobTold("unknown"))

    def _queue_next(self, action: actions.QueueNext) -> None:
        if self.world.slurm is not None:
            self.world.slurm.queue_next(self, action.excluded)

    def _drop_next(self, action: actions.DropNext) -> None:
        if self.world.slurm is not None:
            self.world.slurm.drop_next(self)

    def _exclude_next(self, action: actions.ExcludeNext) -> None:
        if self.world.slurm is not None:
            self.world.slurm.exclude_next(self, action.nodes)

    def _requeue(self, action: actions.Requeue) -> None:
        if self.world.slurm is not None:
            self.world.slurm.requeue(self, action.excluded)

    def _nothing(self, action: Any) -> None:
        """Ignore an action that only informs users."""

    def _finish(self, action: actions.Finish) -> None:
        self.exit_code = action.code
        self.world.watch.finished(self)
        if self.states:  # what is still to be written is waited for
            self.world.write_state(self, self.states[-1])
        self.die("its own decision")

    def arrived(self, link: Link, payload: Any) -> None:
        """Handle what arrived over a link."""
        if isinstance(payload, Closed):
            self.links.pop(link.number, None)
            self.feed(events.AgentLeft(link.number, payload.why))
        elif isinstance(payload, msg.Hello):
            self.feed(events.AgentJoined(link.number, payload))
        else:
            self.feed(events.MessageCame(link.number, payload))

    def die(self, why: str) -> None:
        if self.alive:
            self.world.log(f"{self.name} dies of {why}")
            self.alive = False
            for link in self.links.values():
                link.close(UP, "the coordinator ended")
            self.links.clear()

    def vanish(self) -> None:
        if self.alive:
            self.alive = False
            for link in self.links.values():
                link.vanish(UP)

    _carry = {
        actions.Send: _send,
        actions.DropLink: _drop,
        actions.ClaimEpoch: _claim,
        actions.LaunchAgents: _launch,
        actions.EndLauncher: _end_launcher,
        actions.SaveState: _save,
        actions.SaveReport: _report,
        actions.ReadProgress: _read_progress,
        actions.Resubmit: _resubmit,
        actions.AskJob: _ask_job,
        actions.Announce: _nothing,
        actions.LookAtLauncher: _nothing,
        actions.WriteNotice: _nothing,
        actions.DropNext: _drop_next,
        actions.QueueNext: _queue_next,
        actions.ExcludeNext: _exclude_next,
        actions.Requeue: _requeue,
        machine_events.Note: _nothing,
        actions.Finish: _finish,
    }
