"""What state a run is in, from all that was said about it; decides from values alone, asks nobody.

There are four sources: the record (what was asked), the coordinator (``state.json``), the scheduler (a row of
squeue, or a local process), and a request to cancel. They can disagree: a node dies with its coordinator,
Slurm forgets a job after minutes, a controller does not answer.
"""

from __future__ import annotations

from clusterrun.model import contract
from clusterrun.model.duration import moment, spoken
from clusterrun.model.frozen import frozen, replace
from clusterrun.model.hostlist import fold
from clusterrun.model.record import LeftBehind, RunRecord, RunState, RunStatus
from clusterrun.model.spec import Cluster
from clusterrun.model.states import Phase, State
from clusterrun.operations import lost_nodes
from clusterrun.operations.run_files import formed
from clusterrun.runs.store import FORGOTTEN
from clusterrun.slurm.queries import JobRow
from clusterrun.slurm_text import job_states
from clusterrun.slurm_text.reasons import explain

STALE_SECONDS = 3 * contract.STATE_SECONDS
QUEUEING_SECONDS = 300.0
"""How long a submission may go unanswered before it counts as lost: far above the search for its job."""

GUESSED_SECONDS = 90 * 86400.0
"""Slurm says a year from now where jobs without a time limit are ahead: that is no estimate."""
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
CANCELLED_AT_START = (
    f"{CANCELLED_UNASKED}: it had its nodes and nothing was started on them"
    " (Slurm does so where a node's prolog fails: sinfo -R shows such a node)"
)


@frozen
class RunEvidence:
    """Everything known about one run at ``now`` (seconds since the epoch).

    ``answered`` tells a scheduler that does not know the job from one that was not heard: then ``row`` is
    what it said at ``asked_at``. ``alive``: whether a local coordinator lives (None: cannot be told from
    here). ``elsewhere`` names the cluster that holds the run's jobs where another was asked: its silence
    means nothing. ``script_error`` is the batch script's word on its own end, ``before`` how the run ended
    that this one waits for in vain, ``left`` the newest word of agents whose coordinator is gone.
    ``damaged``: a state is there that cannot be read.
    """

    record: RunRecord
    run_dir: str
    now: float
    state: RunState | None = None
    row: JobRow | None = None
    answered: bool = True
    asked_at: float | None = None
    alive: bool | None = None
    cancel_asked: bool = False
    elsewhere: str = ""
    script_error: str = ""
    before: str = ""
    left: LeftBehind | None = None
    shape: int | None = None
    damaged: bool = False

    @property
    def fresh(self) -> bool:
        """Whether the coordinator wrote a moment ago."""
        return self.state is not None and self.now - self.state.updated_at <= STALE_SECONDS


@frozen
class _Verdict:
    state: State
    phase: Phase
    reason: str = ""
    ended_at: float | None = None
    hopeless: bool = False


def judge(evidence: RunEvidence) -> RunStatus:
    if evidence.record.in_allocation:
        verdict = _in_allocation(evidence)
        evidence = replace(evidence, row=None)  # its nodes and its end are not the run's
    else:
        verdict = _local(evidence) if evidence.record.cluster == Cluster.LOCAL.value else _slurm(evidence)
    record, state, row = evidence.record, evidence.state, evidence.row
    spec = formed(record.spec, state, evidence.shape)
    ended = verdict.state.ended
    attempts = state.attempts if state else ()
    failure = state.failure if state else None
    return RunStatus(
        run_id=record.run_id,
        job_id=record.job_id or (row.job_id if row else ""),
        name=record.name,
        cluster=record.cluster,
        state=verdict.state,
        phase=verdict.phase,
        reason=verdict.reason,
        nodes=spec.nodes,
        gpus_per_node=spec.gpus,
        gpu_type=spec.gpu_type,
        world_size=spec.world_size,
        nodelist=_nodelist(evidence),
        attempt=state.epoch if state else 0,
        submitted_at=record.submitted_at,
        started_at=state.started_at if state else None,
        ended_at=(verdict.ended_at or _last_word(evidence)) if ended else None,
        exit_code=state.exit_code if state and ended else None,
        failed_at=failure.at if failure and verdict.state is not State.COMPLETED and ended else None,
        run_dir=evidence.run_dir,
        step=max((attempt.step for attempt in attempts), default=-1),
        checkpoint=max((attempt.checkpoint for attempt in attempts), default=-1),
        heard_at=state.updated_at if state else None,
        hopeless=verdict.hopeless,
        sweep=record.sweep,
        point=record.point,
    )


