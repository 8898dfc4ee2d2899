"""Asks ranks for stacks and for what torch knows, by the channels that their prelude opened; judges nothing.

Stacks are written by ``faulthandler`` within the signal: they come whatever the rank is doing, also in code
that never gives Python's lock back; not from one that is stopped. A thread of the prelude tells what torch
knows (groups, collectives, flight records) while its rank's main thread waits in a collective; not while the
rank is stopped, or holds Python's lock in code of its own.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress

from clusterrun import proc
from clusterrun.atomic_file import write_whole
from clusterrun.diagnosis.evidence import Group, GroupRequest, MainCall, PostedOp, Record
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
LAST_SECONDS = 0.5
"""A rank answers each of two questions within 0.1 s, whatever it does: its end is not put off for one that
cannot."""
LAST_RECORDS = 16


@frozen
class RankChannel:
    """The process of ``rank``: its two memory files, where to ask, and its main thread's number in hex."""

    rank: int
    pid: int
    stacks: int
    facts: int
    ask: int
    main: str

    def intact(self) -> bool:
        """Whether the descriptors still are what they were: a script may have closed them all."""
        return channel(self.pid) == self


def channel(pid: int) -> RankChannel | None:
    """The channel of process ``pid``. One that was inherited by a fork is its parent's."""
    stacks = facts = ask = -1
    rank, main = "", ""
    open_files = proc.descriptors(pid)
    for descriptor, target in open_files.items():
        words = target.split(" ")[0].split(".")
        if len(words) != 5 or words[3] != str(pid) or not words[2].isdigit():
            continue
        if target.startswith(STACKS):
            stacks, rank, main = descriptor, words[2], words[4]
        elif target.startswith(FACTS) and words[4].isdigit():
            facts, ask = descriptor, int(words[4])
    whole = stacks >= 0 and facts >= 0 and open_files.get(ask, "").startswith("pipe:")
    return RankChannel(int(rank), pid, stacks, facts, ask, main) if whole else None


def channels(pid: int) -> list[RankChannel]:
    """The channels of what the agent started as ``pid``: its own, or those of the ranks below a launcher."""
    own = channel(pid)
    if own:
        return [own]
    return [found for found in map(channel, proc.below(pid)) if found]


@frozen
class StackReply:
    """The main thread's stack, and where in the user's code each other thread stands."""

    main: tuple[str, ...]
    threads: tuple[ThreadPlace, ...] = ()


class StackRequest:
    def __init__(self, channel: RankChannel, pid: int) -> None:
        """``pid``: the rank itself, or a process that it forked, which has the same channels."""
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

    def look(self) -> None:
        """Take what has come; complete once it is there and grows no more."""
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
    """What each rank that gave its main thread's stack told, by process."""
    questions = {channel.pid: StackRequest(channel, channel.pid) for channel in channels}
    _wait(list(questions.values()), seconds)
    return {pid: StackReply(one.stack, one.threads) for pid, one in questions.items() if one.stack}


def stack_of_fork(channel: RankChannel, pid: int, seconds: float = STACKS_SECONDS) -> tuple[str, ...]:
    """The stack of a process that a rank forked, () without a handler; one at a time: they share a file."""
    question = StackRequest(channel, pid)
    _wait([question], seconds)
    return question.stack


def _wait(questions: list[StackRequest], seconds: float) -> None:
    until = time.monotonic() + seconds
    waiting = [question for question in questions if question.waiting]
    while waiting and time.monotonic() < until:
        time.sleep(_STACKS_LOOK_SECONDS)
        for question in waiting:
            question.look()
        waiting = [question for question in waiting if question.waiting]
    for question in questions:
        question.close()


def facts(
    channels: Iterable[RankChannel], number: int, records: int, seconds: float = FACTS_SECONDS
) -> dict[int, dict[str, Any]]:
    """What each rank's thread answers to question ``number``, by process; ``records`` of each group."""
    asked = {channel.pid: channel for channel in channels if _ask(channel, number, records)}
    until = time.monotonic() + seconds
    found: dict[int, dict[str, Any]] = {}
    while True:
        answers = {pid: _answer(channel, number) for pid, channel in asked.items() if pid not in found}
        found.update((pid, answer) for pid, answer in answers.items() if answer is not None)
        if len(found) == len(asked) or time.monotonic() >= until:
            return found
        time.sleep(_FACTS_LOOK_SECONDS)


def _ask(channel: RankChannel, number: int, records: int) -> bool:
    if not channel.intact():
        return False
    try:
        # Without blocking: a rank that is stopped for hours does not empty its pipe.
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
        said = json.loads(data)
    except (OSError, ValueError):
        return None
    return said if isinstance(said, dict) else None


def groups(said: Mapping[str, Any]) -> tuple[Group, ...]:
    return tuple(
        Group(
            str(one.get("name", "")),
            int(one.get("size", 0)),
            int(one.get("sequence", -1)),
            bool(one.get("default")),
            str(one.get("backend", "")),
            str(one.get("ranks", "")),
            float(one.get("timeout") or 0.0),
        )
        for one in said.get("groups") or ()
    )


def calls(answer: Mapping[str, Any]) -> tuple[MainCall, GroupRequest, tuple[str, ...]]:
    """Return what the main thread waits in, what it asks for while it makes a group, and asyncio's tasks."""
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
            rooted=str(call.get("rooted", "")),
            root=int(call.get("root", -1)),
            counts=tuple(map(int, call.get("counts") or ())),
            named=texts("named"),
            sets=texts("sets"),
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


def records(said: Mapping[str, Any]) -> tuple[Record, ...]:
    return tuple(
        Record(
            str(one.get("group", "")),
            int(one.get("collective_seq_id") or 0),
            str(one.get("profiling_name") or "").partition(":")[2],
            _text(one.get("input_sizes")),
            _text(one.get("input_dtypes")),
            bool(one.get("retired")) or one.get("state") == "completed",
            int(one.get("at") or 0) / 1e9,
            int(one.get("op_id") or 0),
            bool(one.get("by_thread")),
        )
        for one in said.get("records") or ()
    )


def _text(value: Any) -> str:
    """Sizes and types as people write them: ``[4, 2]``, ``Float``; long lists are cut."""
    items = value if isinstance(value, list) else []
    shown = ", ".join(str(item) for item in items[:8])
    return shown + (f", and {len(items) - 8} more" if len(items) > 8 else "")


def keep_last(path: str, pids: Mapping[int, int]) -> None:
    """Write into ``path`` the stack of every rank in (or below) ``pids`` that tells it, and its records.

    A rank that others waited for is mostly ended because they gave up: it prints nothing.
    """
    found = [channel for pid in pids.values() for channel in channels(pid) if proc.runs(channel.pid)]
    told = stacks(found, LAST_SECONDS)
    found = [channel for channel in found if channel.pid in told]
    said = facts(found, time.monotonic_ns(), LAST_RECORDS, LAST_SECONDS)
    kept: dict[str, dict[str, object]] = {}
    for channel in found:
        left = said.get(channel.pid, {})
        stack = told[channel.pid]
        kept[str(channel.rank)] = {
            **{key: left[key] for key in ("groups", "records", "call") if key in left},
            "stack": stack.main,
            **(
                {"threads": [list(fields(thread).values()) for thread in stack.threads]}
                if stack.threads
                else {}
            ),
        }
    if kept:
        with suppress(OSError):  # a full disk, say: the end of the ranks does not wait for it
            write_whole(path, json.dumps(kept).encode(), sync=False)
