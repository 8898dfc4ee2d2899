"""Decide the state of a run from the reports of all sources. Reads no files and queries no scheduler.

There are four sources: the record (the request), the coordinator (``state.json``), the scheduler (a row of
squeue, or a local process), and a request to cancel. They can disagree: a node dies with its coordinator,
Slurm forgets a job after minutes, a controller does not answer.
"""

from __future__ import annotations

from clusterrun.model import contract
from clusterrun.model.duration import moment, spoken
from clusterrun.model.frozen import frozen, replace
from clusterrun.model.hostlist import fold
from clusterrun.model.record import Failure, OrphanReport, RunRecord, RunState, RunStatus
from clusterrun.model.spec import Cluster
from clusterrun.model.states import Phase, State
from clusterrun.operations import lost_nodes
from clusterrun.operations.run_files import recorded
from clusterrun.runs.store import FORGOTTEN
from clusterrun.slurm.queries import JobRow
from clusterrun.slurm_text import job_states
from clusterrun.slurm_text.reasons import explain

STALE_SECONDS = 3 * contract.STATE_SECONDS
# Seconds without an answer after which a submission counts as lost. The search for its job is far shorter.
QUEUEING_SECONDS = 300.0

# Seconds. Slurm expects a start a year from now if jobs without a time limit are ahead. That is no estimate.
GUESSED_SECONDS = 90 * 86400.0
WILL_NEVER = "will never start"
SCHEDULER_KNOWS_BEST = (State.TIMEOUT, State.PREEMPTED, State.NODE_FAIL, State.OUT_OF_MEMORY)
ASKED = "by clusterrun cancel"
ASKED_INSIDE = "by Ctrl-C or clusterrun cancel"
SILENT = "ended without giving a reason"
NEVER = "DependencyNeverSatisfied"
BEFORE_RANKS = "ended before any rank"
_NOTHING = "its job ended with exit code 0 before any rank was started"
NEVER_BEGAN = f"{_NOTHING} (does a line of --setup end the script?); see job.out"
CANCELLED_UNASKED = "cancelled, but not by clusterrun cancel"
CANCELLED_AT_START = f"{CANCELLED_UNASKED}: nothing was started on its nodes ({contract.PROLOG_FAILS})"
_REMOVED = "the node is down (sinfo -R), or scontrol update made the job smaller"


@frozen
class RunEvidence:
    """The facts about one run."""

    record: RunRecord
    run_dir: str
    now: float  # seconds since the epoch
    state: RunState | None = None
    row: JobRow | None = None  # the job; without an answer, as the scheduler reported it at ``asked_at``
    answered: bool = True  # whether the scheduler answered now; without a row it does not know the job
    asked_at: float | None = None  # time of the scheduler's last answer
    alive: bool | None = None  # whether a local coordinator lives; None if this machine cannot know
    cancel_asked: bool = False
    elsewhere: str = ""  # another cluster that holds the run's jobs; the silence of this one means nothing
    script_error: str = ""  # the reason that the batch script printed for its own end
    before: str = ""  # how the run ended that this run waits for in vain
    waits_for: str = ""  # the runs that have not ended, and that Slurm starts this run after
    node_reason: str = ""  # why nodes left the job, as Slurm or an administrator noted it
    message: OrphanReport | None = None  # the newest message of agents whose coordinator is dead
    damaged: bool = False  # whether a state exists that cannot be read

    @property
    def fresh(self) -> bool:
        """Return whether the coordinator wrote its state recently."""
        return self.state is not None and self.now - self.state.updated_at <= STALE_SECONDS


@frozen
class _Verdict:
    state: State
    phase: Phase
    reason: str = ""
    ended_at: float | None = None  # None: the time in the row or in the state counts
    hopeless: bool = False  # whether the run can never start