def _slurm(evidence: RunEvidence) -> _Verdict:
    state, row = evidence.state, evidence.row
    if row is None or not (evidence.answered or row.state.ended):
        return _without_row(evidence)
    over = state is not None and state.state.ended and not _older(evidence, state, row)
    if state and over and state.state is State.COMPLETED:
        return _by_state(evidence, state)  # whatever Slurm reports about nodes that were lost meanwhile
    if row.state in SCHEDULER_KNOWS_BEST:
        lost = lost_nodes.describe_lost_nodes(state, row) or row.explained
        why = _joined(lost, _did_not(state) or _why(evidence))
        return _Verdict(row.state, Phase.ENDED, why, row.end)
    # A run that was handed over waits while the nodes of its job are cleared.
    handed_over = row.word == "COMPLETING" and state is not None and state.state is State.PENDING
    if (row.state is State.PENDING or handed_over) and not _started_since(evidence):
        never = evidence.answered and explain(row.reason).never
        why = _why_queued(row, state, evidence.now)
        why = f"{WILL_NEVER}: {evidence.before}" if never and evidence.before else why
        return _Verdict(State.PENDING, Phase.QUEUED, why, hopeless=never)
    if state and over:
        return _by_state(evidence, state)
    if row.state.ended:
        return _ended_by_row(evidence, row)
    if row.state is State.UNKNOWN and not evidence.fresh:
        why = f"Slurm says {row.word}, which this version does not know"
        return _Verdict(State.UNKNOWN, _phase(state), why)
    if row.word in job_states.HALTED and evidence.answered:
        return _Verdict(State.RUNNING, _phase(state), halted(row))
    return _running(evidence, _older(evidence, state, row) if state else False)


def halted(row: JobRow) -> str:
    """Why nothing is heard of a job whose processes the scheduler has stopped, and what lets it continue."""
    return f"{job_states.read(row.word).said}: scontrol resume {row.job_id}, or ask the site's staff"


def _why_queued(row: JobRow, state: RunState | None, now: float) -> str:
    """Why it waits: what ended its last job, and what Slurm says."""
    why = _waiting(row, now)
    if state is None:
        return why
    if row.reason == "Dependency":
        why = "waits until the job before it has ended completely"
    if state.state is State.PENDING:
        return _joined(state.reason, why)
    before = state.attempts[-1].job_id if state.attempts else ""
    again = before in ("", row.job_id)
    return f"queued again: {why}" if again else f"continues in job {row.job_id}: {why}"


def _waiting(row: JobRow, now: float) -> str:
    """Why the job waits, what would help, and when Slurm means to start it, where it tells."""
    reason = explain(row.reason)
    help_ = f" ({reason.remedy.replace('JOB', row.job_id)})" if reason.remedy or reason.never else ""
    if reason.never:
        return f"{WILL_NEVER}: {reason.said}{help_}"
    known = row.start is not None and now < row.start < now + GUESSED_SECONDS
    start = row.start or 0.0
    until = f"; Slurm expects to start it about {moment(start)}, in {spoken(start - now)}" if known else ""
    return (reason.said or row.explained) + help_ + until


def _started_since(evidence: RunEvidence) -> bool:
    """The coordinator has spoken since the scheduler said that the job waits."""
    state, asked_at = evidence.state, evidence.asked_at
    if asked_at is None or state is None or state.state is not State.RUNNING:
        return False
    return asked_at < state.updated_at <= evidence.now


def _older(evidence: RunEvidence, state: RunState, row: JobRow) -> bool:
    """The state is that of an earlier life of the run: Slurm has started its job, or the next, since."""
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
    told = _did_not(evidence.state) or _why(evidence)
    if evidence.cancel_asked:
        return _Verdict(State.CANCELLED, Phase.ENDED, _asked(evidence.state), row.end)
    nodes = lost_nodes.describe_lost_nodes(evidence.state, row)
    given_back = lost_nodes.given_back(evidence.state, evidence.left, row)
    if nodes or given_back:
        return _Verdict(State.NODE_FAIL, Phase.ENDED, _joined(nodes, given_back), row.end)
    if row.state is State.CANCELLED:
        by_slurm = f"never started: {evidence.before or explain(NEVER).said}" if row.reason == NEVER else ""
        unasked = CANCELLED_UNASKED if evidence.state or not row.nodelist else CANCELLED_AT_START
        why = told or by_slurm or unasked
        return _Verdict(State.CANCELLED, Phase.ENDED, why, row.end)
    if row.state is State.COMPLETED and evidence.state is None and not evidence.damaged:
        if evidence.now - (row.end or 0.0) < STALE_SECONDS:  # files of another machine may come late
            return _Verdict(State.RUNNING, Phase.STARTING, "its job has ended; its last word is awaited")
        return _Verdict(State.FAILED, Phase.ENDED, evidence.script_error or NEVER_BEGAN, row.end)
    where = f" on {first}" if (first := lost_nodes.first_of(row)) else ""
    silent = f"{SILENT}{where} ({row.explained or row.word}); see job.out"
    if evidence.script_error:
        silent = f"{BEFORE_RANKS}: {evidence.script_error}"
    if row.state is State.COMPLETED:
        silent = ""
    if row.state is State.FAILED and told and evidence.state and evidence.state.phase.before_ranks:
        told = f"{silent}; it said last: {told}"
    reason = _joined(told, silent) if _did_not(evidence.state) else told or silent
    return _Verdict(row.state, Phase.ENDED, reason, row.end)


