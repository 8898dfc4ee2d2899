"""The only caller of Slurm's programs: asks once for all jobs, every wait limited."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from clusterrun import system
from clusterrun.model.contract import KILL_WAIT_SECONDS
from clusterrun.model.errors import SchedulerError, SchedulerUnreachable
from clusterrun.model.frozen import frozen
from clusterrun.model.hostlist import fold
from clusterrun.slurm import queries, sbatch_errors
from clusterrun.slurm.queries import JobRow, NodeRow, PartitionOffer, QueueRow
from clusterrun.slurm.sbatch_errors import SbatchAnswer

if TYPE_CHECKING:
    from clusterrun.slurm.allocation import Allocation
    from clusterrun.slurm.foreign_job import ForeignJob

ANSWER_SECONDS = 30.0
"""Limit for a query; Slurm's own is 10 s for a message, and it tries each controller."""
SUBMIT_SECONDS = 180.0
"""sbatch by itself tries for up to two minutes while the controller says that its queue is full."""
PASSING = ("zero bytes", "rate limit", "try again", "temporarily")
QUICK_SECONDS = 2.0
PAUSES = (0.5, 1.5)
"""Before a query that failed quickly is asked again."""
CONFIGURATIONS = ("/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf", "/usr/local/etc/slurm.conf")
FETCHED = ("/run/slurm/conf/slurm.conf", "/var/spool/slurmd/conf-cache/slurm.conf")
"""Where Slurm keeps what it fetched from the controller, on sites without configuration files."""
MUNGE = ("/run/munge/munge.socket.2", "/var/run/munge/munge.socket.2")
_LOGIN = r"(?i)(?:^|[-_.])(?:login|headnode|frontend|submit)(?:[-_]?(?:node)?\d*)(?=[-_.]|$)"
"""Names of machines where jobs are submitted and nothing is computed."""
UNNAMED = "slurm"
NAME_SECONDS = 5.0
TEST_SECONDS = 3.0
ENERGY_SECONDS = 5.0
LARGEST_ARRAY, LARGEST_INDEX = 1001, 4_000_001
"""What Slurm takes by default, and at most."""
NOT_HERE = "no program named {0} is on PATH"
_DOWN = "try again in a while; `scontrol ping` says whether the controller is up"


ProgramRunner = Callable[..., system.Completed]
"""``system.run``, or a stand-in with recorded answers."""


@frozen
class SubmitAnswer:
    """The result of one ``sbatch``: what is known, Slurm's message, and the job's id if it gave one."""

    kind: SbatchAnswer
    said: str
    job_id: str = ""


