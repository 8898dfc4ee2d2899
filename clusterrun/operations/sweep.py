"""Queue the points of a sweep as runs: in arrays on Slurm, one after the other on this machine.

A sweep is a table of ordinary runs. Each point has a run directory with its orders and its script, made
before anything is queued. Its job is a task of an array: ``41_7``. The rules:

- The array's script holds the list of run ids; a task becomes the run at its number (``array_script``).
  A task that Slurm queues again has the same number and continues with the same run.
- The array is submitted once, as any run is (``submit_once``). Its token is in the comment that all tasks
  share. A run's token is the array's token with the number of the task, which identifies its row in Slurm.
- A task is always named ``41_7``, since its plain number may be that of the whole array.
- A chain (``--requeue-by chain``) leaves the array: the next job of a run is a job of its own.

An array has at most MaxArraySize tasks. ``at_most`` runs at once is ``%K`` of the array, and a second array
then waits for the end of the first. If a limit on the user's jobs refuses an array, this process tries
shorter arrays and queues the rest as runs end.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property

from clusterrun.config.sweep_points import Point, at, check_places, point_text
from clusterrun.model.errors import BadInput, SchedulerError, SchedulerUnreachable
from clusterrun.model.frozen import replace
from clusterrun.model.hostlist import fold
from clusterrun.model.paths import RunPaths
from clusterrun.model.phrases import count_of
from clusterrun.model.record import RunRecord, RunStatus
from clusterrun.model.run_words import default_name
from clusterrun.model.spec import Cluster, JobSpec
from clusterrun.model.states import State
from clusterrun.operations import submit
from clusterrun.operations.context import Context, Tell
from clusterrun.operations.copied_paths import missing, moved
from clusterrun.operations.run_state import QUEUEING_SECONDS
from clusterrun.runs.code_snapshot import look, take
from clusterrun.runs.private_files import empty_file, own_content, private_folder, refusal, write_whole
from clusterrun.runs.store import run_id
from clusterrun.runs.sweep_records import SweepPoint, SweepRecord, Sweeps
from clusterrun.script.array_script import array_script
from clusterrun.script.plan import Plan, plan

LOOK_EVERY = 0.5
# Seconds between queries for an array whose submission was cut short.
OPEN_SECONDS = 5.0
# Seconds between polls of the ended runs if a limit on jobs holds the others back.
WAVE_SECONDS = 10.0
# A file in the run directory of a function: the function and its arguments (clusterrun.training.function).
CALL = "call.pkl"
POLICY = "accounting/qos policy"


class JobLimit(SchedulerError):
    """Slurm accepts no more jobs of this user at the moment."""


class TakenOver(SchedulerError):
    """Another process queues these points."""


def new_sweep(spec: JobSpec, points: Sequence[Point], at_most: int, context: Context) -> SweepRecord:
    """Return a sweep without queued points. No file is made. Raise ``BadInput``."""
    if at_most < 0:
        raise BadInput(f"--at-most must be at least 1, not {at_most}", "leave it out for no limit")
    if points[0]:
        check_places(spec, points[0])
    name = spec.name or default_name(spec.command)
    now = context.clock.now()
    listed = tuple(SweepPoint(point) for point in points)
    return SweepRecord(run_id(name, now, os.urandom(2)), name, spec, listed, now, at_most)


def run_name(sweep: SweepRecord, place: int) -> str:
    return f"{sweep.name}.{place}"


def run_spec(sweep: SweepRecord, spec: JobSpec, place: int) -> JobSpec:
    return at(spec, sweep.points[place].values, run_name(sweep, place))


def checked(sweep: SweepRecord, context: Context) -> tuple[submit.SubmitFacts, Plan, tuple[str, ...]]:
    """Return the facts before planning, the plan of the first waiting run, and its notices."""
    facts = submit.submit_facts(sweep.spec, context)
    place = (sweep.waiting or [0])[0]
    first = plan(run_spec(sweep, facts.spec, place), run_name(sweep, place), "0", sweep.sweep_id, facts.site)
    for other_place in sweep.waiting:
        run_spec(sweep, facts.spec, other_place)  # raises if a value cannot be in a command
    values = sweep.points[place].values
    places = check_places(sweep.spec, values) if values else ()
    return facts, first, (*places, *first.notices, *facts.check(first, context.environ))


def start(
    sweep: SweepRecord, context: Context, tell: Tell, files: Sequence[submit.Files] = (), patient: bool = True
) -> SweepRecord:
    """Queue every waiting point. If a limit holds points back, wait for it if ``patient``, or return."""
    if not files and (lost := [at for at in sweep.waiting if sweep.points[at] == SweepPoint(())]):
        message = f"{len(lost)} calls of {sweep.name} were known only to the program that made them"
        raise BadInput(message, "repeat them from that program; the queued calls are ordinary runs")
    facts, first, notices = checked(sweep, context)
    for notice in dict.fromkeys(notices):
        tell(notice)
    sweep = replace(sweep, cancelled=False)
    if sweep.spec.snapshot:
        sweep, facts = _copied(sweep, facts, context, tell)
    Sweeps(context.store).save(sweep)
    kind = _LocalQueue if first.spec.cluster is Cluster.LOCAL else _ArrayQueue
    return kind(sweep, facts, context, tell, files).run(patient)


def _copied(
    sweep: SweepRecord, facts: submit.SubmitFacts, context: Context, tell: Tell
) -> tuple[SweepRecord, submit.SubmitFacts]:
    """Copy the code of the sweep, and return the sweep and the facts with their paths in the copy."""
    paths = Sweeps(context.store).paths(sweep.sweep_id)
    snapshot = look(sweep.spec.cwd, sweep.spec.snapshot_include, context.store.home)
    private_folder(paths.run_dir)
    take(snapshot, paths.snapshot, paths.snapshot_note)
    lost = missing(sweep.spec, snapshot, context.environ)
    for notice in (*snapshot.lines(), *lost):
        tell(notice)

    def inside(spec: JobSpec) -> JobSpec:
        return replace(moved(spec, snapshot, paths.snapshot), snapshot=False, snapshot_include=())

    os.makedirs(inside(sweep.spec).cwd, exist_ok=True)  # a folder without code is not copied
    return replace(sweep, spec=inside(sweep.spec)), replace(facts, spec=inside(facts.spec))


class _SweepQueue:
    """The common part of both queues: the record of the sweep, and the runs of its points."""

    def __init__(
        self,
        sweep: SweepRecord,
        facts: submit.SubmitFacts,
        context: Context,
        tell: Tell,
        files: Sequence[submit.Files],
    ) -> None:
        self._sweep, self._facts, self._context, self._tell = sweep, facts, context, tell
        self._files = files
        self._sweeps = Sweeps(context.store)
        self._program = submit.program_for_nodes(context)

    def _plan(self, place: int, token: str) -> Plan:
        spec = run_spec(self._sweep, self._facts.spec, place)
        now = self._context.clock.now() + place / 1024  # ids have the order of the points
        chosen = run_id(spec.name, now, os.urandom(2))
        return plan(spec, chosen, token, self._context.store.paths(chosen).run_dir, self._facts.site)

    def _prepare(self, place: int, planned: Plan, sync: bool) -> RunRecord:
        files = self._files[place] if self._files else self._of_before(self._sweep.points[place])
        point = point_text(self._sweep.points[place].values)
        sweep_id, program = self._sweep.sweep_id, self._program
        return submit.prepare(submit.Draft(planned, ()), self._context, sweep_id, point, sync, files, program)

    def _of_before(self, point: SweepPoint) -> submit.Files:
        """Return the call (``CALL``) of a point that runs again; none if its run is not a function."""
        if not point.earlier:
            return ()
        content = own_content(os.path.join(self._context.store.paths(point.earlier[-1]).run_dir, CALL))
        return () if content is None else ((CALL, content),)

    def _keep(self, runs: dict[int, str], job_id: str = "") -> None:
        """Record the run of each point ('': none), and keep a cancellation that was recorded meanwhile."""
        listed = list(self._sweep.points)
        for place, name in runs.items():
            listed[place] = replace(listed[place], run_id=name)
        points, job_id, cancelled = tuple(listed), job_id or self._sweep.job_id, self._cancelled()
        self._sweep = replace(self._sweep, points=points, job_id=job_id, cancelled=cancelled)
        self._sweeps.save(self._sweep)

    def _cancelled(self) -> bool:
        return self._sweeps.read(self._sweep.sweep_id).cancelled

    def _live(self, ask: bool = True) -> list[RunStatus]:
        statuses = self._context.inquiry(self._tell).statuses(self._sweep.run_ids, ask=ask, skip_missing=True)
        return [status for status in statuses if not status.state.ended]

    def _later(self) -> str:
        return f"Ctrl-C leaves the others; to queue them later: clusterrun sweep continue {self._sweep.name}"


class _LocalQueue(_SweepQueue):
    """Runs on this machine, which the process that starts them has to queue."""

    def run(self, patient: bool) -> SweepRecord:
        size = self._facts.spec.allocated * self._facts.spec.local_size
        room = self._sweep.at_most or max(1, (os.cpu_count() or 1) // size)
        waiting = self._sweep.waiting
        if patient and len(waiting) > room:
            by_default = "one rank for each processor; --at-most K changes it"
            why = "--at-most" if self._sweep.at_most else by_default
            self._tell(f"{room} of {len(waiting)} runs at once on this machine ({why}). {self._later()}")
        for place in waiting:
            while patient and len(self._live(ask=False)) >= room:
                self._context.clock.sleep(LOOK_EVERY)
            if self._cancelled():
                break
            planned = self._plan(place, os.urandom(8).hex())
            record = self._prepare(place, planned, sync=True)
            job_id = submit.queue(planned, record, self._context, self._tell)
            self._context.store.save(replace(record, job_id=job_id))
            self._keep({place: record.run_id})
        return self._sweep


class _ArrayQueue(_SweepQueue):
    @cached_property
    def _largest(self) -> int:
        return self._context.client().largest_array()

    def run(self, patient: bool) -> SweepRecord:
        size = self._largest
        before = self._sweep.job_id if self._sweep.job_id and self._live() else ""
        limited = False
        if max(self._sweep.waiting, default=0) >= size:
            self._tell(
                f"an array has at most {size} tasks here: SLURM_ARRAY_TASK_ID begins at 0 again with point"
                f" {size}; a script that reads it needs a value of --set"
            )
        while (waiting := self._sweep.waiting) and not self._cancelled():
            try:
                # The points of an array differ in their index.
                places = [
                    place for place in waiting[:size] if place // self._largest == waiting[0] // self._largest
                ]
                before = self._array(places, before if self._sweep.at_most else "")
                continue
            except JobLimit as error:
                limit = error
            if not limited and size > 1:
                size = max(1, min(size, len(waiting)) // 2)
                continue
            if not self._sweep.run_ids:
                raise limit
            if not patient:
                break
            if not limited:
                held = f"a limit on your jobs holds {len(waiting)} back ({limit.seen})"
                then = f"They are queued as others end. {self._later()}"
                self._tell(f"{len(self._sweep.run_ids)} runs are queued; {held}. {then}")
            limited = True
            size = self._room()
        return self._sweep

    def _room(self) -> int:
        """Wait until a run has ended. Return how many runs have ended since."""
        alive = len(self._live())
        while (now := len(self._live())) >= alive and now and not self._cancelled():
            self._context.clock.sleep(WAVE_SECONDS)
        return max(1, alive - now)

    def _array(self, places: Sequence[int], before: str) -> str:
        """Queue these points as an array that waits for the end of ``before``. Return its job number."""
        token = os.urandom(8).hex()
        store = self._context.store
        records: dict[int, RunRecord] = {}
        # A point keeps its index when it is queued again: a script may choose its data by it.
        tasks = [place % self._largest for place in places]
        try:
            for task, place in zip(tasks, places):
                # The files are not synced one by one. After a crash of this machine a task reports a missing
                # file.
                records[place] = self._prepare(place, self._plan(place, f"{token}_{task}"), sync=False)
            argv = self._write_script(dict(zip(tasks, records.values())), token, before)
            self._keep({place: record.run_id for place, record in records.items()})
            job_id = self._send(argv, token)
        except (SchedulerUnreachable, TakenOver):
            raise  # the array may be queued: the records stay, and the token identifies it
        except BaseException as error:
            if isinstance(error, (KeyboardInterrupt, SystemExit)) and self._sweep.points[places[0]].run_id:
                raise  # the array may have been submitted
            for record in records.values():
                store.discard(record.run_id)
            self._keep(dict.fromkeys(places, ""))
            raise
        for task, record in zip(tasks, records.values()):
            store.save(replace(record, job_id=f"{job_id}_{task}"), sync=False)
        self._keep({}, job_id)
        after = f", which starts when job {before} has ended" if before else ""
        most = f", at most {self._sweep.at_most} at once" if self._sweep.at_most else ""
        self._tell(f"{count_of(len(places), 'run')} queued as job {job_id}{most}{after}")
        return job_id

    def _write_script(self, records: Mapping[int, RunRecord], token: str, before: str) -> tuple[str, ...]:
        """Write the script of an array, and return the sbatch command that submits it."""
        spec, paths = self._facts.spec, self._sweeps.paths(self._sweep.sweep_id)
        sbatch = spec.sbatch
        if before:
            waits = [entry for entry in sbatch if entry.startswith("dependency=")]
            joined = ",".join([f"afterany:{before}", *(entry.partition("=")[2] for entry in waits)])
            sbatch = (*(entry for entry in sbatch if entry not in waits), f"dependency={joined}")
        first = self._sweep.points[0].values
        named = replace(at(spec, first, self._sweep.name), sbatch=sbatch)
        head = plan(named, self._sweep.sweep_id, token, paths.run_dir, self._facts.site)
        script = os.path.join(paths.run_dir, f"array-{token}.sh")
        text = array_script(
            head.script, self._context.store.runs, {task: record.run_id for task, record in records.items()}
        )
        write_whole(script, text, 0o700)
        empty_file(_unsent(paths, token))
        empty_file(paths.job_output)
        indices = fold([str(task) for task in records]).strip("[]")
        throttle = f"%{self._sweep.at_most}" if self._sweep.at_most else ""
        return (*head.argv[:-1], f"--array={indices}{throttle}", script)

    def _send(self, argv: tuple[str, ...], token: str) -> str:
        """Submit an array and return its job number. Raise ``TakenOver`` or ``JobLimit``."""
        name = self._sweep.name
        if not _claim(self._sweeps.paths(self._sweep.sweep_id), token):
            message = f"another `clusterrun sweep continue` has taken over the points of {name}"
            raise TakenOver(message, f"clusterrun status {name} shows its runs")
        try:
            return submit.sent(argv, self._facts.spec, token, self._context, self._tell)
        except SchedulerUnreachable:
            raise
        except SchedulerError as error:
            if POLICY in error.seen.lower():
                raise JobLimit(error.seen, error.remedy) from error
            raise


def _unsent(paths: RunPaths, token: str) -> str:
    """Return the file that exists until a process submits the array."""
    return os.path.join(paths.run_dir, f"array-{token}.unsent")


def _claim(paths: RunPaths, token: str) -> bool:
    """Return whether this process alone may decide about an array that was not submitted yet."""
    try:
        os.unlink(_unsent(paths, token))
    except FileNotFoundError:
        return False
    except OSError as error:
        raise refusal(paths.run_dir, error) from error
    return True


def unqueued(sweep: SweepRecord, context: Context, tell: Tell) -> SweepRecord:
    """Return ``sweep`` with each point waiting again whose array was never queued after its client died.

    If the array was submitted, wait until Slurm shows it or the submission counts as lost
    (``QUEUEING_SECONDS``). The array may be queued even if its client did not read the answer.
    """
    is_told = False
    while True:
        sweep, open_points = _without_lost(sweep, context, tell)
        if not open_points:
            return sweep
        if not is_told:
            tell(
                f"Slurm was asked for {open_points} points of {sweep.name} and does not show them yet:"
                f" waiting for them, at most {QUEUEING_SECONDS:g} s from then; nothing is submitted twice"
            )
        is_told = True
        context.clock.sleep(OPEN_SECONDS)


def _without_lost(sweep: SweepRecord, context: Context, tell: Tell) -> tuple[SweepRecord, int]:
    """Return ``sweep`` without the runs that are certainly not queued, and the number of uncertain runs."""
    sweeps = Sweeps(context.store)
    statuses = {
        status.run_id: status for status in context.inquiry(tell).statuses(sweep.run_ids, skip_missing=True)
    }
    is_claimed: dict[str, bool] = {}
    points, discarded, open_points = list(sweep.points), [], 0
    for index, point in enumerate(sweep.points):
        status = statuses.get(point.run_id)
        if status is None or status.job_id or status.started_at or status.cluster != Cluster.SLURM.value:
            continue
        if status.state is State.UNKNOWN:
            message = f"Slurm does not answer: it is not known which points of {sweep.name} are queued"
            raise SchedulerUnreachable(message, f"again later: clusterrun sweep continue {sweep.name}")
        if status.state is State.FAILED:
            points[index] = replace(point, run_id="", earlier=(*point.earlier, point.run_id))
        elif status.state is State.PENDING:
            token = context.store.read(point.run_id).token.rpartition("_")[0]
            if token not in is_claimed:
                is_claimed[token] = _claim(sweeps.paths(sweep.sweep_id), token)
            if is_claimed[token]:
                points[index] = replace(point, run_id="")
                discarded.append(point.run_id)
            else:
                open_points += 1
    changed = replace(sweep, points=tuple(points))
    if changed != sweep:
        sweeps.save(changed)
    for name in discarded:
        context.store.discard(name)
    return changed, open_points


def retried(sweep: SweepRecord, context: Context, tell: Tell) -> SweepRecord:
    """Return ``sweep`` with each point waiting again whose run has ended without success."""
    statuses = {row.run_id: row for row in context.inquiry(tell).statuses(sweep.run_ids, skip_missing=True)}
    listed = []
    for point in sweep.points:
        status = statuses.get(point.run_id)
        if status and status.state.ended and status.state is not State.COMPLETED:
            point = replace(point, run_id="", earlier=(*point.earlier, point.run_id))
        listed.append(point)
    return replace(sweep, points=tuple(listed))
