"""Call Slurm's programs, as the only module that does.

One query covers all jobs, and every wait has a limit.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from clusterrun import system
from clusterrun.model.contract import KILL_WAIT_SECONDS
from clusterrun.model.errors import SchedulerError, SchedulerUnreachable
from clusterrun.model.frozen import frozen
from clusterrun.model.hostlist import fold
from clusterrun.model.phrases import some_of
from clusterrun.slurm import queries, sbatch_errors
from clusterrun.slurm.queries import GpuRow, JobRow, NodeRow, PartitionOffer, Query, QueueRow, ReservationRow
from clusterrun.slurm.sbatch_errors import SbatchAnswer

if TYPE_CHECKING:
    from clusterrun.slurm.allocation import Allocation
    from clusterrun.slurm.foreign_job import ForeignJob

# Limit for a query. Slurm's own limit is 10 s for a message, and it tries each controller.
ANSWER_SECONDS = 30.0
# sbatch retries for up to two minutes while the controller reports a full queue.
SUBMIT_SECONDS = 180.0
PASSING = ("zero bytes", "rate limit", "try again", "temporarily")
QUICK_SECONDS = 2.0
# Seconds before the retries of a query that failed quickly.
PAUSES = (0.5, 1.5)
CONFIGURATIONS = ("/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf", "/usr/local/etc/slurm.conf")
# Slurm's copies of a configuration from the controller, on sites without configuration files.
FETCHED = ("/run/slurm/conf/slurm.conf", "/var/spool/slurmd/conf-cache/slurm.conf")
MUNGE = ("/run/munge/munge.socket.2", "/var/run/munge/munge.socket.2")
# Names of machines where users submit jobs and nothing is computed.
_LOGIN = r"(?i)(?:^|[-_.])(?:login|headnode|frontend|submit)(?:[-_]?(?:node)?\d*)(?=[-_.]|$)"
UNNAMED = "slurm"
NAME_SECONDS = 5.0
TEST_SECONDS = 3.0
ENERGY_SECONDS = 5.0
# Slurm's default for the number of tasks, and the largest index that Slurm accepts.
LARGEST_ARRAY, LARGEST_INDEX = 1001, 4_000_001
NOT_HERE = "no program named {0} is on PATH"
_DOWN = "try again in a while; `scontrol ping` says whether the controller is up"


# ``system.run``, or a replacement with recorded answers.
ProgramRunner = Callable[..., system.Completed]


@frozen
class SubmitAnswer:
    """The result of one ``sbatch``."""

    kind: SbatchAnswer
    message: str  # Slurm's message; of a queued job its warning, or ''
    job_id: str = ""  # empty if Slurm gave none


class SlurmClient:
    """Slurm as this user sees it from this machine. ``environment`` is passed to Slurm's programs."""

    def __init__(
        self,
        environment: Mapping[str, str],
        run: ProgramRunner = system.run,
        clock: system.Clock | None = None,
        user: int | None = None,
    ) -> None:
        self._inherited = queries.unfiltered(environment)
        self._environment = {**self._inherited, **queries.QUERY_ENVIRONMENT}
        self._run = run
        self._clock = clock or system.RealClock()
        self._user = os.getuid() if user is None else user

    def why_not(self) -> str:
        """Return why Slurm cannot be used on this machine, in a sentence; '' if it can.

        It is enough that Slurm's programs are installed, and that a configuration is named or lies in its
        usual place. A controller that is down is therefore an error, not a reason to run elsewhere.
        Otherwise ``scontrol`` is asked: the site has no configuration files, or keeps them in an unusual
        place.
        """
        path = self._environment.get("PATH", os.defpath).split(os.pathsep)
        if not any(os.access(os.path.join(folder, "sbatch"), os.X_OK) for folder in path):
            return NOT_HERE.format("sbatch")
        named = self._environment.get("SLURM_CONF")
        if named and not os.path.exists(named):
            return f"SLURM_CONF names {named}, which is not there"
        if named or any(map(os.path.exists, CONFIGURATIONS)):
            return ""
        try:
            ping = self._run(("scontrol", "ping"), 10.0, env=self._environment)
        except (system.ProgramMissing, system.ProgramTimeout) as error:
            return error.seen
        if ping.code == 0 or "UP" in ping.out:
            return ""
        return f"Slurm's programs know no cluster ({sbatch_errors.words(ping.err).split('; ')[-1]})"

    def of_a_cluster(self, host: str) -> str:
        """Return the evidence that this machine belongs to a cluster; '' if there is none.

        Slurm's programs are no evidence, because anybody may install them.
        """
        if self._environment.get("SLURM_CONF"):
            return "SLURM_CONF is set"
        if any(map(os.path.exists, MUNGE)):
            return "munge runs here, by which Slurm authenticates"
        return f"its name is {host}" if re.search(_LOGIN, host) else ""

    def jobs(self) -> tuple[JobRow, ...]:
        """Return this user's jobs from one query. Slurm remembers ended jobs for some minutes."""
        rows = self._rows(queries.JOBS, f"--user={self._user}", "--states=all")
        return tuple(JobRow(**cells) for cells in rows)

    def allocation(self, job_id: str) -> Allocation:
        """Return the nodes and GPUs of a running job.

        Raises ``BadInput`` if it does not run, and ``SchedulerError`` as ``jobs`` does.
        """
        from clusterrun.slurm import allocation  # slow to import, so not for `status`

        # Only ``--details`` lists GPUs that a site does not count.
        completed = self._tried(("scontrol", "show", "job", "--details", job_id))
        if completed.code != 0 and "invalid job id" not in completed.err.lower():
            raise _failure("scontrol", completed.err)
        return allocation.read(job_id, completed.out)

    def foreign_job(self, job_id: str) -> ForeignJob | None:
        """Return a job of any user that Slurm or its accounting remembers. Raises ``SchedulerError``."""
        from clusterrun.slurm import foreign_job  # slow to import, so only for jobs of others

        job_record = self._tried(("scontrol", "show", "job", job_id))
        if job_record.code == 0 and (job := foreign_job.read_shown(job_id, job_record.out)):
            # scontrol shows the other components of a heterogeneous job with the first one only.
            return job if job.het_leader in ("", job.number) else self.foreign_job(job.het_leader)
        if not re.search(r"(?i)invalid job id|job \S+ not found", job_record.err + job_record.out):
            raise _failure("scontrol", job_record.err)
        recorded = self._tried(foreign_job.accounting_argv(job_id))
        return foreign_job.read_accounting(job_id, recorded.out) if recorded.code == 0 else None

    def output_files(self, job: ForeignJob) -> tuple[str, ...]:
        """Return the names or globs of the output files of a job that has ended; () if Slurm forgot them."""
        from clusterrun.slurm import foreign_job

        if job.output:
            return tuple(dict.fromkeys(filter(None, (job.output, job.error_output))))
        for argv in foreign_job.output_argvs(job.job_id):
            answer = self._tried(argv)
            if answer.code == 0 and (files := foreign_job.read_outputs(job, answer.out)):
                return files
        return ()

    def step_files(self, job: ForeignJob) -> tuple[str, ...]:
        """Return the names or globs of files that steps of an ended job may have written."""
        from clusterrun.slurm import foreign_job

        answer = self._tried(foreign_job.steps_argv(job.job_id))
        return foreign_job.read_steps(job, answer.out) if answer.code == 0 else ()

    def finished(self, job_ids: Sequence[str]) -> tuple[JobRow, ...]:
        """Return the accounting's rows for ``job_ids``; none if the site has no accounting."""
        return self._account(f"--jobs={','.join(job_ids)}") if job_ids else ()

    def energy(self, job_ids: Sequence[str], since: float, until: float) -> int | None:
        """Return the joules that ``job_ids`` consumed; None if the site measures none.

        ``since`` and ``until`` limit the search, because other jobs had the same numbers before and after.
        """
        texts = map(system.text_of, (self._environment.get("SLURM_CONF", ""), *CONFIGURATIONS, *FETCHED))
        measured_by = _setting(next(filter(None, texts), ""), "AcctGatherEnergyType") if job_ids else ""
        if not measured_by or measured_by.endswith("none"):
            return None
        mark = _mark()
        began, ended = (round(self._clock.now() - moment) for moment in (since, until))
        options = ("--duplicates", f"--jobs={','.join(job_ids)}")
        times = (f"--starttime={_ago(began)}", f"--endtime={_ago(ended)}")
        argv = queries.ENERGY.argv(mark, *options, *times)
        try:
            completed = self._run(argv, ENERGY_SECONDS, env=self._environment)
            if completed.code != 0:
                return None
            return queries.joules_of_jobs(queries.ENERGY.rows(completed.out, mark), job_ids)
        except (system.ProgramMissing, system.ProgramTimeout, SchedulerError):
            return None

    def find(self, token: str) -> str:
        """Return the id of this user's job or array whose comment holds ``token``; '' if there is none."""
        job_id = _found(self.jobs(), token)
        if job_id:
            return job_id
        try:
            return _found(self._account(f"--user={self._user}", "--starttime=now-7days"), token)
        except SchedulerError:
            return ""  # the queue has answered, and it knows recent jobs

    def partitions(self) -> tuple[PartitionOffer, ...]:
        return queries.partition_offers(self._rows(queries.PARTITIONS))

    def queue(self) -> tuple[QueueRow, ...]:
        """Return the running and waiting jobs of all users that Slurm shows to this user.

        Raises as ``jobs`` does.
        """
        return queries.queue_rows(self._rows(queries.QUEUE))

    def reservations(self) -> tuple[ReservationRow, ...]:
        """Return the reservations that Slurm shows to this user. Raises as ``jobs`` does."""
        return queries.read_reservations(self._ask(queries.RESERVATIONS_ARGV))

    def nodes(self) -> tuple[NodeRow, ...]:
        """Return one row per node and partition. Raises as ``jobs`` does."""
        return tuple(NodeRow(**cells) for cells in self._rows(queries.NODES))

    def gpus(self) -> tuple[GpuRow, ...]:
        """Return a row per node, partition and type of GPU. Raises as ``jobs`` does."""
        return queries.read_gpus(self._ask(queries.GPUS_ARGV))

    def cluster_name(self) -> str:
        """Return the cluster's name; ``slurm`` if it cannot be read in time."""
        return _setting(self._configuration, "ClusterName") or UNNAMED

    def identity(self) -> str:
        """Return the cluster as ``NAME@CONTROLLER``; '' if it is unknown.

        Several clusters may share a name.
        """
        text = self._configuration
        host = _setting(text, "SlurmctldHost") or _setting(text, "ControlMachine")
        name, controller = _setting(text, "ClusterName"), host.partition(".")[0].lower()
        return f"{name}@{controller}" if name and controller else ""

    def gives_whole_nodes(self) -> bool:
        """Return whether Slurm allocates whole nodes (``select/linear``), and no GPU to any step."""
        return _setting(self._configuration, "SelectType").lower() == "select/linear"

    def step_options(self) -> tuple[str, ...]:
        """Return the options that give a step beside a job all of its processors, without MPI.

        srun prints a message about ``--cpu-bind`` if no plugin binds, even if it is to be quiet.
        """
        binds = _setting(self._configuration, "TaskPlugin").lower() != "task/none"
        return (*(("--cpu-bind=none",) if binds else ()), "--mpi=none", "--export=ALL", "--quiet")

    def srun_ports(self) -> int:
        """Return the size of the port range of srun (``SrunPortRange``). 0: the kernel chooses the ports."""
        first, dash, last = _setting(self._configuration, "SrunPortRange").partition("-")
        is_range = dash and first.isdecimal() and last.isdecimal() and int(first)
        return max(0, int(last) - int(first) + 1) if is_range else 0

    def kill_wait(self) -> float:
        """Return the seconds from SIGTERM to SIGKILL when Slurm ends a job (``KillWait``, or its default)."""
        text = self._configuration
        seconds = _setting(text, "KillWait")
        if not seconds and re.search(r"(?im)^\s*include\s", text):
            seconds = _setting(self._live_configuration(), "KillWait")
        return float(seconds) if seconds.isdecimal() else KILL_WAIT_SECONDS

    def requeue_exit(self) -> str:
        """Return the exit codes for which Slurm queues a job again, such as ``99`` or ``1-9``."""
        return _setting(self._configuration, "RequeueExit")

    def shares_gpus(self) -> bool:
        """Return whether a step may use the GPUs of another step.

        It may since Slurm 22.05. The answer is True if the version is unknown.
        """
        try:
            version_line = self._run(("srun", "--version"), NAME_SECONDS, env=self._environment).out
        except (system.ProgramMissing, system.ProgramTimeout):
            return True
        version = re.search(r"(\d+)\.(\d+)", version_line)
        return not version or (int(version[1]), int(version[2])) >= (22, 5)

    @cached_property
    def _configuration(self) -> str:
        """Return the first configuration that names the cluster; '' if there is none."""
        for path in (self._environment.get("SLURM_CONF", ""), *CONFIGURATIONS, *FETCHED):
            if _setting(text := system.text_of(path), "ClusterName"):
                return text
        return self._live_configuration()

    def _live_configuration(self) -> str:
        try:
            return self._run(("scontrol", "show", "config"), NAME_SECONDS, env=self._environment).out
        except (system.ProgramMissing, system.ProgramTimeout):
            return ""

    def largest_array(self) -> int:
        """Return how many tasks an array may have.

        MaxArraySize limits the index, max_array_tasks the number.
        """
        paths = (self._environment.get("SLURM_CONF", ""), *CONFIGURATIONS)
        text = next(filter(None, map(system.text_of, paths)), "")
        if not text or re.search(r"(?im)^\s*include\s", text):
            text = self._live_configuration()
        most = re.search(r"(?im)^[^#\n]*\bmax_array_tasks=(\d+)", text)
        size = _setting(text, "MaxArraySize")
        return min(int(size) if size.isdecimal() else LARGEST_ARRAY, int(most[1]) if most else LARGEST_INDEX)

    def plain_number(self, job_id: str) -> str:
        """Return the plain job number of one task of an array (``41_7``).

        It is for programs that accept no other form.
        """
        return self._ask(("squeue", "--noheader", f"--jobs={job_id}", "--format=%A")).strip()

    def sbatch(self, argv: Sequence[str], cwd: str) -> SubmitAnswer:
        """Run ``sbatch`` once, without a retry, and return what is certain about the job."""
        try:
            completed = self._run(argv, SUBMIT_SECONDS, env=self._inherited, cwd=cwd)
        except system.ProgramMissing:
            return SubmitAnswer(SbatchAnswer.ABSENT, NOT_HERE.format(argv[0]))
        except system.ProgramTimeout as error:
            return SubmitAnswer(SbatchAnswer.OPEN, error.seen)
        job_id = sbatch_errors.job_id(completed.out) if completed.code == 0 else ""
        if job_id:
            warning = sbatch_errors.words(completed.err) if completed.err.strip() else ""
            return SubmitAnswer(SbatchAnswer.QUEUED, warning, job_id)
        if completed.code <= 0:
            return SubmitAnswer(SbatchAnswer.OPEN, sbatch_errors.words(completed.err or completed.out))
        return SubmitAnswer(sbatch_errors.kind(completed.err), sbatch_errors.words(completed.err))

    def could_not_start(self, options: Sequence[str], cwd: str) -> str:
        """Return why a job cannot start on the nodes as they are now; '' if it can.

        If that cannot be determined, return the reason for that instead.
        """
        argv = ("sbatch", "--test-only", *options, "--wrap=true")
        try:
            completed = self._run(argv, TEST_SECONDS, env=self._inherited, cwd=cwd)
        except (system.ProgramMissing, system.ProgramTimeout) as error:
            return error.seen
        return sbatch_errors.words(completed.err) or f"exit code {completed.code}" if completed.code else ""

    def misread_by_srun(self, options: Sequence[str]) -> str:
        """Return srun's message about an option that it does not know or cannot read; '' if there is none.

        srun reads the options before it shows its help, and starts nothing.
        """
        try:
            completed = self._run(("srun", *options, "--help"), NAME_SECONDS, env=self._inherited)
        except (system.ProgramMissing, system.ProgramTimeout):
            return ""
        return sbatch_errors.words(completed.err) if completed.code else ""

    def cancel(self, job_ids: Sequence[str]) -> None:
        """Cancel jobs. A job that has already ended is not an error. Raises as ``jobs`` does."""
        if not job_ids:
            return
        # The tasks of an array become one argument, ``41_[0-3,7]``: scancel sends one message per argument.
        arrays: dict[str, list[str]] = {}
        for job_id in job_ids:
            array, _, task = job_id.partition("_")
            arrays.setdefault(array if task else job_id, []).append(job_id)
        targets = [fold(ids) if len(ids) > 1 else ids[0] for ids in arrays.values()]
        completed = self._tried(("scancel", *targets))
        messages = [line for line in completed.err.splitlines() if line.strip()]
        ended_phrases = sbatch_errors.ENDED_ALREADY
        other_messages = [
            line for line in messages if not any(phrase in line.lower() for phrase in ended_phrases)
        ]
        if completed.code != 0 and other_messages:
            raise _failure("scancel", "\n".join(other_messages))

    def _account(self, *options: str) -> tuple[JobRow, ...]:
        """Return the accounting's rows; none if the site has no accounting.

        The newest row of a requeued job comes last.
        """
        mark = _mark()
        try:
            completed = self._run(
                queries.FINISHED.argv(mark, *options), ANSWER_SECONDS, env=self._environment
            )
        except system.ProgramMissing:
            return ()
        except system.ProgramTimeout as error:
            raise SchedulerUnreachable(f"the accounting does not answer: {error.seen}", _DOWN) from error
        if completed.code != 0:
            if "accounting storage is disabled" in completed.err.lower():
                return ()
            raise SchedulerError(f"sacct failed: {sbatch_errors.words(completed.err)}", "see man sacct")
        return tuple(JobRow(**cells) for cells in queries.FINISHED.rows(completed.out, mark))

    def node_reasons(self, nodes: str, partition: str = "") -> str:
        """Return which nodes are down or drained, and why, as Slurm or an administrator noted it.

        Without ``nodes`` all nodes of the partition are meant, or of all partitions. Return '' if unknown.
        """
        where = f"--nodes={nodes}" if nodes else f"--partition={partition}" if partition else "--all"
        argv = ("sinfo", "--noheader", "--list-reasons", where, "--format=%N: %E")
        try:
            reasons = some_of(tuple(dict.fromkeys(self._ask(argv).splitlines())), 4)
        except SchedulerError:
            return ""
        return reasons.removeprefix(f"{nodes}: ")

    def _rows(self, query: Query, *options: str) -> Iterator[dict[str, Any]]:
        mark = _mark()
        return query.rows(self._ask(query.argv(mark, *options)), mark)

    def _ask(self, argv: Sequence[str]) -> str:
        completed = self._tried(argv)
        if completed.code != 0:
            raise _failure(argv[0], completed.err)
        return completed.out

    def _tried(self, argv: Sequence[str]) -> system.Completed:
        """Run a query. Retry it after a pause if it failed quickly with a temporary error."""
        for pause in PAUSES:
            completed = self._once(argv)
            passes = any(phrase in completed.err.lower() for phrase in PASSING)
            if completed.code == 0 or completed.seconds >= QUICK_SECONDS or not passes:
                return completed
            self._clock.sleep(pause)
        return self._once(argv)

    def _once(self, argv: Sequence[str]) -> system.Completed:
        try:
            return self._run(argv, ANSWER_SECONDS, env=self._environment)
        except system.ProgramMissing as error:
            raise SchedulerError(NOT_HERE.format(argv[0]), "run this where Slurm's programs are") from error
        except system.ProgramTimeout as error:
            raise SchedulerUnreachable(f"Slurm does not answer: {error.seen}", _DOWN) from error


def _setting(configuration: str, key: str) -> str:
    setting = re.search(rf"(?im)^\s*{key}(?:\[0\])?\s*=\s*([^\s#(]+)", configuration)
    return setting[1] if setting else ""


def _found(rows: Sequence[JobRow], token: str) -> str:
    ids = [row.job_id for row in rows if token in row.comment and (row.nodelist or row.word != "FAILED")]
    return ids[-1].partition("_")[0] if ids else ""


def _ago(seconds: int) -> str:
    return f"now-{seconds}seconds" if seconds > 0 else "now"


def _mark() -> str:
    return f"<{os.urandom(8).hex()}>"


def _failure(program: str, err: str) -> SchedulerError:
    message = sbatch_errors.words(err)
    if any(phrase in err.lower() for phrase in (*sbatch_errors.NEVER_REACHED, *sbatch_errors.LEFT_OPEN)):
        return SchedulerUnreachable(f"Slurm does not answer: {message}", _DOWN)
    return SchedulerError(f"{program} failed: {message}", f"see man {program}")
