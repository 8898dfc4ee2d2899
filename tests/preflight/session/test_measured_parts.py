"""The report keeps all measurements of GPUs and rails, and a slow part is named."""

from __future__ import annotations

import random

import pytest

from clusterrun.model.frozen import replace
from clusterrun.model.orders import Orders
from clusterrun.model.preflight_report import Grade, Report
from clusterrun.preflight.checks import product
from clusterrun.preflight.tasks import BUS_SHARES, TABLE_SIZES, GroupResult, GroupTask, StartTorch
from clusterrun.reports import quantity_tables
from tests.preflight.checks.values import asked
from tests.preflight.simulated import Cluster, Faults, orders

GPUS = 8
H100 = "NVIDIA H100 80GB HBM3"


class MeasuredGpus(Cluster):
    """Nodes with eight GPUs and eight rails. The faults are shares of the usual speed."""

    slow_gpus: dict[tuple[int, int], float] = {}
    slow_rails: dict[tuple[int, int], float] = {}
    throttled: set[int] = set()

    def answer(self, node: int, task: object) -> tuple[float, object]:
        delay, value = super().answer(node, task)
        if isinstance(task, StartTorch):
            value = replace(value, backend="nccl", devices=GPUS, versions=(("cuda", "12.8"), ("gpu", H100)))
        if isinstance(task, GroupTask):
            value = replace(value, rates=self.products(node), fingerprint=f"cuda 4096 {H100}: aa")
        return delay, value

    def say(self, delay: float, node: int, number: int, value: object) -> None:
        task = next((own for at, n, own in self.received if (at, n) == (node, number)), None)
        if isinstance(value, GroupResult) and task is not None and value.passed:
            rates = self.rates_of(node, task)
            value = replace(
                value, rates=(*value.rates, *rates) if task.kind == "pair" else rates or value.rates
            )
        super().say(delay, node, number, value)

    received: list[tuple[int, int, GroupTask]] = []

    def run(self, received: list[tuple[int, int, GroupTask]], alone: bool) -> None:
        self.received = received
        super().run(received, alone)
        self.received = []

    def products(self, node: int) -> tuple[tuple[str, float], ...]:
        rates = [
            500 * self.slow_gpus.get((node, gpu), 1.0) * self.chance.uniform(0.99, 1) for gpu in range(GPUS)
        ]
        return ("product", min(rates)), *((f"product:{gpu}", rate) for gpu, rate in enumerate(rates))

    def rates_of(self, node: int, task: GroupTask) -> tuple[tuple[str, float], ...]:
        if task.kind == "pair":
            (other,) = (member.node for member in task.members if member.node != node)
            rates = []
            for rail in range(GPUS):
                share = min(self.slow_rails.get((end, rail), 1.0) for end in (node, other))
                rate = 48.0 * share * self.chance.uniform(0.98, 1)
                rates += [(f"send:{rail}", rate), (f"receive:{rail}", rate)]
            return tuple(rates)
        if task.kind == "device":
            return tuple((f"{name}:{gpu}", 2600.0) for name in ("memory", "from host") for gpu in range(GPUS))
        if task.kind == "peers":
            return tuple((f"peer {a} {b}", 390.0) for a in range(GPUS) for b in range(GPUS) if a != b)
        if task.kind == "burn":
            assert task.seconds == 60.0
            slowed = [("slowed hw_thermal_slowdown:5", 1.0)] if node in self.throttled else []
            return (*self.products(node), ("clock:0", 1700.0), *slowed)
        if task.kind == "table":
            return tuple((f"us {name} {size}", size / 1e5) for name in BUS_SHARES for size in TABLE_SIZES)
        return ()


def checked(nodes: int, **faults: object) -> Report:
    run_orders = replace(orders(nodes), gpus_per_node=GPUS, ranks_per_node=GPUS)
    return checked_with(run_orders, **faults)


def checked_with(run_orders: Orders, **faults: object) -> Report:
    cluster = MeasuredGpus(run_orders, Faults())
    cluster.chance = random.Random(run_orders.nodes)
    for name, value in faults.items():
        setattr(cluster, name, value)
    return cluster.outcome().report


def said(report: Report) -> list[tuple[str, str]]:
    of_nodes = [(node.node, finding.message) for node in report.nodes for finding in node.findings]
    return of_nodes + [(f"{link.a} {link.b}", link.message) for link in report.links]


@pytest.mark.parametrize("nodes", [1, 2, 4, 64])
def test_a_slow_gpu_of_eight_is_named(nodes) -> None:
    report = checked(nodes, slow_gpus={(0, 5): 0.6})
    ((node, message),) = said(report)
    assert (node, "of GPU 5" in message) == ("n0000", True)
    assert report.verdict is Grade.WARN


class BusyAtFirst(MeasuredGpus):
    """Other programs slow the first product of node 0."""

    def products(self, node: int) -> tuple[tuple[str, float], ...]:
        rates, self.slow_gpus = super().products(node), {}
        return rates


@pytest.mark.parametrize("share", [0.6, 0.2])
def test_a_slow_product_is_measured_again_before_its_node_is_blamed(share) -> None:
    cluster = BusyAtFirst(replace(orders(4), gpus_per_node=GPUS, ranks_per_node=GPUS), Faults())
    cluster.slow_gpus = {(0, gpu): share for gpu in range(GPUS)}
    report = cluster.outcome().report
    assert (said(report), report.verdict) == ([], Grade.PASS)


