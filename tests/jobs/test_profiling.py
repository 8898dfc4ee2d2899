import sys

import pytest

pytest.importorskip("torch")

from pathlib import Path

import profiling


@pytest.mark.parametrize(
    ("spans", "windows", "share"),
    [
        ([], [(0, 10)], 0.0),
        ([(2, 4), (3, 7)], [(0, 10)], 0.5),
        ([(2, 7), (3, 4)], [(0, 10)], 0.5),
        ([(-5, 1), (9, 20)], [(0, 10)], 0.2),
        ([(5, 15)], [(0, 10), (10, 20)], 0.5),
        ([(5, 15)], [(0, 5), (15, 20)], 0.0),
        ([(1, 2)], [], 0.0),
    ],
)
def test_overlapping_communication_is_counted_once(spans, windows, share) -> None:
    assert profiling.share(spans, windows) == pytest.approx(share)


@pytest.mark.parametrize(
    ("name", "carries"),
    [
        ("gloo:all_reduce", True),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", True),
        ("nccl:all_reduce", True),
        ("aten::addmm", False),
        ("DistributedDataParallel.forward", False),
    ],
)
def test_a_collective_is_recognized_by_its_name(name, carries) -> None:
    assert profiling.carries(name) is carries


@pytest.mark.parametrize(
    ("text", "ranks"), [("0", {0}), ("0,4-6", {0, 4, 5, 6}), ("all", range(sys.maxsize))]
)
def test_ranks_are_named_by_numbers_and_stretches(text, ranks) -> None:
    assert profiling.ranks_named(text) == ranks


@pytest.mark.parametrize("text", ["", "a", "1-", "-1"])
def test_an_invalid_rank_is_refused(text) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        profiling.ranks_named(text)


def test_traces_go_to_the_requested_folder_else_the_run_directory_else_the_current_folder(
    monkeypatch,
) -> None:
    monkeypatch.delenv("CLUSTERRUN_RUN_DIR", raising=False)
    assert profiling.folder(None) == Path("traces")
    monkeypatch.setenv("CLUSTERRUN_RUN_DIR", "/runs/1")
    assert profiling.folder(None) == Path("/runs/1/traces")
    assert profiling.folder(Path("mine")) == Path("mine")
