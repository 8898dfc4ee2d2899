"""Asks the prelude's thread in ranks what torch knows: groups, collectives begun, flight records.

The thread answers while its rank's main thread waits in a collective; it cannot while the rank is
stopped, or holds Python's lock in code of its own.
"""

from __future__ import annotations

import json
import os
import time

from clusterrun.diagnosis.evidence import Group, PostedOp, Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from clusterrun.monitor.rank_channels import RankChannel

ANSWER_SECONDS = 0.5
_LOOK_SECONDS = 0.005
_MOST = 8 << 20


def facts(
    channels: Iterable[RankChannel], number: int, records: int, seconds: float = ANSWER_SECONDS
) -> dict[int, dict[str, Any]]:
    """What each rank's thread answers to question ``number``, by process; ``records`` of each group."""
    asked = [channel for channel in channels if _ask(channel, number, records)]
    until = time.monotonic() + seconds
    found: dict[int, dict[str, Any]] = {}
    while len(found) < len(asked):
        for channel in asked:
            answer = None if channel.pid in found else _answer(channel, number)
            if answer is not None:
                found[channel.pid] = answer
        if time.monotonic() >= until:
            break
        if len(found) < len(asked):
            time.sleep(_LOOK_SECONDS)
    return found


def _ask(channel: RankChannel, number: int, records: int) -> bool:
    if not channel.intact():
        return False
    try:
        # Without blocking: a rank that is stopped for hours does not empty its pipe.
        file = os.open(f"/proc/{channel.pid}/fd/{channel.ask}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(file, f"{number} {records}\n".encode())
    except OSError:
        return False
    finally:
        os.close(file)
    return True


def _answer(channel: RankChannel, number: int) -> dict[str, Any] | None:
    try:
        file = os.open(f"/proc/{channel.pid}/fd/{channel.facts}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        data = os.pread(file, _MOST, 0)
    finally:
        os.close(file)
    if not data.endswith(b"\n") or f'"ask": {number}'.encode() not in data[:40]:
        return None
    try:
        said = json.loads(data)
    except ValueError:
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


def calls(said: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of ``Seen``: what the main thread waits for, beyond what records tell."""
    found = said.get("call") or {}
    return {
        "call": str(found.get("name", "")),
        "peer": int(found.get("peer", -1)),
        "tag": int(found.get("tag", 0)),
        "posts": tuple(
            PostedOp("send" if name == "isend" else "recv", int(peer), int(tag))
            for name, peer, tag in found.get("posts") or ()
        ),
        "world": int(found.get("world", 0)),
        "started": int(found.get("started", 0)),
        "asks": asks if isinstance(asks := found.get("asks"), int) else -1,
        "store": str(found.get("store", "")),
        "rooted": str(found.get("rooted", "")),
        "root": int(found.get("root", -1)),
        "made": int(found.get("made", 0)),
        "makes": tuple(str(one) for one in found.get("makes") or ()),
        "key": str(found.get("key", "")),
        **{name: tuple(map(str, found.get(name) or ())) for name in ("named", "sets", "tasks")},
    }


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
        )
        for one in said.get("records") or ()
    )


def _text(value: Any) -> str:
    """Sizes and types as people write them: ``[4, 2]``, ``Float``; long lists are cut."""
    items = value if isinstance(value, list) else []
    shown = ", ".join(str(item) for item in items[:8])
    return shown + (f", and {len(items) - 8} more" if len(items) > 8 else "")
