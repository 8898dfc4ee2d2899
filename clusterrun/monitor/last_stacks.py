"""Where ranks stand that are about to be ended: asks them first, and keeps what they tell; signals no end.

A rank that others waited for is mostly ended because they gave up: it prints nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from clusterrun import proc
from clusterrun.atomic_file import write_whole
from clusterrun.monitor.rank_channels import doors
from clusterrun.monitor.stacks import stacks

ASK_SECONDS = 0.5
"""A rank answers within 0.1 s, whatever it does; its end is not put off for one that cannot."""


def keep(path: str, pids: Mapping[int, int]) -> None:
    """Write into ``path`` the stack of every rank in (or below) ``pids`` that tells it."""
    found = [door for pid in pids.values() for door in doors(pid)]
    told = stacks([door for door in found if _runs(door.pid)], ASK_SECONDS)
    kept = {str(door.rank): told[door.pid].main for door in found if door.pid in told}
    if not kept:
        return
    try:
        write_whole(path, json.dumps(kept).encode(), sync=False)
    except OSError:  # a full disk, say: the end of the ranks does not wait for it
        return


def _runs(pid: int) -> bool:
    moment = proc.look(pid)
    return moment is not None and moment.state not in proc.STOPPED_STATES
