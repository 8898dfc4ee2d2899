"""No rank printed an error of its own: what ended the run is an exit code, a signal, or an early end.

An exit code says little. A rank that ended with exit code 0 is blamed only if others still waited for it.
"""

from __future__ import annotations

import signal
from functools import partial

from clusterrun.diagnosis.calls import CallTable
from clusterrun.diagnosis.first_error import first_error, was_killed
from clusterrun.diagnosis.hypothesis import Hypothesis, Ranks
from clusterrun.diagnosis.known_errors import LIMIT_REMEDY, PEERS_REMEDY, meaning
from clusterrun.diagnosis.printed_errors import OURS, last_message
from clusterrun.diagnosis.remains import Remains
from clusterrun.diagnosis.rules.timed_out import outside_of_calls
from clusterrun.diagnosis.solo_ranks import SILENCE
from clusterrun.diagnosis.stacks import short
from clusterrun.diagnosis.verdict import Culprit, Diagnosis, Verdict, ranks_in_words, unfolded
from clusterrun.diagnosis.wording import MEMORY_REMEDY, MOST_CULPRITS, cut
from clusterrun.model import contract
from clusterrun.model.frozen import replace
from clusterrun.model.hostlist import fold
from clusterrun.model.record import Failure
from clusterrun.model.states import State

CERTAINTY = 40
_BROKEN = "a connection of it broke, and no rank had failed before it"
_BROKEN_REMEDY = (
    "what does that line talk to: a service, a store of files, another rank? "
    "clusterrun check tests the network between the nodes"
)
# Cause and remedy by exit code. A shell reports signal n as 128 + n.
_TOO_LONG = ("its limit of processor time was reached (ulimit -t)", LIMIT_REMEDY)
_TOO_LARGE = ("its limit on the size of a file was reached (ulimit -f)", LIMIT_REMEDY)
_CODES = {
    124: ("so does timeout(1) when the time that it was given is over", ""),
    -signal.SIGXCPU: _TOO_LONG,
    128 + signal.SIGXCPU: _TOO_LONG,
    -signal.SIGXFSZ: _TOO_LARGE,
    128 + signal.SIGXFSZ: _TOO_LARGE,
}
_LEFT_REMEDY = "let every rank make the same collectives, and call destroy_process_group after the last one"
KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
_CLOSED = "Connection closed by peer"


def rule(table: CallTable) -> list[Hypothesis]:
    run = table.end
    if not run:
        return []
    failure = run.failure
    if not failure or run.state is State.COMPLETED:
        return [Hypothesis(partial(explain_no_failure, run=run), CERTAINTY)]
    if first_error(table):
        return []
    if failure.ended:
        # These ranks ended with exit code 0 while others waited, or they are the few that went on.
        together = unfolded(failure.ended)
        awaited: set[int] = set()
        for rank in table.ranks:
            if rank.rank not in together and table.history[rank.rank]:
                newest = table.history[rank.rank][-1]
                awaited.update(table.members(rank, newest.group))
        ended = tuple(sorted(awaited & set(together))) or together
        others = len(run.nodes) - len(together)
        culprits = ended if len(ended) <= others or ended != together else (failure.rank,)
        explain = partial(explain_early_end, run=run, ended=ended, together=together)
        return [Hypothesis(explain, CERTAINTY, culprits)]
    if run.state is State.OUT_OF_MEMORY or (failure.code in KILLED and run.memory_notes):
        killed = partial(explain_killed_for_memory, run=run, failure=failure)
        return [Hypothesis(killed, CERTAINTY, (failure.rank,))]
    leaver = _who_left(table, run)
    if leaver >= 0:
        return [Hypothesis(partial(explain_left_the_group, run=run), CERTAINTY, (leaver,))]
    return [Hypothesis(partial(explain_ended_rank, run=run, failure=failure), CERTAINTY, (failure.rank,))]


