"""Dumps of torch's flight recorder, as files and servers give them."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from clusterrun.diagnosis.evidence import Group, Record
from clusterrun.diagnosis.flight_dump import groups_and_records, read_dump


def entry(sequence: int, operation: str, group: tuple[str, ...] = ("0", "default_pg"), **more: Any) -> Any:
    return {
        "process_group": group,
        "collective_seq_id": sequence,
        "op_id": sequence,
        "profiling_name": operation,
        "input_sizes": [[4]],
        "input_dtypes": ["Float"],
        "state": "scheduled",
        "retired": False,
        "is_p2p": False,
        "time_created_ns": 5_000_000_000 + sequence,
        **more,
    }


DUMP = {
    "pg_config": {"7": {"name": "7", "desc": "undefined", "ranks": "[0, 2]"}},
    "entries": [
        entry(1, "gloo:all_reduce", retired=True),
        entry(2, "nccl:barrier", state="completed"),
        entry(1, "nccl:send", is_p2p=True),
        entry(3, "nccl:all_reduce", time_discovered_started_ns=9_000_000_000),
        entry(1, "nccl:broadcast", ("7", "undefined")),
    ],
}


def test_groups_and_the_newest_records_of_each_are_read() -> None:
    groups, records = groups_and_records(DUMP, 4, 2)
    assert set(groups) == {Group("0", 4, 3, True, "nccl", "0-3"), Group("7", 2, 1, False, "nccl", "0,2")}
    assert records == (
        Record("0", 2, "barrier", "[4]", "Float", True, 5.000000002, 2),
        Record("0", 3, "all_reduce", "[4]", "Float", False, 9.0, 3),
        Record("7", 1, "broadcast", "[4]", "Float", False, 5.000000001, 1),
    )


@pytest.mark.parametrize("data", [pickle.dumps(DUMP), json.dumps(DUMP).encode()])
def test_a_dump_is_a_pickle_or_json(data: bytes) -> None:
    assert groups_and_records(read_dump(data), 4, 9) == groups_and_records(DUMP, 4, 9)


class Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("run",))


@pytest.mark.parametrize(
    "data", [b"", b"{", b"\x80\x04", pickle.dumps([1]), b"{}", pickle.dumps({"entries": [Harmful()]})]
)
def test_a_damaged_dump_or_one_with_a_class_is_not_read(
    data: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    assert read_dump(data) == {}
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "damage",
    [
        {"collective_seq_id": "x", "op_id": [1], "time_created_ns": "soon"},
        {"collective_seq_id": None, "op_id": 1.5, "time_created_ns": {}},
    ],
)
def test_damaged_fields_of_an_entry_count_as_absent(damage: dict[str, Any]) -> None:
    document = {"pg_config": [], "entries": [entry(1, "nccl:barrier", **damage), entry(2, "nccl:barrier")]}
    _, (damaged, whole) = groups_and_records(document, 4, 9)
    assert (damaged.operation, damaged.sequence, damaged.at, damaged.begun) == ("barrier", 0, 0.0, 0)
    assert (whole.operation, whole.sequence, whole.begun) == ("barrier", 2, 2)


@pytest.mark.parametrize("config", [None, [], {"7": []}, {"7": {"ranks": None}}])
def test_a_group_with_unreadable_members_is_not_dropped(config: Any) -> None:
    document = {"pg_config": config, "entries": [entry(1, "nccl:barrier", (), pg_id=7)]}
    groups, _ = groups_and_records(document, 4, 9)
    assert groups == (Group("7", 0, 1, False, "nccl", ""),)
