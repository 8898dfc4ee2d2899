"""What is started once per node waits for processes of its own (``mp.spawn``): who of them is late; pure."""

from __future__ import annotations

from collections.abc import Sequence

from clusterrun.diagnosis.evidence import ChildProcess, RankSeen
from clusterrun.diagnosis.explanations import reason
from clusterrun.diagnosis.frames import joins_processes, works_for_a_loader
from clusterrun.diagnosis.job_snapshot import STOPPED
from clusterrun.diagnosis.stack_location import Doing, place
from clusterrun.diagnosis.verdict import Culprit, Diagnosis, Verdict, ranks_in_words
from clusterrun.model.frozen import replace

_MOST = 4
_TOGETHER = (Doing.COLLECTIVE, Doing.RENDEZVOUS)


def below_ranks(living: Sequence[RankSeen]) -> Diagnosis | None:
    """Those who live have started others and tell no groups: what these do is all that can be known.

    Nothing tells their stacks but py-spy. Of those that it shows, who is in no collective is late for
    those who are; where it shows none, they are listed.
    """
    if not all(_stands_for_others(one) for one in living):
        return None
    ranks = [(one, child) for one in living for child in one.children if not works_for_a_loader(child.stack)]
    seen = [(one, child, place(child.stack)) for one, child in ranks if child.stack]
    inside = [(one, child, here) for one, child, here in seen if here.doing in _TOGETHER]
    late = [(one, child) for one, child, here in seen if here.doing not in _TOGETHER and here.frame]
    late += [(one, child) for one, child in ranks if child.state in STOPPED]
    if not inside or not late:
        return _listed(living)
    culprits = tuple(
        Culprit(-1, one.node, f"its process {child.pid} {_does(one, child)}") for one, child in late[:_MOST]
    )
    first = inside[0][2]
    said = f"process {late[0][1].pid} on {late[0][0].node} holds the others up: it {_does(*late[0])}"
    where = f"{first.operation}{f' at {first.line}' if first.line else ''}"
    waits = [f"process {child.pid} on {one.node} waits in {where}" for one, child, _ in inside[:_MOST]]
    remedy = "what does that line wait for: a file, a lock, another process, the network?"
    return Diagnosis(Verdict.NEVER_ARRIVED, said, culprits, (), tuple(waits), remedy)


def _stands_for_others(one: RankSeen) -> bool:
    """It waits for processes that it started, as far as its stack tells."""
    unknown = place(one.stack).doing is Doing.UNKNOWN
    return bool(one.children) and not one.answered and (unknown or joins_processes(one.stack))


def _does(one: RankSeen, child: ChildProcess) -> str:
    """What a process below ``one`` does, in the words for a rank."""
    alike = replace(one, pid=child.pid, state=child.state, stack=child.stack, children=(), busy=0.0)
    return reason(alike).why.partition(" ")[2]


def _listed(living: Sequence[RankSeen]) -> Diagnosis:
    who = ranks_in_words(one.rank for one in living)
    said = f"{who} wait{'s' if len(living) == 1 else ''} for processes that nothing tells the stacks of"
    evidence = []
    for one in living[:_MOST]:
        children = ", ".join(f"{child.name} (process {child.pid})" for child in one.children[:_MOST])
        evidence.append(f"rank {one.rank} on {one.node} has started {children}")
    remedy = f"on {living[0].node}: py-spy dump --pid N of each shows where it is"
    remedy += " (ranks of torchrun need none)"
    return Diagnosis(Verdict.UNDETERMINED, said, (), (), tuple(evidence), remedy)
