"""Saves the stacks and last flight records of ranks that are about to be ended.

A rank that others waited for is mostly ended because they gave up: it prints nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping

from clusterrun import proc
from clusterrun.atomic_file import write_whole
from clusterrun.monitor.rank_channels import channels
from clusterrun.monitor.stacks import stacks
from clusterrun.monitor.torch_facts import facts

ASK_SECONDS = 0.5
"""A rank answers each of two questions within 0.1 s, whatever it does: its end is not put off for one that
cannot."""
RECORDS = 16


def keep(path: str, pids: Mapping[int, int]) -> None:
    """Write into ``path`` the stack of every rank in (or below) ``pids`` that tells it, and its records."""
    found = [channel for pid in pids.values() for channel in channels(pid) if proc.runs(channel.pid)]
    told = stacks(found, ASK_SECONDS)
    found = [channel for channel in found if channel.pid in told]
    said = facts(found, time.monotonic_ns(), RECORDS, ASK_SECONDS)
    kept: dict[str, dict[str, object]] = {}
    for channel in found:
        left = said.get(channel.pid, {})
        kept[str(channel.rank)] = {
            **{key: left[key] for key in ("groups", "records") if key in left},
            "stack": told[channel.pid].main,
        }
    if not kept:
        return
    try:
        write_whole(path, json.dumps(kept).encode(), sync=False)
    except OSError:  # a full disk, say: the end of the ranks does not wait for it
        return
