"""The scheduler as the jobs of a run meet it: starts, ends, answers or does not; knows no machine."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

from clusterrun.coordinator import events
from clusterrun.coordinator.recovery import is_over
from clusterrun.model import contract
from clusterrun.runtime import machine_events

from .job_ends import JobWatch
from .job_plan import Ending, JobPlan
from .kernel import Node

if TYPE_CHECKING:
    from .coordinator_actor import CoordinatorActor
    from .world import World

WAITING, RUNNING, OVER = "waiting", "running", "over"
KILL_WAIT = 30.0
ANSWER_SECONDS = 3.0
NOTICED_SECONDS = (60.0, 200.0)
"""After which a scheduler notices that a node is gone."""
AWAY = "the program exited with code 1: Unable to contact slurm controller (connect failure)"
REFUSED = "the program exited with code 1: Requested operation is presently disabled"


class Job:
    """A job; ``restarts`` counts how often it began anew, and only its newest beginning is looked at."""

    def __init__(self, number: int, after: Job | None, excluded: tuple[str, ...]) -> None:
        self.number = number
        self.after = after
        self.excluded = excluded
        self.state = WAITING
        self.restarts = -1
        self.clear()

    def is_over(self, now: float) -> bool:
        """Return whether the job ended long enough ago for the last message of its coordinator."""
        return self.state == OVER and now >= self.over_at + 1.0

    def clear(self) -> None:
        """Reset the job to its state before the start."""
        self.hosts: list[Node] = []
        self.coordinators: list[CoordinatorActor] = []
        self.why = ""
        self.killing = self.again = self.kept = False
        self.end_at, self.over_at = float("inf"), 0.0
        self.lost_at: float | None = None


class Slurm:
    """The scheduler. At most one job of the run runs at a time."""

    def __init__(self, world: World, plan: JobPlan) -> None:
        self.world, self.plan = world, plan
        self.chance = world.clock.random("slurm")
        self.watch = JobWatch(world, self)
        self.jobs = [Job(7, None, ())]
        self.running = self.jobs[0]
        self._cancelled_file = False

    # --- jobs begin ---

    def begin(self) -> None:
        """Start the first job, and schedule the planned ends."""
        self._start(self.running)
        for ending in self.plan.endings:
            self.world.clock.at(ending.at, self._when_back, self._strike, ending)

    def quiet(self) -> bool:
        """Return whether no job runs and no waiting job can start."""
        return all(job.state == OVER or (job.state == WAITING and not self._nodes(job)) for job in self.jobs)

    def _nodes(self, job: Job) -> list[Node]:
        well = [node for node in self.world.nodes if not node.dead and not node.processes and not node.frozen]
        fit = [node for node in well if f"n{node.index}" not in job.excluded]
        return fit[: self.world.scenario.allocated] if len(fit) >= self.world.scenario.allocated else []

    def _await_start(self, job: Job) -> None:
        if job.state != WAITING:
            return
        hosts = self._nodes(job)
        if self._is_away() or not hosts or (job.after and not job.after.is_over(self.world.clock.now)):
            self.world.clock.after(2.0, self._await_start, job)
        else:
            self._start(job)

    def _start(self, job: Job) -> None:
        job.clear()
        job.state, self.running = RUNNING, job
        job.restarts += 1
        job.hosts = self._nodes(job)
        self.world.log(f"job {job.number} begins for the {job.restarts + 1}. time")
        if is_over(self.world.state_file, str(job.number)):
            self.watch.began_in_vain(job)
            job.state = OVER
            return
        job.end_at = self.world.clock.now + self.plan.seconds
        early = self.plan.survival.notice + self.chance.uniform(0, 60)
        if self.chance.random() < 0.8:
            self._later(max(0.1, self.plan.seconds - early), job, self._notice)
        self._later(self.plan.seconds, job, lambda job: self._end(job, Ending(0, "time-limit")))
        self.watch.begins(job)
        self.world.submit(job.hosts)
        self._later(1.0, job, self._look)

    def adopt(self, coordinator: CoordinatorActor, dead: int | None) -> bool:
        """Start a coordinator in the running job. Return False if that job is over."""
        job = self.running
        if dead is not None and (job.state != RUNNING or dead not in [c.number for c in job.coordinators]):
            return False
        coordinator.job, coordinator.restarts = job, job.restarts
        job.coordinators.append(coordinator)
        job.kept = False
        if job.why:  # its supervisor passes on what came meanwhile
            self.world.clock.after(0.01, coordinator.feed, machine_events.SignalCame(signal.SIGTERM))
        if self._cancelled_file:
            coordinator.cancelled = True
        return True

    def _later(self, seconds: float, job: Job, what: Any) -> None:
        """Do ``what`` in ``seconds``, unless the job restarted meanwhile or the controller is away."""
        restarts = job.restarts

        def then() -> None:
            if job.restarts == restarts and job.state == RUNNING:
                what(job)

        self.world.clock.after(seconds, self._when_back, then)

    def _is_away(self) -> bool:
        return self.world.clock.now < self.world.watch.controller_away_until

    def _when_back(self, what: Any, *args: Any) -> None:
        if self._is_away():
            self.world.clock.after(1.0, self._when_back, what, *args)
        else:
            what(*args)

    # --- jobs end ---

    def _notice(self, job: Job) -> None:
        for coordinator in job.coordinators:
            coordinator.feed(machine_events.SignalCame(contract.NOTICE_SIGNAL))

    def _strike(self, ending: Ending) -> None:
        self.world.log(f"the job is to end: {ending}")
        if self.running.state == RUNNING:
            self._end(self.running, ending)

    def cancel_by_file(self) -> None:
        """Write the owner's request to cancel into the run directory.

        Every coordinator of the run reads it.
        """
        self._cancelled_file = True
        self.watch.cancelled("by its file")

    def _end(self, job: Job, ending: Ending) -> None:
        if job.why:
            return
        job.why, job.again = ending.why, ending.again
        self.world.log(f"job {job.number} is being ended: {ending.why}")
        if ending.grace:
            job.end_at = self.world.clock.now + ending.grace
            self._later(ending.grace, job, self._kill_soon)
            self._term(job)
        else:
            self._kill_soon(job)

    def _kill_soon(self, job: Job) -> None:
        job.killing = True
        self._term(job)
        self._later(KILL_WAIT, job, self._over)

    def _term(self, job: Job) -> None:
        for coordinator in job.coordinators:
            self.world.clock.after(
                self.chance.random(), coordinator.feed, machine_events.SignalCame(signal.SIGTERM)
            )
            for agent in coordinator.tasks():
                self.world.clock.after(
                    self.chance.random(), agent.feed, machine_events.SignalCame(signal.SIGTERM)
                )

    def _look(self, job: Job) -> None:
        """End the job with its batch step. The end of a node is noticed late."""
        now = self.world.clock.now
        if job.hosts[0].dead:
            job.lost_at = now + self.chance.uniform(*NOTICED_SECONDS) if job.lost_at is None else job.lost_at
            if now >= job.lost_at:  # agents that are left give the job back
                job.again = job.again or self.plan.survival.requeue == "requeue"
                self._over(job)
                return
        elif not any(coordinator.alive for coordinator in job.coordinators) and not job.kept:
            self._over(job)
            return
        self._later(1.0, job, self._look)

    def _over(self, job: Job) -> None:
        self.world.log(f"job {job.number} is over: {job.why}, again: {job.again}")
        for coordinator in job.coordinators:
            coordinator.coming = 0
            coordinator.end_launchers()
            coordinator.die("the end of its job")
            for agent in list(coordinator.agents):
                if agent.alive or agent.node.processes:
                    agent.node.later(0.0, agent.slurm_kills)
        job.over_at = self.world.clock.now
        job.state = WAITING if job.again else OVER
        if job.again:
            self.world.clock.after(self.chance.uniform(1, 10), self._await_start, job)

    # --- what coordinators want of it ---

    def ask(self, coordinator: CoordinatorActor) -> None:
        """Answer why the job ends, and when."""
        clock, seconds = self.world.clock, self.chance.uniform(0.02, ANSWER_SECONDS)
        if self._is_away() or self.chance.random() < self.plan.mute:
            clock.after(ANSWER_SECONDS, self._say_nothing, coordinator)
            return
        seconds += self.chance.uniform(0, 5) if self.chance.random() < 0.05 else 0.0
        clock.after(seconds / 2, self._answer, coordinator, seconds / 2)

    def _say_nothing(self, coordinator: CoordinatorActor) -> None:
        coordinator.answered_at = self.world.clock.now
        coordinator.feed(events.JobTold("unknown"))

    def _answer(self, coordinator: CoordinatorActor, seconds: float) -> None:
        event = self._of(coordinator.job, coordinator.restarts)
        asked_at = self.world.clock.now - seconds

        def deliver() -> None:
            self.watch.told(coordinator, event, asked_at)
            coordinator.feed(event)

        self.world.clock.after(seconds, deliver)

    def _of(self, job: Job, restarts: int) -> events.JobTold:
        end_at = float(int(job.end_at)) + self.world.wall
        if job.restarts != restarts or job.again:
            return events.JobTold("preemption" if job.why == "preemption" else "requeue", requeued=True)
        if job.killing or job.state == OVER:
            return events.JobTold(job.why or "cancelled")
        return events.JobTold(job.why, end_at)

    def queue_next(self, coordinator: CoordinatorActor, excluded: tuple[str, ...]) -> None:
        """Queue the next job as sbatch does. The job may exist although no answer arrives."""
        seconds = self.chance.uniform(0.1, 4)
        lost = self.chance.random() < 0.5

        def submit() -> None:
            if not coordinator.alive and lost:
                return
            event = self._sbatch(coordinator, excluded)

            def deliver() -> None:
                coordinator.knows_next = coordinator.alive and bool(event.job_id)
                coordinator.feed(event)

            self.world.clock.after(seconds / 2, deliver)

        self.world.clock.after(seconds / 2, submit)

    def _sbatch(self, coordinator: CoordinatorActor, excluded: tuple[str, ...]) -> events.NextQueued:
        if self._is_away() or self.chance.random() < self.plan.refuses:
            return events.NextQueued("", AWAY if self._is_away() else REFUSED)
        waiting = [j for j in self.jobs if j.state == WAITING and j.after is coordinator.job]
        job = waiting[0] if waiting else Job(self.jobs[-1].number + 1, coordinator.job, excluded)
        if not waiting:
            self.jobs.append(job)
            self.world.clock.after(1.0, self._await_start, job)
        coordinator.next_job = job
        return events.NextQueued(str(job.number))

    def drop_next(self, coordinator: CoordinatorActor) -> None:
        """Cancel the waiting job."""
        job = coordinator.next_job
        works = not self._is_away() and self.chance.random() < 0.9

        def cancel() -> None:
            if works and job is not None and job.state == WAITING:
                job.state = OVER

        self.watch.dropped(coordinator, works)
        self.world.clock.after(self.chance.uniform(0.05, 0.9), cancel)

    def exclude_next(self, coordinator: CoordinatorActor, nodes: tuple[str, ...]) -> None:
        """Exclude these nodes from the waiting job."""
        if coordinator.next_job is not None:
            coordinator.next_job.excluded = nodes

    def requeue(self, coordinator: CoordinatorActor, excluded: tuple[str, ...]) -> None:
        """End the running job, which then starts again."""
        seconds = self.chance.uniform(0.1, 3)
        job = coordinator.job
        why = AWAY if self._is_away() else REFUSED if self.chance.random() < self.plan.refuses else ""

        def accept() -> None:
            if not why and job.state == RUNNING and coordinator.alive:
                job.why, job.again, job.excluded = "requeue", True, excluded
                self._term(job)
                self._later(KILL_WAIT, job, self._over)
            self.world.clock.after(seconds / 2, coordinator.feed, events.HandedOver(why))

        self.world.clock.after(seconds / 2, accept)