@pytest.mark.parametrize("nodes", [3, 4, 64])
def test_a_slow_rail_is_named_with_its_node(nodes) -> None:
    report = checked(nodes, slow_rails={(1, 3): 0.5})
    messages = said(report)
    assert {node for node, _ in messages} == {"n0001"}
    assert all(message.startswith("rail 3 ") for _, message in messages)


def test_a_slow_rail_between_two_nodes_is_named_with_both() -> None:
    messages = said(checked(2, slow_rails={(1, 3): 0.5}))
    assert {tuple(sorted(ends.split())) for ends, _ in messages} == {("n0000", "n0001")}
    assert all(message.startswith("rail 3: ") for _, message in messages)


@pytest.mark.parametrize("nodes", [1, 2, 4, 64])
def test_healthy_parts_are_not_named_and_all_are_in_the_report(nodes) -> None:
    report = checked(nodes)
    assert said(report) == []
    products = {
        (quantity.node, quantity.part) for quantity in report.quantities if quantity.unit == "TFLOP/s"
    }
    rails = {(quantity.node, quantity.part) for quantity in report.quantities if quantity.name == "send"}
    assert len(products) == GPUS * nodes
    assert len(rails) == (GPUS * nodes if nodes > 1 else 0)


def table_orders(nodes: int, **more: object) -> Orders:
    run_orders = replace(orders(nodes), gpus_per_node=GPUS, ranks_per_node=GPUS)
    return replace(run_orders, preflight=replace(run_orders.preflight, budget=400.0, **more))


def test_a_table_measures_each_gpu_each_pair_of_gpus_and_collectives_by_size() -> None:
    report = checked_with(table_orders(2, table=True))
    assert report.verdict is Grade.PASS
    assert len(report.table) == len(BUS_SHARES) * len(TABLE_SIZES)
    row = next(row for row in report.table if (row.operation, row.bytes) == ("all_reduce", 1 << 20))
    # 100 GB/s: the bus bandwidth of 16 ranks is 2 * 15 / 16 of it.
    assert (row.algorithm_gigabytes_per_second, row.gigabytes_per_second) == (100.0, 187.5)
    names = {quantity.name for quantity in report.quantities}
    assert {"memory", "from host", "copy", "send", "receive", "matrix product"} <= names
    lines = list(quantity_tables.lines(report))
    assert any(line.split()[:2] == ["all_reduce", "1048576"] for line in lines)
    assert any(line.startswith("n0001, GB/s from") for line in lines)


def test_a_single_rank_has_no_table_of_collectives() -> None:
    asked_for = replace(table_orders(1, table=True), gpus_per_node=1, ranks_per_node=1)
    report = checked_with(asked_for)
    assert report.table == ()
    assert [notice for notice in report.notices if "one rank has no other" in notice]
    assert "memory" in {quantity.name for quantity in report.quantities}


def test_no_table_is_measured_or_printed_without_a_request() -> None:
    report = checked(2)
    assert (report.table, list(quantity_tables.lines(report))) == ((), [])


@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_a_gpu_that_the_hardware_slows_under_load_fails_its_node(nodes) -> None:
    report = checked_with(table_orders(nodes, burn=60.0), throttled={0})
    ((node, message),) = said(report)
    assert (node, message) == ("n0000", "GPU 5: the GPU is too hot under load (hw_thermal_slowdown)")
    assert report.verdict is Grade.FAIL
    clocks = [quantity.value for quantity in report.quantities if quantity.name == "clock under load"]
    assert clocks == [1700.0] * nodes


class SlowLibraries(MeasuredGpus):
    """Every process takes ``seconds`` to load driver and libraries; so does the first on each node."""

    seconds = 45.0
    nodes: frozenset[int] = frozenset()
    limits: list[float] = []

    def answer(self, node: int, task: object) -> tuple[float, object]:
        delay, value = super().answer(node, task)
        is_slow = not self.nodes or node in self.nodes
        if isinstance(task, StartTorch) and is_slow:
            delay, value = self.seconds, replace(value, seconds=self.seconds)
        if isinstance(task, GroupTask) and is_slow:
            self.limits = [*self.limits, task.limit]
            delay = min(self.seconds, task.limit)
            if self.seconds >= task.limit:
                value = GroupResult(task.test, False, "product", delay, why="killed", late=True)
        return delay, value


@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_a_product_gets_the_time_that_the_local_round_took_to_load(nodes) -> None:
    cluster = SlowLibraries(replace(orders(nodes), gpus_per_node=GPUS, ranks_per_node=GPUS), Faults())
    outcome = cluster.outcome()
    assert outcome.fit
    assert said(outcome.report) == []
    assert cluster.limits[0] >= 30.0 + cluster.seconds


@pytest.mark.parametrize("nodes", [2, 4])
def test_late_products_on_all_nodes_are_one_warning(nodes) -> None:
    readings = {f"n{node}": {"late": True, "passed": False, "seconds": 75.0} for node in range(nodes)}
    ((node, finding),) = product.judge(asked(gpus=GPUS), readings)
    assert (node, finding.verdict) == ("", Grade.WARN)
    assert finding.message == "a matrix product was not done after 75 s on any node"


def test_a_late_product_on_one_node_fails_it() -> None:
    readings = {
        "n0": {"late": True, "passed": False, "seconds": 75.0},
        "n1": {"passed": True, "rates": [["product", 500.0]]},
    }
    ((node, finding),) = product.judge(asked(gpus=GPUS), readings)
    assert (node, finding.verdict) == ("n0", Grade.FAIL)
