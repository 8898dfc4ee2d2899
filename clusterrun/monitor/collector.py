"""One thorough look at the ranks of this node, on request: each step is bounded; judges nothing."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from clusterrun import proc
from clusterrun.diagnosis.evidence import (
    Backlog,
    ChildProcess,
    Collected,
    LookOptions,
    ProcessSample,
    PythonStacks,
    RankSnapshot,
)
from clusterrun.diagnosis.stacks import Doing, in_data_loader, joins_processes, location, shortened
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
# Stacks taken during a look, to find where a slow rank spends its time. Each takes a rank about 1 ms.
SAMPLES = 5
# Ranks of a node up to which that is done: a request reads all descriptors of its rank.
MOST_SAMPLED = 16


@frozen
class First:
    """A rank at the beginning of the look: what it had used, printed, begun and written."""

    rank: int
    pid: int
    channel: RankChannel | None
    used: float
    output: int
    begun: tuple[int, ...]
    files: Mapping[str, int]


def pid_for_ras(ranks: Sequence[RankSnapshot], answers: Mapping[int, Mapping[str, Any]]) -> int:
    """Return a rank whose NCCL may be asked for its report; 0 if there is none.

    NCCL is asked only if no rank of the node moves, and only if its version is known to survive the request.
    ``answers`` holds what each rank told of itself, by process.
    """
    users = [rank for rank in ranks if any("nccl" in group.backend for group in rank.groups)]
    versions = [tuple(answers.get(rank.process.pid, {}).get("nccl") or ()) for rank in users]
    if not users or min(versions) < RAS_SINCE or any(rank.moved for rank in ranks):
        return 0
    return users[0].process.pid


class Look:
    """The look at one node's ranks; ``pids`` are what the agent started, by rank."""

    def __init__(self, node: str, paths: AttemptPaths, pids: Mapping[int, int], path: str) -> None:
        self._node, self._paths, self._path = node, paths, path
        self._pids = found(pids)
        self._number, self._seconds = time.monotonic_ns(), 0.0
        self._samples: dict[int, list[str]] = {}

    def collect(self, wanted: LookOptions) -> Collected:
        """What can be seen within about ``wanted.seconds`` and 4 s more for what does not answer."""
        clock, before = time.time(), self._first()
        began = time.monotonic()
        self._sample(before, began + wanted.seconds)
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

    def _sample(self, before: list[First], until: float) -> None:
        """Wait until ``until``, and note meanwhile where the main threads are outside of collectives."""
        pause = (until - time.monotonic()) / (SAMPLES + 1)
        open_channels = [first.channel for first in before if first.channel]
        for _ in range(SAMPLES if len(open_channels) <= MOST_SAMPLED else 0):
            time.sleep(max(0.0, min(pause, until - time.monotonic())))
            limit = min(pause, until - time.monotonic())
            for pid, reply in (stacks(open_channels, limit) if limit > 0 else {}).items():
                here = location(reply.main)
                if here.frame and here.doing not in (Doing.COLLECTIVE, Doing.RENDEZVOUS):
                    self._samples.setdefault(pid, []).append(here.frame)
        time.sleep(max(0.0, until - time.monotonic()))

    def _first(self) -> list[First]:
        open_channels = [channel for _, channel in self._pids.values() if channel and proc.runs(channel.pid)]
        said = facts(open_channels, self._number, 0)
        return [
            First(
                rank,
                pid,
                channel,
                used(pid),
                output(self._paths, rank),
                begun(said.get(pid, {})),
                proc.written_files(pid),
            )
            for rank, (pid, channel) in self._pids.items()
        ]

    def _seen(self, first: First, answer: Mapping[str, Any], stacks: StackReply, busy: float) -> RankSnapshot:
        """``answer``: of the rank's own thread; empty without one. ``busy``: processors that it kept busy."""
        rank = first.rank
        moment = proc.look(first.pid)
        if moment is None:
            gone = ProcessSample(first.pid, "")
            return RankSnapshot(rank, self._node, gone, quiet=quiet(self._paths, rank))
        addresses, backlog = connections(first.pid)
        holder, lock = proc.awaited_lock(first.pid)
        file, grown = most_grown(first.files, proc.written_files(first.pid))
        process = ProcessSample(
            pid=first.pid,
            state=moment.state,
            waits_in=proc.waiting_in(first.pid),
            busy=round(busy, 3),
            seconds=round(self._seconds, 3),
            children=self._children(first, stacks.main),
            addresses=addresses,
            backlog=backlog,
            lock=lock,
            lock_holder=holder,
            file=file,
            written=round(grown / self._seconds),
        )
        call, request, tasks = calls(answer)
        return RankSnapshot(
            rank=rank,
            node=self._node,
            process=process,
            stacks=PythonStacks(
                main=stacks.main,
                source="faulthandler" if stacks.main else "",
                threads=stacks.threads,
                tasks=tasks,
                samples=tuple(self._samples.get(first.pid, ())),
            ),
            groups=groups(answer),
            records=records(answer),
            call=call,
            request=request,
            clock=time.time(),
            quiet=round(quiet(self._paths, rank), 1),
            printed=output(self._paths, rank) != first.output,
            moved=bool(answer and first.begun) and begun(answer) != first.begun,
            answered=bool(answer) and "problem" not in answer,
            problem=str(answer.get("problem", "" if answer or not first.channel else NO_ANSWER)),
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

    def _spied(self, seen: list[RankSnapshot]) -> list[RankSnapshot]:
        """Add stacks of py-spy for ranks that gave none, and for the processes that they wait for."""
        until = time.monotonic() + SPY_SECONDS
        snapshots = []
        for rank in seen:
            process = rank.process
            is_mute = not rank.stacks.main and process.state not in ("", *proc.STOPPED_STATES)
            stack = spy(process.pid, self._path) if is_mute and time.monotonic() < until else ()
            if stack:
                below = list(process.children)
                for place, child in enumerate(below if joins_processes(stack) else ()):
                    if time.monotonic() < until and child.state not in proc.STOPPED_STATES:
                        below[place] = replace(child, stack=spy(child.pid, self._path))
                process = replace(process, children=tuple(below))
                rank = replace(rank, process=process, stacks=PythonStacks(stack, "py-spy"))
            snapshots.append(rank)
        return snapshots


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


def most_grown(before: Mapping[str, int], after: Mapping[str, int]) -> tuple[str, int]:
    """Return the file that grew most and by how many bytes. A file that is new counts as a whole."""
    grown = {path: size - before.get(path, 0) for path, size in after.items()}
    path = max(grown, key=lambda path: grown[path], default="")
    return (path, grown[path]) if path and grown[path] > 0 else ("", 0)


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
                stacks=replace(one.stacks, main=shortened(one.stacks.main, frames)),
                process=replace(one.process, children=one.process.children[:children]),
            )
            for one in collected.ranks
        )
        text = json.dumps({"collected": encode(replace(collected, ranks=smaller))})
        if len(text) <= MOST_BYTES:
            break
    return text
