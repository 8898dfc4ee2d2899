"""Remove runs that have ended, by age, state, size or name. A run that may live is never removed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

from clusterrun.local import processes
from clusterrun.model.errors import ClusterrunError
from clusterrun.model.frozen import frozen
from clusterrun.model.record import RunRecord, RunStatus
from clusterrun.model.spec import Cluster
from clusterrun.model.states import State
from clusterrun.operations.context import Context, Tell
from clusterrun.operations.job_matching import Jobs
from clusterrun.operations.list_runs import Filter, RunList
from clusterrun.runs import disk_usage, removal
from clusterrun.runs.disk_usage import Usage
from clusterrun.runs.store import inferred
from clusterrun.runs.sweep_records import Sweeps
from clusterrun.system import notice_if_slow

# Seconds for the sizes of all runs. A home of 10,000 runs on a busy file server may take longer.
MEASURE_SECONDS = 60.0
# Seconds of silence after which an end counts that the scheduler did not confirm.
SURE_SECONDS = 86400.0
SPEAK_AFTER = 2.0


@frozen
class CleanChoice:
    """Which runs to remove."""

    named: tuple[str, ...] = ()  # these runs, whatever the other fields say
    before: float = 0.0  # runs that ended before this time; 0: at any time
    states: tuple[State, ...] = ()  # runs in these states; none: in any state
    larger: int = 0  # runs that take at least this many bytes
    keep: int = 0  # the number of newest runs to keep


@frozen
class Ended:
    """A run that may be removed."""

    status: RunStatus
    usage: Usage | None  # None if it was not measured in time

    @property
    def at(self) -> float:
        """Return when the run ended, or when it was submitted if the end has no time."""
        return self.status.ended_at or self.status.submitted_at

    @property
    def frees(self) -> int | None:
        """Return the bytes that its removal frees. Files that other runs share are not counted."""
        return disk_usage.freed(self.usage) if self.usage else None


@frozen
class CleanPlan:
    """The runs to remove, and what the home holds."""

    going: tuple[Ended, ...]  # the runs to remove, largest first
    not_removed: tuple[tuple[str, str], ...]  # the chosen runs that must stay, each with the reason
    leftovers: tuple[tuple[str, int], ...]  # folders that an earlier removal has left, with their bytes
    runs: int  # number of runs in the home
    holds: int  # bytes of the home
    unmeasured: int  # number of folders that were not measured in time
    frees: int  # bytes that the removal frees


@frozen
class Removed:
    """The result of a removal."""

    runs: tuple[Ended, ...] = ()  # the runs that this call removed
    finished: tuple[tuple[str, int], ...] = ()  # leftovers of an earlier removal that are removed now
    failures: tuple[ClusterrunError, ...] = ()
    absent: tuple[Ended, ...] = ()  # all planned runs that no longer exist, whoever removed them

    @property
    def freed(self) -> int:
        """Return the bytes of the removed runs, as measured before."""
        return _freed(self.runs)

    @property
    def left_by(self) -> int:
        """Return by how many bytes the home has shrunk."""
        return _freed(self.absent) + sum(size for _, size in self.finished)


def plan(context: Context, choice: CleanChoice, tell: Tell) -> CleanPlan:
    """Return what ``choice`` would remove. Nothing is changed."""
    listing = RunList(context, choice.named, Filter(choice.states), every=True)
    inquiry = context.inquiry(tell)
    statuses = listing.look(inquiry)
    for notice in inquiry.notices:
        tell(notice)
    # Ended runs are measured first.
    store = context.store
    ended = [status.run_id for status in statuses if status.state.ended]
    ids = dict.fromkeys([*ended, *store.ids()])
    folders = {run_id: store.paths(run_id).run_dir for run_id in ids}
    leftovers = removal.leftovers(store.runs)
    folders |= {path: path for path in leftovers}
    paths = {store.runs, *folders.values()}
    for folder in (store.home, store.runs):
        with suppress(FileNotFoundError):
            folders |= {entry.path: entry.path for entry in os.scandir(folder) if entry.path not in paths}
    sentence = f"measuring {len(folders)} folders of {store.home}, for at most {MEASURE_SECONDS:.0f} s"
    with notice_if_slow(SPEAK_AFTER, tell, sentence):
        sizes = disk_usage.measure(folders, MEASURE_SECONDS)
    named = [status for status in statuses if status.run_id in listing.named]
    others = [status for status in statuses if status.run_id not in listing.named]
    old_runs = []
    for status in others:
        run = Ended(status, sizes.get(status.run_id))
        is_old = not choice.before or run.at <= choice.before
        is_large = not choice.larger or (run.frees or -1) >= choice.larger
        if status.state.ended and is_old and is_large:
            old_runs.append(run)
    chosen = sorted(old_runs, key=lambda run: run.at, reverse=True)[choice.keep :]
    chosen += [Ended(status, sizes.get(status.run_id)) for status in named]
    reason_to_keep = _ReasonsToKeep(context)
    unknown = [status for status in others if status.state is State.UNKNOWN]
    reasons = [(run.status.run_id, reason_to_keep(run.status)) for run in chosen]
    staying = [(run_id, reason) for run_id, reason in reasons if reason]
    staying += [(status.run_id, reason_to_keep(status)) for status in unknown]
    going = [run for run in chosen if run.status.run_id not in dict(staying)]
    return CleanPlan(
        going=tuple(sorted(going, key=lambda run: -1 if run.frees is None else run.frees, reverse=True)),
        not_removed=tuple(staying),
        leftovers=tuple((path, disk_usage.freed(sizes[path]) if path in sizes else 0) for path in leftovers),
        runs=len(store.ids()),
        holds=disk_usage.together(sizes.values()).size,
        unmeasured=sum(name not in sizes or not sizes[name].whole for name in folders),
        frees=_freed(going),
    )


def remove(context: Context, planned: CleanPlan, tell: Tell) -> Removed:
    """Remove the planned runs that may still be removed, and the leftovers of an earlier removal."""
    removed, finished, failures = [], [], list[ClusterrunError]()
    for path, size in planned.leftovers:
        try:
            removal.finish(path)
            finished.append((path, size))
        except ClusterrunError as error:
            failures.append(error)
    ids = [candidate.status.run_id for candidate in planned.going]
    now = {status.run_id: status for status in context.inquiry(tell).statuses(ids, skip_missing=True)}
    reason_to_keep = _ReasonsToKeep(context)
    for candidate in planned.going:
        status = now.get(candidate.status.run_id)
        if status is None or reason_to_keep(status):
            continue
        try:
            if context.store.remove(status.run_id):
                removed.append(candidate)
        except ClusterrunError as error:
            failures.append(error)
    try:
        Sweeps(context.store).remove_empty()
    except ClusterrunError as error:
        failures.append(error)
    present_ids = set(context.store.ids())
    absent = [candidate for candidate in planned.going if candidate.status.run_id not in present_ids]
    return Removed(tuple(removed), tuple(finished), tuple(failures), tuple(absent))


def _freed(runs: Sequence[Ended]) -> int:
    return disk_usage.freed(disk_usage.together(run.usage for run in runs if run.usage))


class _ReasonsToKeep:
    """Returns why a run may not be removed; '' if it may."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._jobs: Jobs | None = None
        self._silent = False

    def __call__(self, status: RunStatus) -> str:
        if status.state is State.UNKNOWN:
            return f"its state is not known: {status.reason}"
        if not status.state.ended:
            return f"it is {status.state.value}: clusterrun cancel {status.run_id} ends it"
        try:
            record = self._context.store.read(status.run_id)
            if record.cluster != Cluster.LOCAL.value and not record.in_allocation:
                return self._slurm(status, record)
        except ClusterrunError as error:
            return error.seen
        is_this_machine = record.host == os.uname().nodename
        return "its coordinator still runs" if is_this_machine and processes.alive(record.coordinator) else ""

    def _slurm(self, status: RunStatus, record: RunRecord) -> str:
        """Return why a run in a job of Slurm may not be removed; '' if it may."""
        if self._jobs is None:
            news = self._context.jobs().jobs()
            self._silent = bool(news.failure)
            self._jobs = self._context.matching(news.rows)
        jobs = self._jobs
        waiting = self._context.store.further_jobs(status.run_id).waiting
        alive = [row for row in jobs.of(record, waiting) if not row.state.ended]
        if alive:
            return f"its job {alive[0].job_id} is {alive[0].word}"
        last = max(filter(None, (status.heard_at, status.ended_at, status.submitted_at)), default=0.0)
        elsewhere = self._context.other_cluster(record)
        sure = not (self._silent or elsewhere or inferred(status))
        if sure or self._context.clock.now() - last > SURE_SECONDS:
            return ""
        if elsewhere:
            return f"its jobs are on the cluster {elsewhere}, and its last heartbeat is less than a day old"
        return "Slurm did not confirm its end, and its last heartbeat is less than a day old"
