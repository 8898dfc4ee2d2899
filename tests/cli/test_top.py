"""`top` beside a run on this machine: what is shown, how often, and when there is nothing to see."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

from clusterrun.cli.top import HEADS, SPARE, _table
from clusterrun.model.usage import GpuUse, NodeUse, RankUse

LIMIT = 90.0


def test_top_once_prints_every_node_and_rank_in_one_document(live) -> None:
    result = live("top", "--once", "--json", "stays", limit=LIMIT)
    (line,) = result.out.splitlines()
    document = json.loads(line)
    nodes = {node["node"]: [rank["rank"] for rank in node["ranks"]] for node in document["nodes"]}
    assert (result.code, nodes) == (0, {"local-0": [0, 1], "local-1": [2, 3]}), result.err
    assert all(rank["memory"] > 1_000_000 for node in document["nodes"] for rank in node["ranks"])


def test_a_pipe_gets_a_plain_table(live) -> None:
    result = live("top", "--once", "stays", limit=LIMIT)
    headline, heads, *rows = result.out.splitlines()
    assert (result.code, headline.split()[1:3]) == (0, ["RUNNING,", "training"])
    assert heads.split()[:4] == ["NODE", "RANK", "CORES", "MEMORY"]
    assert [row.split()[0] for row in rows] == ["local-0", "0", "1", "local-1", "2", "3"]


def test_top_shows_one_node_without_its_ranks(live) -> None:
    result = live("top", "--once", "--no-ranks", "--node", "local-1", "stays", limit=LIMIT)
    assert [row.split()[0] for row in result.out.splitlines()[2:]] == ["local-1"]


def test_the_question_of_top_is_removed_when_top_ends(live) -> None:
    assert live("top", "--once", "stays", limit=LIMIT).code == 0
    (run_dir,) = Path(live.environment["CLUSTERRUN_HOME"], "runs").iterdir()
    assert os.listdir(run_dir / "asks") == []


def test_status_shows_the_usage_of_an_ended_run(live) -> None:
    assert live("top", "--once", "stays", limit=LIMIT).code == 0
    assert "cores of each node's" in live("status", "stays").out


def test_top_refuses_a_run_that_has_ended(ended) -> None:
    result = ended("top")
    assert (result.code, "has ended (COMPLETED)" in result.err) == (2, True)


def test_ranks_with_the_same_number_differ_by_their_processes() -> None:
    ranks = (RankUse(0, 1.0, 1, 41), RankUse(0, 1.0, 1, 42), RankUse(1, 1.0, 1, 43), RankUse(-1, 1.0, 1, 44))

    live = SimpleNamespace(uses=(NodeUse("n0001", 0.0, 2.0, 3.5, 16, 1, 1, 1e9, 1e9, ranks),))
    rows = [line.rpartition("  1.0")[0].strip() for line in _table(live, 1.0, True, False)[2:]]
    assert rows == ["0 (process 41)", "0 (process 42)", "1", "process 44"]


def test_a_narrow_terminal_names_the_columns_that_top_hides() -> None:
    gpus = tuple(GpuUse(number, 90.0, 2.0e10, 8.0e10, 400.0, 60.0) for number in range(2))
    ranks = (RankUse(0, 1.0, 10**9), RankUse(1, 1.0, 10**9))
    use = NodeUse("n0001", 0.0, 2.0, 3.5, 16, 10**10, 10**11, 1e9, 1e9, ranks, gpus)
    live = SimpleNamespace(uses=(use,))
    wide, narrow = (_table(live, 1.0, True, False, columns) for columns in (200, 60))
    assert set(HEADS[:2]) <= set(wide[0].split()) and "no room" not in wide[-1]
    assert max(map(len, narrow[:-1])) < 60
    left_out = narrow[-1].removeprefix("no room for ").split(":")[0].split(", ")
    assert left_out == [head for head in SPARE if head in left_out]
    assert all(head not in narrow[0] for head in left_out)
