"""One thorough look at the ranks of this node, on request: each step is bounded; judges nothing."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from clusterrun import proc
from clusterrun.diagnosis.evidence import Backlog, ChildProcess, Collected, LookOptions, RankSeen
from clusterrun.diagnosis.frames import in_data_loader, joins_processes, shortened
from clusterrun.model.document import encode
from clusterrun.model.frozen import Any, frozen, replace
from clusterrun.model.paths import AttemptPaths
from clusterrun.monitor.external_tools import RAS_ADDRESS, RAS_SINCE, RAS_VARIABLE, nccl_ras, spy
from clusterrun.monitor.rank_channels import (
    RankChannel,
    StackReply,
    calls,
    channels,
    facts,
    groups,
    records,
    stack_of_fork,
    stacks,
)

MOST_CHILDREN = 64
MOST_FORKS_ASKED = 2
SPY_SECONDS = 3.0
"""py-spy takes about a second for each process; nobody is asked once this much has passed."""
RECORDS_SECONDS = 2.0
"""For answers with flight records: a rank that trains at full speed on a crowded node needs longer."""
NO_ANSWER = "no answer in time"
MOST_BYTES = 800_000
LEAST_RETRIES = 2
"""One packet that is sent twice is nothing; a path that is cut keeps sending."""
MOST_PEERS = 16


@frozen
class First:
    """A rank at the beginning of the look: what it had used, printed and begun."""

    rank: int
    pid: int
    channel: RankChannel | None
    used: float
    output: int
    begun: tuple[int, ...]


def pid_for_ras(ranks: Sequence[RankSeen], answers: Mapping[int, Mapping[str, Any]]) -> int:
    """Return a rank whose NCCL may be asked for its report; 0 if there is none.

    NCCL is asked only if no rank of the node moves, and only if its version is known to survive the request.
    ``answers`` holds what each rank told of itself, by process.
    """
    users = [rank for rank in ranks if any("nccl" in group.backend for group in rank.groups)]
    versions = [tuple(answers.get(rank.pid, {}).get("nccl") or ()) for rank in users]
    if not users or min(versions) < RAS_SINCE or any(rank.moved for rank in ranks):
        return 0
    return users[0].pid


class Look:
    """The look at one node's ranks; ``pids`` are what the agent started, by rank."""

    def __init__(self, node: str, paths: AttemptPaths, pids: Mapping[int, int], path: str) -> None:
        self._node, self._paths, self._path = node, paths, path
        self._pids = found(pids)
        self._number, self._seconds = time.monotonic_ns(), 0.0

    def collect(self, wanted: LookOptions) -> Collected:
        """What can be seen within about ``wanted.seconds`` and 4 s more for what does not answer."""
        clock, before = time.time(), self._first()
        began = time.monotonic()
        time.sleep(wanted.seconds)
        self._seconds = time.monotonic() - began
        # Before they are asked: to write many records takes a rank some time as well.
        busy = [(used(one.pid) - one.used) / self._seconds for one in before]
        channels = [one.channel for one in before if one.channel and proc.runs(one.pid)]
        # Stacks last: the thread's answer may touch what is on the way.
        said = facts(channels, self._number + 1, wanted.records, RECORDS_SECONDS)
        told = stacks(channels)
        seen = [
            self._seen(one, said.get(one.pid, {}), told.get(one.pid, StackReply(())), cores)
            for one, cores in zip(before, busy)
        ]
        pid = pid_for_ras(seen, said)
        ras = nccl_ras(proc.environment(pid).get(RAS_VARIABLE) or RAS_ADDRESS) if pid else ()
        return Collected(self._node, clock, tuple(self._spied(seen)), ras)

    def _first(self) -> list[First]:
        open_channels = [channel for _, channel in self._pids.values() if channel and proc.runs(channel.pid)]
        said = facts(open_channels, self._number, 0)
        return [
            First(rank, pid, channel, used(pid), output(self._paths, rank), begun(said.get(pid, {})))
            for rank, (pid, channel) in self._pids.items()
        ]

    def _seen(self, first: First, said: Mapping[str, Any], stacks: StackReply, busy: float) -> RankSeen:
        """``said``: what its thread answered; empty for nothing. ``busy``: how many processors."""
        rank = first.rank
        moment = proc.look(first.pid)
        if moment is None:
            return RankSeen(rank, self._node, first.pid, "", quiet=quiet(self._paths, rank))
        addresses, backlog = connections(first.pid)
        holder, lock = proc.awaited_lock(first.pid)
        return RankSeen(
            rank=rank,
            node=self._node,
            pid=first.pid,
            state=moment.state,
            waits_in=proc.waiting_in(first.pid),
            busy=round(busy, 3),
            seconds=round(self._seconds, 3),
            quiet=round(quiet(self._paths, rank), 1),
            clock=time.time(),
            moved=bool(said and first.begun) and begun(said) != first.begun,
            printed=output(self._paths, rank) != first.output,
            stack=stacks.main,
            source="faulthandler" if stacks.main else "",
            threads=stacks.threads,
            answered=bool(said) and "problem" not in said,
            torch=bool(said.get("torch")),
            groups=groups(said),
            records=records(said),
            children=self._children(first, stacks.main),
            addresses=addresses,
            backlog=backlog,
            lock_holder=holder,
            lock=lock,
            problem=str(said.get("problem", "" if said or not first.channel else NO_ANSWER)),
            **calls(said),
        )

    def _children(self, first: First, stack: tuple[str, ...]) -> tuple[ChildProcess, ...]:
        moments = [moment for moment in map(proc.look, proc.below(first.pid, MOST_CHILDREN)) if moment]
        asked: dict[int, tuple[str, ...]] = {}
        if first.channel is not None and in_data_loader(stack):
            running = [moment.pid for moment in moments if not moment.stopped]
            asked = {pid: stack_of_fork(first.channel, pid) for pid in running[:MOST_FORKS_ASKED]}
        return tuple(
            ChildProcess(one.pid, one.name, one.state, proc.waiting_in(one.pid), asked.get(one.pid, ()))
            for one in moments
        )

    def _spied(self, seen: list[RankSeen]) -> list[RankSeen]:
        """The same with stacks of py-spy for some that gave none, and of processes that they wait for."""
        until = time.monotonic() + SPY_SECONDS
        found = []
        for one in seen:
            mute = not one.stack and one.state not in ("", *proc.STOPPED_STATES)
            told = spy(one.pid, self._path) if mute and time.monotonic() < until else ()
            if told:
                below = list(one.children)
                for place, child in enumerate(below if joins_processes(told) else ()):
                    if time.monotonic() < until and child.state not in proc.STOPPED_STATES:
                        below[place] = replace(child, stack=spy(child.pid, self._path))
                one = replace(one, stack=told, source="py-spy", children=tuple(below))
            found.append(one)
        return found


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


