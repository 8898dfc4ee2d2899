"""Find out why a run hangs or has failed.

A live run is asked through its coordinator. The files of an ended run are read.
"""

from __future__ import annotations

import json
import os
import secrets

from clusterrun import atomic_file
from clusterrun.diagnosis.decide import decide_end, ended_by_timeout
from clusterrun.diagnosis.explain_end import with_logged, with_printed
from clusterrun.diagnosis.verdict import Culprit, Diagnosis, Verdict
from clusterrun.logs.attempt_logs import readable
from clusterrun.model import contract
from clusterrun.model.document import BadDocument, decode
from clusterrun.model.frozen import replace
from clusterrun.model.paths import AttemptPaths, RunPaths
from clusterrun.model.record import RunState, RunStatus
from clusterrun.model.states import Phase, State
from clusterrun.operations.context import Context, Tell, quiet
from clusterrun.operations.postmortem_input import complaints, errors, remains
from clusterrun.runs.private_files import own_content, private_folder, write_whole
from clusterrun.slurm_text import job_states

# Seconds for a live run to answer: its observers take two samples, each with its limit.
LIMIT = 40.0
SPEAK_AFTER = 2.0
LOOK_EVERY = 0.1
STALE = 4 * contract.STATE_SECONDS
MOST_CULPRITS = 16
# The diagnosis that the coordinator writes by itself if the ranks make no progress.
OWN = "diagnosis.json"


def diagnose(context: Context, run_id: str, limit: float = LIMIT, tell: Tell = quiet) -> Diagnosis:
    """Return the diagnosis of a run. A live run has ``limit`` seconds to answer."""
    (status,) = context.inquiry(tell).statuses([run_id])
    state = context.store.state(run_id)
    if status.state.ended:
        return of_ended(context, status, state)
    halted = status.reason.startswith(tuple(job_states.read(word).meaning for word in job_states.HALTED))
    if state is None or state.phase is not Phase.TRAINING or status.state is State.PENDING or halted:
        return _not_yet(status)
    return _DiagnosisRequest(context, status, state, tell).answer(limit)


def longer_limit(limit: float) -> str:
    """Return the option that lets a look take longer than ``limit`` seconds."""
    return f"--limit {max(LIMIT, 2 * limit):.0f}s"


def of_ended(context: Context, status: RunStatus, state: RunState | None) -> Diagnosis:
    """Return why a run ended. A hang that was diagnosed while the run lived explains its end."""
    newest = state.attempts[-1] if state and state.attempts else None
    paths = context.store.paths(status.run_id)
    hang = _read(paths.attempt(newest.epoch), OWN) if newest else None
    evidence = remains(context, status)
    diagnosis = decide_end(evidence)
    # Without a run, `clusterrun logs` shows the newest.
    remedy = diagnosis.remedy.replace("clusterrun logs --", f"clusterrun logs {status.run_id} --")
    diagnosis = replace(diagnosis, remedy=remedy)
    if newest and newest.failure and not evidence.per_node:
        diagnosis = _with_complaints(diagnosis, paths, newest.epoch)
    if hang is None or hang.verdict is Verdict.NOTHING or status.state is State.COMPLETED:
        return diagnosis
    told_by_hang = hang.message in (status.reason or "") or ended_by_timeout(evidence)
    failure = state.failure if state else None
    # A rank that printed an error and lived on did not end a run that was cancelled.
    by_rank = (failure is not None and failure.rank >= 0) or (
        status.state is not State.CANCELLED and any(culprit.rank >= 0 for culprit in diagnosis.culprits)
    )
    if diagnosis.culprits and by_rank and status.state is not State.TIMEOUT and not told_by_hang:
        return diagnosis
    ended = f"the run ended as {status.state.value}: {status.reason}"
    hang = replace(hang, evidence=(ended, *hang.evidence))
    return _with_output(hang, paths, newest.epoch, evidence.per_node) if newest else hang


def _with_output(diagnosis: Diagnosis, paths: RunPaths, epoch: int, per_node: bool) -> Diagnosis:
    """Add the errors that absent ranks printed, and the complaints that culprits logged."""
    ranks = _blamed(diagnosis)
    if diagnosis.verdict is Verdict.NEVER_ARRIVED and ranks:
        printed = errors(paths, epoch, None if per_node else ranks, per_node)
        diagnosis = with_printed(diagnosis, printed, per_node)
    return diagnosis if per_node else _with_complaints(diagnosis, paths, epoch)