def judge(evidence: RunEvidence) -> RunStatus:
    """Return the status of a run."""
    if evidence.record.in_allocation:
        verdict = _in_allocation(evidence)
        evidence = replace(evidence, row=None)  # the nodes and the end of the allocation are not the run's
    else:
        verdict = _local(evidence) if evidence.record.cluster == Cluster.LOCAL.value else _slurm(evidence)
    record, state, row = evidence.record, evidence.state, evidence.row
    ended = verdict.state.ended
    ended_at = verdict.ended_at
    if ended and not ended_at and row and row.end:
        ended_at = row.end
    elif ended and not ended_at and state:
        ended_at = state.ended_at or state.updated_at
    elif not ended:
        ended_at = None
    remedy = ""
    is_deadline = row is not None and row.word == "DEADLINE"
    is_local = record.cluster == Cluster.LOCAL.value
    may_advise = not (record.spec.goes_on or record.in_allocation)
    has_stalled = contract.STALLED in verdict.reason
    if may_advise and verdict.state is State.TIMEOUT and not (is_deadline or has_stalled):
        remedy = "--time allows more" if is_local else "--time asks for more, --requeue continues such a run"
        if record.sweep:
            remedy = f"for more: clusterrun sweep retry --time TIME {record.name.rpartition('.')[0]}"
    elif may_advise and verdict.state is State.NODE_FAIL and not is_local:
        remedy = "--requeue continues such a run"  # sbatch does so, unless it has --no-requeue
    attempts = state.attempts if state else ()
    failure = state.failure if state and verdict.state is not State.COMPLETED and ended else None
    return replace(
        recorded(record, evidence.run_dir, state, _joined(verdict.reason, remedy)),
        job_id=record.job_id or (row.job_id if row else ""),
        state=verdict.state,
        phase=verdict.phase,
        nodelist=_nodelist(evidence),
        attempt=state.epoch if state else 0,
        started_at=state.started_at if state else None,
        ended_at=ended_at,
        exit_code=state.exit_code if state and ended else None,
        failed_at=failure.at if failure else None,
        step=max((attempt.step for attempt in attempts), default=-1),
        checkpoint=max((attempt.checkpoint for attempt in attempts), default=-1),
        heard_at=state.updated_at if state else None,
        hopeless=verdict.hopeless,
        error=_error(failure) if failure else "",
    )


def _error(failure: Failure) -> str:
    """Return the error of the rank that failed, or what it printed last; '' if there is neither.

    Older agents only report last lines.
    """
    if failure.error:
        return failure.error
    if not failure.last_lines or failure.code < 0 or failure.noticed:
        return ""
    from clusterrun.diagnosis.printed_errors import heard, last_message  # only for failed runs

    errors = heard([(failure.rank, "err", failure.at, "\n".join(failure.last_lines))])
    own_errors = [error.text for error in errors if not error.is_consequence]
    last = last_message(failure.last_lines)
    return own_errors[-1] if own_errors else f"printed last: {last}" if last else ""


def _slurm(evidence: RunEvidence) -> _Verdict:
    """Return the verdict on a run in a job of Slurm."""
    state, row = evidence.state, evidence.row
    if row is None or not (evidence.answered or row.state.ended):
        return _without_row(evidence)
    is_over = state is not None and state.state.ended and not _older(evidence, state, row)
    if state and is_over and state.state is State.COMPLETED:
        return _by_state(evidence, state)  # nodes that were lost since do not change a success
    if row.state in SCHEDULER_KNOWS_BEST:
        own_reason = _did_not(state) or _why(evidence)
        is_same_end = state is not None and state.state is row.state and own_reason
        lost = lost_nodes.describe_lost_nodes(state, row) or ("" if is_same_end else row.explained)
        return _Verdict(row.state, Phase.ENDED, _joined(lost, own_reason), row.end)
    # A run that continues in another job waits while Slurm cleans up the nodes of its last job.
    handed_over = row.word == "COMPLETING" and state is not None and state.state is State.PENDING
    # The coordinator may have written since the scheduler reported that the job waits.
    running_at = state.updated_at if state and state.state is State.RUNNING else 0.0
    has_started = evidence.asked_at is not None and evidence.asked_at < running_at <= evidence.now
    if (row.state is State.PENDING or handed_over) and not has_started:
        never = evidence.answered and explain(row.reason).never
        why = _why_queued(row, state, evidence.now)
        if never and evidence.before:
            why = f"{WILL_NEVER}: {evidence.before}"
        elif state is None and evidence.waits_for:
            why = f"waits for the end of {evidence.waits_for}"
        return _Verdict(State.PENDING, Phase.QUEUED, why, hopeless=never)
    if state and is_over:
        return _by_state(evidence, state)
    if row.state.ended:
        return _ended_by_row(evidence, row)
    if row.state is State.UNKNOWN and not evidence.fresh:
        why = f"Slurm reports the state {row.word}, which this version does not know"
        return _Verdict(State.UNKNOWN, _phase(state), why)
    if row.word in job_states.HALTED and evidence.answered:
        return _Verdict(State.RUNNING, _phase(state), halted(row))
    return _running(evidence, _older(evidence, state, row) if state else False)


