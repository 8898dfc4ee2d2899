"""Free GPUs are counted by partition and type, on nodes where Slurm starts jobs."""

from __future__ import annotations

from clusterrun.operations.free_gpus import summed
from clusterrun.slurm.queries import QueueRow, gpus_by_type, read_gpus

ROWS = (
    ("n1", "gpu*", "mixed", "gpu:a100:4(S:0-1)", "gpu:a100:3(IDX:0-2)"),
    ("n2", "gpu*", "idle", "gpu:a100:4(S:0-1)", "gpu:a100:0(IDX:N/A)"),
    ("n3", "gpu*", "drained", "gpu:a100:4", "gpu:a100:0"),
    ("n4", "gpu*", "allocated", "gpu:h100:8,gpu:a100:1", "gpu:h100:8,gpu:a100:1"),
    ("n5", "cpu", "idle", "(null)", "(null)"),
    ("n6", "old", "mixed", "gpu:2", "gpu:1(IDX:0)"),
    # Jobs without GPUs hold all processors of n7; the partition of n8 is closed.
    ("n7", "full", "allocated", "gpu:4", "gpu:0(IDX:N/A)"),
    ("n8", "closed", "idle", "gpu:4", "gpu:0(IDX:N/A)", "down"),
)
TEXT = "\n".join("".join(cell.ljust(200) for cell in (*row, "up")[:6]) for row in ROWS)
QUEUE = (
    QueueRow("RUNNING", "gpu", "n1", "", 0.0, 500.0),
    QueueRow("RUNNING", "gpu", "n[1,4]", "", 0.0, 900.0),
    QueueRow("PENDING", "gpu", "", "n2", 100.0, 200.0),
    QueueRow("RUNNING", "old", "n6", "", 0.0, None),
    QueueRow("RUNNING", "full", "n7", "", 0.0, 700.0),
)


def test_gpus_are_counted_by_type() -> None:
    assert gpus_by_type("gpu:a100:4(S:0-1),gpu:2,nvme:1,gpu") == {"a100": 4, "": 3}


def test_rows_count_free_unusable_and_next_gpus() -> None:
    rows = {(row.partition, row.gpu_type): row for row in summed(read_gpus(TEXT), QUEUE, 100.0)}
    assert sorted(rows) == [("closed", ""), ("full", ""), ("gpu", "a100"), ("gpu", "h100"), ("old", "")]
    a100 = rows["gpu", "a100"]
    assert (a100.total, a100.free, a100.unusable, a100.free_nodes, a100.most_on_node) == (13, 5, 4, 1, 4)
    assert (a100.next_at, a100.next_gpus) == (500.0, 3)
    assert (rows["gpu", "h100"].free, rows["gpu", "h100"].next_at) == (0, 900.0)
    assert (rows["old", ""].free, rows["old", ""].next_at) == (1, None)


def test_gpus_that_no_job_can_get_are_not_free() -> None:
    rows = {row.partition: row for row in summed(read_gpus(TEXT), QUEUE, 100.0)}
    full, closed = rows["full"], rows["closed"]
    assert (full.free, full.free_nodes, full.unusable) == (0, 0, 0)
    assert (full.next_at, full.next_gpus) == (700.0, 4)
    assert (closed.free, closed.free_nodes, closed.unusable, closed.next_at) == (0, 0, 4, None)
