"""The user's verbs as functions: submit, check, find, follow, wait, diagnose, cancel; knows no terminal.

    run = clusterrun.submit("train.py", "--lr", "0.1", nodes=4, gpus=8)
    run.wait()

Configuration files and ``CLUSTERRUN_*`` options are for the command line: here only what is said counts.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from clusterrun.model.paths import RunPaths
from clusterrun.model.preflight_report import Report
from clusterrun.model.record import Attempt, Failure, RunRecord, RunStatus
from clusterrun.model.spec import Cluster, JobSpec, OnUnfit
from clusterrun.model.states import State
from clusterrun.operations.context import Context, Tell, quiet
from clusterrun.operations.list_runs import RECENT

if TYPE_CHECKING:
    from clusterrun.diagnosis.verdict import Diagnosis


class Run:
    """One run: a handle that remembers what was asked and asks anew for everything else."""

    def __init__(self, record: RunRecord, context: Context, dropped: tuple[str, ...] = ()) -> None:
        self.record = record
        self.dropped = dropped
        self._context = context

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
        """The first failure of the newest attempt that has one, as the coordinator told it."""
        state = self._context.store.state(self.run_id)
        return state.failure if state else None

    def report(self, attempt: int | None = None) -> Report:
        """What the pre-flight check found: of ``attempt``, or the newest there is. Raises ``NoReport``."""
        from clusterrun.operations.report import report_of

        return report_of(self._context, self.run_id, attempt)

    def status(self) -> RunStatus:
        """Everything that ``status`` shows of the run."""
        return self._context.inquiry().statuses([self.run_id])[0]

    def wait(self, timeout: float | None = None, tell: Tell = quiet) -> RunStatus:
        """Return when the run has ended or can never start: look at the state.

        With ``timeout`` also when so many seconds have passed. ``tell`` hears what is being waited for.
        """
        from clusterrun.operations.wait import RunWait

        return RunWait(self._context, self.run_id, tell).wait(timeout)

    def logs(
        self,
        follow: bool = False,
        ranks: Iterable[int] | None = None,
        stream: str = "both",
        tail: int | None = None,
        attempt: int | None = None,
    ) -> Iterator[str]:
        """The lines that the ranks printed, headed by node and rank, in time order.

        With ``follow`` until the run has ended. ``tail`` is per rank and stream.
        """
        from clusterrun.logs.format import headed
        from clusterrun.operations.logs import LogRequest, RunLogs

        wanted = LogRequest(None if ranks is None else frozenset(ranks), stream, tail, attempt)
        heard = RunLogs(self._context, self.run_id, wanted)
        for text in headed(heard.following() if follow else heard.so_far(), heard.headings()):
            yield from text.decode().split("\n")[:-1]

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """Every start of the ranks so far: why, where, how far it came, its first failure."""
        state = self._context.store.state(self.run_id)
        return state.attempts if state else ()

    def diagnose(self, limit: float = 40.0, tell: Tell = quiet) -> Diagnosis:
        """Why the run hangs, or has failed. ``limit``: seconds that a live run may take to answer."""
        from clusterrun.operations.diagnose import diagnose

        return diagnose(self._context, self.run_id, limit, tell)

    def cancel(self, tell: Tell = quiet) -> RunStatus:
        """End the run and return its status once nothing of it is left, at most a minute later."""
        from clusterrun.operations.cancel import cancel

        return cancel(self._context, [self.run_id], tell)[0][1]


def submit(
    *command: str, cwd: str = "", context: Context | None = None, tell: Tell = quiet, **options: Any
) -> Run:
    """Submit ``command`` (a script, ``"-m", "module"`` or a program, with its arguments) and return the run.

    ``options`` are the fields of ``JobSpec``: nodes, gpus, ranks_per_node, time (seconds, or text
    as on the command line), partition, env (a mapping), … Raises ``ClusterrunError``.
    """
    return launch(spec_of(command, cwd or os.getcwd(), options), context or Context(), tell)


def check(context: Context | None = None, tell: Tell = quiet, **options: Any) -> Run:
    """Check nodes without training on them: ``check(nodes=4).wait()``, then ``Run.report()``.

    ``options`` are the fields of ``JobSpec``, as for ``submit``. Raises ``ClusterrunError``.
    """
    spec = spec_of(("check",), os.getcwd(), {**options, "alone": True})
    return launch(spec, context or Context(), tell)


def spec_of(command: Sequence[str], cwd: str, options: Mapping[str, Any]) -> JobSpec:
    """A spec from what people write: texts for times, mappings for variables, words for enums.

    Raises ``TypeError`` for an option that is none.
    """
    import difflib

    from clusterrun.config.option_table import CONFIGURABLE, DURATIONS
    from clusterrun.model.duration import parse

    wanted = {"environment" if name == "env" else name: value for name, value in options.items()}
    for name in wanted:
        if name not in JobSpec.__annotations__:
            near = difflib.get_close_matches(name, JobSpec.__annotations__, n=1)
            raise TypeError(f"{name!r} is no option" + (f"; did you mean {near[0]!r}?" if near else ""))
    for name, value in wanted.items():
        option = CONFIGURABLE.get(name.replace("_", "-"))
        if isinstance(value, str) and option and option.kind in DURATIONS:
            wanted[name] = parse(value, DURATIONS[option.kind]) if value not in ("", "off") else 0
    for name in ("environment", "preflight_limit"):
        if isinstance(wanted.get(name), Mapping):
            wanted[name] = tuple(wanted[name].items())
    for name, words in (("cluster", Cluster), ("on_unfit", OnUnfit)):
        if isinstance(wanted.get(name), str):
            wanted[name] = words(wanted[name])
    for name in ("sbatch", "srun", "setup", "after", "snapshot_include"):
        if not isinstance(wanted.get(name, ()), tuple):
            wanted[name] = (wanted[name],) if isinstance(wanted[name], str) else tuple(wanted[name])
    return JobSpec(command=tuple(command), cwd=os.path.abspath(cwd), **wanted)


def launch(spec: JobSpec, context: Context, tell: Tell = quiet) -> Run:
    """Submit ``spec``. Raises ``ClusterrunError``; after ``SchedulerUnreachable`` the run may be queued."""
    from clusterrun.operations.submit import send

    record, dropped = send(spec, context, tell)
    return Run(record, context, dropped)


def find(word: str = "last", context: Context | None = None) -> Run:
    """The run that ``word`` means: run id, job id, name (the newest) or ``last``. Raises ``NoSuchRun``."""
    context = context or Context()
    return Run(context.store.read(context.store.find(word)), context)


def statuses(
    words: Sequence[str] = (), context: Context | None = None, tell: Tell = quiet
) -> list[RunStatus]:
    """The statuses of the runs that ``words`` mean; without words all live and the newest ones."""
    context = context or Context()
    ids = [context.store.find(word) for word in words] if words else context.store.current(RECENT)
    inquiry = context.inquiry(tell)
    found = inquiry.statuses(ids, gone=not words)
    for notice in inquiry.notices:
        tell(notice)
    return found
