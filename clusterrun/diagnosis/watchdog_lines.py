"""Read what ranks print when a collective times out: rows for the table of calls; pure.

NCCL's watchdog prints in the ranks that waited. A rank that did not come prints nothing, or (torch 2.5 and
later) only how many collectives it has begun.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from clusterrun.diagnosis.calls import Call
from clusterrun.diagnosis.printed_errors import Error

# A log may have lost the end of the line.
_CAUGHT = re.compile(
    r"(?:Watchdog caught co|\bcollective operation timeout)(?:llective operation timeout)?"
    r"(?:: \w+\(SeqNum=(\d+)(?:, OpType=(\w+)(?:, NumelIn=(\d+))?)?)?"
)
_AT_TIMEOUT = re.compile(
    r"Timeout at (?:\w+ )?work: (\d+)|timeout from this local rank.*?last completed \w+ work: (\d+)"
)
_STATUS = re.compile(r"\[PG (?:ID )?(\d+)\b[^\]]*\bRank \d+\].*?[Ll]ast enqueued (?:\w+ )?work: (-?\d+)")
_AT_WORK = re.compile(r"\bat (?:\w+ )?work(?: sequence id)?: (\d+)")
_GLOO = re.compile(r"Timed out waiting \d+ms for (?:recv|send) operation")
_BARRIER = re.compile(r"Ranks? ([\d, ]+) failed to pass monitoredBarrier")
_STUCK = re.compile(
    r"watchdog got stuck for \d+ ?seconds|Heartbeat monitor timed out|ProcessGroupNCCL watchdog hang"
)
# Rank 0 of a group sets a key of the store as soon as it joins the group's first collective.
_UNIQUE_ID = re.compile(r"retrieving ncclUniqueId from \[(\d+)\].*(?:wait|Socket) [Tt]imeout")
# The key of the group that all ranks are in.
_WORLD_KEY = "default_pg"
_EQUAL_SIZES = ("ALLREDUCE", "BROADCAST", "REDUCE", "ALLGATHER", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE")
_TIMEOUTS = (_CAUGHT, _AT_TIMEOUT, _GLOO, _BARRIER, _STUCK, _UNIQUE_ID)
# The operation of a call that no line names.
UNNAMED = "a collective"
# The number of the group that all ranks are in. Of other groups no line lists the members.
WORLD = "0"


def is_timeout(error: Error) -> bool:
    """Return whether a rank reports that a collective timed out."""
    return any(pattern.search(error.text) for pattern in _TIMEOUTS)


class WatchdogLines:
    """The lines of all ranks.

    calls: the calls that timed out
    begun: by rank and group, how many collectives it has begun
    stuck: ranks whose watchdog thread was stuck
    absent: ranks for which others waited by name
    timed_out: ranks that report a time-out of any kind
    spoke: ranks that printed any error
    """

    def __init__(self, errors: Iterable[Error]) -> None:
        calls: dict[tuple[int, int], str] = {}
        unnamed: dict[tuple[int, int], str] = {}
        groups: dict[tuple[int, int], str] = {}
        stuck, absent = set(), set()
        self.begun: dict[int, dict[str, int]] = {}
        self.timed_out: set[int] = set()
        self.spoke: set[int] = set()
        for error in errors:
            rank, text = error.rank, error.text
            self.spoke.add(rank)
            self.timed_out |= {rank} if is_timeout(error) else set()
            for listed in _BARRIER.findall(text):
                absent |= set(map(int, listed.replace(",", " ").split()))
            if (unique_id := _UNIQUE_ID.search(text)) and _WORLD_KEY in text:
                absent.add(int(unique_id[1]))
            if at := _AT_TIMEOUT.search(text):
                unnamed.setdefault((rank, int(at[1] or int(at[2]) + 1)), UNNAMED)
            if (caught := _CAUGHT.search(text)) and caught[1]:
                size = f" of {caught[3]}" if caught[2] in _EQUAL_SIZES and caught[3] else ""
                calls.setdefault((rank, int(caught[1])), (caught[2] or UNNAMED) + size)
            elif status := _STATUS.search(text):
                if at_work := _AT_WORK.search(text):
                    groups[rank, int(at_work[1])] = status[1]
                begun = self.begun.setdefault(rank, {})
                begun.setdefault(status[1], int(status[2]))
            elif _STUCK.search(text):
                stuck.add(rank)
        self.stuck, self.absent = tuple(sorted(stuck)), tuple(sorted(absent))
        # The end of a line may be lost in some ranks.
        named = {number: operation for (_, number), operation in calls.items() if operation != UNNAMED}
        for (rank, number), operation in calls.items():
            calls[rank, number] = named.get(number, operation) if operation == UNNAMED else operation
        # A log may lack the line that names the group of a call. With one group there is no doubt.
        only_group = next(iter(groups.values())) if len(set(groups.values())) == 1 else ""
        self.calls = [
            Call(rank, groups.get((rank, number), only_group), number, operation)
            for (rank, number), operation in sorted((calls or unnamed).items())
        ]

    def main_group(self) -> tuple[str, dict[int, Call]]:
        """Return the group in which most ranks wait ('': unnamed), and each rank's oldest call in it."""
        by_group: dict[str, dict[int, Call]] = {}
        for call in reversed(self.calls):
            by_group.setdefault(call.group, {})[call.rank] = call
        return max(by_group.items(), key=lambda item: (len(item[1]), item[0]))