def halted(row: JobRow) -> str:
    """Return why a job that the scheduler has stopped is silent, and the command that lets it continue."""
    meaning = job_states.read(row.word).meaning
    if row.word == "STOPPED":
        return f"{meaning}: scancel -s CONT {row.job_id}"
    return f"{meaning}: scontrol resume {row.job_id}, or ask the site's staff"


def _why_queued(row: JobRow, state: RunState | None, now: float) -> str:
    """Return why a run waits: the end of its last job, and Slurm's reason."""
    why = _waiting(row, now)
    if state is None:
        return why
    if row.reason == "Dependency":
        why = "waits until the job before it has ended completely"
    if state.state is State.PENDING:
        return _joined(state.reason, why)
    before = state.attempts[-1].job_id if state.attempts else ""
    is_same_job = before in ("", row.job_id)
    return f"queued again: {why}" if is_same_job else f"continues in job {row.job_id}: {why}"


def _waiting(row: JobRow, now: float) -> str:
    """Return why the job waits, a remedy, and the start that Slurm expects if it has an estimate."""
    reason = explain(row.reason)
    help_ = f" ({reason.remedy.replace('JOB', row.job_id)})" if reason.remedy or reason.never else ""
    if reason.never:
        return f"{WILL_NEVER}: {reason.meaning}{help_}"
    is_estimated = not reason.held and row.start is not None and now < row.start < now + GUESSED_SECONDS
    start = row.start or 0.0
    until = f"Slurm expects to start it about {moment(start)}, in {spoken(start - now)}"
    return _joined((reason.meaning or row.explained) + help_, until if is_estimated else "")


def _older(evidence: RunEvidence, state: RunState, row: JobRow) -> bool:
    """Return whether Slurm has started the run's job, or the next job, since the state was written."""
    if row.state is not State.RUNNING or row.word == "COMPLETING":
        return False
    if state.state is State.PENDING:
        return True
    later = (row.start or 0) > (state.ended_at or state.updated_at)
    if state.state.ended:
        return later
    other = bool(state.attempts and state.attempts[-1].job_id not in ("", row.job_id))
    return (later or other) and not evidence.fresh


