"""The torch worker with a fake of NCCL and GPUs: NCCL's failures are reported in words.

The device is fake (``pretended/fake_device.py``); the worker, its children, the store and the ways are real.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterrun.preflight.tasks import CPU_WAIT, GroupResult
from tests.preflight.torch_worker.nodes import Node, results, running

PRETENDED = Path(__file__).parent / "pretended"


class FakeNodes:
    """Two workers with two fake GPUs each, and what goes wrong in their next test."""

    def __init__(self, nodes: list[Node], fault: Path) -> None:
        self.nodes, self._fault = nodes, fault

    def results(self, fault: str = "", rank: int = 1, **fields: object) -> list[GroupResult]:
        self._fault.write_text(f"{fault} {rank}")
        return results(*self.nodes, **{"ranks": 2, **fields})


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeNodes]:
    fault = tmp_path_factory.mktemp("fake") / "fault"
    observed = {"PYTHONPATH": str(PRETENDED), "PRETENDED_GPUS": "2", "PRETENDED_FAULT": str(fault)}
    with running("n1", "n2", environment=observed) as nodes:
        yield FakeNodes(nodes, fault)


def test_fake_gpus_are_counted_and_tested_with_nccl(fake: FakeNodes) -> None:
    up = fake.nodes[0].up
    assert (up.backend, up.devices) == ("nccl", 2)
    assert dict(up.versions).items() >= {"nccl": "2.27.5", "gpu": "NVIDIA Pretended", "cuda": "12.8"}.items()


@pytest.mark.parametrize("kind", ["pair", "set"])
def test_a_sound_group_on_fake_gpus_passes_with_rates_and_the_network_that_nccl_chose(
    fake: FakeNodes, kind: str
) -> None:
    ways = {"all_reduce", "send", "receive"} if kind == "pair" else {"all_reduce"}
    for result in fake.results(kind=kind):
        assert (result.passed, result.stage, result.wrong, result.why) == (True, "done", "", "")
        assert {name for name, _ in result.rates} >= {*ways, *(f"{way}:1" for way in ways), CPU_WAIT}
        assert result.transport == "NET/IB mlx5_0 mlx5_1 GDRDMA"


@pytest.mark.parametrize(
    ("fault", "stage", "message"),
    [
        (
            "system",
            "group",
            "NCCL 2.27.5: unhandled system error (ncclSystemError) Error: network not found.",
        ),
        (
            "no-interface",
            "group",
            "NCCL 2.27.5: unhandled system error (ncclSystemError) Bootstrap : no socket interface found",
        ),
        (
            "unhandled-cuda",
            "group",
            "NCCL 2.27.5: unhandled cuda error (ncclUnhandledCudaError) Cuda failure 2 'out of memory'",
        ),
        (
            "duplicate",
            "group",
            "NCCL 2.27.5: invalid usage (ncclInvalidUsage) Duplicate GPU detected : rank 0 and rank 1 both on"
            " CUDA device 1b000",
        ),
        (
            "async-error",
            "exact",
            "NCCL 2.27.5: remote process exited or there was a network error (ncclRemoteError)"
            " socketProgress: Connection closed by remote peer n2<40001>",
        ),
        ("cuda-error", "exact", "CUDA error: an illegal memory access was encountered"),
        (
            "abort",
            "exact",
            "the test's process died: [Rank 1] Watchdog caught collective operation timeout: WorkN",
        ),
    ],
)
def test_a_failure_of_fake_nccl_is_reported_by_its_node(
    fake: FakeNodes, fault: str, stage: str, message: str
) -> None:
    sick, other = fake.results(fault, limit=20.0)
    assert (sick.passed, sick.stage) == (False, stage)
    symptom = fault == "async-error"  # of a peer's end, as all other ranks tell it too
    assert sick.why.startswith(message) or symptom
    assert (other.passed, other.why.startswith(message)) == (False, False)


@pytest.mark.parametrize(("fault", "stage"), [("hang-in-init", "group")])
def test_a_fake_gpu_that_hangs_costs_its_limit_and_no_more(fake: FakeNodes, fault: str, stage: str) -> None:
    began = time.monotonic()
    sick, _ = fake.results(fault, limit=4.0)
    assert (sick.passed, sick.stage, sick.loading) == (False, stage, False)
    assert time.monotonic() - began < 20.0
    assert all(entry.passed for entry in fake.results())  # the next test finds no rest of it


def test_fake_nccl_that_compiles_its_kernels_is_no_hang(fake: FakeNodes) -> None:
    slow, _ = fake.results("loads", limit=4.0)
    assert (slow.passed, slow.stage, slow.loading) == (False, "group", True)
    assert slow.why.endswith(" s, while NCCL loaded its kernels")


def test_a_timeout_of_a_fake_gpu_is_reported_before_the_kill(fake: FakeNodes) -> None:
    for result in fake.results("timeout", limit=4.0):
        assert result.why == "the GPU did not finish the queued work"


def test_a_wrong_sum_of_a_fake_gpu_is_seen_and_the_summing_itself_named(fake: FakeNodes) -> None:
    for result in fake.results("wrong-sum"):
        assert (result.passed, result.stage, result.why) == (False, "done", "")
    sick, other = fake.results("wrong-sum")
    message = "what each rank gave arrived right: the summing itself is wrong, on local rank 1 of n1 alone"
    assert sick.wrong.startswith(f"{message}; int64 sum: element 7 is ")
    assert other.wrong == "another rank saw a wrong sum"


def test_a_large_message_of_a_fake_gpu_that_arrives_wrong_is_seen_though_small_ones_are_right(
    fake: FakeNodes,
) -> None:
    sick, other = fake.results("wrong-large", megabytes=4.0)
    assert (sick.passed, sick.stage, sick.why, other.passed) == (False, "done", "", True)
    message = r"sum of a large message \([\d.]+ MB\): element 20000 is \d+ instead of \d+ "
    assert re.fullmatch(message + r"\(1 of \d+ elements differ\)", sick.wrong)


def test_one_slow_fake_gpu_slows_its_group_and_fails_nothing(fake: FakeNodes) -> None:
    most = 1.5 * 1e6 / 0.02 / 1e9  # a megabyte among four ranks, of which one sleeps for 20 ms each time
    for result in fake.results("slow"):
        assert result.passed
        assert dict(result.rates)["all_reduce"] <= most


def test_the_product_runs_on_each_fake_gpu(fake: FakeNodes) -> None:
    for result in fake.results(kind="product"):
        assert (result.passed, result.stage) == (True, "done")
        assert {name for name, _ in result.rates} == {"product", "product:0", "product:1"}
        assert result.fingerprint.startswith("cuda 512 NVIDIA Pretended: ")