def _did_not(state: RunState | None) -> str:
    """A run that should have continued, but whose last job has ended."""
    if state is None or state.state is not State.PENDING:
        return ""
    return f"it did not continue: {state.reason}" if state.reason else ""


def _without_row(evidence: RunEvidence) -> _Verdict:
    state = evidence.state
    if state and state.state.ended:
        return _by_state(evidence, state)
    if not evidence.answered or evidence.elsewhere:
        return _without_answer(evidence)
    if state and state.state is State.RUNNING and evidence.fresh:
        return _running(evidence, False)  # its coordinator wrote a moment ago: that outranks silence
    if evidence.cancel_asked:
        return _Verdict(State.CANCELLED, Phase.ENDED, _asked(state))
    if not evidence.record.job_id:
        return _submitting(evidence)
    return _Verdict(State.FAILED, Phase.ENDED, _silent_end(evidence, FORGOTTEN))


def _without_answer(evidence: RunEvidence) -> _Verdict:
    state, row = evidence.state, evidence.row
    if state is not None and evidence.fresh and state.state is State.RUNNING:
        return _running(evidence, False)
    told = []
    if state is not None:
        told.append(f"the run's last heartbeat is {spoken(evidence.now - state.updated_at)} old")
    if row is not None and evidence.asked_at:
        why = f" ({_waiting(row, evidence.now)})" if row.state is State.PENDING else ""
        told.append(f"{spoken(evidence.now - evidence.asked_at)} ago it said {row.word}{why}")
    known = "; ".join(told) or "the run has sent no heartbeat"
    away = evidence.elsewhere
    why = f"its jobs are on the cluster {away}" if away else "Slurm does not answer"
    return _Verdict(State.UNKNOWN, _phase(state), f"{why}; {known}")


def _submitting(evidence: RunEvidence) -> _Verdict:
    if evidence.now - evidence.record.submitted_at < QUEUEING_SECONDS:
        return _Verdict(State.PENDING, Phase.QUEUED, "is being submitted")
    return _Verdict(State.FAILED, Phase.ENDED, "was never queued: the submission was cut short")


def _running(evidence: RunEvidence, restarted: bool) -> _Verdict:
    state = evidence.state
    row = evidence.row if evidence.answered else None

    def silent(state: RunState | None, age: float) -> str:
        goes_on, left = evidence.record.spec.goes_on, evidence.left
        return lost_nodes.describe_silent_run(state, row, left, age, evidence.now, goes_on) if row else ""

    if state is None or restarted or state.state.ended:
        age = evidence.now - row.start if row and row.start else 0.0
        more = silent(None, age)
        words = f"the coordinator has sent no heartbeat yet{f', in {spoken(age)}' if more else ''}"
        return _Verdict(State.RUNNING, Phase.STARTING, _joined(words, more))
    if evidence.fresh:
        return _Verdict(State.RUNNING, state.phase, _why(evidence))
    age = evidence.now - state.updated_at
    silence = f"no heartbeat from its coordinator for {spoken(age)}"
    return _Verdict(State.RUNNING, state.phase, _joined(silence, silent(state, age)))


def _local(evidence: RunEvidence) -> _Verdict:
    state = evidence.state
    if state and state.state.ended:
        return _by_state(evidence, state)
    unborn = not evidence.record.job_id and not evidence.alive
    if (unborn or evidence.alive is False) and evidence.cancel_asked:
        return _Verdict(State.CANCELLED, Phase.ENDED, _asked(state))
    if unborn:
        return _submitting(evidence)
    if evidence.alive is False:
        return _Verdict(State.FAILED, Phase.ENDED, _silent_end(evidence, "its coordinator is gone"))
    if evidence.alive or evidence.fresh:
        return _running(evidence, False)
    why = "it runs on another machine and has sent no heartbeat lately"
    return _Verdict(State.UNKNOWN, _phase(state), why)


