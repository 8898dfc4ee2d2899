"""Whole runs of real torch ranks: a mismatch that ends them, a hang that restarts them, ranks alone."""

from __future__ import annotations

import json
import sys

from tests.cli.conftest import CommandLine

LIMIT = 240.0
BEGIN = """
import os, signal, sys, time
import torch, torch.distributed as dist
rank = int(os.environ["RANK"])
if "alone" not in sys.argv:
    dist.init_process_group("gloo")
    for step in range(5):
        dist.all_reduce(torch.ones(4))
"""
DIFFERS = BEGIN + "dist.all_reduce(torch.ones(1000 if rank == 1 else 4))\n"
HANGS = (
    BEGIN
    + """
if rank == 1 and os.environ["CLUSTERRUN_ATTEMPT"] == "0":
    os.kill(os.getpid(), signal.SIGSTOP)
dist.all_reduce(torch.ones(4))
"""
)


def run(context: CommandLine, script: str, *options: str) -> str:
    """Submit ``script`` on two nodes, wait for its end, and return the output."""
    (context.folder / "train.py").write_text(script)
    return context("submit", "--nodes", "2", "--ranks-per-node", "1", "--wait", *options, limit=LIMIT).err


def test_a_size_mismatch_that_ended_a_run_is_named(clusterrun: CommandLine) -> None:
    run(clusterrun, DIFFERS, "train.py")
    document = json.loads(clusterrun("diagnose", "--json").out)
    assert document["verdict"] == "mismatch"
    assert any("op.preamble.length <= op.nbytes" in line for line in document["evidence"])


LEAVES = (
    BEGIN
    + "if rank == 1: sys.exit(0)\nfor step in range(100): dist.all_reduce(torch.ones(4)); time.sleep(0.05)\n"
)


def test_a_rank_that_exits_0_while_others_wait_is_named_and_not_they(clusterrun: CommandLine) -> None:
    result = run(clusterrun, LEAVES, "train.py")
    assert "  rank 1 ended with exit code 0 before the others; then rank 0 on local-0 exited with" in result
    document = json.loads(clusterrun("diagnose", "--json").out)
    assert [(culprit["rank"], culprit["node"]) for culprit in document["culprits"]] == [(1, "local-1")]


def test_the_failed_rank_below_a_launcher_is_named(clusterrun: CommandLine) -> None:
    fails = BEGIN + "if rank == 2: raise ValueError('bad tokens')\ndist.barrier()\n"
    (clusterrun.folder / "train.py").write_text(fails)
    launch = (
        f"exec {sys.executable} -m torch.distributed.run --nnodes $NNODES --node-rank $NODE_RANK "
        "--nproc-per-node 2 --master-addr $MASTER_ADDR --master-port $MASTER_PORT train.py"
    )
    clusterrun("submit", "--nodes", "2", "--per-node", "--wait", "bash", "-c", launch, limit=LIMIT)
    document = json.loads(clusterrun("diagnose", "--json").out)
    assert document["said"] == "rank 2 on local-1 failed first"
    assert [(culprit["rank"], culprit["why"]) for culprit in document["culprits"]] == [
        (2, "ValueError: bad tokens, at train.py:9")
    ]


def test_ranks_that_trained_alone_are_reported_if_all_exited_with_0(clusterrun: CommandLine) -> None:
    result = run(clusterrun, BEGIN, "train.py", "alone")
    assert "COMPLETED" in result
    assert "  why     ranks 0-1 never joined the others: each trained a copy of its own\n" in result
    assert clusterrun("diagnose").out.startswith("training alone: ranks 0-1 never joined the others")


PREFETCHES = (
    BEGIN
    + """
import queue, threading
batches = queue.Queue(maxsize=2)
def prefetch():
    for number in range(20):
        if rank == 1 and number == 9:
            raise ValueError("batch 9 is truncated")
        batches.put(torch.ones(4))
threading.Thread(target=prefetch, daemon=True).start()
for step in range(20):
    dist.all_reduce(batches.get())
"""
)


def test_the_last_output_of_a_hanging_rank_is_reported(clusterrun: CommandLine) -> None:
    run(clusterrun, PREFETCHES, "--hang-after", "15s", "--on-hang", "kill", "train.py")
    document = json.loads(clusterrun("diagnose", "--json").out)
    assert (document["verdict"], [culprit["rank"] for culprit in document["culprits"]]) == (
        "rank never arrived",
        [1],
    )
    why = "rank 1 has printed: ValueError: batch 9 is truncated, at train.py:15 (prefetch)"
    assert why in document["evidence"]


def test_on_hang_restart_restarts_a_hanging_run_and_records_the_reason(clusterrun: CommandLine) -> None:
    run(clusterrun, HANGS, "--hang-after", "15s", "--on-hang", "restart", "--max-restarts", "1", "train.py")
    status = clusterrun("status", "last").out
    why = "rank 1 on local-1 never came to all_reduce (call 6 of group 0): it is stopped (SIGSTOP)"
    assert "COMPLETED" in status
    assert "attempt 1 (restart 1 of 1: nothing has moved for 1" in status
    assert why in status
    assert clusterrun("diagnose").out == "nothing wrong: the run ended well\n"


SHARES_A_GROUP = (
    BEGIN
    + """
import threading
def metrics():
    while True:
        dist.all_reduce(torch.ones(1))
        time.sleep(0.01 * (1 + rank))
threading.Thread(target=metrics, daemon=True).start()
while True:
    dist.all_reduce(torch.ones(1000))
"""
)
SPLITS = (
    BEGIN
    + """
def exchange(splits):
    dist.all_to_all_single(torch.empty(4), torch.ones(4), [2, 2], splits)
exchange([2, 2])
exchange([2, 2] if rank == 0 else [1, 3])
dist.barrier()
"""
)


def test_two_threads_on_one_group_are_named_whether_they_hang_or_abort(clusterrun: CommandLine) -> None:
    run(clusterrun, SHARES_A_GROUP, "--hang-after", "15s", "--on-hang", "kill", "train.py")
    document = json.loads(clusterrun("diagnose", "--json").out)
    assert (document["verdict"], document["culprits"]) == ("mismatch", [])
    assert document["said"].startswith("two threads use one process group: another thread ")
    assert "(metrics)" in document["said"]
    assert "new_group()" in document["remedy"]


def test_splits_that_do_not_agree_are_shown_with_both_ends(clusterrun: CommandLine) -> None:
    run(clusterrun, SPLITS, "--hang-after", "15s", "--on-hang", "kill", "train.py")
    document = json.loads(clusterrun("diagnose", "--json").out)
    assert document["verdict"] == "mismatch"
    assert "all_to_all" in document["said"]
