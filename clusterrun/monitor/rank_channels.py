"""Request stacks and torch's state from ranks, through the channels that their prelude opened.

``faulthandler`` writes the stacks inside the signal handler. It works in any state of the rank, even in code
that never releases Python's lock, except if the rank is stopped. A thread of the prelude reports torch's
state (groups, collectives, flight records) while the main thread waits in a collective. It cannot answer
while the rank is stopped or its own code holds Python's lock.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress

from clusterrun import proc
from clusterrun.atomic_file import write_whole
from clusterrun.diagnosis.evidence import (
    Group,
    GroupRequest,
    MainCall,
    PostedOp,
    Record,
    ThreadWait,
    record_of_entry,
)
from clusterrun.diagnosis.stacks import ThreadPlace, of_faulthandler, other_threads
from clusterrun.model.frozen import Any, fields, frozen
from clusterrun.monitor.rank_instrumentation import STACKS_SIGNAL

STACKS, FACTS = "/memfd:clusterrun.stacks.", "/memfd:clusterrun.facts."
STACKS_SECONDS = 2.5
_STACKS_LOOK_SECONDS = 0.01
_SETTLED_LOOKS = 4
_MOST_OF_STACKS = 1 << 18
FACTS_SECONDS = 0.5
_FACTS_LOOK_SECONDS = 0.005
_MOST_OF_FACTS = 8 << 20
# A healthy rank answers each of two questions within 0.1 s. The end of a rank does not wait longer for its
# answers.
LAST_SECONDS = 0.5
LAST_RECORDS = 16


@frozen
class RankChannel:
    """The channel of the process of ``rank``."""

    rank: int
    pid: int
    stacks: int  # descriptor of the memory file for stacks, in the rank
    facts: int  # descriptor of the memory file for torch's state
    ask: int  # descriptor of the pipe that takes requests
    main: str  # number of the main thread, in hex

    def intact(self) -> bool:
        """Return whether the descriptors are unchanged: a script may have closed them all."""
        return channel(self.pid) == self


def channel(pid: int) -> RankChannel | None:
    """Return the channel of process ``pid``; None if it has none.

    A fork inherits its parent's, not its own.
    """
    stacks = facts = ask = -1
    rank, main = "", ""
    open_files = proc.descriptors(pid)
    for descriptor, target in open_files.items():
        parts = target.split(" ")[0].split(".")
        if len(parts) != 5 or parts[3] != str(pid) or not parts[2].isdigit():
            continue
        if target.startswith(STACKS):
            stacks, rank, main = descriptor, parts[2], parts[4]
        elif target.startswith(FACTS) and parts[4].isdigit():
            facts, ask = descriptor, int(parts[4])
    is_complete = stacks >= 0 and facts >= 0 and open_files.get(ask, "").startswith("pipe:")
    return RankChannel(int(rank), pid, stacks, facts, ask, main) if is_complete else None


def channels(pid: int) -> list[RankChannel]:
    """Return the channel of a process that the agent started, or those of the ranks below a launcher."""
    own_channel = channel(pid)
    if own_channel:
        return [own_channel]
    return [below for below in map(channel, proc.below(pid)) if below]


@frozen
class StackReply:
    """The main thread's stack, and the place of each other thread in the user's code."""

    main: tuple[str, ...]
    threads: tuple[ThreadPlace, ...] = ()


class StackRequest:
    def __init__(self, channel: RankChannel, pid: int) -> None:
        """Send the signal to ``pid``: the rank, or a process that it forked, which shares its channels."""
        self._channel, self._pid = channel, pid
        self._text, self._file, self._settled = "", -1, 0
        self.stack: tuple[str, ...] = ()
        self.waiting = self._ask()

    def _ask(self) -> bool:
        if not self._channel.intact() or not proc.catches(self._pid, STACKS_SIGNAL):
            return False
        try:
            path = f"/proc/{self._channel.pid}/fd/{self._channel.stacks}"
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self._start = os.fstat(self._file).st_size
            os.kill(self._pid, STACKS_SIGNAL)
        except OSError:
            return False
        return True

    def read_stack(self) -> None:
        """Read the stack written so far. It is complete when it stops growing."""
        text = os.pread(self._file, _MOST_OF_STACKS, self._start).decode("utf-8", "backslashreplace")
        self._settled = self._settled + 1 if text and text == self._text else 0
        self._text = text
        if self._settled >= _SETTLED_LOOKS:
            self.stack = of_faulthandler(text, self._channel.main)
            self.waiting = not self.stack

    @property
    def threads(self) -> tuple[ThreadPlace, ...]:
        return other_threads(self._text, self._channel.main)

    def close(self) -> None:
        if self._file >= 0:
            self.stack = self.stack or of_faulthandler(self._text, self._channel.main)
            os.close(self._file)


def stacks(channels: Iterable[RankChannel], seconds: float = STACKS_SECONDS) -> dict[int, StackReply]:
    """Return the stacks by process, for the ranks that gave their main thread's stack."""
    requests = {channel.pid: StackRequest(channel, channel.pid) for channel in channels}
    _wait(list(requests.values()), seconds)
    return {
        pid: StackReply(request.stack, request.threads) for pid, request in requests.items() if request.stack
    }


def stack_of_fork(channel: RankChannel, pid: int) -> tuple[str, ...]:
    """Return the stack of a process that a rank forked; () if it has no handler.

    Only one request at a time is possible: all forks of a rank share its file.
    """
    request = StackRequest(channel, pid)
    _wait([request], STACKS_SECONDS)
    return request.stack


