"""The remains of ranks are read from the files of an attempt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from clusterrun.diagnosis.evidence import Group, Record
from clusterrun.model.paths import AttemptPaths
from clusterrun.operations.postmortem_input import last_records, last_stacks
from tests.diagnosis.ranks import bare

STACK = [
    "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py:1 all_reduce",
    "train.py:9 f",
]
RECORDS: dict[str, Any] = {
    "groups": [{"name": "0", "size": 4, "ranks": "0-3"}],
    "records": [
        {
            "group": "0",
            "collective_seq_id": 6,
            "profiling_name": "gloo:all_reduce",
            "input_sizes": [[1]],
            "input_dtypes": ["Long"],
            "at": 7_000_000_000,
        }
    ],
}


def test_places_and_calls_of_ranks_are_read(tmp_path: Path) -> None:
    content = {"0": {"stack": STACK, **RECORDS}, "1": {"stack": STACK}, "2": {"stack": STACK}}
    (tmp_path / "node-0000.stacks").write_text(json.dumps(content))
    (tmp_path / "node-0001.stacks").write_text(json.dumps({"3": {"records": []}}))
    (tmp_path / "node-0002.stacks").write_text("{")
    snapshots = tuple(last_stacks(AttemptPaths(str(tmp_path)), ("a", "a", "b")))
    record = Record("0", 6, "all_reduce", "[1]", "Long", False, 7.0)
    stack = tuple(STACK)
    assert snapshots == (
        bare(0, "a", "S", stack=stack, groups=(Group("0", 4, ranks="0-3"),), records=(record,)),
        bare(1, "a", "S", stack=stack),
        bare(2, "b", "S", stack=stack),
    )


def test_a_ranks_own_records_precede_the_requested_ones() -> None:
    record = Record("0", 6, "all_reduce", "[1]", "Long", False, 7.0)
    before_end = [bare(number, "a", "S", records=(record,) if number else ()) for number in range(3)]
    at_failure = bare(2, "b", "", records=(record, record))
    assert last_records([at_failure], before_end) == (before_end[1], at_failure)
