"""One thorough look at the ranks of this node, on request: each step is bounded; judges nothing."""

from __future__ import annotations

import json
import os
import time

from clusterrun import proc
from clusterrun.diagnosis.evidence import ChildProcess, Collected, LookOptions, RankSeen
from clusterrun.diagnosis.frames import in_data_loader, joins_processes, shortened
from clusterrun.model.document import encode
from clusterrun.model.frozen import frozen, replace
from clusterrun.monitor.external_tools import RAS_ADDRESS, RAS_VARIABLE, nccl_ras, spy
from clusterrun.monitor.rank_channels import channels
from clusterrun.monitor.stacks import StackReply, stack_of_fork, stacks
from clusterrun.monitor.stalled_sockets import connections
from clusterrun.monitor.torch_facts import calls, facts, groups, records

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from clusterrun.model.paths import AttemptPaths
    from clusterrun.monitor.rank_channels import RankChannel

MOST_CHILDREN = 64
MOST_FORKS_ASKED = 2
SPY_SECONDS = 3.0
"""py-spy takes about a second for each process; nobody is asked once this much has passed."""
RECORDS_SECONDS = 2.0
"""For answers with flight records: a rank that trains at full speed on a crowded node needs longer."""
NO_ANSWER = "no answer in time"
MOST_BYTES = 800_000


@frozen
class First:
    """A rank at the beginning of the look: what it had used, printed and begun."""

    pid: int
    channel: RankChannel | None
    used: float
    output: int
    begun: tuple[int, ...]


class Look:
    """The look at one node's ranks; ``pids`` are what the agent started, by rank."""

    def __init__(self, node: str, paths: AttemptPaths, pids: Mapping[int, int], path: str) -> None:
        self._node, self._paths, self._path = node, paths, path
        self._pids = found(pids)
        self._number = time.monotonic_ns()

    def collect(self, wanted: LookOptions) -> Collected:
        """What can be seen within about ``wanted.seconds`` and 4 s more for what does not answer."""
        clock, before = time.time(), self._first()
        began = time.monotonic()
        time.sleep(wanted.seconds)
        seconds = time.monotonic() - began
        # Before they are asked: to write many records takes a rank some time as well.
        busy = {rank: (used(one.pid) - one.used) / seconds for rank, one in before.items()}
        channels = [one.channel for one in before.values() if one.channel and proc.runs(one.pid)]
        # Stacks last: the thread's answer may touch what is on the way.
        said = facts(channels, self._number + 1, wanted.records, RECORDS_SECONDS)
        told = stacks(channels)
        seen = [
            self._seen(rank, one, said.get(one.pid), told, (seconds, busy[rank]))
            for rank, one in before.items()
        ]
        by_nccl = [one.pid for one in seen if any("nccl" in group.backend for group in one.groups)]
        ras = nccl_ras(proc.environment(by_nccl[0]).get(RAS_VARIABLE) or RAS_ADDRESS) if by_nccl else ()
        return Collected(self._node, clock, tuple(self._spied(seen)), ras)

    def _first(self) -> dict[int, First]:
        open_channels = [channel for _, channel in self._pids.values() if channel and proc.runs(channel.pid)]
        said = facts(open_channels, self._number, 0)
        return {
            rank: First(pid, channel, used(pid), output(self._paths, rank), begun(said.get(pid)))
            for rank, (pid, channel) in self._pids.items()
        }

    def _seen(
        self,
        rank: int,
        first: First,
        said: Mapping[str, Any] | None,
        told: Mapping[int, StackReply],
        worked: tuple[float, float],
    ) -> RankSeen:
        """``worked``: for how many seconds it was looked at, and how many processors it kept busy."""
        moment = proc.look(first.pid)
        if moment is None:
            return RankSeen(rank, self._node, first.pid, "", quiet=quiet(self._paths, rank))
        stacks = told.get(first.pid, StackReply(()))
        stack = stacks.main
        joined = connections(first.pid)
        return RankSeen(
            rank=rank,
            node=self._node,
            pid=first.pid,
            state=moment.state,
            waits_in=proc.waiting_in(first.pid),
            busy=round(worked[1], 3),
            seconds=round(worked[0], 3),
            quiet=round(quiet(self._paths, rank), 1),
            clock=time.time(),
            moved=said is not None and bool(first.begun) and begun(said) != first.begun,
            printed=output(self._paths, rank) != first.output,
            stack=stack,
            source="faulthandler" if stack else "",
            threads=stacks.threads,
            answered=said is not None and "problem" not in said,
            torch=bool(said and said.get("torch")),
            groups=groups(said or {}),
            records=records(said or {}),
            children=self._children(first, stack),
            addresses=joined.addresses,
            backlog=joined.backlog,
            problem=str((said or {}).get("problem", "" if said or not first.channel else NO_ANSWER)),
            **calls(said or {}),
            **awaited(first.pid),
        )

    def _children(self, first: First, stack: tuple[str, ...]) -> tuple[ChildProcess, ...]:
        moments = [moment for moment in map(proc.look, proc.below(first.pid, MOST_CHILDREN)) if moment]
        asked = [moment.pid for moment in moments if not moment.stopped][:MOST_FORKS_ASKED]
        if first.channel is None or not in_data_loader(stack):
            asked = []
        return tuple(
            ChildProcess(
                moment.pid,
                moment.name,
                moment.state,
                proc.waiting_in(moment.pid),
                stack_of_fork(first.channel, moment.pid) if first.channel and moment.pid in asked else (),
            )
            for moment in moments
        )

    def _spied(self, seen: list[RankSeen]) -> list[RankSeen]:
        """The same with stacks of py-spy for some that gave none by themselves."""
        mute = [one.rank for one in seen if not one.stack and one.state not in ("", *proc.STOPPED_STATES)]
        until = time.monotonic() + SPY_SECONDS
        return [self._spied_one(one, until) if one.rank in mute else one for one in seen]

    def _spied_one(self, one: RankSeen, until: float) -> RankSeen:
        """The same with its stack; and those of the processes that it waits for, which are ranks perhaps."""
        told = spy(one.pid, self._path) if time.monotonic() < until else ()
        if not told:
            return one
        below = list(one.children)
        for place, child in enumerate(below if joins_processes(told) else ()):
            if time.monotonic() < until and child.state not in proc.STOPPED_STATES:
                below[place] = replace(child, stack=spy(child.pid, self._path))
        return replace(one, stack=told, source="py-spy", children=tuple(below))


