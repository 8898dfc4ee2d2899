"""The kernel kills a rank for memory. Every command reports it, from status to diagnose."""

from __future__ import annotations

import json
import os

from tests.cli.conftest import CommandLine
from tests.monitor.memory_limit import limited

LIMIT = 120.0
MEBIBYTE = 1 << 20
EATS = """
import os, time
if os.environ["RANK"] == "1":
    eaten = bytearray(2000 << 20)
time.sleep(600)
"""


def test_a_rank_that_the_kernel_killed_for_memory_is_reported(clusterrun: CommandLine) -> None:
    (clusterrun.folder / "train.py").write_text(EATS)
    with limited("ranks", 500 * MEBIBYTE) as group:
        process = clusterrun.start(
            *("submit", "--nodes", "1", "--ranks-per-node", "2", "--wait", "train.py"),
            preexec_fn=lambda: (group / "cgroup.procs").write_text(str(os.getpid())),
        )
        _, message = process.communicate(timeout=LIMIT)
    assert process.returncode == 1
    text = "rank 1 on local-0 was killed by signal 9 (SIGKILL), as the kernel does when memory runs out"
    assert text in message and "the kernel ended a process of this job on this node" in message
    output = clusterrun("status", "last").out
    assert (
        "OUT_OF_MEMORY" in output
        and text in output
        and "the kernel ended a process of this job on this node" in output
    )
    document = json.loads(clusterrun("diagnose", "--json").out)
    assert document["verdict"] == "out of memory"
    assert [(culprit["rank"], culprit["node"]) for culprit in document["culprits"]] == [(1, "local-0")]