def _in_allocation(evidence: RunEvidence) -> _Verdict:
    """A run in an allocation of its user's, which lives on after the run, or ends under it."""
    state, row = evidence.state, evidence.row
    asked = ASKED_INSIDE if evidence.cancel_asked else ""
    if state is not None and state.state.ended:
        verdict = _by_state(evidence, state)
        is_asked = asked and state.state is State.CANCELLED
        return replace(verdict, reason=_joined(asked, _killed_while_saving(state))) if is_asked else verdict
    if evidence.fresh or evidence.alive:
        return _running(replace(evidence, row=None), False)
    told = row is not None and (evidence.answered or row.state.ended)
    over = row.state.ended if row and told else evidence.answered and not evidence.elsewhere
    if evidence.alive is False or over:
        if asked:
            return _Verdict(State.CANCELLED, Phase.ENDED, asked)
        if row and row.state.ended:
            word = row.state if row.state in (*SCHEDULER_KNOWS_BEST, State.CANCELLED) else State.FAILED
            why = f"its allocation, job {row.job_id}, ended before it ({row.explained or row.word})"
            return _Verdict(word, Phase.ENDED, why, row.end)
        seen = "its coordinator is gone" if evidence.alive is False else FORGOTTEN
        return _Verdict(State.FAILED, Phase.ENDED, _silent_end(evidence, seen))
    return _running(replace(evidence, row=None), False) if told else _without_answer(evidence)


def _by_state(evidence: RunEvidence, state: RunState) -> _Verdict:
    asked = evidence.cancel_asked and state.state is State.CANCELLED
    reason = _joined(ASKED, _killed_while_saving(state)) if asked else _why(evidence)
    return _Verdict(state.state, Phase.ENDED, reason, state.ended_at or state.updated_at)


def _silent_end(evidence: RunEvidence, seen: str) -> str:
    if evidence.script_error:
        return f"{BEFORE_RANKS}: {evidence.script_error}"
    last = evidence.state
    old = spoken(evidence.now - last.updated_at) if last else ""
    when = f"; its last heartbeat ({last.phase.value}) is {old} old" if last else ""
    return f"{SILENT}: {seen}{when}; see job.out"


def _why(evidence: RunEvidence) -> str:
    """What the coordinator said of the end, or of the start that this is, and its newest warning."""
    well = evidence.state is not None and evidence.state.state in (State.RUNNING, State.COMPLETED)
    warnings = evidence.state.warnings if evidence.state and well else ()
    more = f" (and {len(warnings) - 1} more)" if len(warnings) > 1 else ""
    return _joined(_coordinator_reason(evidence), *(f"warning: {one}{more}" for one in warnings[-1:]))


def _coordinator_reason(evidence: RunEvidence) -> str:
    """The coordinator's reason, or which rank failed first and how."""
    state = evidence.state
    if state is None:
        return ""
    told = state.failure.why if state.failure and state.state is not State.COMPLETED else ""
    if state.state is State.RUNNING and state.epoch and state.attempts and not state.reason:
        again = state.attempts[-1].reason
        return f"{again}, after {told}" if told and told not in again else again
    return state.reason or told


def _asked(state: RunState | None) -> str:
    return _joined(ASKED, _killed_while_saving(state)) if state else f"{ASKED}, before it started"


def _killed_while_saving(state: RunState) -> str:
    """What the coordinator reports of ranks that were killed while saving; '' if there are none."""
    last = state.reason.rpartition("; ")[2]
    return last if contract.KILLED_WHILE_SAVING in last else ""


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def _phase(state: RunState | None) -> Phase:
    return state.phase if state else Phase.QUEUED


def _nodelist(evidence: RunEvidence) -> str:
    """Of a job that ends, Slurm lists only the nodes that it still clears."""
    attempts = evidence.state.attempts if evidence.state else ()
    ours = fold(attempts[-1].nodes) if attempts else ""
    row = evidence.row
    return row.nodelist if row and row.nodelist and not (ours and row.word == "COMPLETING") else ours


def _last_word(evidence: RunEvidence) -> float | None:
    if evidence.row and evidence.row.end:
        return evidence.row.end
    return evidence.state.ended_at or evidence.state.updated_at if evidence.state else None


def kept(before: RunStatus, state: RunState | None, at: float, now: RunStatus) -> RunStatus:
    """``before``, said at ``at`` while the scheduler still knew, unless the run went on since."""
    if state is not None and state.updated_at > at:
        return now
    if not now.state.ended:
        return before
    now = replace(now, nodelist=now.nodelist or before.nodelist, ended_at=now.ended_at or before.ended_at)
    if before.state in SCHEDULER_KNOWS_BEST or now.state is State.FAILED:
        return replace(now, state=before.state, reason=before.reason, ended_at=before.ended_at)
    return now