def found(pids: Mapping[int, int]) -> dict[int, tuple[int, RankChannel | None]]:
    """Each rank's process and its channel; below a launcher those of the ranks that it started."""
    ranks: dict[int, tuple[int, RankChannel | None]] = {}
    for rank, pid in pids.items():
        inside = channels(pid)
        for channel in inside:
            ranks[channel.rank] = (channel.pid, channel)
        if not inside:
            ranks[rank] = (pid, None)
    return dict(sorted(ranks.items()))


def awaited(pid: int) -> dict[str, Any]:
    """Which lock of a file a process waits for, and who holds it."""
    return dict(zip(("lock_holder", "lock"), proc.awaited_lock(pid)))


def used(pid: int) -> float:
    """Seconds of processor time of a process and of what lives below it."""
    moments = [proc.look(one) for one in (pid, *proc.below(pid, MOST_CHILDREN))]
    return sum(moment.seconds for moment in moments if moment)


def begun(said: Mapping[str, Any] | None) -> tuple[int, ...]:
    """How many collectives were begun in each group."""
    return tuple(int(one.get("sequence", -1)) for one in (said or {}).get("groups") or ())


def output(paths: AttemptPaths, rank: int) -> int:
    """Bytes that a rank has printed."""
    return sum(status.st_size for status in _logs(paths, rank))


def quiet(paths: AttemptPaths, rank: int) -> float:
    """Seconds since a rank last printed."""
    return max(0.0, time.time() - max((status.st_mtime for status in _logs(paths, rank)), default=0.0))


def _logs(paths: AttemptPaths, rank: int) -> list[os.stat_result]:
    found = []
    for path in (paths.out(rank), paths.err(rank)):
        try:
            found.append(os.stat(path))
        except OSError:
            continue
    return found


def text_of(collected: Collected) -> str:
    """JSON of at most ``MOST_BYTES``: of too much, records and outer frames are left out."""
    for most, frames, children in ((256, 60, 64), (32, 40, 16), (8, 20, 4), (1, 5, 0)):
        smaller = tuple(
            replace(
                one,
                records=one.records[-most:],
                stack=shortened(one.stack, frames),
                children=one.children[:children],
            )
            for one in collected.ranks
        )
        text = json.dumps({"collected": encode(replace(collected, ranks=smaller))})
        if len(text) <= MOST_BYTES:
            break
    return text