def _ended_by_row(evidence: RunEvidence, row: JobRow) -> _Verdict:
    """Return the verdict on a run whose job has ended, and whose coordinator recorded no end."""
    reason_of_run = _did_not(evidence.state) or _why(evidence)
    # The waiting job of a chain may be cancelled long before the job before it ends.
    attempts = evidence.state.attempts if evidence.state else ()
    ended_at = max((at for at in (row.end, *(attempt.ended_at for attempt in attempts)) if at), default=None)
    if evidence.cancel_asked:
        return _Verdict(State.CANCELLED, Phase.ENDED, _cancel_reason(evidence.state), ended_at)
    nodes = lost_nodes.describe_lost_nodes(evidence.state, row)
    why_released = lost_nodes.why_released(evidence.state, evidence.message, row)
    if nodes or why_released:
        return _Verdict(State.NODE_FAIL, Phase.ENDED, _joined(nodes, why_released), ended_at)
    if row.state is State.CANCELLED:
        by_slurm = (
            f"never started: {evidence.before or explain(NEVER).meaning}" if row.reason == NEVER else ""
        )
        unasked = CANCELLED_UNASKED if evidence.state or not row.nodelist else CANCELLED_AT_START
        if _did_not(evidence.state):
            reason_of_run = f"job {row.job_id} was {unasked}; {reason_of_run}"
        why = reason_of_run or by_slurm or unasked
        return _Verdict(State.CANCELLED, Phase.ENDED, why, ended_at)
    if row.state is State.COMPLETED and evidence.state is None and not evidence.damaged:
        if evidence.now - (row.end or 0.0) < STALE_SECONDS:  # files of another machine may appear late
            return _Verdict(State.RUNNING, Phase.STARTING, "its job has ended; waiting for its last state")
        return _Verdict(State.FAILED, Phase.ENDED, evidence.script_error or NEVER_BEGAN, ended_at)
    on_node = f" on {first}" if (first := lost_nodes.first_of(row)) else ""
    silent = f"{SILENT}{on_node} ({row.explained or row.word}); see job.out"
    if evidence.script_error:
        silent = f"{BEFORE_RANKS}: {evidence.script_error}"
    if row.state is State.COMPLETED:
        silent = ""
    is_before_ranks = evidence.state is not None and evidence.state.phase in (Phase.STARTING, Phase.PREFLIGHT)
    if row.state is State.FAILED and reason_of_run and is_before_ranks:
        # Its reason describes the last step, not the cause of the end.
        reason_of_run = f"{silent}; last message: {reason_of_run}"
    reason = _joined(reason_of_run, silent) if _did_not(evidence.state) else reason_of_run or silent
    return _Verdict(row.state, Phase.ENDED, reason, ended_at)


def _did_not(state: RunState | None) -> str:
    """Return the reason of a run that should have continued, but whose last job has ended; else ''."""
    if state is None or state.state is not State.PENDING:
        return ""
    reason = state.reason.partition(contract.GOES_ON)[0]
    return f"it did not continue: {reason}" if reason else ""


def _without_row(evidence: RunEvidence) -> _Verdict:
    """Return the verdict on a run whose job the scheduler does not know, or was not asked about."""
    state = evidence.state
    if state and state.state.ended:
        return _by_state(evidence, state)
    if not evidence.answered or evidence.elsewhere:
        return _without_answer(evidence)
    if state and state.state is State.RUNNING and evidence.fresh:
        return _running(evidence, False)  # a recent heartbeat outranks Slurm's silence
    if evidence.cancel_asked:
        return _Verdict(State.CANCELLED, Phase.ENDED, _cancel_reason(state))
    if not evidence.record.job_id:
        return _submitting(evidence)
    is_array_task = "_" in evidence.record.job_id
    if is_array_task and state is None and not evidence.script_error:
        # Slurm forgets a task of an array at once if it is cancelled while it waits.
        reason = f"{CANCELLED_UNASKED}: {FORGOTTEN}, and nothing of the run began; see job.out"
        return _Verdict(State.CANCELLED, Phase.ENDED, reason)
    return _Verdict(State.FAILED, Phase.ENDED, _silent_end(evidence, FORGOTTEN))


