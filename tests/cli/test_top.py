"""`top` beside a run on this machine: what is shown, how often, and when there is nothing to see."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Desk

LIMIT = 90.0


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory, make_desk) -> Iterator[Desk]:
    """A desk with one run of 2 nodes x 2 ranks that stays, shared by tests that only look."""
    desk = make_desk(tmp_path_factory.mktemp("live"))
    done = desk("submit", "--nodes", "2", "--ranks-per-node", "2", "--name", "stays", "train.py", "wait")
    assert done.code == 0, done
    end = time.monotonic() + LIMIT
    while "training" not in desk("status", "--json").out:
        assert time.monotonic() < end, "the ranks do not run within the limit"
    yield desk
    desk("cancel", "stays")


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
