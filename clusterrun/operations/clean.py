"""Removes runs that have ended, by age, state, size or name; never one that may live."""

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

MEASURE_SECONDS = 60.0
"""For the sizes of all runs; a home of 10,000 runs on a busy file server may take longer."""
SURE_SECONDS = 86400.0
"""An end that the scheduler did not confirm counts once the run has been silent for this long."""
SPEAK_AFTER = 2.0


@frozen
class CleanChoice:
    """Which runs are to go: those ``named``, or all ended ``before`` and ``larger`` (bytes), but ``keep``."""

    named: tuple[str, ...] = ()
    before: float = 0.0
    states: tuple[State, ...] = ()
    larger: int = 0
    keep: int = 0


@frozen
class Ended:
    """A run that may go, with what it takes (None: not measured in time)."""

    status: RunStatus
    usage: Usage | None

    @property
    def at(self) -> float:
        """When it ended, as far as that is known."""
        return self.status.ended_at or self.status.submitted_at

    @property
    def frees(self) -> int | None:
        """What its removal frees: the packed program of the nodes is the same file in many runs."""
        return disk_usage.freed(self.usage) if self.usage else None


@frozen
class CleanPlan:
    """What would go, largest first, what may not and why, and what the home holds.

    ``leftovers`` are the folders that an earlier removal has left, with their bytes.
    """

    going: tuple[Ended, ...]
    kept: tuple[tuple[str, str], ...]
    leftovers: tuple[tuple[str, int], ...]
    runs: int
    holds: int
    unmeasured: int
    frees: int


@frozen
class Removed:
    """What was removed, and why the rest was not; ``gone`` are all that are there no more, whoever did it."""

    runs: tuple[Ended, ...] = ()
    finished: tuple[tuple[str, int], ...] = ()
    failures: tuple[ClusterrunError, ...] = ()
    gone: tuple[Ended, ...] = ()

    @property
    def freed(self) -> int:
        """Bytes, as they were measured before."""
        return _freed(self.runs)

    @property
    def left_by(self) -> int:
        """How many bytes less the home holds."""
        return _freed(self.gone) + sum(size for _, size in self.finished)


def plan(context: Context, choice: CleanChoice, tell: Tell) -> CleanPlan:
    listing = RunList(context, choice.named, Filter(choice.states), every=True)
    inquiry = context.inquiry(tell)
    found = listing.look(inquiry)
    for notice in inquiry.notices:
        tell(notice)
    sizes, folders = _measured(context, [status for status in found if status.state.ended], tell)
    going = [one for one in _wanted(found, choice, sizes) if one.status.run_id not in listing.named]
    going = sorted(going, key=lambda one: one.at, reverse=True)[choice.keep :]
    going += [Ended(one, sizes.get(one.run_id)) for one in found if one.run_id in listing.named]
    reason_to_keep = _ReasonsToKeep(context)
    kept = [(one.status.run_id, why) for one in going if (why := reason_to_keep(one.status))]
    unknown = [one for one in found if one.state is State.UNKNOWN and one.run_id not in listing.named]
    kept += [(one.run_id, reason_to_keep(one)) for one in unknown]
    going = [one for one in going if one.status.run_id not in dict(kept)]
    return CleanPlan(
        going=tuple(sorted(going, key=lambda one: -1 if one.frees is None else one.frees, reverse=True)),
        kept=tuple(kept),
        leftovers=tuple(
            (path, disk_usage.freed(sizes[path]) if path in sizes else 0)
            for path in removal.leftovers(context.store.runs)
        ),
        runs=len(context.store.ids()),
        holds=disk_usage.together(sizes.values()).size,
        unmeasured=sum(name not in sizes or not sizes[name].whole for name in folders),
        frees=_freed(going),
    )


def remove(context: Context, planned: CleanPlan, tell: Tell) -> Removed:
    """Remove what was planned, as far as it still may be, and what an earlier removal has left."""
    done, finished, failures = [], [], list[ClusterrunError]()
    for path, size in planned.leftovers:
        try:
            removal.finish(path)
            finished.append((path, size))
        except ClusterrunError as error:
            failures.append(error)
    ids = [one.status.run_id for one in planned.going]
    now = {status.run_id: status for status in context.inquiry(tell).statuses(ids, gone=True)}
    reason_to_keep = _ReasonsToKeep(context)
    for one in planned.going:
        status = now.get(one.status.run_id)
        if status is None or reason_to_keep(status):
            continue
        try:
            if context.store.remove(status.run_id):
                done.append(one)
        except ClusterrunError as error:
            failures.append(error)
    try:
        Sweeps(context.store).remove_empty()
    except ClusterrunError as error:
        failures.append(error)
    there = set(context.store.ids())
    gone = [one for one in planned.going if one.status.run_id not in there]
    return Removed(tuple(done), tuple(finished), tuple(failures), tuple(gone))


def _freed(runs: Sequence[Ended]) -> int:
    return disk_usage.freed(disk_usage.together(one.usage for one in runs if one.usage))


def _measured(
    context: Context, first: Sequence[RunStatus], tell: Tell
) -> tuple[dict[str, Usage], dict[str, str]]:
    """What all folders of the home take, the runs of ``first`` measured first, and the folders by name."""
    store = context.store
    ids = dict.fromkeys([*(status.run_id for status in first), *store.ids()])
    folders = {one: store.paths(one).run_dir for one in ids}
    folders |= {path: path for path in removal.leftovers(store.runs)}
    known = {store.runs, *folders.values()}
    for folder in (store.home, store.runs):
        with suppress(FileNotFoundError):
            folders |= {one.path: one.path for one in os.scandir(folder) if one.path not in known}
    sentence = f"measuring {len(folders)} folders of {store.home}, for at most {MEASURE_SECONDS:.0f} s"
    with notice_if_slow(SPEAK_AFTER, tell, sentence):
        return disk_usage.measure(folders, MEASURE_SECONDS), folders


def _wanted(statuses: Sequence[RunStatus], choice: CleanChoice, sizes: dict[str, Usage]) -> list[Ended]:
    ended = [Ended(status, sizes.get(status.run_id)) for status in statuses if status.state.ended]
    old = [one for one in ended if not choice.before or one.at <= choice.before]
    return [one for one in old if not choice.larger or (one.frees or -1) >= choice.larger]


class _ReasonsToKeep:
    """Why a run may not be removed; '' where it may."""

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
        here = record.host == os.uname().nodename
        return "its coordinator still runs" if here and processes.alive(record.coordinator) else ""

    def _slurm(self, status: RunStatus, record: RunRecord) -> str:
        jobs = self._known_jobs()
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

    def _known_jobs(self) -> Jobs:
        if self._jobs is None:
            news = self._context.jobs().jobs()
            self._silent = bool(news.failure)
            self._jobs = self._context.matching(news.rows)
        return self._jobs