def _without_answer(evidence: RunEvidence) -> _Verdict:
    """Return the verdict on a run if the scheduler does not answer."""
    state, row = evidence.state, evidence.row
    if state is not None and evidence.fresh and state.state is State.RUNNING:
        return _running(evidence, False)
    parts = []
    if state is not None:
        parts.append(f"the run's last heartbeat is {spoken(evidence.now - state.updated_at)} old")
    if row is not None and evidence.asked_at:
        why = f" ({_waiting(row, evidence.now)})" if row.state is State.PENDING else ""
        parts.append(f"{spoken(evidence.now - evidence.asked_at)} ago it reported {row.word}{why}")
    facts = "; ".join(parts) or "the run has sent no heartbeat"
    other_cluster = evidence.elsewhere
    why = f"its jobs are on the cluster {other_cluster}" if other_cluster else "Slurm does not answer"
    return _Verdict(State.UNKNOWN, _phase(state), f"{why}; {facts}")


def _submitting(evidence: RunEvidence) -> _Verdict:
    """Return the verdict on a run without a job number: being submitted, or never queued."""
    if evidence.now - evidence.record.submitted_at < QUEUEING_SECONDS:
        return _Verdict(State.PENDING, Phase.QUEUED, "is being submitted")
    return _Verdict(State.FAILED, Phase.ENDED, "was never queued: the submission was cut short")


def _running(evidence: RunEvidence, restarted: bool) -> _Verdict:
    """Return the verdict on a run whose job runs. ``restarted`` means that the state is of an earlier job."""
    state = evidence.state
    row = evidence.row if evidence.answered else None

    def silent(state: RunState | None, age: float) -> str:
        if not row:
            return ""
        goes_on = evidence.record.spec.goes_on
        return lost_nodes.describe_silent_run(state, row, evidence.message, age, evidence.now, goes_on)

    if state is None or restarted or state.state.ended:
        age = evidence.now - row.start if row and row.start else 0.0
        explanation = silent(None, age)
        duration = f", in {spoken(age)}" if explanation else ""
        message = f"the coordinator has sent no heartbeat yet{duration}"
        return _Verdict(State.RUNNING, Phase.STARTING, _joined(message, explanation))
    if evidence.fresh:
        return _Verdict(State.RUNNING, state.phase, _why(evidence))
    age = evidence.now - state.updated_at
    silence = f"no heartbeat from its coordinator for {spoken(age)}"
    return _Verdict(State.RUNNING, state.phase, _joined(silence, silent(state, age)))


def _local(evidence: RunEvidence) -> _Verdict:
    """Return the verdict on a run on this machine."""
    state = evidence.state
    if state and state.state.ended:
        return _by_state(evidence, state)
    unborn = not evidence.record.job_id and not evidence.alive
    if (unborn or evidence.alive is False) and evidence.cancel_asked:
        return _Verdict(State.CANCELLED, Phase.ENDED, _cancel_reason(state))
    if unborn:
        return _submitting(evidence)
    if evidence.alive is False:
        return _Verdict(State.FAILED, Phase.ENDED, _silent_end(evidence, "its coordinator is gone"))
    if evidence.alive or evidence.fresh:
        return _running(evidence, False)
    why = "it runs on another machine and has sent no heartbeat lately"
    return _Verdict(State.UNKNOWN, _phase(state), why)


def _in_allocation(evidence: RunEvidence) -> _Verdict:
    """Return the verdict on a run in an allocation of its user, which may end before or after the run."""
    state, row = evidence.state, evidence.row
    request = ASKED_INSIDE if evidence.cancel_asked else ""
    if state is not None and state.state.ended:
        verdict = _by_state(evidence, state)
        is_asked = request and state.state is State.CANCELLED
        return replace(verdict, reason=_joined(request, _killed_after_term(state))) if is_asked else verdict
    if evidence.fresh or evidence.alive:
        return _running(replace(evidence, row=None), False)
    is_heard = row is not None and (evidence.answered or row.state.ended)
    is_over = row.state.ended if row and is_heard else evidence.answered and not evidence.elsewhere
    if evidence.alive is False or is_over:
        if request:
            return _Verdict(State.CANCELLED, Phase.ENDED, request)
        if row and row.state.ended:
            word = row.state if row.state in (*SCHEDULER_KNOWS_BEST, State.CANCELLED) else State.FAILED
            why = f"its allocation, job {row.job_id}, ended before it ({row.explained or row.word})"
            return _Verdict(word, Phase.ENDED, why, row.end)
        cause = "its coordinator is gone" if evidence.alive is False else FORGOTTEN
        return _Verdict(State.FAILED, Phase.ENDED, _silent_end(evidence, cause))
    return _running(replace(evidence, row=None), False) if is_heard else _without_answer(evidence)


