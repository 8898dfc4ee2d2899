"""Reads what ranks print when a collective times out, and tells which rank did not join it; pure.

NCCL's watchdog prints in the ranks that waited. Who did not come prints nothing, or (torch 2.5 and
later) only how many collectives it has begun.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from clusterrun.diagnosis.printed_errors import Error
from clusterrun.diagnosis.verdict import Culprit, Diagnosis, Verdict, ranks_in_words

_CAUGHT = re.compile(
    r"Watchdog caught collective operation timeout: \w+\(SeqNum=(\d+), OpType=(\w+)(?:, NumelIn=(\d+))?"
)
_STATUS = re.compile(r"\[PG (?:ID )?(\d+)\b[^\]]*\bRank \d+\].*?[Ll]ast enqueued (?:\w+ )?work: (-?\d+)")
_AT_WORK = re.compile(r"\bat (?:\w+ )?work(?: sequence id)?: (\d+)")
_GLOO = re.compile(r"Timed out waiting \d+ms for (?:recv|send) operation")
_BARRIER = re.compile(r"Ranks? ([\d, ]+) failed to pass monitoredBarrier")
_STUCK = re.compile(r"watchdog got stuck for \d+ ?seconds|Heartbeat monitor timed out")
_EQUAL_SIZES = ("ALLREDUCE", "BROADCAST", "REDUCE", "ALLGATHER", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE")
_DEFAULT = "0"
"""The number of the group that all ranks are in; of other groups no line says who is a member."""
_REMEDY = (
    "clusterrun logs --rank N shows what it did last; clusterrun diagnose while it hangs, or a --hang-after "
    "below the group's time-out, says where it stands"
)


def is_timeout(error: Error) -> bool:
    """Whether a rank says that a collective timed out."""
    return any(one.search(error.text) for one in (_CAUGHT, _GLOO, _BARRIER, _STUCK))


def explain_timeout(errors: Sequence[Error], nodes: Sequence[str], outside: Sequence[int] = ()) -> Diagnosis:
    """Who did not join the collective that others report; ``nodes`` are those of all ranks, by rank.

    ``outside`` are silent ranks that were seen in no collective, where all ranks are in one group.
    """
    lines = _Lines(errors)
    if lines.caught:
        return _of_watchdogs(lines, nodes)
    if lines.stuck:
        return _of_heartbeats(lines.stuck, nodes)
    return _of_gloo(errors, nodes, outside)


class _Lines:
    """The watchdogs' lines by rank: calls that timed out, how many were begun in which group."""

    def __init__(self, errors: Iterable[Error]) -> None:
        self.caught: dict[tuple[int, int], str] = {}
        """What each rank timed out in, by rank and number."""
        self._groups: dict[tuple[int, int], str] = {}
        self.begun: dict[int, dict[str, int]] = {}
        self.stuck: tuple[int, ...] = ()
        for error in errors:
            if caught := _CAUGHT.search(error.text):
                size = f" of {caught[3]}" if caught[2] in _EQUAL_SIZES and caught[3] else ""
                self.caught.setdefault((error.rank, int(caught[1])), caught[2] + size)
            elif status := _STATUS.search(error.text):
                if at_work := _AT_WORK.search(error.text):
                    self._groups[error.rank, int(at_work[1])] = status[1]
                groups = self.begun.setdefault(error.rank, {})
                groups[status[1]] = max(groups.get(status[1], -1), int(status[2]))
            elif _STUCK.search(error.text):
                self.stuck = tuple(sorted({*self.stuck, error.rank}))

    def of_group(self) -> tuple[str, dict[int, tuple[int, str]]]:
        """The group in which most ranks wait ('': no line names it), and the oldest call of each there."""
        by_group: dict[str, dict[int, tuple[int, str]]] = {}
        for (rank, number), called in sorted(self.caught.items(), reverse=True):
            by_group.setdefault(self._groups.get((rank, number), ""), {})[rank] = number, called
        return max(by_group.items(), key=lambda item: (len(item[1]), item[0]))


def _of_watchdogs(lines: _Lines, nodes: Sequence[str]) -> Diagnosis:
    group, waits = lines.of_group()
    newest = max(number for number, _ in waits.values())
    sides = _sides({rank: called for rank, (number, called) in waits.items() if number == newest})
    where = f"collective {newest}{f' of group {group}' if group else ''}"
    until = f"({where}) until it timed out"
    evidence = tuple(f"{ranks_in_words(ranks)} waited in {called} {until}" for called, ranks in sides)
    if len(sides) > 1:
        return _differs(sides, where, nodes, evidence)
    others = [rank for rank in range(len(nodes)) if rank not in waits]
    absent = _absent(lines, group, others, newest, len(nodes))
    whys = {rank: _why(lines, rank, group, where) for rank in absent}
    low = {rank: call for rank, call in waits.items() if group and call[0] < newest}
    if not absent and 2 * len(low) < len(waits):
        whys = {rank: f"it stands at {it}, collective {number}" for rank, (number, it) in low.items()}
    if whys:
        return _blamed(whys, f"never came to {sides[0][0]} ({where})", nodes, evidence)
    everybody = len(waits) == len(nodes) and not low
    said = f"{ranks_in_words(waits)} waited in {sides[0][0]} {until}"
    said += ": every rank had begun it" if everybody else ": what they printed does not tell who did not come"
    remedy = "clusterrun check finds a broken link" if everybody else _REMEDY
    return Diagnosis(Verdict.LINK if everybody else Verdict.NEVER_ARRIVED, said, (), (), evidence, remedy)


