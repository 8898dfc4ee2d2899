"""Look thoroughly at the ranks of this node, on request. Each step has a time limit."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from clusterrun import proc
from clusterrun.diagnosis.evidence import Collected, LookOptions, ProcessSample, PythonStacks, RankSnapshot
from clusterrun.diagnosis.stacks import (
    Doing,
    in_data_loader,
    joins_processes,
    location,
    reads_of_process,
    shortened,
)
from clusterrun.model.document import encode
from clusterrun.model.frozen import Any, frozen, replace
from clusterrun.model.paths import AttemptPaths
from clusterrun.monitor.external_tools import spy
from clusterrun.monitor.process_sample import read_sample, used
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
    thread_waits,
)

MOST_FORKS_ASKED = 2
# py-spy takes about a second for each process. No process is queried after this time.
SPY_SECONDS = 3.0
# For answers with flight records. A rank that trains at full speed on a crowded node needs longer.
RECORDS_SECONDS = 2.0
NO_ANSWER = "no answer in time"
MOST_BYTES = 800_000
# Stacks taken during a look, to find where a slow rank spends its time. Each takes a rank about 1 ms.
SAMPLES = 5
# More ranks of a node are not sampled, since each sample reads all descriptors of its rank.
MOST_SAMPLED = 16


@frozen
class First:
    """A rank at the beginning of the look."""

    rank: int
    pid: int
    channel: RankChannel | None  # None without the prelude
    used: float  # processor seconds of its process tree
    output: int  # bytes printed
    begun: tuple[int, ...]  # collectives begun, for each group
    files: Mapping[str, int]  # sizes of the files that it writes, by path


class Look:
    """The look at one node's ranks. ``pids`` are the processes that the agent started, by rank."""

    def __init__(self, node: str, paths: AttemptPaths, pids: Mapping[int, int], path: str) -> None:
        self._node, self._paths, self._path = node, paths, path
        self._pids = rank_processes(pids)
        self._number, self._seconds = time.monotonic_ns(), 0.0
        self._samples: dict[int, list[str]] = {}

    def collect(self, options: LookOptions) -> Collected:
        """Return all evidence of this node.

        It takes ``options.seconds``, and 4 s more if a rank does not answer.
        """
        clock, before = time.time(), self._first()
        began = time.monotonic()
        until = began + options.seconds
        # Note meanwhile which places outside of collectives the main threads reach.
        pause = (until - time.monotonic()) / (SAMPLES + 1)
        open_channels = [first.channel for first in before if first.channel]
        for _ in range(SAMPLES if len(open_channels) <= MOST_SAMPLED else 0):
            time.sleep(max(0.0, min(pause, until - time.monotonic())))
            limit = min(pause, until - time.monotonic())
            for pid, reply in (stacks(open_channels, limit) if limit > 0 else {}).items():
                place = location(reply.main)
                if place.frame and place.doing not in (Doing.COLLECTIVE, Doing.RENDEZVOUS):
                    self._samples.setdefault(pid, []).append(place.frame)
        time.sleep(max(0.0, until - time.monotonic()))
        self._seconds = time.monotonic() - began
        # Measure before the requests: writing many records takes processor time as well.
        busy_by_rank = [(used(first.pid) - first.used) / self._seconds for first in before]
        channels = [first.channel for first in before if first.channel and proc.runs(first.pid)]
        # Take the stacks last, because the thread's answer may touch what is on the way.
        answers = facts(channels, self._number + 1, options.records, RECORDS_SECONDS)
        replies, tcp = stacks(channels), proc.TcpTables()
        ranks = [
            self._snapshot(
                first, answers.get(first.pid, {}), replies.get(first.pid, StackReply(())), busy, tcp
            )
            for first, busy in zip(before, busy_by_rank)
        ]
        return Collected(self._node, clock, tuple(self._spied(ranks)))

    def _first(self) -> list[First]:
        open_channels = [channel for _, channel in self._pids.values() if channel and proc.runs(channel.pid)]
        answers = facts(open_channels, self._number, 0)
        return [
            First(
                rank,
                pid,
                channel,
                used(pid),
                output(self._paths, rank),
                begun(answers.get(pid, {})),
                proc.written_files(pid),
            )
            for rank, (pid, channel) in self._pids.items()
        ]

    def _snapshot(
        self, first: First, answer: Mapping[str, Any], stacks: StackReply, busy: float, tcp: proc.TcpTables
    ) -> RankSnapshot:
        """Return the snapshot of a rank.

        ``answer`` is the answer of the rank's own thread, empty if it gave none. ``busy`` is the number of
        processors that the rank kept busy.
        """
        rank = first.rank
        moment = proc.find_alive(first.pid)
        if moment is None:
            ended = ProcessSample(first.pid, "")
            return RankSnapshot(rank, self._node, ended, quiet=quiet(self._paths, rank))
        process = read_sample(
            first.pid,
            moment.state,
            proc.waiting_in(first.pid),
            busy,
            self._seconds,
            (first.files, proc.written_files(first.pid)),
            lambda pids: self._stacks_of_workers(first, stacks.main, pids),
            tcp,
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
                handles=str((answer.get("call") or {}).get("handles", "")),
                waits=thread_waits(answer),
                loop=str((answer.get("call") or {}).get("loop", "")),
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

    @staticmethod
    def _stacks_of_workers(
        first: First, stack: tuple[str, ...], pids: Sequence[int]
    ) -> dict[int, tuple[str, ...]]:
        """Return the stacks of some of the children ``pids`` of a rank: workers, or processes it joins."""
        if first.channel is None or not (
            in_data_loader(stack) or joins_processes(stack) or reads_of_process(stack)
        ):
            return {}
        return {pid: stack_of_fork(first.channel, pid) for pid in pids[:MOST_FORKS_ASKED]}

    def _spied(self, ranks: list[RankSnapshot]) -> list[RankSnapshot]:
        """Add py-spy's stacks to ranks that gave none, and to the processes that these ranks join."""
        until = time.monotonic() + SPY_SECONDS
        snapshots = []
        for rank in ranks:
            process = rank.process
            is_mute = not rank.stacks.main and process.state not in ("", *proc.STOPPED_STATES)
            stack = spy(process.pid, self._path) if is_mute and time.monotonic() < until else ()
            if stack:
                children = list(process.children)
                for index, child in enumerate(children if joins_processes(stack) else ()):
                    if time.monotonic() < until and child.state not in proc.STOPPED_STATES:
                        children[index] = replace(child, stack=spy(child.pid, self._path))
                process = replace(process, children=tuple(children))
                rank = replace(rank, process=process, stacks=PythonStacks(stack, "py-spy"))
            snapshots.append(rank)
        return snapshots


def rank_processes(pids: Mapping[int, int]) -> dict[int, tuple[int, RankChannel | None]]:
    """Return the process and the channel of each rank.

    A launcher is replaced by the ranks that it started.
    """
    ranks: dict[int, tuple[int, RankChannel | None]] = {}
    for rank, pid in pids.items():
        inside = channels(pid)
        for channel in inside:
            ranks[channel.rank] = (channel.pid, channel)
        if not inside:
            ranks[rank] = (pid, None)
    return dict(sorted(ranks.items()))


def begun(answer: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the number of collectives begun in each group."""
    return tuple(int(group.get("sequence", -1)) for group in answer.get("groups") or ())


def output(paths: AttemptPaths, rank: int) -> int:
    """Return the bytes that a rank has printed."""
    return sum(status.st_size for status in _logs(paths, rank))


def quiet(paths: AttemptPaths, rank: int) -> float:
    """Return the seconds since a rank last printed."""
    return max(0.0, time.time() - max((status.st_mtime for status in _logs(paths, rank)), default=0.0))


def _logs(paths: AttemptPaths, rank: int) -> list[os.stat_result]:
    statuses = []
    for path in (paths.out(rank), paths.err(rank)):
        with suppress(OSError):
            statuses.append(os.stat(path))
    return statuses


def text_of(collected: Collected) -> str:
    """Return JSON of at most ``MOST_BYTES``. If it is longer, records and outer frames are left out."""
    for most, frames, children in ((256, 60, 64), (32, 40, 16), (8, 20, 4), (1, 5, 0)):
        smaller = tuple(
            replace(
                rank,
                records=rank.records[-most:],
                stacks=replace(rank.stacks, main=shortened(rank.stacks.main, frames)),
                process=replace(rank.process, children=rank.process.children[:children]),
            )
            for rank in collected.ranks
        )
        text = json.dumps({"collected": encode(replace(collected, ranks=smaller))})
        if len(text) <= MOST_BYTES:
            break
    return text
