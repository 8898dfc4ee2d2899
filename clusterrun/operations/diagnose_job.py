"""Find out why a Slurm job hangs that clusterrun did not start: look at its ranks from a step beside them."""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections.abc import Sequence

from clusterrun.atomic_file import write_whole
from clusterrun.diagnosis.decide import Judgement
from clusterrun.diagnosis.job_log import JobLog
from clusterrun.diagnosis.job_looks import JobLook
from clusterrun.diagnosis.job_worlds import JobHistory, diagnose_looks, worlds_of
from clusterrun.diagnosis.log_suspects import calls_of_other_groups
from clusterrun.diagnosis.rules.different_places import CERTAINTY
from clusterrun.diagnosis.stacks import location, script_has_ended
from clusterrun.diagnosis.verdict import Culprit, Diagnosis, Verdict, ranks_in_words, unfolded
from clusterrun.model.frozen import replace
from clusterrun.model.hostlist import fold
from clusterrun.operations.context import Context, Tell, quiet
from clusterrun.operations.diagnose import longer_limit
from clusterrun.operations.diagnose_log import failure_in_output, output_of
from clusterrun.operations.job_step import (
    NotPlaced,
    check_live,
    input_argv,
    looks_in,
    program_argv,
    refusal,
    run_step,
    step_argv,
    user_name,
)
from clusterrun.operations.submit import program_for_nodes
from clusterrun.runs.private_files import private_folder
from clusterrun.slurm.foreign_job import ForeignJob

# Seconds of a look, and of the longer ones after it if a rank may still go on by itself.
FIRST_LOOK, LONG_LOOK = 1.0, 5.0
# Seconds that a look may take beside its length: the step's start, and py-spy on every rank.
ANSWER_SECONDS = 20.0
MOST_PAUSE = 15.0


def diagnose_job(
    context: Context, job: ForeignJob, limit: float, tell: Tell = quiet, user: str = ""
) -> Diagnosis:
    """Return the diagnosis of a running job. Looks are repeated for at most ``limit`` seconds.

    Raise ``BadInput`` if the job does not run or is of somebody else, ``NotPlaced`` if no step can look.
    """
    nodes = check_live(job, user)
    looker = LookStep(context, job, nodes, user)
    clock, history = context.clock, JobHistory()
    began, (size, _) = clock.monotonic(), _output(job)
    until = began + limit
    tell(f"looking at {fold(nodes)}, where job {job.job_id} runs")
    judgement = looker.judge(FIRST_LOOK, limit, history)
    while not judgement.certain:
        seconds_left = until - clock.monotonic()
        pause = max(0.0, min(judgement.later - LONG_LOOK, MOST_PAUSE, seconds_left - 2 * LONG_LOOK))
        if seconds_left < 2 * LONG_LOOK:
            break
        tell(f"so far: {judgement.diagnosis.message}; looking again, for at most {seconds_left:.0f} s")
        clock.sleep(pause)
        try:
            judgement = looker.judge(LONG_LOOK, until - clock.monotonic(), history)
        except NotPlaced as error:
            tell(f"{error}: this is what the looks before it show")
            break
    diagnosis = replace(judgement.diagnosis, at=clock.now())
    grown = _output(job)[0] - size
    if grown > 0 and not diagnosis.culprits:
        growth = f"{job.output} grew by {grown} bytes within {clock.monotonic() - began:.0f} s"
        diagnosis = replace(diagnosis, evidence=(*diagnosis.evidence, growth))
    if diagnosis.verdict is not Verdict.NOTHING:
        diagnosis = _with_output(diagnosis, output_of(context, job), job.output, looker)

    # The commands of a diagnosis name no run: name the job in them, and the file of its output.
    def named(text: str) -> str:
        if job.output:
            text = text.replace("its output says more", f"{job.output} says more")
        for command in ("exec", "shell", "top"):
            text = text.replace(f"clusterrun {command} ", f"clusterrun {command} {job.job_id} ")
        return text

    culprits = tuple(
        Culprit(culprit.rank, culprit.node, named(culprit.why)) for culprit in diagnosis.culprits
    )
    remedy = named(diagnosis.remedy)
    is_open = judgement.later > 0 or diagnosis.verdict is not Verdict.NOTHING
    if is_open and not judgement.certain and not culprits:
        longer = f"the look ended after {limit:.0f} s; {longer_limit(limit)} looks longer"
        remedy = "; ".join(filter(None, (remedy, longer)))
    return replace(diagnosis, message=named(diagnosis.message), culprits=culprits, remedy=remedy)


