"""Checks on machines whose torch sees GPUs. The GPUs are pretended, the rest is real."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch

from clusterrun.model.frozen import replace
from clusterrun.model.orders import Level
from clusterrun.model.preflight_report import Grade
from clusterrun.preflight.session.requests import AskExaminer
from clusterrun.preflight.tasks import (
    GroupResult,
    GroupTask,
    LocalAnswer,
    LocalTask,
    ProbeReading,
    StartTorch,
    TorchStarted,
)
from clusterrun.preflight.torch_worker import matmul, torch_info
from clusterrun.preflight.torch_worker.rank_report import RankReport
from tests.preflight import loopback
from tests.preflight.checks.values import gpus
from tests.preflight.simulated import START, Cluster, Faults, blamed, orders

HANGS = 1e6
READING = json.dumps(gpus())
PRETENDED = str(Path(__file__).parent / "pretended")


@pytest.mark.parametrize("ranks, count", [(1, 1), (2, 1), (2, 8)])
def test_real_examiners_with_unrequested_pretended_gpus_test_with_gloo(
    tmp_path: Path, ranks: int, count: int
) -> None:
    requested = replace(loopback.loopback_orders(2), ranks_per_node=ranks, hide_gpus=True)
    observed = {"PYTHONPATH": PRETENDED, "PRETENDED_GPUS": str(count)}
    created = loopback.Loopback(loopback.run_directory(tmp_path), requested, {0: observed, 1: observed})
    try:
        outcome = created.outcome()
    finally:
        created.end()
    assert (outcome.fit, outcome.world, outcome.report.verdict) == (True, (0, 1), Grade.PASS)
    assert outcome.report.backend == "gloo"


class WithGpus(Cluster):
    """Nodes whose torch sees pretended GPUs; ``drivers``: seconds to load the driver."""

    gpus: tuple[int, ...] = ()
    drivers: tuple[float, ...] = ()

    def hurried(self, ask: AskExaminer, task: object) -> bool:
        if not super().hurried(ask, task):
            return False
        if isinstance(task, LocalTask) and self.drivers and self.drivers[ask.node] > task.limit:
            late = LocalAnswer((ProbeReading("gpus", "", late=True),))
            self.say(task.limit - (self.now - START), ask.node, ask.number, late)
        return True

    def answer(self, node: int, task: object) -> tuple[float, object]:
        delay, message = super().answer(node, task)
        if self.drivers and isinstance(task, LocalTask):
            late = self.drivers[node] >= HANGS
            message = LocalAnswer((ProbeReading("gpus", "" if late else READING, late=late),))
        if self.drivers and isinstance(task, (LocalTask, StartTorch)):
            delay += min(self.drivers[node], 60.0)
        if (
            isinstance(task, StartTorch)
            and isinstance(message, TorchStarted)
            and task.gpus
            and self.gpus[node]
        ):
            message = replace(message, backend="nccl", devices=self.gpus[node], versions=(("cuda", "12.8"),))
        return delay, message


@pytest.mark.parametrize(
    "observed, ranks, wish, backend, tested",
    [
        ((8, 8, 8), 8, {"gpus_per_node": 8}, "nccl", 8),
        ((8, 8, 8), 8, {}, "nccl", 8),
        ((8, 8, 8), 8, {"hide_gpus": True}, "gloo", 8),
        ((1, 1, 1), 2, {}, "gloo", 2),
        ((8, 8, 1), 2, {}, "gloo", 2),
        ((2, 2, 2), 6, {"gpus_per_node": 2, "per_node": True}, "nccl", 2),
    ],
)
def test_a_group_of_pretended_gpus_uses_nccl_only_if_each_rank_has_one(
    observed: tuple[int, ...], ranks: int, wish: dict[str, object], backend: str, tested: int
) -> None:
    cluster = WithGpus(replace(orders(3), ranks_per_node=ranks, **wish), Faults())
    cluster.gpus = observed
    tasks = []
    gather = cluster.gather
    cluster.gather = lambda ask, task: (tasks.append(task), gather(ask, task))  # type: ignore[method-assign, assignment, func-returns-value]
    outcome = cluster.outcome()
    assert {(task.backend, task.ranks) for task in tasks} == {(backend, tested)}
    assert outcome.fit
    assert [notice for notice in outcome.report.notices if "fewer" in notice or "GPUs for" in notice] == (
        []
        if wish or min(observed) >= ranks
        else [f"collectives were tested with gloo: {shown(observed, ranks)}"]
    )


def shown(observed: tuple[int, ...], ranks: int) -> str:
    fewest = observed.index(min(observed))
    return f"n{fewest:04d} has {observed[fewest]} GPUs for {ranks} ranks"


@pytest.mark.parametrize("nodes", [1, 2, 3, 8])
@pytest.mark.parametrize(
    "usual, first, ill",
    [
        (0.1, 0.1, set()),
        (30.0, 30.0, set()),
        (45.0, 50.0, set()),
        (0.1, 30.0, set()),  # one node without persistence mode
        (30.0, 0.1, set()),
        (0.1, HANGS, {0}),
        (HANGS, HANGS, set()),
    ],
)
def test_slow_pretended_drivers_are_awaited_and_a_hanging_one_is_named(
    nodes: int, usual: float, first: float, ill: set[int]
) -> None:
    cluster = WithGpus(replace(orders(nodes), gpus_per_node=8, ranks_per_node=8), Faults())
    cluster.gpus, cluster.drivers = (8,) * nodes, (first,) + (usual,) * (nodes - 1)
    outcome = cluster.outcome()
    alone = nodes == 1 and first == HANGS  # with nobody to compare it with, a minute of silence is enough
    assert blamed(outcome) == ({0} if alone else ill)
    assert outcome.fit == (not ill and not alone)
    assert outcome.report.seconds <= 60 + 45
    if ill and nodes > 1:
        results = {finding.check: finding.message for finding in outcome.report.nodes[0].findings}
        assert results["gpus"].startswith("nvidia-smi gave no answer")


@pytest.mark.parametrize("nodes", [2, 16])
def test_a_quick_product_costs_the_first_group_of_pretended_gpus_no_time(nodes: int) -> None:
    cluster = WithGpus(replace(orders(nodes), gpus_per_node=8, ranks_per_node=8), Faults())
    cluster.gpus = (8,) * nodes
    limits: dict[str, list[float]] = {}
    gather = cluster.gather
    cluster.gather = lambda ask, task: (  # type: ignore[method-assign, assignment, func-returns-value]
        limits.setdefault(task.kind, []).append(task.limit),
        gather(ask, task),
    )
    assert cluster.outcome().fit
    assert limits["pair"][0] >= 30.0
    assert min(limits["set"]) >= 30.0 + nodes * 8 * 0.03


class SlowToLoad(WithGpus):
    """Each group takes ``seconds`` to form: NCCL compiles its kernels, as on a DGX B200 (nccl#1646: 55 s)."""

    seconds = 55.0
    alone = False
    """Only on the first node, on which those of its group wait."""

    def run(self, arrived: list[tuple[int, int, GroupTask]], alone: bool) -> None:
        slow = not self.alone or 0 in {node for node, _, _ in arrived}
        self.now_tested = {number: task.limit for _, number, task in arrived if slow}
        super().run(arrived, alone)

    def say(self, delay: float, node: int, number: int, value: object) -> None:
        if isinstance(value, GroupResult) and number in getattr(self, "now_tested", {}):
            limit = self.now_tested[number]
            value = replace(value, seconds=min(self.seconds, limit))
            if self.seconds > limit:
                loading = not self.alone or node == 0
                value = GroupResult(
                    value.test, False, "group", limit, why="killed", late=True, loading=loading
                )
            delay = value.seconds + 0.1
        super().say(delay, node, number, value)


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("nodes", [1, 2, 3, 8])
def test_nccl_that_loads_its_kernels_for_a_minute_is_awaited_without_blame(nodes: int, alone: bool) -> None:
    cluster = SlowToLoad(replace(orders(nodes), gpus_per_node=8, ranks_per_node=8), Faults())
    cluster.gpus, cluster.alone = (8,) * nodes, alone
    outcome = cluster.outcome()
    assert (outcome.fit, outcome.report.verdict) == (True, Grade.PASS)
    assert [notice for notice in outcome.report.notices if notice.startswith("NCCL takes longer than 30 s")]


def test_nccl_that_never_loads_its_kernels_is_reported_after_a_longer_limit() -> None:
    cluster = SlowToLoad(replace(orders(2), gpus_per_node=8, ranks_per_node=8), Faults())
    cluster.gpus, cluster.seconds = (8, 8), 1e6
    outcome = cluster.outcome()
    assert not outcome.fit
    assert outcome.report.seconds <= 60 + 240


def test_a_set_of_a_thousand_pretended_gpus_has_time_to_form() -> None:
    cluster = WithGpus(replace(orders(128, level=Level.QUICK), gpus_per_node=8, ranks_per_node=8), Faults())
    cluster.gpus = (8,) * 128
    limits: list[float] = []
    gather = cluster.gather
    cluster.gather = lambda ask, task: (limits.append(task.limit), gather(ask, task))  # type: ignore[method-assign, assignment, func-returns-value]
    assert cluster.outcome().fit
    assert max(limits) > 60.0


@pytest.mark.parametrize(
    "expected, observed", [(True, ("gloo", 2, "Pretended Max 1550")), (False, ("gloo", 0, ""))]
)
def test_pretended_xpus_are_seen_and_tested_with_gloo(
    monkeypatch: pytest.MonkeyPatch, expected: bool, observed: tuple[str, int, str]
) -> None:
    monkeypatch.setattr(torch.version, "xpu", "20250201", raising=False)
    monkeypatch.setattr(torch.xpu, "init", lambda: None)
    monkeypatch.setattr(torch.xpu, "device_count", lambda: 2)
    monkeypatch.setattr(torch.xpu, "get_device_name", lambda number: "Pretended Max 1550")
    result = torch_info.inspect_torch(expected)
    versions = dict(result.versions)
    assert (result.backend, result.devices, versions.get("gpu", "")) == observed
    assert versions["xpu"] == "20250201"


@pytest.mark.parametrize(
    ("visible", "backend", "devices"),
    [("MIG-a", "nccl", 1), ("MIG-a,MIG-b", "gloo", 2), ("GPU-a,GPU-b", "nccl", 1)],
)
def test_several_instances_of_pretended_divided_gpus_count_each_and_are_tested_with_gloo(
    monkeypatch: pytest.MonkeyPatch, visible: str, backend: str, devices: int
) -> None:
    """CUDA shows the first of them only, and NCCL takes no two of one GPU (nccl#1716)."""
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: "NVIDIA Pretended MIG 1g.10gb")
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 27, 5))
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    result = torch_info.inspect_torch(visible=visible)
    assert (result.backend, result.devices, bool(result.why)) == (backend, devices, backend == "gloo")


@pytest.mark.parametrize(
    ("error", "seconds", "why"),
    [
        (RuntimeError("No CUDA GPUs are available"), 60.0, "torch sees no GPU: No CUDA GPUs are available"),
        (None, 0.2, "the GPU driver did not answer torch within 0.2 s"),
    ],
)
def test_pretended_drivers_that_fail_or_hang_are_reported_as_no_gpus(
    monkeypatch: pytest.MonkeyPatch, error: Exception | None, seconds: float, why: str
) -> None:
    def init() -> None:
        if error:
            raise error
        time.sleep(HANGS)

    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "init", init)
    result = torch_info.inspect_torch(seconds=seconds)
    assert (result.backend, result.devices, result.why) == ("gloo", 0, why)


def test_a_product_on_a_missing_pretended_gpu_is_reported_with_its_stage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(matmul, "set_variables", lambda settings: None)
    arguments: list[RankReport] = []
    matmul.serve("nccl", 3, 0.0, arguments.append)
    assert [word.stage for word in arguments] == ["product", ""]
    assert arguments[-1].ended
    assert arguments[-1].why.startswith("local rank 3 has no GPU: torch sees ")