def _with_complaints(diagnosis: Diagnosis, paths: RunPaths, epoch: int) -> Diagnosis:
    """Add what the ranks that are absent, or in another call, logged of a problem that did not end them."""
    ranks = _blamed(diagnosis)
    if diagnosis.verdict not in (Verdict.NEVER_ARRIVED, Verdict.MISMATCH) or not ranks:
        return diagnosis
    return with_logged(diagnosis, complaints(paths, epoch, ranks))


def _blamed(diagnosis: Diagnosis) -> frozenset[int]:
    return frozenset(culprit.rank for culprit in diagnosis.culprits[:MOST_CULPRITS] if culprit.rank >= 0)


def _read(paths: AttemptPaths, name: str) -> Diagnosis | None:
    """Return a diagnosis that the coordinator wrote; None if there is none, or if it is damaged."""
    try:
        content = own_content(paths.beside(name))
        return decode(Diagnosis, json.loads(content)) if content is not None else None
    except (OSError, ValueError, RecursionError, BadDocument):
        return None


def _not_yet(status: RunStatus) -> Diagnosis:
    """Return the diagnosis of a run without running ranks, which cannot hang."""
    doing = ": ".join(filter(None, (status.phase.value, status.reason)))
    remedy = f"clusterrun status --watch {status.run_id} shows when that changes"
    return Diagnosis(Verdict.NOT_RUNNING, f"no rank of this run is running now; it is {doing}", remedy=remedy)


class _DiagnosisRequest:
    """A question to the coordinator of a live run, through files in its run directory."""

    def __init__(self, context: Context, status: RunStatus, state: RunState, tell: Tell) -> None:
        self._context, self._status, self._tell = context, status, tell
        self._paths = context.store.paths(status.run_id)
        self._state = state
        self._name = f"diagnose-{secrets.token_hex(6)}"

    def answer(self, limit: float) -> Diagnosis:
        """Return the answer, or after ``limit`` seconds what the files show. Raise ``Unreadable``."""
        readable(self._paths.attempts, self._paths.attempt(self._state.epoch).folder)
        private_folder(self._paths.asks)
        question = os.path.join(self._paths.asks, self._name)
        write_whole(question, "{}\n", sync=False)
        try:
            diagnosis = self._wait(limit) or self._unanswered(limit)
        finally:
            atomic_file.remove(question)
        # A rank that hangs has often printed why.
        per_node = self._context.store.read(self._status.run_id).spec.per_node
        return _with_output(diagnosis, self._paths, self._state.epoch, per_node)

    def _wait(self, limit: float) -> Diagnosis | None:
        clock = self._context.clock
        began, spoken = clock.monotonic(), False
        while (waited := clock.monotonic() - began) < limit:
            diagnosis = self._look()
            if diagnosis:
                return diagnosis
            if waited > SPEAK_AFTER and not spoken:
                spoken = True
                observers = f"the observers on {self._status.nodes} node(s) of {self._status.run_id}"
                self._tell(f"waiting for {observers} to look at its ranks, at most {limit:.0f} s")
            clock.sleep(LOOK_EVERY)
        return None

    def _look(self) -> Diagnosis | None:
        """Return the diagnosis if the coordinator has answered, or if the run trains no more."""
        self._state = self._context.store.state(self._status.run_id) or self._state
        attempt = self._paths.attempt(self._state.epoch)
        diagnosis = _read(attempt, f"{self._name}.json")
        if diagnosis:
            atomic_file.remove(attempt.beside(f"{self._name}.json"))
            return diagnosis
        if self._state.state.ended:
            (status,) = self._context.inquiry().statuses([self._status.run_id])
            return of_ended(self._context, status, self._state) if status.state.ended else None
        return _not_yet(self._status) if self._state.phase is not Phase.TRAINING else None

    def _unanswered(self, limit: float) -> Diagnosis:
        """Return the diagnosis of a run whose coordinator has not answered."""
        silent = self._context.clock.now() - self._state.updated_at
        state = self._state
        message = f"the run gave no answer within {limit:.0f} s"
        evidence = (f"its coordinator on {state.host} last wrote {max(0.0, silent):.0f} s ago",)
        if silent <= STALE:
            remedy = (
                f"wait longer: {longer_limit(limit)}; if it still gives none, check that {state.host} has"
            )
            remedy += " the run directory's file system mounted; clusterrun logs may show more"
            return Diagnosis(Verdict.UNDETERMINED, message, (), (), evidence, remedy)
        culprit = Culprit(-1, state.host, f"its coordinator has been silent for {silent:.0f} s")
        message += ": its coordinator is silent"
        remedy = f"look at process {state.pid} on {state.host}; clusterrun cancel ends the run"
        return Diagnosis(Verdict.UNDETERMINED, message, (culprit,), (), evidence, remedy)
