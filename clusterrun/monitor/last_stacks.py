"""Where ranks stand that are about to be ended, and their last records: asks first, keeps what they tell.

A rank that others waited for is mostly ended because they gave up: it prints nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping

from clusterrun import proc
from clusterrun.atomic_file import write_whole
from clusterrun.monitor.rank_channels import doors
from clusterrun.monitor.stacks import stacks
from clusterrun.monitor.torch_facts import facts

ASK_SECONDS = 0.5
"""A rank answers each of two questions within 0.1 s, whatever it does: its end is not put off for one that
cannot."""
RECORDS = 16


def keep(path: str, pids: Mapping[int, int]) -> None:
    """Write into ``path`` the stack of every rank in (or below) ``pids`` that tells it, and its records."""
    found = [door for pid in pids.values() for door in doors(pid) if proc.runs(door.pid)]
    told = stacks(found, ASK_SECONDS)
    found = [door for door in found if door.pid in told]
    said = facts(found, time.monotonic_ns(), RECORDS, ASK_SECONDS)
    kept: dict[str, dict[str, object]] = {}
    for door in found:
        left = said.get(door.pid, {})
        kept[str(door.rank)] = {
            **{key: left[key] for key in ("groups", "records") if key in left},
            "stack": told[door.pid].main,
        }
    if not kept:
        return
    try:
        write_whole(path, json.dumps(kept).encode(), sync=False)
    except OSError:  # a full disk, say: the end of the ranks does not wait for it
        return