def connections(pid: int) -> tuple[tuple[str, ...], tuple[Backlog, ...]]:
    """The addresses that ``pid`` speaks from by TCP, and the peers that do not acknowledge what it sends."""
    sockets = proc.sockets(pid)
    found: dict[str, Backlog] = {}
    own: set[str] = set()
    for table in ("tcp", "tcp6") if sockets else ():
        for line in proc.content(f"/proc/{pid}/net/{table}").decode("ascii", "replace").split("\n")[1:]:
            words = line.split()
            if len(words) <= 9 or words[9] not in sockets:
                continue
            own.add(proc.address(words[1].partition(":")[0]))
            waiting, retries = int(words[4].partition(":")[0], 16), int(words[6], 16)
            if waiting and retries >= LEAST_RETRIES:
                peer = proc.address(words[2].partition(":")[0])
                before = found.get(peer, Backlog(peer, 0, 0))
                found[peer] = Backlog(peer, before.waiting + waiting, max(before.retries, retries))
    owed = sorted(found.values(), key=lambda one: (-one.retries, -one.waiting, one.peer))
    return tuple(sorted(own))[:MOST_PEERS], tuple(owed[:MOST_PEERS])


def used(pid: int) -> float:
    """Seconds of processor time of a process and of what lives below it."""
    moments = [proc.look(one) for one in (pid, *proc.below(pid, MOST_CHILDREN))]
    return sum(moment.seconds for moment in moments if moment)


def begun(said: Mapping[str, Any]) -> tuple[int, ...]:
    """How many collectives were begun in each group."""
    return tuple(int(one.get("sequence", -1)) for one in said.get("groups") or ())


def output(paths: AttemptPaths, rank: int) -> int:
    """Bytes that a rank has printed."""
    return sum(status.st_size for status in _logs(paths, rank))


def quiet(paths: AttemptPaths, rank: int) -> float:
    """Seconds since a rank last printed."""
    return max(0.0, time.time() - max((status.st_mtime for status in _logs(paths, rank)), default=0.0))


def _logs(paths: AttemptPaths, rank: int) -> list[os.stat_result]:
    found = []
    for path in (paths.out(rank), paths.err(rank)):
        with suppress(OSError):
            found.append(os.stat(path))
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
