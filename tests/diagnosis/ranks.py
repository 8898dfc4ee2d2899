"""Ranks as an observer would have seen them, in a few words, for tapes."""

from __future__ import annotations

from typing import Any

from clusterrun.diagnosis.evidence import Group, RankSeen, Record
from clusterrun.diagnosis.job_snapshot import JobSnapshot

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


def record(
    sequence: int,
    done: bool = True,
    operation: str = "all_reduce",
    sizes: str = "[4]",
    types: str = "Float",
    at: float = 0.0,
    group: str = "0",
) -> Record:
    """A collective; ``at`` defaults to a tenth of a second for each, the newest ten seconds ago."""
    return Record(group, sequence, operation, sizes, types, done, at or NOW - 10 - 0.1 * (20 - sequence))


def history(upto: int) -> tuple[Record, ...]:
    """Collectives that were begun and left."""
    return tuple(record(number) for number in range(1, upto + 1))


def rank(number: int, size: int = 4, begun: int = 10, **changes: Any) -> RankSeen:
    """A rank of a world of ``size`` that has begun ``begun`` collectives, two ranks a node."""
    values: dict[str, Any] = {
        "rank": number,
        "node": f"n{number // 2}",
        "pid": 100 + number,
        "state": "S",
        "quiet": 60.0,
        "clock": NOW,
        "seconds": 1.0,
        "answered": True,
        "torch": True,
        "groups": (Group("0", size, begun, True, "gloo", f"0-{size - 1}"),),
        "records": history(begun),
    }
    return RankSeen(**{**values, **changes})


def waiter(number: int, size: int = 4, begun: int = 11, **changes: Any) -> RankSeen:
    """A rank that waits in its newest collective."""
    records = (*history(begun - 1), record(begun, done=False))
    return rank(number, size, begun, **{"records": records, "stack": ALL_REDUCE, **changes})


def case(*seen: RankSeen, **changes: Any) -> JobSnapshot:
    """All of a world."""
    return JobSnapshot(seen=seen, **{"size": len(seen), **changes})
