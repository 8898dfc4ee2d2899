"""When how many nodes are free, from what Slurm says of its nodes, its jobs and its plans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clusterrun.model.frozen import replace
from clusterrun.model.spec import JobSpec
from clusterrun.slurm.node_calendar import NodeCalendar, away, calendar, seconds_of
from clusterrun.slurm.queries import (
    NODES,
    QUEUE,
    NodeRow,
    QueueRow,
    ReservationRow,
    queue_rows,
    read_reservations,
)

NOW = 1000.0
FOUR = [NodeRow(f"n{number}", "big", "idle", 8) for number in range(1, 5)]
RUNNING = QueueRow("RUNNING", "big", "n[1-2]", "", 0.0, 2200.0)
PLANNED = QueueRow("PENDING", "big", "", "n[1-4]", 2200.0, 5800.0)
BUSY = [NodeRow(node.name, "big", "allocated" if node.name in ("n1", "n2") else "idle", 8) for node in FOUR]


def calendar_of_big(
    nodes: Sequence[NodeRow], queue: Sequence[QueueRow], rows: Sequence[ReservationRow] = (), **options: Any
) -> NodeCalendar:
    """Return the calendar of partition big for a run with these options."""
    return calendar(nodes, queue, rows, "big", JobSpec(("train.py",), "/", **options))


def test_idle_nodes_are_free_now_and_those_of_a_job_at_its_limit() -> None:
    observed = calendar_of_big(BUSY, [RUNNING])
    assert observed.earliest(2, 600.0, NOW) == (NOW, 2)
    assert observed.earliest(3, 600.0, NOW) == (2200.0, 4)
    assert observed.earliest(5, 600.0, NOW) is None


def test_a_planned_start_leaves_a_gap_for_shorter_jobs() -> None:
    observed = calendar_of_big(BUSY, [RUNNING, PLANNED])
    assert observed.earliest(2, 1200.0, NOW) == (NOW, 2)
    assert observed.earliest(2, 1201.0, NOW) == (5800.0, 4)
    assert observed.earliest(4, 60.0, NOW) == (5800.0, 4)


MAINTENANCE = (
    "ReservationName=maint StartTime=1600 EndTime=3400 Duration=00:30:00 Nodes=n[3-4] NodeCnt=2 CoreCnt=32"
    " Features=(null) PartitionName=(null) Flags=MAINT,IGNORE_JOBS,SPEC_NODES TRES=cpu=32 Users=root\n"
    "ReservationName=licences StartTime=0 EndTime=9000 Duration=01:00:00 Nodes=(null) NodeCnt=0\n"
)


def test_a_reservation_takes_its_nodes_from_all_runs_but_its_own() -> None:
    assert read_reservations("No reservations in the system\n") == ()
    (row,) = rows = read_reservations(MAINTENANCE)
    assert row == ReservationRow("maint", "n[3-4]", 1600.0, 3400.0)
    other = calendar_of_big(FOUR, [], rows)
    assert other.earliest(4, 600.0, NOW) == (NOW, 4)
    assert other.earliest(4, 601.0, NOW) == (3400.0, 4)
    assert other.earliest(2, 9000.0, NOW) == (NOW, 2)
    began = [*FOUR[:2], *(replace(node, state="maint") for node in FOUR[2:])]
    own = calendar_of_big(began, [], rows, reservation="maint")
    assert own.earliest(2, 600.0, NOW) == (1600.0, 2)
    assert (own.earliest(3, 60.0, NOW), own.earliest(1, 2000.0, NOW)) == (None, None)


def test_a_run_waits_for_the_nodes_that_it_requires() -> None:
    needs = calendar_of_big(BUSY, [RUNNING], nodelist="n2")
    assert needs.earliest(1, 60.0, NOW) == (2200.0, 4)
    assert calendar_of_big(BUSY, [RUNNING], nodelist="n9").earliest(1, 60.0, NOW) is None


def test_nodes_that_take_no_job_or_are_not_meant_do_not_count() -> None:
    nodes = [
        *FOUR[:2],
        NodeRow("n5", "big", "drained", 8),
        NodeRow("n6", "big", "idle*", 8),
        NodeRow("n7", "small", "idle", 8),
        NodeRow("n8", "big", "idle", 4),
    ]
    assert calendar_of_big(nodes, [], gpus=8).earliest(1, 60.0, NOW) == (NOW, 2)
    assert calendar_of_big(nodes, [], gpus=8, exclude="n[1,9]").earliest(1, 60.0, NOW) == (NOW, 1)
    assert calendar_of_big(nodes, []).earliest(3, 60.0, NOW) == (NOW, 3)


def test_unknown_jobs_are_counted_and_promise_nothing() -> None:
    waiting = QueueRow("PENDING", "small,big", "", "", None, None)
    unseen = calendar_of_big(BUSY, [waiting, QueueRow("RUNNING", "big", "n1", "", 0.0, 2200.0)])
    assert (unseen.hidden, unseen.unplanned) == (("n2",), 1)
    assert unseen.earliest(4, 60.0, NOW) is None
    endless = calendar_of_big(BUSY, [QueueRow("RUNNING", "big", "n[1-2]", "", 0.0, None)])
    assert (endless.earliest(2, 60.0, NOW), endless.earliest(3, 60.0, NOW)) == ((NOW, 2), None)


def test_a_job_waits_for_unavailable_nodes_that_it_names_or_needs() -> None:
    nodes = [*FOUR, NodeRow("n5", "big", "drained", 8), NodeRow("n6", "big", "idle*", 8)]
    nodes += [NodeRow("n5", "small", "drained", 8), NodeRow("n7", "small", "down", 8)]
    requested = [(1, "n5"), (3, "n[1,5-6]"), (1, "n1"), (4, ""), (5, ""), (7, "")]
    results = [away(nodes, "big", least, expected) for least, expected in requested]
    assert results == [("n5",), ("n5", "n6"), (), (), ("n5", "n6"), ()]


def test_limits_are_read_as_sinfo_writes_them() -> None:
    assert (seconds_of("1-00:00:00"), seconds_of("infinite")) == (86400.0, None)


def test_question_and_answer_are_of_the_same_columns() -> None:
    mark = "<m>"
    for query in (QUEUE, NODES):
        assert all(field.column in query.argv(mark)[-1] for field in query.fields)
    message = (
        "[<m>]PENDING<m>big<m><m>n[1-4]<m>2200<m>5800\n[<m>]RUNNING<m>big<m>n[1-2]<m>(null)<m>0<m>2200\n"
    )
    assert queue_rows(QUEUE.rows(message, mark)) == (PLANNED, RUNNING)
    endless = f"[<m>]RUNNING<m>big<m>n[1-2]<m>(null)<m>10<m>{10 + 365 * 86400}\n"
    assert queue_rows(QUEUE.rows(endless, mark)) == (replace(RUNNING, start=10.0, end=None),)
    assert [NodeRow(**cells) for cells in NODES.rows("[<m>]n1<m>big<m>idle<m>gpu:8\n", mark)] == [FOUR[0]]