def _with_output(diagnosis: Diagnosis, log: JobLog, path: str, looker: LookStep) -> Diagnosis:
    """Add what the job's output says of a failure, or of calls that torch did not run.

    Ranks that torch did not let into the very call in which all others wait are the culprits.
    """
    evidence = diagnosis.evidence
    if failure := failure_in_output(log):
        if looker.all_run:
            # The process that printed the error still runs.
            error = failure.message.rpartition(" failed first: ")[2]
            evidence = (*evidence, f"{path} shows an error that ended no rank: {error}")
        else:
            evidence = (f"{path} tells of a failure: {failure.message}", *evidence)
            diagnosis = replace(diagnosis, remedy=failure.remedy or diagnosis.remedy)
            failed = [culprit.rank for culprit in failure.culprits]
            if failed and failed == [culprit.rank for culprit in diagnosis.culprits]:
                whom = "it" if len(failed) == 1 else "them"
                message = f"{failure.message}; the others wait for {whom}"
                diagnosis = replace(diagnosis, message=message)
    for call, ranks in calls_of_other_groups(log).items():
        outside = f"{ranks_in_words(ranks)} called {call} of a group of other ranks"
        evidence = (f"{path} shows that {outside}, and went on without it", *evidence)
        waiting = [group for group in diagnosis.groups if location(group.stack).operation == call]
        inside = {rank for group in waiting for rank in unfolded(group.ranks)}
        is_rest = bool(inside) and ranks == looker.node_by_rank.keys() - inside
        if is_rest and diagnosis.verdict is Verdict.MISMATCH and not diagnosis.culprits:
            why = f"it called {call} of a group of other ranks"
            message = f"{outside}, and {ranks_in_words(inside)} wait for them in {call}"
            culprits = tuple(Culprit(rank, looker.node_by_rank[rank], why) for rank in sorted(ranks))
            remedy = f"let these ranks pass the group that they are in to {call}"
            diagnosis = replace(
                diagnosis, message=message, culprits=culprits, certainty=CERTAINTY, remedy=remedy
            )
    return replace(diagnosis, evidence=evidence)


def _output(job: ForeignJob) -> tuple[int, float]:
    """Return size and time of the last change of the job's output; zeros if it cannot be read."""
    try:
        status = os.stat(job.output)
        return status.st_size, status.st_mtime
    except OSError:
        return 0, 0.0


def ranks_of(context: Context, job: ForeignJob, nodes: Sequence[str]) -> dict[int, list[tuple[str, int]]]:
    """Return node and process of each rank in each of the job's worlds, the largest world first."""
    looks, mute = LookStep(context, job, nodes, "").look(0.0, ANSWER_SECONDS)
    places: dict[int, list[tuple[str, int]]] = {}
    for world in worlds_of(looks, not mute):
        for rank in world.ranks:
            if rank.state:
                places.setdefault(rank.rank, []).append((rank.node, rank.process.pid))
    return places