def _wait(requests: list[StackRequest], seconds: float) -> None:
    until = time.monotonic() + seconds
    waiting = [request for request in requests if request.waiting]
    while waiting and time.monotonic() < until:
        time.sleep(_STACKS_LOOK_SECONDS)
        for request in waiting:
            request.read_stack()
        waiting = [request for request in waiting if request.waiting]
    for request in requests:
        request.close()


def facts(
    channels: Iterable[RankChannel], number: int, records: int, seconds: float = FACTS_SECONDS
) -> dict[int, dict[str, Any]]:
    """Return the answers of the ranks' threads to request ``number``, by process.

    ``records`` is the number of flight records of each group.
    """
    channels_by_pid = {channel.pid: channel for channel in channels if _ask(channel, number, records)}
    until = time.monotonic() + seconds
    answers_by_pid: dict[int, dict[str, Any]] = {}
    while True:
        answers = {
            pid: _answer(channel, number)
            for pid, channel in channels_by_pid.items()
            if pid not in answers_by_pid
        }
        answers_by_pid.update((pid, answer) for pid, answer in answers.items() if answer is not None)
        if len(answers_by_pid) == len(channels_by_pid) or time.monotonic() >= until:
            return answers_by_pid
        time.sleep(_FACTS_LOOK_SECONDS)


def _ask(channel: RankChannel, number: int, records: int) -> bool:
    if not channel.intact():
        return False
    try:
        # Do not block: a rank that is stopped for hours does not empty its pipe.
        file = os.open(f"/proc/{channel.pid}/fd/{channel.ask}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(file, f"{number} {records}\n".encode())
        finally:
            os.close(file)
    except OSError:
        return False
    return True


def _answer(channel: RankChannel, number: int) -> dict[str, Any] | None:
    try:
        with open(f"/proc/{channel.pid}/fd/{channel.facts}", "rb", 0) as file:
            data = os.pread(file.fileno(), _MOST_OF_FACTS, 0)
        if not data.endswith(b"\n") or f'"ask": {number}'.encode() not in data[:40]:
            return None
        answer = json.loads(data)
    except (OSError, ValueError):
        return None
    return answer if isinstance(answer, dict) else None


def groups(answer: Mapping[str, Any]) -> tuple[Group, ...]:
    return tuple(
        Group(
            str(group.get("name", "")),
            int(group.get("size", 0)),
            int(group.get("sequence", -1)),
            bool(group.get("default")),
            str(group.get("backend", "")),
            str(group.get("ranks", "")),
            float(group.get("timeout") or 0.0),
        )
        for group in answer.get("groups") or ()
    )


def thread_waits(answer: Mapping[str, Any]) -> tuple[ThreadWait, ...]:
    waits = (answer.get("call") or {}).get("waits") or ()
    return tuple(
        ThreadWait(str(kind), str(frame), str(holder), int(number)) for kind, frame, holder, number in waits
    )


def calls(answer: Mapping[str, Any]) -> tuple[MainCall, GroupRequest, tuple[str, ...]]:
    """Return the main thread's call, its request for a new group, and asyncio's tasks."""
    call = answer.get("call") or {}

    def texts(name: str) -> tuple[str, ...]:
        return tuple(map(str, call.get(name) or ()))

    posts = tuple(
        PostedOp("send" if name == "isend" else "recv", int(peer), int(tag))
        for name, peer, tag in call.get("posts") or ()
    )
    asks = call.get("asks")
    return (
        MainCall(
            name=str(call.get("name", "")),
            function=str(call.get("function", "")),
            peer=int(call.get("peer", -1)),
            tag=int(call.get("tag", 0)),
            posts=posts,
            key=str(call.get("key", "")),
            key_source=str(call.get("key_source", "")),
            rooted=str(call.get("rooted", "")),
            root=int(call.get("root", -1)),
            counts=tuple(map(int, call.get("counts") or ())),
            named=texts("named"),
            sets=texts("sets"),
            ignored=texts("ignored"),
        ),
        GroupRequest(
            world=int(call.get("world", 0)),
            started=int(call.get("started", 0)),
            asks=asks if isinstance(asks, int) else -1,
            store=str(call.get("store", "")),
            made=int(call.get("made", 0)),
            makes=texts("makes"),
        ),
        texts("tasks"),
    )


def records(answer: Mapping[str, Any]) -> tuple[Record, ...]:
    return tuple(
        record_of_entry(record, str(record.get("group", ""))) for record in answer.get("records") or ()
    )


def keep_last(path: str, pids: Mapping[int, int]) -> None:
    """Write the stacks and records of the ranks in (or below) ``pids`` that give their stack into ``path``.

    A rank that the others waited for is usually killed after they gave up, and prints nothing.
    """
    open_channels = [channel for pid in pids.values() for channel in channels(pid) if proc.runs(channel.pid)]
    replies = stacks(open_channels, LAST_SECONDS)
    open_channels = [channel for channel in open_channels if channel.pid in replies]
    answers = facts(open_channels, time.monotonic_ns(), LAST_RECORDS, LAST_SECONDS)
    documents: dict[str, dict[str, object]] = {}
    for channel in open_channels:
        answer = answers.get(channel.pid, {})
        stack = replies[channel.pid]
        documents[str(channel.rank)] = {
            **{key: answer[key] for key in ("groups", "records", "call") if key in answer},
            "stack": stack.main,
            **(
                {"threads": [list(fields(thread).values()) for thread in stack.threads]}
                if stack.threads
                else {}
            ),
        }
    if documents:
        with suppress(OSError):  # for example a full disk: the end of the ranks does not wait
            write_whole(path, json.dumps(documents).encode(), sync=False)