class SlurmClient:
    """Slurm as seen from this machine by this user; ``environment`` is what its programs get."""

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
        """Why Slurm cannot be used here, in a sentence; '' where it can.

        Its programs are here and a configuration is named or lies where it usually does: that is
        enough, so that a controller that is down is an error and no reason to run elsewhere.
        Otherwise ``scontrol`` is asked (a site without configuration files, or an unusual place).
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
            done = self._run(("scontrol", "ping"), 10.0, env=self._environment)
        except (system.ProgramMissing, system.ProgramTimeout) as error:
            return error.seen
        if done.code == 0 or "UP" in done.out:
            return ""
        return f"Slurm's programs know no cluster ({sbatch_errors.words(done.err).split('; ')[-1]})"

    def of_a_cluster(self, host: str) -> str:
        """What shows that this machine is of a cluster; Slurm's programs do not: anybody may install them."""
        if self._environment.get("SLURM_CONF"):
            return "SLURM_CONF is set"
        if any(map(os.path.exists, MUNGE)):
            return "munge runs here, by which Slurm authenticates"
        return f"its name is {host}" if re.search(_LOGIN, host) else ""

    def jobs(self) -> tuple[JobRow, ...]:
        """This user's jobs that Slurm still remembers (ended ones for some minutes), in one question."""
        mark = _mark()
        return queries.read_jobs(self._ask(queries.jobs_argv(self._user, mark)), mark)

    def allocation(self, job_id: str) -> Allocation:
        """The nodes and GPUs of a job that runs. Raises ``BadInput`` if it does not, and as ``jobs``."""
        from clusterrun.slurm import allocation  # `status` needs none of its patterns

        done = self._tried(allocation.argv(job_id))
        if done.code != 0 and "invalid job id" not in done.err.lower():
            raise _failure("scontrol", done.err)
        return allocation.read(job_id, done.out)

    def foreign_job(self, job_id: str) -> ForeignJob | None:
        """Return a job of anybody, which Slurm or its accounting remembers. Raises ``SchedulerError``."""
        from clusterrun.slurm import foreign_job  # only a word that means no run needs it

        shown = self._tried(foreign_job.show_argv(job_id))
        if shown.code == 0 and (job := foreign_job.read_shown(job_id, shown.out)):
            return job
        if "invalid job id" not in shown.err.lower():
            raise _failure("scontrol", shown.err)
        recorded = self._tried(foreign_job.accounting_argv(job_id))
        return foreign_job.read_accounting(job_id, recorded.out) if recorded.code == 0 else None

    def finished(self, job_ids: Sequence[str]) -> tuple[JobRow, ...]:
        """What the accounting knows of ``job_ids``; nothing if a site has no accounting."""
        mark = _mark()
        return self._account(queries.finished_argv(job_ids, mark), mark) if job_ids else ()

    def energy(self, job_ids: Sequence[str], since: float, until: float) -> int | None:
        """The joules that ``job_ids`` consumed; None if the site measures none. For before
        and after them other jobs had these numbers.
        """
        texts = map(system.text_of, (self._environment.get("SLURM_CONF", ""), *CONFIGURATIONS, *FETCHED))
        measured_by = _setting(next(filter(None, texts), ""), "AcctGatherEnergyType") if job_ids else ""
        if not measured_by or measured_by.endswith("none"):
            return None
        mark = _mark()
        began, ended = (round(self._clock.now() - one) for one in (since, until))
        argv = queries.energy_argv(job_ids, _ago(began), _ago(ended), mark)
        try:
            done = self._run(argv, ENERGY_SECONDS, env=self._environment)
            return queries.read_energy(done.out, job_ids, mark) if done.code == 0 else None
        except (system.ProgramMissing, system.ProgramTimeout, SchedulerError):
            return None

    def find(self, token: str) -> str:
        """The id of this user's job, or array, whose comment holds ``token``; '' where there is none."""
        mark = _mark()
        job_id = _found(self.jobs(), token)
        if job_id:
            return job_id
        try:
            return _found(self._account(queries.since_argv(self._user, "now-7days", mark), mark), token)
        except SchedulerError:
            return ""  # the queue has spoken, and it remembers what was submitted just now

    def partitions(self) -> tuple[PartitionOffer, ...]:
        mark = _mark()
        return queries.read_partitions(self._ask(queries.partitions_argv(mark)), mark)

    def queue(self) -> tuple[QueueRow, ...]:
        """Everybody's jobs that run or wait, as far as this user is shown them. Raises as ``jobs`` does."""
        mark = _mark()
        return queries.read_queue(self._ask(queries.queue_argv(mark)), mark)

    def nodes(self) -> tuple[NodeRow, ...]:
        """Every node in each of its partitions. Raises as ``jobs`` does."""
        mark = _mark()
        return queries.read_nodes(self._ask(queries.nodes_argv(mark)), mark)

    def cluster_name(self) -> str:
        """What this cluster calls itself; ``slurm`` where that cannot be found out soon."""
        return _setting(self._configuration, "ClusterName") or UNNAMED

    def identity(self) -> str:
        """Which cluster this is, as ``NAME@CONTROLLER``: many are called alike; '' where it is not known."""
        text = self._configuration
        host = _setting(text, "SlurmctldHost") or _setting(text, "ControlMachine")
        name, controller = _setting(text, "ClusterName"), host.partition(".")[0].lower()
        return f"{name}@{controller}" if name and controller else ""

    def gives_whole_nodes(self) -> bool:
        """Whether Slurm hands out whole nodes (``select/linear``), and no GPU to any step."""
        return _setting(self._configuration, "SelectType").lower() == "select/linear"

    def srun_ports(self) -> int:
        """From how many ports an srun may choose its own (``SrunPortRange``); 0: from the kernel's."""
        first, dash, last = _setting(self._configuration, "SrunPortRange").partition("-")
        known = dash and first.isdecimal() and last.isdecimal() and int(first)
        return max(0, int(last) - int(first) + 1) if known else 0

    def kill_wait(self) -> float:
        """Seconds from SIGTERM to SIGKILL when Slurm ends a job (``KillWait``; its default if unknown)."""
        text = self._configuration
        seconds = _setting(text, "KillWait")
        if not seconds and re.search(r"(?im)^\s*include\s", text):
            seconds = _setting(self._asked_configuration(), "KillWait")
        return float(seconds) if seconds.isdecimal() else KILL_WAIT_SECONDS

    def shares_gpus(self) -> bool:
        """Whether a step may have the GPUs of another: since Slurm 22.05; where unknown, yes."""
        try:
            said = self._run(("srun", "--version"), NAME_SECONDS, env=self._environment).out
        except (system.ProgramMissing, system.ProgramTimeout):
            return True
        found = re.search(r"(\d+)\.(\d+)", said)
        return not found or (int(found[1]), int(found[2])) >= (22, 5)

    @cached_property
    def _configuration(self) -> str:
        """The first configuration that names the cluster; '' where nobody answers."""
        for path in (self._environment.get("SLURM_CONF", ""), *CONFIGURATIONS, *FETCHED):
            if _setting(text := system.text_of(path), "ClusterName"):
                return text
        return self._asked_configuration()

    def _asked_configuration(self) -> str:
        try:
            return self._run(("scontrol", "show", "config"), NAME_SECONDS, env=self._environment).out
        except (system.ProgramMissing, system.ProgramTimeout):
            return ""

    def largest_array(self) -> int:
        """How many tasks an array may have: MaxArraySize bounds the index, max_array_tasks the number."""
        paths = (self._environment.get("SLURM_CONF", ""), *CONFIGURATIONS)
        text = next(filter(None, map(system.text_of, paths)), "")
        if not text or re.search(r"(?im)^\s*include\s", text):
            text = self._asked_configuration()
        most = re.search(r"(?im)^[^#\n]*\bmax_array_tasks=(\d+)", text)
        size = _setting(text, "MaxArraySize")
        return min(int(size) if size.isdecimal() else LARGEST_ARRAY, int(most[1]) if most else LARGEST_INDEX)

    def plain_number(self, job_id: str) -> str:
        """The number of one task of an array (``41_7``), for programs that take no other."""
        return self._ask(("squeue", "--noheader", f"--jobs={job_id}", "--format=%A")).strip()

    def sbatch(self, argv: Sequence[str], cwd: str) -> SubmitAnswer:
        """Run ``sbatch`` once, never again: what is known then, in one value."""
        try:
            done = self._run(argv, SUBMIT_SECONDS, env=self._inherited, cwd=cwd)
        except system.ProgramMissing:
            return SubmitAnswer(SbatchAnswer.ABSENT, NOT_HERE.format(argv[0]))
        except system.ProgramTimeout as error:
            return SubmitAnswer(SbatchAnswer.OPEN, error.seen)
        job_id = sbatch_errors.job_id(done.out) if done.code == 0 else ""
        if job_id:
            return SubmitAnswer(SbatchAnswer.QUEUED, sbatch_errors.words(done.err), job_id)
        if done.code <= 0:
            return SubmitAnswer(SbatchAnswer.OPEN, sbatch_errors.words(done.err or done.out))
        return SubmitAnswer(sbatch_errors.kind(done.err), sbatch_errors.words(done.err))

    def could_not_start(self, options: Sequence[str], cwd: str) -> str:
        """Why a job could not start as the nodes are now, or why that is not known; '' if it could start."""
        argv = ("sbatch", "--test-only", *options, "--wrap=true")
        try:
            done = self._run(argv, TEST_SECONDS, env=self._inherited, cwd=cwd)
        except (system.ProgramMissing, system.ProgramTimeout) as error:
            return error.seen
        return sbatch_errors.words(done.err) or f"exit code {done.code}" if done.code else ""

    def cancel(self, job_ids: Sequence[str]) -> None:
        """End jobs; those that have ended already are no error. Raises as ``jobs`` does."""
        if not job_ids:
            return
        done = self._tried(("scancel", *_in_few_words(job_ids)))
        said = [line for line in done.err.splitlines() if line.strip()]
        over = sbatch_errors.ENDED_ALREADY
        rest = [line for line in said if not any(words in line.lower() for words in over)]
        if done.code != 0 and rest:
            raise _failure("scancel", "\n".join(rest))

    def _account(self, argv: Sequence[str], mark: str) -> tuple[JobRow, ...]:
        try:
            done = self._run(argv, ANSWER_SECONDS, env=self._environment)
        except system.ProgramMissing:
            return ()
        except system.ProgramTimeout as error:
            raise SchedulerUnreachable(f"the accounting does not answer: {error.seen}", _DOWN) from error
        if done.code != 0:
            if "accounting storage is disabled" in done.err.lower():
                return ()
            raise SchedulerError(f"sacct failed: {sbatch_errors.words(done.err)}", "see man sacct")
        return queries.read_finished(done.out, mark)

    def _ask(self, argv: Sequence[str]) -> str:
        done = self._tried(argv)
        if done.code != 0:
            raise _failure(argv[0], done.err)
        return done.out

    def _tried(self, argv: Sequence[str]) -> system.Completed:
        """Asked again, after a pause, only where the failure came quickly and is one that passes."""
        for pause in PAUSES:
            done = self._once(argv)
            passes = any(words in done.err.lower() for words in PASSING)
            if done.code == 0 or done.seconds >= QUICK_SECONDS or not passes:
                return done
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
    found = re.search(rf"(?im)^\s*{key}(?:\[0\])?\s*=\s*([^\s#(]+)", configuration)
    return found[1] if found else ""


def _found(rows: Sequence[JobRow], token: str) -> str:
    ids = [row.job_id for row in rows if token in row.comment and (row.nodelist or row.word != "FAILED")]
    return ids[-1].partition("_")[0] if ids else ""


def _ago(seconds: int) -> str:
    return f"now-{seconds}seconds" if seconds > 0 else "now"


def _in_few_words(job_ids: Sequence[str]) -> list[str]:
    """The tasks of an array in one word, ``41_[0-3,7]``: scancel sends a message for each word."""
    arrays: dict[str, list[str]] = {}
    for job_id in job_ids:
        array, _, task = job_id.partition("_")
        arrays.setdefault(array if task else job_id, []).append(job_id)
    return [fold(ids) if len(ids) > 1 else ids[0] for ids in arrays.values()]


def _mark() -> str:
    return f"<{os.urandom(8).hex()}>"


def _failure(program: str, err: str) -> SchedulerError:
    said = sbatch_errors.words(err)
    if any(words in err.lower() for words in (*sbatch_errors.NEVER_REACHED, *sbatch_errors.LEFT_OPEN)):
        return SchedulerUnreachable(f"Slurm does not answer: {said}", _DOWN)
    return SchedulerError(f"{program} failed: {said}", f"see man {program}")