def _absent(lines: _Lines, group: str, others: list[int], newest: int, size: int) -> list[int]:
    """Ranks that have not begun what others timed out in, as far as that is certain."""
    if group != _DEFAULT:
        return others if len(others) == 1 else []
    behind = [rank for rank in others if lines.begun.get(rank, {}).get(group, newest) < newest]
    mute = [rank for rank in others if group not in lines.begun.get(rank, {})]
    # Ranks that are ended while others still print are mute too: one may be told from that, few by luck.
    answers = any(rank in lines.begun for rank in others) and 2 * len(mute) < size
    return [*behind, *(mute if len(mute) == 1 or answers else ())]


def _why(lines: _Lines, rank: int, group: str, where: str) -> str:
    begun = lines.begun.get(rank, {}).get(group)
    if begun is None:
        return f"it printed nothing of {where}, which the others waited in"
    return f"it had begun {max(begun, 0)} collectives, and the others waited in {where}"


def _sides(calls: Mapping[int, str]) -> list[tuple[str, tuple[int, ...]]]:
    """Each call with its ranks, the one of most ranks first."""
    found = {called: tuple(sorted(r for r in calls if calls[r] == called)) for called in calls.values()}
    return sorted(found.items(), key=lambda item: (-len(item[1]), item[1]))


def _differs(
    sides: Sequence[tuple[str, tuple[int, ...]]], where: str, nodes: Sequence[str], evidence: tuple[str, ...]
) -> Diagnosis:
    odd = sides[1:] if len(sides[0][1]) > len(sides[1][1]) else sides
    whys = {rank: f"it called {called} as {where}" for called, ranks in odd for rank in ranks}
    told = "; ".join(f"{ranks_in_words(ranks)} called {called}" for called, ranks in sides)
    said = f"ranks called different collectives as {where}: {told}"
    remedy = "let every rank call the same collectives, in the same order, with equal shapes and types"
    return Diagnosis(Verdict.MISMATCH, said, _culprits(whys, nodes), (), evidence, remedy)


def _of_heartbeats(stuck: tuple[int, ...], nodes: Sequence[str]) -> Diagnosis:
    why = "the watchdog thread of its NCCL was stuck: a call of CUDA or NCCL does not return"
    remedy = "nvidia-smi and dmesg on that node (Xid); does a thread hold Python's lock in a call of CUDA?"
    if len(stuck) == 1:
        return _blamed({stuck[0]: why}, "was ended by NCCL's heartbeat monitor", nodes, (), remedy)
    said = f"NCCL's heartbeat monitor ended {ranks_in_words(stuck)}: a call of CUDA or NCCL does not return"
    return Diagnosis(Verdict.UNDETERMINED, said, (), (), (), remedy)


def _of_gloo(errors: Sequence[Error], nodes: Sequence[str], outside: Sequence[int]) -> Diagnosis:
    """gloo's words name no collective; a monitored barrier names who did not come."""
    listed = " ".join(found for error in errors for found in _BARRIER.findall(error.text))
    named = {int(rank) for rank in listed.replace(",", " ").split()}
    waited = ranks_in_words({error.rank for error in errors if is_timeout(error)})
    evidence = (f"{waited} waited in a collective until it timed out",)
    silent = {*range(len(nodes))} - {error.rank for error in errors}
    if named:
        whys = dict.fromkeys(named, "it did not come to the monitored barrier")
        return _blamed(whys, "never came to monitored_barrier", nodes, evidence)
    whys = dict.fromkeys(outside, "it was in no collective, while others timed out or lost their peers")
    if len(silent) == 1:
        whys = dict.fromkeys(silent, "it printed nothing, while all others timed out or lost their peers")
    if whys:
        return _blamed(whys, "never came to a collective", nodes, evidence)
    said = f"a collective timed out in {waited}: what was printed does not tell who did not come"
    return Diagnosis(Verdict.NEVER_ARRIVED, said, (), (), evidence, _REMEDY)


def _blamed(
    whys: Mapping[int, str], did: str, nodes: Sequence[str], evidence: tuple[str, ...], remedy: str = _REMEDY
) -> Diagnosis:
    ranks = sorted(whys)
    culprits = _culprits({rank: whys[rank] for rank in ranks}, nodes)
    on = f" on {culprits[0].node}" if len({one.node for one in culprits}) == 1 and culprits[0].node else ""
    said = f"{ranks_in_words(ranks)}{on} {did}: {culprits[0].why}"
    remedy = remedy.replace("--rank N", f"--rank {ranks[0]}")
    return Diagnosis(Verdict.NEVER_ARRIVED, said, culprits, (), evidence, remedy)


def _culprits(whys: Mapping[int, str], nodes: Sequence[str]) -> tuple[Culprit, ...]:
    known = dict(enumerate(nodes))
    return tuple(Culprit(rank, known.get(rank, ""), why) for rank, why in whys.items())
