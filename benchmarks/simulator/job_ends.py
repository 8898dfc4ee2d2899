"""Check runs over several jobs: which job continues, how often, and when none may."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterrun.coordinator import events
from clusterrun.model import contract
from clusterrun.model.states import State

if TYPE_CHECKING:
    from .coordinator_actor import CoordinatorActor
    from .kernel import Process
    from .slurm import Job, Slurm
    from .world import World

# Faults that may keep a coordinator from reporting its end before the scheduler kills its job.
LOSING = (
    "kill coordinator",
    "freeze coordinator",
    "freeze node",
    "freeze agent",
    "power off",
    "slow sweep",
    "controller away",
)
# The same in a job that is killed within 30 s. The lease of a lost agent lasts as long, and a coordinator
# that is killed while it releases the job has no successor before the end.
TOO_LATE = (
    *("cut link", "cut node", "swizzle", "lasting cut", "late answer", "reset link"),
    *("kill agent", "kill shim", "kill launcher", "supervisor"),
)


class JobWatch:
    """Follows the jobs of a run, and reports violations to the world's watch."""

    def __init__(self, world: World, slurm: Slurm) -> None:
        self._world, self._slurm = world, slurm
        self.goings_on: dict[str, int] = {"time-limit": 0, "preemption": 0}
        self.trained: dict[tuple[int, int], bool] = {}
        self._last_outcome = ""
        self._cancelled: tuple[int, int] | None = None
        self._dropped_in_vain = False
        world.watch.struck.append("jobs")

    def _now(self) -> tuple[int, int]:
        job = self._slurm.running
        return job.number, job.restarts

    def begins(self, job: Job) -> None:
        """Note the start of a job, or its restart."""
        state = self._world.state_file
        pending = state is not None and state.state is State.PENDING and state.attempts
        self._last_outcome = state.attempts[-1].outcome if state is not None and pending else ""

    def rank_started(self, process: Process) -> None:
        """Check that the rank belongs to the running job."""
        fail, now = self._world.watch.fail, self._now()
        job = process.agent.coordinator.job
        state = self._world.state_file
        woken = self._world.clock.now <= process.node.thawed_at + contract.KILL_SECONDS
        if not woken and (job is not self._slurm.running or job.state != "running"):
            fail(f"rank {process.rank} of job {job.number} starts when that is {job.state}")
        # A run that ended before its first attempt does not say in which job.
        ended = state.attempts[-1:] if state is not None and state.state.ended else ()
        if state is not None and any(attempt.job_id != str(job.number) for attempt in ended):
            fail(f"rank {process.rank} starts in job {job.number} after the run has ended {state.state}")
        if self._cancelled is not None and now != self._cancelled:
            fail(f"rank {process.rank} starts in job {now} after a cancel in job {self._cancelled}")
        if not self.trained.setdefault(now, False):
            self.trained[now] = True
            self._goes_on()

    def _goes_on(self) -> None:
        causes = {"TIMEOUT": "time-limit", "PREEMPTED": "preemption"}
        cause = causes.get(self._last_outcome, "")
        if not cause:
            return
        self.goings_on[cause] += 1
        survival = self._slurm.plan.survival
        most = survival.max_time_limits if cause == "time-limit" else survival.max_preemptions
        if self.goings_on[cause] > most:
            self._world.watch.fail(f"the run goes on after {self.goings_on[cause]} times {cause}, not {most}")

    def cancelled(self, how: str) -> None:
        """Note that no later job may train."""
        if self._cancelled is None and self._slurm.running.state == "running":
            self._world.log(f"cancelled {how}")
            self._cancelled = self._now()

    def told(self, coordinator: CoordinatorActor, event: events.JobTold, question_at: float) -> None:
        """Note the answer to a coordinator that asked why it must end.

        A late answer decides nothing.
        """
        runs = coordinator.alive and not coordinator.frozen and not coordinator.node.frozen
        undecided = coordinator.asked_at is not None and runs
        decided = coordinator.asked_at is not None and coordinator.answered_at >= coordinator.asked_at
        coordinator.answered_at = self._world.clock.now
        last = coordinator.states[-1].state if coordinator.states else State.RUNNING
        within = coordinator.asked_at is not None and self._world.clock.now <= question_at + 3.4
        if event.why == "cancelled" and undecided and not decided and within and last is State.RUNNING:
            self.cancelled("through the scheduler")

    def dropped(self, coordinator: CoordinatorActor, works: bool) -> None:
        """Note that a coordinator cancels its waiting job. ``works``: the scheduler does it."""
        if not works:
            self._dropped_in_vain = True
            self._cancelled = None if self._cancelled else self._cancelled

    def began_in_vain(self, job: Job) -> None:
        """Check a job that starts after the end of its run. It should have been cancelled."""
        last = job.after.coordinators[-1] if job.after else None
        # A job that is queued while the run ends detects that by itself.
        can_know = last is not None and last.exit_code is not None and last.knows_next
        if can_know and not self._dropped_in_vain and not self._lost():
            self._world.watch.fail(f"job {job.number} was left waiting although the run had ended")

    def _lost(self) -> bool:
        return any(fault in LOSING for fault in self._world.scenario.faults)

    def end_of_the_world(self) -> None:
        """Check that the run has ended for a reason, or waits for nodes."""
        fail, state = self._world.watch.fail, self._world.state_file
        waiting = [job.number for job in self._slurm.jobs if job.state == "waiting"]
        if not self._slurm.quiet():
            states = [(job.number, job.state, job.restarts) for job in self._slurm.jobs]
            fail(f"jobs go on for ever: {states}")
        lost = self._lost()
        if state is not None and state.state.ended:
            if waiting and not self._dropped_in_vain and not lost:
                fail(f"jobs {waiting} wait although the run has ended")
            if not state.reason and state.state is not State.COMPLETED:
                fail(f"the run ended {state.state} without a reason")
        elif not waiting and not lost and not set(TOO_LATE) & set(self._world.scenario.faults):
            fail(f"nobody goes on, and the run is {state and (state.state, state.reason)}")
