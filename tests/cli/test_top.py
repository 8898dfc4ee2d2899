"""`top` beside a run on this machine: what is shown, how often, and when there is nothing to see."""

from __future__ import annotations

import json
import os
from pathlib import Path

LIMIT = 90.0


def test_once_is_one_document_with_every_node_and_rank(live):
    done = live("top", "--once", "--json", "stays", limit=LIMIT)
    (line,) = done.out.splitlines()
    document = json.loads(line)
    nodes = {node["node"]: [rank["rank"] for rank in node["ranks"]] for node in document["nodes"]}
    assert (done.code, nodes) == (0, {"local-0": [0, 1], "local-1": [2, 3]}), done.err
    assert all(rank["memory"] > 1_000_000 for node in document["nodes"] for rank in node["ranks"])


def test_a_pipe_gets_a_plain_table(live):
    done = live("top", "--once", "stays", limit=LIMIT)
    headline, heads, *rows = done.out.splitlines()
    assert (done.code, headline.split()[1:3]) == (0, ["RUNNING,", "training"])
    assert heads.split()[:4] == ["NODE", "RANK", "CORES", "MEMORY"]
    assert [row.split()[0] for row in rows] == ["local-0", "0", "1", "local-1", "2", "3"]


def test_one_node_without_its_ranks(live):
    done = live("top", "--once", "--no-ranks", "--node", "local-1", "stays", limit=LIMIT)
    assert [row.split()[0] for row in done.out.splitlines()[2:]] == ["local-1"]


def test_the_question_goes_with_whoever_asked_it(live):
    assert live("top", "--once", "stays", limit=LIMIT).code == 0
    (run_dir,) = Path(live.environment["CLUSTERRUN_HOME"], "runs").iterdir()
    assert os.listdir(run_dir / "asks") == []


def test_status_says_afterwards_what_was_used(live):
    assert live("top", "--once", "stays", limit=LIMIT).code == 0
    assert "cores of each node's" in live("status", "stays").out


def test_of_a_run_that_has_ended_there_is_nothing_to_see(ended):
    done = ended("top")
    assert (done.code, "has ended (COMPLETED)" in done.err) == (2, True)
