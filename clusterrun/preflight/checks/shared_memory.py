"""Check whether NCCL and data loaders can write to /dev/shm, its size and its free space."""

from __future__ import annotations

import os

from clusterrun.model.limits import chosen
from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.preflight.tasks import Findings, Readings, RunNeeds
from clusterrun.preflight.untrusted import number

NAME = "shared-memory"
LIMIT = 10.0
LATE = Finding(NAME, Grade.FAIL, "/dev/shm did not answer within 10 s", "reboot the node: its kernel hangs")
# One segment of NCCL between two ranks of a node.
SEGMENT_BYTES = 10 << 20
_SMALL = "mount -o remount,size=16g /dev/shm; a container needs --shm-size=16g, or --ipc=host"
_READ_ONLY = "mount -o remount,rw /dev/shm; its mode must be 1777: chmod 1777 /dev/shm"
_FULL = "remove what ended jobs left there: ls -la /dev/shm"


def probe(request: RunNeeds) -> object:
    space = os.statvfs("/dev/shm")
    reading = {"size": space.f_blocks * space.f_frsize, "free": space.f_bavail * space.f_frsize}
    return {**reading, "writable": int(os.access("/dev/shm", os.W_OK))}


def judge(request: RunNeeds, readings: Readings) -> Findings:
    """Warn below ``shm_per_rank`` per rank of the node. Fail if not even one segment of NCCL fits.

    NCCL takes up to about 10 MiB per pair of ranks of a node, and none between GPUs with NVLink. The group
    test fails if it does not get enough. Data loaders put batches there.
    """
    needed = request.ranks * int(chosen(request.limits)["shm_per_rank"])
    for node, reading in readings.items():
        if number(reading, "writable") == 0:
            yield node, Finding(NAME, Grade.FAIL, "/dev/shm cannot be written to", _READ_ONLY)
            continue
        free, size = number(reading, "free"), number(reading, "size")
        if free is None or size is None or free >= needed << 20:
            continue
        message = (
            f"/dev/shm has {free / 2**20:.0f} MiB free of {size / 2**20:.0f}, and the ranks need {needed} MiB"
        )
        verdict = Grade.FAIL if free < SEGMENT_BYTES else Grade.WARN
        yield node, Finding(NAME, verdict, message, _SMALL if size < needed << 20 else _FULL)