def _by_state(evidence: RunEvidence, state: RunState) -> _Verdict:
    is_requested = evidence.cancel_asked and state.state is State.CANCELLED
    reason = _joined(ASKED, _killed_after_term(state)) if is_requested else _why(evidence)
    row = evidence.row
    # Slurm lists only some nodes of a job that is ending.
    nodes = lost_nodes.removed_nodes(state, row) if row and row.state.ended else []
    if nodes and state.state is State.NODE_FAIL:
        why = evidence.node_reason or _REMOVED
        reason = _joined(f"Slurm took {fold(nodes)} out of the job: {why}", reason)
    return _Verdict(state.state, Phase.ENDED, reason, state.ended_at or state.updated_at)


def _silent_end(evidence: RunEvidence, cause: str) -> str:
    """Return the reason of a run that ended without recording a reason."""
    if evidence.script_error:
        return f"{BEFORE_RANKS}: {evidence.script_error}"
    last = evidence.state
    age = spoken(evidence.now - last.updated_at) if last else ""
    when = f"; its last heartbeat ({last.phase.value}) is {age} old" if last else ""
    return f"{SILENT}: {cause}{when}; see job.out"


def _why(evidence: RunEvidence) -> str:
    """Return the coordinator's reason for the end or for this start, and its newest warning."""
    shows_warnings = evidence.state is not None and evidence.state.state in (State.RUNNING, State.COMPLETED)
    warnings = evidence.state.warnings if evidence.state and shows_warnings else ()
    others = f" (and {len(warnings) - 1} more)" if len(warnings) > 1 else ""
    reason, state = "", evidence.state
    if state is not None:
        failure = state.failure.why if state.failure and state.state is not State.COMPLETED else ""
        reason = state.reason or failure
        if state.state is State.RUNNING and state.epoch and state.attempts and not state.reason:
            reason = state.attempts[-1].reason
            if failure and failure not in reason:
                reason += f", after {failure}"
    return _joined(reason, *(f"warning: {warning}{others}" for warning in warnings[-1:]))


def _cancel_reason(state: RunState | None) -> str:
    return _joined(ASKED, _killed_after_term(state)) if state else f"{ASKED}, before it started"


def _killed_after_term(state: RunState) -> str:
    """Return the coordinator's report of ranks that handled TERM and were killed; '' if there are none."""
    last = state.reason.rpartition("; ")[2]
    return last if contract.PERHAPS_SAVING in last else ""


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def _phase(state: RunState | None) -> Phase:
    return state.phase if state else Phase.QUEUED


def _nodelist(evidence: RunEvidence) -> str:
    """Return the nodes of the run.

    For a job that ends, Slurm lists only the nodes that it still cleans up.
    """
    attempts = evidence.state.attempts if evidence.state else ()
    own_nodes = fold(attempts[-1].nodes) if attempts else ""
    row = evidence.row
    return (
        row.nodelist if row and row.nodelist and not (own_nodes and row.word == "COMPLETING") else own_nodes
    )


def recorded_end(before: RunStatus, state: RunState | None, at: float, now: RunStatus) -> RunStatus:
    """Return the end ``before``, which was recorded at ``at``, unless the run has continued since."""
    if state is not None and state.updated_at > at:
        return now
    if not now.state.ended:
        return before
    now = replace(now, nodelist=now.nodelist or before.nodelist, ended_at=now.ended_at or before.ended_at)
    if before.state in SCHEDULER_KNOWS_BEST or now.state is State.FAILED:
        return replace(now, state=before.state, reason=before.reason, ended_at=before.ended_at)
    return now