def _who_left(table: CallTable, run: Remains) -> int:
    """Return the rank that lived on outside all collectives if the first to fail lost a connection; else -1.

    A process that ends closes its connections. A connection that a network cuts is reset, or times out.
    """
    failure = run.failure
    if not failure or failure.peer or was_killed(run):
        return -1
    row = meaning(last_message(failure.last_lines))
    outside = outside_of_calls(table)
    own_errors = [error for error in run.errors if error.rank == failure.rank]
    closed = any(_CLOSED in error.text for error in own_errors)
    return outside[0] if row and row.consequence and len(outside) == 1 and closed else -1


def explain_early_end(
    table: CallTable, blamed: Ranks, run: Remains, ended: Ranks, together: Ranks
) -> Diagnosis:
    failure = run.failure
    early = ranks_in_words(ended, run.noun)
    odd = blamed
    why = "it ended with exit code 0 while others waited for it"
    remedy = "let all ranks make the same number of steps: uneven data, or an exit in one rank only"
    if odd != ended:
        remedy = "does only that rank come to that line? let all ranks make the same calls, or none"
        why = f"it went on after {early} had ended with exit code 0"
        frames = [error.frame for error in run.errors if error.rank == odd[0] and error.frame]
        why += f", and failed at {short(frames[0])}" if frames else ""
    culprits = tuple(Culprit(-1 if run.per_node else rank, run.node(rank), why) for rank in odd)
    all_ended = ranks_in_words(together, run.noun)
    evidence = []
    if failure:
        evidence.append(f"{all_ended} ended with exit code 0, then {run.who(failure.rank)} failed")
    if ended != together:
        evidence.append(f"of these, {early} alone was in the groups in which the others failed")
    if failure and failure.peer:
        evidence.append(f"its message names an address of {failure.peer}")
    printed = {error.rank: error for error in run.errors if error.rank in odd and not error.is_consequence}
    evidence += [
        f"{run.name(rank)} had printed: {cut(error.message)}" for rank, error in sorted(printed.items())
    ]
    sentence = f"{early} ended with exit code 0 before the others"
    return Diagnosis(Verdict.CRASHED, sentence, culprits[:MOST_CULPRITS], (), tuple(evidence), remedy)


def explain_left_the_group(table: CallTable, blamed: Ranks, run: Remains) -> Diagnosis:
    (rank,) = blamed
    at = table.line(rank)
    why = f"it closed its connections and lived on; when it was asked to end, it was at {at}"
    sentence = f"{run.who(rank)} left the group while the others still used it"
    failed = run.failure.rank if run.failure else -1
    own_errors = [error for error in run.errors if error.rank == failed]
    evidence = tuple(f"{run.name(error.rank)}: {error.message}" for error in own_errors[:1])
    return Diagnosis(Verdict.CRASHED, sentence, run.culprits({rank: why}), (), evidence, _LEFT_REMEDY)


def _culprit_of(run: Remains, failure: Failure) -> Culprit:
    subject = run.who(failure.rank) if failure.rank >= 0 else failure.node
    return Culprit(
        -1 if run.per_node else failure.rank, failure.node, failure.why.removeprefix(f"{subject} ")
    )


def explain_killed_for_memory(table: CallTable, blamed: Ranks, run: Remains, failure: Failure) -> Diagnosis:
    subject = run.who(failure.rank) if failure.rank >= 0 else failure.node
    # The reason of the run repeats the failure.
    notes = [note for note in run.memory_notes if failure.why not in note]
    evidence = (failure.why, *notes)
    verb = "was killed because memory ran out" if failure.rank >= 0 else "has too little memory for its ranks"
    sentence = f"{subject} {verb}" if subject else "memory ran out"
    return Diagnosis(
        Verdict.OUT_OF_MEMORY, sentence, (_culprit_of(run, failure),), (), evidence, MEMORY_REMEDY
    )


