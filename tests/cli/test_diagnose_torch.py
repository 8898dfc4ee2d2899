"""Whole runs of real torch ranks: a mismatch that ends them, a hang that restarts them, ranks alone."""

from __future__ import annotations

import json

from tests.cli.conftest import Desk

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


def run(desk: Desk, script: str, *options: str) -> str:
    """Submit ``script`` on two nodes, wait, and return what was said at its end."""
    (desk.folder / "train.py").write_text(script)
    return desk("submit", "--nodes", "2", "--ranks-per-node", "1", "--wait", *options, limit=LIMIT).err


def test_a_size_mismatch_that_ended_a_run_is_called_one(clusterrun: Desk) -> None:
    run(clusterrun, DIFFERS, "train.py")
    found = json.loads(clusterrun("diagnose", "--json").out)
    assert found["verdict"] == "mismatch"
    assert any("op.preamble.length <= op.nbytes" in line for line in found["evidence"])


def test_ranks_that_trained_alone_are_told_although_all_exited_with_0(clusterrun: Desk) -> None:
    said = run(clusterrun, BEGIN, "train.py", "alone")
    assert "COMPLETED" in said
    assert "  why     ranks 0-1 never joined the others: each trained a copy of its own\n" in said
    assert clusterrun("diagnose").out.startswith("training alone: ranks 0-1 never joined the others")


def test_a_run_that_hangs_is_restarted_where_that_was_ordered_and_says_why(clusterrun: Desk) -> None:
    run(clusterrun, HANGS, "--hang-after", "15s", "--on-hang", "restart", "--max-restarts", "1", "train.py")
    status = clusterrun("status", "last").out
    why = "rank 1 on local-1 never came to all_reduce (6 of group 0): it is stopped (SIGSTOP)"
    assert "COMPLETED" in status
    assert "attempt 1 (restart 1 of 1: nothing has moved for 1" in status
    assert why in status
    assert clusterrun("diagnose").out == "nothing wrong: the run ended well\n"
