"""The commands as functions: submit, check, find, follow, wait, diagnose, cancel.

    run = clusterrun.submit("train.py", "--lr", "0.1", nodes=4, gpus=8)
    run.wait()

Functions read neither configuration files nor ``CLUSTERRUN_*`` options. Only their arguments count.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from clusterrun.config import python_options
from clusterrun.config.spec_fields import spec_of
from clusterrun.model.errors import BadInput
from clusterrun.model.errors import ClusterrunError as ClusterrunError
from clusterrun.model.paths import RunPaths
from clusterrun.model.preflight_report import Report
from clusterrun.model.record import Attempt, Failure, RunRecord, RunStatus
from clusterrun.model.spec import JobSpec
from clusterrun.model.states import State
from clusterrun.operations.context import Context, Tell, quiet
from clusterrun.operations.find_run import find_run
from clusterrun.operations.list_runs import RECENT

if TYPE_CHECKING:
    from clusterrun.diagnosis.verdict import Diagnosis
    from clusterrun.operations.sweep_results import SweepResult
    from clusterrun.runs.sweep_records import SweepRecord


class Logs:
    """The lines of a run's ranks: ``for line in run.logs()``, or ``print(run.logs())`` for all of them.

    It iterates once. As text it holds the lines so far.
    """

    def __init__(self, run_id: str, lines: Iterator[str], text: Callable[[], Iterator[str]]) -> None:
        self._run_id = run_id
        self._lines = lines
        self._text = text

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        return next(self._lines)

    def __str__(self) -> str:
        return "\n".join(self._text())

    def __repr__(self) -> str:
        return f"<logs of {self._run_id}: print() them, or iterate over their lines>"


class Run:
    """A handle on one run; reads its state again on each access."""

    def __init__(self, record: RunRecord, context: Context, dropped: tuple[str, ...] = ()) -> None:
        self.record = record
        self.dropped = dropped
        self._context = context

    def __repr__(self) -> str:
        job = {"": "not queued yet", "local": f"process {self.job_id}"}
        kind = self.record.cluster if self.job_id else ""
        return f"<Run {self.run_id}: {self.name}, {job.get(kind, f'job {self.job_id}')}>"

    @property
    def run_id(self) -> str:
        """The id that was chosen before anything was queued."""
        return self.record.run_id

    @property
    def job_id(self) -> str:
        """Slurm's number of the job (locally: the coordinator's process)."""
        return self.record.job_id

    @property
    def name(self) -> str:
        """The name of the run."""
        return self.record.name

    @property
    def paths(self) -> RunPaths:
        """The files of the run."""
        return self._context.store.paths(self.run_id)

    @property
    def run_dir(self) -> str:
        """The run directory."""
        return self.paths.run_dir

    @property
    def state(self) -> State:
        """The state of the run now."""
        return self.status().state

    @property
    def failure(self) -> Failure | None:
        """The first failure of the newest attempt that has one, as the coordinator recorded it."""
        state = self._context.store.state(self.run_id)
        return state.failure if state else None

    def report(self, attempt: int | None = None) -> Report:
        """Return the pre-flight report of ``attempt``; default: the newest. Raise ``NoReport``."""
        from clusterrun.operations.report import report_of

        return report_of(self._context, self.run_id, _whole("attempt", attempt))

    def status(self) -> RunStatus:
        """Return everything that ``status`` shows of the run."""
        return self._context.inquiry().statuses([self.run_id])[0]

    def wait(self, timeout: float | None = None, tell: Tell = quiet) -> RunStatus:
        """Return when the run has ended, can never start, or ``timeout`` seconds have passed.

        The state of the returned status tells which. ``tell`` receives what is being waited for.
        """
        from clusterrun.operations.wait import RunWait

        if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, (int, float))):
            message = f"timeout: {timeout!r} is not a number of seconds"
            raise BadInput(message, "leave it out to wait to the end")
        return RunWait(self._context, self.run_id, tell).wait(timeout)

    def logs(
        self,
        follow: bool = False,
        ranks: Iterable[int] | int | None = None,
        stream: str = "both",
        tail: int | None = None,
        attempt: int | None = None,
    ) -> Logs:
        """Return the lines that the ranks printed, headed by node and rank, in time order.

        Iterate over them, or print them. The iterator continues to the end of the run if ``follow`` is true.
        ``stream`` is "out", "err" or "both"; ``tail`` is per rank and stream.
        """
        from clusterrun.logs.attempt_logs import LogSelection
        from clusterrun.operations.logs import RunLogs

        if stream not in ("both", "out", "err"):
            raise BadInput(f"stream: {stream!r} is not out, err or both", "leave it out for both")
        wanted = LogSelection(_ranks(ranks), stream, _whole("tail", tail), _whole("attempt", attempt))
        reader = RunLogs(self._context, self.run_id, wanted)

        def lines(follow: bool) -> Iterator[str]:
            from clusterrun.logs.format import headed

            for text in headed(reader.following() if follow else reader.so_far(), reader.headings()):
                yield from text.decode().split("\n")[:-1]

        return Logs(self.run_id, lines(follow), partial(lines, False))

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """Every start of the ranks so far: reason, nodes, progress, first failure."""
        state = self._context.store.state(self.run_id)
        return state.attempts if state else ()

    def diagnose(self, limit: float = 40.0, tell: Tell = quiet) -> Diagnosis:
        """Return why the run hangs or has failed. ``limit``: seconds that a live run may take to answer."""
        from clusterrun.operations.diagnose import diagnose

        return diagnose(self._context, self.run_id, limit, tell)

    def cancel(self, tell: Tell = quiet, kill_wait: float | None = None) -> RunStatus:
        """End the run and return its status when it has ended completely, or after a limit.

        ``kill_wait``: seconds from SIGTERM to SIGKILL; None: the run's, else Slurm's ``KillWait``.
        """
        from clusterrun.operations.cancel import cancel

        return cancel(self._context, [self.run_id], tell, kill_wait)[0][1]


@python_options.with_options(python_options.SUBMIT)
def submit(
    *command: str, cwd: str = "", context: Context | None = None, tell: Tell = quiet, **options: Any
) -> Run:
    """Submit ``command`` and return its run at once.

    ``command`` is a script, ``"-m", "module"`` or a program, with its arguments, one word each. Options are
    those of the command line: a time is a number of seconds or text ("2h"), ``env`` a mapping, ``after``
    a run or several. ``tell`` gets each notice as a sentence. Raises ``ClusterrunError``.
    """
    context = context or Context()
    python_options.check("submit", options, python_options.SUBMIT)
    return launch(spec_of(command, cwd or os.getcwd(), options, context.environ), context, tell)


@python_options.with_options(python_options.CHECK)
def check(context: Context | None = None, tell: Tell = quiet, **options: Any) -> Run:
    """Check nodes without training on them: ``check(nodes=4).wait()``, then ``Run.report()``.

    Options are those of the command line. ``tell`` gets each notice as a sentence.
    Raises ``ClusterrunError``.
    """
    context = context or Context()
    python_options.check("check", options, python_options.CHECK)
    spec = spec_of(("check",), os.getcwd(), options, context.environ, alone=True)
    return launch(spec, context, tell)


class SweepRuns:
    """A handle on the runs of a sweep; reads their state again on each access."""

    def __init__(self, record: SweepRecord, context: Context) -> None:
        self._record = record
        self._context = context

    def __repr__(self) -> str:
        return f"<Sweep {self.sweep_id}: {len(self._record.points)} points>"

    @property
    def sweep_id(self) -> str:
        """Its id, which every command takes."""
        return self._record.sweep_id

    @property
    def runs(self) -> list[Run]:
        """The run of each point that is queued, in the order of the points."""
        return [run(run_id, self._context) for run_id in self._record.run_ids]

    def wait(self, tell: Tell = quiet) -> list[RunStatus]:
        """Return when every run has ended, or can never start."""
        return [member.wait(tell=tell) for member in self.runs]

    def cancel(self, tell: Tell = quiet) -> list[RunStatus]:
        """End every run."""
        from clusterrun.operations.cancel import cancel

        return [after for _, after in cancel(self._context, self._record.run_ids, tell)]

    def results(self, by: str = "", largest: bool = False) -> list[SweepResult]:
        """Return the results of the runs, best first: the smallest ``by``, or the largest."""
        from clusterrun.operations.sweep_results import gathered

        return list(gathered(self._record, self._context, by, largest, quiet).results)

    def retry(self, tell: Tell = quiet) -> None:
        """Queue the points again whose runs did not complete, and the points not queued yet."""
        from clusterrun.operations.sweep import retried, start

        record = retried(self._record, self._context, tell)
        self._record = start(record, self._context, tell) if record.waiting else record


def sweep(
    *command: str,
    points: Mapping[str, Iterable[object]] | Iterable[Mapping[str, object]],
    at_most: int = 0,
    cwd: str = "",
    context: Context | None = None,
    tell: Tell = quiet,
    **options: Any,
) -> SweepRuns:
    """Submit ``command`` once for every point; ``{name}`` in one of its words stands for a value.

    ``points`` are values by name, all combinations of which are run, or a list of points. ``at_most`` runs
    live at once. Options are those of ``submit``. On this machine it returns when the last run has started.
    """
    from clusterrun.config.sweep_points import combined
    from clusterrun.operations.sweep import new_sweep, start

    context = context or Context()
    python_options.check("submit", options, python_options.SUBMIT)
    axes = [(name, list(values)) for name, values in points.items()] if isinstance(points, Mapping) else []
    listed = combined([{}] if isinstance(points, Mapping) else list(points), axes, "points")
    spec = spec_of(command, cwd or os.getcwd(), options, context.environ)
    record = new_sweep(spec, listed, _whole("at_most", at_most) or 0, context)
    return SweepRuns(start(record, context, tell), context)


def _whole(name: str, value: object) -> int | None:
    """Return a whole number, or None if the option was not given. Raise ``BadInput``."""
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    raise BadInput(f"{name}: {value!r} is not a whole number", f"give {name}=0 or more, or leave it out")


def _ranks(value: Iterable[int] | int | None) -> frozenset[int] | None:
    numbers = [value] if value is None or isinstance(value, (int, str)) else [*value]
    ranks = frozenset(_whole("ranks", number) for number in numbers)
    return None if value is None else frozenset(number for number in ranks if number is not None)


def launch(
    spec: JobSpec, context: Context, tell: Tell = quiet, files: Sequence[tuple[str, bytes]] = ()
) -> Run:
    """Submit ``spec``, with ``files`` in its run directory. Raises ``ClusterrunError``.

    After ``SchedulerUnreachable`` the run may be queued.
    """
    from clusterrun.operations.submit import send

    record, dropped = send(spec, context, tell, files)
    return Run(record, context, dropped)


def run(word: str | int = "last", context: Context | None = None) -> Run:
    """Return the run of ``word``: run id, job id, name (the newest) or ``last``. Raise ``NoSuchRun``."""
    context = context or Context()
    return Run(context.store.read(find_run(context, str(word))), context)


find = run


def statuses(
    words: Sequence[str] = (), context: Context | None = None, tell: Tell = quiet
) -> list[RunStatus]:
    """Return the statuses of the runs that ``words`` mean. By default: all live runs and the newest ones."""
    context = context or Context()
    ids = [find_run(context, word) for word in words] if words else context.store.current(RECENT)
    inquiry = context.inquiry(tell)
    run_statuses = inquiry.statuses(ids, skip_missing=not words)
    for notice in inquiry.notices:
        tell(notice)
    return run_statuses