def explain_ended_rank(table: CallTable, blamed: Ranks, run: Remains, failure: Failure) -> Diagnosis:
    """A rank or a node that failed, with what it printed last."""
    culprit = _culprit_of(run, failure)
    if failure.rank < 0:
        sentence, _, remedy = failure.why.rpartition("; ")
        if contract.NO_START in sentence:  # the agent knows the remedy
            culprit = replace(culprit, why=sentence.removeprefix(f"{failure.node} "))
            return Diagnosis(Verdict.CRASHED, sentence, (culprit,), (), (), remedy)
        if failure.peer:
            ends = tuple(
                Culprit(-1, node, "an end of the broken connection") for node in (failure.peer, failure.node)
            )
            remedy = f"clusterrun check --nodelist {fold([failure.peer, failure.node])} tests the connection"
            return Diagnosis(Verdict.LINK, failure.why, ends, (), (), remedy)
        if failure.node:
            remedy = (
                "--spares 1 replaces a lost node, --requeue continues without it in another job, --exclude "
                "leaves it out; clusterrun report shows what a check found, if there was one"
            )
        elif "has expired" in failure.why:  # srun's message about a job that has ended
            remedy = "Slurm ended the job; sinfo -R shows a node whose prolog failed"
        elif failure.why.startswith("step "):
            remedy = "clusterrun cancel ends a run and leaves it time to save; scancel of a step leaves none"
        else:
            remedy = "job.out in the run directory holds the launcher's message; --srun adds an option to it"
        return Diagnosis(Verdict.CRASHED, failure.why, (culprit,), (), (), remedy)
    remedy = f"clusterrun logs --rank {failure.rank} shows all that it printed"
    if failure.code in KILLED:
        remedy = "nothing there says that memory ran out: who sends kill -9, a script, a scheduler, a person,"
        remedy += " or the kernel at a limit of processor time (ulimit -t)?"
    last = last_message(failure.last_lines)
    is_ours = any(line.startswith(OURS) and line.endswith(last) for line in failure.last_lines) and last != ""
    own_errors = [error for error in run.errors if error.rank == failure.rank]
    row = meaning(last)
    if row and row.consequence and not failure.peer and not was_killed(run):
        if row.remedy == PEERS_REMEDY:  # no rank failed before, so the other end need not be a rank
            row = replace(row, cause=_BROKEN, remedy=_BROKEN_REMEDY)
        if own_errors:
            culprit = replace(culprit, why=f"{culprit.why}; {own_errors[0].message}")
    cause_of_code, remedy_of_code = _CODES.get(failure.code, ("", ""))
    cause = last if is_ours else row.cause if row else cause_of_code
    sentence = failure.why + (f": {cause}" if cause else "")
    name = run.name(failure.rank)
    if is_ours:
        evidence = [f"{failure.node}: {last}"]
    elif own_errors:
        evidence = [f"{name}: {own_errors[0].message}"]
    else:
        evidence = [f"{name} printed last: {cut(last)}" if last else f"{name} printed nothing"]
    if failure.peer:
        evidence.append(f"its message names an address of {failure.peer}")
    if last and not own_errors:
        how = "" if is_ours else "it printed last: "
        culprit = replace(culprit, why=f"{culprit.why}; {how}{cut(last)}")
    remedy = row.remedy if row else remedy_of_code or remedy
    return Diagnosis(Verdict.CRASHED, sentence, (culprit,), (), tuple(evidence), remedy)


def explain_no_failure(table: CallTable, blamed: Ranks, run: Remains) -> Diagnosis:
    prefix = f"{Verdict.ALONE.value}: "
    alone = [note[len(prefix) :] for note in run.notes if note.startswith(prefix)]
    if alone:
        remedy = "clusterrun help frameworks says what a framework needs to join its ranks"
        remedy += "" if alone[0].endswith(SILENCE) else SILENCE
        return Diagnosis(Verdict.ALONE, alone[0], (), (), tuple(alone[1:]), remedy)
    if run.state is State.COMPLETED:
        return Diagnosis(Verdict.NOTHING, "the run ended well")
    ended = f"the run ended as {run.state.value}"
    return Diagnosis(Verdict.NOT_RUNNING, ": ".join(filter(None, (ended, run.reason))))
