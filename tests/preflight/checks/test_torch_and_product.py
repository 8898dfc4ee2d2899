"""The torch worker's answers about torch and a matrix product: nodes that differ, are wrong or slow."""

from __future__ import annotations

from typing import Any

import pytest

from clusterrun.preflight.checks import product, torch
from tests.preflight.checks.values import FAIL, UNDETERMINED, WARN, asked, blamed, nodes, verdicts

VERSIONS = {"torch": "2.13.0+cu128", "cuda": "12.8", "nccl": "2.27.5", "python": "3.11.7"}
CPU = {"torch": "2.13.0+cpu", "cuda": "none", "python": "3.11.7"}
NO_GPUS = asked(gpus=0)


def warm(devices: int = 8, versions: dict[str, str] = VERSIONS, **changes: Any) -> dict[str, Any]:
    pairs = [list(pair) for pair in versions.items()]
    return {"up": True, "why": "", "backend": "nccl", "devices": devices, "versions": pairs, **changes}


def done(rate: float = 60.0, bits: str = "cuda 4096: 1f2e", **changes: Any) -> dict[str, Any]:
    return {
        "passed": True,
        "stage": "done",
        "seconds": 1.0,
        "rates": [["product", rate]],
        "fingerprint": bits,
        **changes,
    }


def test_equal_nodes_that_see_their_gpus_are_passed_over_in_silence() -> None:
    assert verdicts(torch, nodes(4, warm())) == []
    assert verdicts(torch, nodes(4, warm(0, CPU)), NO_GPUS) == []


@pytest.mark.parametrize(
    ("what", "verdict", "message"),
    [
        ("torch", FAIL, "torch is 9.9; it is 2.13.0+cu128 on 3 of 4 nodes"),
        ("nccl", FAIL, "NCCL is 9.9; it is 2.27.5 on 3 of 4 nodes"),
        ("cuda", FAIL, "CUDA is 9.9; it is 12.8 on 3 of 4 nodes"),
        ("python", WARN, "python is 9.9; it is 3.11.7 on 3 of 4 nodes"),
    ],
)
def test_a_different_version_on_one_node_is_named(what, verdict, message) -> None:
    other = warm(versions={**VERSIONS, what: "9.9"})
    assert verdicts(torch, nodes(3, warm(), bad=other)) == [("bad", verdict, message)]


def test_two_nodes_with_two_versions_are_both_named_and_neither_is_called_wrong() -> None:
    output = "torch differs between nodes: 2.13.0+cu128 on n1, 9.9 on n2"
    readings = {"n1": warm(), "n2": warm(versions={**VERSIONS, "torch": "9.9"})}
    assert verdicts(torch, readings) == [("n1", WARN, output), ("n2", WARN, output)]


def test_half_the_nodes_with_another_version_blame_nobody_alone() -> None:
    other = warm(versions={**VERSIONS, "torch": "9.9"})
    assert verdicts(torch, {"n1": warm(), "n2": warm(), "n3": other, "n4": other}) == [
        ("", WARN, "torch differs between nodes: 2.13.0+cu128 on n[1-2], 9.9 on n[3-4]")
    ]


def test_a_build_for_xpus_is_no_build_for_cpus() -> None:
    xpu = {"torch": "2.9.0+xpu", "cuda": "none", "xpu": "20250201", "python": "3.11.7"}
    assert verdicts(torch, nodes(2, warm(versions=xpu, backend="gloo"))) == []
    blind = warm(0, versions=xpu, why="torch sees no GPU: no XPU devices are available")
    assert verdicts(torch, nodes(1, blind)) == [
        ("n1", FAIL, "torch sees 0 of 8 GPUs: torch sees no GPU: no XPU devices are available")
    ]


def test_missing_gpus_are_unfit_also_if_only_torch_misses_them() -> None:
    assert verdicts(torch, nodes(2, warm(), bad=warm(7))) == [("bad", FAIL, "torch sees 7 of 8 GPUs")]
    blind = warm(0, why="CUDA error 803: system has unsupported display driver")
    assert verdicts(torch, nodes(2, warm(), bad=blind)) == [
        ("bad", FAIL, "torch sees 0 of 8 GPUs: CUDA error 803: system has unsupported display driver")
    ]


def test_a_cpu_build_on_one_node_is_unfit() -> None:
    result = verdicts(torch, nodes(3, warm(), bad=warm(0, CPU)))
    assert result[0] == ("bad", FAIL, "torch is a CPU build here: it sees none of 8 GPUs")
    assert {node for node, _, _ in result} == {"bad"}


def test_a_cpu_build_on_every_node_is_reported_without_blame() -> None:
    assert verdicts(torch, nodes(3, warm(0, CPU))) == [
        ("", WARN, "torch is a CPU build on every node: it cannot use their GPUs")
    ]


