"""Ranks as an observer would have seen them, in a few words, for tapes."""

from __future__ import annotations

from typing import Any

from clusterrun.diagnosis.calls import CallTable, of_snapshot
from clusterrun.diagnosis.evidence import (
    Group,
    GroupRequest,
    JobSnapshot,
    MainCall,
    ProcessSample,
    PythonStacks,
    RankSnapshot,
    Record,
)
from clusterrun.diagnosis.stacks import ThreadPlace
from clusterrun.model.frozen import fields, replace

NOW = 1000.0
LIBRARY = "/venv/lib/python3.11/site-packages"
ALL_REDUCE = (
    f"{LIBRARY}/torch/distributed/distributed_c10d.py:3252 all_reduce",
    f"{LIBRARY}/torch/distributed/c10d_logger.py:83 wrapper",
    "/home/me/train.py:11 step",
)
BARRIER = (f"{LIBRARY}/torch/distributed/distributed_c10d.py:5356 barrier", "/home/me/train.py:20 step")
RECV = (f"{LIBRARY}/torch/distributed/distributed_c10d.py:2799 recv", "/home/me/train.py:14 serve")
LOOP = ("/home/me/train.py:33 work", "/home/me/train.py:40 <module>")
LOADER = (
    "/usr/lib/python3.11/selectors.py:415 select",
    f"{LIBRARY}/torch/utils/data/dataloader.py:725 __next__",
    "/home/me/train.py:17 <module>",
)
MEETING = (
    f"{LIBRARY}/torch/distributed/rendezvous.py:255 _env_rendezvous_handler",
    f"{LIBRARY}/torch/distributed/distributed_c10d.py:1700 init_process_group",
    "/home/me/train.py:5 <module>",
)
PROCESS = ProcessSample.__fields__  # type: ignore[attr-defined]
STACKS = PythonStacks.__fields__  # type: ignore[attr-defined]
REQUEST = GroupRequest.__fields__  # type: ignore[attr-defined]
CALL = MainCall.__fields__  # type: ignore[attr-defined]


def record(
    sequence: int,
    done: bool = True,
    operation: str = "all_reduce",
    sizes: str = "[4]",
    types: str = "Float",
    at: float = 0.0,
    group: str = "0",
) -> Record:
    """Return a collective. ``at`` defaults to a tenth of a second for each, the newest ten seconds ago."""
    return Record(group, sequence, operation, sizes, types, done, at or NOW - 10 - 0.1 * (20 - sequence))


def history(upto: int) -> tuple[Record, ...]:
    """Return collectives that were begun and completed."""
    return tuple(record(number) for number in range(1, upto + 1))


def changed(observed: RankSnapshot, **changes: Any) -> RankSnapshot:
    """Return the rank with changed fields of it or of its parts: ``stack``, ``busy``, ``call="send"``."""
    if "stack" in changes:
        changes["main"] = changes.pop("stack")
    if "threads" in changes:
        threads = changes["threads"]
        changes["threads"] = tuple(
            ThreadPlace(thread, thread) if isinstance(thread, str) else thread for thread in threads
        )
    if isinstance(changes.get("call"), str):
        changes["name"] = changes.pop("call")
    parts = {"process": PROCESS, "stacks": STACKS, "request": REQUEST, "call": CALL}
    whole: dict[str, Any] = {}
    for part, names in parts.items():
        own = {name: changes.pop(name) for name in names if name in changes}
        if own:
            whole[part] = replace(fields(observed)[part], **own)
    return replace(observed, **{**whole, **changes})


def bare(number: int, node: str, state: str, **changes: Any) -> RankSnapshot:
    """Return a rank with ``changes`` only. Everything else is unknown."""
    return changed(RankSnapshot(number, node, ProcessSample(0, state)), **changes)


def rank(number: int, size: int = 4, begun: int = 10, **changes: Any) -> RankSnapshot:
    """Return a rank of a world of ``size`` that has begun ``begun`` collectives, two ranks a node."""
    values: dict[str, Any] = {
        "node": f"n{number // 2}",
        "pid": 100 + number,
        "state": "S",
        "quiet": 60.0,
        "clock": NOW,
        "seconds": 1.0,
        "answered": True,
        "groups": (Group("0", size, begun, True, "gloo", f"0-{size - 1}"),),
        "records": history(begun),
    }
    return changed(RankSnapshot(number, "", ProcessSample(0, "S")), **{**values, **changes})


def waiter(number: int, size: int = 4, begun: int = 11, **changes: Any) -> RankSnapshot:
    """Return a rank that waits in its newest collective."""
    records = (*history(begun - 1), record(begun, done=False))
    return rank(number, size, begun, **{"records": records, "stack": ALL_REDUCE, **changes})


def snapshot(*observed: RankSnapshot, **changes: Any) -> JobSnapshot:
    """Return a look at a whole world."""
    return JobSnapshot(ranks=observed, **{"size": len(observed), **changes})


def case(*observed: RankSnapshot, **changes: Any) -> CallTable:
    """Return the table of calls of a whole world."""
    return of_snapshot(snapshot(*observed, **changes))