class LookStep:
    """Looks at all nodes of a job through one step at a time."""

    def __init__(self, context: Context, job: ForeignJob, nodes: Sequence[str], user: str) -> None:
        self._context, self._job, self._nodes, self._user = context, job, nodes, user
        self._program = program_for_nodes(context)
        self._spy = spy_folder(context, is_shared=user in ("", user_name()))
        self.all_run = False  # the scripts of all ranks ran at the newest look
        self.node_by_rank: dict[int, str] = {}  # of the newest look
        # The newest judgement of a look that most nodes answered, and the number of nodes that did not.
        self._fullest: tuple[Judgement, int] | None = None

    def judge(self, seconds: float, limit: float, history: JobHistory) -> Judgement:
        """Look for ``seconds`` and judge. Raise ``ClusterrunError`` if no node answers.

        If fewer nodes answer than before, as crowded ones near the limit, the judgement before holds.
        """
        looks, mute = self.look(seconds, limit)
        if self._fullest and len(mute) > self._fullest[1]:
            judgement = self._fullest[0]
            lines = (f"no answer from {node} to the last look: {why}" for node, why in mute)
            evidence = tuple(dict.fromkeys((*judgement.diagnosis.evidence, *lines)))
            return replace(judgement, diagnosis=replace(judgement.diagnosis, evidence=evidence))
        _, changed_at = _output(self._job)
        quiet = self._context.clock.now() - changed_at if changed_at else math.inf
        ranks = [rank for world in worlds_of(looks, not mute) for rank in world.ranks]
        running = [rank for rank in ranks if rank.state and not script_has_ended(rank.stacks.main)]
        self.all_run = len(running) == len(ranks) > 0
        self.node_by_rank = {rank.rank: rank.node for rank in ranks}
        judgement = diagnose_looks(looks, mute, history, quiet)
        self._fullest = judgement, len(mute)
        return judgement

    def look(self, seconds: float, limit: float) -> tuple[list[JobLook], list[tuple[str, str]]]:
        """Return the looks of the nodes that answered, and the nodes that did not, with the reason."""
        arguments = ("look", self._job.number, f"{seconds:g}", self._spy)
        is_other_user = self._user not in ("", user_name())
        program = input_argv(*arguments) if is_other_user else program_argv(self._program, *arguments)
        argv = step_argv(self._context, self._job, self._nodes, program)
        allowed = max(2 * seconds, min(limit, seconds + ANSWER_SECONDS))
        if is_other_user:
            # The other user may not read files of this one.
            argv = ("runuser", "-u", self._user, "--", *argv)
            with open(self._program, "rb") as file:
                answer = run_step(self._context, argv, allowed, file)
        else:
            answer = run_step(self._context, argv, allowed)
        looks = looks_in(answer.out, JobLook)
        if not looks:
            error = refusal(self._context, self._job, answer, self._nodes)
            if 0 < answer.late < ANSWER_SECONDS:
                error.remedy = f"{longer_limit(limit)} waits longer\n{error.remedy}"
            raise error
        order = {node: index for index, node in enumerate(self._nodes)}
        looks.sort(key=lambda look: order.get(look.node, len(order)))
        silent = [node for node in self._nodes if node not in {look.node for look in looks}]
        why = f"within {allowed:.0f} s" if answer.late else "the step ended there without one"
        # srun may say why a node is silent.
        lines = [line.removeprefix("srun: ").removeprefix("error: ") for line in answer.err.splitlines()]
        return looks, [(node, next((line[:200] for line in lines if node in line), why)) for node in silent]


def spy_folder(context: Context, is_shared: bool = True) -> str:
    """Return the folder of a py-spy that nodes can run; '' if this machine has none.

    It is copied beside the program for nodes, because the nodes may not see the client's environment. Only
    this user can read the copy, so it is not used if the step is another user's (not ``is_shared``).
    """
    places = (os.path.dirname(os.path.abspath(sys.executable)), context.environ.get("PATH", os.defpath))
    program = shutil.which("py-spy", path=os.pathsep.join(places))
    if not program or not is_shared:
        return os.path.dirname(program or "")
    folder = os.path.join(context.store.home, "cache", f"py-spy-{os.stat(program).st_size}")
    copy = os.path.join(folder, "py-spy")
    try:
        if not os.path.exists(copy):
            private_folder(folder)
            with open(program, "rb") as file:
                write_whole(copy, file.read(), mode=0o700)
    except OSError:
        return os.path.dirname(program)
    return folder