def test_a_node_on_which_torch_does_not_start_is_unfit_where_it_starts_elsewhere() -> None:
    down = {"up": False, "why": "No module named 'torch'", "devices": 0, "versions": []}
    assert verdicts(torch, nodes(3, warm(), bad=down)) == [
        ("bad", FAIL, "torch starts on 3 of 4 nodes, not here: No module named 'torch'")
    ]
    assert verdicts(torch, nodes(3, down)) == []


def test_equal_bits_and_rates_are_passed_over_in_silence() -> None:
    assert verdicts(product, nodes(5, done())) == []


def test_other_bits_than_the_others_are_unfit() -> None:
    assert verdicts(product, nodes(3, done(), bad=done(bits="cuda 4096: dead"))) == [
        ("bad", FAIL, "the product's bits are dead, 1f2e on 3 other nodes (cuda 4096)")
    ]


def test_neither_of_two_nodes_with_different_bits_is_named() -> None:
    output = "the product has 2 results; it is not known which is right"
    assert verdicts(product, {"n1": done(), "n2": done(bits="cuda 4096: dead")}) == [
        ("n1", UNDETERMINED, output),
        ("n2", UNDETERMINED, output),
    ]


def test_only_like_is_compared_with_like() -> None:
    assert verdicts(product, nodes(3, done(), n9=done(0.05, "cpu 384: 77aa"))) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"passed": False, "wrong": "row 7"}, "a matrix product is wrong: row 7"),
        ({"passed": False, "late": True, "seconds": 20.0}, "a matrix product was not done after 20 s"),
        (
            {"passed": False, "why": "CUDA error: out of memory"},
            "a matrix product failed: CUDA error: out of memory",
        ),
    ],
)
def test_a_failed_product_is_reported(changes, message) -> None:
    ill = {**done(), "fingerprint": "", "rates": [], **changes}
    assert verdicts(product, nodes(3, done(), bad=ill)) == [("bad", FAIL, message)]


def test_a_product_whose_process_was_lost_has_no_verdict() -> None:
    ended = {"passed": False, "stage": "warm", "why": "gone", "fingerprint": "", "rates": []}
    assert verdicts(product, nodes(3, done(), bad=ended)) == []


def test_a_straggler_is_reported_with_its_share_of_the_median() -> None:
    assert verdicts(product, nodes(5, done(), bad=done(45.0))) == [
        ("bad", WARN, "slow matrix product: 45 TFLOP/s, 75% of the median 60 (limit 54)")
    ]
    assert blamed(product, nodes(5, done(), bad=done(20.0))) == {"bad": FAIL}
    assert blamed(product, nodes(5, done(), bad=done(57.0))) == {}


def test_processors_vary_by_a_factor_and_blame_nobody_for_it() -> None:
    cpu = {"bits": "cpu 384: 77aa"}
    assert blamed(product, nodes(5, done(0.05, **cpu), bad=done(0.02, **cpu))) == {}


def test_two_nodes_are_too_few_for_a_slow_one() -> None:
    assert verdicts(product, {"n1": done(60.0), "n2": done(30.0)}) == []


def of_gpus(*rates: float, model: str = "NVIDIA H100 80GB HBM3") -> dict[str, Any]:
    """Return the products of a node with one rank per GPU, in TFLOP/s."""
    by_rank = [[f"product:{rank}", rate] for rank, rate in enumerate(rates)]
    return done(bits=f"cuda 4096 {model}: 1f2e", rates=[["product", min(rates)], *by_rank])


@pytest.mark.parametrize("count", [1, 2, 4, 64])
def test_one_slow_gpu_of_eight_is_named(count) -> None:
    readings = {**nodes(count - 1, of_gpus(*[60.0] * 8)), "slow": of_gpus(*[60.0] * 5, 36.0, 60.0, 60.0)}
    ((node, grade, message),) = verdicts(product, readings)
    assert (node, grade) == ("slow", WARN)
    assert message.startswith("slow matrix product of GPU 5: 36 TFLOP/s, 60% of the median 60")
    assert product.slow_nodes(asked(), readings) == ["slow"]


def test_the_slower_of_two_single_gpu_nodes_is_named_if_it_has_less_than_half_of_the_speed() -> None:
    assert blamed(product, {"n1": done(60.0), "n2": done(3.0)}) == {"n2": WARN}
    assert blamed(product, {"n1": done(60.0), "n2": done(40.0)}) == {}


def test_products_are_compared_within_one_model() -> None:
    h100, a100 = of_gpus(*[60.0] * 8), of_gpus(*[19.0] * 8, model="NVIDIA A100-SXM4-80GB")
    assert verdicts(product, nodes(4, h100, old1=a100, old2=a100)) == []


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        ("CUDA error: no kernel image is available for execution on the device", "install a torch wheel"),
        ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", "nvidia-smi -q -d COMPUTE,PIDS"),
        ("something that nobody knows", "clocks, power and heat"),
    ],
)
def test_a_failed_product_has_the_remedy_of_its_error(error, remedy) -> None:
    failed = done(passed=False, why=error)
    ((_, finding),) = product.judge(asked(), {"n1": failed})
    assert finding.verdict is FAIL
    assert remedy in finding.remedy
